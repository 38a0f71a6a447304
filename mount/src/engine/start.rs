//! Bringing a mount up: attach, read back what a crash left, seal it, lay the outbox over the view.
//!
//! What a restart finds is sealed before anything new is taken in, from the log alone, so it ships as the prefix
//! of this mount's order that it is.

use super::{
    Core, Engine, Fixed, Local, Progress, Seen,
    control::Control,
    orphans::OrphanFile,
    sealing::{Chain, MARKER, OUTBOX_FORMAT},
    shipping::OutboxSource,
};
use crate::{
    cache::{BlockCache, MEMORY_BYTES_DEFAULT, PackKind},
    config::MountConfig,
    control::api::MountIdentity,
    driver::DriverError,
    link::{Attach, Attached, CommitAs, FollowFrom, Known, Link, LinkConfig, LinkError, Report},
    session::{
        Identity, SealJob, Session,
        record::SealMap,
        recover::{Batch, Replay},
        settle::SettleConfig,
    },
    state::SessionFile,
    wal::{Log, LogPos, outbox::Outbox},
};
use parking_lot::Mutex;
use prost::Message;
use rand::{TryRngCore, rngs::OsRng};
use std::{
    path::Path,
    sync::{Arc, OnceLock, atomic::AtomicU64},
};
use tidefs_proto::{Shipment, wire};
use tidefs_timeline::{CheckpointNo, Position};
use tokio::sync::{Notify, mpsc, watch};

/// Cuts that wait for the sealer.
const JOBS_MAX: usize = 16;
/// Events of one stream that wait to be taken in.
const EVENTS_MAX: usize = 64;

/// A mount that is up but for the kernel.
pub(crate) struct Started {
    pub(crate) engine: Arc<Engine>,
    pub(crate) jobs: mpsc::Receiver<SealJob>,
    pub(crate) chain: Chain,
    pub(crate) following: Following,
}

/// What the outbox holds.
struct Found {
    entries: Vec<(u64, wire::OutboxEntry, Option<Shipment>)>,
    /// Says where the log goes on when the newest entry no longer does.
    marker: Option<wire::OutboxEntry>,
}

impl Found {
    fn newest(&self) -> Option<&wire::OutboxEntry> {
        let marker = self.marker.as_ref().filter(|marker| marker.after == self.last().0);
        if marker.is_some() {
            return marker;
        }
        self.entries.last().map(|(_, entry, _)| entry)
    }

    /// The highest position known to have been applied.
    fn applied(&self) -> Position {
        let applied = self.entries.iter().filter_map(|(_, _, shipment)| shipment.as_ref());
        applied.map(|shipment| shipment.checkpoint.applied).max().unwrap_or_default()
    }

    fn last(&self) -> CheckpointNo {
        CheckpointNo(self.entries.last().map_or(0, |(n, _, _)| *n))
    }
}

fn damaged(what: &str, why: impl std::fmt::Display) -> DriverError {
    DriverError::Damaged { what: what.to_owned(), why: why.to_string() }
}

fn random() -> Result<u64, DriverError> {
    OsRng.try_next_u64().map(|n| n.max(1)).map_err(|error| damaged("the system's random numbers", error))
}

/// Attaches; the incarnation is stored before it is used, so that a lost answer can be asked for again.
async fn attach(
    config: &MountConfig,
    link: &Link,
    applied: Position,
) -> Result<(SessionFile, Attached), DriverError> {
    let stored = SessionFile::load(&config.state_dir)?;
    let mut file = match stored {
        Some(file) => file,
        None => {
            let mut session_id = [0; 16];
            session_id[..8].copy_from_slice(&random()?.to_le_bytes());
            session_id[8..].copy_from_slice(&random()?.to_le_bytes());
            SessionFile {
                session_id,
                session_name: config.session_name(),
                session_no: 0,
                incarnation: 0,
                next_incarnation: 0,
                drive_id: [0; 16],
                history: [0; 16],
            }
        }
    };
    if file.next_incarnation == 0 {
        // Upwards, so that shipments of earlier incarnations are known as such; at random, so that two copies of
        // one folder never choose the same.
        file.next_incarnation = ((file.incarnation >> 32) + 1) << 32 | (random()? & u64::from(u32::MAX));
        file.store(&config.state_dir)?;
    }
    let ask = Attach {
        session_id: file.session_id,
        session_name: file.session_name.clone(),
        incarnation: file.incarnation,
        next_incarnation: file.next_incarnation,
        position: applied,
        known: (file.session_no > 0).then_some(Known { drive_id: file.drive_id, history: file.history }),
    };
    let attached = link.attach(&ask).await?;
    file.incarnation = file.next_incarnation;
    file.next_incarnation = 0;
    file.session_no = attached.session.0;
    file.session_name = attached.session_name.clone();
    file.drive_id = attached.drive_id;
    file.history = attached.history;
    file.store(&config.state_dir)?;
    Ok((file, attached))
}

fn read_marker(state_dir: &Path) -> Result<Option<wire::OutboxEntry>, DriverError> {
    match std::fs::read(state_dir.join(MARKER)) {
        Ok(bytes) => wire::OutboxEntry::decode(&bytes[..]).map(Some).map_err(|error| damaged(MARKER, error)),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(damaged(MARKER, error)),
    }
}

fn read_outbox(outbox: &Outbox, state_dir: &Path) -> Result<Found, DriverError> {
    let mut entries = Vec::new();
    for number in outbox.list()? {
        let sealed = outbox.load(number)?;
        let name = format!("outbox entry {number}");
        let entry =
            wire::OutboxEntry::decode(&sealed.checkpoint[..]).map_err(|error| damaged(&name, error))?;
        if entry.format != OUTBOX_FORMAT {
            return Err(damaged(
                &name,
                format_args!("format {} is not known here: use a newer tidefs", entry.format),
            ));
        }
        let shipment = match entry.shipment.is_empty() {
            true => None,
            false => Some(Shipment::decode(&entry.shipment).map_err(|error| damaged(&name, error))?),
        };
        entries.push((number, entry, shipment));
    }
    Ok(Found { entries, marker: read_marker(state_dir)? })
}

fn read_log(dir: &Path, found: &Found) -> Result<(Log, Replay), DriverError> {
    let mut replay = Replay::new(found.newest())
        .map_err(|error| damaged("the newest outbox entry", error))?
        .behind(found.last());
    let start = LogPos(found.newest().map_or(0, |entry| entry.log_start));
    let mut bad = None;
    let (log, recovered) = Log::open(dir, start, |record| {
        if let Err(error) = replay.record(record.kind, record.head, (record.start.0, record.data.0)) {
            bad.get_or_insert((record.start, error));
        }
    })?;
    if let Some((at, error)) = bad {
        return Err(damaged(&format!("the log's record at {}", at.0), error));
    }
    if recovered.lost_segments > 0 {
        tracing::warn!(segments = ?recovered.lost_segments, "segments behind a gap in the log are kept as .lost");
    }
    Ok((log, replay))
}

fn open_local(config: &MountConfig, log: &Log, outbox: Outbox) -> Result<Local, DriverError> {
    let cache_dir = config.state_dir.join("cache");
    let cache = BlockCache::open(&cache_dir, config.limits.cache_bytes, MEMORY_BYTES_DEFAULT)?;
    for number in outbox.list()? {
        match outbox.open_pack(number) {
            Ok(Some(pack)) => cache.add_pack(&pack, PackKind::Outbox)?,
            Ok(None) => {}
            Err(error) => tracing::warn!(%error, checkpoint = number, "a pack of the outbox is not at hand"),
        }
    }
    Ok(Local {
        reader: log.reader(),
        sync: log.sync(),
        outbox,
        cache,
        orphans: OrphanFile::create(&config.state_dir).map_err(|error| damaged("the state folder", error))?,
        retiring: Mutex::new(()),
    })
}

/// Everything but the kernel.
pub(crate) async fn start(config: &MountConfig) -> Result<Started, DriverError> {
    let mut to = LinkConfig::new(config.server.url.clone(), config.drive.clone());
    to.token = config.server.token.clone().unwrap_or_default();
    let link = Link::new(to)?;
    let outbox = Outbox::open(&config.state_dir.join("outbox"))?;
    let found = read_outbox(&outbox, &config.state_dir)?;
    let (file, attached) = attach(config, &link, found.applied()).await?;
    if attached.acknowledged > found.last() {
        return Err(DriverError::RolledBack { server: attached.acknowledged.0, here: found.last().0 });
    }
    let (log, replay) = read_log(&config.state_dir.join("log"), &found)?;
    let local = open_local(config, &log, outbox)?;
    let settle = SettleConfig {
        settle: config.settle.settle,
        signal_settle: config.settle.signal_settle,
        max_delay: config.settle.max_delay,
    };
    let identity = Identity { session: attached.session, name: attached.session_name.clone() };
    let mut session = Session::new(identity, settle, (attached.position, attached.root.clone()));
    session.start_after(found.last(), found.newest().map_or(1, |entry| entry.next_counter.max(1)));
    let (jobs, receiver) = mpsc::channel(JOBS_MAX);
    let log_start = found.newest().map_or(0, |entry| entry.log_start);
    let engine = Arc::new(Engine {
        core: Mutex::new(Core { session, log, log_start }),
        local,
        link,
        fixed: fixed(config, &file, &attached),
        seen: Seen::default(),
        progress: watch::Sender::new(Progress {
            sealed: found.last(),
            acknowledged: attached.acknowledged,
            visible: attached.position,
            ..Progress::default()
        }),
        kick: Notify::new(),
        armed: AtomicU64::new(0),
        jobs,
        teller: OnceLock::new(),
    });
    engine.seen.connected.store(true, std::sync::atomic::Ordering::Relaxed);
    let previous = found.newest().and_then(|entry| entry.digest[..].try_into().ok()).unwrap_or([0; 32]);
    let mut chain = Chain { previous };
    // What is laid over the view may need directories, which come at the stream's position.
    let following = engine.run_follow(attached.position);
    engine.recover(&found, replay, &mut chain).await?;
    engine.count_unsent();
    // So that work can begin even if the server goes away at once; what is below is fetched along with it.
    if let Err(errno) = engine.load_directory(tidefs_timeline::NodeId::ROOT).await {
        tracing::warn!(errno, "the root is loaded when it is looked at");
    }
    Ok(Started { engine, jobs: receiver, chain, following })
}

fn fixed(config: &MountConfig, file: &SessionFile, attached: &Attached) -> Fixed {
    Fixed {
        drive_id: file.drive_id,
        incarnation: file.incarnation,
        wal_bytes_max: config.limits.wal_bytes,
        fsync_server: config.fsync == crate::config::FsyncLevel::Server,
        read_only: config.read_only,
        cache_dir: config.state_dir.join("cache"),
        state_dir: config.state_dir.clone(),
        mount: MountIdentity {
            drive: config.drive.clone(),
            session: attached.session_name.clone(),
            session_no: attached.session.0,
            mount_point: config.dir.clone(),
            server: config.server.url.clone(),
            pid: std::process::id(),
            state_dir: config.state_dir.clone(),
        },
    }
}

impl Engine {
    /// Lays what is unanswered over the view, and seals what the log holds.
    async fn recover(
        self: &Arc<Self>,
        found: &Found,
        replay: Replay,
        chain: &mut Chain,
    ) -> Result<(), DriverError> {
        let acknowledged = self.progress.borrow().acknowledged;
        for (number, _, shipment) in &found.entries {
            if let Some(shipment) = shipment.as_ref().filter(|_| *number > acknowledged.0) {
                self.add_layer(&shipment.checkpoint).await?;
            }
        }
        let sealed = found.newest().map_or(Ok(SealMap::default()), |entry| SealMap::from_wire(&entry.sealed));
        let mut sealed = sealed.map_err(|error| damaged("the newest outbox entry", error))?;
        for batch in replay.into_batches() {
            if let Some(entry) = self.recover_batch(batch, &sealed, chain).await? {
                sealed = SealMap::from_wire(&entry.sealed).map_err(|error| damaged("the outbox", error))?;
            }
        }
        Ok(())
    }

    /// Seals one batch that the log held and lays it over the view; returns its outbox entry, if it has one.
    async fn recover_batch(
        self: &Arc<Self>,
        mut batch: Batch,
        sealed: &SealMap,
        chain: &mut Chain,
    ) -> Result<Option<wire::OutboxEntry>, DriverError> {
        if batch.replay.is_empty() {
            return Ok(None);
        }
        let changes = batch.replay.len();
        let needs = self.core.lock().session.replay_needs(&batch.replay);
        for (id, root) in needs {
            let list = self.extents(root, u64::MAX >> 1).await.map_err(|errno| DriverError::Fetch {
                what: format!("the extent list of node {id}"),
                errno,
            })?;
            self.core.lock().session.put_extents(root, list);
        }
        let job = {
            let mut core = self.core.lock();
            let checkpoint = core.session.recover(&mut batch.replay, sealed);
            let open = batch.log_start.is_none();
            let job = SealJob {
                checkpoint: checkpoint.map(Arc::new),
                log_start: batch.log_start.unwrap_or(core.log.end().0),
                context: batch.context,
                next_counter: core.session.next_counter(),
                settled: (super::now().wall, std::time::Duration::ZERO),
                tells: Vec::new(),
            };
            if open && job.checkpoint.is_none() {
                self.log_cut(&mut core, &job);
            }
            job
        };
        let Some(number) = job.checkpoint.as_ref().map(|checkpoint| checkpoint.number) else {
            return Ok(None);
        };
        tracing::info!(changes, checkpoint = number.0, "changes found in the log are sealed");
        let engine = self.clone();
        let mut own = Chain { previous: chain.previous };
        let own = tokio::task::spawn_blocking(move || engine.seal(&job, &mut own).map(|()| own)).await;
        *chain =
            own.map_err(|error| damaged("sealing", error))?.map_err(|error| damaged("sealing", error))?;
        let stored = self.local.outbox.load(number.0)?;
        let entry = wire::OutboxEntry::decode(&stored.checkpoint[..])
            .map_err(|error| damaged("the outbox", error))?;
        let shipment = Shipment::decode(&entry.shipment).map_err(|error| damaged("the outbox", error))?;
        self.add_layer(&shipment.checkpoint).await?;
        Ok(Some(entry))
    }

    async fn add_layer(&self, checkpoint: &tidefs_timeline::Checkpoint) -> Result<(), DriverError> {
        loop {
            let missing = match self.core.lock().session.add_layer(checkpoint.clone(), super::now()) {
                Ok(()) => return Ok(()),
                Err(missing) => missing.0,
            };
            self.load_directory(missing)
                .await
                .map_err(|errno| DriverError::Fetch { what: format!("directory {missing}"), errno })?;
        }
    }

    /// Starts to follow.
    fn run_follow(self: &Arc<Self>, after: Position) -> Following {
        let session = self.core.lock().session.identity().session;
        let (to, events) = mpsc::channel(EVENTS_MAX);
        let (reports, reported) = watch::channel(Report { applied: after, ..Report::default() });
        let from = FollowFrom { drive_id: self.fixed.drive_id, session, after };
        let stream = self.link.follow(from, to, reported);
        Following { taking_in: tokio::spawn(self.clone().follow(events, reports)), stream }
    }

    /// Starts to cut, seal and ship.
    pub(crate) fn run_ship(
        self: &Arc<Self>,
        jobs: mpsc::Receiver<SealJob>,
        chain: Chain,
    ) -> Result<Shipping, DriverError> {
        let session = self.core.lock().session.identity().session;
        let (to, events) = mpsc::channel(EVENTS_MAX);
        let who = CommitAs { drive_id: self.fixed.drive_id, session, incarnation: self.fixed.incarnation };
        let stream = self.link.commit(who, Arc::new(OutboxSource(self.clone())), to);
        let sealer = self.clone();
        let run = move || sealer.sealer(jobs, chain);
        let sealing = std::thread::Builder::new().name("tidefs-sealer".into()).spawn(run);
        sealing.map_err(|error| DriverError::Ended(format!("the sealer cannot start: {error}")))?;
        let (answers, cutter) =
            (tokio::spawn(self.clone().answers(events)), tokio::spawn(self.clone().cutter()));
        Ok(Shipping { tasks: [stream, answers, cutter] })
    }
}

/// Taking in what the server has placed.
pub(crate) struct Following {
    pub(crate) taking_in: tokio::task::JoinHandle<Result<(), String>>,
    stream: tokio::task::JoinHandle<()>,
}

impl Drop for Following {
    fn drop(&mut self) {
        self.stream.abort();
        self.taking_in.abort();
    }
}

/// Cutting and shipping.
pub(crate) struct Shipping {
    tasks: [tokio::task::JoinHandle<()>; 3],
}

impl Drop for Shipping {
    fn drop(&mut self) {
        self.tasks.iter().for_each(tokio::task::JoinHandle::abort);
    }
}

/// Throws away what was not sent: the next mount begins as a new session.
pub(crate) fn discard(state_dir: &Path) {
    for name in ["session.json", "outbox", "log", MARKER] {
        let path = state_dir.join(name);
        let removed =
            if path.is_dir() { std::fs::remove_dir_all(&path) } else { std::fs::remove_file(&path) };
        if let Err(error) = removed {
            tracing::error!(%error, path = %path.display(), "unsent work was to be discarded and is still there");
        }
    }
}

/// Keeps the link error's kind for the exit status.
pub(crate) fn link_exit(error: &LinkError) -> crate::exit::Exit {
    crate::exit::Exit::from_code(i64::from(error.exit_code()))
}

/// The part of a mount that answers the control socket.
pub(crate) fn control(engine: &Arc<Engine>) -> (Arc<Control>, mpsc::Receiver<super::control::LeaveRequest>) {
    let (unmount, asked) = mpsc::channel(8);
    (Arc::new(Control { engine: engine.clone(), kernel: OnceLock::new(), unmount }), asked)
}
