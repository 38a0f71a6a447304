//! What must hold of every placing, whatever the head and the checkpoint.

use super::mini::shape;
use crate::{Checkpoint, Content, Head, NodeId, Overlay, Placed, Tree, Version, overlay::Over, place};
use std::collections::{BTreeMap, BTreeSet};

/// The head is a tree: every node is reached from the root, no directory has two names, and what follows from
/// the entries (links, subdirectories, the index of names) is exact.
pub fn is_tree(tree: &Tree) -> Result<(), String> {
    let mut names: BTreeMap<NodeId, Vec<_>> = BTreeMap::new();
    let mut subdirs: BTreeMap<NodeId, u32> = BTreeMap::new();
    let mut todo = vec![NodeId::ROOT];
    let mut reached = BTreeSet::from([NodeId::ROOT]);
    while let Some(dir) = todo.pop() {
        for (name, entry) in tree.entries(dir, None, usize::MAX).map_err(|e| e.to_string())? {
            let Ok(Some(node)) = tree.node(entry.node) else {
                return Err(format!("{name} in {dir} names {} which is not there", entry.node));
            };
            names.entry(entry.node).or_default().push((dir, name));
            *subdirs.entry(dir).or_default() += u32::from(node.is_dir());
            if reached.insert(entry.node) && node.is_dir() {
                todo.push(entry.node);
            }
        }
    }
    if let Some(lost) = tree.node_ids().find(|id| !reached.contains(id)) {
        return Err(format!("node {lost} is not reached from the root"));
    }
    let dirs: BTreeSet<NodeId> = tree.loaded_dirs().collect();
    for id in tree.node_ids() {
        let node = tree.node(id).unwrap().unwrap();
        let mut named = names.remove(&id).unwrap_or_default();
        named.sort();
        let links = named.len() as u32 + u32::from(id == NodeId::ROOT);
        if node.is_dir() && links != 1 {
            return Err(format!("directory {id} has the names {named:?}"));
        }
        if node.links != links {
            return Err(format!("node {id} counts {} links, has {links}", node.links));
        }
        if node.subdirs != subdirs.get(&id).copied().unwrap_or(0) {
            return Err(format!("directory {id} counts {} subdirectories", node.subdirs));
        }
        if tree.names(id).unwrap() != named {
            return Err(format!("node {id}: names {:?}, bound {named:?}", tree.names(id)));
        }
        if node.is_dir() != dirs.contains(&id) {
            return Err(format!("node {id}: directory and loaded differ"));
        }
    }
    match dirs.iter().find(|dir| !reached.contains(dir)) {
        Some(dir) => Err(format!("entries of {dir} are kept, which is gone")),
        None => Ok(()),
    }
}

/// Places and checks: the same inputs give the same result, the result is a tree, and the effects applied to the
/// head give what the effects laid over the head give.
pub fn place_sound(head: &Tree, checkpoint: &Checkpoint) -> Placed {
    let placed = place(head, checkpoint).unwrap();
    assert_eq!(place(head, checkpoint).unwrap(), placed, "two placings differ");
    let mut after = head.clone();
    after.apply(&placed.effects);
    let tree = is_tree(&after);
    assert_eq!(tree, Ok(()), "\nhead {}\n{checkpoint:#?}\nnotes {:?}", shape(head), placed.notes);
    let over = Over { below: head, top: &placed.effects };
    same(&after, &over, head);
    // What comes over the wire has no index of names: applying it must come to the same.
    let mut wire = Overlay::default();
    let all = placed.effects.clone();
    (wire.nodes, wire.born, wire.entries) = (all.nodes, all.born, all.entries);
    (wire.aliases, wire.heirs, wire.tombstones) = (all.aliases, all.heirs, all.tombstones);
    wire.index_names();
    let mut told = head.clone();
    told.apply(&wire);
    assert_eq!(told, after, "applied from the wire");
    placed
}

fn same(after: &Tree, over: &Over<'_, Tree>, head: &Tree) {
    let mut ids: BTreeSet<NodeId> = head.node_ids().chain(after.node_ids()).collect();
    ids.extend(over.top.aliases.keys().chain(over.top.heirs.keys()));
    for id in ids {
        assert_eq!(after.node(id), over.node(id), "node {id}");
        assert_eq!(after.alias(id), over.alias(id), "alias {id}");
        assert_eq!(after.heir(id), over.heir(id), "heir {id}");
        assert_eq!(after.entries(id, None, 99), over.entries(id, None, 99), "entries of {id}");
        if after.node(id).unwrap().is_some() {
            assert_eq!(after.names(id), over.names(id), "names of {id}");
        }
    }
    for (dir, name) in over.top.tombstones.keys() {
        assert_eq!(after.tombstone(*dir, name), over.tombstone(*dir, name));
    }
}

/// The same for a checkpoint that a session made, which had seen `seen`: no content goes without a word.
pub fn place_checked(head: &Tree, checkpoint: &Checkpoint, seen: &BTreeSet<(NodeId, Version)>) -> Placed {
    let placed = place_sound(head, checkpoint);
    let mut after = head.clone();
    after.apply(&placed.effects);
    let contents = |tree: &Tree| -> Vec<(NodeId, Version, Content)> {
        let nodes = tree.node_ids().map(|id| (id, tree.node(id).unwrap().unwrap()));
        nodes
            .filter(|(_, node)| !node.is_dir())
            .map(|(id, node)| (id, node.content.version, node.content.value.clone()))
            .collect()
    };
    let told: Vec<Content> = placed
        .overlaps
        .iter()
        .filter_map(|overlap| overlap.was.as_ref().map(|was| was.content.value.clone()))
        .collect();
    let now = contents(&after);
    let kept = |content: &Content| now.iter().any(|(_, _, value)| value == content) || told.contains(content);
    let context = || format!("\nhead {}\nafter {}\n{checkpoint:#?}\n{placed:#?}", shape(head), shape(&after));
    for (id, version, content) in contents(head) {
        let mine = version.session == checkpoint.session || seen.contains(&(id, version));
        assert!(mine || kept(&content), "content {version} of {id} vanished{}", context());
    }
    for change in &checkpoint.nodes {
        let carried = (change.born && !change.node.is_dir()) || change.changed.content.is_some();
        assert!(!carried || kept(&change.node.content.value), "content of {} lost{}", change.id, context());
    }
    for overlap in &placed.overlaps {
        let own_side = overlap.lost == checkpoint.version();
        assert!(own_side || overlap.lost.session != checkpoint.session, "overlap with itself{}", context());
    }
    placed
}
