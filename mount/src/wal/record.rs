//! One record as bytes.
//!
//! ```text
//! 0  magic "TDWR"     8  segment u64     24  offset in segment u32   36  kind u8
//! 4  crc32 u32        16 prev end u64    28  head length u32         37  zero
//!                                        32  data length u32         40  head, then data
//! ```
//! Little-endian; the checksum covers everything from byte 8 to the end of the data.

use super::{LogPos, SEGMENT_BYTES};

/// Largest head of a record, in bytes.
pub const HEAD_BYTES_MAX: usize = 1 << 20;
/// Largest data of a record, in bytes: one FUSE write.
pub const DATA_BYTES_MAX: usize = 1 << 20;

pub(super) const HEADER_BYTES: usize = 40;
const MAGIC: [u8; 4] = *b"TDWR";

/// A record found at recovery. The data is not in memory: read it at `data`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Record<'a> {
    /// What the owner gave as kind.
    pub kind: u8,
    /// What the owner gave as head.
    pub head: &'a [u8],
    /// First byte of the record.
    pub start: LogPos,
    /// First byte of its data.
    pub data: LogPos,
    /// Bytes of data.
    pub data_len: u32,
    /// End of the log after this record.
    pub end: LogPos,
}

/// Where a record is, and where the one before it ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Place {
    pub(super) start: LogPos,
    pub(super) prev: LogPos,
}

/// A header that fits its place; its checksum is not checked yet.
#[derive(Clone, Copy, Debug)]
pub(super) struct Header {
    pub(super) prev: LogPos,
    pub(super) kind: u8,
    pub(super) head_len: usize,
    pub(super) data_len: usize,
}

impl Header {
    pub(super) fn total(&self) -> u64 {
        (HEADER_BYTES + self.head_len + self.data_len) as u64
    }
}

pub(super) fn encode_header(place: &Place, kind: u8, head: &[u8], data: &[u8]) -> [u8; HEADER_BYTES] {
    let mut out = [0; HEADER_BYTES];
    out[0..4].copy_from_slice(&MAGIC);
    out[8..16].copy_from_slice(&place.start.segment().to_le_bytes());
    out[16..24].copy_from_slice(&place.prev.0.to_le_bytes());
    out[24..28].copy_from_slice(&(place.start.offset() as u32).to_le_bytes());
    out[28..32].copy_from_slice(&(head.len() as u32).to_le_bytes());
    out[32..36].copy_from_slice(&(data.len() as u32).to_le_bytes());
    out[36] = kind;
    let mut crc = crc32fast::Hasher::new();
    for part in [&out[8..], head, data] {
        crc.update(part);
    }
    out[4..8].copy_from_slice(&crc.finalize().to_le_bytes());
    out
}

/// The header at `start`, or `None` when these bytes are no record of that place or claim more than fits.
pub(super) fn decode_header(bytes: &[u8; HEADER_BYTES], start: LogPos) -> Option<Header> {
    let number = |at: usize| Some(u32::from_le_bytes(*bytes[at..].first_chunk()?));
    let long = |at: usize| Some(u64::from_le_bytes(*bytes[at..].first_chunk()?));
    let header = Header {
        prev: LogPos(long(16)?),
        kind: bytes[36],
        head_len: number(28)? as usize,
        data_len: number(32)? as usize,
    };
    let here = bytes[..4] == MAGIC
        && long(8)? == start.segment()
        && u64::from(number(24)?) == start.offset()
        && bytes[37..] == [0; 3];
    let bounded = header.head_len <= HEAD_BYTES_MAX
        && header.data_len <= DATA_BYTES_MAX
        && start.offset() + header.total() <= SEGMENT_BYTES;
    (here && bounded).then_some(header)
}

/// Whether the whole record's bytes have the checksum that they carry.
pub(super) fn verifies(record: &[u8]) -> bool {
    match (record.get(4..).and_then(|b| b.first_chunk::<4>()), record.get(8..)) {
        (Some(crc), Some(rest)) => crc32fast::hash(rest) == u32::from_le_bytes(*crc),
        _ => false,
    }
}
