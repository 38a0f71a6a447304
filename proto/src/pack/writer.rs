//! Writing a pack in one pass.

use std::collections::HashSet;
use std::io::Write;

use super::place::{CODEC_RAW, CODEC_ZSTD};
use super::{
    BLOCK_BYTES_MAX, BLOCK_ENTRY_BYTES, END_MAGIC, FRAME_ENTRY_BYTES, FRAME_RAW_TARGET, HEADER_BYTES, Hash,
    MAGIC, PACK_BLOCKS_MAX, PackError, VERSION,
};

/// The level used for upload and at rest: the ratio of higher levels is nearly the same, at half the speed.
const ZSTD_LEVEL: i32 = 1;

/// What a finished pack is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PackSummary {
    /// BLAKE3 of all the pack's bytes.
    pub id: Hash,
    /// Length of the pack, in bytes.
    pub length: u64,
    /// Number of distinct blocks in it.
    pub blocks: u32,
}

/// Writes blocks into a sink as one pack. Holds one frame and the table of blocks in memory.
///
/// After an error the bytes in the sink are not a pack; every further call fails with [`PackError::Broken`].
pub struct PackWriter<W: Write> {
    sink: Sink<W>,
    compressor: zstd::bulk::Compressor<'static>,
    frame: Vec<u8>,
    frame_count: u32,
    frame_table: Vec<u8>,
    block_table: Vec<u8>,
    seen: HashSet<Hash>,
    broken: bool,
}

impl<W: Write> PackWriter<W> {
    /// Starts a pack. Nothing is written before the first frame is full.
    ///
    /// # Errors
    /// [`PackError::Io`] when the compressor cannot be made (out of memory).
    pub fn new(sink: W) -> Result<PackWriter<W>, PackError> {
        let mut header = Vec::with_capacity(HEADER_BYTES);
        header.extend_from_slice(&MAGIC);
        header.extend_from_slice(&VERSION.to_le_bytes());
        header.extend_from_slice(&0u16.to_le_bytes());
        Ok(PackWriter {
            sink: Sink { inner: sink, pending: header, hasher: blake3::Hasher::new(), length: 0 },
            compressor: zstd::bulk::Compressor::new(ZSTD_LEVEL)?,
            frame: Vec::new(),
            frame_count: 0,
            frame_table: Vec::new(),
            block_table: Vec::new(),
            seen: HashSet::new(),
            broken: false,
        })
    }

    /// Adds a block, unless the pack has it already, and gives its hash.
    ///
    /// # Errors
    /// [`PackError::BlockSize`] outside 1 byte to 1 MiB and [`PackError::Full`] at the maximum of blocks (both leave
    /// the pack as it was); [`PackError::Io`] when the sink fails.
    pub fn add(&mut self, block: &[u8]) -> Result<Hash, PackError> {
        if self.broken {
            return Err(PackError::Broken);
        }
        if block.is_empty() || block.len() > BLOCK_BYTES_MAX {
            return Err(PackError::BlockSize(block.len()));
        }
        let hash = *blake3::hash(block).as_bytes();
        if self.seen.contains(&hash) {
            return Ok(hash);
        }
        if self.blocks() >= PACK_BLOCKS_MAX {
            return Err(PackError::Full(PACK_BLOCKS_MAX));
        }
        if self.frame.len() + block.len() > FRAME_RAW_TARGET {
            self.end_frame()?;
        }
        self.seen.insert(hash);
        self.block_table.extend_from_slice(&hash);
        self.block_table.extend_from_slice(&self.frame_count.to_le_bytes());
        self.block_table.extend_from_slice(&(self.frame.len() as u32).to_le_bytes());
        self.block_table.extend_from_slice(&(block.len() as u32).to_le_bytes());
        self.frame.extend_from_slice(block);
        Ok(hash)
    }

    /// Number of distinct blocks added so far.
    pub fn blocks(&self) -> u32 {
        (self.block_table.len() / BLOCK_ENTRY_BYTES) as u32
    }

    /// Whether a block of that hash was added.
    pub fn contains(&self, hash: &Hash) -> bool {
        self.seen.contains(hash)
    }

    /// Writes what is left and the table of blocks. The sink is flushed, not synced.
    ///
    /// # Errors
    /// [`PackError::Io`] when the sink fails, [`PackError::Broken`] when it failed before.
    pub fn finish(self) -> Result<PackSummary, PackError> {
        self.finish_into().map(|(summary, _)| summary)
    }

    /// As [`PackWriter::finish`], and gives the sink back.
    ///
    /// # Errors
    /// As [`PackWriter::finish`].
    pub fn finish_into(mut self) -> Result<(PackSummary, W), PackError> {
        if self.broken {
            return Err(PackError::Broken);
        }
        self.end_frame()?;
        let blocks = self.blocks();
        let mut tail = Vec::with_capacity(4 + self.frame_table.len() + self.block_table.len() + 16);
        tail.extend_from_slice(&self.frame_count.to_le_bytes());
        tail.append(&mut self.frame_table);
        tail.append(&mut self.block_table);
        let footer_len = tail.len() as u32;
        let crc = super::index::footer_crc(&tail, footer_len, blocks);
        tail.extend_from_slice(&footer_len.to_le_bytes());
        tail.extend_from_slice(&crc.to_le_bytes());
        tail.extend_from_slice(&blocks.to_le_bytes());
        tail.extend_from_slice(&END_MAGIC);
        self.sink.push(&tail)?;
        self.sink.inner.flush()?;
        let id = *self.sink.hasher.finalize().as_bytes();
        Ok((PackSummary { id, length: self.sink.length, blocks }, self.sink.inner))
    }

    fn end_frame(&mut self) -> Result<(), PackError> {
        if self.frame.is_empty() {
            return Ok(());
        }
        let result = self.write_frame();
        self.broken = result.is_err();
        result
    }

    fn write_frame(&mut self) -> Result<(), PackError> {
        let packed = self.compressor.compress(&self.frame)?;
        // Under 5 % saved, the time to decompress on every read is worth more than the space.
        let saves =
            packed.len() + self.frame.len() / 20 <= self.frame.len() && packed.len() < self.frame.len();
        let (codec, stored) = if saves { (CODEC_ZSTD, &packed) } else { (CODEC_RAW, &self.frame) };
        let offset = self.sink.position();
        self.sink.push(stored)?;
        self.frame_table.reserve(FRAME_ENTRY_BYTES);
        self.frame_table.extend_from_slice(&offset.to_le_bytes());
        self.frame_table.extend_from_slice(&(stored.len() as u32).to_le_bytes());
        self.frame_table.extend_from_slice(&(self.frame.len() as u32).to_le_bytes());
        self.frame_table.push(codec);
        self.frame_count += 1;
        self.frame.clear();
        Ok(())
    }
}

/// The sink with the running hash and length. The header waits in `pending` and goes out with the first push, so
/// that making a writer cannot fail on the sink.
struct Sink<W> {
    inner: W,
    pending: Vec<u8>,
    hasher: blake3::Hasher,
    length: u64,
}

impl<W: Write> Sink<W> {
    fn position(&self) -> u64 {
        self.length + self.pending.len() as u64
    }

    fn push(&mut self, bytes: &[u8]) -> Result<(), PackError> {
        let pending = std::mem::take(&mut self.pending);
        for part in [pending.as_slice(), bytes] {
            self.inner.write_all(part)?;
            self.hasher.update(part);
            self.length += part.len() as u64;
        }
        Ok(())
    }
}
