//! The write-ahead log: every change and every written byte of the open batch, in order.
//!
//! The log is an endless byte address space ([`LogPos`]), cut into segments of [`SEGMENT_BYTES`]; segment `k` is the
//! file `<16 hex digits of k>.seg` and a record never crosses a segment. An append is one `pwritev` straight into
//! the page cache, so a killed process loses nothing that was answered. A machine that loses power loses nothing
//! below what [`LogSync::sync_to`] returned for.
//!
//! Three rules make the end of the log unambiguous after any crash:
//! - A record names its own segment and offset, so stale bytes of a recycled segment never parse, and segment
//!   numbers are never used twice.
//! - A record names the end of the record before it. A segment that was given up half-way (a failed write, a torn
//!   tail found at recovery) is followed by one that names exactly where the accepted records end; where the names
//!   do not meet, records were lost and replay stops.
//! - Nothing is ever written again into a segment in which a write or a sync failed, or which was recovered: after a
//!   failed sync the kernel may call pages clean that never reached the disk.

mod error;
pub mod outbox;
mod pack_file;
mod pool;
mod record;
mod recovery;
mod segment;
mod sync;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::RwLock;

pub use error::LogError;
pub use pack_file::PackFile;
pub use record::{DATA_BYTES_MAX, HEAD_BYTES_MAX, Record};
pub use recovery::Recovered;
pub use sync::LogSync;

use pool::{Job, Pool};
use segment::Segment;

/// Bytes of one segment. Large enough that the directory sync for a new one is rare, small enough that a finished
/// batch frees its space soon.
pub const SEGMENT_BYTES: u64 = 16 << 20;

/// Appended bytes after which write-out is started, so that a small fsync never waits for a giant copy.
const WRITE_OUT_BYTES: u64 = 4 << 20;

const _: () = assert!((record::HEADER_BYTES + HEAD_BYTES_MAX + DATA_BYTES_MAX) as u64 <= SEGMENT_BYTES);

/// Makes a folder durable: a synced file in a folder that the disk does not know is lost. Folders above the parent
/// are their maker's to sync. Gives the folder, open for syncing.
fn durable_folder(dir: &Path) -> std::io::Result<File> {
    std::fs::create_dir_all(dir)?;
    if let Some(parent) = dir.parent().filter(|p| !p.as_os_str().is_empty()) {
        File::open(parent)?.sync_all()?;
    }
    File::open(dir)
}

/// An address in the log. Addresses only grow, also over restarts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LogPos(pub u64);

impl LogPos {
    fn segment(self) -> u64 {
        self.0 / SEGMENT_BYTES
    }

    fn offset(self) -> u64 {
        self.0 % SEGMENT_BYTES
    }
}

/// Where an appended record lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Appended {
    /// First byte of the record.
    pub start: LogPos,
    /// First byte of its data, for [`LogReader`].
    pub data: LogPos,
    /// The end of the log after it: what to give to [`LogSync::sync_to`] and [`Log::release_before`].
    pub end: LogPos,
}

/// What the log and its handles share.
struct Shared {
    dir: PathBuf,
    dir_file: File,
    segments: RwLock<BTreeMap<u64, Arc<Segment>>>,
    /// End of the last accepted record.
    end: AtomicU64,
    group: sync::Group,
    #[cfg(test)]
    faults: Arc<segment::Faults>,
}

impl Shared {
    fn end(&self) -> LogPos {
        LogPos(self.end.load(Ordering::Acquire))
    }
}

/// The appending end of the log: one owner, under the session's lock.
pub struct Log {
    shared: Arc<Shared>,
    /// The segment that takes the next record; `None` when the last one was given up.
    current: Option<Arc<Segment>>,
    /// Number of the next segment, above every number ever used.
    next_number: u64,
    /// Up to where write-out was started.
    written_out: LogPos,
    pool: Pool,
}

impl Log {
    /// Opens the log in `dir` (made if missing) and gives every record from `start` on, in order, to `on_record`.
    /// Memory stays bounded by one record. Everything before `start` is freed.
    ///
    /// Replay ends at the first record that does not verify. Segments behind that point that still hold records are
    /// kept as `<number>.lost` (of earlier starts, the newest four) and counted in [`Recovered::lost_segments`].
    ///
    /// # Errors
    /// [`LogError::Io`] when the folder or a segment cannot be read: an unreadable disk is never taken for the end
    /// of the log.
    pub fn open(
        dir: &Path,
        start: LogPos,
        on_record: impl FnMut(Record<'_>),
    ) -> Result<(Log, Recovered), LogError> {
        recovery::open(dir, start, on_record)
    }

    /// Appends one record with a single write; it is readable at once and survives the end of this process.
    /// `head` is at most [`HEAD_BYTES_MAX`] bytes, `data` at most [`DATA_BYTES_MAX`].
    ///
    /// # Errors
    /// [`LogError::TooLarge`], [`LogError::NoSpace`] or [`LogError::Io`]. The log is as it was before: the segment
    /// in which a write failed is given up and the next append goes to a new one.
    pub fn append(&mut self, kind: u8, head: &[u8], data: &[u8]) -> Result<Appended, LogError> {
        if head.len() > HEAD_BYTES_MAX || data.len() > DATA_BYTES_MAX {
            return Err(LogError::TooLarge { head: head.len(), data: data.len() });
        }
        let total = (record::HEADER_BYTES + head.len() + data.len()) as u64;
        let segment = self.segment_for(total)?;
        let offset = segment.end();
        let start = segment.position(offset);
        let prev = self.shared.end();
        let header = record::encode_header(&record::Place { start, prev }, kind, head, data);
        if let Err(source) = segment.write(offset, &header, head, data) {
            self.give_up(&segment, offset);
            return Err(LogError::from_io("append to", &segment.path, source));
        }
        segment.set_end(offset + total);
        let end = LogPos(start.0 + total);
        self.shared.end.store(end.0, Ordering::Release);
        self.start_write_out(&segment, end);
        Ok(Appended { start, data: LogPos(start.0 + (record::HEADER_BYTES + head.len()) as u64), end })
    }

    /// End of the last record.
    pub fn end(&self) -> LogPos {
        self.shared.end()
    }

    /// Bytes of records that are still held, released ones in a segment that is still in use included.
    pub fn bytes_in_use(&self) -> u64 {
        self.shared.segments.read().values().map(|s| s.end()).sum()
    }

    /// A handle for reading; cheap to clone, needs no lock of the owner.
    pub fn reader(&self) -> LogReader {
        LogReader { shared: Arc::clone(&self.shared) }
    }

    /// A handle for syncing; cheap to clone, needs no lock of the owner.
    pub fn sync(&self) -> LogSync {
        LogSync::new(Arc::clone(&self.shared))
    }

    /// Frees every segment that lies whole before `pos`, as soon as no [`LogPin`] uses it. The caller has made what
    /// the records say durable elsewhere, and gives a start of at least `pos` at the next [`Log::open`].
    pub fn release_before(&mut self, pos: LogPos) {
        if self.current.as_ref().is_some_and(|s| s.failure().is_some()) {
            self.current = None;
        }
        let keep = self.current.as_ref().map(|s| s.number);
        let mut segments = self.shared.segments.write();
        segments.retain(|&number, segment| {
            let held = keep == Some(number) || segment.position(segment.end()) > pos;
            if !held {
                segment.release();
            }
            held
        });
    }

    /// The segment that can take `total` more bytes, made if need be.
    fn segment_for(&mut self, total: u64) -> Result<Arc<Segment>, LogError> {
        if let Some(current) = &self.current {
            let fits = current.end() + total <= SEGMENT_BYTES;
            // Each sync of a growing file also commits the file system's journal: leave it once a spare is ready.
            let better = !current.prefilled && self.pool.is_ready();
            if fits && !better && current.failure().is_none() {
                return Ok(Arc::clone(current));
            }
        }
        self.current = None;
        let number = self.next_number;
        let segment = Arc::new(self.pool.make(&self.shared, number)?);
        self.next_number = number + 1;
        self.written_out = segment.position(0);
        self.shared.segments.write().insert(number, Arc::clone(&segment));
        self.current = Some(Arc::clone(&segment));
        Ok(segment)
    }

    /// A write failed at `offset`: nothing is written into this segment again.
    fn give_up(&mut self, segment: &Arc<Segment>, offset: u64) {
        self.current = None;
        segment.give_up(offset);
        if offset == 0 {
            self.shared.segments.write().remove(&segment.number);
            segment.release();
        }
    }

    fn start_write_out(&mut self, segment: &Arc<Segment>, end: LogPos) {
        let from = self.written_out.max(segment.synced_position());
        if end.0.saturating_sub(from.0) >= WRITE_OUT_BYTES {
            // A busy helper misses a hint; the next sync does the work.
            let job =
                Job::WriteOut { segment: Arc::clone(segment), offset: from.offset(), len: end.0 - from.0 };
            self.pool.offer(job);
            self.written_out = end;
        }
    }
}

/// Reads what was appended, from any thread.
#[derive(Clone)]
pub struct LogReader {
    shared: Arc<Shared>,
}

impl LogReader {
    /// The `len` bytes at `pos`, which lie in one record that is still held; no bytes are read anywhere.
    ///
    /// # Errors
    /// [`LogError::NotHeld`] when they do not; [`LogError::Io`] when the disk fails.
    pub fn read(&self, pos: LogPos, len: usize) -> Result<Vec<u8>, LogError> {
        if len == 0 {
            return Ok(Vec::new());
        }
        self.pin(pos, len)?.read(pos, len)
    }

    /// As [`LogReader::read`], into a buffer.
    ///
    /// # Errors
    /// As [`LogReader::read`].
    pub fn read_into(&self, pos: LogPos, buffer: &mut [u8]) -> Result<(), LogError> {
        if buffer.is_empty() {
            return Ok(());
        }
        self.pin(pos, buffer.len())?.read_into(pos, buffer)
    }

    /// Keeps the segment of those bytes readable until the pin is dropped, also when it is released meanwhile. Take
    /// it under the session's lock, read after that lock is gone.
    ///
    /// # Errors
    /// [`LogError::NotHeld`] when the log does not hold those bytes.
    pub fn pin(&self, pos: LogPos, len: usize) -> Result<LogPin, LogError> {
        let not_held = LogError::NotHeld { pos: pos.0, len };
        let Some(segment) = self.shared.segments.read().get(&pos.segment()).cloned() else {
            return Err(not_held);
        };
        if segment.holds(pos, len) { Ok(LogPin { segment }) } else { Err(not_held) }
    }
}

/// A segment that stays readable as long as this lives.
#[derive(Clone)]
pub struct LogPin {
    segment: Arc<Segment>,
}

impl LogPin {
    /// The `len` bytes at `pos`, in the pinned segment.
    ///
    /// # Errors
    /// As [`LogReader::read`].
    pub fn read(&self, pos: LogPos, len: usize) -> Result<Vec<u8>, LogError> {
        if !self.segment.holds(pos, len) {
            return Err(LogError::NotHeld { pos: pos.0, len });
        }
        let mut buffer = vec![0; len];
        self.read_into(pos, &mut buffer)?;
        Ok(buffer)
    }

    /// As [`LogPin::read`], into a buffer.
    ///
    /// # Errors
    /// As [`LogReader::read`].
    pub fn read_into(&self, pos: LogPos, buffer: &mut [u8]) -> Result<(), LogError> {
        if !self.segment.holds(pos, buffer.len()) {
            return Err(LogError::NotHeld { pos: pos.0, len: buffer.len() });
        }
        self.segment
            .read(pos.offset(), buffer)
            .map_err(|source| LogError::from_io("read from", &self.segment.path, source))
    }
}
