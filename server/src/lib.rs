//! The tidefs server: orders, stores and announces the checkpoints of drives.
//!
//! [`order`] decides, [`head`] is the tree, [`store`] keeps bytes, the sequencer behind [`drive`] runs them, the
//! services answer. `order` and `head` are synchronous and take time and ids as arguments, so that a simulation
//! can run them over the stores' twins in memory.

pub mod config;
pub mod drive;
pub mod drives;
#[cfg(test)]
mod fixture;
pub mod followers;
pub mod head;
pub mod http;
pub mod listing;
pub mod order;
pub mod packs;
pub mod paths;
pub mod recover;
mod sequencer;
pub mod server;
pub mod service;
pub mod store;
pub mod telemetry;
#[cfg(test)]
mod tests;
pub mod timeline;
