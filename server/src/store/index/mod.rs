//! The index of one drive: sorted keys and values that the journal can rebuild.
//!
//! It is allowed to lose what it was told since the last flush, or everything; it is never allowed to be wrong. So
//! each batch carries the position in the journal that it brings the index to, and whoever opens the index replays
//! the journal from there.

mod memory;
mod sled;
#[cfg(test)]
mod tests;

use std::path::PathBuf;

use super::disk::DiskError;

pub use self::sled::{SledIndex, SledOptions};
pub use memory::MemoryIndex;

/// The size that a value must stay below, in bytes. sled grows without bound with larger ones.
pub const VALUE_BYTES_LIMIT: usize = 32 << 10;
/// The longest key, in bytes.
pub const KEY_BYTES_MAX: usize = 4 << 10;

/// Why an index did not do what it was asked.
#[derive(Debug, thiserror::Error)]
pub enum IndexError {
    /// A value of [`VALUE_BYTES_LIMIT`] bytes or more; the batch had no effect.
    #[error("an index value has {bytes} bytes, the limit is {VALUE_BYTES_LIMIT}; split it")]
    ValueTooLarge {
        /// The size of the value.
        bytes: usize,
    },
    /// A key above [`KEY_BYTES_MAX`]; the batch had no effect.
    #[error("an index key has {bytes} bytes, more than {KEY_BYTES_MAX}; shorten it")]
    KeyTooLong {
        /// The size of the key.
        bytes: usize,
    },
    /// The batch would take the index back; it had no effect.
    #[error(
        "an index batch is for journal position {asked}, but the index is at {position}; reopen the index"
    )]
    PositionBack {
        /// The position of the batch.
        asked: u64,
        /// The position of the index.
        position: u64,
    },
    /// Another object has this index open.
    #[error("the index in {} is open already; close it first", path.display())]
    Busy {
        /// The folder of the index.
        path: PathBuf,
    },
    /// The index cannot be trusted. The next open moves it aside and begins an empty one.
    #[error("the index in {} is damaged ({what}); reopen the drive to rebuild it from the journal", path.display())]
    Broken {
        /// The folder of the index.
        path: PathBuf,
        /// What was found.
        what: String,
    },
    /// A system call failed.
    #[error(transparent)]
    Disk(#[from] DiskError),
}

impl IndexError {
    /// Whether the disk was full.
    pub fn is_full(&self) -> bool {
        matches!(self, IndexError::Disk(error) if error.is_full())
    }
}

/// A key and its value.
pub type Pair = (Vec<u8>, Vec<u8>);

/// Changes that take effect together. Of several changes of one key the last one counts.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Batch {
    changes: Vec<(Vec<u8>, Option<Vec<u8>>)>,
}

impl Batch {
    /// No changes.
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets a key.
    pub fn put(&mut self, key: impl Into<Vec<u8>>, value: impl Into<Vec<u8>>) {
        self.changes.push((key.into(), Some(value.into())));
    }

    /// Removes a key. One that is not there is no error.
    pub fn delete(&mut self, key: impl Into<Vec<u8>>) {
        self.changes.push((key.into(), None));
    }

    /// How many changes were collected.
    pub fn len(&self) -> usize {
        self.changes.len()
    }

    /// Whether nothing was collected.
    pub fn is_empty(&self) -> bool {
        self.changes.is_empty()
    }

    fn check(&self) -> Result<(), IndexError> {
        for (key, value) in &self.changes {
            check_key(key)?;
            let bytes = value.as_ref().map_or(0, Vec::len);
            if bytes >= VALUE_BYTES_LIMIT {
                return Err(IndexError::ValueTooLarge { bytes });
            }
        }
        Ok(())
    }
}

fn check_key(key: &[u8]) -> Result<(), IndexError> {
    if key.len() > KEY_BYTES_MAX { Err(IndexError::KeyTooLong { bytes: key.len() }) } else { Ok(()) }
}

/// The index of one drive. One owner writes; anybody reads. Calls block the thread, mostly for microseconds.
pub trait Index: Send + Sync + std::fmt::Debug {
    /// The value of a key.
    ///
    /// # Errors
    /// `Broken` or a failed system call.
    fn get(&self, key: &[u8]) -> Result<Option<Vec<u8>>, IndexError>;

    /// Keys that begin with `prefix` and stand behind `after`, in order, at most `limit` of them. Fewer than
    /// `limit` means that there are no more.
    ///
    /// # Errors
    /// `Broken` or a failed system call.
    fn range(&self, prefix: &[u8], after: Option<&[u8]>, limit: usize) -> Result<Vec<Pair>, IndexError>;

    /// Takes over a batch as a whole and with it the journal position, which may stay the same but not go back.
    /// It is visible when this returns, and durable after the next [`Index::flush`].
    ///
    /// # Errors
    /// `ValueTooLarge`, `KeyTooLong` and `PositionBack` change nothing; after others reopen the index.
    fn commit(&self, batch: Batch, position: u64) -> Result<(), IndexError>;

    /// The journal position of the last batch; 0 when there was none.
    ///
    /// # Errors
    /// `Broken` or a failed system call.
    fn position(&self) -> Result<u64, IndexError>;

    /// Makes durable what was committed before. Waits for the disk.
    ///
    /// # Errors
    /// A failed system call; then reopen the index.
    fn flush(&self) -> Result<(), IndexError>;
}
