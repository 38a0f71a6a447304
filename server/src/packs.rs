//! Packs as the server takes and reads them: a pack is trusted once every block in it was checked against its hash.

use crate::{
    head::{ArrivedPack, BlockAt},
    store::{Blocks, BlocksError, blocks::READ_BYTES_MAX},
};
use bytes::Bytes;
use std::{collections::BTreeMap, io, ops::Range, sync::Arc};
use tidefs_proto::pack::{BlockPlace, HEADER_BYTES, PackError, PackIndex, decode_frame, verify};
use tidefs_timeline::Hash;

/// Bytes of a pack's end that are read first: the whole table of most packs.
const TAIL_BYTES: u64 = 64 << 10;
/// Decoded bytes of frames that are read together, in bytes.
const FRAMES_BYTES: u64 = 8 << 20;

/// Packs that are stored at the same time.
const STORED_TOGETHER: usize = 8;

/// Why a pack could not be taken or read.
#[derive(Debug, thiserror::Error)]
pub enum PacksError {
    /// The storage.
    #[error(transparent)]
    Blocks(#[from] BlocksError),
    /// The pack's bytes.
    #[error("pack {pack}: {error}")]
    Pack {
        /// The pack.
        pack: Hash,
        /// What is wrong with it.
        error: PackError,
    },
    /// A worker ended early: the server is stopping.
    #[error("the server is stopping")]
    Stopping,
}

/// The id that these bytes have as a pack.
pub fn id_of(bytes: &[u8]) -> Hash {
    Hash(*blake3::hash(bytes).as_bytes())
}

/// Checks a pack that is in memory, block by block.
///
/// # Errors
/// When the bytes are not a pack or a block is not what its hash says.
pub fn check_in_memory(pack: Hash, bytes: &[u8]) -> Result<ArrivedPack, PacksError> {
    let read = |offset: u64, len: usize| part(bytes, 0, offset, len);
    let check = || {
        let table = PackIndex::load(bytes.len() as u64, read)?;
        table.verify_blocks(read)?;
        Ok(table)
    };
    let table = check().map_err(|error| PacksError::Pack { pack, error })?;
    Ok(arrived(&table, bytes.len() as u64))
}

/// Reads the table of a stored pack.
///
/// # Errors
/// When the pack is not there, or is not one.
pub async fn load(blocks: &dyn Blocks, pack: Hash) -> Result<ArrivedPack, PacksError> {
    let length = blocks.size(pack.0).await?;
    let mut tail_bytes = TAIL_BYTES;
    loop {
        let from = length.saturating_sub(tail_bytes);
        let header = 0..length.min(HEADER_BYTES as u64);
        let read = blocks.read(pack.0, &[header, from..length]).await?;
        let [header, tail] = &read[..] else { return Err(PacksError::Stopping) };
        let table = PackIndex::load(length, |offset, len| {
            part(tail, from, offset, len).or_else(|_| part(header, 0, offset, len))
        });
        match table {
            Ok(table) => return Ok(arrived(&table, length)),
            Err(PackError::Io(_)) if from > 0 && tail_bytes < READ_BYTES_MAX / 2 => tail_bytes *= 16,
            Err(error) => return Err(PacksError::Pack { pack, error }),
        }
    }
}

/// Checks every block of a stored pack.
///
/// # Errors
/// At the first block that is not what its hash says.
pub async fn check_stored(blocks: &dyn Blocks, pack: Hash, table: &ArrivedPack) -> Result<(), PacksError> {
    let places: Vec<(Hash, BlockAt)> =
        table.blocks.iter().map(|(hash, place)| (*hash, (pack, *place))).collect();
    for group in by_frames(places) {
        read_group(blocks, None, group).await?;
    }
    Ok(())
}

/// Stores packs that a journal entry holds, several at a time.
///
/// # Errors
/// The first one.
pub async fn store(blocks: &dyn Blocks, packs: Vec<(Hash, Bytes)>) -> Result<(), PacksError> {
    use futures::{StreamExt, TryStreamExt};
    let put = |(pack, bytes): (Hash, Bytes)| async move { blocks.put_pack(pack.0, bytes).await };
    futures::stream::iter(packs).map(put).buffer_unordered(STORED_TOGETHER).try_collect::<()>().await?;
    Ok(())
}

/// Blocks of one pack that are read together.
#[derive(Debug)]
pub struct Group {
    /// The pack.
    pub pack: Hash,
    /// By the frame's offset.
    frames: BTreeMap<u64, Vec<(Hash, BlockPlace)>>,
    bytes: u64,
}

/// Puts blocks together by pack and frame, in groups of a bounded size.
pub fn by_frames(mut places: Vec<(Hash, BlockAt)>) -> Vec<Group> {
    places.sort_by_key(|(_, (pack, place))| (*pack, place.frame_offset, place.offset_in_frame));
    let mut groups: Vec<Group> = Vec::new();
    for (hash, (pack, place)) in places {
        let fits = |group: &&mut Group| {
            group.pack == pack
                && (group.frames.contains_key(&place.frame_offset)
                    || group.bytes + u64::from(place.raw_len) <= FRAMES_BYTES)
        };
        let group = match groups.last_mut().filter(fits) {
            Some(group) => group,
            None => {
                groups.push(Group { pack, frames: BTreeMap::new(), bytes: 0 });
                let last = groups.len() - 1;
                &mut groups[last]
            }
        };
        let frame = group.frames.entry(place.frame_offset).or_default();
        if frame.is_empty() {
            group.bytes += u64::from(place.raw_len);
        }
        frame.push((hash, place));
    }
    groups
}

/// Reads a group's blocks and checks each against its hash; `inline` are the pack's bytes if they are at hand.
///
/// # Errors
/// When the pack cannot be read, or a block is not what its hash says.
pub async fn read_group(
    blocks: &dyn Blocks,
    inline: Option<&Bytes>,
    group: Group,
) -> Result<Vec<(Hash, Bytes)>, PacksError> {
    let range = |list: &Vec<(Hash, BlockPlace)>| -> Option<Range<u64>> {
        list.first().map(|(_, place)| place.frame_offset..place.frame_offset + u64::from(place.stored_len))
    };
    let ranges: Vec<Range<u64>> = group.frames.values().filter_map(range).collect();
    let stored = match inline {
        Some(bytes) => ranges.iter().map(|range| slice(bytes, range)).collect(),
        None => blocks.read(group.pack.0, &ranges).await?,
    };
    let decode = move || {
        let mut out = Vec::new();
        for (frame, list) in stored.iter().zip(group.frames.values()) {
            decode_into(frame, list, &mut out)
                .map_err(|error| PacksError::Pack { pack: group.pack, error })?;
        }
        Ok(out)
    };
    tokio::task::spawn_blocking(decode).await.map_err(|_| PacksError::Stopping)?
}

fn decode_into(
    frame: &[u8],
    list: &[(Hash, BlockPlace)],
    out: &mut Vec<(Hash, Bytes)>,
) -> Result<(), PackError> {
    let Some((_, first)) = list.first() else { return Ok(()) };
    let raw = Bytes::from(decode_frame(frame, first)?);
    for (hash, place) in list {
        let from = place.offset_in_frame as usize;
        let Some(bytes) = raw.get(from..from + place.len as usize) else {
            return Err(PackError::Damaged("a block lies outside its frame"));
        };
        verify(&hash.0, bytes)?;
        out.push((*hash, raw.slice_ref(bytes)));
    }
    Ok(())
}

fn arrived(table: &PackIndex, length: u64) -> ArrivedPack {
    let blocks = table.blocks().map(|(hash, place)| (Hash(hash), place)).collect();
    ArrivedPack { length, blocks: Arc::new(blocks), bytes: Bytes::new() }
}

/// A range of a pack; empty where it reaches beyond, which decoding tells.
fn slice(bytes: &Bytes, range: &Range<u64>) -> Bytes {
    let inside = range.start <= range.end && range.end <= bytes.len() as u64;
    if inside { bytes.slice(range.start as usize..range.end as usize) } else { Bytes::new() }
}

/// `len` bytes at `offset` of what `bytes` is from `base` on.
fn part(bytes: &[u8], base: u64, offset: u64, len: usize) -> io::Result<Vec<u8>> {
    let from = offset.checked_sub(base).and_then(|from| usize::try_from(from).ok());
    let range = from.and_then(|from| Some(from..from.checked_add(len)?));
    let found = range.and_then(|range| bytes.get(range));
    found.map(<[u8]>::to_vec).ok_or_else(|| io::Error::from(io::ErrorKind::UnexpectedEof))
}
