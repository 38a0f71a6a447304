//! A pack: many blocks in one byte string, readable block by block.
//!
//! Small files compress badly one at a time and cost one object each, so blocks travel and rest together. Blocks
//! are gathered into *frames* of about [`FRAME_RAW_TARGET`] bytes, each compressed on its own: large enough to keep
//! the ratio, small enough that reading one block costs one short read. The table of blocks stands at the end, so a
//! pack is written in one pass and opened by reading its tail.
//!
//! ```text
//! header   "TDPK"  version u16  flags u16
//! frame    stored bytes (zstd, or raw when compression saves too little)         … once per frame, no gaps
//! footer   frames u32 · per frame: offset u64, stored length u32, raw length u32, codec u8
//!          per block: hash 32 bytes, frame u32, offset in the raw frame u32, length u32
//! trailer  footer length u32 · crc32 u32 (footer, footer length, block count) · block count u32 · "TDPE"
//! ```
//! All numbers are little-endian. A block's name is the BLAKE3 hash of its raw bytes; a pack's id is the BLAKE3 hash
//! of all its bytes.

mod error;
mod index;
mod place;
#[cfg(test)]
mod tests;
mod writer;

pub use error::PackError;
pub use index::PackIndex;
pub use place::{BLOCK_PLACE_BYTES, BlockPlace, decode_block, decode_frame, verify};
pub use writer::{PackSummary, PackWriter};

/// A BLAKE3 hash: the name of a block or of a pack.
pub type Hash = [u8; 32];

/// Largest block, in raw bytes. One block never exceeds one message on the wire.
pub const BLOCK_BYTES_MAX: usize = 1 << 20;
/// Raw bytes that a frame aims at; a single larger block has a frame of its own.
pub const FRAME_RAW_TARGET: usize = 256 << 10;
/// Largest frame, in raw and in stored bytes. Whoever decodes never allocates more.
pub const FRAME_RAW_MAX: usize = BLOCK_BYTES_MAX;
/// Most blocks in one pack. It bounds the table that a reader holds in memory (about 64 MiB).
pub const PACK_BLOCKS_MAX: u32 = 1 << 20;
/// Bytes of the fixed header.
pub const HEADER_BYTES: usize = 8;
/// Bytes of the fixed trailer.
pub const TRAILER_BYTES: usize = 16;

const MAGIC: [u8; 4] = *b"TDPK";
const END_MAGIC: [u8; 4] = *b"TDPE";
const VERSION: u16 = 1;
const FRAME_ENTRY_BYTES: usize = 17;
const BLOCK_ENTRY_BYTES: usize = 44;
/// Largest footer: every block in a frame of its own.
const FOOTER_BYTES_MAX: u64 = 4 + PACK_BLOCKS_MAX as u64 * (FRAME_ENTRY_BYTES + BLOCK_ENTRY_BYTES) as u64;

const _: () = assert!(FRAME_RAW_TARGET <= FRAME_RAW_MAX);
const _: () = assert!(FOOTER_BYTES_MAX <= u32::MAX as u64);

/// Cuts fixed-size fields off the front of a byte string; `None` when it is too short.
struct Fields<'a>(&'a [u8]);

impl Fields<'_> {
    fn take<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (field, rest) = self.0.split_first_chunk::<N>()?;
        self.0 = rest;
        Some(*field)
    }

    fn u8(&mut self) -> Option<u8> {
        self.take::<1>().map(|b| b[0])
    }

    fn u32(&mut self) -> Option<u32> {
        self.take().map(u32::from_le_bytes)
    }

    fn u64(&mut self) -> Option<u64> {
        self.take().map(u64::from_le_bytes)
    }
}
