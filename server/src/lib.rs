//! The tidefs server: orders, stores and announces the checkpoints of drives.

pub mod head;
pub mod order;
pub mod packs;
pub mod recover;
pub mod store;
