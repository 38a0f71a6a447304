//! The bytes of a journal file.
//!
//! ```text
//! file    magic u32 | version u16 | zero u16 | drive id 16 | first entry u64 | salt u64 | crc32   (44 bytes)
//! record  magic u32 | entry u64 | length u32 | crc32 of the body | crc32 of the salt and these 20 bytes | body
//! ```
//! All numbers are little-endian. The salt is random per file and is part of each record's checksum, so that the
//! bytes of an entry, which a client chooses, can never pass for a record when a damaged file is searched.

use crc32fast::Hasher;

/// The length of the file header, in bytes.
pub const FILE_HEADER: usize = 44;
/// The length of the header before each body, in bytes.
pub const RECORD_HEADER: usize = 24;
/// The version of the format.
pub const VERSION: u16 = 1;

const FILE_MAGIC: u32 = u32::from_le_bytes(*b"TDJF");
/// The first four bytes of a record.
pub const RECORD_MAGIC: [u8; 4] = *b"TDJR";

/// What the head of a file says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FileHeader {
    pub drive: [u8; 16],
    pub first: u64,
    pub salt: u64,
}

/// Why a file header is not one.
#[derive(Debug, PartialEq, Eq)]
pub enum BadHeader {
    Checksum,
    Version(u16),
}

impl FileHeader {
    pub fn encode(&self) -> [u8; FILE_HEADER] {
        let mut out = [0; FILE_HEADER];
        out[0..4].copy_from_slice(&FILE_MAGIC.to_le_bytes());
        out[4..6].copy_from_slice(&VERSION.to_le_bytes());
        out[8..24].copy_from_slice(&self.drive);
        out[24..32].copy_from_slice(&self.first.to_le_bytes());
        out[32..40].copy_from_slice(&self.salt.to_le_bytes());
        let crc = crc32fast::hash(&out[..40]);
        out[40..44].copy_from_slice(&crc.to_le_bytes());
        out
    }

    pub fn decode(bytes: &[u8; FILE_HEADER]) -> Result<Self, BadHeader> {
        if number::<4>(bytes, 0) != u64::from(FILE_MAGIC)
            || number::<4>(bytes, 40) != u64::from(crc32fast::hash(&bytes[..40]))
        {
            return Err(BadHeader::Checksum);
        }
        let version = number::<2>(bytes, 4) as u16;
        if version != VERSION {
            return Err(BadHeader::Version(version));
        }
        let mut drive = [0; 16];
        drive.copy_from_slice(&bytes[8..24]);
        Ok(Self { drive, first: number::<8>(bytes, 24), salt: number::<8>(bytes, 32) })
    }
}

/// What stands before a body.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RecordHeader {
    pub entry: u64,
    pub length: u32,
    pub body_crc: u32,
}

impl RecordHeader {
    pub fn encode(&self, salt: u64) -> [u8; RECORD_HEADER] {
        let mut out = [0; RECORD_HEADER];
        out[0..4].copy_from_slice(&RECORD_MAGIC);
        out[4..12].copy_from_slice(&self.entry.to_le_bytes());
        out[12..16].copy_from_slice(&self.length.to_le_bytes());
        out[16..20].copy_from_slice(&self.body_crc.to_le_bytes());
        let crc = header_crc(salt, &out[..20]);
        out[20..24].copy_from_slice(&crc.to_le_bytes());
        out
    }

    /// `None` when these bytes are not a record header of the file with this salt.
    pub fn decode(bytes: &[u8; RECORD_HEADER], salt: u64) -> Option<Self> {
        if bytes[..4] != RECORD_MAGIC || number::<4>(bytes, 20) != u64::from(header_crc(salt, &bytes[..20])) {
            return None;
        }
        Some(Self {
            entry: number::<8>(bytes, 4),
            length: number::<4>(bytes, 12) as u32,
            body_crc: number::<4>(bytes, 16) as u32,
        })
    }

    /// The bytes that the whole record takes in the file.
    pub fn record_bytes(&self) -> u64 {
        RECORD_HEADER as u64 + u64::from(self.length)
    }
}

fn header_crc(salt: u64, head: &[u8]) -> u32 {
    let mut hasher = Hasher::new();
    hasher.update(&salt.to_le_bytes());
    hasher.update(head);
    hasher.finalize()
}

/// The little-endian number of `N` bytes at `at`.
fn number<const N: usize>(bytes: &[u8], at: usize) -> u64 {
    let mut wide = [0; 8];
    wide[..N].copy_from_slice(&bytes[at..at + N]);
    u64::from_le_bytes(wide)
}
