//! Where one block lies in a pack, and how to get its bytes back out of its frame.

use super::{FRAME_RAW_MAX, Fields, Hash, PackError};

/// Length of an encoded [`BlockPlace`], in bytes.
pub const BLOCK_PLACE_BYTES: usize = 25;

/// Frame bytes are the raw bytes.
pub(super) const CODEC_RAW: u8 = 0;
/// Frame bytes are one zstd frame.
pub(super) const CODEC_ZSTD: u8 = 1;

/// Where one block lies in a pack: read `stored_len` bytes at `frame_offset` and give them to [`decode_block`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct BlockPlace {
    /// Offset of the frame in the pack, in bytes.
    pub frame_offset: u64,
    /// Length of the frame as stored, in bytes.
    pub stored_len: u32,
    /// Length of the frame once decoded, in bytes.
    pub raw_len: u32,
    /// How the frame is stored: 0 raw, 1 zstd.
    pub codec: u8,
    /// Offset of the block in the decoded frame, in bytes.
    pub offset_in_frame: u32,
    /// Length of the block, in bytes.
    pub len: u32,
}

impl BlockPlace {
    /// The fixed-size form for use as an index value.
    pub fn to_bytes(&self) -> [u8; BLOCK_PLACE_BYTES] {
        let mut out = [0; BLOCK_PLACE_BYTES];
        out[0..8].copy_from_slice(&self.frame_offset.to_le_bytes());
        out[8..12].copy_from_slice(&self.stored_len.to_le_bytes());
        out[12..16].copy_from_slice(&self.raw_len.to_le_bytes());
        out[16] = self.codec;
        out[17..21].copy_from_slice(&self.offset_in_frame.to_le_bytes());
        out[21..25].copy_from_slice(&self.len.to_le_bytes());
        out
    }

    /// Reads the form that [`BlockPlace::to_bytes`] gives.
    ///
    /// # Errors
    /// [`PackError::Damaged`] when the length or any number cannot belong to a pack.
    pub fn from_bytes(bytes: &[u8]) -> Result<BlockPlace, PackError> {
        if bytes.len() != BLOCK_PLACE_BYTES {
            return Err(PackError::Damaged("a block place has the wrong length"));
        }
        let place = Self::fields(bytes).ok_or(PackError::Damaged("a block place is too short"))?;
        place.check()?;
        Ok(place)
    }

    fn fields(bytes: &[u8]) -> Option<BlockPlace> {
        let mut f = Fields(bytes);
        Some(BlockPlace {
            frame_offset: f.u64()?,
            stored_len: f.u32()?,
            raw_len: f.u32()?,
            codec: f.u8()?,
            offset_in_frame: f.u32()?,
            len: f.u32()?,
        })
    }

    /// Every number within the limits of the format, so that using the place allocates no more than those.
    pub(super) fn check(&self) -> Result<(), PackError> {
        let max = FRAME_RAW_MAX as u64;
        if self.codec != CODEC_RAW && self.codec != CODEC_ZSTD {
            return Err(PackError::Damaged("a frame has an unknown codec"));
        }
        if self.raw_len == 0 || u64::from(self.raw_len) > max || self.stored_len == 0 {
            return Err(PackError::Damaged("a frame's length is out of range"));
        }
        if self.stored_len > self.raw_len || (self.codec == CODEC_RAW && self.stored_len != self.raw_len) {
            return Err(PackError::Damaged("a frame's stored length does not fit its codec"));
        }
        if self.len == 0 || u64::from(self.offset_in_frame) + u64::from(self.len) > u64::from(self.raw_len) {
            return Err(PackError::Damaged("a block lies outside its frame"));
        }
        Ok(())
    }
}

/// The raw bytes of the whole frame that `place` points into. Allocates at most [`FRAME_RAW_MAX`] bytes.
///
/// # Errors
/// [`PackError::Damaged`] when the bytes are not that frame.
pub fn decode_frame(frame: &[u8], place: &BlockPlace) -> Result<Vec<u8>, PackError> {
    place.check()?;
    if frame.len() as u64 != u64::from(place.stored_len) {
        return Err(PackError::Damaged("a frame has the wrong stored length"));
    }
    let raw = if place.codec == CODEC_RAW {
        frame.to_vec()
    } else {
        zstd::bulk::decompress(frame, place.raw_len as usize)
            .map_err(|_| PackError::Damaged("a frame cannot be decompressed"))?
    };
    if raw.len() as u64 != u64::from(place.raw_len) {
        return Err(PackError::Damaged("a frame decompresses to the wrong length"));
    }
    Ok(raw)
}

/// The bytes of the block at `place`, out of the stored bytes of its frame. The hash is not checked: see [`verify`].
///
/// # Errors
/// [`PackError::Damaged`] when the bytes are not that frame.
pub fn decode_block(frame: &[u8], place: &BlockPlace) -> Result<Vec<u8>, PackError> {
    let mut raw = decode_frame(frame, place)?;
    let from = place.offset_in_frame as usize;
    raw.truncate(from + place.len as usize);
    raw.drain(..from);
    Ok(raw)
}

/// Checks that `bytes` are the block named `hash`.
///
/// # Errors
/// [`PackError::WrongHash`] when they are not.
pub fn verify(hash: &Hash, bytes: &[u8]) -> Result<(), PackError> {
    if blake3::hash(bytes).as_bytes() == hash { Ok(()) } else { Err(PackError::WrongHash) }
}
