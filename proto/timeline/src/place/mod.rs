//! Placing: moving a checkpoint's changes onto the present state of the timeline.
//!
//! A checkpoint says what a session changed in the tree *it* saw; by the time it arrives the head may have
//! moved on. Replaying paths would be wrong (a directory renamed meanwhile would be missed), and refusing would
//! leave a person to merge. So directories are found by identity, files by identity or by the file that took
//! their place, removals act only on what they meant, and whatever cannot stand where it was put is kept beside
//! it. [`place`] is total: every checkpoint has a result at every head, the result is a tree, and nothing that
//! a session shipped disappears without an [`Overlap`] that says so.
//!
//! The steps, one module each: find directories (`resolve`), take what moves off its old place (`detach`),
//! remove (`remove`), bind (`attach`), write registers (`registers`), let go of what lost its last name
//! (`finish`).

mod attach;
mod detach;
mod finish;
mod registers;
mod remove;
mod resolve;
#[cfg(test)]
mod tests;

use crate::{
    checkpoint::Checkpoint,
    ids::{NodeId, Version},
    name::Name,
    node::Timestamp,
    overlay::{Overlay, Work},
    tree::Head,
};
use std::collections::BTreeMap;

/// Why a single change had another effect than its session saw, or none.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Hash)]
pub enum Reason {
    /// Its directory had left the tree; the change went to the one that has its name now.
    DirectoryByName,
    /// Its directory had left the tree and was made again.
    DirectoryMadeAgain,
    /// The renamed directory had left the tree; the rename has no effect.
    RenamedIsGone,
    /// A removed file was brought back by a rename, a link or a content change.
    BroughtBack,
    /// The file had been moved meanwhile; the rename moved it from where it is.
    MovedTwice,
    /// The old name was no longer there; the new one was added.
    NameAdded,
    /// What was to be removed had moved, changed hands, filled up or gone.
    NotRemoved,
    /// Two directories met and were united.
    United,
    /// The node was kept under a free name beside the one it wanted.
    Beside,
    /// A file met a directory and could not have the name.
    LostToDirectory,
    /// The link would have closed a cycle; the directory stays where the head has it.
    Cycle,
    /// The change went to the file that took this one's last name.
    ToHeir,
    /// A change of attributes of what is gone.
    Gone,
    /// Mode or attributes changed meanwhile were kept on the file that a save put in place.
    Carried,
}

/// One change that had another effect than its session saw.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Note {
    /// Why.
    pub reason: Reason,
    /// The node that it is about.
    pub node: NodeId,
    /// The name that it is about, where there is one.
    pub at: Option<(NodeId, Name)>,
}

/// Which register an overlap is about.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum OverlapRegister {
    /// A name.
    Entry(NodeId, Name),
    /// A file's bytes.
    Content,
    /// Owner and mode.
    Owner,
    /// An extended attribute.
    Attr(crate::name::AttrName),
}

/// A version that was replaced by a session which had not seen it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Overlap {
    /// The register.
    pub register: OverlapRegister,
    /// The node whose version lost.
    pub node: NodeId,
    /// The version that lost.
    pub lost: Version,
    /// The losing node as it was, if it had bytes: they stay restorable.
    pub was: Option<std::sync::Arc<crate::node::Node>>,
}

/// What placing a checkpoint came to.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Placed {
    /// What changes at the head.
    pub effects: Overlay,
    /// Changes that had another effect than their session saw.
    pub notes: Vec<Note>,
    /// Versions that were lost unseen.
    pub overlaps: Vec<Overlap>,
}

/// Places `checkpoint` on `head`. Pure and total; the only errors are those of reading `head`.
pub fn place<H: Head>(head: &H, checkpoint: &Checkpoint) -> Result<Placed, H::Error> {
    let mut placer = Placer {
        head,
        tree: Work::new(head, Overlay::default()),
        ck: checkpoint,
        found: BTreeMap::new(),
        homes: BTreeMap::new(),
        replaced: BTreeMap::new(),
        unseen: BTreeMap::new(),
        losers: Vec::new(),
        attach: Vec::new(),
        out: Placed::default(),
    };
    placer.find_directories()?;
    placer.add_born()?;
    placer.detach()?;
    placer.remove()?;
    placer.attach_all()?;
    placer.losers_go_back()?;
    placer.write_registers()?;
    placer.let_go()?;
    placer.out.effects = placer.tree.top;
    Ok(placer.out)
}

/// A name in a directory.
type At = (NodeId, Name);

struct Placer<'a, H> {
    head: &'a H,
    /// The tree as it becomes.
    tree: Work<'a, H>,
    ck: &'a Checkpoint,
    /// Rule 1's one answer for each directory of the checkpoint that has left the tree.
    found: BTreeMap<NodeId, Option<NodeId>>,
    /// Where what is being moved hung at the head.
    homes: BTreeMap<NodeId, (At, Version)>,
    /// File to the one that took a name from it.
    replaced: BTreeMap<NodeId, NodeId>,
    /// Node to the foreign, unseen version of the entry that bound it.
    unseen: BTreeMap<NodeId, Version>,
    /// Moved files that could not have their new name.
    losers: Vec<NodeId>,
    /// Names still to be bound.
    attach: Vec<(At, NodeId)>,
    out: Placed,
}

impl<H: Head> Placer<'_, H> {
    fn note(&mut self, reason: Reason, node: NodeId, at: Option<At>) {
        self.out.notes.push(Note { reason, node, at });
    }

    fn foreign(&self, version: Version) -> bool {
        version.session != self.ck.session
    }

    /// When the session changed a name; the beginning of time for a name that it did not itself change.
    fn stamp(&self, at: &At) -> Timestamp {
        self.ck.entry(at.0, &at.1).map_or(Timestamp { seconds: i64::MIN, nanos: 0 }, |entry| entry.time)
    }

    fn bind_as(&mut self, at: &At, node: NodeId, version: Version) -> Result<(), H::Error> {
        let by = (version, self.stamp(at));
        self.tree.set_entry((at.0, &at.1), Some(crate::tree::Entry { node, version }), by)
    }

    fn bind(&mut self, at: &At, node: NodeId) -> Result<(), H::Error> {
        self.bind_as(at, node, self.ck.version())
    }

    fn unbind(&mut self, at: &At, asked: &At) -> Result<(), H::Error> {
        let by = (self.ck.version(), self.stamp(asked));
        self.tree.set_entry((at.0, &at.1), None, by)
    }

    fn is_dir(&self, id: NodeId) -> Result<bool, H::Error> {
        Ok(self.tree.node(id)?.is_some_and(|node| node.is_dir()))
    }

    fn is_file(&self, id: NodeId) -> Result<bool, H::Error> {
        Ok(self.tree.node(id)?.is_some_and(|node| !node.is_dir()))
    }

    fn is_empty(&self, dir: NodeId) -> Result<bool, H::Error> {
        Ok(self.tree.entries(dir, None, 1)?.is_empty())
    }

    /// Records that the bytes of `node` as it is in `tree` lost.
    fn overlap(&mut self, register: OverlapRegister, node: NodeId, lost: Version) -> Result<(), H::Error> {
        let was = match self.tree.node(node)? {
            Some(was) => Some(was),
            None => self.head.node(node)?,
        };
        self.out.overlaps.push(Overlap { register, node, lost, was });
        Ok(())
    }
}
