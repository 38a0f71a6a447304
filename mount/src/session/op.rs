//! The changes that a batch is made of. Applying one decides nothing: whether it is allowed, which id a node
//! gets and what time it is was settled when it was planned, so replaying the log gives the same tree.

use super::before::At;
use std::sync::Arc;
use tidefs_timeline::{
    AttrName, Content, Entry, ExtentMap, FileContent, FileMap, Head, Node, NodeId, Owner, Piece, Register,
    Source, Timestamp, Version, Work,
};

/// One change.
#[derive(Clone, PartialEq, Debug)]
pub enum Op {
    /// A node is made and bound.
    Make {
        /// Where.
        at: At,
        /// Its id.
        id: NodeId,
        /// Its registers; their versions are set when it is applied.
        node: Arc<Node>,
    },
    /// A name is added.
    Link {
        /// The node.
        id: NodeId,
        /// The name.
        at: At,
    },
    /// A name is removed.
    Remove {
        /// The name.
        at: At,
    },
    /// A name moves; whatever is bound at `to` loses that name, or goes to `from`.
    Rename {
        /// Old name.
        from: At,
        /// New name.
        to: At,
        /// Whether the two change places.
        exchange: bool,
    },
    /// Bytes are written; they lie in the log at `local`.
    Write {
        /// The file.
        id: NodeId,
        /// Offset in the file.
        offset: u64,
        /// How many.
        len: u64,
        /// Where they lie.
        local: u64,
        /// Whether set-id bits go.
        clear_set_id: bool,
    },
    /// The size is set.
    Truncate {
        /// The file.
        id: NodeId,
        /// New size.
        size: u64,
        /// Whether set-id bits go.
        clear_set_id: bool,
    },
    /// mtime is set.
    Times {
        /// The node.
        id: NodeId,
        /// New mtime.
        mtime: Timestamp,
    },
    /// Owner and mode are set.
    Owner {
        /// The node.
        id: NodeId,
        /// All three.
        owner: Owner,
    },
    /// An attribute is set or removed.
    Attr {
        /// The node.
        id: NodeId,
        /// Its name.
        name: AttrName,
        /// New value; none removes it.
        value: Option<Arc<[u8]>>,
    },
}

impl Op {
    /// The node whose registers it changes, if it is not about names.
    pub fn node(&self) -> Option<NodeId> {
        match self {
            Op::Write { id, .. }
            | Op::Truncate { id, .. }
            | Op::Times { id, .. }
            | Op::Owner { id, .. }
            | Op::Attr { id, .. } => Some(*id),
            _ => None,
        }
    }
}

/// The bytes of a mode that writing takes away: set-user-id, and set-group-id where the group may execute.
pub fn without_set_id(mode: u32) -> u32 {
    let group_exec = if mode & 0o010 != 0 { 0o2000 } else { 0 };
    mode & !(0o4000 | group_exec)
}

/// Where a stored extent list can be found.
pub trait Maps {
    /// The list that the block of this hash roots, if it is at hand.
    fn extents(&self, root: &tidefs_timeline::Hash) -> Option<Arc<ExtentMap>>;
}

/// A change with its time and the version that it writes.
#[derive(Clone, Copy, Debug)]
pub struct Stamp {
    /// The open batch's version.
    pub version: Version,
    /// When.
    pub now: Timestamp,
}

/// Applies a change.
pub fn apply<H: Head>(
    tree: &mut Work<'_, H>,
    op: &Op,
    stamp: Stamp,
    maps: &dyn Maps,
) -> Result<(), H::Error> {
    let by = (stamp.version, stamp.now);
    let entry = |node| Some(Entry { node, version: stamp.version });
    match op {
        Op::Make { at, id, node } => {
            let mut node = Node::clone(node);
            restamp(&mut node, stamp.version);
            tree.put_new(*id, node);
            tree.set_entry((at.0, &at.1), entry(*id), by)
        }
        Op::Link { id, at } => {
            tree.set_entry((at.0, &at.1), entry(*id), by)?;
            moved(tree, *id, stamp)
        }
        Op::Remove { at } => remove(tree, at, stamp),
        Op::Rename { from, to, exchange } => rename(tree, (from, to), *exchange, stamp),
        Op::Write { id, offset, len, local, clear_set_id } => tree.change(*id, |node| {
            let piece = Piece { len: *len, source: Source::Local(*local) };
            change_content(node, stamp, *clear_set_id, maps, |file, map| {
                map.write(*offset, piece);
                file.max(offset + len)
            });
        }),
        Op::Truncate { id, size, clear_set_id } => tree.change(*id, |node| {
            change_content(node, stamp, *clear_set_id, maps, |_, map| {
                map.cut(*size);
                *size
            });
        }),
        Op::Times { id, mtime } => tree.change(*id, |node| {
            node.times.value.mtime = *mtime;
            node.times.value.ctime = stamp.now;
            node.times.version = stamp.version;
        }),
        Op::Owner { id, owner } => tree.change(*id, |node| {
            node.owner = Register::new(*owner, stamp.version);
            node.times.value.ctime = stamp.now;
        }),
        Op::Attr { id, name, value } => tree.change(*id, |node| {
            match value {
                Some(value) => node.attrs.insert(name.clone(), Register::new(value.clone(), stamp.version)),
                None => node.attrs.remove(name),
            };
            node.times.value.ctime = stamp.now;
        }),
    }
}

/// Gives every register of a node just made the version of the batch.
fn restamp(node: &mut Node, version: Version) {
    node.birth = version;
    node.content.version = version;
    node.times.version = version;
    node.owner.version = version;
    node.attrs.values_mut().for_each(|attr| attr.version = version);
    node.links = 0;
    node.subdirs = 0;
}

fn moved<H: Head>(tree: &mut Work<'_, H>, id: NodeId, stamp: Stamp) -> Result<(), H::Error> {
    tree.change(id, |node| node.times.value.ctime = stamp.now)
}

fn remove<H: Head>(tree: &mut Work<'_, H>, at: &At, stamp: Stamp) -> Result<(), H::Error> {
    let Some(old) = tree.entry(at.0, &at.1)? else { return Ok(()) };
    tree.set_entry((at.0, &at.1), None, (stamp.version, stamp.now))?;
    let_go(tree, old.node, stamp)
}

/// A node that has lost a name: its ctime moves, and with its last name it leaves the tree.
fn let_go<H: Head>(tree: &mut Work<'_, H>, id: NodeId, stamp: Stamp) -> Result<(), H::Error> {
    moved(tree, id, stamp)?;
    if tree.node(id)?.is_some_and(|node| node.links == 0) {
        tree.drop_node(id);
    }
    Ok(())
}

fn rename<H: Head>(
    tree: &mut Work<'_, H>,
    names: (&At, &At),
    exchange: bool,
    stamp: Stamp,
) -> Result<(), H::Error> {
    let (from, to) = names;
    let by = (stamp.version, stamp.now);
    let Some(moving) = tree.entry(from.0, &from.1)? else { return Ok(()) };
    let there = tree.entry(to.0, &to.1)?;
    let back = there.filter(|_| exchange).map(|there| Entry { node: there.node, version: stamp.version });
    tree.set_entry((from.0, &from.1), back, by)?;
    tree.set_entry((to.0, &to.1), Some(Entry { node: moving.node, version: stamp.version }), by)?;
    moved(tree, moving.node, stamp)?;
    match there {
        Some(there) if exchange => moved(tree, there.node, stamp),
        Some(there) => let_go(tree, there.node, stamp),
        None => Ok(()),
    }
}

/// Changes a file's map in place; `change` gets the old size and returns the new one.
pub fn change_content(
    node: &mut Node,
    stamp: Stamp,
    clear_set_id: bool,
    maps: &dyn Maps,
    change: impl FnOnce(u64, &mut ExtentMap) -> u64,
) {
    if let Content::File(file) = &mut node.content.value {
        let file = Arc::make_mut(file);
        if let FileMap::Stored(root) = &file.map {
            // Planning made sure that the list is at hand.
            let list = maps.extents(root).map(|list| ExtentMap::clone(&list)).unwrap_or_default();
            file.map = FileMap::Extents(list);
        }
        if let FileContent { size, map: FileMap::Extents(map) } = file {
            *size = change(*size, map);
        }
    }
    node.content.version = stamp.version;
    node.times.version = stamp.version;
    node.times.value.mtime = stamp.now;
    node.times.value.ctime = stamp.now;
    let kept = without_set_id(node.owner.value.mode);
    if clear_set_id && kept != node.owner.value.mode {
        node.owner.value.mode = kept;
        node.owner.version = stamp.version;
    }
}
