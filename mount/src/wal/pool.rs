//! Segment files kept ready by a helper thread.
//!
//! A sync of a growing or merely allocated file also commits the file system's journal; of a file whose blocks were
//! written before it writes only the data. So one file filled with zeros is kept ready, and released segments are
//! used again as they are: their old records name another segment and never parse. Appending never waits for this: if
//! none is ready, a plain file does.

use std::collections::VecDeque;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread::JoinHandle;

use parking_lot::Mutex;

use super::segment::{Parts, Segment};
use super::{LogError, SEGMENT_BYTES, Shared};

/// Files kept ready at most: 64 MiB of disk.
const SPARES_MAX: usize = 4;
/// Jobs waiting for the helper at most; what does not fit is left out or done without it.
const JOBS_MAX: usize = 64;
const FILL_CHUNK: usize = 1 << 20;

/// What the helper does.
pub(super) enum Job {
    /// Have one file ready.
    Prepare,
    /// Take the file of a released segment into the pool, or remove it.
    Recycle { number: u64, path: PathBuf },
    /// Start write-out of a range of a segment.
    WriteOut { segment: Arc<Segment>, offset: u64, len: u64 },
    /// End.
    Stop,
}

pub(super) struct Pool {
    ready: Arc<Mutex<VecDeque<PathBuf>>>,
    jobs: SyncSender<Job>,
    stop: Arc<AtomicBool>,
    helper: Option<JoinHandle<()>>,
}

impl Pool {
    /// Starts the helper for `dir`, which holds the given files ready already.
    pub(super) fn start(dir: &Path, mut found: Vec<PathBuf>) -> Result<Pool, LogError> {
        for surplus in found.drain(SPARES_MAX.min(found.len())..) {
            remove(&surplus);
        }
        let ready = Arc::new(Mutex::new(VecDeque::from(found)));
        let stop = Arc::new(AtomicBool::new(false));
        let (jobs, queue) = sync_channel(JOBS_MAX);
        let helper =
            Helper { dir: dir.to_path_buf(), ready: Arc::clone(&ready), stop: Arc::clone(&stop), made: 0 };
        let handle = std::thread::Builder::new()
            .name("wal-segments".into())
            .spawn(move || helper.run(&queue))
            .map_err(|source| LogError::from_io("start the helper thread for", dir, source))?;
        let pool = Pool { ready, jobs, stop, helper: Some(handle) };
        pool.offer(Job::Prepare);
        Ok(pool)
    }

    pub(super) fn jobs(&self) -> SyncSender<Job> {
        self.jobs.clone()
    }

    /// Gives the helper a job unless it is too busy.
    pub(super) fn offer(&self, job: Job) {
        // Every job is an improvement, none a duty.
        let _ = self.jobs.try_send(job);
    }

    pub(super) fn is_ready(&self) -> bool {
        !self.ready.lock().is_empty()
    }

    /// The file of segment `number`: a ready one renamed, else a plain new one.
    pub(super) fn make(&self, shared: &Shared, number: u64) -> Result<Segment, LogError> {
        let path = segment_path(&shared.dir, number);
        let spare = self.ready.lock().pop_front();
        self.offer(Job::Prepare);
        let reused = spare.and_then(|spare| match reuse(&spare, &path) {
            Ok(file) => Some(file),
            Err(error) => {
                tracing::warn!(path = %spare.display(), %error, "could not use a spare log segment");
                None
            }
        });
        let prefilled = reused.is_some();
        let file = match reused {
            Some(file) => file,
            None => OpenOptions::new()
                .read(true)
                .write(true)
                .create(true)
                .truncate(true)
                .open(&path)
                .map_err(|source| LogError::from_io("make", &path, source))?,
        };
        Ok(Segment::new(Parts {
            number,
            path,
            prefilled,
            file,
            end: 0,
            jobs: self.jobs(),
            #[cfg(test)]
            faults: Arc::clone(&shared.faults),
        }))
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Release);
        self.offer(Job::Stop);
        if let Some(helper) = self.helper.take()
            && helper.join().is_err()
        {
            tracing::warn!("the log's helper thread had ended early");
        }
    }
}

struct Helper {
    dir: PathBuf,
    ready: Arc<Mutex<VecDeque<PathBuf>>>,
    stop: Arc<AtomicBool>,
    made: u64,
}

impl Helper {
    fn run(mut self, queue: &Receiver<Job>) {
        while let Ok(job) = queue.recv() {
            if self.stopped() {
                return;
            }
            let (path, result) = match job {
                Job::Prepare => (self.dir.clone(), self.prepare()),
                Job::Recycle { number, path } => {
                    let result = self.recycle(number, &path);
                    (path, result)
                }
                Job::WriteOut { segment, offset, len } => {
                    segment.start_write_out(offset, len);
                    continue;
                }
                Job::Stop => return,
            };
            if let Err(error) = result {
                tracing::warn!(path = %path.display(), %error, "could not keep a spare log segment");
            }
        }
    }

    fn stopped(&self) -> bool {
        self.stop.load(Ordering::Acquire)
    }

    fn prepare(&mut self) -> io::Result<()> {
        if !self.ready.lock().is_empty() {
            return Ok(());
        }
        let (temp, path) = loop {
            self.made += 1;
            let path = self.dir.join(format!("fresh-{}.spare", self.made));
            if !path.exists() {
                break (self.dir.join("fresh.tmp"), path);
            }
        };
        let file = File::create(&temp)?;
        if let Err(error) = self.fill(&file, 0) {
            remove(&temp);
            return Err(error);
        }
        if self.stopped() {
            remove(&temp);
            return Ok(());
        }
        std::fs::rename(&temp, &path)?;
        self.ready.lock().push_back(path);
        Ok(())
    }

    fn recycle(&mut self, number: u64, path: &Path) -> io::Result<()> {
        if self.ready.lock().len() >= SPARES_MAX {
            return std::fs::remove_file(path);
        }
        let file = OpenOptions::new().write(true).open(path)?;
        let len = file.metadata()?.len();
        if let Err(error) = self.fill(&file, len) {
            remove(path);
            return Err(error);
        }
        if self.stopped() {
            // The next start finds it below its own start and recycles it then.
            return Ok(());
        }
        // Appends write parts of pages: have them in memory before, so that they do not wait for a read.
        let _ = rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::WillNeed);
        let spare = self.dir.join(spare_name(number));
        std::fs::rename(path, &spare)?;
        self.ready.lock().push_back(spare);
        Ok(())
    }

    /// Writes zeros from `from` to the full length and syncs them. Leaves early when the log is closed.
    fn fill(&self, file: &File, from: u64) -> io::Result<()> {
        let zeros = vec![0; FILL_CHUNK];
        let mut at = from;
        while at < SEGMENT_BYTES && !self.stopped() {
            let len = (SEGMENT_BYTES - at).min(FILL_CHUNK as u64) as usize;
            file.write_all_at(&zeros[..len], at)?;
            at += len as u64;
        }
        if from < SEGMENT_BYTES && !self.stopped() { file.sync_all() } else { Ok(()) }
    }
}

fn reuse(spare: &Path, path: &Path) -> io::Result<File> {
    let file = OpenOptions::new().read(true).write(true).open(spare)?;
    std::fs::rename(spare, path)?;
    Ok(file)
}

pub(super) fn segment_path(dir: &Path, number: u64) -> PathBuf {
    dir.join(format!("{number:016x}.seg"))
}

/// Names the segment that the file was, so that its number is never used again.
pub(super) fn spare_name(number: u64) -> String {
    format!("{number:016x}.spare")
}

/// Removes a file that nobody needs; a failure costs only its space.
pub(super) fn remove(path: &Path) {
    if let Err(error) = std::fs::remove_file(path) {
        tracing::warn!(path = %path.display(), %error, "could not remove a log file that is not needed");
    }
}
