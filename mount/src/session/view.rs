//! What this mount shows: the tree it has applied, its sealed layers over it, the open batch on top.

use super::before::{At, Before, EntryBefore};
use std::sync::Arc;
use tidefs_timeline::{
    Head, Name, Node, NodeId, NotLoaded, Overlay, Position, Spot, Tree, limits::DEPTH_MAX, overlay::Over,
};

/// Three storeys: what the server has placed, what is sealed and not acknowledged, what is still open.
#[derive(Debug, Default)]
pub struct View {
    /// The tree at `position`, as far as it is loaded.
    pub applied: Tree,
    /// The position applied.
    pub position: Position,
    /// All sealed layers, merged.
    pub sealed: Overlay,
    /// The open batch.
    pub open: Overlay,
}

/// The view below the open batch.
pub type Below<'a> = Over<'a, Tree>;

impl View {
    /// What lies below the open batch.
    pub fn below(&self) -> Below<'_> {
        Over { below: &self.applied, top: &self.sealed }
    }

    /// Runs `f` on the whole view.
    pub fn with<R>(&self, f: impl FnOnce(&Over<'_, Below<'_>>) -> R) -> R {
        let below = self.below();
        f(&Over { below: &below, top: &self.open })
    }

    /// A node in view.
    pub fn node(&self, id: NodeId) -> Option<Arc<Node>> {
        self.with(|view| view.node(id)).ok().flatten()
    }

    /// The node that stands for `id`: itself, or the directory that it was united with.
    pub fn resolve(&self, id: NodeId) -> NodeId {
        let mut at = id;
        for _ in 0..DEPTH_MAX {
            if self.node(at).is_some() {
                break;
            }
            match self.with(|view| view.alias(at)) {
                Ok(Some(to)) => at = to,
                _ => break,
            }
        }
        at
    }

    /// What is bound to a name in view.
    pub fn entry(&self, dir: NodeId, name: &Name) -> Result<Option<tidefs_timeline::Entry>, NotLoaded> {
        self.with(|view| view.entry(dir, name))
    }

    /// Known names of a node.
    pub fn names(&self, id: NodeId) -> Vec<At> {
        self.with(|view| view.names(id)).unwrap_or_default()
    }

    /// Where a directory hangs; none for the root.
    pub fn spot(&self, dir: NodeId) -> Option<Spot> {
        self.names(dir).into_iter().next().map(|(parent, name)| Spot { parent, name })
    }

    /// Directories from `dir` up to the root, `dir` first.
    pub fn way_up(&self, dir: NodeId) -> Vec<NodeId> {
        let up = |at: &NodeId| self.spot(*at).map(|spot| spot.parent);
        std::iter::successors(Some(dir), up).take(DEPTH_MAX + 1).collect()
    }

    /// Adds to `more` what `batch` has not touched yet of these nodes and names, with the directories on the way
    /// to the root.
    pub fn context(&self, batch: &Before, nodes: &[NodeId], entries: &[At]) -> Result<Before, NotLoaded> {
        let mut more = Before::default();
        for at in entries {
            if !batch.entries.contains_key(at) && !more.entries.contains_key(at) {
                let (entry, tombstone) =
                    self.with(|v| Ok((v.entry(at.0, &at.1)?, v.tombstone(at.0, &at.1)?)))?;
                more.entries.insert(at.clone(), EntryBefore { entry, tombstone });
            }
            self.add_node(batch, &mut more, at.0);
        }
        for id in nodes {
            self.add_node(batch, &mut more, *id);
        }
        Ok(more)
    }

    fn add_node(&self, batch: &Before, more: &mut Before, id: NodeId) {
        let known = |id: &NodeId, more: &Before| batch.nodes.contains_key(id) || more.nodes.contains_key(id);
        let born = matches!(self.open.nodes.get(&id), Some(Some(_))) && self.open.born.contains(&id);
        let Some(node) = self.node(id).filter(|_| !born) else { return };
        if !known(&id, more) {
            let names = self.names(id);
            for (dir, _) in &names {
                self.add_way(batch, more, *dir);
            }
            more.names.insert(id, names);
            more.nodes.insert(id, node.clone());
        }
        if node.is_dir() {
            self.add_way(batch, more, id);
        }
    }

    fn add_way(&self, batch: &Before, more: &mut Before, dir: NodeId) {
        let mut at = dir;
        for _ in 0..DEPTH_MAX {
            let born = self.open.born.contains(&at);
            if !born {
                if batch.spots.contains_key(&at) || more.spots.contains_key(&at) {
                    return;
                }
                more.spots.insert(at, self.spot(at));
                if let Some(node) =
                    self.node(at).filter(|_| !batch.nodes.contains_key(&at) && !more.nodes.contains_key(&at))
                {
                    more.names.insert(at, self.names(at));
                    more.nodes.insert(at, node);
                }
            }
            match self.spot(at) {
                Some(spot) => at = spot.parent,
                None => return,
            }
        }
    }
}
