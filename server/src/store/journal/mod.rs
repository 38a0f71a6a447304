//! The journal of one drive: the list of its entries, dense from 1, each created exactly once and durable.

mod file;
mod memory;
mod record;
mod segment;
#[cfg(test)]
mod tests;

use std::path::PathBuf;

use async_trait::async_trait;
use bytes::Bytes;

use super::disk::DiskError;

pub use file::{FileJournal, FileJournalOptions};
pub use memory::MemoryJournal;

/// The largest body of one entry, in bytes. What group commit collects for one entry must stay below it.
pub const ENTRY_BYTES_MAX: usize = 64 << 20;

/// The entries that a journal holds: `first..next`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Bounds {
    /// The oldest entry that can be read; equal to `next` when there is none.
    pub first: u64,
    /// The number that the next entry gets; 1 in a new journal.
    pub next: u64,
}

/// Why a journal did not do what it was asked.
#[derive(Debug, thiserror::Error)]
pub enum JournalError {
    /// The entry is there already, or was before it was dropped: somebody else made it.
    #[error("journal entry {entry} exists already; reopen the journal to read it")]
    AlreadyExists {
        /// The number that was asked for.
        entry: u64,
    },
    /// The number would leave a gap.
    #[error("journal entry {entry} would leave a gap: the next one is {next}")]
    NotNext {
        /// The number that was asked for.
        entry: u64,
        /// The number that can be created.
        next: u64,
    },
    /// The body exceeds [`ENTRY_BYTES_MAX`].
    #[error("journal entry {entry} has {bytes} bytes, more than {ENTRY_BYTES_MAX}; split it")]
    TooLarge {
        /// The number that was asked for.
        entry: u64,
        /// The size of its body.
        bytes: usize,
    },
    /// The entry was dropped.
    #[error("journal entry {entry} was dropped: the oldest one left is {first}; start from a fold")]
    Dropped {
        /// The number that was asked for.
        entry: u64,
        /// The oldest entry left.
        first: u64,
    },
    /// Another journal object has this folder open.
    #[error("the journal in {} is open already; close it first", path.display())]
    Busy {
        /// The folder of the journal.
        path: PathBuf,
    },
    /// An earlier write or sync failed, so what is on disk is unknown until the journal is opened again.
    #[error("the journal stopped after a failure ({why}); reopen it")]
    Poisoned {
        /// The failure.
        why: String,
    },
    /// Stored bytes are not what was written, and no torn last write explains it.
    #[error("journal file {} is damaged at byte {offset}: {what}; restore it from a backup", path.display())]
    Damaged {
        /// The damaged file.
        path: PathBuf,
        /// Where the damage begins, in bytes from the start of the file.
        offset: u64,
        /// What was found.
        what: String,
    },
    /// A file of the journal was written by a version of the format that this build does not know.
    #[error("journal file {} has format version {found}; use a newer tidefs-server", path.display())]
    Version {
        /// The file.
        path: PathBuf,
        /// The version found in it.
        found: u16,
    },
    /// A file of the journal belongs to another drive.
    #[error("journal file {} belongs to another drive; move it away", path.display())]
    OtherDrive {
        /// The file.
        path: PathBuf,
    },
    /// A system call failed.
    #[error(transparent)]
    Disk(#[from] DiskError),
}

impl JournalError {
    /// Whether the disk was full.
    pub fn is_full(&self) -> bool {
        matches!(self, JournalError::Disk(error) if error.is_full())
    }
}

/// The journal of one drive.
///
/// A failed `create` leaves unknown whether the entry exists. The object then refuses every call with
/// [`JournalError::Poisoned`]; whoever opens the journal again finds out.
#[async_trait]
pub trait Journal: Send + Sync + std::fmt::Debug {
    /// Creates one entry, exactly once: it is durable when this returns, and no second caller can make the same
    /// number. The number must be [`Bounds::next`]. A call that is dropped half-way may still take effect.
    ///
    /// # Errors
    /// `AlreadyExists`, `NotNext` and `TooLarge` change nothing; any other error poisons the journal.
    async fn create(&self, entry: u64, body: Bytes) -> Result<(), JournalError>;

    /// Reads entries in order from `first` on: as many as fit into `max_bytes` of bodies (64 MiB at most), and
    /// always one if there is one. Empty when `first` is not there yet.
    ///
    /// # Errors
    /// `Dropped` when `first` is older than the oldest entry left; `Damaged` when stored bytes do not verify.
    async fn read_from(&self, first: u64, max_bytes: usize) -> Result<Vec<(u64, Bytes)>, JournalError>;

    /// The entries that can be read.
    ///
    /// # Errors
    /// `Poisoned` after a failure.
    async fn bounds(&self) -> Result<Bounds, JournalError>;

    /// Allows to drop all entries below `entry`. Those from `entry` on stay; how many of the older ones stay too
    /// is up to the implementation. The numbers are not given out again.
    ///
    /// # Errors
    /// `NotNext` when `entry` is above [`Bounds::next`].
    async fn drop_before(&self, entry: u64) -> Result<(), JournalError>;
}

/// The checks on a number and a size that every implementation makes before it does anything.
fn check_create(entry: u64, next: u64, bytes: usize) -> Result<(), JournalError> {
    if entry < next {
        return Err(JournalError::AlreadyExists { entry });
    }
    if entry > next {
        return Err(JournalError::NotNext { entry, next });
    }
    if bytes > ENTRY_BYTES_MAX {
        return Err(JournalError::TooLarge { entry, bytes });
    }
    Ok(())
}
