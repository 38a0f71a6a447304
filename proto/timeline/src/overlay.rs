//! Changes that lie over a tree. One type serves placing (the effects of a checkpoint), the mount's unsent
//! layers, and the open batch; laying it over a [`Head`] gives a [`Head`] again.

use crate::{
    ids::{NodeId, Version},
    name::Name,
    node::{Node, Timestamp},
    tree::{Entry, Head},
};
use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

/// What differs from the tree below. `None` stands for "removed".
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Overlay {
    /// Nodes, whole.
    pub nodes: BTreeMap<NodeId, Option<Arc<Node>>>,
    /// Nodes that the tree below has never had: a directory among them is loaded, whatever the tree below
    /// knows.
    pub born: BTreeSet<NodeId>,
    /// Entries by directory.
    pub entries: BTreeMap<NodeId, BTreeMap<Name, Option<Entry>>>,
    /// Names of nodes that were added (true) or removed; follows from `entries`.
    names: BTreeMap<NodeId, BTreeMap<(NodeId, Name), bool>>,
    /// Directory to the one it was united with.
    pub aliases: BTreeMap<NodeId, NodeId>,
    /// File to the file that took its last name.
    pub heirs: BTreeMap<NodeId, Option<NodeId>>,
    /// Removed names.
    pub tombstones: BTreeMap<(NodeId, Name), Option<Version>>,
}

impl Overlay {
    /// Whether nothing differs.
    pub fn is_empty(&self) -> bool {
        self.nodes.is_empty()
            && self.entries.is_empty()
            && self.aliases.is_empty()
            && self.heirs.is_empty()
            && self.tombstones.is_empty()
    }

    /// Number of nodes and entries that differ.
    pub fn len(&self) -> usize {
        self.nodes.len() + self.entries.values().map(BTreeMap::len).sum::<usize>()
    }

    /// Lays `upper` over this.
    pub fn merge(&mut self, upper: Overlay) {
        self.nodes.extend(upper.nodes);
        self.born.extend(upper.born);
        for (dir, entries) in upper.entries {
            self.entries.entry(dir).or_default().extend(entries);
        }
        for (node, names) in upper.names {
            self.names.entry(node).or_default().extend(names);
        }
        self.aliases.extend(upper.aliases);
        self.heirs.extend(upper.heirs);
        self.tombstones.extend(upper.tombstones);
    }

    /// Rebuilds what follows from the entries, for changes that came over the wire: names that were added are
    /// noted; those removed are found by whoever applies the changes.
    pub fn index_names(&mut self) {
        for (dir, entries) in &self.entries {
            for (name, entry) in entries {
                if let Some(entry) = entry {
                    self.names.entry(entry.node).or_default().insert((*dir, name.clone()), true);
                }
            }
        }
    }

    /// Drops what now says the same as `below`, which has just taken in `changes`.
    pub fn shed<H: Head>(&mut self, below: &H, changes: &Overlay) -> Result<(), H::Error> {
        for id in changes.nodes.keys() {
            if let Some(mine) = self.nodes.get(id)
                && *mine == below.node(*id)?
            {
                self.nodes.remove(id);
                self.born.remove(id);
            }
        }
        for (dir, entries) in &changes.entries {
            for name in entries.keys() {
                self.shed_entry(below, *dir, name)?;
            }
        }
        for (id, to) in &changes.aliases {
            if self.aliases.get(id) == Some(to) {
                self.aliases.remove(id);
            }
        }
        for id in changes.nodes.keys() {
            let Some(names) = self.names.get_mut(id) else { continue };
            names.retain(|(dir, name), _| self.entries.get(dir).is_some_and(|here| here.contains_key(name)));
            if names.is_empty() {
                self.names.remove(id);
            }
        }
        self.heirs.retain(|id, to| changes.heirs.get(id) != Some(to));
        self.tombstones.retain(|key, to| changes.tombstones.get(key) != Some(to));
        Ok(())
    }

    fn shed_entry<H: Head>(&mut self, below: &H, dir: NodeId, name: &Name) -> Result<(), H::Error> {
        let Some(here) = self.entries.get_mut(&dir) else { return Ok(()) };
        let Some(mine) = here.get(name).copied() else { return Ok(()) };
        if mine != below.entry(dir, name)? {
            return Ok(());
        }
        here.remove(name);
        if here.is_empty() {
            self.entries.remove(&dir);
        }
        Ok(())
    }
}

/// A tree with changes over it, which can be changed further.
#[derive(Debug)]
pub struct Work<'a, H> {
    below: &'a H,
    /// The changes.
    pub top: Overlay,
}

impl<'a, H: Head> Work<'a, H> {
    /// Starts from `below` with `top` over it.
    pub fn new(below: &'a H, top: Overlay) -> Self {
        Self { below, top }
    }

    fn over(&self) -> Over<'_, H> {
        Over { below: self.below, top: &self.top }
    }

    /// Adds a node that has no name yet and was not in the tree.
    pub fn put_new(&mut self, id: NodeId, node: Node) {
        self.top.born.insert(id);
        self.top.nodes.insert(id, Some(Arc::new(node)));
    }

    /// Takes a node out of the tree. Its names must be gone.
    pub fn drop_node(&mut self, id: NodeId) {
        self.top.nodes.insert(id, None);
    }

    /// Changes a node, if it is in the tree.
    pub fn change(&mut self, id: NodeId, change: impl FnOnce(&mut Node)) -> Result<(), H::Error> {
        if let Some(Some(node)) = self.top.nodes.get_mut(&id) {
            change(Arc::make_mut(node));
        } else if !self.top.nodes.contains_key(&id)
            && let Some(mut node) = self.below.node(id)?
        {
            change(Arc::make_mut(&mut node));
            self.top.nodes.insert(id, Some(node));
        }
        Ok(())
    }

    /// Binds a name, or removes it; link counts, tombstones and the directory's times follow.
    pub fn set_entry(
        &mut self,
        spot: (NodeId, &Name),
        entry: Option<Entry>,
        by: (Version, Timestamp),
    ) -> Result<(), H::Error> {
        let (dir, name) = spot;
        let old = self.entry(dir, name)?;
        let key = (dir, name.clone());
        self.top.entries.entry(dir).or_default().insert(name.clone(), entry);
        match (entry, old) {
            (None, Some(_)) => drop(self.top.tombstones.insert(key.clone(), Some(by.0))),
            (Some(_), _) if self.tombstone(dir, name)?.is_some() => {
                self.top.tombstones.insert(key.clone(), None);
            }
            _ => {}
        }
        let (was, is) = (old.map(|e| e.node), entry.map(|e| e.node));
        if was != is {
            if let Some(node) = was {
                self.count(node, &key, false)?;
            }
            if let Some(node) = is {
                self.count(node, &key, true)?;
            }
        }
        self.change(dir, |node| node.touch(by.1, by.1))
    }

    fn count(&mut self, id: NodeId, key: &(NodeId, Name), added: bool) -> Result<(), H::Error> {
        self.top.names.entry(id).or_default().insert(key.clone(), added);
        let step = |n: &mut u32| *n = if added { *n + 1 } else { n.saturating_sub(1) };
        let mut is_dir = false;
        self.change(id, |node| {
            step(&mut node.links);
            is_dir = node.is_dir();
        })?;
        if is_dir {
            self.change(key.0, |parent| step(&mut parent.subdirs))?;
        }
        Ok(())
    }
}

impl<H: Head> Head for Work<'_, H> {
    type Error = H::Error;

    fn node(&self, id: NodeId) -> Result<Option<Arc<Node>>, H::Error> {
        self.over().node(id)
    }
    fn entry(&self, dir: NodeId, name: &Name) -> Result<Option<Entry>, H::Error> {
        self.over().entry(dir, name)
    }
    fn entries(
        &self,
        dir: NodeId,
        after: Option<&Name>,
        limit: usize,
    ) -> Result<Vec<(Name, Entry)>, H::Error> {
        self.over().entries(dir, after, limit)
    }
    fn names(&self, node: NodeId) -> Result<Vec<(NodeId, Name)>, H::Error> {
        self.over().names(node)
    }
    fn alias(&self, dir: NodeId) -> Result<Option<NodeId>, H::Error> {
        self.over().alias(dir)
    }
    fn heir(&self, file: NodeId) -> Result<Option<NodeId>, H::Error> {
        self.over().heir(file)
    }
    fn tombstone(&self, dir: NodeId, name: &Name) -> Result<Option<Version>, H::Error> {
        self.over().tombstone(dir, name)
    }
}

/// A tree with changes over it, to be read.
#[derive(Clone, Copy, Debug)]
pub struct Over<'a, H> {
    /// The tree.
    pub below: &'a H,
    /// The changes.
    pub top: &'a Overlay,
}

impl<H> Over<'_, H> {
    /// Whether the tree below has nothing to say of a directory's entries.
    fn hides(&self, dir: NodeId) -> bool {
        self.top.born.contains(&dir) || matches!(self.top.nodes.get(&dir), Some(None))
    }
}

impl<H: Head> Head for Over<'_, H> {
    type Error = H::Error;

    fn node(&self, id: NodeId) -> Result<Option<Arc<Node>>, H::Error> {
        self.top.nodes.get(&id).map_or_else(|| self.below.node(id), |node| Ok(node.clone()))
    }
    fn entry(&self, dir: NodeId, name: &Name) -> Result<Option<Entry>, H::Error> {
        if let Some(entry) = self.top.entries.get(&dir).and_then(|entries| entries.get(name)) {
            return Ok(*entry);
        }
        if self.hides(dir) { Ok(None) } else { self.below.entry(dir, name) }
    }
    fn entries(
        &self,
        dir: NodeId,
        after: Option<&Name>,
        limit: usize,
    ) -> Result<Vec<(Name, Entry)>, H::Error> {
        let Some(mine) = self.top.entries.get(&dir) else {
            return if self.hides(dir) { Ok(Vec::new()) } else { self.below.entries(dir, after, limit) };
        };
        let reach = limit.saturating_add(mine.len());
        let below = if self.hides(dir) { Vec::new() } else { self.below.entries(dir, after, reach)? };
        let mut all: BTreeMap<Name, Entry> = below.into_iter().collect();
        let cut_short = (all.len() == reach).then(|| all.keys().next_back().cloned()).flatten();
        for (name, entry) in mine.iter().filter(|(name, _)| after.is_none_or(|after| *name > after)) {
            if cut_short.as_ref().is_some_and(|last| name > last) {
                break;
            }
            match entry {
                Some(entry) => drop(all.insert(name.clone(), *entry)),
                None => drop(all.remove(name)),
            }
        }
        Ok(all.into_iter().take(limit).collect())
    }
    fn names(&self, node: NodeId) -> Result<Vec<(NodeId, Name)>, H::Error> {
        let known = if self.top.born.contains(&node) { Vec::new() } else { self.below.names(node)? };
        let Some(mine) = self.top.names.get(&node) else { return Ok(known) };
        let mut all: BTreeSet<(NodeId, Name)> = known.into_iter().collect();
        for (key, added) in mine {
            if *added {
                all.insert(key.clone())
            } else {
                all.remove(key)
            };
        }
        Ok(all.into_iter().collect())
    }
    fn alias(&self, dir: NodeId) -> Result<Option<NodeId>, H::Error> {
        self.top.aliases.get(&dir).map_or_else(|| self.below.alias(dir), |to| Ok(Some(*to)))
    }
    fn heir(&self, file: NodeId) -> Result<Option<NodeId>, H::Error> {
        self.top.heirs.get(&file).map_or_else(|| self.below.heir(file), |to| Ok(*to))
    }
    fn tombstone(&self, dir: NodeId, name: &Name) -> Result<Option<Version>, H::Error> {
        let key = (dir, name.clone());
        self.top.tombstones.get(&key).map_or_else(|| self.below.tombstone(dir, name), |to| Ok(*to))
    }
}
