#![allow(clippy::single_range_in_vec_init, reason = "one range is what these reads ask for")]

use std::fs;
use std::path::PathBuf;

use tempfile::TempDir;

use super::*;
use crate::store::faults::{Fault, Faults, Op};

fn id(bytes: &[u8]) -> PackId {
    *blake3::hash(bytes).as_bytes()
}

fn noise(length: usize, seed: u8) -> Bytes {
    let mut bytes = vec![0; length];
    blake3::Hasher::new().update(&[seed]).finalize_xof().fill(&mut bytes);
    bytes.into()
}

async fn upload(
    blocks: &dyn Blocks,
    bytes: &Bytes,
    part: usize,
    expected: PackId,
) -> Result<u64, BlocksError> {
    let mut upload = blocks.begin_upload(PACK_BYTES_MAX).await?;
    for part in bytes.chunks(part) {
        upload.write(bytes.slice_ref(part)).await?;
    }
    upload.finish(expected).await
}

/// The promises of the trait, on any implementation. `reopen` is what a restart of the server does.
async fn conforms<B: Blocks>(blocks: B, reopen: impl AsyncFn(B) -> B) {
    let small = noise(5000, 1);
    let big = noise(12 << 20, 2);
    assert!(matches!(blocks.size(id(&small)).await, Err(BlocksError::NotFound { .. })));
    assert!(matches!(blocks.read(id(&small), &[0..1]).await, Err(BlocksError::NotFound { .. })));
    assert_eq!(blocks.list(None, 10).await.unwrap(), vec![]);
    blocks.delete(id(&small)).await.unwrap();

    blocks.put_pack(id(&small), small.clone()).await.unwrap();
    blocks.put_pack(id(&small), small.clone()).await.unwrap();
    assert_eq!(upload(&blocks, &small, 999, id(&small)).await.unwrap(), 5000);
    assert_eq!(upload(&blocks, &big, 700_000, id(&big)).await.unwrap(), big.len() as u64);
    assert_eq!(upload(&blocks, &big, 3 << 20, id(&big)).await.unwrap(), big.len() as u64);
    assert_eq!(upload(&blocks, &Bytes::new(), 1, id(b"")).await.unwrap(), 0);

    let blocks = reopen(blocks).await;
    for pack in [&small, &big, &Bytes::new()] {
        assert_eq!(blocks.size(id(pack)).await.unwrap(), pack.len() as u64);
        assert_eq!(blocks.read(id(pack), &[0..pack.len() as u64]).await.unwrap(), vec![pack.clone()]);
    }
    reads_ranges(&blocks, &small).await;
    refuses_wrong_bytes(&blocks).await;

    let mut all = [&small, &big, &Bytes::new()].map(|pack| (id(pack), pack.len() as u64));
    all.sort_unstable();
    assert_eq!(blocks.list(None, 10).await.unwrap(), all);
    assert_eq!(blocks.list(None, 2).await.unwrap(), all[..2]);
    assert_eq!(blocks.list(Some(all[0].0), 10).await.unwrap(), all[1..]);
    assert_eq!(blocks.list(Some(all[2].0), 10).await.unwrap(), vec![]);
    blocks.delete(id(&small)).await.unwrap();
    blocks.delete(id(&small)).await.unwrap();
    let blocks = reopen(blocks).await;
    assert_eq!(blocks.list(None, 10).await.unwrap().len(), 2);
    assert!(matches!(blocks.read(id(&small), &[0..1]).await, Err(BlocksError::NotFound { .. })));
}

/// Ranges are answered in the order asked, also when they overlap, touch, repeat or are empty.
async fn reads_ranges(blocks: &dyn Blocks, pack: &Bytes) {
    let ranges = [4000..5000, 0..10, 10..20, 5..15, 0..0, 5000..5000, 0..10];
    let found = blocks.read(id(pack), &ranges).await.unwrap();
    let wanted = ranges.map(|range| pack.slice(range.start as usize..range.end as usize));
    assert_eq!(found, wanted);
    assert_eq!(blocks.read(id(pack), &[]).await.unwrap(), Vec::<Bytes>::new());
    let backwards = std::ops::Range { start: 9, end: 3 };
    for bad in [4999..5001, 6000..6001, 5001..5001, backwards, u64::MAX - 1..u64::MAX] {
        let read = blocks.read(id(pack), &[0..1, bad.clone()]).await;
        assert!(matches!(read, Err(BlocksError::OutOfRange { ref range, .. }) if *range == bad), "{read:?}");
    }
    let large = blocks.read(id(pack), &[0..u64::MAX, 0..u64::MAX]).await;
    assert!(matches!(large, Err(BlocksError::ReadTooLarge { .. })));
    let many = vec![0..1; READ_RANGES_MAX + 1];
    assert!(matches!(blocks.read(id(pack), &many).await, Err(BlocksError::ReadTooLarge { .. })));
}

/// What is not the pack that its name says, or is too large, or is given up, leaves nothing.
async fn refuses_wrong_bytes(blocks: &dyn Blocks) {
    let before = blocks.list(None, 100).await.unwrap();
    let (small, big) = (noise(100, 8), noise(7 << 20, 9));
    let wrong = blocks.put_pack(id(b"other"), small.clone()).await;
    assert!(matches!(wrong, Err(BlocksError::WrongId { found, .. }) if found == id(&small)));
    for pack in [&small, &big] {
        let wrong = upload(blocks, pack, 1 << 20, id(b"other")).await;
        assert!(matches!(wrong, Err(BlocksError::WrongId { .. })));
        let mut limited = blocks.begin_upload(pack.len() as u64 - 1).await.unwrap();
        limited.write(pack.slice(..50)).await.unwrap();
        assert!(matches!(limited.write(pack.slice(50..)).await, Err(BlocksError::TooLarge { .. })));
        let mut given_up = blocks.begin_upload(PACK_BYTES_MAX).await.unwrap();
        given_up.write(pack.clone()).await.unwrap();
        given_up.abort().await;
    }
    assert_eq!(blocks.list(None, 100).await.unwrap(), before);
}

fn files(dir: &std::path::Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for item in fs::read_dir(dir).unwrap() {
        let path = item.unwrap().path();
        if path.is_dir() { found.extend(files(&path)) } else { found.push(path) }
    }
    found
}

#[tokio::test]
async fn files_keep_the_promises() {
    let dir = TempDir::new().unwrap();
    let path = dir.path().join("packs");
    conforms(ObjectBlocks::open_local(&path).unwrap(), async |_| ObjectBlocks::open_local(&path).unwrap())
        .await;
    // Of all the uploads that failed or were given up nothing is left on the disk.
    assert_eq!(files(&path).len(), 2);
}

#[tokio::test]
async fn memory_keeps_the_promises() {
    conforms(MemoryBlocks::default(), async |old| old.clone()).await;
}

#[tokio::test]
async fn a_pack_is_where_the_format_says() {
    let dir = TempDir::new().unwrap();
    let blocks = ObjectBlocks::open_local(dir.path()).unwrap();
    let pack = noise(10, 3);
    blocks.put_pack(id(&pack), pack.clone()).await.unwrap();
    let name = blake3::hash(&pack).to_hex();
    let file = dir.path().join(&name[..2]).join(format!("{name}.pack"));
    assert_eq!(fs::read(file).unwrap(), pack);
}

/// What a crash leaves of uploads is invisible, and removed at the next open; foreign files are not touched.
#[tokio::test]
async fn leftovers_are_removed_at_open() {
    let dir = TempDir::new().unwrap();
    let blocks = ObjectBlocks::open_local(dir.path()).unwrap();
    let pack = noise(10, 3);
    blocks.put_pack(id(&pack), pack.clone()).await.unwrap();
    let shard = files(dir.path())[0].parent().unwrap().to_owned();
    fs::create_dir_all(dir.path().join("staging")).unwrap();
    fs::write(dir.path().join("staging/0123#1"), "half").unwrap();
    fs::write(dir.path().join("staging/4567"), "whole").unwrap();
    fs::write(shard.join(format!("{}.pack#1", hex(&id(b"x")))), "half").unwrap();
    fs::write(shard.join("notes"), "foreign").unwrap();
    assert_eq!(blocks.list(None, 10).await.unwrap(), vec![(id(&pack), 10)]);
    let blocks = ObjectBlocks::open_local(dir.path()).unwrap();
    assert_eq!(blocks.list(None, 10).await.unwrap(), vec![(id(&pack), 10)]);
    let mut left = files(dir.path());
    left.sort();
    assert_eq!(left.len(), 2, "{left:?}");
    assert!(left.contains(&shard.join("notes")));
}

/// Putting a pack repairs one whose file was damaged.
#[tokio::test]
async fn putting_again_heals() {
    let dir = TempDir::new().unwrap();
    let blocks = ObjectBlocks::open_local(dir.path()).unwrap();
    let pack = noise(10, 3);
    blocks.put_pack(id(&pack), pack.clone()).await.unwrap();
    fs::write(&files(dir.path())[0], "0123456789").unwrap();
    blocks.put_pack(id(&pack), pack.clone()).await.unwrap();
    assert_eq!(blocks.read(id(&pack), &[0..10]).await.unwrap(), vec![pack]);
}

/// Two uploads of one pack at the same time both succeed.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_same_pack_twice_at_once() {
    let dir = TempDir::new().unwrap();
    let blocks = ObjectBlocks::open_local(dir.path()).unwrap();
    for seed in 0..10 {
        let pack = noise(2 << 20, seed);
        let one = upload(&blocks, &pack, 1 << 20, id(&pack));
        let two = upload(&blocks, &pack, 1 << 19, id(&pack));
        let (one, two) = tokio::join!(one, two);
        assert_eq!((one.unwrap(), two.unwrap()), (2 << 20, 2 << 20));
        assert_eq!(blocks.read(id(&pack), &[0..2 << 20]).await.unwrap(), vec![pack]);
    }
}

#[tokio::test]
async fn memory_fails_as_told() {
    let faults = Faults::new();
    let blocks = MemoryBlocks::new(faults.clone());
    let pack = noise(10, 1);
    faults.fail_next(Op::PackPut, Fault::Before);
    assert!(blocks.put_pack(id(&pack), pack.clone()).await.is_err());
    assert!(blocks.size(id(&pack)).await.is_err());
    faults.set_disk_full(true);
    assert!(upload(&blocks, &pack, 5, id(&pack)).await.unwrap_err().is_full());
    faults.set_disk_full(false);
    faults.fail_next(Op::PackPut, Fault::After);
    assert!(upload(&blocks, &pack, 5, id(&pack)).await.is_err());
    assert_eq!(blocks.size(id(&pack)).await.unwrap(), 10);
    faults.fail_next(Op::PackRead, Fault::Before);
    assert!(blocks.read(id(&pack), &[0..1]).await.is_err());
    blocks.read(id(&pack), &[0..1]).await.unwrap();
}

/// Not a test of a promise: prints what putting a pack of 4 KiB costs here.
#[tokio::test]
#[ignore = "measures; run by hand"]
async fn measure_put() {
    let dir = tempfile::tempdir_in(env!("CARGO_MANIFEST_DIR")).unwrap();
    let blocks = ObjectBlocks::open_local(dir.path()).unwrap();
    let mut times = Vec::new();
    for turn in 0..2000u32 {
        let pack = Bytes::from(turn.to_le_bytes().repeat(1024));
        let start = std::time::Instant::now();
        blocks.put_pack(id(&pack), pack.clone()).await.unwrap();
        times.push(start.elapsed());
    }
    // The first thousand make most of the folders.
    times.drain(..1000);
    times.sort_unstable();
    println!("put of 4 KiB: p50 {:?} p99 {:?}", times[500], times[990]);
}
