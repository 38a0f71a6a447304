//! What can go wrong with the log.

use std::io;
use std::path::{Path, PathBuf};

/// Why an operation on the log failed. Nothing of it changed the log.
#[derive(Debug, thiserror::Error)]
pub enum LogError {
    /// The disk or the quota is full: ENOSPC.
    #[error("no space left to {action} {path}: free space on that file system, or wait for the upload")]
    NoSpace {
        /// What was being done.
        action: &'static str,
        /// To which file.
        path: PathBuf,
    },
    /// The disk failed: EIO.
    #[error("could not {action} {path}: {source}; check that file system")]
    Io {
        /// What was being done.
        action: &'static str,
        /// To which file.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// A sync failed, now or before, on a segment that the caller needs durable: EIO. What lies in it can be read
    /// and stays undurable until the open batch is sealed and the segment released.
    #[error("{path} could not be made durable: {source}; seal the batch, or check that file system")]
    Sync {
        /// The segment.
        path: PathBuf,
        /// What the system said at the failed sync.
        source: io::Error,
    },
    /// A record over the limits was offered: EINVAL.
    #[error("a record with {head} bytes of head and {data} bytes of data is over the limit of 1 MiB each")]
    TooLarge {
        /// Bytes of the head.
        head: usize,
        /// Bytes of the data.
        data: usize,
    },
    /// The log does not hold those bytes: never appended, or released.
    #[error("the log holds no {len} bytes at {pos}: they were released or never written")]
    NotHeld {
        /// The address asked for.
        pos: u64,
        /// The number of bytes asked for.
        len: usize,
    },
}

impl LogError {
    pub(super) fn from_io(action: &'static str, path: &Path, source: io::Error) -> LogError {
        let path = path.to_path_buf();
        match source.kind() {
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => LogError::NoSpace { action, path },
            _ => LogError::Io { action, path, source },
        }
    }
}
