//! What can be wrong with a pack.

use std::io;

/// Why a pack could not be written or read.
#[derive(Debug, thiserror::Error)]
pub enum PackError {
    /// A block outside 1 byte to 1 MiB was offered.
    #[error("a block of {0} bytes is not allowed: 1 to 1048576 bytes")]
    BlockSize(usize),
    /// The pack holds its maximum of blocks; finish it and start another.
    #[error("the pack is full ({0} blocks): finish it and start another")]
    Full(u32),
    /// An earlier write failed, so the bytes written so far are not a pack.
    #[error("an earlier write to this pack failed: discard it and write it again")]
    Broken,
    /// The sink or the source failed.
    #[error("pack input or output failed: {0}")]
    Io(#[from] io::Error),
    /// The bytes are not a pack, or a damaged one.
    #[error("damaged pack: {0}")]
    Damaged(&'static str),
    /// The pack was written by a newer format.
    #[error("pack format version {0} is not known here: update tidefs")]
    Version(u16),
    /// A block's bytes are not those that its name promises.
    #[error("a block's bytes do not match its hash")]
    WrongHash,
}
