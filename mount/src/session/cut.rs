//! Cutting the open batch, and what sealing gives back.

use super::{
    Moment, Session,
    batch::{Batch, Logged, Planned, stamps},
    before::Before,
    changes::Shown,
    difference::{Heading, difference},
    kernel::Kernel,
    op::{Op, Stamp, apply},
    record::SealMap,
};
use crate::volume::{Stop, Tell};
use std::{convert::Infallible, mem, sync::Arc, time::Duration};
use tidefs_timeline::{
    Checkpoint, CheckpointNo, Content, FileContent, Node, NodeId, NotLoaded, Overlay, Version, Work, place,
};

/// A checkpoint that was cut and is to be sealed: its bytes go from the log into a pack, and it goes into the
/// outbox.
#[derive(Clone, Debug)]
pub struct SealJob {
    /// The checkpoint; none if the batch came to nothing, and only the log is to be freed.
    pub checkpoint: Option<Arc<Checkpoint>>,
    /// Where the log goes on behind it.
    pub log_start: u64,
    /// Context of the changes that lie behind it already.
    pub context: Before,
    /// The counter that the next node id will have.
    pub next_counter: u32,
    /// Wall-clock time of the last change, and how long ago it was.
    pub settled: (tidefs_timeline::Timestamp, Duration),
    /// What the kernel must be told: what was made and undone has moved a directory's times, which are as before.
    pub tells: Vec<Tell>,
}

/// Where a sealed checkpoint's bytes lie now.
#[derive(Clone, Debug, Default)]
pub struct Sealed {
    /// New content of each node whose bytes lay in the log.
    pub contents: Vec<(NodeId, FileContent)>,
    /// Log addresses to blocks.
    pub map: SealMap,
}

impl Session {
    /// Takes a change that is now in the log, at `start`, into the view. `local` is where its bytes lie.
    pub fn commit(&mut self, planned: Planned, start: u64, local: u64) {
        let mut op = planned.op;
        if let Op::Write { local: at, .. } = &mut op {
            *at = local;
        }
        if planned.orphan {
            return self.commit_orphan(&op, planned.now);
        }
        if let Op::Make { id, .. } = &op {
            self.next_counter = self.next_counter.max(id.counter() + 1);
        }
        self.batch.bytes += planned.change.bytes;
        self.batch.before.add(planned.context);
        let lost = self.apply_open(&op, planned.now);
        for (id, node) in lost {
            self.kernel.orphan(id, &node);
        }
        self.note_names(&op);
        self.settler.changed(planned.change);
        self.batch.ops.push(Logged { op, now: planned.now, change: planned.change, start });
    }

    fn note_names(&mut self, op: &Op) {
        let (one, two) = match op {
            Op::Make { at, .. } | Op::Link { at, .. } | Op::Remove { at } => (Some(at), None),
            Op::Rename { from, to, .. } => (Some(from), Some(to)),
            _ => (None, None),
        };
        for at in one.into_iter().chain(two) {
            let there = matches!(self.view.entry(at.0, &at.1), Ok(Some(_)));
            self.listings.name_changed(at, there);
        }
    }

    /// Applies a change to the open batch; returns nodes that left the tree by it.
    fn apply_open(&mut self, op: &Op, now: tidefs_timeline::Timestamp) -> Vec<(NodeId, Arc<Node>)> {
        let stamp = Stamp { version: self.version(), now };
        let losers: Vec<(NodeId, Arc<Node>)> = match op {
            Op::Remove { at } | Op::Rename { to: at, exchange: false, .. } => {
                let there = self.view.entry(at.0, &at.1).ok().flatten().map(|entry| entry.node);
                there.and_then(|id| self.view.node(id).map(|node| (id, node))).into_iter().collect()
            }
            _ => Vec::new(),
        };
        let top = mem::take(&mut self.view.open);
        let below = self.view.below();
        let mut work = Work::new(&below, top);
        // Planning has loaded what the change touches; an error cannot leave the view half changed for long, as
        // the change is in the log and is applied again when the batch is rebuilt.
        if let Err(NotLoaded(dir)) = apply(&mut work, op, stamp, &self.maps) {
            tracing::error!(directory = dir.0, "a logged change touches a directory that is not loaded");
        }
        self.view.open = work.top;
        losers.into_iter().filter(|(id, _)| self.view.node(*id).is_none()).collect()
    }

    fn commit_orphan(&mut self, op: &Op, now: tidefs_timeline::Timestamp) {
        let Some(id) = op.node() else { return };
        let stamp = Stamp { version: self.version(), now };
        let Some(node) = self.kernel.orphan_mut(id) else { return };
        let mut alone = Before::default();
        alone.nodes.insert(id, node.clone());
        let mut work = Work::new(&alone, Overlay::default());
        let Ok(()) = apply(&mut work, op, stamp, &self.maps);
        if let Some(Some(changed)) = work.top.nodes.remove(&id) {
            *node = changed;
        }
    }

    /// A file was fsynced.
    pub fn synced(&mut self, id: NodeId, now: Moment) {
        let named = self.named_before(id);
        self.settler.synced(id, now.tick, named);
    }

    /// Asks for a cut as soon as may be.
    pub fn ask_cut(&mut self) {
        self.settler.ask();
    }

    /// Whether a cut may be made now: the outbox takes one more.
    pub fn may_cut(&self, inflight_max: usize) -> bool {
        !self.batch.is_empty()
            && self.layers.unsealed() == 0
            && (self.layers.len() < inflight_max || self.settler.is_asked() || self.settler.is_full())
    }

    /// Cuts the batch where settling says, or behind all of it. `log_end` is where the log ends now.
    pub fn cut(&mut self, now: Moment, log_end: u64, all: bool) -> Result<Option<SealJob>, Stop> {
        let point =
            if all { self.batch.len() } else { self.settler.cut_point(now.tick).min(self.batch.len()) };
        if point == 0 {
            return Ok(None);
        }
        let cut: Vec<Logged> = self.batch.ops[..point].to_vec();
        let rest: Vec<Logged> = self.batch.ops[point..].to_vec();
        let heading = self.heading();
        let part;
        let after = if rest.is_empty() {
            &self.view.open
        } else {
            part = replay(&self.batch.before, &cut, self.version(), &self.maps);
            &part
        };
        let checkpoint = difference(&self.batch.before, after, &heading, &stamps(&cut));
        let empty = checkpoint.is_empty();
        let mut shown = Shown::default();
        if empty {
            self.shown(&mut shown, after);
        }
        if !empty {
            // Waiting for a directory here would hold up the arrival that brings it: until it is here, the layer
            // shows what the batch showed.
            let effects = match place(&self.view.below(), &checkpoint) {
                Ok(placed) => placed.effects,
                Err(missing) => {
                    self.unplaced = Some(missing.0);
                    after.clone()
                }
            };
            self.view.sealed.merge(effects.clone());
            let since = self.oldest_open().unwrap_or(now.tick);
            self.layers.push(checkpoint, effects, (false, since));
        }
        let last = cut.last().map(|logged| logged.now).unwrap_or_default();
        let age = now.tick.saturating_sub(self.settler.newest());
        self.reopen(now, rest)?;
        let tells = self.tell(shown);
        Ok(Some(SealJob {
            checkpoint: self.layers.iter().last().filter(|_| !empty).map(|layer| layer.checkpoint.clone()),
            log_start: self.batch.ops.first().map_or(log_end, |logged| logged.start),
            context: self.batch.before.clone(),
            next_counter: self.next_counter,
            settled: (last, age),
            tells,
        }))
    }

    pub(super) fn heading(&self) -> Heading {
        Heading {
            session: self.identity.session,
            session_name: self.identity.name.clone(),
            number: self.open_number(),
            applied: self.view.position,
        }
    }

    /// Starts the next batch with the changes that lie behind the cut.
    fn reopen(&mut self, now: Moment, rest: Vec<Logged>) -> Result<(), Stop> {
        self.batch = Batch::default();
        self.view.open = Overlay::default();
        let changes: Vec<_> = rest.iter().map(|logged| logged.change).collect();
        self.settler.cut(now.tick, &changes);
        for logged in rest {
            let context = self.context_of(&logged.op)?;
            self.batch.before.add(context);
            self.apply_open(&logged.op, logged.now);
            self.batch.bytes += logged.change.bytes;
            self.batch.ops.push(logged);
        }
        Ok(())
    }

    /// A checkpoint is in the outbox; what pointed into the log for its bytes points at blocks from now on.
    pub fn sealed(&mut self, number: CheckpointNo, sealed: Sealed) {
        let version = Version { session: self.identity.session, number };
        if let Some(layer) = self.layers.get_mut(number) {
            layer.sealed = true;
            let checkpoint = Arc::make_mut(&mut layer.checkpoint);
            for (id, content) in &sealed.contents {
                let Ok(i) = checkpoint.nodes.binary_search_by_key(id, |node| node.id) else { continue };
                let was = mem::replace(
                    &mut checkpoint.nodes[i].node.content.value,
                    Content::File(Arc::new(content.clone())),
                );
                for node in layer.effects.nodes.values_mut().flatten() {
                    if node.content.version == version && node.content.value == was {
                        Arc::make_mut(node).content.value = Content::File(Arc::new(content.clone()));
                    }
                }
            }
        }
        for layer in self.layers.iter_mut() {
            resolve_all(&sealed.map, layer.effects.nodes.values_mut().flatten());
            if !layer.sealed {
                Arc::make_mut(&mut layer.checkpoint)
                    .nodes
                    .iter_mut()
                    .for_each(|n| sealed.map.resolve_content(&mut n.node));
            }
        }
        resolve_all(&sealed.map, self.view.open.nodes.values_mut().flatten());
        resolve_all(&sealed.map, self.batch.before.nodes.values_mut());
        self.resolve_orphans(&sealed.map);
        self.view.sealed = self.layers.merged();
        self.layers.remember(sealed.map);
    }

    /// Pieces of files that left the tree which lie in the log, or beside it.
    pub fn orphan_pieces(&mut self) -> Vec<tidefs_timeline::Piece> {
        let mut pieces = Vec::new();
        for node in self.kernel.orphans_mut() {
            if let Content::File(file) = &node.content.value
                && let tidefs_timeline::FileMap::Extents(map) = &file.map
            {
                let local = |piece: &tidefs_timeline::Piece| {
                    matches!(piece.source, tidefs_timeline::Source::Local(_))
                };
                pieces.extend(map.iter().map(|(_, piece)| piece).filter(local));
            }
        }
        pieces
    }

    /// Bytes written in the open batch.
    pub fn open_bytes(&self) -> u64 {
        self.batch.bytes
    }

    fn oldest_open(&self) -> Option<super::settle::Tick> {
        self.batch.ops.first().map(|logged| logged.change.now)
    }

    /// When the oldest change was made that is not on the timeline.
    pub fn oldest_change(&self) -> Option<super::settle::Tick> {
        self.layers.front().map(|layer| layer.since).or_else(|| self.oldest_open())
    }

    /// Bytes of files that left the tree went elsewhere.
    pub fn resolve_orphans(&mut self, map: &SealMap) {
        let kernel: &mut Kernel = &mut self.kernel;
        resolve_all(map, kernel.orphans_mut());
    }
}

fn resolve_all<'a>(map: &SealMap, nodes: impl Iterator<Item = &'a mut Arc<Node>>) {
    nodes.for_each(|node| map.resolve_node(node));
}

/// What `ops` leave when they are applied to what they found.
pub(super) fn replay(
    before: &Before,
    ops: &[Logged],
    version: Version,
    maps: &dyn super::op::Maps,
) -> Overlay {
    let mut work = Work::new(before, Overlay::default());
    for logged in ops {
        let result: Result<(), Infallible> =
            apply(&mut work, &logged.op, Stamp { version, now: logged.now }, maps);
        let Ok(()) = result;
    }
    work.top
}
