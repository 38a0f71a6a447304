//! The tidefs server: orders, stores and announces the checkpoints of drives.

pub mod store;
