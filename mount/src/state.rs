//! What a mount keeps on this machine, and how a command finds it again.
//!
//! The base folder has one folder per drive and mount point, so that the same command line resumes the same
//! session. A folder holds `lock` (held while a process serves the mount), `mount.json` (what is or was mounted,
//! for commands), `session.json` (who this mount is to the server), `control.sock`, `mount.log` and the
//! write-ahead log. Nothing here touches a mount point: a command that diagnoses a hung mount must not hang.

pub mod files;
pub mod find;
pub mod folder;
pub mod mountinfo;
#[cfg(test)]
mod tests;
pub mod text;

pub use files::{MountFile, SessionFile};
pub use find::{Found, find_all, find_mount};
pub use folder::{StateFolder, base};

use crate::exit::Exit;
use std::{io, path::PathBuf};

/// Why the state on this machine cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum StateError {
    /// Another process has the folder.
    #[error("already mounted by process {}: the state folder {} is in use; unmount it first with `tidefs unmount {}`",
        pid.map_or_else(|| "(unknown)".to_owned(), |pid| pid.to_string()), folder.display(), dir.display())]
    Busy {
        /// The process, as far as it has said.
        pid: Option<u32>,
        /// The state folder.
        folder: PathBuf,
        /// The mount point.
        dir: PathBuf,
    },
    /// A file or folder cannot be read or written.
    #[error("cannot {what} {}: {source}", path.display())]
    Io {
        /// What was tried.
        what: &'static str,
        /// On what.
        path: PathBuf,
        /// What the system says.
        source: io::Error,
    },
    /// A file does not hold what it should.
    #[error("{} is damaged: {why}; move it aside and mount again (unsent work stays in the log beside it)", path.display())]
    Damaged {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        why: String,
    },
    /// No home for the state.
    #[error("no place for the state: set TIDEFS_STATE or HOME, or give --state DIR")]
    NoBase,
    /// A path leads nowhere.
    #[error("the path {} cannot be a mount point: {why}", path.display())]
    BadPath {
        /// The path as given.
        path: PathBuf,
        /// Why not.
        why: String,
        /// Whether it is just not there.
        missing: bool,
    },
}

impl StateError {
    /// The status that a command ends with.
    pub fn exit_code(&self) -> Exit {
        match self {
            Self::Busy { .. } => Exit::Refused,
            Self::Io { .. } | Self::Damaged { .. } => Exit::Failed,
            Self::NoBase => Exit::Prerequisite,
            Self::BadPath { missing: true, .. } => Exit::NotFound,
            Self::BadPath { missing: false, .. } => Exit::Usage,
        }
    }

    pub(crate) fn io(what: &'static str, path: impl Into<PathBuf>, source: impl Into<io::Error>) -> Self {
        Self::Io { what, path: path.into(), source: source.into() }
    }
}
