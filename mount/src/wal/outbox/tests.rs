use std::fs;

use tidefs_proto::pack::{decode_block, verify};

use super::*;

fn noise(len: usize, seed: u64) -> Vec<u8> {
    let mut out = vec![0; len];
    let mut hasher = blake3::Hasher::new();
    hasher.update(&seed.to_le_bytes());
    hasher.finalize_xof().fill(&mut out);
    out
}

fn pack(outbox: &Outbox, blocks: &[Vec<u8>]) -> BuiltPack {
    let mut writer = outbox.pack_writer().unwrap();
    for block in blocks {
        writer.add(block).unwrap();
    }
    BuiltPack::finish(writer).unwrap()
}

fn read_blocks(file: &PackFile) -> Vec<Vec<u8>> {
    let index = file.load_index().unwrap();
    index
        .blocks()
        .map(|(hash, place)| {
            let frame = file.read(place.frame_offset, place.stored_len as usize).unwrap();
            let block = decode_block(&frame, &place).unwrap();
            verify(&hash, &block).unwrap();
            block
        })
        .collect()
}

fn names(dir: &Path) -> Vec<String> {
    let mut names: Vec<_> =
        fs::read_dir(dir).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

/// Small packs lie inside the checkpoint's file, large ones beside it; both come back after a restart.
#[test]
fn checkpoints_and_packs_come_back() {
    let dir = tempfile::tempdir().unwrap();
    let outbox = Outbox::open(dir.path()).unwrap();
    let small = vec![noise(3000, 1)];
    let large: Vec<_> = (2..5).map(|seed| noise(100_000, seed)).collect();
    let summary = pack(&outbox, &small).summary;
    outbox.put(7, b"seven", Some(pack(&outbox, &small))).unwrap();
    outbox.put(300, b"three hundred", Some(pack(&outbox, &large))).unwrap();
    outbox.put(2, b"", Some(pack(&outbox, &[]))).unwrap();
    outbox.put(3, b"no pack", None).unwrap();
    drop(outbox);
    let outbox = Outbox::open(dir.path()).unwrap();
    assert_eq!(outbox.list().unwrap(), [2, 3, 7, 300]);
    let seven = outbox.load(7).unwrap();
    assert_eq!(seven, Sealed { checkpoint: b"seven".to_vec(), pack: Some((summary.id, summary.length)) });
    assert_eq!(outbox.load(2).unwrap(), Sealed { checkpoint: Vec::new(), pack: None });
    assert_eq!(read_blocks(&outbox.open_pack(7).unwrap().unwrap()), small);
    assert_eq!(read_blocks(&outbox.open_pack(300).unwrap().unwrap()), large);
    assert!(outbox.open_pack(3).unwrap().is_none());
    let files = ["0002.ckpt", "0003.ckpt", "0007.ckpt", "012c.ckpt", "012c.pack"];
    assert_eq!(names(dir.path()), files.map(|f| format!("000000000000{f}")));
}

/// What a crash can leave (temporary files, a pack without its checkpoint) is gone after opening.
#[test]
fn leftovers_are_removed() {
    let dir = tempfile::tempdir().unwrap();
    let outbox = Outbox::open(dir.path()).unwrap();
    outbox.put(1, b"one", Some(pack(&outbox, &[noise(200_000, 1)]))).unwrap();
    fs::write(dir.path().join("ckpt-9.tmp"), b"half").unwrap();
    fs::write(dir.path().join("0000000000000002.pack"), b"half").unwrap();
    drop(outbox);
    Outbox::open(dir.path()).unwrap();
    assert_eq!(names(dir.path()), ["0000000000000001.ckpt", "0000000000000001.pack"]);
}

/// A pack that is never put leaves nothing.
#[test]
fn dropped_packs_leave_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let outbox = Outbox::open(dir.path()).unwrap();
    let built = pack(&outbox, &[noise(500_000, 1)]);
    assert_eq!(names(dir.path()).len(), 1);
    drop(built);
    assert!(names(dir.path()).is_empty());
}

/// A changed byte anywhere in a checkpoint's file, or a cut, is an error that names the file.
#[test]
fn damage_is_named() {
    let dir = tempfile::tempdir().unwrap();
    let outbox = Outbox::open(dir.path()).unwrap();
    outbox.put(5, b"checkpoint", Some(pack(&outbox, &[b"block".to_vec()]))).unwrap();
    let path = outbox.checkpoint_path(5);
    let whole = fs::read(&path).unwrap();
    for at in 0..whole.len() {
        let mut bad = whole.clone();
        bad[at] ^= 0x10;
        fs::write(&path, &bad).unwrap();
        let error = outbox.load(5).unwrap_err();
        assert!(matches!(&error, OutboxError::Damaged { path: p, .. } if *p == path), "byte {at}: {error}");
        fs::write(&path, &whole[..at]).unwrap();
        assert!(matches!(outbox.load(5), Err(OutboxError::Damaged { .. })), "cut at {at}");
    }
    fs::write(&path, &whole).unwrap();
    outbox.load(5).unwrap();
    assert!(matches!(outbox.load(6), Err(OutboxError::Missing { number: 6, .. })));
}

#[test]
fn missing_or_short_pack_is_damage() {
    let dir = tempfile::tempdir().unwrap();
    let outbox = Outbox::open(dir.path()).unwrap();
    outbox.put(1, b"one", Some(pack(&outbox, &[noise(200_000, 1)]))).unwrap();
    let file = fs::OpenOptions::new().write(true).open(outbox.pack_path(1)).unwrap();
    file.set_len(1000).unwrap();
    assert!(matches!(outbox.open_pack(1), Err(OutboxError::Damaged { .. })));
    fs::remove_file(outbox.pack_path(1)).unwrap();
    assert!(matches!(outbox.open_pack(1), Err(OutboxError::Damaged { .. })));
    assert_eq!(outbox.load(1).unwrap().checkpoint, b"one");
}

/// Retiring keeps the blocks under the pack's id and forgets the checkpoint; removing forgets both.
#[test]
fn retire_and_remove() {
    let dir = tempfile::tempdir().unwrap();
    let cache = tempfile::tempdir().unwrap();
    let outbox = Outbox::open(dir.path()).unwrap();
    for (n, len) in [(1, 2000), (2, 200_000)] {
        let built = pack(&outbox, &[noise(len, n)]);
        let id = blake3::Hash::from(built.summary.id);
        outbox.put(n, b"x", Some(built)).unwrap();
        let retired = outbox.retire(n, cache.path()).unwrap().unwrap();
        assert_eq!(read_blocks(&retired), [noise(len, n)]);
        assert_eq!(retired.path(), cache.path().join(format!("{}.pack", id.to_hex())));
        assert_eq!(blake3::hash(&fs::read(retired.path()).unwrap()), id);
    }
    outbox.put(3, b"x", None).unwrap();
    assert!(outbox.retire(3, cache.path()).unwrap().is_none());
    outbox.put(4, b"x", Some(pack(&outbox, &[noise(200_000, 4)]))).unwrap();
    outbox.remove(4).unwrap();
    outbox.remove(4).unwrap();
    assert!(names(dir.path()).is_empty());
    assert_eq!(names(cache.path()).len(), 2);
}

/// A put that fails leaves no checkpoint.
#[test]
fn failed_put_leaves_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let outbox = Outbox::open(dir.path()).unwrap();
    // A folder in the way of the pack's final name.
    fs::create_dir(outbox.pack_path(1)).unwrap();
    assert!(outbox.put(1, b"one", Some(pack(&outbox, &[noise(200_000, 1)]))).is_err());
    assert!(outbox.list().unwrap().is_empty());
    assert_eq!(names(dir.path()), ["0000000000000001.pack"]);
}

/// A stored checkpoint is never replaced.
#[test]
fn numbers_are_used_once() {
    let dir = tempfile::tempdir().unwrap();
    let outbox = Outbox::open(dir.path()).unwrap();
    outbox.put(1, b"first", Some(pack(&outbox, &[noise(200_000, 1)]))).unwrap();
    let second = outbox.put(1, b"second", Some(pack(&outbox, &[noise(200_000, 2)])));
    assert!(matches!(second, Err(OutboxError::Exists { number: 1, .. })));
    assert_eq!(outbox.load(1).unwrap().checkpoint, b"first");
    assert_eq!(read_blocks(&outbox.open_pack(1).unwrap().unwrap()), [noise(200_000, 1)]);
}
