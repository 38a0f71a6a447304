//! What a restart finds: sealed checkpoints in the outbox, and the log behind the newest of them.

use super::{
    Session,
    batch::{Logged, stamps},
    before::Before,
    cut::replay,
    difference::difference,
    record::{SealMap, change_from, context_from},
    settle::{Change, Event},
};
use prost::Message;
use std::sync::Arc;
use tidefs_proto::{Bad, bad::bad, wire};
use tidefs_timeline::{Checkpoint, CheckpointNo, NodeId, NotLoaded, overlay::Over, place};

/// The log as it is read back, record by record.
#[derive(Debug, Default)]
pub struct Replay {
    before: Before,
    ops: Vec<Logged>,
    open: Option<NodeId>,
    next_counter: u32,
    /// Last checkpoint in the outbox.
    last: CheckpointNo,
    /// Batches that were cut and did not get into the outbox.
    closed: Vec<Batch>,
}

/// One batch of a log read back.
#[derive(Debug)]
pub struct Batch {
    /// Its changes and what they found.
    pub replay: Replay,
    /// Where the log goes on behind it; none for the one that was open.
    pub log_start: Option<u64>,
    /// What the changes behind it found that were there when it was cut.
    pub context: Before,
}

impl Replay {
    /// Begins behind the newest outbox entry; none if there is none.
    pub fn new(newest: Option<&wire::OutboxEntry>) -> Bad<Self> {
        let mut replay = Self { next_counter: 1, ..Self::default() };
        if let Some(entry) = newest {
            replay.next_counter = entry.next_counter.max(1);
            if let Some(context) = &entry.context {
                context_from(context, &mut replay.before, &mut replay.open)?;
            }
        }
        Ok(replay)
    }

    /// Cuts of checkpoints up to `last` are of no interest: the outbox has them.
    pub fn behind(mut self, last: CheckpointNo) -> Self {
        self.last = last;
        self
    }

    /// The batches, oldest first, the open one last.
    pub fn into_batches(mut self) -> Vec<Batch> {
        let mut batches = std::mem::take(&mut self.closed);
        for batch in &mut batches {
            batch.replay.next_counter = self.next_counter;
        }
        batches.push(Batch { replay: self, log_start: None, context: Before::default() });
        batches
    }

    /// What was cut is a batch of its own.
    fn close(&mut self, cut: wire::OutboxEntry) -> Bad<()> {
        let (mut context, mut open) = (Before::default(), None);
        context_from(&cut.context.unwrap_or_default(), &mut context, &mut open)?;
        let (ops, rest) =
            std::mem::take(&mut self.ops).into_iter().partition(|logged| logged.start < cut.log_start);
        let before = std::mem::replace(&mut self.before, context.clone());
        (self.ops, self.open) = (rest, open);
        let replay = Self { before, ops, ..Self::default() };
        self.closed.push(Batch { replay, log_start: Some(cut.log_start), context });
        Ok(())
    }

    /// Takes in a record.
    pub fn record(&mut self, kind: u8, head: &[u8], at: (u64, u64)) -> Bad<()> {
        match kind {
            super::record::KIND_CONTEXT => {
                let context = wire::LogContext::decode(head).or_else(|error| bad("log context", error))?;
                context_from(&context, &mut self.before, &mut self.open)
            }
            super::record::KIND_CHANGE => {
                let message = wire::LoggedChange::decode(head).or_else(|error| bad("log change", error))?;
                if let Some(context) = &message.context {
                    context_from(context, &mut self.before, &mut self.open)?;
                }
                let (op, now) = change_from(&message, at.1)?;
                if let super::op::Op::Make { id, .. } = &op {
                    self.next_counter = self.next_counter.max(id.counter() + 1);
                }
                let node = op.node().unwrap_or(NodeId::ROOT);
                let change = Change {
                    now: std::time::Duration::ZERO,
                    pid: 0,
                    node,
                    event: Event::Other,
                    signal: false,
                    bytes: 0,
                    replaced: None,
                };
                self.ops.push(Logged { op, now, change, start: at.0 });
                Ok(())
            }
            super::record::KIND_UNDONE => {
                let undone = wire::OutboxEntry::decode(head).or_else(|error| bad("log undone", error))?;
                self.ops.retain(|logged| logged.start >= undone.log_start);
                (self.before, self.open) = (Before::default(), None);
                context_from(&undone.context.unwrap_or_default(), &mut self.before, &mut self.open)
            }
            super::record::KIND_CUT => {
                let cut = wire::OutboxEntry::decode(head).or_else(|error| bad("log cut", error))?;
                if cut.after > self.last.0 { self.close(cut) } else { Ok(()) }
            }
            other => bad("log record", format_args!("kind {other} is not known here: use a newer tidefs")),
        }
    }

    /// Changes read back.
    pub fn len(&self) -> usize {
        self.ops.len()
    }

    /// Whether the log held none.
    pub fn is_empty(&self) -> bool {
        self.ops.is_empty()
    }

    /// The counter that the next node gets.
    pub fn next_counter(&self) -> u32 {
        self.next_counter
    }
}

impl Session {
    /// The checkpoint that a log read back comes to, sealed behind `last`; none if it comes to nothing.
    pub fn recover(&mut self, replayed: &mut Replay, sealed: &SealMap) -> Option<Checkpoint> {
        self.next_counter = self.next_counter.max(replayed.next_counter);
        // The log may hold several batches whose checkpoints never got into the outbox. What one of them made, the
        // next one found; for all of them together it is new.
        for logged in &replayed.ops {
            if let super::op::Op::Make { id, .. } = &logged.op {
                replayed.before.nodes.remove(id);
                replayed.before.names.remove(id);
                replayed.before.spots.remove(id);
            }
        }
        for node in replayed.before.nodes.values_mut() {
            sealed.resolve_node(node);
        }
        let after = replay(&replayed.before, &replayed.ops, self.version(), &self.maps);
        let checkpoint = difference(&replayed.before, &after, &self.heading(), &stamps(&replayed.ops));
        (!checkpoint.is_empty()).then_some(checkpoint)
    }

    /// Goes on behind the checkpoint `last`, which is answered or in the outbox.
    pub fn start_after(&mut self, last: CheckpointNo, next_counter: u32) {
        self.layers.start_after(last);
        self.next_counter = self.next_counter.max(next_counter);
    }

    /// Lays a checkpoint from the outbox over the view.
    pub fn add_layer(&mut self, checkpoint: Checkpoint, now: super::Moment) -> Result<(), NotLoaded> {
        // What is not here looks as if it were not in the tree, so the directories must be looked at first.
        let had = checkpoint.dirs.iter().filter(|dir| dir.before.is_some() || dir.id == NodeId::ROOT);
        if let Some(missing) = had.map(|dir| dir.id).find(|dir| !self.is_answered(*dir)) {
            return Err(NotLoaded(missing));
        }
        let below = self.layers.merged();
        let effects = place(&Over { below: &self.view.applied, top: &below }, &checkpoint)?.effects;
        self.layers.push(checkpoint, effects, (true, now.tick));
        self.view.sealed = self.layers.merged();
        Ok(())
    }

    /// Stored extent lists that a replay needs before it can be applied.
    pub fn replay_needs(&self, replayed: &Replay) -> Vec<(NodeId, tidefs_timeline::Hash)> {
        let stored = |node: &Arc<tidefs_timeline::Node>| match &node.content.value {
            tidefs_timeline::Content::File(file) => match &file.map {
                tidefs_timeline::FileMap::Stored(root) => Some(*root),
                tidefs_timeline::FileMap::Extents(_) => None,
            },
            _ => None,
        };
        let touched = |id: &NodeId| replayed.ops.iter().any(|logged| logged.op.node() == Some(*id));
        let nodes = replayed.before.nodes.iter().filter(|(id, _)| touched(id));
        nodes.filter_map(|(id, node)| stored(node).map(|root| (*id, root))).collect()
    }
}
