//! The index in sled 0.34, guarded.
//!
//! sled is fast and small but must not be believed: its `flush` does not sync on Linux, and after a power cut it may
//! refuse to open or panic, at open or later. So it never holds the only copy; each flush is followed by an
//! `fdatasync` of its file; every call into it catches panics; and one that does not open or is found damaged while
//! in use is moved aside, and an empty one takes its place for its owner to fill from the journal.
//!
//! Damage that shows only in use leaves a mark beside the folder, because such an index may well open again.
//!
//! One tree: `k` before each key of the owner, `m` before our own two: the format and the journal position.

use std::fs::{self, File};
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use super::{Batch, Index, IndexError, Pair};
use crate::store::disk::{Context, DiskError, create_dir_synced, sync_dir, write_atomic};

const KEYS: u8 = b'k';
const FORMAT_KEY: &[u8] = b"mformat";
const POSITION_KEY: &[u8] = b"mposition";
const FORMAT: &[u8] = b"tidefs index 1 ";
/// How many indexes that were moved aside are kept.
const BROKEN_KEPT: u64 = 3;
/// How long an open waits for an earlier one in this process to end: sled gives its lock back in the background.
const LOCK_WAIT: Duration = Duration::from_secs(2);

/// How to open a [`SledIndex`].
#[derive(Debug, Clone, Copy)]
pub struct SledOptions {
    /// The drive that the index belongs to; that of another drive is moved aside.
    pub drive: [u8; 16],
    /// The memory that sled may use for its cache, in bytes.
    pub cache_bytes: u64,
}

impl SledOptions {
    /// For this drive, with a cache of 64 MiB.
    pub fn new(drive: [u8; 16]) -> Self {
        Self { drive, cache_bytes: 64 << 20 }
    }
}

/// An index in a folder of the local disk.
#[derive(Debug)]
pub struct SledIndex {
    dir: PathBuf,
    /// There until the drop.
    tree: Option<sled::Db>,
    /// sled's own file, opened once more to sync it.
    file: File,
    /// The position, and the turn of whoever commits.
    position: Mutex<u64>,
}

impl SledIndex {
    /// Opens the index in `dir`. One that does not open, is damaged, or is another drive's is moved aside to
    /// `DIR.broken-N` beside it with a warning, and an empty one is opened: then [`Index::position`] is 0 and the
    /// owner fills it from the journal.
    ///
    /// # Errors
    /// `Busy` while another object has it open; a failed system call that says nothing about the bytes, such as a
    /// full disk or a missing right.
    pub fn open(dir: &Path, options: SledOptions) -> Result<Self, IndexError> {
        if let Some(parent) = dir.parent() {
            create_dir_synced(parent)?;
        }
        let reason = match mark(dir).exists() {
            true => fs::read_to_string(mark(dir)).unwrap_or_default(),
            false => match Self::try_open(dir, options) {
                Err(IndexError::Broken { what, .. }) => what,
                other => return other,
            },
        };
        move_aside(dir, &reason)?;
        Self::try_open(dir, options)
    }

    /// Reads every key and value, which makes sled check every page. Takes time in proportion to the size.
    ///
    /// # Errors
    /// `Broken` at the first page that does not verify; the next open then moves the index aside.
    pub fn verify(&self) -> Result<(), IndexError> {
        self.guarded("read", || self.tree()?.iter().try_for_each(|pair| pair.map(drop)))
    }

    fn try_open(dir: &Path, options: SledOptions) -> Result<Self, IndexError> {
        let config = sled::Config::new()
            .path(dir)
            .cache_capacity(options.cache_bytes)
            .flush_every_ms(None)
            .mode(sled::Mode::HighThroughput);
        let tree = Some(open_patiently(dir, &config)?);
        let path = dir.join("db");
        let file = File::open(&path).doing("open", &path)?;
        let index = Self { dir: dir.to_owned(), tree, file, position: Mutex::new(0) };
        *index.position.lock() = guarded(dir, "open", || check_format(index.tree()?, options.drive))?
            .map_err(|what| IndexError::Broken { path: dir.to_owned(), what })?;
        index.flush()?;
        index.file.sync_all().doing("sync", &path)?;
        sync_dir(dir)?;
        sync_dir(dir.parent().unwrap_or(Path::new(".")))?;
        Ok(index)
    }

    fn tree(&self) -> sled::Result<&sled::Db> {
        self.tree.as_ref().ok_or_else(|| sled::Error::ReportableBug("the index is closed".into()))
    }

    fn guarded<T>(
        &self,
        doing: &'static str,
        work: impl FnOnce() -> sled::Result<T>,
    ) -> Result<T, IndexError> {
        let result = guarded(&self.dir, doing, work);
        if let Err(IndexError::Broken { what, .. }) = &result {
            // Failing to leave the mark must not hide the damage itself.
            if let Err(error) = write_atomic(&mark(&self.dir), what.as_bytes()) {
                tracing::warn!(%error, "cannot mark the index as damaged");
            }
        }
        result
    }
}

impl Drop for SledIndex {
    fn drop(&mut self) {
        // sled flushes when it is dropped, and may panic at that too.
        let tree = self.tree.take();
        if catch_unwind(AssertUnwindSafe(move || drop(tree))).is_err() {
            tracing::warn!(dir = %self.dir.display(), "sled panicked while the index was closed");
        }
    }
}

impl Index for SledIndex {
    fn get(&self, key: &[u8]) -> Result<Option<Vec<u8>>, IndexError> {
        super::check_key(key)?;
        self.guarded("read", || Ok(self.tree()?.get(inner_key(key))?.map(|value| value.to_vec())))
    }

    fn range(&self, prefix: &[u8], after: Option<&[u8]>, limit: usize) -> Result<Vec<Pair>, IndexError> {
        use std::ops::Bound;
        let inner_prefix = inner_key(prefix);
        let start = match after {
            Some(after) if after >= prefix => Bound::Excluded(inner_key(after)),
            _ => Bound::Included(inner_prefix.clone()),
        };
        self.guarded("read", || {
            let mut found = Vec::new();
            for pair in self.tree()?.range((start, Bound::Unbounded)).take(limit) {
                let (key, value) = pair?;
                if !key.starts_with(&inner_prefix) {
                    break;
                }
                found.push((key[1..].to_vec(), value.to_vec()));
            }
            Ok(found)
        })
    }

    fn commit(&self, batch: Batch, position: u64) -> Result<(), IndexError> {
        batch.check()?;
        let mut current = self.position.lock();
        if position < *current {
            return Err(IndexError::PositionBack { asked: position, position: *current });
        }
        let mut inner = sled::Batch::default();
        for (key, value) in batch.changes {
            match value {
                Some(value) => inner.insert(inner_key(&key), value),
                None => inner.remove(inner_key(&key)),
            }
        }
        inner.insert(POSITION_KEY, &position.to_be_bytes());
        self.guarded("write", || self.tree()?.apply_batch(inner))?;
        *current = position;
        Ok(())
    }

    fn position(&self) -> Result<u64, IndexError> {
        Ok(*self.position.lock())
    }

    fn flush(&self) -> Result<(), IndexError> {
        self.guarded("flush", || self.tree()?.flush().map(drop))?;
        // sled's own flush leaves the bytes in the page cache.
        Ok(self.file.sync_data().doing("sync", &self.dir.join("db"))?)
    }
}

fn inner_key(key: &[u8]) -> Vec<u8> {
    [&[KEYS], key].concat()
}

/// The mark that a damaged index leaves for the next open.
fn mark(dir: &Path) -> PathBuf {
    beside(dir, "damaged")
}

/// The path of `dir` with `.suffix` behind its name.
fn beside(dir: &Path, suffix: &str) -> PathBuf {
    let mut path = dir.as_os_str().to_owned();
    path.push(format!(".{suffix}"));
    path.into()
}

/// Calls sled and turns what it does wrong, panics too, into errors.
fn guarded<T>(
    dir: &Path,
    doing: &'static str,
    work: impl FnOnce() -> sled::Result<T>,
) -> Result<T, IndexError> {
    let broken = |what: String| IndexError::Broken { path: dir.to_owned(), what };
    match catch_unwind(AssertUnwindSafe(work)) {
        Ok(Ok(value)) => Ok(value),
        Ok(Err(sled::Error::Io(source))) if is_lock(&source) => {
            Err(IndexError::Busy { path: dir.to_owned() })
        }
        Ok(Err(sled::Error::Io(source))) if !says_damaged(&source) => {
            Err(DiskError { doing, path: dir.to_owned(), source }.into())
        }
        Ok(Err(error)) => Err(broken(error.to_string())),
        Err(panic) => {
            let text = panic.downcast_ref::<String>().map(String::as_str);
            let text = text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("no message");
            Err(broken(format!("sled panicked: {text}")))
        }
    }
}

fn is_lock(error: &io::Error) -> bool {
    error.to_string().contains("could not acquire lock")
}

/// Whether the error comes from what is in the folder, rather than from the machine under it.
fn says_damaged(error: &io::Error) -> bool {
    use io::ErrorKind::{InvalidInput, IsADirectory, NotADirectory, PermissionDenied};
    let odd_folder = matches!(error.kind(), NotADirectory | IsADirectory | InvalidInput);
    let made_up_by_sled = error.raw_os_error().is_none();
    let machine = crate::store::disk::is_full(error) || error.kind() == PermissionDenied;
    odd_folder || (made_up_by_sled && !machine)
}

fn open_patiently(dir: &Path, config: &sled::Config) -> Result<sled::Db, IndexError> {
    let start = Instant::now();
    loop {
        match guarded(dir, "open", || config.open()) {
            // There is no event to wait for.
            Err(IndexError::Busy { .. }) if start.elapsed() < LOCK_WAIT => {
                std::thread::sleep(Duration::from_millis(5));
            }
            other => return other,
        }
    }
}

/// The position of an index of our format and of this drive, or what is wrong with it.
fn check_format(tree: &sled::Db, drive: [u8; 16]) -> sled::Result<Result<u64, String>> {
    let expected = [FORMAT, &drive].concat();
    match (tree.get(FORMAT_KEY)?, tree.get(POSITION_KEY)?) {
        (None, None) if tree.is_empty() => {
            let mut batch = sled::Batch::default();
            batch.insert(FORMAT_KEY, expected);
            batch.insert(POSITION_KEY, &0u64.to_be_bytes());
            tree.apply_batch(batch)?;
            Ok(Ok(0))
        }
        (Some(format), Some(position)) if *format == *expected => match position.as_ref().try_into() {
            Ok(position) => Ok(Ok(u64::from_be_bytes(position))),
            Err(_) => Ok(Err("its journal position is malformed".into())),
        },
        _ => Ok(Err("its format or its drive is not the one expected".into())),
    }
}

/// Renames the folder to `DIR.broken-N`, with N one above the highest there, and removes the oldest of them.
fn move_aside(dir: &Path, reason: &str) -> Result<(), IndexError> {
    let parent = dir.parent().unwrap_or(Path::new("."));
    let numbers = broken_numbers(dir, parent)?;
    let next = numbers.last().map_or(1, |last| last + 1);
    let target = beside(dir, &format!("broken-{next}"));
    tracing::warn!(dir = %dir.display(), moved_to = %target.display(), reason,
        "the index is damaged; beginning an empty one to fill from the journal");
    match fs::rename(dir, &target) {
        // A mark may be left of an index that was deleted since.
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        other => other.doing("move aside", dir)?,
    }
    sync_dir(parent)?;
    match fs::remove_file(mark(dir)) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        other => other.doing("remove", &mark(dir))?,
    }
    for number in numbers.into_iter().filter(|number| number + BROKEN_KEPT <= next) {
        let old = beside(dir, &format!("broken-{number}"));
        fs::remove_dir_all(&old).or_else(|_| fs::remove_file(&old)).doing("remove", &old)?;
    }
    Ok(())
}

fn broken_numbers(dir: &Path, parent: &Path) -> Result<Vec<u64>, IndexError> {
    let prefix = format!("{}.broken-", dir.file_name().unwrap_or_default().to_string_lossy());
    let mut numbers = Vec::new();
    for item in fs::read_dir(parent).doing("list", parent)? {
        let name = item.doing("list", parent)?.file_name();
        let number = name.to_str().and_then(|name| name.strip_prefix(&prefix));
        numbers.extend(number.and_then(|number| number.parse::<u64>().ok()));
    }
    numbers.sort_unstable();
    Ok(numbers)
}
