//! A simulated drive: several sessions and a server on one thread, from one seed.
//!
//! Real mounts show what happens; they cannot be crashed between two instructions, and a failure does not come
//! back. Here the session, the order, the head, placing and recovery are the real code, while disk, network, clock
//! and kernel are false: each does the worst that the true one may do, when chance says so. Equal seeds give equal
//! runs, so whatever breaks can be looked at again.
//!
//! The checkers stand outside of what they check: [`kernel`] believes what it was told, [`model`] keeps plain bytes,
//! [`check`] compares whole trees.

pub mod acts;
pub mod check;
pub mod counts;
pub mod disk;
pub mod kernel;
pub mod model;
pub mod mounts;
pub mod packing;
pub mod restart;
pub mod run;
pub mod server;
pub mod shell;
pub mod world;
