use std::fs;
use std::os::unix::fs::FileExt;

use tidefs_proto::pack::PackWriter;

use super::*;
use crate::wal::outbox::{BuiltPack, Outbox};

fn noise(len: usize, seed: u64) -> Vec<u8> {
    let mut out = vec![0; len];
    blake3::Hasher::new().update(&seed.to_le_bytes()).finalize_xof().fill(&mut out);
    out
}

fn name(block: &[u8]) -> Hash {
    *blake3::hash(block).as_bytes()
}

/// A kept pack of one incompressible block of `len` bytes.
fn kept(dir: &Path, seed: u64, len: usize) -> (PackFile, Vec<u8>) {
    let block = noise(len, seed);
    let path = dir.join(format!("{seed}.pack"));
    let mut writer = PackWriter::new(fs::File::create(&path).unwrap()).unwrap();
    writer.add(&block).unwrap();
    writer.finish().unwrap();
    (PackFile::whole(&path).unwrap(), block)
}

fn bytes(cache: &BlockCache, block: &[u8]) -> Option<Vec<u8>> {
    cache.get(&name(block)).map(|b| b.to_vec())
}

/// Blocks of packs are served, also after a restart.
#[test]
fn packs_are_found_again() {
    let dir = tempfile::tempdir().unwrap();
    let cache = BlockCache::open(dir.path(), 1 << 20, 1 << 20).unwrap();
    let (file, block) = kept(dir.path(), 1, 5000);
    assert_eq!(bytes(&cache, &block), None);
    cache.add_pack(&file, PackKind::Kept).unwrap();
    assert_eq!(bytes(&cache, &block).unwrap(), block);
    assert_eq!(cache.disk_bytes(), file.length());
    let cache = BlockCache::open(dir.path(), 1 << 20, 1 << 20).unwrap();
    assert_eq!(bytes(&cache, &block).unwrap(), block);
}

/// A block whose bytes rotted is absent, its neighbours are not served wrong, and nothing panics.
#[test]
fn rotten_blocks_are_absent() {
    let dir = tempfile::tempdir().unwrap();
    let (file, block) = kept(dir.path(), 1, 5000);
    let (_, sound) = kept(dir.path(), 2, 5000);
    let cache = BlockCache::open(dir.path(), 1 << 20, 1 << 20).unwrap();
    fs::OpenOptions::new().write(true).open(file.path()).unwrap().write_all_at(b"rot", 100).unwrap();
    assert_eq!(bytes(&cache, &block), None);
    assert!(!cache.contains(&name(&block)));
    assert_eq!(bytes(&cache, &sound).unwrap(), sound);
}

/// Unreadable packs and half-written files do not stop the start.
#[test]
fn bad_packs_are_removed_at_start() {
    let dir = tempfile::tempdir().unwrap();
    let (torn, _) = kept(dir.path(), 1, 5000);
    let (_, sound) = kept(dir.path(), 2, 5000);
    fs::OpenOptions::new().write(true).open(torn.path()).unwrap().set_len(900).unwrap();
    fs::write(dir.path().join("3.tmp"), b"half").unwrap();
    let cache = BlockCache::open(dir.path(), 1 << 20, 1 << 20).unwrap();
    assert_eq!(bytes(&cache, &sound).unwrap(), sound);
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
}

/// The oldest kept packs go when the disk limit is passed; packs of the outbox never do.
#[test]
fn oldest_kept_packs_are_evicted() {
    let dir = tempfile::tempdir().unwrap();
    let outbox_dir = tempfile::tempdir().unwrap();
    let cache = BlockCache::open(dir.path(), 50_000, 0).unwrap();
    let (unsent, unsent_block) = kept(outbox_dir.path(), 99, 200_000);
    cache.add_pack(&unsent, PackKind::Outbox).unwrap();
    let packs: Vec<_> = (0..6).map(|seed| kept(dir.path(), seed, 10_000)).collect();
    for (file, _) in &packs {
        cache.add_pack(file, PackKind::Kept).unwrap();
    }
    assert!(cache.disk_bytes() <= 50_000);
    let there: Vec<bool> = packs.iter().map(|(_, block)| cache.get(&name(block)).is_some()).collect();
    let on_disk: Vec<bool> = packs.iter().map(|(file, _)| file.path().exists()).collect();
    assert_eq!(there, on_disk);
    assert!(!there[0] && there[5] && there.is_sorted(), "{there:?}");
    assert_eq!(bytes(&cache, &unsent_block).unwrap(), unsent_block);
}

/// From sealing to acknowledgement to cache, the blocks are served without a gap.
#[test]
fn blocks_follow_their_pack() {
    let dir = tempfile::tempdir().unwrap();
    let (outbox_dir, cache_dir) = (dir.path().join("outbox"), dir.path().join("cache"));
    let outbox = Outbox::open(&outbox_dir).unwrap();
    let cache = BlockCache::open(&cache_dir, 1 << 30, 0).unwrap();
    for (n, len) in [(1, 1000), (2, 300_000)] {
        let block = noise(len, n);
        let mut writer = outbox.pack_writer().unwrap();
        writer.add(&block).unwrap();
        outbox.put(n, b"ckpt", Some(BuiltPack::finish(writer).unwrap())).unwrap();
        let unsent = outbox.open_pack(n).unwrap().unwrap();
        cache.add_pack(&unsent, PackKind::Outbox).unwrap();
        assert_eq!(bytes(&cache, &block).unwrap(), block);
        assert_eq!(cache.disk_bytes() > 0, n > 1);
        let retired = outbox.retire(n, &cache_dir).unwrap().unwrap();
        cache.add_pack(&retired, PackKind::Kept).unwrap();
        cache.drop_pack(unsent.path());
        assert_eq!(bytes(&cache, &block).unwrap(), block);
    }
}

/// Blocks from elsewhere are checked, bounded by bytes, and the least recently used goes first.
#[test]
fn memory_is_bounded_and_recent() {
    let dir = tempfile::tempdir().unwrap();
    let cache = BlockCache::open(dir.path(), 0, 35_000).unwrap();
    let blocks: Vec<_> = (0..4).map(|seed| noise(10_000, seed)).collect();
    assert!(matches!(cache.insert(&name(&blocks[0]), &blocks[1]), Err(PackError::WrongHash)));
    assert!(!cache.contains(&name(&blocks[0])));
    for block in &blocks[..3] {
        cache.insert(&name(block), block).unwrap();
    }
    assert_eq!(bytes(&cache, &blocks[0]).unwrap(), blocks[0]);
    cache.insert(&name(&blocks[3]), &blocks[3]).unwrap();
    let there: Vec<bool> = blocks.iter().map(|b| cache.contains(&name(b))).collect();
    assert_eq!(there, [true, false, true, true]);
    assert!(cache.memory_bytes() <= 35_000);
    cache.insert(&name(&noise(40_000, 9)), &noise(40_000, 9)).unwrap();
    assert!(cache.contains(&name(&blocks[3])), "a block beyond the limit does not empty the memory");
}
