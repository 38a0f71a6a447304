//! What stands around a session in a mount, over a false disk: plan, append and commit; cut, seal into the outbox and
//! free the log; read back what a crash left. The steps and their order are the engine's.

use super::{
    disk::{Disk, Stored},
    kernel::FalseKernel,
    packing::{BlockMap, Packing, blocks_of},
    restart::Recovery,
    server::Server,
};
use anyhow::{Context as _, Result, anyhow, bail, ensure};
use prost::Message as _;
use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    time::Duration,
};
use tidefs_mount::{
    session::{
        Moment, Planned, SealJob, Session,
        before::At,
        cut::Sealed,
        op::Op,
        record::{
            KIND_CHANGE, KIND_CONTEXT, KIND_UNDONE, SealMap, SealedRun, change_to, context_to, undone_to,
        },
        settle::SettleConfig,
    },
    volume::{Answer, Load, Stop},
};
use tidefs_proto::{PlacedLine, Shipment, Stages, manifest, shipment::digest, wire};
use tidefs_timeline::{
    Checkpoint, CheckpointNo, ExtentMap, Hash, Head as _, NodeId, SessionNo, Source, Timestamp,
};

/// Marks an address of bytes that no log holds any more.
const ORPHAN_BIT: u64 = 1 << 62;
/// Short, so that many cuts fall into one run.
pub(super) const SETTLE: SettleConfig = SettleConfig {
    settle: Duration::from_millis(60),
    signal_settle: Duration::from_millis(15),
    max_delay: Duration::from_millis(400),
};

/// The moment at `now` microseconds of simulated time.
pub fn moment(now: u64) -> Moment {
    let wall = Timestamp {
        seconds: 1_700_000_000 + (now / 1_000_000) as i64,
        nanos: (now % 1_000_000) as u32 * 1000,
    };
    Moment { wall, tick: Duration::from_micros(now) }
}

/// A sealed checkpoint that is durable and of which the session does not know yet.
pub struct Put {
    number: CheckpointNo,
    log_start: u64,
    sealed: Sealed,
    lists: Vec<(Hash, ExtentMap)>,
}

/// A running mount.
pub struct Running {
    /// The session.
    pub session: Session,
    /// What the kernel believes.
    pub kernel: FalseKernel,
    /// Digest of the shipment sealed last.
    pub previous: [u8; 32],
    /// This run's incarnation.
    pub incarnation: u64,
    /// Last number answered.
    pub acknowledged: CheckpointNo,
    /// Last number in the outbox.
    pub sealed: CheckpointNo,
    /// Cuts that wait for the sealer.
    pub jobs: VecDeque<SealJob>,
    /// A checkpoint that is in the outbox but not yet known to be.
    pub put: Option<Put>,
    /// Lines that wait to be taken in.
    pub inbox: VecDeque<PlacedLine>,
    /// Directories being fetched; true once the answer is here and lies ahead.
    pub loads: BTreeMap<NodeId, bool>,
    /// What a restart has not taken in yet.
    pub recovery: Option<Recovery>,
    /// Last number that recovery laid over the view.
    pub recovered: CheckpointNo,
    /// Last number that may stand on what recovery guessed.
    pub guessed: CheckpointNo,
    /// Blocks at hand.
    pub blocks: BlockMap,
    /// Bytes of files without a name.
    pub(super) orphans: Vec<u8>,
    /// The same as the disk's log, to be read while it runs.
    pub(super) local: Vec<(u64, Vec<u8>)>,
}

/// A mount's disk, and the mount while it runs.
pub struct Shell {
    /// Which mount.
    pub index: usize,
    /// Its disk.
    pub disk: Disk,
    /// It, while it runs.
    pub up: Option<Running>,
}

impl Running {
    /// Names in a directory of the view.
    ///
    /// # Errors
    /// When it is not loaded.
    pub fn names_of(&self, dir: NodeId) -> Result<BTreeSet<Vec<u8>>> {
        let entries = self.session.view().with(|view| view.entries(dir, None, usize::MAX))?;
        Ok(entries.into_iter().map(|(name, _)| name.as_bytes().to_vec()).collect())
    }

    fn local(&self, address: u64, len: u64) -> Result<Vec<u8>> {
        if address & ORPHAN_BIT != 0 {
            let from = (address & !ORPHAN_BIT) as usize;
            return Ok(self
                .orphans
                .get(from..from + len as usize)
                .context("bytes of a nameless file")?
                .to_vec());
        }
        let i = self.local.partition_point(|(at, _)| *at <= address);
        let (at, bytes) = i.checked_sub(1).and_then(|i| self.local.get(i)).context("the log begins later")?;
        let from = (address - at) as usize;
        let part = bytes.get(from..from + len as usize);
        Ok(part.with_context(|| format!("the log has no {len} bytes at {address}"))?.to_vec())
    }

    /// A file's bytes, if every block of it is at hand.
    ///
    /// # Errors
    /// When the log no longer has what the view says it has.
    pub fn bytes_at_hand(&self, id: NodeId) -> Result<Option<Vec<u8>>> {
        let (pieces, len) = match self.session.read_plan(id, 0, u32::MAX) {
            Ok(plan) => plan,
            Err(Stop::Load(_)) => return Ok(None),
            Err(stop) => bail!("reading {id}: {stop:?}"),
        };
        let mut bytes = vec![0; len as usize];
        for (at, piece) in pieces {
            let part = match piece.source {
                Source::Local(address) => self.local(address, piece.len)?,
                Source::Block { hash, offset } => match self.blocks.get(&hash) {
                    Some(block) => {
                        let part = block.get(offset as usize..offset as usize + piece.len as usize);
                        part.with_context(|| format!("block {hash} of {id} is too short"))?.to_vec()
                    }
                    None => return Ok(None),
                },
            };
            bytes[at as usize..at as usize + part.len()].copy_from_slice(&part);
        }
        Ok(Some(bytes))
    }

    /// A file's bytes; blocks come from the server if it is there.
    ///
    /// # Errors
    /// When they cannot be what the view says.
    pub fn bytes(&mut self, id: NodeId, server: &Server) -> Result<Option<Vec<u8>>> {
        if let Some(Load::Extents(_, root)) = self.session.missing_extents(id)
            && !self.load_extents(root, server)?
        {
            return Ok(None);
        }
        if server.is_up() {
            let (pieces, _) = self.session.read_plan(id, 0, u32::MAX).map_err(|stop| anyhow!("{stop:?}"))?;
            for (_, piece) in pieces {
                if let Source::Block { hash, .. } = piece.source
                    && !self.blocks.contains_key(&hash)
                {
                    server.fetch(hash, &mut self.blocks)?;
                }
            }
        }
        self.bytes_at_hand(id)
    }

    /// Loads a stored extent list. False: the server is needed and away.
    ///
    /// # Errors
    /// When it is damaged.
    pub fn load_extents(&mut self, root: Hash, server: &Server) -> Result<bool> {
        if !self.block(root, server)? {
            return Ok(false);
        }
        let leaves = manifest::decode_root(&self.blocks[&root])?;
        for leaf in &leaves {
            if !self.block(*leaf, server)? {
                return Ok(false);
            }
        }
        let list = manifest::decode_leaves(leaves.iter().map(|leaf| &self.blocks[leaf][..]), u64::MAX >> 1)?;
        self.session.put_extents(root, list);
        Ok(true)
    }

    fn block(&mut self, hash: Hash, server: &Server) -> Result<bool> {
        if !self.blocks.contains_key(&hash) {
            if !server.is_up() {
                return Ok(false);
            }
            server.fetch(hash, &mut self.blocks)?;
        }
        Ok(true)
    }

    fn nodes_at(&self, op: &Op) -> Vec<NodeId> {
        let names: Vec<&At> = match op {
            Op::Make { at, .. } | Op::Link { at, .. } | Op::Remove { at } => vec![at],
            Op::Rename { from, to, .. } => vec![from, to],
            _ => Vec::new(),
        };
        let view = self.session.view();
        names.iter().filter_map(|at| view.entry(at.0, &at.1).ok().flatten()).map(|entry| entry.node).collect()
    }
}

impl Shell {
    /// A machine without a mount.
    pub fn new(index: usize) -> Self {
        let mut disk = Disk::default();
        disk.session.id = [index as u8 + 1; 16];
        Self { index, disk, up: None }
    }

    /// Plans, logs and commits, as one request does. With `fail` the first append fails.
    ///
    /// # Errors
    /// What the plan says, or EIO when the append failed.
    pub fn change<T>(
        &mut self,
        now: u64,
        data: &[u8],
        fail: bool,
        plan: impl FnOnce(&Session, Moment) -> Answer<(Vec<Planned>, T)>,
    ) -> Answer<T> {
        let Some(running) = &mut self.up else { return Err(Stop::Errno(libc::EIO)) };
        let (plans, answer) = plan(&running.session, moment(now))?;
        if fail && !plans.is_empty() {
            return Err(Stop::Errno(libc::EIO));
        }
        for planned in plans {
            let data = if matches!(planned.op, Op::Write { .. }) { data } else { &[] };
            let nodes = running.nodes_at(&planned.op);
            running.kernel.changed(&planned.op, &nodes);
            if planned.orphan {
                let at = running.orphans.len() as u64 | ORPHAN_BIT;
                running.orphans.extend_from_slice(data);
                running.session.commit(planned, 0, at);
                continue;
            }
            let mut parts = context_to(&planned.context);
            let last = parts.pop().unwrap_or_default();
            let mut start = None;
            for part in parts {
                start.get_or_insert(self.disk.append(KIND_CONTEXT, part.encode_to_vec(), &[]).start);
            }
            let head = change_to(&planned.op, planned.now, last).encode_to_vec();
            let record = self.disk.append(KIND_CHANGE, head, data);
            if !data.is_empty() {
                running.local.push((record.data_at, data.to_vec()));
            }
            running.session.commit(planned, start.unwrap_or(record.start), record.data_at);
        }
        Ok(answer)
    }

    /// Notes in the log that what was cut has come to nothing.
    pub fn log_undone(&mut self, job: &SealJob) {
        let unsealed = self.up.as_ref().map_or(0, |up| up.session.layers().unsealed());
        if job.checkpoint.is_none()
            && unsealed == 0
            && let Some(undone) = undone_to(job.log_start, &job.context)
        {
            self.disk.append(KIND_UNDONE, undone.encode_to_vec(), &[]);
        }
    }

    /// Seals the oldest cut into the outbox: durable when this returns, and not yet known to the session.
    ///
    /// # Errors
    /// When the log no longer has its bytes.
    pub fn seal(&mut self, job: &SealJob) -> Result<()> {
        let running = self.up.as_mut().context("a mount that is down seals")?;
        let Some(cut) = &job.checkpoint else { return Ok(()) };
        let number = cut.number;
        let layer = running.session.layers().iter().find(|layer| layer.checkpoint.number == number);
        let mut checkpoint = Checkpoint::clone(layer.map_or(cut, |layer| &layer.checkpoint));
        let disk = &self.disk;
        let read = |address: u64, len: u64| {
            if address & ORPHAN_BIT != 0 {
                running.local(address, len)
            } else {
                disk.read(address, len).map(<[u8]>::to_vec)
            }
        };
        let mut packing = Packing::new(&read)?;
        packing.pack(&mut checkpoint)?;
        let (sealed, lists, pack) = packing.finish()?;
        let shipment = Shipment {
            incarnation: running.incarnation,
            previous: running.previous,
            pack: pack.as_ref().map(|pack| pack.0),
            stages: Stages::default(),
            next_counter: job.next_counter,
            checkpoint,
        }
        .encode();
        let digest = digest(&shipment);
        let entry = outbox_entry(running, job, (&shipment, digest), &sealed.map);
        if let Some((_, bytes)) = &pack {
            running.blocks.extend(blocks_of(bytes)?);
        }
        let stored = Stored { entry: entry.encode_to_vec(), pack };
        ensure!(self.disk.outbox.insert(number.0, stored).is_none(), "outbox entry {} exists", number.0);
        running.previous = digest;
        running.put = Some(Put { number, log_start: job.log_start, sealed, lists });
        Ok(())
    }

    /// Tells the session that its checkpoint is in the outbox, and frees the log.
    ///
    /// # Errors
    /// When the log no longer has bytes that a nameless file needs.
    pub fn finish_seal(&mut self) -> Result<()> {
        let Some(running) = &mut self.up else { return Ok(()) };
        let Some(put) = running.put.take() else { return Ok(()) };
        rescue_orphans(running, put.log_start)?;
        for (root, list) in put.lists {
            running.session.put_extents(root, list);
        }
        running.session.sealed(put.number, put.sealed);
        self.disk.release_before(put.log_start);
        running.local.retain(|(at, bytes)| at + bytes.len() as u64 > put.log_start);
        running.sealed = running.sealed.max(put.number);
        self.drop_answered();
        Ok(())
    }

    /// Answered checkpoints leave the outbox, all but the newest.
    pub fn drop_answered(&mut self) {
        let Some(running) = &self.up else { return };
        let Some(newest) = self.disk.outbox.keys().next_back().copied() else { return };
        let answered = running.acknowledged.0;
        self.disk.outbox.retain(|n, _| *n > answered || *n == newest);
    }

    /// The next sealed checkpoint behind `after`, to be sent.
    ///
    /// # Errors
    /// When the outbox is damaged.
    pub fn ship_item(&self, after: CheckpointNo) -> Result<Option<(u64, wire::OutboxEntry, &Stored)>> {
        let Some(running) = &self.up else { return Ok(None) };
        let after = after.max(running.acknowledged);
        let next = self.disk.outbox.range(after.0 + 1..).next().filter(|(n, _)| **n <= running.sealed.0);
        let Some((number, stored)) = next else { return Ok(None) };
        Ok(Some((*number, wire::OutboxEntry::decode(&stored.entry[..])?, stored)))
    }

    /// Where the log begins that no outbox entry holds.
    pub fn log_start(&self) -> u64 {
        let newest = self.disk.outbox.values().next_back();
        let entry = newest.and_then(|stored| wire::OutboxEntry::decode(&stored.entry[..]).ok());
        entry.map_or(0, |entry| entry.log_start)
    }

    /// The process ends; the disk keeps what was written.
    pub fn kill(&mut self) {
        self.up = None;
        self.disk.killed();
    }
}

impl Running {
    pub(super) fn recovery_len(&self) -> u64 {
        self.recovery.as_ref().map_or(0, |recovery| recovery.layers.len() as u64)
    }

    /// The session's number.
    pub fn number(&self) -> SessionNo {
        self.session.identity().session
    }

    /// Whether all that happened here is answered and taken in.
    pub fn is_quiet(&self) -> bool {
        self.recovery.is_none()
            && self.session.unplaced().is_none()
            && self.put.is_none()
            && self.jobs.is_empty()
            && self.inbox.is_empty()
            && self.session.open_changes() == 0
            && self.session.layers().is_empty()
            && self.acknowledged == self.sealed
    }
}

fn outbox_entry(
    running: &Running,
    job: &SealJob,
    shipment: (&[u8], [u8; 32]),
    map: &SealMap,
) -> wire::OutboxEntry {
    let mut context = wire::LogContext::default();
    for part in context_to(&job.context) {
        context.nodes.extend(part.nodes);
        context.entries.extend(part.entries);
        context.spots.extend(part.spots);
    }
    let mut sealed = map.to_wire();
    for older in running.session.layers().recent() {
        sealed.extend(older.to_wire());
    }
    wire::OutboxEntry {
        format: 1,
        shipment: shipment.0.to_vec().into(),
        digest: shipment.1.to_vec().into(),
        log_start: job.log_start,
        context: Some(context),
        sealed,
        next_counter: job.next_counter,
        after: 0,
    }
}

fn rescue_orphans(running: &mut Running, start: u64) -> Result<()> {
    let mut map = SealMap::default();
    for piece in running.session.orphan_pieces() {
        let Source::Local(address) = piece.source else { continue };
        if address & ORPHAN_BIT != 0 || address >= start {
            continue;
        }
        let bytes = running.local(address, piece.len)?;
        let there = running.orphans.len() as u64 | ORPHAN_BIT;
        running.orphans.extend(bytes);
        map.add(address, SealedRun { len: piece.len, source: Source::Local(there) });
    }
    running.session.resolve_orphans(&map);
    Ok(())
}
