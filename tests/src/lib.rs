//! The vocabulary of the tests.
//!
//! A story about a shared drive is short when the words exist: two mounts, write here, wait until it
//! is visible there, kill that process. This crate builds the words once ([`world`]) over real
//! processes and real mounts, so that each test states its promise and nothing else.

pub mod stats;
pub mod world;

pub use world::files;
pub use world::need::{self, Need};
pub use world::{Mount, World, story};
