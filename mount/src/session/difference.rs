//! The net difference of a batch: what it found, against what it left. A file made and removed within the batch
//! does not appear; one renamed twice appears once.

use super::before::{At, Before};
use std::{collections::BTreeMap, sync::Arc};
use tidefs_timeline::{
    Changed, Checkpoint, CheckpointNo, DirInfo, EntryChange, LostNode, Node, NodeChange, NodeId, Overlay,
    Owner, Position, SessionNo, Spot, Timestamp, Version,
};

/// Who ships, under which number, on top of which position.
#[derive(Clone, Debug)]
pub struct Heading {
    /// The session.
    pub session: SessionNo,
    /// Its name.
    pub session_name: String,
    /// The checkpoint's number.
    pub number: CheckpointNo,
    /// The position applied at the cut.
    pub applied: Position,
}

struct Difference<'a> {
    before: &'a Before,
    after: &'a Overlay,
    heading: &'a Heading,
    /// Last change of each name.
    stamps: &'a BTreeMap<At, Timestamp>,
}

/// The checkpoint that leads from `before` to `after`. `stamps` tells when each name last changed.
pub fn difference(
    before: &Before,
    after: &Overlay,
    heading: &Heading,
    stamps: &BTreeMap<At, Timestamp>,
) -> Checkpoint {
    let diff = Difference { before, after, heading, stamps };
    let entries = diff.entries();
    let mut nodes = diff.nodes(&entries);
    // What was made and undone has moved nothing but a directory's times: that is no reason to ship.
    let drift = Changed { ctime: true, ..Changed::default() };
    if entries.is_empty() && nodes.iter().all(|node| node.node.is_dir() && node.changed == drift) {
        nodes.clear();
    }
    Checkpoint {
        session: heading.session,
        session_name: heading.session_name.clone(),
        number: heading.number,
        applied: heading.applied,
        dirs: diff.dirs(&entries, &nodes),
        lost: diff.lost(&entries),
        entries,
        nodes,
    }
}

impl Difference<'_> {
    /// The version of another session that stands here; an own version is no base.
    fn base(&self, version: Version) -> Option<Version> {
        (version.session != self.heading.session).then_some(version)
    }

    fn entries(&self) -> Vec<EntryChange> {
        let mut changes = Vec::new();
        for (dir, entries) in &self.after.entries {
            for (name, now) in entries {
                let at = (*dir, name.clone());
                let was = self.before.entries.get(&at).copied().unwrap_or_default();
                let (old, new) = (was.entry.map(|entry| entry.node), now.map(|entry| entry.node));
                if old == new {
                    continue;
                }
                let seen = was.entry.map(|entry| entry.version).or(was.tombstone);
                let time = self.stamps.get(&at).copied().unwrap_or_default();
                let base = seen.and_then(|version| self.base(version));
                changes.push(EntryChange { dir: *dir, name: name.clone(), old, new, base, time });
            }
        }
        changes
    }

    fn nodes(&self, entries: &[EntryChange]) -> Vec<NodeChange> {
        let mut bound: BTreeMap<NodeId, Vec<At>> = BTreeMap::new();
        let mut entered: BTreeMap<NodeId, Timestamp> = BTreeMap::new();
        for entry in entries {
            let last = entered.entry(entry.dir).or_insert(entry.time);
            *last = (*last).max(entry.time);
            if let Some(node) = entry.new {
                bound.entry(node).or_default().push((entry.dir, entry.name.clone()));
            }
        }
        let mut changes = Vec::new();
        for (id, node) in &self.after.nodes {
            let Some(node) = node else { continue };
            let was = self.before.nodes.get(id);
            let new_names = bound.remove(id).unwrap_or_default();
            if was.is_none() && new_names.is_empty() {
                continue;
            }
            let changed =
                was.map_or(Changed::default(), |was| self.changed(was, node, entered.get(id).copied()));
            if was.is_some() && changed.is_empty() && new_names.is_empty() {
                continue;
            }
            changes.push(self.node_change(*id, node, changed, new_names));
        }
        // Nodes that were only bound elsewhere.
        for (id, new_names) in bound {
            if let Some(node) = self.before.nodes.get(&id) {
                changes.push(self.node_change(id, node, Changed::default(), new_names));
            }
        }
        changes.sort_by_key(|change| change.id);
        changes
    }

    fn node_change(&self, id: NodeId, node: &Arc<Node>, changed: Changed, new_names: Vec<At>) -> NodeChange {
        let mut names = self.before.names.get(&id).cloned().unwrap_or_default();
        names.extend(new_names);
        names.sort();
        names.dedup();
        let was = self.before.nodes.get(&id);
        NodeChange {
            id,
            born: was.is_none(),
            node: Node::clone(node),
            changed,
            names,
            links_before: was.map_or(0, |was| was.links),
        }
    }

    fn changed(&self, was: &Node, is: &Node, entered: Option<Timestamp>) -> Changed {
        let mine = Version { session: self.heading.session, number: self.heading.number };
        let mut changed = Changed::default();
        if is.content.version == mine && was.content.version != mine {
            changed.content = Some(self.base(was.content.version));
        }
        if is.owner.version == mine && is.owner.value != was.owner.value {
            changed.owner = Some(self.base(was.owner.version));
        }
        let (then, now) = (was.times.value, is.times.value);
        if is.is_dir() {
            // A directory's times follow from its entries; what was set, or is later than that, is carried.
            let follows = |then: Timestamp| entered.map_or(then, |time| then.max(time));
            let later = now.mtime > follows(then.mtime) || now.ctime > follows(then.ctime);
            changed.mtime = is.times.version == mine;
            changed.ctime = changed.mtime || changed.owner.is_some() || later;
        } else {
            changed.mtime = now.mtime != then.mtime;
            changed.ctime = now.ctime != then.ctime;
        }
        for (name, value) in &is.attrs {
            let old = was.attrs.get(name);
            if value.version == mine && old.is_none_or(|old| old.value != value.value) {
                changed.attrs.push((name.clone(), old.and_then(|old| self.base(old.version))));
            }
        }
        for (name, old) in was.attrs.iter().filter(|(name, _)| !is.attrs.contains_key(*name)) {
            changed.attrs.push((name.clone(), self.base(old.version)));
        }
        changed.attrs.sort();
        changed
    }

    fn lost(&self, entries: &[EntryChange]) -> Vec<LostNode> {
        let mut lost = BTreeMap::new();
        for id in entries.iter().filter_map(|entry| entry.old) {
            let Some(node) = self.before.nodes.get(&id) else { continue };
            lost.entry(id).or_insert_with(|| LostNode {
                id,
                is_dir: node.is_dir(),
                content: self.base(node.content.version),
                owner: self.base(node.owner.version),
                owner_seen: node.owner.value,
            });
        }
        lost.into_values().collect()
    }

    fn dirs(&self, entries: &[EntryChange], nodes: &[NodeChange]) -> Vec<DirInfo> {
        let mut after: BTreeMap<NodeId, Spot> = BTreeMap::new();
        for (dir, names) in &self.after.entries {
            for (name, entry) in names {
                if let Some(entry) = entry {
                    after.insert(entry.node, Spot { parent: *dir, name: name.clone() });
                }
            }
        }
        let named = nodes.iter().flat_map(|node| node.names.iter().map(|at| at.0));
        let moved = nodes.iter().filter(|node| node.node.is_dir()).map(|node| node.id);
        let mut todo: Vec<NodeId> = entries.iter().map(|entry| entry.dir).chain(named).chain(moved).collect();
        let mut dirs = BTreeMap::new();
        while let Some(id) = todo.pop() {
            if dirs.contains_key(&id) {
                continue;
            }
            let info = self.dir_info(id, &after);
            todo.extend(info.before.iter().chain(&info.after).map(|spot| spot.parent));
            dirs.insert(id, info);
        }
        dirs.into_values().collect()
    }

    fn dir_info(&self, id: NodeId, after: &BTreeMap<NodeId, Spot>) -> DirInfo {
        let before = self.before.spots.get(&id).cloned().flatten();
        let removed = matches!(self.after.nodes.get(&id), Some(None));
        let node =
            self.after.nodes.get(&id).cloned().flatten().or_else(|| self.before.nodes.get(&id).cloned());
        DirInfo {
            id,
            after: if removed { None } else { after.get(&id).cloned().or_else(|| before.clone()) },
            before,
            owner: node.map_or(Owner { mode: 0o755, uid: 0, gid: 0 }, |node| node.owner.value),
        }
    }
}
