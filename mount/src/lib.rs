//! Mounts a tidefs drive: the kernel's door, the write-ahead log, the session, the link to the server, the
//! command line.

pub mod cache;
pub mod link;
pub mod session;
pub mod volume;
pub mod wal;
