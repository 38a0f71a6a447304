//! Mounts a tidefs drive: kernel door, write-ahead log, session, command line.
pub mod cache;
pub mod wal;
