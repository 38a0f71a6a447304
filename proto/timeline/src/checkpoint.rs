//! A checkpoint: the net difference of a session's tree between two cuts.

use crate::{
    ids::{CheckpointNo, NodeId, Position, SessionNo, Version},
    name::{AttrName, Name},
    node::{Node, Owner, Timestamp},
};

/// Where a directory hangs.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Spot {
    /// The directory that names it.
    pub parent: NodeId,
    /// The name.
    pub name: Name,
}

/// A directory on the way from a change to the root, as the session had it at both cuts. The chain of a
/// directory is found by following `before` or `after` upwards through this list.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct DirInfo {
    /// The directory.
    pub id: NodeId,
    /// Where it hung at the first cut; none for the root and for one made since.
    pub before: Option<Spot>,
    /// Where it hung at the second cut; none for the root and for one removed since.
    pub after: Option<Spot>,
    /// Its owner and mode, for the case that it must be made again.
    pub owner: Owner,
}

/// A name that is bound to another node than before.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct EntryChange {
    /// The directory.
    pub dir: NodeId,
    /// The name.
    pub name: Name,
    /// Bound before.
    pub old: Option<NodeId>,
    /// Bound after.
    pub new: Option<NodeId>,
    /// The last version of another session that was seen here.
    pub base: Option<Version>,
    /// When it was changed; the directory's times follow.
    pub time: Timestamp,
}

/// Which registers of a node were changed, each with its base.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Changed {
    /// Content, and with it mtime.
    pub content: Option<Option<Version>>,
    /// Owner and mode.
    pub owner: Option<Option<Version>>,
    /// mtime was set or follows from a content change.
    pub mtime: bool,
    /// ctime moved.
    pub ctime: bool,
    /// Attributes set (present in the node) or removed (absent), with their bases.
    pub attrs: Vec<(AttrName, Option<Version>)>,
}

impl Changed {
    /// Whether no register was changed.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

/// A node that was made, linked, moved or changed, with all its registers.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct NodeChange {
    /// The node.
    pub id: NodeId,
    /// Made since the first cut.
    pub born: bool,
    /// All registers at the second cut; those changed carry the checkpoint's own version.
    pub node: Node,
    /// Which of them were changed (empty for a node made since: all were).
    pub changed: Changed,
    /// Every name it had that the session knows, before or after.
    pub names: Vec<(NodeId, Name)>,
    /// How many names it had before.
    pub links_before: u32,
}

/// A node that lost a name.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct LostNode {
    /// The node.
    pub id: NodeId,
    /// Whether it is a directory.
    pub is_dir: bool,
    /// Base of its content.
    pub content: Option<Version>,
    /// Base of its owner and mode.
    pub owner: Option<Version>,
    /// Owner and mode as seen.
    pub owner_seen: Owner,
}

/// What a session ships: all lists are in ascending order of their keys.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Checkpoint {
    /// The session.
    pub session: SessionNo,
    /// Its name, for names that must be kept beside another.
    pub session_name: String,
    /// The checkpoint's number in the session.
    pub number: CheckpointNo,
    /// The position that the session had applied at the cut.
    pub applied: Position,
    /// Directories on the way to the root.
    pub dirs: Vec<DirInfo>,
    /// Changed names.
    pub entries: Vec<EntryChange>,
    /// Changed nodes.
    pub nodes: Vec<NodeChange>,
    /// Nodes that lost a name.
    pub lost: Vec<LostNode>,
}

impl Checkpoint {
    /// The version that this checkpoint writes.
    pub fn version(&self) -> Version {
        Version { session: self.session, number: self.number }
    }

    /// Whether it changes nothing.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty() && self.nodes.is_empty()
    }

    /// The directory's line, if it has one.
    pub fn dir(&self, id: NodeId) -> Option<&DirInfo> {
        self.dirs.binary_search_by_key(&id, |dir| dir.id).ok().map(|i| &self.dirs[i])
    }

    /// The node's line, if it has one.
    pub fn node(&self, id: NodeId) -> Option<&NodeChange> {
        self.nodes.binary_search_by_key(&id, |node| node.id).ok().map(|i| &self.nodes[i])
    }

    /// The line of a node that lost a name, if it has one.
    pub fn lost(&self, id: NodeId) -> Option<&LostNode> {
        self.lost.binary_search_by_key(&id, |node| node.id).ok().map(|i| &self.lost[i])
    }

    /// The change of a name, if it has one.
    pub fn entry(&self, dir: NodeId, name: &Name) -> Option<&EntryChange> {
        let found = self.entries.binary_search_by(|e| (e.dir, &e.name).cmp(&(dir, name)));
        found.ok().map(|i| &self.entries[i])
    }
}
