//! One segment file.

use std::fs::File;
use std::io::{self, IoSlice};
use std::num::NonZeroU64;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::SyncSender;

use super::pool::Job;
use super::{LogPos, SEGMENT_BYTES};

/// A segment that is part of the log. When the last user of a released one is gone, its file is recycled.
pub(super) struct Segment {
    pub(super) number: u64,
    pub(super) path: PathBuf,
    /// Whether all its blocks were written before, so that a sync has no journal to commit.
    pub(super) prefilled: bool,
    file: File,
    /// Bytes of accepted records.
    end: AtomicU64,
    /// Of these, durable bytes.
    synced: AtomicU64,
    /// Whether the directory that names it was synced since.
    named: AtomicBool,
    /// The errno of the sync that failed, set once.
    failed: OnceLock<i32>,
    released: AtomicBool,
    /// Whether a write failed in it: never used again.
    unsound: AtomicBool,
    jobs: SyncSender<Job>,
    #[cfg(test)]
    faults: std::sync::Arc<Faults>,
}

/// What a new [`Segment`] is made of.
pub(super) struct Parts {
    pub(super) number: u64,
    pub(super) path: PathBuf,
    pub(super) prefilled: bool,
    pub(super) file: File,
    /// Bytes of accepted records that it has already.
    pub(super) end: u64,
    pub(super) jobs: SyncSender<Job>,
    #[cfg(test)]
    pub(super) faults: std::sync::Arc<Faults>,
}

impl Segment {
    pub(super) fn new(parts: Parts) -> Segment {
        Segment {
            number: parts.number,
            path: parts.path,
            prefilled: parts.prefilled,
            file: parts.file,
            end: AtomicU64::new(parts.end),
            synced: AtomicU64::new(0),
            named: AtomicBool::new(false),
            failed: OnceLock::new(),
            released: AtomicBool::new(false),
            unsound: AtomicBool::new(false),
            jobs: parts.jobs,
            #[cfg(test)]
            faults: parts.faults,
        }
    }

    pub(super) fn position(&self, offset: u64) -> LogPos {
        LogPos(self.number * SEGMENT_BYTES + offset)
    }

    pub(super) fn end(&self) -> u64 {
        self.end.load(Ordering::Acquire)
    }

    pub(super) fn set_end(&self, end: u64) {
        self.end.store(end, Ordering::Release);
    }

    pub(super) fn synced_position(&self) -> LogPos {
        self.position(self.synced.load(Ordering::Acquire))
    }

    pub(super) fn set_synced(&self, synced: u64) {
        self.synced.fetch_max(synced, Ordering::AcqRel);
    }

    pub(super) fn is_named(&self) -> bool {
        self.named.load(Ordering::Acquire)
    }

    pub(super) fn set_named(&self) {
        self.named.store(true, Ordering::Release);
    }

    /// The error of the sync that failed here, if one did.
    pub(super) fn failure(&self) -> Option<io::Error> {
        self.failed.get().map(|&errno| io::Error::from_raw_os_error(errno))
    }

    pub(super) fn set_failed(&self, error: &io::Error) {
        // EIO where the system gave no number; the first failure stands.
        let _ = self.failed.set(error.raw_os_error().unwrap_or(libc::EIO));
    }

    pub(super) fn holds(&self, pos: LogPos, len: usize) -> bool {
        pos.segment() == self.number
            && pos.offset().checked_add(len as u64).is_some_and(|end| end <= self.end())
    }

    pub(super) fn read(&self, offset: u64, buffer: &mut [u8]) -> io::Result<()> {
        self.file.read_exact_at(buffer, offset)
    }

    /// Writes the three parts one after the other, with one system call unless the kernel takes less.
    pub(super) fn write(&self, offset: u64, header: &[u8], head: &[u8], data: &[u8]) -> io::Result<()> {
        #[cfg(test)]
        self.faults.before_write(|n| self.file.write_all_at(&header[..n], offset))?;
        let parts = [IoSlice::new(header), IoSlice::new(head), IoSlice::new(data)];
        let mut done = loop {
            match rustix::io::pwritev(&self.file, &parts, offset) {
                Err(rustix::io::Errno::INTR) => continue,
                other => break other?,
            }
        };
        let mut at = offset;
        for part in [header, head, data] {
            let skip = done.min(part.len());
            self.file.write_all_at(&part[skip..], at + skip as u64)?;
            done -= skip;
            at += part.len() as u64;
        }
        Ok(())
    }

    pub(super) fn sync_data(&self) -> io::Result<()> {
        #[cfg(test)]
        self.faults.before_sync()?;
        self.file.sync_data()
    }

    /// Starts write-out of a range and does not wait for it. `sync_file_range` would say it plainly but has no safe
    /// wrapper; on Linux this advice starts the same write-out, and drops only pages that are clean already.
    pub(super) fn start_write_out(&self, offset: u64, len: u64) {
        // Only a hint: the sync that follows reports what goes wrong.
        let _ = rustix::fs::fadvise(&self.file, offset, NonZeroU64::new(len), rustix::fs::Advice::DontNeed);
    }

    /// A write failed at `offset`: the file is removed in the end, not recycled. What the write left is taken back
    /// if the disk lets us: it matters only when the whole record landed and nothing is appended before a restart.
    pub(super) fn give_up(&self, offset: u64) {
        self.unsound.store(true, Ordering::Release);
        let _ =
            if self.prefilled { self.file.write_all_at(&[0; 4], offset) } else { self.file.set_len(offset) };
    }

    /// From now on the file goes when the last user is gone.
    pub(super) fn release(&self) {
        self.released.store(true, Ordering::Release);
    }
}

impl Drop for Segment {
    fn drop(&mut self) {
        if !self.released.load(Ordering::Acquire) {
            return;
        }
        let path = std::mem::take(&mut self.path);
        let sound = self.failed.get().is_none() && !self.unsound.load(Ordering::Acquire);
        if sound && self.jobs.try_send(Job::Recycle { number: self.number, path: path.clone() }).is_ok() {
            return;
        }
        if let Err(error) = std::fs::remove_file(&path) {
            tracing::warn!(path = %path.display(), %error, "could not remove a finished log segment");
        }
    }
}

/// Failures on purpose, for tests.
#[cfg(test)]
#[derive(Default)]
pub(super) struct Faults {
    /// Errno of the next write and how many bytes of the header still reach the file.
    pub(super) write: parking_lot::Mutex<Option<(i32, usize)>>,
    /// Errno of the next sync.
    pub(super) sync: parking_lot::Mutex<Option<i32>>,
    /// Run before each sync.
    pub(super) sync_hook: parking_lot::Mutex<Option<Box<dyn Fn() + Send>>>,
}

#[cfg(test)]
impl Faults {
    fn before_write(&self, partial: impl FnOnce(usize) -> io::Result<()>) -> io::Result<()> {
        match self.write.lock().take() {
            Some((errno, bytes)) => {
                partial(bytes)?;
                Err(io::Error::from_raw_os_error(errno))
            }
            None => Ok(()),
        }
    }

    fn before_sync(&self) -> io::Result<()> {
        if let Some(hook) = self.sync_hook.lock().as_ref() {
            hook();
        }
        self.sync.lock().take().map_or(Ok(()), |errno| Err(io::Error::from_raw_os_error(errno)))
    }
}
