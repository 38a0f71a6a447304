//! What to kill when a story hangs.
//!
//! A call into a mount whose process never answers cannot be interrupted, not even by a signal. The
//! only way out is to end that process and detach its mount: then the kernel answers the caller.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use rustix::process::Pid;

use super::process;

/// The live mounts of a world: mount point and process.
#[derive(Clone, Default)]
pub struct Lifelines(Arc<Mutex<BTreeMap<PathBuf, Pid>>>);

/// Ends the story's mounts unless it is ended first.
pub struct Watchdog {
    stop: Sender<()>,
    cut: Arc<AtomicBool>,
    thread: JoinHandle<()>,
}

impl Lifelines {
    /// Notes which process serves a mount point.
    pub fn set(&self, dir: &Path, pid: Pid) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).insert(dir.to_owned(), pid);
    }

    /// The mount point is served no more.
    pub fn clear(&self, dir: &Path) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).remove(dir);
    }

    /// Kills and detaches all.
    pub fn cut(&self) {
        let all = std::mem::take(&mut *self.0.lock().unwrap_or_else(PoisonError::into_inner));
        for (dir, pid) in all {
            process::kill9(pid);
            process::detach(&dir);
        }
    }

    /// Starts the clock of one story.
    pub fn watch(&self, name: &str) -> Watchdog {
        let limit =
            std::env::var("TIDEFS_STORY_LIMIT").ok().and_then(|text| text.parse().ok()).unwrap_or(300_u64);
        let (stop, stopped) = channel();
        let cut = Arc::new(AtomicBool::new(false));
        let (lifelines, name, flag) = (self.clone(), name.to_owned(), Arc::clone(&cut));
        let thread = std::thread::spawn(move || {
            if stopped.recv_timeout(Duration::from_secs(limit)) == Err(RecvTimeoutError::Timeout) {
                eprintln!("story {name} still runs after {limit} s: killing its mounts");
                flag.store(true, Ordering::SeqCst);
                lifelines.cut();
            }
        });
        Watchdog { stop, cut, thread }
    }
}

impl Watchdog {
    /// Stops the clock; true when the story was cut.
    pub fn end(self) -> bool {
        drop(self.stop);
        drop(self.thread.join());
        self.cut.load(Ordering::SeqCst)
    }
}
