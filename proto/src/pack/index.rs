//! Reading a pack's table of blocks. Total on arbitrary bytes: every count is checked against the bytes present
//! before anything is allocated for it.

use std::io;

use super::{
    BLOCK_ENTRY_BYTES, BlockPlace, END_MAGIC, FOOTER_BYTES_MAX, FRAME_ENTRY_BYTES, Fields, HEADER_BYTES,
    Hash, MAGIC, PACK_BLOCKS_MAX, PackError, TRAILER_BYTES, VERSION, decode_frame, verify,
};

/// Bytes of a pack's end that [`PackIndex::load`] reads first: the whole table of most packs.
const TAIL_GUESS: u64 = 64 << 10;

/// The table of blocks of one pack.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PackIndex {
    frames: Vec<Frame>,
    blocks: Vec<Block>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Frame {
    offset: u64,
    stored_len: u32,
    raw_len: u32,
    codec: u8,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Block {
    hash: Hash,
    frame: u32,
    offset: u32,
    len: u32,
}

struct Trailer {
    footer_len: u32,
    crc: u32,
    blocks: u32,
}

impl PackIndex {
    /// Reads the table from the last bytes of a pack of `pack_len` bytes. `tail` ends where the pack ends and holds
    /// at least footer and trailer; it may be the whole pack.
    ///
    /// # Errors
    /// [`PackError::Damaged`] when the bytes are not the end of a whole pack of that length.
    pub fn parse(tail: &[u8], pack_len: u64) -> Result<PackIndex, PackError> {
        let trailer = Trailer::parse(tail)?;
        let body = &tail[..tail.len() - TRAILER_BYTES];
        let Some(from) = body.len().checked_sub(trailer.footer_len as usize) else {
            return Err(PackError::Damaged("the footer is cut off"));
        };
        let footer = &body[from..];
        if footer_crc(footer, trailer.footer_len, trailer.blocks) != trailer.crc {
            return Err(PackError::Damaged("the footer's checksum is wrong"));
        }
        let frames_end = pack_len
            .checked_sub(TRAILER_BYTES as u64 + u64::from(trailer.footer_len))
            .ok_or(PackError::Damaged("the footer is longer than the pack"))?;
        Self::parse_footer(footer, trailer.blocks, frames_end)
    }

    fn parse_footer(footer: &[u8], block_count: u32, frames_end: u64) -> Result<PackIndex, PackError> {
        let short = PackError::Damaged("the footer is too short");
        let mut fields = Fields(footer);
        let Some(frame_count) = fields.u32() else { return Err(short) };
        let expected = 4
            + u64::from(frame_count) * FRAME_ENTRY_BYTES as u64
            + u64::from(block_count) * BLOCK_ENTRY_BYTES as u64;
        if footer.len() as u64 != expected {
            return Err(PackError::Damaged("the footer's counts do not fit its length"));
        }
        let mut frames = Vec::with_capacity(frame_count as usize);
        let mut next = HEADER_BYTES as u64;
        for _ in 0..frame_count {
            let frame = Frame::parse(&mut fields).ok_or(PackError::Damaged("the frame table is cut off"))?;
            frame.place(0, 1).check()?;
            if frame.offset != next {
                return Err(PackError::Damaged("the frames have gaps"));
            }
            next = frame.offset + u64::from(frame.stored_len);
            frames.push(frame);
        }
        if next != frames_end {
            return Err(PackError::Damaged("the frames do not end at the footer"));
        }
        let mut blocks = Vec::with_capacity(block_count as usize);
        for _ in 0..block_count {
            let block = Block::parse(&mut fields).ok_or(PackError::Damaged("the block table is cut off"))?;
            let frame = frames
                .get(block.frame as usize)
                .ok_or(PackError::Damaged("a block names a frame that is not there"))?;
            frame.place(block.offset, block.len).check()?;
            blocks.push(block);
        }
        Ok(PackIndex { frames, blocks })
    }

    /// Reads the table through `read(offset, length)`, which must give exactly that many bytes: header, then as much
    /// of the end as is needed (one read for most packs).
    ///
    /// # Errors
    /// [`PackError::Io`] from `read`; [`PackError::Damaged`] and [`PackError::Version`] for what is no pack.
    pub fn load<R>(pack_len: u64, read: R) -> Result<PackIndex, PackError>
    where
        R: Fn(u64, usize) -> io::Result<Vec<u8>>,
    {
        if pack_len < (HEADER_BYTES + TRAILER_BYTES) as u64 {
            return Err(PackError::Damaged("shorter than an empty pack"));
        }
        let tail_len = pack_len.min(TAIL_GUESS);
        let mut tail = read(pack_len - tail_len, tail_len as usize)?;
        if tail_len == pack_len {
            check_header(&tail)?;
        } else {
            check_header(&read(0, HEADER_BYTES)?)?;
        }
        let need = TRAILER_BYTES as u64 + u64::from(Trailer::parse(&tail)?.footer_len);
        if need > pack_len {
            return Err(PackError::Damaged("the footer is longer than the pack"));
        }
        if need > tail_len {
            tail = read(pack_len - need, need as usize)?;
        }
        Self::parse(&tail, pack_len)
    }

    /// Number of blocks.
    pub fn len(&self) -> usize {
        self.blocks.len()
    }

    /// Whether the pack holds no block.
    pub fn is_empty(&self) -> bool {
        self.blocks.is_empty()
    }

    /// Every block with its place, in the order in which they were added.
    pub fn blocks(&self) -> impl ExactSizeIterator<Item = (Hash, BlockPlace)> + '_ {
        self.blocks.iter().map(|b| (b.hash, self.frames[b.frame as usize].place(b.offset, b.len)))
    }

    /// Reads every frame through `read(offset, length)` and checks every block against its hash: what a receiver
    /// does once before it trusts a pack.
    ///
    /// # Errors
    /// [`PackError::Io`] from `read`; [`PackError::Damaged`] or [`PackError::WrongHash`] at the first bad block.
    pub fn verify_blocks<R>(&self, read: R) -> Result<(), PackError>
    where
        R: Fn(u64, usize) -> io::Result<Vec<u8>>,
    {
        let mut open: Option<(u64, Vec<u8>)> = None;
        for (hash, place) in self.blocks() {
            let raw = match open.take() {
                Some((offset, raw)) if offset == place.frame_offset => raw,
                _ => decode_frame(&read(place.frame_offset, place.stored_len as usize)?, &place)?,
            };
            let from = place.offset_in_frame as usize;
            verify(&hash, &raw[from..from + place.len as usize])?;
            open = Some((place.frame_offset, raw));
        }
        Ok(())
    }
}

impl Frame {
    fn parse(f: &mut Fields<'_>) -> Option<Frame> {
        Some(Frame { offset: f.u64()?, stored_len: f.u32()?, raw_len: f.u32()?, codec: f.u8()? })
    }

    fn place(&self, offset_in_frame: u32, len: u32) -> BlockPlace {
        BlockPlace {
            frame_offset: self.offset,
            stored_len: self.stored_len,
            raw_len: self.raw_len,
            codec: self.codec,
            offset_in_frame,
            len,
        }
    }
}

impl Block {
    fn parse(f: &mut Fields<'_>) -> Option<Block> {
        Some(Block { hash: f.take()?, frame: f.u32()?, offset: f.u32()?, len: f.u32()? })
    }
}

impl Trailer {
    fn parse(tail: &[u8]) -> Result<Trailer, PackError> {
        let bytes = tail.last_chunk::<TRAILER_BYTES>().ok_or(PackError::Damaged("the trailer is cut off"))?;
        let mut f = Fields(bytes);
        let (Some(footer_len), Some(crc), Some(blocks), Some(magic)) =
            (f.u32(), f.u32(), f.u32(), f.take::<4>())
        else {
            return Err(PackError::Damaged("the trailer is cut off"));
        };
        if magic != END_MAGIC {
            return Err(PackError::Damaged("the end mark is missing"));
        }
        if blocks > PACK_BLOCKS_MAX || u64::from(footer_len) > FOOTER_BYTES_MAX {
            return Err(PackError::Damaged("more blocks than a pack may hold"));
        }
        Ok(Trailer { footer_len, crc, blocks })
    }
}

pub(super) fn footer_crc(footer: &[u8], footer_len: u32, blocks: u32) -> u32 {
    let mut crc = crc32fast::Hasher::new();
    crc.update(footer);
    crc.update(&footer_len.to_le_bytes());
    crc.update(&blocks.to_le_bytes());
    crc.finalize()
}

fn check_header(bytes: &[u8]) -> Result<(), PackError> {
    let mut f = Fields(bytes);
    if f.take::<4>() != Some(MAGIC) {
        return Err(PackError::Damaged("the start mark is missing"));
    }
    match f.take::<2>().map(u16::from_le_bytes) {
        Some(VERSION) => Ok(()),
        Some(other) => Err(PackError::Version(other)),
        None => Err(PackError::Damaged("the header is cut off")),
    }
}
