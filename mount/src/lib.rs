//! Mounts a tidefs drive: the kernel's door, the write-ahead log, the session, the link to the server, the
//! command line.

pub mod cache;
pub mod cli;
pub mod config;
pub mod control;
pub mod driver;
pub mod engine;
pub mod exit;
pub mod fuse;
pub mod link;
pub mod session;
pub mod state;
pub mod volume;
pub mod wal;
