//! The running mount around the session: it holds the one lock, appends to the log, and does what the session
//! decides. Nothing here decides anything about the tree.
//!
//! A change: plan (session), append (log), commit (session), all under the lock; a failed append has changed
//! nothing. What takes longer than an append runs outside the lock: reading blocks (`reading`), fetching
//! (`fetching`), sealing (`sealing`), shipping and following (`shipping`, `following`).

mod control;
mod door;
mod fetching;
mod following;
mod orphans;
mod reading;
mod sealing;
mod shipping;
pub(crate) mod start;

use crate::{
    cache::BlockCache,
    link::Link,
    session::{
        Moment, Planned, SealJob, Session,
        op::Op,
        record::{
            KIND_CHANGE, KIND_CONTEXT, KIND_CUT, KIND_UNDONE, change_to, context_to, cut_to, undone_to,
        },
    },
    volume::{Answer, Load, Stop, Tell, Teller},
    wal::{Log, LogError, LogReader, LogSync, outbox::Outbox},
};
pub(crate) use control::LeaveRequest;
pub use door::EngineVolume;
use orphans::OrphanFile;
use parking_lot::Mutex;
use prost::Message;
use std::{
    collections::BTreeMap,
    path::PathBuf,
    sync::{
        Arc, OnceLock,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::{Duration, SystemTime, UNIX_EPOCH},
};
use tidefs_timeline::{CheckpointNo, Position, Timestamp};
use tokio::sync::{Notify, mpsc, watch};

/// What is behind the lock.
pub(crate) struct Core {
    pub(crate) session: Session,
    pub(crate) log: Log,
    /// Where the log begins that no outbox file holds.
    pub(crate) log_start: u64,
}

/// How far work has come; waiters watch it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Progress {
    /// Cuts so far, those that came to nothing too.
    pub cuts: u64,
    /// Last checkpoint in the outbox.
    pub sealed: CheckpointNo,
    /// Last checkpoint with an answer.
    pub acknowledged: CheckpointNo,
    /// Position of the last own checkpoint placed.
    pub own_position: Position,
    /// Position applied, and the kernel told.
    pub visible: Position,
}

/// What does not change while mounted.
pub(crate) struct Fixed {
    pub(crate) drive_id: [u8; 16],
    pub(crate) incarnation: u64,
    pub(crate) wal_bytes_max: u64,
    pub(crate) fsync_server: bool,
    pub(crate) read_only: bool,
    pub(crate) cache_dir: PathBuf,
    pub(crate) state_dir: PathBuf,
    pub(crate) mount: crate::control::api::MountIdentity,
}

/// What status tells of the link and of the past.
#[derive(Default)]
pub(crate) struct Seen {
    pub(crate) connected: AtomicBool,
    pub(crate) head: AtomicU64,
    pub(crate) unsent_bytes: AtomicU64,
    pub(crate) counts: Mutex<BTreeMap<&'static str, u64>>,
    pub(crate) last_error: Mutex<Option<String>>,
    pub(crate) latency: Mutex<control::Recent>,
}

/// The mount's local files.
pub(crate) struct Local {
    pub(crate) reader: LogReader,
    pub(crate) sync: LogSync,
    pub(crate) outbox: Outbox,
    pub(crate) cache: BlockCache,
    pub(crate) orphans: OrphanFile,
    /// Held by whoever takes answered checkpoints out of the outbox.
    pub(crate) retiring: Mutex<()>,
}

/// A running mount.
pub struct Engine {
    pub(crate) core: Mutex<Core>,
    pub(crate) local: Local,
    pub(crate) link: Link,
    pub(crate) fixed: Fixed,
    pub(crate) seen: Seen,
    pub(crate) progress: watch::Sender<Progress>,
    /// A cut may be due sooner than the cutter thinks.
    pub(crate) kick: Notify,
    /// When the cutter will look again, microseconds since boot.
    pub(crate) armed: AtomicU64,
    pub(crate) jobs: mpsc::Sender<SealJob>,
    pub(crate) teller: OnceLock<Arc<dyn Teller>>,
}

/// Now, on both clocks.
pub fn now() -> Moment {
    let wall = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let boot = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
    Moment {
        wall: Timestamp { seconds: wall.as_secs() as i64, nanos: wall.subsec_nanos() },
        tick: Duration::new(boot.tv_sec as u64, boot.tv_nsec as u32),
    }
}

/// What the log's errors are to a program.
pub(crate) fn log_errno(error: &LogError) -> i32 {
    match error {
        LogError::NoSpace { .. } => libc::ENOSPC,
        _ => libc::EIO,
    }
}

impl Engine {
    /// Plans, logs and commits. `grows` says whether it needs room that a full log does not have.
    pub(crate) fn change<T>(
        &self,
        grows: bool,
        data: &[u8],
        plan: impl FnOnce(&Session, Moment) -> Answer<(Vec<Planned>, T)>,
    ) -> Answer<T> {
        if self.fixed.read_only {
            return Err(Stop::Errno(libc::EROFS));
        }
        let mut core = self.core.lock();
        if grows {
            self.room(&core)?;
        }
        let (plans, answer) = plan(&core.session, now())?;
        for planned in plans {
            self.log_one(&mut core, planned, data)?;
        }
        self.wake_cutter(core.session.due());
        Ok(answer)
    }

    /// Wakes the cutter if a cut is due sooner than it thinks.
    pub(crate) fn wake_cutter(&self, due: Option<crate::session::settle::Tick>) {
        if due.is_some_and(|due| (due.as_micros() as u64) < self.armed.load(Ordering::Acquire)) {
            self.kick.notify_one();
        }
    }

    /// Whether the log may grow: unsent bytes are bounded. While uploads go on a writer waits.
    fn room(&self, core: &Core) -> Answer<()> {
        let unsent = self.seen.unsent_bytes.load(Ordering::Relaxed) + (core.log.end().0 - core.log_start);
        if unsent < self.fixed.wal_bytes_max {
            return Ok(());
        }
        let connected = self.seen.connected.load(Ordering::Relaxed);
        Err(if connected { Stop::Load(Load::Room) } else { Stop::Errno(libc::ENOSPC) })
    }

    fn log_one(&self, core: &mut Core, planned: Planned, data: &[u8]) -> Answer<()> {
        let data = if matches!(planned.op, Op::Write { .. }) { data } else { &[] };
        if planned.orphan {
            let local = self.local.orphans.append(data).map_err(|error| {
                tracing::warn!(%error, "cannot keep bytes of a file that has no name any more");
                Stop::Errno(libc::EIO)
            })?;
            core.session.commit(planned, 0, local);
            return Ok(());
        }
        let failed = |error: LogError| {
            tracing::warn!(%error, "a change could not be logged and did not happen");
            Stop::Errno(log_errno(&error))
        };
        let mut parts = context_to(&planned.context);
        let last = parts.pop().unwrap_or_default();
        let mut start = None;
        for part in parts {
            let appended = core.log.append(KIND_CONTEXT, &part.encode_to_vec(), &[]).map_err(failed)?;
            start.get_or_insert(appended.start.0);
        }
        let head = change_to(&planned.op, planned.now, last).encode_to_vec();
        let appended = core.log.append(KIND_CHANGE, &head, data).map_err(failed)?;
        core.session.commit(planned, start.unwrap_or(appended.start.0), appended.data.0);
        Ok(())
    }

    /// Notes a cut in the log, before anything else comes: where it ends, or that it has come to nothing. Without
    /// the note a restart takes what was cut and what follows for one batch.
    pub(crate) fn log_cut(&self, core: &mut Core, job: &SealJob) {
        let (kind, record) = match &job.checkpoint {
            Some(cut) => (KIND_CUT, cut_to(cut.number, job.log_start, &job.context)),
            // An older cut that is not sealed yet still needs what lies before.
            None if core.session.layers().unsealed() > 0 => return,
            None => (KIND_UNDONE, undone_to(job.log_start, &job.context)),
        };
        let Some(record) = record else { return };
        if let Err(error) = core.log.append(kind, &record.encode_to_vec(), &[]) {
            tracing::warn!(%error, "a cut could not be noted in the log");
        }
    }

    /// From now on the kernel is told by `teller`.
    pub(crate) fn set_teller(&self, teller: Arc<dyn Teller>) -> bool {
        self.teller.set(teller).is_ok()
    }

    /// Remembers what went wrong, for status.
    pub(crate) fn troubled(&self, what: impl std::fmt::Display) {
        *self.seen.last_error.lock() = Some(what.to_string());
    }

    /// Tells the kernel, if it is there already.
    pub(crate) async fn tell(&self, tells: Vec<Tell>) {
        if let Some(teller) = self.teller.get().filter(|_| !tells.is_empty()) {
            teller.tell(tells).await;
        }
    }

    /// Waits until progress satisfies `done`, at most `timeout`. Returns the progress, or none at the deadline.
    pub(crate) async fn wait_for(
        &self,
        timeout: Duration,
        mut done: impl FnMut(&Progress) -> bool,
    ) -> Option<Progress> {
        let mut watch = self.progress.subscribe();
        let waited = tokio::time::timeout(timeout, watch.wait_for(|progress| done(progress))).await;
        waited.ok().and_then(Result::ok).map(|progress| *progress)
    }

    /// Asks for a cut of all that is open and waits until it is made; returns the last checkpoint's number.
    pub(crate) async fn cut_all(&self, timeout: Duration) -> Option<CheckpointNo> {
        let want = {
            let mut core = self.core.lock();
            if core.session.open_changes() == 0 {
                return Some(core.session.layers().last_number());
            }
            core.session.ask_cut();
            self.progress.borrow().cuts + 1
        };
        self.kick.notify_one();
        self.wait_for(timeout, |progress| progress.cuts >= want).await?;
        Some(self.core.lock().session.layers().last_number())
    }

    /// The same, and waits until the server has answered for it.
    pub(crate) async fn ship_all(&self, timeout: Duration) -> Option<Progress> {
        let begun = tokio::time::Instant::now();
        let number = self.cut_all(timeout).await?;
        self.wait_for(timeout.saturating_sub(begun.elapsed()), |progress| progress.acknowledged >= number)
            .await
    }
}
