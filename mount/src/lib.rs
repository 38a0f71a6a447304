//! Mounts a tidefs drive: the kernel's door, the write-ahead log, the session, the link to the server, the
//! command line.

pub mod fuse;
pub mod volume;
