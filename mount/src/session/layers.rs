//! Sealed checkpoints that have no answer yet, oldest first. Each keeps what it came to when placed on what lies
//! below it, so the view is those effects laid over each other.

use super::{before::At, record::SealMap, settle::Tick};
use std::{
    collections::{BTreeSet, VecDeque},
    sync::Arc,
};
use tidefs_timeline::{Checkpoint, CheckpointNo, NodeId, Overlay, Tree, tree::Head};

/// Checkpoints that may lie between the log and the outbox.
pub const UNSEALED_MAX: usize = 4;

/// One checkpoint without an answer.
#[derive(Debug)]
pub struct Layer {
    /// The checkpoint.
    pub checkpoint: Arc<Checkpoint>,
    /// What it comes to here.
    pub effects: Overlay,
    /// Whether it is in the outbox; until then its bytes lie in the log.
    pub sealed: bool,
    /// When its oldest change was made.
    pub since: Tick,
    /// Names that it asked for or knew, and those on the way from its changes to the root.
    way: BTreeSet<At>,
}

/// All of them.
#[derive(Debug, Default)]
pub struct Layers {
    list: VecDeque<Layer>,
    last: CheckpointNo,
    /// Where the bytes of the checkpoints sealed last lie now.
    recent: VecDeque<SealMap>,
}

impl Layers {
    /// Number of the last checkpoint cut, answered or not.
    pub fn last_number(&self) -> CheckpointNo {
        self.last
    }

    /// Goes on behind `last`.
    pub fn start_after(&mut self, last: CheckpointNo) {
        self.last = last;
    }

    /// Number of checkpoints without an answer.
    pub fn len(&self) -> usize {
        self.list.len()
    }

    /// Whether all are answered.
    pub fn is_empty(&self) -> bool {
        self.list.is_empty()
    }

    /// Those not yet in the outbox.
    pub fn unsealed(&self) -> usize {
        self.list.iter().filter(|layer| !layer.sealed).count()
    }

    /// The oldest.
    pub fn front(&self) -> Option<&Layer> {
        self.list.front()
    }

    /// All, oldest first.
    pub fn iter(&self) -> impl Iterator<Item = &Layer> + '_ {
        self.list.iter()
    }

    /// Adds the newest; `at` says whether it is sealed, and since when its oldest change waits.
    pub fn push(&mut self, checkpoint: Checkpoint, effects: Overlay, at: (bool, Tick)) {
        self.last = checkpoint.number;
        let spots = checkpoint.dirs.iter().flat_map(|dir| dir.before.iter().chain(&dir.after));
        let above = spots.map(|spot| (spot.parent, spot.name.clone()));
        // A name that it asked for and did not get here may be free after the next arrival.
        let asked = checkpoint.entries.iter().map(|entry| (entry.dir, entry.name.clone()));
        let known = checkpoint.nodes.iter().flat_map(|node| node.names.iter().cloned());
        let way = above.chain(asked).chain(known).collect();
        self.list.push_back(Layer {
            checkpoint: Arc::new(checkpoint),
            effects,
            sealed: at.0,
            since: at.1,
            way,
        });
    }

    /// Drops the oldest: it has its answer.
    pub fn pop(&mut self) {
        self.list.pop_front();
    }

    /// Drops a checkpoint that was refused for good.
    pub fn remove(&mut self, number: CheckpointNo) {
        self.list.retain(|layer| layer.checkpoint.number != number);
    }

    /// All effects laid over each other.
    pub fn merged(&self) -> Overlay {
        let mut all = Overlay::default();
        self.list.iter().for_each(|layer| all.merge(layer.effects.clone()));
        all
    }

    /// The layer of a checkpoint.
    pub fn get_mut(&mut self, number: CheckpointNo) -> Option<&mut Layer> {
        self.list.iter_mut().find(|layer| layer.checkpoint.number == number)
    }

    /// All, to be changed.
    pub fn iter_mut(&mut self) -> impl Iterator<Item = &mut Layer> + '_ {
        self.list.iter_mut()
    }

    /// Remembers where a checkpoint's bytes went, for contexts that still name the log.
    pub fn remember(&mut self, sealed: SealMap) {
        self.recent.push_back(sealed);
        if self.recent.len() > UNSEALED_MAX + 1 {
            self.recent.pop_front();
        }
    }

    /// The last few of them.
    pub fn recent(&self) -> impl Iterator<Item = &SealMap> + '_ {
        self.recent.iter()
    }
}

/// What a foreign change has to leave alone: the nodes and names of `mine`, and the names on the way to them.
pub fn meets(theirs: &Overlay, mine: &Overlay, way: impl Fn(&At) -> bool, applied: &Tree) -> bool {
    let node_met = |id: &NodeId, now: &Option<Arc<tidefs_timeline::Node>>| {
        let was = applied.node(*id).ok().flatten();
        match (was, now) {
            // Where a change of a file goes depends on its names; what a directory counts does not matter.
            (Some(was), Some(now)) => !was.same_registers(now) || (!now.is_dir() && was.links != now.links),
            (None, None) => false,
            _ => true,
        }
    };
    if theirs.nodes.iter().any(|(id, now)| mine.nodes.contains_key(id) && node_met(id, now)) {
        return true;
    }
    theirs.entries.iter().any(|(dir, names)| {
        let gone = matches!(mine.nodes.get(dir), Some(None));
        let here = mine.entries.get(dir);
        // A name taken from a node that is changed here: where that change goes depends on its names.
        let taken = |name: &tidefs_timeline::Name| {
            let was = applied.entry(*dir, name).ok().flatten();
            was.is_some_and(|was| mine.nodes.contains_key(&was.node))
        };
        gone || names.keys().any(|name| {
            here.is_some_and(|here| here.contains_key(name)) || way(&(*dir, name.clone())) || taken(name)
        })
    })
}

impl Layer {
    /// Whether a foreign change touches what this layer touches.
    pub fn meets(&self, theirs: &Overlay, applied: &Tree) -> bool {
        meets(theirs, &self.effects, |at| self.way.contains(at), applied)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tidefs_timeline::{Content, Kind, Node, Owner, Timestamp, Version};

    fn with_links(id: NodeId, links: u32) -> Overlay {
        let owner = Owner { mode: 0o644, uid: 0, gid: 0 };
        let mut node = Node::new(Kind::Fifo, Version::DRIVE, Content::None, owner, Timestamp::default());
        node.links = links;
        let mut overlay = Overlay::default();
        overlay.nodes.insert(id, Some(Arc::new(node)));
        overlay
    }

    /// Two removals of two names of one file meet: only together do they take the file away.
    #[test]
    fn a_name_lost_elsewhere_meets_a_name_lost_here() {
        let id = NodeId(7);
        let mut applied = Tree::default();
        applied.apply(&with_links(id, 2));
        let theirs = with_links(id, 1);
        assert!(meets(&theirs, &with_links(id, 1), |_| false, &applied));
        assert!(!meets(&theirs, &Overlay::default(), |_| false, &applied));
    }
}
