//! What the control socket asks of a running mount.

use super::Engine;
use crate::{
    control::api::{
        ControlError, ControlKind, Controlled, KernelStatus, Latency, Left, Level, LinkStatus, Status,
        Synced, Unsent,
    },
    volume::Waiting,
};
use std::{
    collections::VecDeque,
    sync::{Arc, OnceLock, atomic::Ordering},
    time::Duration,
};
use tidefs_timeline::Position;

/// How long a sync waits for a server that is away: longer than the longest pause between two attempts.
const RECONNECT_WAIT: Duration = Duration::from_secs(8);
/// How often it looks.
const RECONNECT_LOOK: Duration = Duration::from_millis(20);
/// Measurements kept for status.
const RECENT_MAX: usize = 1000;

/// The last measurements of one kind, in microseconds.
#[derive(Debug, Default)]
pub(crate) struct Series(VecDeque<u64>);

impl Series {
    pub(crate) fn add(&mut self, us: u64) {
        if self.0.len() == RECENT_MAX {
            self.0.pop_front();
        }
        self.0.push_back(us);
    }

    /// The quantile in milliseconds.
    fn quantile(&self, q: f64) -> Option<f64> {
        let mut sorted: Vec<u64> = self.0.iter().copied().collect();
        sorted.sort_unstable();
        let last = sorted.len().checked_sub(1)?;
        sorted.get((last as f64 * q).round() as usize).map(|us| *us as f64 / 1000.0)
    }
}

/// The last measurements of each kind.
#[derive(Debug, Default)]
pub(crate) struct Recent {
    pub(crate) visible: Series,
    pub(crate) apply: Series,
    pub(crate) ship: Series,
}

/// A mount that can be asked; what it agreed with the kernel is known once it is mounted.
pub struct Control {
    pub(crate) engine: Arc<Engine>,
    pub(crate) kernel: OnceLock<KernelStatus>,
    pub(crate) unmount: tokio::sync::mpsc::Sender<LeaveRequest>,
}

/// A wish to leave, with where the answer goes.
pub(crate) struct LeaveRequest {
    pub(crate) timeout: Duration,
    pub(crate) discard: bool,
    pub(crate) answer: tokio::sync::oneshot::Sender<Left>,
}

fn late(what: &str) -> ControlError {
    ControlError::new(
        ControlKind::Deadline,
        format!("{what} in time; the work is safe in the write-ahead log and goes on"),
    )
}

impl Controlled for Control {
    fn status(&self) -> Status {
        let engine = &self.engine;
        let (position, unsent) = {
            let core = engine.core.lock();
            (core.session.position(), engine.unsent(&core))
        };
        let latency = engine.seen.latency.lock();
        Status {
            mount: engine.fixed.mount.clone(),
            link: LinkStatus {
                connected: engine.seen.connected.load(Ordering::Relaxed),
                position: position.0,
                head: engine.seen.head.load(Ordering::Relaxed).max(position.0),
                last_error: engine.seen.last_error.lock().clone(),
            },
            unsent,
            requests: engine
                .seen
                .counts
                .lock()
                .iter()
                .map(|(name, count)| ((*name).to_owned(), *count))
                .collect(),
            kernel: self.kernel.get().cloned().unwrap_or_default(),
            latency: Latency {
                write_to_visible_p50_ms: latency.visible.quantile(0.5),
                write_to_visible_p99_ms: latency.visible.quantile(0.99),
                apply_p50_ms: latency.apply.quantile(0.5),
                apply_p99_ms: latency.apply.quantile(0.99),
                ship_p50_ms: latency.ship.quantile(0.5),
                ship_p99_ms: latency.ship.quantile(0.99),
            },
            warnings: Vec::new(),
        }
    }

    fn sync(&self, level: Level, timeout: Duration) -> Waiting<Result<Synced, ControlError>> {
        let engine = self.engine.clone();
        Box::pin(async move { engine.sync_to(level, timeout).await })
    }

    fn wait(&self, position: Position, timeout: Duration) -> Waiting<Result<(), ControlError>> {
        let engine = self.engine.clone();
        Box::pin(async move {
            let reached = engine.wait_for(timeout, |progress| progress.visible >= position).await;
            reached.map(|_| ()).ok_or_else(|| late(&format!("position {position} was not reached")))
        })
    }

    fn leave(&self, timeout: Duration, discard: bool) -> Waiting<Left> {
        let unmount = self.unmount.clone();
        Box::pin(async move {
            let (answer, answered) = tokio::sync::oneshot::channel();
            if unmount.send(LeaveRequest { timeout, discard, answer }).await.is_err() {
                return Left::default();
            }
            answered.await.unwrap_or_default()
        })
    }
}

impl Engine {
    pub(crate) fn unsent(&self, core: &super::Core) -> Unsent {
        let open = u64::from(core.session.open_changes() > 0);
        let acknowledged = self.progress.borrow().acknowledged;
        let sealed =
            core.session.layers().iter().filter(|layer| layer.checkpoint.number > acknowledged).count()
                as u64;
        let oldest = core
            .session
            .oldest_change()
            .map(|tick| super::now().tick.saturating_sub(tick).as_millis() as u64);
        Unsent {
            unsent_bytes: if open + sealed > 0 {
                self.seen.unsent_bytes.load(Ordering::Relaxed) + core.session.open_bytes()
            } else {
                0
            },
            unsent_checkpoints: open + sealed,
            oldest_unsent_ms: oldest,
        }
    }

    /// Waits for a server that may just be starting again.
    async fn reconnected(&self, wait: Duration) -> bool {
        let begun = tokio::time::Instant::now();
        while !self.seen.connected.load(Ordering::Relaxed) {
            if begun.elapsed() >= wait {
                return false;
            }
            tokio::time::sleep(RECONNECT_LOOK).await;
        }
        true
    }

    /// Ships all that is here, if the server answers in time.
    pub(crate) async fn ship(&self, timeout: Duration) {
        if self.ship_all(timeout).await.is_none() {
            tracing::warn!("not everything was shipped in time; it stays in the log");
        }
    }

    /// What the server does not have.
    pub(crate) fn left(&self) -> Left {
        let unsent = self.unsent(&self.core.lock());
        Left { unsent_checkpoints: unsent.unsent_checkpoints, unsent_bytes: unsent.unsent_bytes }
    }

    async fn sync_to(self: Arc<Self>, level: Level, timeout: Duration) -> Result<Synced, ControlError> {
        let begun = tokio::time::Instant::now();
        let end = self.core.lock().log.end();
        self.sync_local(end).await.map_err(|errno| {
            ControlError::new(
                ControlKind::Failed,
                format!("the write-ahead log could not be synced (errno {errno}); see mount.log"),
            )
        })?;
        let here = self.core.lock().session.position();
        if level == Level::Local {
            return Ok(Synced { position: here.0, counted: 0, not_counted: 0 });
        }
        if !self.reconnected(timeout.min(RECONNECT_WAIT)).await {
            let unsent = self.unsent(&self.core.lock());
            if unsent.unsent_checkpoints > 0 {
                let text =
                    "the server is away; the work is safe in the write-ahead log and ships when it is back";
                return Err(ControlError::new(ControlKind::Unreachable, text));
            }
        }
        let shipped = self.ship_all(timeout).await.ok_or_else(|| late("the server did not answer"))?;
        let position = shipped.own_position.max(here);
        if level == Level::Server {
            return Ok(Synced { position: position.0, counted: 0, not_counted: 0 });
        }
        let left = timeout.saturating_sub(begun.elapsed());
        let session = self.core.lock().session.identity().session;
        let visible = self.link.wait_visible(self.fixed.drive_id, position, session, left).await;
        let visible =
            visible.map_err(|error| ControlError::new(ControlKind::Unreachable, error.to_string()))?;
        if !visible.visible {
            return Err(late("not every mount has applied it"));
        }
        Ok(Synced { position: position.0, counted: visible.counted, not_counted: visible.not_counted })
    }
}
