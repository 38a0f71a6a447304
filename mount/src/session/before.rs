//! What the open batch found when it first touched something. With the changes themselves it is all that
//! sealing needs, so a batch can be sealed from the log alone: after a crash, and with no server in reach.

use std::{collections::BTreeMap, convert::Infallible, sync::Arc};
use tidefs_timeline::{Entry, Head, Name, Node, NodeId, Spot, Version};

/// A name in a directory.
pub type At = (NodeId, Name);

/// What a name was bound to.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct EntryBefore {
    /// The binding.
    pub entry: Option<Entry>,
    /// Who removed the name, if it was removed.
    pub tombstone: Option<Version>,
}

/// The registers that a batch touched, as they were before it.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Before {
    /// Nodes.
    pub nodes: BTreeMap<NodeId, Arc<Node>>,
    /// Their known names.
    pub names: BTreeMap<NodeId, Vec<At>>,
    /// Names.
    pub entries: BTreeMap<At, EntryBefore>,
    /// Where the directories on the way to the root hang; none for the root.
    pub spots: BTreeMap<NodeId, Option<Spot>>,
}

impl Before {
    /// Whether nothing was touched.
    pub fn is_empty(&self) -> bool {
        self.nodes.is_empty() && self.entries.is_empty() && self.spots.is_empty()
    }

    /// Takes in what is not here yet.
    pub fn add(&mut self, more: Before) {
        for (id, node) in more.nodes {
            self.nodes.entry(id).or_insert(node);
        }
        for (id, names) in more.names {
            self.names.entry(id).or_insert(names);
        }
        for (at, entry) in more.entries {
            self.entries.entry(at).or_insert(entry);
        }
        for (dir, spot) in more.spots {
            self.spots.entry(dir).or_insert(spot);
        }
    }
}

/// As a tree it holds just what was touched; whoever replays the batch on it asks for nothing else.
impl Head for Before {
    type Error = Infallible;

    fn node(&self, id: NodeId) -> Result<Option<Arc<Node>>, Infallible> {
        Ok(self.nodes.get(&id).cloned())
    }
    fn entry(&self, dir: NodeId, name: &Name) -> Result<Option<Entry>, Infallible> {
        Ok(self.entries.get(&(dir, name.clone())).and_then(|before| before.entry))
    }
    fn entries(&self, _: NodeId, _: Option<&Name>, _: usize) -> Result<Vec<(Name, Entry)>, Infallible> {
        Ok(Vec::new())
    }
    fn names(&self, node: NodeId) -> Result<Vec<At>, Infallible> {
        Ok(self.names.get(&node).cloned().unwrap_or_default())
    }
    fn alias(&self, _: NodeId) -> Result<Option<NodeId>, Infallible> {
        Ok(None)
    }
    fn heir(&self, _: NodeId) -> Result<Option<NodeId>, Infallible> {
        Ok(None)
    }
    fn tombstone(&self, dir: NodeId, name: &Name) -> Result<Option<Version>, Infallible> {
        Ok(self.entries.get(&(dir, name.clone())).and_then(|before| before.tombstone))
    }
}
