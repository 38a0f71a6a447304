//! What a checkpoint changed, as paths: for people who read the log.
//!
//! A checkpoint names nodes and directories by id, and carries the chain of each directory to the root as its
//! session had it. So paths are the session's own; where placing put a change elsewhere, the notes count it.

use std::collections::{BTreeMap, BTreeSet};
use tidefs_timeline::{Checkpoint, Name, NodeChange, NodeId, Spot, limits::DEPTH_MAX};

/// One change.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct PathChange {
    /// The path from the drive's root, beginning with a slash.
    pub path: String,
    /// `created`, `changed`, `attributes`, `removed`, `linked`, or `renamed from PATH`.
    pub what: String,
    /// The path before a rename.
    pub from: Option<String>,
}

impl PathChange {
    /// Whether it is at or below `filter`, or came from there. An empty filter and `/` let all pass.
    pub fn is_under(&self, filter: &str) -> bool {
        let filter = filter.trim_matches('/');
        let under = |path: &str| {
            let path = path.trim_start_matches('/');
            filter.is_empty()
                || path.strip_prefix(filter).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
        };
        under(&self.path) || self.from.as_deref().is_some_and(under)
    }
}

/// Which side of a checkpoint a path is of.
#[derive(Clone, Copy)]
enum Side {
    Before,
    After,
}

/// The changes of a checkpoint, in the order of their paths.
pub fn changes(checkpoint: &Checkpoint) -> Vec<PathChange> {
    let ck = checkpoint;
    let mut left: BTreeMap<NodeId, (NodeId, &Name)> = BTreeMap::new();
    let mut bound: BTreeSet<NodeId> = BTreeSet::new();
    for entry in &ck.entries {
        left.extend(entry.old.map(|node| (node, (entry.dir, &entry.name))));
        bound.extend(entry.new);
    }
    let mut out = Vec::new();
    let mut told: BTreeSet<String> = BTreeSet::new();
    for entry in &ck.entries {
        let change = match (entry.old, entry.new) {
            (old, Some(new)) => {
                let path = path(ck, Side::After, entry.dir, &entry.name);
                let born = ck.node(new).is_some_and(|change| change.born);
                let from = left
                    .get(&new)
                    .filter(|_| !born)
                    .map(|(dir, name)| self::path(ck, Side::Before, *dir, name));
                let what = match (&from, old) {
                    (Some(from), _) => format!("renamed from {from}"),
                    (None, Some(_)) => "changed".to_owned(),
                    (None, None) if born => "created".to_owned(),
                    (None, None) => "linked".to_owned(),
                };
                PathChange { path, what, from }
            }
            // The other half of a rename.
            (Some(old), None) if bound.contains(&old) => continue,
            (_, None) => {
                let path = path(ck, Side::Before, entry.dir, &entry.name);
                PathChange { path, what: "removed".to_owned(), from: None }
            }
        };
        told.insert(change.path.clone());
        out.push(change);
    }
    out.extend(ck.nodes.iter().filter_map(|change| node_change(ck, change, &told)));
    out.sort();
    out
}

/// The change of a node that was there before, at its first name.
fn node_change(ck: &Checkpoint, change: &NodeChange, told: &BTreeSet<String>) -> Option<PathChange> {
    let changed = &change.changed;
    let what = if changed.content.is_some() {
        "changed"
    } else if changed.owner.is_some() || !changed.attrs.is_empty() || changed.mtime {
        "attributes"
    } else {
        return None;
    };
    if change.born {
        return None;
    }
    let gone = |(dir, name): &&(NodeId, Name)| ck.entry(*dir, name).is_some_and(|e| e.new != Some(change.id));
    let path = if change.id == NodeId::ROOT {
        "/".to_owned()
    } else {
        let (dir, name) = change.names.iter().find(|spot| !gone(spot))?;
        path(ck, Side::After, *dir, name)
    };
    (!told.contains(&path)).then(|| PathChange { path, what: what.to_owned(), from: None })
}

fn path(ck: &Checkpoint, side: Side, dir: NodeId, name: &Name) -> String {
    let mut names = vec![name.to_string()];
    let mut at = dir;
    while at != NodeId::ROOT && names.len() < DEPTH_MAX {
        let spot: Option<&Spot> = ck.dir(at).and_then(|info| match side {
            Side::Before => info.before.as_ref().or(info.after.as_ref()),
            Side::After => info.after.as_ref().or(info.before.as_ref()),
        });
        let Some(spot) = spot else {
            names.push(format!("<{at}>"));
            break;
        };
        names.push(spot.name.to_string());
        at = spot.parent;
    }
    names.push(String::new());
    names.reverse();
    names.join("/")
}
