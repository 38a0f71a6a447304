//! Bringing a mount up again: attach, read back the outbox and the log, lay over the view what has no answer, and
//! seal what the log holds.

use super::{
    counts::Counts,
    kernel::FalseKernel,
    packing::{BlockMap, blocks_of},
    server::Server,
    shell::{Running, SETTLE, Shell, moment},
};
use anyhow::{Result, ensure};
use prost::Message as _;
use std::{
    collections::{BTreeMap, VecDeque},
    sync::Arc,
    time::Duration,
};
use tidefs_mount::session::{Identity, SealJob, Session, before::Before, record::SealMap, recover::Replay};
use tidefs_proto::{Shipment, wire};
use tidefs_server::order::{AttachAsk, Attached};
use tidefs_timeline::{Checkpoint, CheckpointNo, Node, NodeId, Position, Timestamp};

/// What a restart still has to take in.
pub struct Recovery {
    pub(super) layers: VecDeque<Checkpoint>,
    replay: Option<Replay>,
    sealed: SealMap,
}

/// How far recovery came.
#[derive(Debug)]
pub enum Recovered {
    /// Done.
    Done,
    /// It needs this directory.
    Load(NodeId),
    /// It needs the server.
    Later,
}

impl Shell {
    /// Brings the mount up as far as attaching and reading the disk; then [`Shell::recover`].
    ///
    /// # Errors
    /// When what the disk holds cannot be taken in.
    pub fn start(
        &mut self,
        server: &mut Server,
        now: u64,
        lose_answer: bool,
        counts: &mut Counts,
    ) -> Result<bool> {
        let applied = self.applied()?;
        let state = &mut self.disk.session;
        if state.next_incarnation == 0 {
            state.next_incarnation = state.incarnation + 1 + now * 8;
        }
        let ask = AttachAsk {
            id: state.id,
            name: format!("m{}", self.index),
            incarnation: state.incarnation,
            next_incarnation: state.next_incarnation,
            position: applied,
            of: None,
        };
        let (attached, root) = server.attach(&ask, now)?;
        if lose_answer {
            counts.add("fault: answer to attach lost");
            return Ok(false);
        }
        state.incarnation = state.next_incarnation;
        state.next_incarnation = 0;
        let incarnation = state.incarnation;
        let (running, changes) = self.read_back((attached, root), incarnation)?;
        counts.add_many("recovered changes from the log", changes as u64);
        counts.add_many("recovered checkpoints from the outbox", running.recovery_len());
        self.up = Some(running);
        Ok(true)
    }

    /// The highest position known to have been applied.
    fn applied(&self) -> Result<Position> {
        let mut applied = Position(0);
        for stored in self.disk.outbox.values() {
            let entry = wire::OutboxEntry::decode(&stored.entry[..])?;
            applied = applied.max(Shipment::decode(&entry.shipment)?.checkpoint.applied);
        }
        Ok(applied)
    }

    fn read_back(&mut self, to: (Attached, Node), incarnation: u64) -> Result<(Running, usize)> {
        let (attached, root) = to;
        let mut layers = VecDeque::new();
        let mut blocks = BlockMap::new();
        let mut newest = None;
        for (number, stored) in &self.disk.outbox {
            let entry = wire::OutboxEntry::decode(&stored.entry[..])?;
            if *number > attached.acknowledged.0 {
                layers.push_back(Shipment::decode(&entry.shipment)?.checkpoint);
            }
            if let Some((_, pack)) = &stored.pack {
                blocks.extend(blocks_of(pack)?);
            }
            newest = Some((*number, entry));
        }
        let last = CheckpointNo(newest.as_ref().map_or(0, |(number, _)| *number));
        let newest = newest.map(|(_, entry)| entry);
        ensure!(
            attached.acknowledged <= last,
            "the server has answered {} of {}",
            attached.acknowledged.0,
            last.0
        );
        let mut replay = Replay::new(newest.as_ref())?;
        let start = newest.as_ref().map_or(0, |entry| entry.log_start);
        self.disk.release_before(start);
        let mut local = Vec::new();
        for record in self.disk.records_from(start) {
            replay.record(record.kind, &record.head, (record.start, record.data_at))?;
            local.push((record.data_at, record.data.clone()));
        }
        let sealed =
            newest.as_ref().map_or(Ok(SealMap::default()), |entry| SealMap::from_wire(&entry.sealed))?;
        let identity = Identity { session: attached.session, name: attached.name };
        let mut session = Session::new(identity, SETTLE, (attached.position, root));
        session.start_after(last, newest.as_ref().map_or(1, |entry| entry.next_counter.max(1)));
        let previous = newest.as_ref().and_then(|entry| entry.digest[..].try_into().ok()).unwrap_or([0; 32]);
        let changes = replay.len();
        let replay = (!replay.is_empty()).then_some(replay);
        let running = Running {
            session,
            kernel: FalseKernel::default(),
            previous,
            incarnation,
            acknowledged: attached.acknowledged,
            sealed: last,
            jobs: VecDeque::new(),
            put: None,
            inbox: VecDeque::new(),
            loads: BTreeMap::new(),
            recovery: Some(Recovery { layers, replay, sealed }),
            recovered: CheckpointNo(u64::MAX),
            guessed: CheckpointNo(u64::MAX),
            blocks,
            orphans: Vec::new(),
            local,
        };
        Ok((running, changes))
    }

    /// Goes on with recovery; the directory that it waits for, if it does.
    ///
    /// # Errors
    /// When what the disk holds cannot be taken in.
    pub fn recover(&mut self, server: &Server, now: u64) -> Result<Recovered> {
        let Some(running) = &mut self.up else { return Ok(Recovered::Done) };
        let Some(mut recovery) = running.recovery.take() else { return Ok(Recovered::Done) };
        while let Some(checkpoint) = recovery.layers.front() {
            if let Err(missing) = running.session.add_layer(checkpoint.clone(), moment(now)) {
                running.recovery = Some(recovery);
                return Ok(Recovered::Load(missing.0));
            }
            recovery.layers.pop_front();
        }
        let Some(mut replay) = recovery.replay.take() else { return Ok(Recovered::Done) };
        for (_, root) in running.session.replay_needs(&replay) {
            if !running.load_extents(root, server)? {
                recovery.replay = Some(replay);
                running.recovery = Some(recovery);
                return Ok(Recovered::Later);
            }
        }
        let checkpoint = running.session.recover(&mut replay, &recovery.sealed);
        let number = checkpoint.as_ref().map(|checkpoint| checkpoint.number);
        let job = SealJob {
            checkpoint: checkpoint.map(Arc::new),
            log_start: self.disk.end(),
            context: Before::default(),
            next_counter: running.session.next_counter(),
            settled: (Timestamp::default(), Duration::ZERO),
            tells: Vec::new(),
        };
        let Some(number) = number else {
            self.log_undone(&job);
            return Ok(Recovered::Done);
        };
        running.recovery = Some(recovery);
        self.seal(&job)?;
        self.finish_seal()?;
        let entry = wire::OutboxEntry::decode(&self.disk.outbox[&number.0].entry[..])?;
        let checkpoint = Shipment::decode(&entry.shipment)?.checkpoint;
        if let Some(recovery) = self.up.as_mut().and_then(|running| running.recovery.as_mut()) {
            recovery.layers.push_back(checkpoint);
        }
        self.recover(server, now)
    }
}
