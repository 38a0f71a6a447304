//! Opening the log: which records count, and what to do with every other file.
//!
//! A segment's first record names where the accepted records before it end. So the walk through one segment stops
//! at the place that the next one names, even when a failed append left a whole record behind it; and when the walk
//! ends earlier (a torn tail), the next segment does not fit and replay stops: nothing is ever replayed behind a gap.

use std::collections::BTreeMap;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use parking_lot::RwLock;

use super::pool::{self, Pool};
use super::record::{HEADER_BYTES, Header, Record, decode_header, verifies};
use super::segment::{Parts, Segment};
use super::{DATA_BYTES_MAX, HEAD_BYTES_MAX, Log, LogError, LogPos, SEGMENT_BYTES, Shared};

/// Segments cut off by a gap at earlier starts that are kept for a human to look at.
const LOST_MAX: usize = 4;
/// Bytes read at once while walking: many small records in one system call.
const WINDOW_BYTES: usize = 256 << 10;

/// What [`Log::open`] found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Recovered {
    /// Records given to the callback.
    pub records: u64,
    /// End of the last of them, or the start.
    pub end: LogPos,
    /// Segments that hold records which could not be replayed, because records before them are missing. After a
    /// loss of power these were never synced; otherwise the disk lost something. Kept as `.lost` files.
    pub lost_segments: usize,
}

/// The log folder's files, by what their names say.
#[derive(Default)]
struct Listing {
    segments: Vec<u64>,
    spares: Vec<PathBuf>,
    lost: Vec<(u64, PathBuf)>,
    temporary: Vec<PathBuf>,
    /// Above every number that was ever used.
    next_number: u64,
}

/// A segment whose first record verifies.
struct Candidate {
    number: u64,
    file: File,
    prev: LogPos,
}

pub(super) fn open(
    dir: &Path,
    start: LogPos,
    mut on_record: impl FnMut(Record<'_>),
) -> Result<(Log, Recovered), LogError> {
    let dir_file = super::durable_folder(dir).map_err(|e| LogError::from_io("make the folder", dir, e))?;
    let listing = list(dir)?;
    let mut walk = Walk { dir, end: start, records: 0, window: Window::default() };
    let kept = walk.all(&listing.segments, start, &mut on_record)?;
    let (end, records) = (walk.end, walk.records);
    listing.temporary.iter().for_each(|path| pool::remove(path));

    let pool = Pool::start(dir, listing.spares)?;
    let shared = Arc::new(Shared {
        dir: dir.to_path_buf(),
        dir_file,
        segments: RwLock::new(BTreeMap::new()),
        end: AtomicU64::new(end.0),
        group: Default::default(),
        #[cfg(test)]
        faults: Default::default(),
    });
    let kept: BTreeMap<u64, Arc<Segment>> = kept
        .into_iter()
        .map(|(number, file, bytes)| (number, adopt(&shared, &pool, number, file, bytes)))
        .collect();
    let others = listing.segments.iter().copied().filter(|n| !kept.contains_key(n));
    let lost_segments = clear(&shared, &pool, start, others, listing.lost)?;
    *shared.segments.write() = kept;
    let floor =
        if start.offset() == 0 && listing.next_number == 0 { start.segment() } else { start.segment() + 1 };
    let next_number = listing.next_number.max(floor);
    let log = Log { shared, current: None, next_number, written_out: end, pool };
    Ok((log, Recovered { records, end, lost_segments }))
}

fn list(dir: &Path) -> Result<Listing, LogError> {
    let failed = |e| LogError::from_io("list", dir, e);
    let mut out = Listing::default();
    for entry in std::fs::read_dir(dir).map_err(failed)? {
        let entry = entry.map_err(failed)?;
        let path = entry.path();
        let extension = path.extension().and_then(|e| e.to_str()).unwrap_or_default();
        let stem = path.file_stem().and_then(|s| s.to_str()).unwrap_or_default();
        let number = if stem.len() == 16 { u64::from_str_radix(stem, 16).ok() } else { None };
        // A number whose addresses do not fit 64 bits is no segment of ours.
        let number = number.filter(|&n| n < u64::MAX / SEGMENT_BYTES);
        match (extension, number) {
            ("seg", Some(number)) => out.segments.push(number),
            ("lost", Some(number)) => out.lost.push((number, path)),
            ("spare", _) => match entry.metadata().map_err(failed)?.len() {
                SEGMENT_BYTES => out.spares.push(path),
                _ => out.temporary.push(path),
            },
            ("tmp", _) => out.temporary.push(path),
            _ => tracing::warn!(path = %path.display(), "a file that is not the log's lies in its folder"),
        }
        out.next_number = out.next_number.max(number.map_or(0, |n| n + 1));
    }
    out.segments.sort_unstable();
    out.lost.sort_unstable();
    Ok(out)
}

fn adopt(shared: &Shared, pool: &Pool, number: u64, file: File, end: u64) -> Arc<Segment> {
    Arc::new(Segment::new(Parts {
        number,
        path: pool::segment_path(&shared.dir, number),
        prefilled: true,
        file,
        end,
        jobs: pool.jobs(),
        #[cfg(test)]
        faults: Arc::clone(&shared.faults),
    }))
}

/// Files that hold nothing of the log: released ones are recycled, cut off ones kept aside, empty ones removed.
fn clear(
    shared: &Shared,
    pool: &Pool,
    start: LogPos,
    others: impl Iterator<Item = u64>,
    mut lost_before: Vec<(u64, PathBuf)>,
) -> Result<usize, LogError> {
    let dir = &shared.dir;
    let mut count = 0;
    for number in others {
        let path = pool::segment_path(dir, number);
        if number < start.segment() || (number == start.segment() && start.offset() > 0) {
            let file = File::open(&path).map_err(|e| LogError::from_io("open", &path, e))?;
            drop_released(adopt(shared, pool, number, file, 0));
        } else if first_record(dir, number)?.is_some() {
            let aside = dir.join(format!("{number:016x}.lost"));
            std::fs::rename(&path, &aside).map_err(|e| LogError::from_io("move aside", &path, e))?;
            tracing::warn!(path = %aside.display(), "log records behind a gap were not replayed; kept aside");
            count += 1;
        } else {
            pool::remove(&path);
        }
    }
    let surplus = lost_before.len().saturating_sub(LOST_MAX);
    lost_before.drain(..surplus).for_each(|(_, path)| pool::remove(&path));
    if count > 0 {
        shared.dir_file.sync_all().map_err(|e| LogError::from_io("sync", dir, e))?;
    }
    Ok(count)
}

fn drop_released(segment: Arc<Segment>) {
    segment.release();
}

fn first_record(dir: &Path, number: u64) -> Result<Option<Candidate>, LogError> {
    let path = pool::segment_path(dir, number);
    let failed = |e| LogError::from_io("read", &path, e);
    let file = OpenOptions::new().read(true).write(true).open(&path).map_err(failed)?;
    let start = LogPos(number * SEGMENT_BYTES);
    let header = Window::default().record(&file, start).map_err(failed)?.map(|(header, _)| header);
    Ok(header.map(|header| Candidate { number, file, prev: header.prev }))
}

struct Walk<'a> {
    dir: &'a Path,
    /// End of the last accepted record.
    end: LogPos,
    records: u64,
    window: Window,
}

impl Walk<'_> {
    /// Replays from `start`; gives the segments that hold records, with the bytes of each that count.
    fn all(
        &mut self,
        numbers: &[u64],
        start: LogPos,
        on_record: &mut impl FnMut(Record<'_>),
    ) -> Result<Vec<(u64, File, u64)>, LogError> {
        let mut rest = numbers.iter().copied().filter(|&n| n >= start.segment()).peekable();
        let mut kept = Vec::new();
        if rest.peek() == Some(&start.segment()) {
            rest.next();
            let path = pool::segment_path(self.dir, start.segment());
            let file = OpenOptions::new()
                .read(true)
                .write(true)
                .open(&path)
                .map_err(|e| LogError::from_io("open", &path, e))?;
            let next = self.next_candidate(&mut rest)?;
            self.one(&file, start, next.as_ref().map(|c| c.prev), on_record)?;
            if self.end > start {
                kept.push((start.segment(), file, self.end.offset_after(start.segment())));
            }
            self.follow(next, &mut rest, &mut kept, on_record)?;
        } else {
            let next = self.next_candidate(&mut rest)?;
            self.follow(next, &mut rest, &mut kept, on_record)?;
        }
        Ok(kept)
    }

    fn follow(
        &mut self,
        mut next: Option<Candidate>,
        rest: &mut impl Iterator<Item = u64>,
        kept: &mut Vec<(u64, File, u64)>,
        on_record: &mut impl FnMut(Record<'_>),
    ) -> Result<(), LogError> {
        while let Some(candidate) = next.take() {
            if candidate.prev != self.end {
                return Ok(());
            }
            next = self.next_candidate(rest)?;
            let from = LogPos(candidate.number * SEGMENT_BYTES);
            self.one(&candidate.file, from, next.as_ref().map(|c| c.prev), on_record)?;
            if self.end > from {
                let bytes = self.end.offset_after(candidate.number);
                kept.push((candidate.number, candidate.file, bytes));
            }
        }
        Ok(())
    }

    fn next_candidate(&self, rest: &mut impl Iterator<Item = u64>) -> Result<Option<Candidate>, LogError> {
        for number in rest {
            if let Some(candidate) = first_record(self.dir, number)? {
                return Ok(Some(candidate));
            }
        }
        Ok(None)
    }

    /// Replays one segment from `from` up to `limit`, or to the first record that does not verify.
    fn one(
        &mut self,
        file: &File,
        from: LogPos,
        limit: Option<LogPos>,
        on_record: &mut impl FnMut(Record<'_>),
    ) -> Result<(), LogError> {
        let number = from.segment();
        let failed = |e| LogError::from_io("read", &pool::segment_path(self.dir, number), e);
        let mut at = from;
        self.window.forget();
        while limit != Some(self.end) && at.segment() == number {
            let Some((header, head)) = self.window.record(file, at).map_err(failed)? else { break };
            // The very first record may follow a gap in the addresses that was released.
            if header.prev != self.end && !(self.records == 0 && at == self.end && header.prev < at) {
                break;
            }
            let end = LogPos(at.0 + header.total());
            on_record(Record {
                kind: header.kind,
                head,
                start: at,
                data: LogPos(end.0 - header.data_len as u64),
                data_len: header.data_len as u32,
                end,
            });
            self.end = end;
            self.records += 1;
            at = end;
        }
        Ok(())
    }
}

impl LogPos {
    /// The offset in segment `number`, where the end of a full segment still belongs to it.
    fn offset_after(self, number: u64) -> u64 {
        self.0 - number * SEGMENT_BYTES
    }
}

/// The piece of a segment that is in memory.
#[derive(Default)]
struct Window {
    bytes: Vec<u8>,
    offset: u64,
}

impl Window {
    fn forget(&mut self) {
        self.bytes.clear();
    }

    /// The record at `at` with its head, if it verifies.
    fn record(&mut self, file: &File, at: LogPos) -> io::Result<Option<(Header, &[u8])>> {
        let offset = at.offset();
        let header = match self.get(file, offset, HEADER_BYTES)?.and_then(|b| b.first_chunk::<HEADER_BYTES>())
        {
            Some(bytes) => decode_header(bytes, at),
            None => None,
        };
        let Some(header) = header else { return Ok(None) };
        let record = self.get(file, offset, header.total() as usize)?;
        let whole = record.filter(|bytes| verifies(bytes));
        Ok(whole.map(|bytes| (header, &bytes[HEADER_BYTES..HEADER_BYTES + header.head_len])))
    }

    /// `len` bytes at `offset`, or `None` past the end of the file or the segment.
    fn get(&mut self, file: &File, offset: u64, len: usize) -> io::Result<Option<&[u8]>> {
        debug_assert!(len <= HEADER_BYTES + HEAD_BYTES_MAX + DATA_BYTES_MAX);
        let inside = offset >= self.offset && offset + len as u64 <= self.offset + self.bytes.len() as u64;
        if !inside {
            self.offset = offset;
            let want = (len.max(WINDOW_BYTES) as u64).min(SEGMENT_BYTES - offset) as usize;
            self.bytes.resize(want, 0);
            let mut read = 0;
            while read < want {
                match file.read_at(&mut self.bytes[read..], offset + read as u64) {
                    Ok(0) => break,
                    Ok(n) => read += n,
                    Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                    Err(e) => {
                        self.bytes.clear();
                        return Err(e);
                    }
                }
            }
            self.bytes.truncate(read);
        }
        let from = (offset - self.offset) as usize;
        Ok(self.bytes.get(from..from + len))
    }
}
