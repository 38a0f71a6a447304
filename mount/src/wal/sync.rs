//! Group commit: one `fdatasync` shared by all who wait.
//!
//! Whoever finds no sync under way leads: it syncs everything appended so far and wakes the others. Whoever comes
//! while one is under way waits for it and, if that one began before its bytes were written, one of these leads the
//! next. So under load the number of syncs depends on the disk, not on the number of callers.
//!
//! A failed sync marks its segment for good. Bytes in it, and after it in the log, count as not durable until the
//! segment is released: replay would end there, so an fsync that only covered what follows would lie.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::{Condvar, Mutex};

use super::segment::Segment;
use super::{LogError, LogPos, Shared};

#[derive(Default)]
pub(super) struct Group {
    state: Mutex<State>,
    done: Condvar,
    /// `fdatasync` calls so far.
    calls: AtomicU64,
}

#[derive(Default)]
struct State {
    /// Whether a leader is syncing.
    running: bool,
    /// Everything below is durable.
    durable: LogPos,
    waiting: usize,
}

/// Makes appended records durable, from any thread.
#[derive(Clone)]
pub struct LogSync {
    shared: Arc<Shared>,
}

impl LogSync {
    pub(super) fn new(shared: Arc<Shared>) -> LogSync {
        LogSync { shared }
    }

    /// Returns when every record that ends at or below `pos` survives a loss of power. Waits for the disk, as fsync
    /// on any local file system does. Cheap when that is so already.
    ///
    /// # Errors
    /// [`LogError::Sync`] when a segment that `pos` needs could not be synced, now or before: see there.
    pub fn sync_to(&self, pos: LogPos) -> Result<(), LogError> {
        let group = &self.shared.group;
        let pos = pos.min(self.shared.end());
        let mut state = group.state.lock();
        loop {
            if state.durable >= pos {
                return Ok(());
            }
            if let Some(error) = self.failure_below(pos) {
                return Err(error);
            }
            if state.running {
                state.waiting += 1;
                group.done.wait(&mut state);
                state.waiting -= 1;
                continue;
            }
            state.running = true;
            drop(state);
            let durable = self.lead();
            state = group.state.lock();
            state.running = false;
            state.durable = state.durable.max(durable);
            group.done.notify_all();
        }
    }

    /// Everything below is known to be durable.
    pub fn durable(&self) -> LogPos {
        self.shared.group.state.lock().durable
    }

    /// How many `fdatasync` calls were made: a measure of how well callers share.
    pub fn calls(&self) -> u64 {
        self.shared.group.calls.load(Ordering::Relaxed)
    }

    /// Callers that wait for a sync of another.
    pub fn waiting(&self) -> usize {
        self.shared.group.state.lock().waiting
    }

    /// Syncs all that is appended now, oldest segment first; gives the position up to which all is durable. A
    /// failure is left at its segment.
    fn lead(&self) -> LogPos {
        let target = self.shared.end();
        let dirty: Vec<Arc<Segment>> = {
            let segments = self.shared.segments.read();
            segments.values().filter(|s| s.position(0) < target && needs_sync(s)).cloned().collect()
        };
        let mut ends = Vec::with_capacity(dirty.len());
        let mut durable = target;
        for segment in &dirty {
            let end = segment.end();
            let result = match segment.failure() {
                Some(error) => Err(error),
                None => {
                    self.shared.group.calls.fetch_add(1, Ordering::Relaxed);
                    segment.sync_data()
                }
            };
            if let Err(error) = result {
                segment.set_failed(&error);
                durable = segment.position(0);
                break;
            }
            ends.push(end);
        }
        let synced = &dirty[..ends.len()];
        if synced.iter().any(|s| !s.is_named())
            && let Err(error) = self.shared.dir_file.sync_all()
        {
            let unnamed = synced.iter().filter(|s| !s.is_named());
            unnamed.for_each(|s| s.set_failed(&error));
            let first = synced.iter().find(|s| !s.is_named());
            return first.map_or(durable, |s| s.position(0));
        }
        for (segment, end) in synced.iter().zip(ends) {
            segment.set_named();
            segment.set_synced(end);
        }
        durable
    }

    fn failure_below(&self, pos: LogPos) -> Option<LogError> {
        let segments = self.shared.segments.read();
        segments.values().take_while(|s| s.position(0) < pos).find_map(|segment| {
            let source = segment.failure()?;
            (segment.synced_position() < pos).then(|| LogError::Sync { path: segment.path.clone(), source })
        })
    }
}

fn needs_sync(segment: &Segment) -> bool {
    let end = segment.end();
    end > 0 && (!segment.is_named() || segment.synced_position() < segment.position(end))
}
