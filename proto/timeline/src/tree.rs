//! A drive's tree at one position: whole, or the part of it that a mount has loaded.

use crate::{
    ids::{NodeId, Version},
    name::Name,
    node::{Node, Timestamp},
    overlay::Overlay,
};
use std::{
    collections::{BTreeMap, BTreeSet},
    ops::Bound,
    sync::Arc,
};

/// The register of a name in a directory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Entry {
    /// The node bound there.
    pub node: NodeId,
    /// The checkpoint that bound it.
    pub version: Version,
}

/// Read access to a tree. Placing asks for nothing else, so the tree may lie in memory, in an index, or be a
/// layer over another.
pub trait Head {
    /// Why an answer could not be given (not: that there is none).
    type Error;
    /// The node, if it is in the tree.
    fn node(&self, id: NodeId) -> Result<Option<Arc<Node>>, Self::Error>;
    /// What is bound to a name.
    fn entry(&self, dir: NodeId, name: &Name) -> Result<Option<Entry>, Self::Error>;
    /// Up to `limit` entries in the order of their names, those after `after`.
    fn entries(
        &self,
        dir: NodeId,
        after: Option<&Name>,
        limit: usize,
    ) -> Result<Vec<(Name, Entry)>, Self::Error>;
    /// All known names of a node, in order.
    fn names(&self, node: NodeId) -> Result<Vec<(NodeId, Name)>, Self::Error>;
    /// The directory that this one was united with.
    fn alias(&self, dir: NodeId) -> Result<Option<NodeId>, Self::Error>;
    /// The file that took this one's last name.
    fn heir(&self, file: NodeId) -> Result<Option<NodeId>, Self::Error>;
    /// The checkpoint that removed a name.
    fn tombstone(&self, dir: NodeId, name: &Name) -> Result<Option<Version>, Self::Error>;
}

/// A directory must be loaded before the question can be answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("directory {0} is not loaded")]
pub struct NotLoaded(pub NodeId);

/// A tree in memory. A directory is loaded when its entries are all here; what is asked of another is
/// [`NotLoaded`]. A node whose names all lie in directories that are not loaded may be here too.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tree {
    nodes: BTreeMap<NodeId, Arc<Node>>,
    dirs: BTreeMap<NodeId, BTreeMap<Name, Entry>>,
    names: BTreeMap<NodeId, BTreeSet<(NodeId, Name)>>,
    tombstones: BTreeMap<(NodeId, Name), Version>,
    aliases: BTreeMap<NodeId, NodeId>,
    heirs: BTreeMap<NodeId, NodeId>,
}

impl Tree {
    /// A new drive: an empty root, loaded.
    pub fn new_drive(now: Timestamp) -> Self {
        let mut tree = Self::default();
        tree.nodes.insert(NodeId::ROOT, Arc::new(Node::root(now)));
        tree.dirs.insert(NodeId::ROOT, BTreeMap::new());
        tree
    }

    /// Whether a directory's entries are here.
    pub fn is_loaded(&self, dir: NodeId) -> bool {
        self.dirs.contains_key(&dir)
    }

    /// Whether a directory is in the tree and its entries are not here. A file has none to load.
    fn is_missing(&self, dir: NodeId) -> bool {
        !self.dirs.contains_key(&dir) && self.nodes.get(&dir).is_some_and(|node| node.is_dir())
    }

    /// Puts a node in place without touching any name.
    pub fn put_node(&mut self, id: NodeId, node: Arc<Node>) {
        self.nodes.insert(id, node);
    }

    /// Takes in a directory's whole list; the nodes bound there are put with [`Tree::put_node`].
    pub fn load_dir(&mut self, dir: NodeId, entries: BTreeMap<Name, Entry>) {
        for (name, entry) in &entries {
            self.names.entry(entry.node).or_default().insert((dir, name.clone()));
        }
        if let Some(old) = self.dirs.insert(dir, entries) {
            let now = &self.dirs[&dir];
            for (name, entry) in old {
                if now.get(&name).is_none_or(|e| e.node != entry.node) {
                    Self::forget_name(&mut self.names, entry.node, &(dir, name));
                }
            }
        }
    }

    /// Records an alias, heir or tombstone that was loaded.
    pub fn put_alias(&mut self, from: NodeId, to: NodeId) {
        self.aliases.insert(from, to);
    }

    /// All node ids here.
    pub fn node_ids(&self) -> impl Iterator<Item = NodeId> + '_ {
        self.nodes.keys().copied()
    }

    /// All loaded directories.
    pub fn loaded_dirs(&self) -> impl Iterator<Item = NodeId> + '_ {
        self.dirs.keys().copied()
    }

    fn forget_name(
        names: &mut BTreeMap<NodeId, BTreeSet<(NodeId, Name)>>,
        node: NodeId,
        name: &(NodeId, Name),
    ) {
        if let Some(set) = names.get_mut(&node) {
            set.remove(name);
            if set.is_empty() {
                names.remove(&node);
            }
        }
    }

    fn apply_entry(&mut self, at: (NodeId, &Name), entry: Option<Entry>) {
        let key = (at.0, at.1.clone());
        let Some(here) = self.dirs.get_mut(&at.0) else {
            // A directory has one name, which is worth knowing wherever it is.
            if let Some(entry) = entry
                && self.nodes.get(&entry.node).is_some_and(|node| node.is_dir())
            {
                self.names.insert(entry.node, BTreeSet::from([key]));
            }
            return;
        };
        let old = match entry {
            Some(entry) => here.insert(key.1.clone(), entry),
            None => here.remove(at.1),
        };
        if let Some(old) = old {
            Self::forget_name(&mut self.names, old.node, &key);
        }
        if let Some(entry) = entry {
            self.names.entry(entry.node).or_default().insert(key);
        }
    }

    /// Makes what `changes` says true. Entries of directories that are not loaded are passed over; nodes that
    /// were never here are taken in only where a loaded directory names them or `changes` makes them whole.
    pub fn apply(&mut self, changes: &Overlay) {
        for (&id, node) in &changes.nodes {
            match node {
                Some(node) => {
                    self.nodes.insert(id, node.clone());
                    if node.is_dir() && changes.born.contains(&id) {
                        self.dirs.entry(id).or_default();
                    }
                }
                None => drop(self.nodes.remove(&id)),
            }
        }
        for (dir, entries) in &changes.entries {
            for (name, entry) in entries {
                self.apply_entry((*dir, name), *entry);
            }
        }
        // Only now, so that the names which a removed directory gave are forgotten with its entries.
        for (id, _) in changes.nodes.iter().filter(|(_, node)| node.is_none()) {
            for (name, entry) in self.dirs.remove(id).unwrap_or_default() {
                Self::forget_name(&mut self.names, entry.node, &(*id, name));
            }
        }
        for (id, to) in &changes.aliases {
            self.aliases.insert(*id, *to);
        }
        apply_options(&mut self.heirs, &changes.heirs);
        apply_options(&mut self.tombstones, &changes.tombstones);
    }
}

fn apply_options<K: Ord + Clone, V: Clone>(here: &mut BTreeMap<K, V>, changes: &BTreeMap<K, Option<V>>) {
    for (key, value) in changes {
        match value {
            Some(value) => here.insert(key.clone(), value.clone()),
            None => here.remove(key),
        };
    }
}

impl Head for Tree {
    type Error = NotLoaded;

    fn node(&self, id: NodeId) -> Result<Option<Arc<Node>>, NotLoaded> {
        Ok(self.nodes.get(&id).cloned())
    }

    fn entry(&self, dir: NodeId, name: &Name) -> Result<Option<Entry>, NotLoaded> {
        match self.dirs.get(&dir) {
            Some(entries) => Ok(entries.get(name).copied()),
            None if self.is_missing(dir) => Err(NotLoaded(dir)),
            None => Ok(None),
        }
    }

    fn entries(
        &self,
        dir: NodeId,
        after: Option<&Name>,
        limit: usize,
    ) -> Result<Vec<(Name, Entry)>, NotLoaded> {
        let Some(entries) = self.dirs.get(&dir) else {
            return if self.is_missing(dir) { Err(NotLoaded(dir)) } else { Ok(Vec::new()) };
        };
        let from = after.map_or(Bound::Unbounded, Bound::Excluded);
        let range = entries.range::<Name, _>((from, Bound::Unbounded));
        Ok(range.take(limit).map(|(name, entry)| (name.clone(), *entry)).collect())
    }

    fn names(&self, node: NodeId) -> Result<Vec<(NodeId, Name)>, NotLoaded> {
        Ok(self.names.get(&node).map(|set| set.iter().cloned().collect()).unwrap_or_default())
    }

    fn alias(&self, dir: NodeId) -> Result<Option<NodeId>, NotLoaded> {
        Ok(self.aliases.get(&dir).copied())
    }

    fn heir(&self, file: NodeId) -> Result<Option<NodeId>, NotLoaded> {
        Ok(self.heirs.get(&file).copied())
    }

    fn tombstone(&self, dir: NodeId, name: &Name) -> Result<Option<Version>, NotLoaded> {
        Ok(self.tombstones.get(&(dir, name.clone())).copied())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{content::Content, node::Kind, node::Owner};

    fn node(kind: Kind) -> Option<Arc<Node>> {
        let owner = Owner { mode: 0o755, uid: 0, gid: 0 };
        Some(Arc::new(Node::new(kind, Version::DRIVE, Content::None, owner, Timestamp::default())))
    }

    fn at(dir: u64, name: &str, node: Option<u64>) -> Overlay {
        let mut changes = Overlay::default();
        let name = Name::new(name.as_bytes()).unwrap();
        let entry = node.map(|node| Entry { node: NodeId(node), version: Version::DRIVE });
        changes.entries.entry(NodeId(dir)).or_default().insert(name, entry);
        changes
    }

    fn names(tree: &Tree, id: u64) -> Vec<(u64, String)> {
        let name = |(dir, name): (NodeId, Name)| (dir.0, String::from_utf8_lossy(name.as_bytes()).into());
        tree.names(NodeId(id)).unwrap().into_iter().map(name).collect()
    }

    /// A file that one checkpoint takes out of a directory and whose old directory it removes keeps no old name.
    #[test]
    fn names_in_a_removed_directory_go_with_it() {
        let mut tree = Tree::new_drive(Timestamp::default());
        let mut made = at(1, "dir", Some(10));
        made.merge(at(10, "file", Some(11)));
        made.nodes.extend([(NodeId(10), node(Kind::Directory)), (NodeId(11), node(Kind::Fifo))]);
        made.born.extend([NodeId(10), NodeId(11)]);
        tree.apply(&made);
        assert_eq!(names(&tree, 11), [(10, "file".into())]);
        let mut moved = at(1, "dir", None);
        moved.merge(at(10, "file", None));
        moved.merge(at(1, "file", Some(11)));
        moved.nodes.insert(NodeId(10), None);
        tree.apply(&moved);
        assert_eq!(names(&tree, 11), [(1, "file".into())]);
    }

    /// Where a directory hangs is known even if the directory that names it is not loaded.
    #[test]
    fn a_directory_moved_out_of_sight_is_still_found() {
        let mut tree = Tree::new_drive(Timestamp::default());
        let mut made = at(1, "dir", Some(10));
        made.nodes.insert(NodeId(10), node(Kind::Directory));
        tree.apply(&made);
        tree.put_node(NodeId(20), node(Kind::Directory).unwrap());
        let mut moved = at(1, "dir", None);
        moved.merge(at(20, "dir", Some(10)));
        tree.apply(&moved);
        assert!(!tree.is_loaded(NodeId(20)));
        assert_eq!(names(&tree, 10), [(20, "dir".into())]);
    }
}
