//! Checkpoints that no session would make, though they can be read: ids that refer to anything, kinds that do
//! not fit, cycles in the way up. Placing has a result for each, and the result is a tree.

use super::{check::place_sound, mini::World, random};
use crate::{
    Changed, Checkpoint, CheckpointNo, Content, DirInfo, EntryChange, FileContent, Kind, LostNode, Name,
    Node, NodeChange, NodeId, Owner, Position, SessionNo, Spot, Timestamp, Tree, Version,
};
use rand::{Rng, SeedableRng, rngs::SmallRng};
use std::{collections::BTreeMap, sync::Arc};

struct Garbage<'a> {
    rng: &'a mut SmallRng,
    ids: Vec<NodeId>,
    session: SessionNo,
}

impl Garbage<'_> {
    fn id(&mut self) -> NodeId {
        self.ids[self.rng.random_range(0..self.ids.len())]
    }

    fn child(&mut self) -> NodeId {
        let id = self.id();
        if id == NodeId::ROOT { NodeId::new(self.session, 1) } else { id }
    }

    fn name(&mut self) -> Name {
        super::mini::name(["a", "b", "d", "a~A", "a~A~2"][self.rng.random_range(0..5)])
    }

    fn maybe<T>(&mut self, make: impl FnOnce(&mut Self) -> T) -> Option<T> {
        self.rng.random_bool(0.5).then(|| make(self))
    }

    fn version(&mut self) -> Version {
        let session = SessionNo(self.rng.random_range(0..4));
        Version { session, number: CheckpointNo(self.rng.random_range(0..4)) }
    }

    fn spot(&mut self) -> Spot {
        Spot { parent: self.id(), name: self.name() }
    }

    fn owner(&mut self) -> Owner {
        Owner { mode: self.rng.random_range(0..8), uid: 0, gid: 0 }
    }

    fn node(&mut self) -> Node {
        let dir = self.rng.random_bool(0.5);
        let file = Content::File(Arc::new(FileContent {
            size: self.rng.random_range(1 << 32..2 << 32),
            ..FileContent::empty()
        }));
        let (kind, content) = if dir { (Kind::Directory, Content::None) } else { (Kind::File, file) };
        let (version, owner) = (self.version(), self.owner());
        let mut node = Node::new(kind, version, content, owner, Timestamp::default());
        node.links = self.rng.random_range(0..3);
        node.subdirs = self.rng.random_range(0..3);
        node
    }

    fn node_change(&mut self, id: NodeId) -> NodeChange {
        let changed = Changed {
            content: self.maybe(|g| g.maybe(Self::version)),
            owner: self.maybe(|g| g.maybe(Self::version)),
            mtime: self.rng.random(),
            ctime: self.rng.random(),
            attrs: Vec::new(),
        };
        NodeChange {
            id,
            born: id.session() == self.session && self.rng.random_bool(0.5),
            node: self.node(),
            changed,
            names: (0..self.rng.random_range(0..3)).map(|_| (self.id(), self.name())).collect(),
            links_before: self.rng.random_range(0..3),
        }
    }

    /// What a reader of checkpoints lets through: lists in order, born nodes of its own session, bound nodes
    /// described, the root never bound.
    fn checkpoint(&mut self) -> Checkpoint {
        let mut entries = BTreeMap::new();
        for _ in 0..self.rng.random_range(0..8) {
            let (old, new) = (self.maybe(Self::child), self.maybe(Self::child));
            if old != new {
                let (dir, name, base) = (self.id(), self.name(), self.maybe(Self::version));
                let time = Timestamp { seconds: self.rng.random(), nanos: 0 };
                entries.insert((dir, name.clone()), EntryChange { dir, name, old, new, base, time });
            }
        }
        let mut nodes = BTreeMap::new();
        for _ in 0..self.rng.random_range(0..4) {
            let id = self.id();
            nodes.insert(id, self.node_change(id));
        }
        for id in entries.values().filter_map(|entry| entry.new) {
            let change = self.node_change(id);
            nodes.entry(id).or_insert(change);
        }
        let mut dirs = BTreeMap::new();
        for _ in 0..self.rng.random_range(0..8) {
            let (id, before, after) = (self.id(), self.maybe(Self::spot), self.maybe(Self::spot));
            dirs.insert(id, DirInfo { id, before, after, owner: self.owner() });
        }
        let mut lost = BTreeMap::new();
        for _ in 0..self.rng.random_range(0..4) {
            let (content, owner) = (self.maybe(Self::version), self.maybe(Self::version));
            let (id, is_dir, owner_seen) = (self.id(), self.rng.random(), self.owner());
            lost.insert(id, LostNode { id, is_dir, content, owner, owner_seen });
        }
        Checkpoint {
            session: self.session,
            session_name: "A".into(),
            number: CheckpointNo(self.rng.random_range(1..4)),
            applied: Position(0),
            dirs: dirs.into_values().collect(),
            entries: entries.into_values().collect(),
            nodes: nodes.into_values().collect(),
            lost: lost.into_values().collect(),
        }
    }
}

fn head(rng: &mut SmallRng) -> Tree {
    let mut world = World::new(2);
    random::begin(rng, &mut world);
    for _ in 0..12 {
        random::step(rng, &mut world, &mut Vec::new());
    }
    world.quiet();
    world.head
}

/// Every checkpoint that can be read has a result at every head, and the result is a tree.
#[test]
fn anything_that_can_be_read_is_placed() {
    for seed in 0..120 {
        let mut rng = SmallRng::seed_from_u64(seed);
        let mut head = head(&mut rng);
        for _ in 0..25 {
            let mut ids: Vec<NodeId> = head.node_ids().collect();
            ids.extend((1..9).map(|counter| NodeId::new(SessionNo(1), counter)));
            ids.extend([NodeId::ROOT, NodeId(0), NodeId(u64::MAX)]);
            let session = SessionNo(rng.random_range(1..3));
            let checkpoint = Garbage { rng: &mut rng, ids, session }.checkpoint();
            let placed = place_sound(&head, &checkpoint);
            head.apply(&placed.effects);
        }
    }
}
