//! What the server has placed, taken in one after the other, the kernel told, and reported back.

use super::{Engine, now};
use crate::{
    link::{FETCH_WAIT, FollowEvent, LinkError, Report},
    session::arrive::{Arrived, Wait},
    volume::Load,
};
use std::{
    sync::{Arc, atomic::Ordering},
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};
use tidefs_proto::PlacedLine;
use tidefs_timeline::Position;
use tokio::{
    sync::{mpsc, watch},
    task::JoinHandle,
};

/// Pause before an arrival that has to wait is tried again, where no event tells.
const RETRY: Duration = Duration::from_millis(20);
/// Pause between two attempts to reach a server that is away.
const AWAY_PAUSE: Duration = Duration::from_millis(200);
/// Bytes of changed files that are fetched before one arrival is shown.
const WANTED_BYTES_MAX: u64 = 4 << 20;
/// Notifications under way.
const TELLS_MAX: usize = 256;

/// An arrival whose notifications are under way.
struct Telling {
    position: Position,
    told: JoinHandle<()>,
    arrived: Instant,
    last_change_unix_us: u64,
    own: bool,
}

impl Engine {
    /// Takes in arrivals for as long as the mount lives. An error means that it cannot go on.
    pub(crate) async fn follow(
        self: Arc<Self>,
        mut events: mpsc::Receiver<FollowEvent>,
        reports: watch::Sender<Report>,
    ) -> Result<(), String> {
        let (tell, telling) = mpsc::channel(TELLS_MAX);
        tokio::spawn(self.clone().report(telling, reports));
        while let Some(event) = events.recv().await {
            match event {
                FollowEvent::Connected => self.seen.connected.store(true, Ordering::Relaxed),
                FollowEvent::Heartbeat { head } => {
                    self.seen.connected.store(true, Ordering::Relaxed);
                    self.seen.head.fetch_max(head.0, Ordering::Relaxed);
                }
                FollowEvent::Placed(line) => {
                    self.seen.connected.store(true, Ordering::Relaxed);
                    self.seen.head.fetch_max(line.position.0, Ordering::Relaxed);
                    let telling = self.take_in(&line).await?;
                    if tell.send(telling).await.is_err() {
                        return Err("the reporter has ended".into());
                    }
                }
                FollowEvent::Resync { after } => {
                    return Err(format!(
                        "the server no longer has the timeline from here on (it goes on behind position {after}); mount again"
                    ));
                }
                FollowEvent::Lost(error) => {
                    self.seen.connected.store(false, Ordering::Relaxed);
                    self.troubled(&error);
                    tracing::info!(%error, "the server is away; work goes on into the log");
                }
            }
        }
        Ok(())
    }

    async fn take_in(self: &Arc<Self>, line: &PlacedLine) -> Result<Telling, String> {
        let arrived = Instant::now();
        self.fetch_wanted(line).await;
        loop {
            let taken = {
                let mut core = self.core.lock();
                let end = core.log.end().0;
                let taken = core.session.arrive(line, now(), end);
                if let Ok(Arrived { job: Some(job), .. }) = &taken {
                    self.log_cut(&mut core, job);
                }
                taken
            };
            match taken {
                Ok(taken) => {
                    if let Some(job) = taken.job {
                        self.give(job).await;
                    }
                    let (tells, load) = (taken.told.tells, taken.load);
                    // Waiters for a directory from the future look again.
                    self.progress.send_modify(|progress| {
                        if taken.own {
                            progress.own_position = progress.own_position.max(line.position);
                        }
                    });
                    let engine = self.clone();
                    return Ok(Telling {
                        position: line.position,
                        told: tokio::spawn(async move {
                            engine.tell(tells).await;
                            if let Some(dir) = load {
                                engine.place_layers(dir).await;
                            }
                        }),
                        arrived,
                        last_change_unix_us: line.stages.last_change_unix_us,
                        own: taken.own,
                    });
                }
                Err(Wait::Load(dir)) => self.load_or_pause(dir).await,
                Err(Wait::Seal) => tokio::time::sleep(RETRY).await,
                Err(Wait::NotNext) => {
                    return Err(format!("position {} came out of order", line.position));
                }
            }
        }
    }

    /// Fetches what had better be at hand before the arrival is shown. While the server is away the view stays
    /// as it was: what it shows can be read.
    async fn fetch_wanted(&self, line: &PlacedLine) {
        let mut wanted = self.core.lock().session.wanted_blocks(line, WANTED_BYTES_MAX);
        wanted.retain(|hash| !self.local.cache.contains(&hash.0));
        while !wanted.is_empty() {
            match self.link.fetch_blocks(self.fixed.drive_id, &wanted, FETCH_WAIT).await {
                Ok(fetched) => {
                    self.seen.connected.store(true, Ordering::Relaxed);
                    for (hash, bytes) in fetched {
                        if let Err(error) = self.local.cache.insert(&hash.0, &bytes) {
                            tracing::warn!(%error, block = %hash, "a fetched block is not what it should be");
                        }
                    }
                    return;
                }
                Err(LinkError::Unreachable { .. } | LinkError::Deadline { .. }) => {
                    self.seen.connected.store(false, Ordering::Relaxed);
                    tokio::time::sleep(AWAY_PAUSE).await;
                }
                Err(error) => {
                    tracing::warn!(%error, "blocks of a changed file cannot be fetched ahead");
                    return;
                }
            }
        }
    }

    async fn load_or_pause(&self, dir: tidefs_timeline::NodeId) {
        if self.load_now(Load::Directory(dir)).await.is_err() {
            tokio::time::sleep(RETRY).await;
        }
    }

    /// Sealed work that met the arrival is placed again once what it needs is loaded. Meanwhile arrivals go on: a
    /// directory from the future waits for them.
    async fn place_layers(&self, first: tidefs_timeline::NodeId) {
        let mut dir = first;
        loop {
            self.load_or_pause(dir).await;
            let placed = {
                let mut core = self.core.lock();
                match core.session.unplaced() {
                    Some(_) => core.session.place_layers(),
                    None => return,
                }
            };
            match placed {
                Ok(told) => return self.tell(told.tells).await,
                Err(missing) => dir = missing.0,
            }
        }
    }

    /// Reports positions once the kernel was told of them.
    async fn report(self: Arc<Self>, mut telling: mpsc::Receiver<Telling>, reports: watch::Sender<Report>) {
        while let Some(next) = telling.recv().await {
            let _ = next.told.await;
            let apply_us = next.arrived.elapsed().as_micros() as u64;
            let unix = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_micros() as u64;
            let write_to_visible_us =
                if next.own { 0 } else { unix.saturating_sub(next.last_change_unix_us) };
            if !next.own {
                let mut latency = self.seen.latency.lock();
                latency.visible.add(write_to_visible_us);
                latency.apply.add(apply_us);
            }
            self.progress.send_modify(|progress| progress.visible = progress.visible.max(next.position));
            reports.send_replace(Report { applied: next.position, write_to_visible_us, apply_us });
        }
    }
}
