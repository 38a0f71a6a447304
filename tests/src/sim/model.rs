//! What a session's own directory must hold, kept as plain bytes by path. Nobody else writes there, so whatever
//! crashes, resends and foreign checkpoints there were, it must be exactly this in the end.

use std::collections::BTreeMap;
use tidefs_timeline::{NodeId, Timestamp};

/// A node of the model.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Inode {
    /// A directory.
    pub is_dir: bool,
    /// A file's bytes.
    pub bytes: Vec<u8>,
    /// Permission bits.
    pub mode: u32,
    /// A file's mtime.
    pub mtime: Timestamp,
    /// Extended attributes.
    pub attrs: BTreeMap<Vec<u8>, Vec<u8>>,
}

/// A tree by path.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Model {
    /// Node of each path.
    pub names: BTreeMap<String, NodeId>,
    /// Nodes, also those without a name.
    pub nodes: BTreeMap<NodeId, Inode>,
}

impl Model {
    /// A node is made.
    pub fn make(&mut self, path: &str, id: NodeId, inode: Inode) {
        self.names.insert(path.into(), id);
        self.nodes.insert(id, inode);
    }

    /// Another name.
    pub fn link(&mut self, path: &str, id: NodeId) {
        self.names.insert(path.into(), id);
    }

    /// A name goes.
    pub fn remove(&mut self, path: &str) {
        self.names.remove(path);
    }

    /// A name moves, with all below it.
    pub fn rename(&mut self, from: &str, to: &str, exchange: bool) {
        let back = if exchange { self.take(to) } else { Vec::new() };
        let moved = self.take(from);
        self.names.remove(to);
        self.names.extend(moved.into_iter().map(|(rest, id)| (format!("{to}{rest}"), id)));
        self.names.extend(back.into_iter().map(|(rest, id)| (format!("{from}{rest}"), id)));
    }

    fn take(&mut self, path: &str) -> Vec<(String, NodeId)> {
        let below = format!("{path}/");
        let mine: Vec<String> =
            self.names.keys().filter(|name| *name == path || name.starts_with(&below)).cloned().collect();
        let take = |name: String| {
            let id = self.names.remove(&name)?;
            Some((name[path.len()..].to_owned(), id))
        };
        mine.into_iter().filter_map(take).collect()
    }

    /// Bytes are written.
    pub fn write(&mut self, id: NodeId, offset: usize, data: &[u8], now: Timestamp) {
        let Some(node) = self.nodes.get_mut(&id) else { return };
        if node.bytes.len() < offset + data.len() {
            node.bytes.resize(offset + data.len(), 0);
        }
        node.bytes[offset..offset + data.len()].copy_from_slice(data);
        node.mtime = now;
    }

    /// The size is set.
    pub fn truncate(&mut self, id: NodeId, size: usize, now: Timestamp) {
        let Some(node) = self.nodes.get_mut(&id) else { return };
        node.bytes.resize(size, 0);
        node.mtime = now;
    }

    /// Anything else of a node.
    pub fn change(&mut self, id: NodeId, change: impl FnOnce(&mut Inode)) {
        if let Some(node) = self.nodes.get_mut(&id) {
            change(node);
        }
    }
}
