use std::io;

use proptest::prelude::*;

use super::*;

fn noise(len: usize, mut seed: u64) -> Vec<u8> {
    let mut out = Vec::with_capacity(len + 8);
    while out.len() < len {
        seed = seed.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        out.extend_from_slice(&(seed >> 16).to_le_bytes()[..6]);
    }
    out.truncate(len);
    out
}

fn pack(blocks: &[Vec<u8>]) -> (PackSummary, Vec<u8>) {
    let mut bytes = Vec::new();
    let mut writer = PackWriter::new(&mut bytes).unwrap();
    for block in blocks {
        writer.add(block).unwrap();
    }
    let summary = writer.finish().unwrap();
    (summary, bytes)
}

fn reader(bytes: &[u8]) -> impl Fn(u64, usize) -> io::Result<Vec<u8>> + '_ {
    move |offset, len| {
        let from = offset as usize;
        bytes.get(from..from + len).map(<[u8]>::to_vec).ok_or_else(|| io::ErrorKind::UnexpectedEof.into())
    }
}

fn read_all(bytes: &[u8]) -> Result<Vec<Vec<u8>>, PackError> {
    let index = PackIndex::load(bytes.len() as u64, reader(bytes))?;
    index.verify_blocks(reader(bytes))?;
    index
        .blocks()
        .map(|(hash, place)| {
            assert_eq!(BlockPlace::from_bytes(&place.to_bytes())?, place);
            let block = decode_block(&reader(bytes)(place.frame_offset, place.stored_len as usize)?, &place)?;
            verify(&hash, &block)?;
            Ok(block)
        })
        .collect()
}

/// Every block comes back whole, whatever its size and however well it compresses.
#[test]
fn blocks_come_back() {
    let blocks = vec![
        vec![7; 1],
        vec![0; BLOCK_BYTES_MAX],
        noise(BLOCK_BYTES_MAX, 1),
        noise(FRAME_RAW_TARGET, 2),
        b"text ".repeat(900),
        noise(70_000, 3),
    ];
    let (summary, bytes) = pack(&blocks);
    assert_eq!(summary.length, bytes.len() as u64);
    assert_eq!(&summary.id, blake3::hash(&bytes).as_bytes());
    assert_eq!(summary.blocks, blocks.len() as u32);
    assert_eq!(read_all(&bytes).unwrap(), blocks);
}

/// The same block twice is stored once.
#[test]
fn blocks_are_deduplicated() {
    let (summary, bytes) = pack(&[noise(5000, 1), noise(5000, 2), noise(5000, 1)]);
    assert_eq!(summary.blocks, 2);
    assert_eq!(read_all(&bytes).unwrap(), vec![noise(5000, 1), noise(5000, 2)]);
}

/// A table longer than the first guess is read with a second read; small blocks share frames.
#[test]
fn long_table_is_loaded() {
    let blocks: Vec<_> = (0..5000u32).map(|n| n.to_le_bytes().to_vec()).collect();
    let (_, bytes) = pack(&blocks);
    assert_eq!(read_all(&bytes).unwrap(), blocks);
    let index = PackIndex::load(bytes.len() as u64, reader(&bytes)).unwrap();
    assert!(index.blocks().all(|(_, place)| place.frame_offset == HEADER_BYTES as u64), "one shared frame");
}

#[test]
fn empty_pack_is_a_pack() {
    let (summary, bytes) = pack(&[]);
    assert_eq!(summary.blocks, 0);
    assert!(PackIndex::parse(&bytes, bytes.len() as u64).unwrap().is_empty());
}

#[test]
fn compressible_data_shrinks_and_noise_does_not_grow() {
    let (text, _) = pack(&[b"a line of a log file\n".repeat(10_000)]);
    assert!(text.length < 10_000, "{}", text.length);
    let (raw, _) = pack(&[noise(200_000, 9)]);
    assert!(raw.length < 200_000 + 200, "{}", raw.length);
}

#[test]
fn size_limits_leave_the_pack_usable() {
    let mut bytes = Vec::new();
    let mut writer = PackWriter::new(&mut bytes).unwrap();
    assert!(matches!(writer.add(&[]), Err(PackError::BlockSize(0))));
    assert!(matches!(writer.add(&vec![0; BLOCK_BYTES_MAX + 1]), Err(PackError::BlockSize(_))));
    writer.add(b"fine").unwrap();
    writer.finish().unwrap();
    assert_eq!(read_all(&bytes).unwrap(), vec![b"fine".to_vec()]);
}

struct FullAfter(usize);

impl io::Write for FullAfter {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0 = self.0.checked_sub(bytes.len()).ok_or(io::ErrorKind::StorageFull)?;
        Ok(bytes.len())
    }
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// A pack whose sink failed can never be finished.
#[test]
fn failed_sink_breaks_the_pack() {
    let mut writer = PackWriter::new(FullAfter(1000)).unwrap();
    writer.add(&noise(FRAME_RAW_TARGET, 1)).unwrap();
    assert!(matches!(writer.add(&noise(FRAME_RAW_TARGET, 2)), Err(PackError::Io(_))));
    assert!(matches!(writer.add(b"more"), Err(PackError::Broken)));
    assert!(matches!(writer.finish(), Err(PackError::Broken)));
}

/// A single changed byte anywhere never yields wrong blocks: an error, or the same blocks (unused flag bytes).
#[test]
fn every_flipped_byte_is_noticed() {
    let blocks = vec![noise(300, 1), b"compressible ".repeat(100)];
    let (_, bytes) = pack(&blocks);
    for at in 0..bytes.len() {
        let mut bad = bytes.clone();
        bad[at] ^= 0x41;
        if let Ok(read) = read_all(&bad) {
            assert_eq!(read, blocks, "byte {at}");
            assert!((6..8).contains(&at), "byte {at} is not protected");
        }
    }
}

#[test]
fn every_cut_is_noticed() {
    let (_, bytes) = pack(&[noise(300, 1), b"compressible ".repeat(100)]);
    for len in 0..bytes.len() {
        assert!(read_all(&bytes[..len]).is_err(), "cut at {len}");
    }
}

/// A frame that claims a small raw length but expands further is refused, not expanded.
#[test]
fn decompression_is_bounded() {
    let bomb = zstd::bulk::compress(&vec![0; 64 << 20], 1).unwrap();
    let place = BlockPlace {
        frame_offset: 8,
        stored_len: bomb.len() as u32,
        raw_len: FRAME_RAW_MAX as u32,
        codec: 1,
        offset_in_frame: 0,
        len: 1,
    };
    assert!(matches!(decode_block(&bomb, &place), Err(PackError::Damaged(_))));
}

proptest! {
    /// Arbitrary bytes never panic and never parse into places outside the pack.
    #[test]
    fn parse_is_total(bytes in prop::collection::vec(any::<u8>(), 0..400), pack_len in any::<u64>()) {
        let _ = PackIndex::parse(&bytes, pack_len);
        let _ = BlockPlace::from_bytes(&bytes);
    }

    /// Tables with a right checksum but arbitrary numbers are either refused or safe to use.
    #[test]
    fn checksummed_nonsense_is_safe(
        frames in prop::collection::vec((0u64..40, 0u32..40, 0u32..40, 0u8..3), 0..3),
        blocks in prop::collection::vec((0u32..3, 0u32..40, 0u32..40), 0..4),
        count_off in 0u32..2,
    ) {
        let mut bytes = vec![0; 60];
        bytes[..4].copy_from_slice(b"TDPK");
        bytes[4] = 1;
        let from = bytes.len();
        bytes.extend_from_slice(&(frames.len() as u32 + count_off).to_le_bytes());
        for (offset, stored, raw, codec) in frames {
            bytes.extend_from_slice(&offset.to_le_bytes());
            bytes.extend_from_slice(&stored.to_le_bytes());
            bytes.extend_from_slice(&raw.to_le_bytes());
            bytes.push(codec);
        }
        for (frame, offset, len) in &blocks {
            bytes.extend_from_slice(&[9; 32]);
            for n in [frame, offset, len] {
                bytes.extend_from_slice(&n.to_le_bytes());
            }
        }
        let footer_len = (bytes.len() - from) as u32;
        let crc = super::index::footer_crc(&bytes[from..], footer_len, blocks.len() as u32);
        for n in [footer_len, crc, blocks.len() as u32] {
            bytes.extend_from_slice(&n.to_le_bytes());
        }
        bytes.extend_from_slice(b"TDPE");
        let _ = read_all(&bytes);
    }

    /// What goes in comes out, in order, once each.
    #[test]
    fn round_trip(sizes in prop::collection::vec((1usize..90_000, any::<bool>(), 0u64..6), 0..12)) {
        let blocks: Vec<_> = sizes
            .iter()
            .map(|&(len, dense, seed)| if dense { noise(len, seed) } else { vec![seed as u8; len] })
            .collect();
        let (summary, bytes) = pack(&blocks);
        let mut distinct: Vec<Vec<u8>> = Vec::new();
        for block in blocks {
            if !distinct.contains(&block) {
                distinct.push(block);
            }
        }
        prop_assert_eq!(summary.blocks as usize, distinct.len());
        prop_assert_eq!(read_all(&bytes).unwrap(), distinct);
    }
}
