//! The packs of one drive: byte strings named by their BLAKE3, put once, read in ranges.

mod memory;
mod object;
#[cfg(test)]
mod tests;

use std::ops::Range;

use async_trait::async_trait;
use bytes::Bytes;

use super::disk::DiskError;

pub use memory::MemoryBlocks;
pub use object::ObjectBlocks;

/// The name of a pack: the BLAKE3 of all its bytes.
pub type PackId = [u8; 32];

/// The largest pack, in bytes.
pub const PACK_BYTES_MAX: u64 = 4 << 30;
/// The most bytes that one read returns.
pub const READ_BYTES_MAX: u64 = 64 << 20;
/// The most ranges that one read takes.
pub const READ_RANGES_MAX: usize = 65_536;

/// Why packs could not be put or read.
#[derive(Debug, thiserror::Error)]
pub enum BlocksError {
    /// There is no such pack.
    #[error("there is no pack {}", hex(id))]
    NotFound {
        /// The pack that was asked for.
        id: PackId,
    },
    /// The bytes are not those that the name promises; nothing was stored.
    #[error("the bytes sent as pack {} are pack {}; send them again", hex(expected), hex(found))]
    WrongId {
        /// The name that was given.
        expected: PackId,
        /// The BLAKE3 of the bytes.
        found: PackId,
    },
    /// An upload grew past its limit; nothing was stored.
    #[error("a pack exceeds the limit of {limit} bytes; send smaller packs")]
    TooLarge {
        /// The limit in bytes.
        limit: u64,
    },
    /// A read asks for bytes behind the end of the pack, or for a range that ends before it starts.
    #[error("pack {} has no bytes {}..{}", hex(id), range.start, range.end)]
    OutOfRange {
        /// The pack.
        id: PackId,
        /// The range that was asked for, in bytes.
        range: Range<u64>,
    },
    /// A read asks for more than [`READ_BYTES_MAX`] bytes or [`READ_RANGES_MAX`] ranges.
    #[error("one read of pack {} asks for {bytes} bytes in {ranges} ranges; split it", hex(id))]
    ReadTooLarge {
        /// The pack.
        id: PackId,
        /// The sum of the ranges, in bytes.
        bytes: u64,
        /// How many ranges were asked for.
        ranges: usize,
    },
    /// The object storage failed.
    #[error("cannot {doing} {path}: {source}")]
    Storage {
        /// What was attempted.
        doing: &'static str,
        /// The object it was attempted on.
        path: String,
        /// What the storage answered.
        source: object_store::Error,
    },
    /// A system call failed.
    #[error(transparent)]
    Disk(#[from] DiskError),
}

impl BlocksError {
    /// Whether the disk was full.
    pub fn is_full(&self) -> bool {
        match self {
            BlocksError::Disk(error) => error.is_full(),
            BlocksError::Storage { source, .. } => has_full_disk(source),
            _ => false,
        }
    }
}

/// The packs of one drive.
#[async_trait]
pub trait Blocks: Send + Sync + std::fmt::Debug {
    /// Stores a pack; it is durable when this returns. Putting the same pack again is no error.
    ///
    /// # Errors
    /// `WrongId` when the bytes are not those of `id`; `TooLarge` above [`PACK_BYTES_MAX`]. After any error the
    /// pack may be there as a whole or not at all.
    async fn put_pack(&self, id: PackId, pack: Bytes) -> Result<(), BlocksError>;

    /// Begins a pack that arrives in parts and has at most `limit` bytes. Nothing is visible before it is
    /// finished; an upload that is dropped leaves nothing.
    ///
    /// # Errors
    /// When the storage cannot take it.
    async fn begin_upload(&self, limit: u64) -> Result<Box<dyn PackUpload>, BlocksError>;

    /// Reads ranges of one pack, answered in the order asked. The bytes are not verified here: a block is verified
    /// by whoever knows its hash.
    ///
    /// # Errors
    /// `NotFound`, `OutOfRange`, `ReadTooLarge`.
    async fn read(&self, id: PackId, ranges: &[Range<u64>]) -> Result<Vec<Bytes>, BlocksError>;

    /// The size of a pack in bytes.
    ///
    /// # Errors
    /// `NotFound`.
    async fn size(&self, id: PackId) -> Result<u64, BlocksError>;

    /// Packs and their sizes in bytes, in the order of their names, behind `after`, at most `limit` of them.
    /// Fewer than `limit` means that there are no more.
    ///
    /// # Errors
    /// When the storage cannot be listed.
    async fn list(&self, after: Option<PackId>, limit: usize) -> Result<Vec<(PackId, u64)>, BlocksError>;

    /// Removes a pack. One that is not there is no error. Not durable: after a crash the pack may be back.
    ///
    /// # Errors
    /// When the storage cannot remove it.
    async fn delete(&self, id: PackId) -> Result<(), BlocksError>;
}

/// A pack on its way in. Dropping it gives it up.
#[async_trait]
pub trait PackUpload: Send {
    /// Adds bytes at the end.
    ///
    /// # Errors
    /// `TooLarge` past the limit. After an error the upload can only be given up.
    async fn write(&mut self, part: Bytes) -> Result<(), BlocksError>;

    /// Ends the pack: its bytes must be those that `expected` names. Durable when this returns; gives the size in
    /// bytes.
    ///
    /// # Errors
    /// `WrongId`, and nothing is stored.
    async fn finish(self: Box<Self>, expected: PackId) -> Result<u64, BlocksError>;

    /// Gives the upload up and removes what it stored, as dropping it does, but returns when that is done.
    async fn abort(self: Box<Self>);
}

fn check_id(expected: PackId, found: blake3::Hash) -> Result<(), BlocksError> {
    let found = *found.as_bytes();
    if found == expected { Ok(()) } else { Err(BlocksError::WrongId { expected, found }) }
}

fn check_limit(bytes: u64, limit: u64) -> Result<(), BlocksError> {
    if bytes > limit { Err(BlocksError::TooLarge { limit }) } else { Ok(()) }
}

fn check_ranges(id: PackId, ranges: &[Range<u64>]) -> Result<(), BlocksError> {
    let mut bytes = 0u64;
    for range in ranges {
        let Some(length) = range.end.checked_sub(range.start) else {
            return Err(BlocksError::OutOfRange { id, range: range.clone() });
        };
        bytes = bytes.saturating_add(length);
    }
    if bytes > READ_BYTES_MAX || ranges.len() > READ_RANGES_MAX {
        return Err(BlocksError::ReadTooLarge { id, bytes, ranges: ranges.len() });
    }
    Ok(())
}

/// Whether any cause of this error is a full disk.
fn has_full_disk(error: &(dyn std::error::Error + 'static)) -> bool {
    let mut cause = Some(error);
    while let Some(error) = cause {
        if error.downcast_ref::<std::io::Error>().is_some_and(super::disk::is_full) {
            return true;
        }
        cause = error.source();
    }
    false
}

/// A pack's name in 64 hex digits.
fn hex(id: &PackId) -> String {
    blake3::Hash::from_bytes(*id).to_hex().to_string()
}
