//! A checkpoint's file as bytes.

use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

use tidefs_proto::pack::Hash;

use super::{CHECKPOINT_BYTES_MAX, EMBEDDED_PACK_BYTES_MAX, OutboxError};

pub(super) const HEADER_BYTES: usize = 68;
const MAGIC: [u8; 4] = *b"TDCK";
const VERSION: u16 = 1;
const FLAG_EMBEDDED: u16 = 1;
const CRC_AT: usize = 64;

pub(super) struct Header {
    pub(super) embedded: bool,
    pub(super) number: u64,
    pub(super) checkpoint_len: u64,
    pub(super) pack_len: u64,
    pub(super) pack_id: Hash,
}

impl Header {
    pub(super) fn encode(&self, body: &[&[u8]]) -> [u8; HEADER_BYTES] {
        let mut out = [0; HEADER_BYTES];
        out[0..4].copy_from_slice(&MAGIC);
        out[4..6].copy_from_slice(&VERSION.to_le_bytes());
        out[6..8].copy_from_slice(&(if self.embedded { FLAG_EMBEDDED } else { 0 }).to_le_bytes());
        out[8..16].copy_from_slice(&self.number.to_le_bytes());
        out[16..24].copy_from_slice(&self.checkpoint_len.to_le_bytes());
        out[24..32].copy_from_slice(&self.pack_len.to_le_bytes());
        out[32..64].copy_from_slice(&self.pack_id);
        let mut crc = crc32fast::Hasher::new();
        crc.update(&out[..CRC_AT]);
        body.iter().for_each(|part| crc.update(part));
        out[CRC_AT..].copy_from_slice(&crc.finalize().to_le_bytes());
        out
    }

    fn decode(bytes: &[u8; HEADER_BYTES]) -> Result<Header, &'static str> {
        let long = |at: usize| bytes[at..].first_chunk().map_or(0, |b| u64::from_le_bytes(*b));
        let short = |at: usize| u16::from_le_bytes([bytes[at], bytes[at + 1]]);
        if bytes[..4] != MAGIC {
            return Err("the start mark is missing");
        }
        if short(4) != VERSION {
            return Err("it has a format version that is not known here");
        }
        let header = Header {
            embedded: short(6) & FLAG_EMBEDDED != 0,
            number: long(8),
            checkpoint_len: long(16),
            pack_len: long(24),
            pack_id: *bytes[32..].first_chunk().ok_or("the header is cut off")?,
        };
        let bounded = header.checkpoint_len <= CHECKPOINT_BYTES_MAX
            && !(header.embedded && header.pack_len > EMBEDDED_PACK_BYTES_MAX);
        if bounded { Ok(header) } else { Err("its lengths are out of range") }
    }

    fn file_len(&self) -> u64 {
        HEADER_BYTES as u64 + self.checkpoint_len + if self.embedded { self.pack_len } else { 0 }
    }
}

/// The header of the file, after a look at its length; the checksum is not checked.
pub(super) fn load_header(path: &Path, number: u64) -> Result<Header, OutboxError> {
    open(path, number).map(|(header, _, _)| header)
}

/// The header and the checkpoint, checked. Allocates what the file holds, within the limits.
pub(super) fn load(path: &Path, number: u64) -> Result<(Header, Vec<u8>), OutboxError> {
    let (header, raw, mut file) = open(path, number)?;
    let mut body = vec![0; (header.file_len() - HEADER_BYTES as u64) as usize];
    file.read_exact(&mut body).map_err(|e| OutboxError::io("read", path, e))?;
    if header.encode(&[&body]) != raw {
        return Err(OutboxError::damaged(path, "its checksum is wrong"));
    }
    body.truncate(header.checkpoint_len as usize);
    Ok((header, body))
}

fn open(path: &Path, number: u64) -> Result<(Header, [u8; HEADER_BYTES], File), OutboxError> {
    let mut file = File::open(path).map_err(|e| match e.kind() {
        io::ErrorKind::NotFound => OutboxError::Missing { number, path: path.to_path_buf() },
        _ => OutboxError::io("open", path, e),
    })?;
    let len = file.metadata().map_err(|e| OutboxError::io("look at", path, e))?.len();
    let mut raw = [0; HEADER_BYTES];
    file.read_exact(&mut raw).map_err(|e| match e.kind() {
        io::ErrorKind::UnexpectedEof => OutboxError::damaged(path, "it is cut off"),
        _ => OutboxError::io("read", path, e),
    })?;
    let header = Header::decode(&raw).map_err(|what| OutboxError::damaged(path, what))?;
    if header.number != number {
        return Err(OutboxError::damaged(path, "it is another checkpoint"));
    }
    if header.file_len() != len {
        return Err(OutboxError::damaged(path, "its length is wrong"));
    }
    Ok((header, raw, file))
}
