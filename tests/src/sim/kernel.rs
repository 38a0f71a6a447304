//! A false kernel: it believes for ever what it was told once, and forgets only what a tell, or an own change, makes
//! it forget. Whatever it still believes must be what the view says.

use super::{counts::Counts, shell::Running};
use anyhow::{Result, bail, ensure};
use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};
use tidefs_mount::{
    session::{before::At, op::Op},
    volume::Tell,
};
use tidefs_timeline::{Name, Node, NodeId, Owner, Timestamp};

/// Attributes as `stat` shows them.
type Attributes = (Owner, u64, Timestamp, Timestamp, u32);

fn attributes(node: &Node) -> Attributes {
    let times = node.times.value;
    (node.owner.value, node.content.value.size(), times.mtime, times.ctime, node.nlink())
}

/// What the kernel has cached.
#[derive(Debug, Default)]
pub struct FalseKernel {
    entries: BTreeMap<At, Option<NodeId>>,
    attributes: BTreeMap<NodeId, Attributes>,
    bytes: BTreeMap<NodeId, Vec<u8>>,
    listings: BTreeMap<NodeId, BTreeSet<Vec<u8>>>,
    lookups: BTreeMap<NodeId, u64>,
}

impl FalseKernel {
    /// A lookup was answered.
    pub fn looked_up(&mut self, at: At, found: Option<(NodeId, &Arc<Node>)>) {
        self.entries.insert(at, found.map(|found| found.0));
        if let Some((id, node)) = found {
            *self.lookups.entry(id).or_default() += 1;
            self.attributes.insert(id, attributes(node));
        }
    }

    /// A file was read whole.
    pub fn read(&mut self, id: NodeId, bytes: Vec<u8>) {
        if id == NodeId::ROOT || self.lookups.contains_key(&id) {
            self.bytes.insert(id, bytes);
        }
    }

    /// A directory was listed.
    pub fn listed(&mut self, dir: NodeId, names: BTreeSet<Vec<u8>>) {
        if dir == NodeId::ROOT || self.lookups.contains_key(&dir) {
            self.listings.insert(dir, names);
        }
    }

    /// Nodes that it holds, with their lookups.
    pub fn held(&self) -> impl ExactSizeIterator<Item = (NodeId, u64)> + '_ {
        self.lookups.iter().map(|(id, n)| (*id, *n))
    }

    /// Drops a node, as memory pressure does; the lookups must be given back.
    pub fn evict(&mut self, id: NodeId) -> u64 {
        self.attributes.remove(&id);
        self.bytes.remove(&id);
        self.listings.remove(&id);
        self.entries.retain(|at, node| at.0 != id && *node != Some(id));
        self.lookups.remove(&id).unwrap_or(0)
    }

    /// An own change passed through it. `nodes` are those bound at the names that it touches.
    pub fn changed(&mut self, op: &Op, nodes: &[NodeId]) {
        let names: Vec<&At> = match op {
            Op::Make { at, .. } | Op::Link { at, .. } | Op::Remove { at } => vec![at],
            Op::Rename { from, to, .. } => vec![from, to],
            _ => Vec::new(),
        };
        for at in names {
            self.entries.remove(at);
            self.listings.remove(&at.0);
            self.attributes.remove(&at.0);
        }
        let own = op.node();
        for id in nodes.iter().copied().chain(own) {
            self.attributes.remove(&id);
        }
        if let Op::Link { id, .. } = op {
            self.attributes.remove(id);
        }
        if let (Op::Write { .. } | Op::Truncate { .. }, Some(id)) = (op, own) {
            self.bytes.remove(&id);
        }
    }

    /// It is told.
    pub fn tell(&mut self, tells: &[Tell], counts: &mut Counts) {
        for tell in tells {
            match tell {
                Tell::Entry { parent, name } => {
                    counts.add("tell: entry");
                    self.entries.remove(&(*parent, name.clone()));
                }
                Tell::Listing(dir) => {
                    counts.add("tell: listing");
                    self.listings.remove(dir);
                    self.attributes.remove(dir);
                }
                Tell::Node { id, content, .. } => {
                    counts.add("tell: node");
                    self.attributes.remove(id);
                    if *content {
                        self.bytes.remove(id);
                    }
                }
            }
        }
    }

    /// Fails where something believed is not what the view says.
    ///
    /// # Errors
    /// The first stale belief.
    pub fn check(&self, running: &Running, counts: &mut Counts) -> Result<()> {
        counts.add("check: the kernel's beliefs");
        let view = running.session.view();
        for ((dir, name), believed) in &self.entries {
            if view.node(*dir).is_none() {
                continue;
            }
            let Ok(is) = view.entry(*dir, name) else {
                bail!("the kernel believes an entry of directory {dir}, which is no longer loaded");
            };
            let is = is.map(|entry| entry.node);
            ensure!(
                *believed == is,
                "stale entry: {name:?} in {dir} is {is:?}, the kernel believes {believed:?}"
            );
        }
        for (id, believed) in &self.attributes {
            if let Ok(found) = running.session.getattr(*id) {
                let is = attributes(&found.node);
                ensure!(
                    *believed == is,
                    "stale attributes of {id}: {is:?}, the kernel believes {believed:?}"
                );
            }
        }
        for (dir, believed) in &self.listings {
            if view.node(*dir).is_none() {
                continue;
            }
            let is: BTreeSet<Vec<u8>> = running.names_of(*dir)?;
            ensure!(
                *believed == is,
                "stale listing of {dir}: the kernel believes {believed:?}, it is {is:?}"
            );
        }
        for (id, believed) in &self.bytes {
            if view.node(*id).is_none() {
                continue;
            }
            if let Some(is) = running.bytes_at_hand(*id)? {
                ensure!(
                    *believed == is,
                    "stale bytes of {id}: the kernel has {}, it is {}",
                    believed.len(),
                    is.len()
                );
            }
        }
        Ok(())
    }

    /// What it believes of a name.
    pub fn believes(&self, dir: NodeId, name: &Name) -> Option<Option<NodeId>> {
        self.entries.get(&(dir, name.clone())).copied()
    }
}
