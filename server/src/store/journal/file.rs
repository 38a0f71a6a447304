//! The journal in files of one folder.
//!
//! One thread at a time writes: a create is one write at the end of the last file and one `fdatasync`. Whatever
//! fails there leaves the end of the file unknown, and a sync that failed once may succeed the second time without
//! having stored anything. So nothing is retried: the object refuses all further work, and opening again looks at
//! what is there. Readers share only the map of the files with the writer and never wait for a sync.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

use async_trait::async_trait;
use bytes::Bytes;
use parking_lot::Mutex;

use super::record::{FILE_HEADER, FileHeader};
use super::segment::{Budget, Place, Segment, file_name, parse_file_name};
use super::{Bounds, ENTRY_BYTES_MAX, Journal, JournalError};
use crate::store::disk::{Context, DiskError, create_dir_synced, sync_dir};

/// The size at which a file is left and a new one is begun, in bytes.
const SEGMENT_BYTES: u64 = 64 << 20;
/// How many places per file are remembered, so that a reader need not begin at the start of the file.
const MARKS_MAX: usize = 1024;
/// The distance at which the writer remembers places, in bytes.
const MARK_BYTES: u64 = 256 << 10;

/// What can be set for a [`FileJournal`].
#[derive(Debug, Clone, Copy)]
pub struct FileJournalOptions {
    /// The size past which the next entry begins a new file, in bytes. The default is 64 MiB.
    pub segment_bytes: u64,
}

impl Default for FileJournalOptions {
    fn default() -> Self {
        Self { segment_bytes: SEGMENT_BYTES }
    }
}

/// The journal of one drive in the files of one folder. Clones are the same journal.
#[derive(Debug, Clone)]
pub struct FileJournal(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    dir: PathBuf,
    drive: [u8; 16],
    segment_bytes: u64,
    /// Holds the lock on the folder as long as any call is under way.
    _lock: File,
    writer: Mutex<Writer>,
    map: Mutex<Map>,
    poison: OnceLock<String>,
    #[cfg(test)]
    fail: Mutex<Option<Fail>>,
}

/// Where a test makes the writer fail.
#[cfg(test)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Fail {
    HalfWritten,
    Sync,
}

#[derive(Debug)]
struct Writer {
    segment: Segment,
    end: u64,
    next: u64,
}

#[derive(Debug)]
struct Map {
    /// By first entry. The last one is being written.
    segments: BTreeMap<u64, Marks>,
    next: u64,
    /// Where the last synced record ends in the last file.
    end: u64,
}

/// Known places of records in one file: entry to byte.
type Marks = BTreeMap<u64, u64>;

impl FileJournal {
    /// Opens the journal in `dir`, which is made if it is missing, and checks its last file. A torn write at the
    /// end, which nobody was told about, is cut off with a warning. Older files are checked when they are read,
    /// or by [`FileJournal::verify`]. Blocks the thread.
    ///
    /// # Errors
    /// `Busy` while another object has it open, `Damaged`, `Version`, `OtherDrive`, or a failed system call.
    pub fn open(dir: &Path, drive: [u8; 16], options: FileJournalOptions) -> Result<Self, JournalError> {
        create_dir_synced(dir)?;
        let lock = File::open(dir).doing("open", dir)?;
        match rustix::fs::flock(&lock, rustix::fs::FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => {}
            Err(rustix::io::Errno::WOULDBLOCK) => return Err(JournalError::Busy { path: dir.to_owned() }),
            Err(errno) => {
                return Err(DiskError { doing: "lock", path: dir.to_owned(), source: errno.into() }.into());
            }
        }
        let mut firsts = segment_numbers(dir)?;
        let writer = open_last(dir, drive, &mut firsts)?;
        let segments = firsts.into_iter().map(|first| (first, Marks::new())).collect();
        let map = Map { segments, next: writer.next, end: writer.end };
        Ok(Self(Arc::new(Inner {
            dir: dir.to_owned(),
            drive,
            segment_bytes: options.segment_bytes,
            _lock: lock,
            writer: Mutex::new(writer),
            map: Mutex::new(map),
            poison: OnceLock::new(),
            #[cfg(test)]
            fail: Mutex::new(None),
        })))
    }

    /// Reads and checks every entry of every file. Takes as long as the disk needs to read the whole journal.
    ///
    /// # Errors
    /// `Damaged` at the first entry that does not verify.
    pub async fn verify(&self) -> Result<(), JournalError> {
        self.blocking(|inner| {
            let firsts: Vec<u64> = inner.map.lock().segments.keys().copied().collect();
            for pair in firsts.windows(2) {
                let segment = inner.open_segment(pair[0])?;
                let checked = segment.check()?;
                if checked.torn || checked.next != pair[1] {
                    let what =
                        format!("entry {} is missing: the next file starts at {}", checked.next, pair[1]);
                    return Err(segment.damaged(checked.end, what));
                }
            }
            // The last file grows meanwhile: read it up to the last synced record only.
            let next = inner.map.lock().next;
            let mut entry = firsts.last().copied().unwrap_or(next);
            while entry < next {
                entry += inner.read(entry, ENTRY_BYTES_MAX)?.len() as u64;
            }
            Ok(())
        })
        .await
    }

    #[cfg(test)]
    pub(super) fn fail_next_create(&self, fail: Fail) {
        *self.0.fail.lock() = Some(fail);
    }

    async fn blocking<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Inner) -> Result<T, JournalError> + Send + 'static,
    ) -> Result<T, JournalError> {
        let inner = Arc::clone(&self.0);
        let checked = move || {
            if let Some(why) = inner.poison.get() {
                return Err(JournalError::Poisoned { why: why.clone() });
            }
            work(&inner)
        };
        match tokio::task::spawn_blocking(checked).await {
            Ok(result) => result,
            Err(error) => {
                let why = self.0.poison.get_or_init(|| format!("a worker thread ended: {error}"));
                Err(JournalError::Poisoned { why: why.clone() })
            }
        }
    }
}

#[async_trait]
impl Journal for FileJournal {
    async fn create(&self, entry: u64, body: Bytes) -> Result<(), JournalError> {
        self.blocking(move |inner| inner.create(entry, &body)).await
    }

    async fn read_from(&self, first: u64, max_bytes: usize) -> Result<Vec<(u64, Bytes)>, JournalError> {
        self.blocking(move |inner| inner.read(first, max_bytes)).await
    }

    async fn bounds(&self) -> Result<Bounds, JournalError> {
        // Nothing here waits for the disk.
        match self.0.poison.get() {
            Some(why) => Err(JournalError::Poisoned { why: why.clone() }),
            None => Ok(self.0.bounds()),
        }
    }

    async fn drop_before(&self, entry: u64) -> Result<(), JournalError> {
        self.blocking(move |inner| inner.drop_before(entry)).await
    }
}

impl Inner {
    fn bounds(&self) -> Bounds {
        let map = self.map.lock();
        let first = map.segments.keys().next().copied().unwrap_or(map.next);
        Bounds { first, next: map.next }
    }

    fn create(&self, entry: u64, body: &[u8]) -> Result<(), JournalError> {
        let mut writer = self.writer.lock();
        // Somebody may have failed while this one waited for its turn.
        if let Some(why) = self.poison.get() {
            return Err(JournalError::Poisoned { why: why.clone() });
        }
        super::check_create(entry, writer.next, body.len())?;
        let written = self.write(&mut writer, body);
        if let Err(error) = &written {
            let _ = self.poison.set(error.to_string());
        }
        written
    }

    fn write(&self, writer: &mut Writer, body: &[u8]) -> Result<(), JournalError> {
        if writer.end >= self.segment_bytes && writer.end > FILE_HEADER as u64 {
            *writer = new_segment(&self.dir, self.drive, writer.next)?;
            let mut map = self.map.lock();
            map.segments.insert(writer.next, Marks::new());
            map.end = writer.end;
        }
        #[cfg(test)]
        self.fail_on_purpose(writer, body)?;
        let start = writer.end;
        writer.end = writer.segment.append(start, writer.next, body)?;
        let mut map = self.map.lock();
        if let Some(mut marks) = map.segments.last_entry()
            && marks.get().values().next_back().is_none_or(|last| start - last >= MARK_BYTES)
        {
            remember(marks.get_mut(), writer.next, start);
        }
        writer.next += 1;
        (map.next, map.end) = (writer.next, writer.end);
        Ok(())
    }

    #[cfg(test)]
    fn fail_on_purpose(&self, writer: &Writer, body: &[u8]) -> Result<(), JournalError> {
        let Some(fail) = self.fail.lock().take() else { return Ok(()) };
        let end = writer.segment.append(writer.end, writer.next, body)?;
        if fail == Fail::HalfWritten {
            writer.segment.truncate((writer.end + end) / 2)?;
        }
        Err(std::io::Error::other("failed on purpose")).doing("sync", &writer.segment.path)?
    }

    fn read(&self, first: u64, max_bytes: usize) -> Result<Vec<(u64, Bytes)>, JournalError> {
        let mut budget = Budget::new(max_bytes);
        let mut wanted = first;
        while !budget.is_full() {
            let Some((segment_first, place)) = self.find(wanted)? else { break };
            let segment = match self.open_segment(segment_first) {
                Err(JournalError::Disk(error)) if error.source.kind() == std::io::ErrorKind::NotFound => {
                    // Dropped since the map was looked at, unless the map still has it.
                    self.find(wanted)?;
                    return Err(error.into());
                }
                other => other?,
            };
            let sealed = place.end == u64::MAX;
            let end = if sealed { segment.length()? } else { place.end };
            let stopped = segment.read(Place { end, ..place }, wanted, &mut budget)?;
            self.reached(segment_first, &stopped);
            if !sealed {
                break;
            }
            if !budget.is_full() && !self.map.lock().segments.contains_key(&stopped.entry) {
                let what = format!("entry {} is missing: no file starts with it", stopped.entry);
                return Err(segment.damaged(stopped.at, what));
            }
            wanted = stopped.entry;
        }
        Ok(budget.entries)
    }

    /// The file that holds entry `wanted`, and the nearest known place before it. The end is `u64::MAX` for a file
    /// that is no longer written. `None` when the entry is not there yet.
    fn find(&self, wanted: u64) -> Result<Option<(u64, Place)>, JournalError> {
        let map = self.map.lock();
        if wanted >= map.next {
            return Ok(None);
        }
        let Some((&first, marks)) = map.segments.range(..=wanted).next_back() else {
            let first = map.segments.keys().next().copied().unwrap_or(map.next);
            return Err(JournalError::Dropped { entry: wanted, first });
        };
        let last = map.segments.keys().next_back() == Some(&first);
        let end = if last { map.end } else { u64::MAX };
        let (entry, at) = match marks.range(..=wanted).next_back() {
            Some((&entry, &at)) => (entry, at),
            None => (first, FILE_HEADER as u64),
        };
        Ok(Some((first, Place { entry, at, end })))
    }

    /// Remembers where a reader stopped: it comes back for what follows.
    fn reached(&self, segment_first: u64, place: &Place) {
        if let Some(marks) = self.map.lock().segments.get_mut(&segment_first)
            && place.at < place.end
        {
            remember(marks, place.entry, place.at);
        }
    }

    fn open_segment(&self, first: u64) -> Result<Segment, JournalError> {
        Segment::open(&self.dir, first, self.drive)?.ok_or_else(|| headless(&self.dir, first))
    }

    fn drop_before(&self, entry: u64) -> Result<(), JournalError> {
        // The writer is held so that two droppers take turns and the last file stays the last.
        let writer = self.writer.lock();
        if entry > writer.next {
            return Err(JournalError::NotNext { entry, next: writer.next });
        }
        let firsts: Vec<u64> = self.map.lock().segments.keys().copied().collect();
        let droppable = firsts.windows(2).filter(|pair| pair[1] <= entry).map(|pair| pair[0]);
        let mut dropped = false;
        for first in droppable {
            // Oldest first, and each out of the map before it goes: what is left is always without a gap.
            self.map.lock().segments.remove(&first);
            let path = self.dir.join(file_name(first));
            fs::remove_file(&path).doing("remove", &path)?;
            dropped = true;
        }
        if dropped {
            sync_dir(&self.dir)?;
        }
        Ok(())
    }
}

fn remember(marks: &mut Marks, entry: u64, at: u64) {
    if marks.len() >= MARKS_MAX {
        marks.pop_first();
    }
    marks.insert(entry, at);
}

fn headless(dir: &Path, first: u64) -> JournalError {
    JournalError::Damaged {
        path: dir.join(file_name(first)),
        offset: 0,
        what: "it has no file header".into(),
    }
}

/// The first entries of the files in the folder, in order.
fn segment_numbers(dir: &Path) -> Result<Vec<u64>, JournalError> {
    let mut firsts = Vec::new();
    for item in fs::read_dir(dir).doing("list", dir)? {
        let name = item.doing("list", dir)?.file_name();
        firsts.extend(name.to_str().and_then(parse_file_name));
    }
    firsts.sort_unstable();
    Ok(firsts)
}

fn new_segment(dir: &Path, drive: [u8; 16], first: u64) -> Result<Writer, JournalError> {
    let header = FileHeader { drive, first, salt: rand::random() };
    let segment = Segment::create(dir, header)?;
    Ok(Writer { segment, end: FILE_HEADER as u64, next: first })
}

/// Opens the last file for writing: makes the first one, replaces one that was torn while it was made, cuts off a
/// torn record.
fn open_last(dir: &Path, drive: [u8; 16], firsts: &mut Vec<u64>) -> Result<Writer, JournalError> {
    let Some(&last) = firsts.last() else {
        firsts.push(1);
        return new_segment(dir, drive, 1);
    };
    let Some(segment) = Segment::open(dir, last, drive)? else {
        return replace_headless(dir, drive, firsts, last);
    };
    let checked = segment.check()?;
    if checked.torn {
        let cut = segment.length()?.saturating_sub(checked.end);
        tracing::warn!(path = %segment.path.display(), offset = checked.end, bytes = cut,
            "cutting a torn write off the end of the journal");
        segment.truncate(checked.end)?;
    }
    segment.settle_last(&checked)?;
    // The crash may have been between making the file and syncing its name.
    sync_dir(dir)?;
    Ok(Writer { segment, end: checked.end, next: checked.next })
}

fn replace_headless(dir: &Path, drive: [u8; 16], firsts: &[u64], torn: u64) -> Result<Writer, JournalError> {
    if let [.., previous, _] = *firsts {
        let segment = Segment::open(dir, previous, drive)?.ok_or_else(|| headless(dir, previous))?;
        let checked = segment.check()?;
        if checked.torn || checked.next != torn {
            let what = format!("entry {} is missing: the next file starts at {torn}", checked.next);
            return Err(segment.damaged(checked.end, what));
        }
    }
    let path = dir.join(file_name(torn));
    tracing::warn!(path = %path.display(), "replacing a journal file that was torn while it was made");
    fs::remove_file(&path).doing("remove", &path)?;
    new_segment(dir, drive, torn)
}
