//! What can go wrong with the outbox.

use std::io;
use std::path::{Path, PathBuf};

/// Why a sealed checkpoint could not be stored or read.
#[derive(Debug, thiserror::Error)]
pub enum OutboxError {
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
    /// The file is not what was written.
    #[error("{path} is damaged: {what}; it cannot be sent. Move it away to go on without it")]
    Damaged {
        /// The damaged file.
        path: PathBuf,
        /// What is wrong with it.
        what: &'static str,
    },
    /// No checkpoint of that number.
    #[error("there is no unsent checkpoint {number} ({path})")]
    Missing {
        /// The number asked for.
        number: u64,
        /// Where it would be.
        path: PathBuf,
    },
    /// A checkpoint of that number is stored already.
    #[error("checkpoint {number} is stored already ({path}): remove it first or take another number")]
    Exists {
        /// The number.
        number: u64,
        /// Where it is.
        path: PathBuf,
    },
    /// A checkpoint over the limit was offered.
    #[error("checkpoint {number} has {bytes} bytes, more than the limit of 256 MiB: cut smaller batches")]
    TooLarge {
        /// Its number.
        number: u64,
        /// Its length.
        bytes: u64,
    },
}

impl OutboxError {
    pub(super) fn io(action: &'static str, path: &Path, source: io::Error) -> OutboxError {
        let path = path.to_path_buf();
        match source.kind() {
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => {
                OutboxError::NoSpace { action, path }
            }
            _ => OutboxError::Io { action, path, source },
        }
    }

    pub(super) fn damaged(path: &Path, what: &'static str) -> OutboxError {
        OutboxError::Damaged { path: path.to_path_buf(), what }
    }
}
