//! What the kernel was given: how many lookups of each node, and the nodes that it still holds although they
//! have left the tree.

use std::{collections::BTreeMap, sync::Arc};
use tidefs_timeline::{Node, NodeId, Timestamp};

#[derive(Debug, Default)]
struct Held {
    lookups: u64,
    /// The node as it was when it left the tree, and as changed since.
    orphan: Option<Arc<Node>>,
    /// atime as it was set; not kept anywhere else.
    atime: Option<Timestamp>,
}

/// Nodes that the kernel holds.
#[derive(Debug, Default)]
pub struct Kernel {
    held: BTreeMap<NodeId, Held>,
    orphans: usize,
}

impl Kernel {
    /// The kernel was given the node once more.
    pub fn looked_up(&mut self, id: NodeId) {
        self.held.entry(id).or_default().lookups += 1;
    }

    /// The kernel gives lookups back.
    pub fn forget(&mut self, id: NodeId, count: u64) {
        let Some(held) = self.held.get_mut(&id) else { return };
        held.lookups = held.lookups.saturating_sub(count);
        if held.lookups == 0 {
            self.orphans -= usize::from(held.orphan.is_some());
            self.held.remove(&id);
        }
    }

    /// Whether the kernel may have something cached of the node.
    pub fn holds(&self, id: NodeId) -> bool {
        id == NodeId::ROOT || self.held.contains_key(&id)
    }

    /// atime was set.
    pub fn set_atime(&mut self, id: NodeId, atime: Timestamp) {
        if let Some(held) = self.held.get_mut(&id) {
            held.atime = Some(atime);
        }
    }

    /// atime, if it was set since the kernel got the node.
    pub fn atime(&self, id: NodeId) -> Option<Timestamp> {
        self.held.get(&id).and_then(|held| held.atime)
    }

    /// The node left the tree; it is kept while the kernel holds it.
    pub fn orphan(&mut self, id: NodeId, node: &Arc<Node>) {
        if let Some(held) = self.held.get_mut(&id) {
            let mut node = Node::clone(node);
            node.links = 0;
            self.orphans += usize::from(held.orphan.is_none());
            held.orphan = Some(Arc::new(node));
        }
    }

    /// The node is in the tree again.
    pub fn adopt(&mut self, id: NodeId) {
        if let Some(held) = self.held.get_mut(&id) {
            self.orphans -= usize::from(held.orphan.take().is_some());
        }
    }

    /// A node that left the tree and is still held.
    pub fn get_orphan(&self, id: NodeId) -> Option<Arc<Node>> {
        self.held.get(&id).and_then(|held| held.orphan.clone())
    }

    /// The same, to be changed.
    pub fn orphan_mut(&mut self, id: NodeId) -> Option<&mut Arc<Node>> {
        self.held.get_mut(&id).and_then(|held| held.orphan.as_mut())
    }

    /// All of them, to be changed.
    pub fn orphans_mut(&mut self) -> impl Iterator<Item = &mut Arc<Node>> + '_ {
        self.held.values_mut().filter_map(|held| held.orphan.as_mut())
    }

    /// How many there are.
    pub fn orphans(&self) -> usize {
        self.orphans
    }
}
