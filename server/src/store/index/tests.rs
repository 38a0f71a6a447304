use std::fs;
use std::path::{Path, PathBuf};

use tempfile::TempDir;

use super::*;
use crate::store::faults::{Fault, Faults, Op};

const OPTIONS: SledOptions = SledOptions { drive: [7; 16], cache_bytes: 1 << 20 };

fn open(dir: &Path) -> SledIndex {
    SledIndex::open(dir, OPTIONS).unwrap()
}

fn batch(pairs: &[(&str, Option<&str>)]) -> Batch {
    let mut batch = Batch::new();
    for (key, value) in pairs {
        match value {
            Some(value) => batch.put(*key, *value),
            None => batch.delete(*key),
        }
    }
    batch
}

fn keys(index: &dyn Index, prefix: &str, after: Option<&str>, limit: usize) -> Vec<String> {
    let found = index.range(prefix.as_bytes(), after.map(str::as_bytes), limit).unwrap();
    found.into_iter().map(|(key, _)| String::from_utf8(key).unwrap()).collect()
}

/// The promises of the trait, on any implementation. `reopen` is what a clean restart of the server does.
fn conforms<I: Index>(index: I, reopen: impl Fn(I) -> I) {
    assert_eq!(index.position().unwrap(), 0);
    assert_eq!(index.get(b"a").unwrap(), None);
    assert_eq!(index.get(b"").unwrap(), None);
    assert_eq!(index.range(b"", None, 10).unwrap(), vec![]);
    let pairs = ["a", "a1", "a2", "a3", "b", "", "m", "mposition", "\u{7f}"].map(|key| (key, Some(key)));
    index.commit(batch(&pairs), 3).unwrap();
    assert_eq!(index.position().unwrap(), 3);
    assert_eq!(index.get(b"a2").unwrap().unwrap(), b"a2");
    assert_eq!(index.get(b"mposition").unwrap().unwrap(), b"mposition");

    assert_eq!(keys(&index, "a", None, 10), ["a", "a1", "a2", "a3"]);
    assert_eq!(keys(&index, "a", None, 2), ["a", "a1"]);
    assert_eq!(keys(&index, "a", Some("a1"), 10), ["a2", "a3"]);
    assert_eq!(keys(&index, "a", Some("a10"), 10), ["a2", "a3"]);
    assert_eq!(keys(&index, "a", Some("a3"), 10), [""; 0]);
    assert_eq!(keys(&index, "a", Some("zz"), 10), [""; 0]);
    assert_eq!(keys(&index, "b", Some("a"), 10), ["b"]);
    assert_eq!(keys(&index, "a", None, 0), [""; 0]);
    assert_eq!(keys(&index, "", None, 100).len(), 9);
    assert_eq!(index.range(b"\xff\xff", None, 10).unwrap(), vec![]);

    // Of two changes of one key the last counts; deleting what is not there is no error.
    index
        .commit(batch(&[("a", None), ("a", Some("new")), ("a1", Some("x")), ("a1", None), ("no", None)]), 3)
        .unwrap();
    assert_eq!(index.get(b"a").unwrap().unwrap(), b"new");
    assert_eq!(index.get(b"a1").unwrap(), None);
    refuses(&index);
    index.commit(Batch::new(), 9).unwrap();
    index.flush().unwrap();

    let index = reopen(index);
    assert_eq!(index.position().unwrap(), 9);
    assert_eq!(index.get(b"a").unwrap().unwrap(), b"new");
    assert_eq!(keys(&index, "a", None, 10), ["a", "a2", "a3"]);
}

/// A refused batch changes nothing, its good part neither.
fn refuses(index: &dyn Index) {
    let mut bad = batch(&[("good", Some("1"))]);
    bad.put("bad", vec![0; VALUE_BYTES_LIMIT]);
    assert!(matches!(index.commit(bad, 5), Err(IndexError::ValueTooLarge { .. })));
    let mut bad = batch(&[("good", Some("1"))]);
    bad.delete(vec![b'x'; KEY_BYTES_MAX + 1]);
    assert!(matches!(index.commit(bad, 5), Err(IndexError::KeyTooLong { .. })));
    let back = index.commit(batch(&[("good", Some("1"))]), 2);
    assert!(matches!(back, Err(IndexError::PositionBack { asked: 2, position: 3 })));
    assert_eq!(index.get(b"good").unwrap(), None);
    assert_eq!(index.position().unwrap(), 3);
    let mut most = Batch::new();
    most.put(vec![b'x'; KEY_BYTES_MAX], vec![1; VALUE_BYTES_LIMIT - 1]);
    index.commit(most, 4).unwrap();
    assert_eq!(index.get(&[b'x'; KEY_BYTES_MAX]).unwrap().unwrap().len(), VALUE_BYTES_LIMIT - 1);
}

#[test]
fn sled_keeps_the_promises() {
    let dir = TempDir::new().unwrap();
    let path = dir.path().join("index");
    conforms(open(&path), |old| {
        old.verify().unwrap();
        drop(old);
        open(&path)
    });
    assert_eq!(broken(dir.path()), Vec::<PathBuf>::new());
}

#[test]
fn memory_keeps_the_promises() {
    conforms(MemoryIndex::default(), |old| old.clone());
}

fn broken(dir: &Path) -> Vec<PathBuf> {
    let mut found: Vec<PathBuf> = fs::read_dir(dir).unwrap().map(|item| item.unwrap().path()).collect();
    found.retain(|path| path.to_string_lossy().contains("index."));
    found.sort();
    found
}

fn filled(dir: &Path) -> PathBuf {
    let path = dir.join("index");
    let index = open(&path);
    let mut batch = Batch::new();
    for number in 0..2000u32 {
        batch.put(number.to_be_bytes(), vec![number as u8; 100]);
    }
    index.commit(batch, 77).unwrap();
    index.flush().unwrap();
    path
}

/// An index that was deleted is an empty one at position 0: its owner rebuilds it.
#[test]
fn a_deleted_index_begins_anew() {
    let dir = TempDir::new().unwrap();
    let path = filled(dir.path());
    fs::remove_dir_all(&path).unwrap();
    let index = open(&path);
    assert_eq!((index.position().unwrap(), index.range(b"", None, 1).unwrap().len()), (0, 0));
}

/// Whatever stands in the files: the open succeeds, and what it then holds is either all of the index or nothing.
#[test]
fn a_damaged_index_is_moved_aside() {
    type Harm = fn(&Path);
    let harms: [Harm; 7] = [
        |path| fs::write(path.join("db"), vec![0xa5; 300_000]).unwrap(),
        |path| fs::write(path.join("conf"), "not what sled wrote").unwrap(),
        |path| fs::write(path.join("db"), "").unwrap(),
        |path| {
            fs::remove_dir_all(path).unwrap();
            fs::write(path, "a file").unwrap();
        },
        |path| damage(path, 3),
        |path| damage(path, 50),
        |path| fs::remove_file(path.join("db")).unwrap(),
    ];
    for (number, harm) in harms.into_iter().enumerate() {
        let dir = TempDir::new().unwrap();
        let path = filled(dir.path());
        harm(&path);
        let index = open(&path);
        let all = match index.verify() {
            Ok(()) => (index.position().unwrap(), index.range(b"", None, 9999).unwrap().len()),
            Err(_) => {
                // Damage that shows only in use: the next open begins anew.
                drop(index);
                let index = open(&path);
                index.verify().unwrap();
                (index.position().unwrap(), index.range(b"", None, 9999).unwrap().len())
            }
        };
        assert!([(0, 0), (77, 2000)].contains(&all), "harm {number} left {all:?}");
    }
}

/// Changes one byte in `every`.
fn damage(path: &Path, every: usize) {
    let mut bytes = fs::read(path.join("db")).unwrap();
    bytes.iter_mut().step_by(every).for_each(|byte| *byte ^= 0x55);
    fs::write(path.join("db"), bytes).unwrap();
}

/// An index of another drive, or a sled that is not ours, is not taken for this drive's.
#[test]
fn a_foreign_index_is_moved_aside() {
    let dir = TempDir::new().unwrap();
    let path = filled(dir.path());
    let index = SledIndex::open(&path, SledOptions { drive: [8; 16], ..OPTIONS }).unwrap();
    assert_eq!(index.position().unwrap(), 0);
    assert_eq!(index.get(&5u32.to_be_bytes()).unwrap(), None);
    drop(index);
    assert_eq!(broken(dir.path()), [dir.path().join("index.broken-1")]);
}

/// Three that were moved aside are kept, the newest ones.
#[test]
fn few_broken_indexes_are_kept() {
    let dir = TempDir::new().unwrap();
    let path = dir.path().join("index");
    for number in 1..6u8 {
        drop(SledIndex::open(&path, SledOptions { drive: [number; 16], ..OPTIONS }).unwrap());
    }
    assert_eq!(broken(dir.path()), [2, 3, 4].map(|n| dir.path().join(format!("index.broken-{n}"))));
}

/// The mark of damage found in use makes the next open begin anew, once.
#[test]
fn damage_found_in_use_outlives_the_process() {
    let dir = TempDir::new().unwrap();
    let path = filled(dir.path());
    fs::write(dir.path().join("index.damaged"), "found in use").unwrap();
    assert_eq!(open(&path).position().unwrap(), 0);
    open(&path).commit(Batch::new(), 5).unwrap();
    assert_eq!(open(&path).position().unwrap(), 5);
    assert_eq!(broken(dir.path()), [dir.path().join("index.broken-1")]);
}

/// An index in use is not taken for a damaged one.
#[test]
fn an_open_index_is_not_moved_aside() {
    let dir = TempDir::new().unwrap();
    let path = filled(dir.path());
    let index = open(&path);
    assert!(matches!(SledIndex::open(&path, OPTIONS), Err(IndexError::Busy { .. })));
    assert_eq!(index.position().unwrap(), 77);
    assert_eq!(broken(dir.path()), Vec::<PathBuf>::new());
}

#[test]
fn memory_fails_as_told_and_loses_what_was_not_flushed() {
    let faults = Faults::new();
    let index = MemoryIndex::new(faults.clone());
    index.commit(batch(&[("a", Some("1")), ("b", Some("1"))]), 1).unwrap();
    index.flush().unwrap();
    index.commit(batch(&[("a", Some("2")), ("b", None), ("c", Some("2")), ("a", Some("3"))]), 2).unwrap();
    faults.fail_next(Op::IndexFlush, Fault::Before);
    assert!(index.flush().is_err());
    index.lose_unsynced();
    assert_eq!(index.position().unwrap(), 1);
    assert_eq!(keys(&index, "", None, 9), ["a", "b"]);
    assert_eq!(index.get(b"a").unwrap().unwrap(), b"1");

    faults.fail_next(Op::IndexCommit, Fault::Full);
    assert!(index.commit(batch(&[("d", Some("1"))]), 2).unwrap_err().is_full());
    assert_eq!(index.position().unwrap(), 1);
    faults.fail_next(Op::IndexCommit, Fault::After);
    assert!(index.commit(batch(&[("d", Some("1"))]), 2).is_err());
    assert_eq!(index.position().unwrap(), 2);
    index.lose_all();
    assert_eq!((index.position().unwrap(), index.get(b"a").unwrap()), (0, None));
}
