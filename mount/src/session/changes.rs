//! What the kernel must forget when the view changes under it: the difference of what was shown and what is.

use super::{Session, before::At};
use crate::volume::Tell;
use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};
use tidefs_timeline::{Entry, Head, Name, Node, NodeId, Overlay};

/// What an arrival asks the owner to do next.
#[derive(Debug, Default)]
pub struct Told {
    /// To tell the kernel, in this order.
    pub tells: Vec<Tell>,
}

/// Names and nodes as they were shown, for those that may change.
#[derive(Debug, Default)]
pub(super) struct Shown {
    entries: BTreeMap<At, Option<NodeId>>,
    nodes: BTreeMap<NodeId, Option<Arc<Node>>>,
    /// Directories whose entries may all change, because a layer hides what lies below it or ceases to.
    whole: BTreeSet<NodeId>,
}

impl Session {
    /// Notes how everything that `changes` touches is shown now.
    pub(super) fn shown(&self, shown: &mut Shown, changes: &Overlay) {
        for (dir, entries) in &changes.entries {
            for name in entries.keys() {
                let at = (*dir, name.clone());
                if let Ok(entry) = self.view.entry(*dir, name) {
                    shown.entries.entry(at).or_insert(entry.map(|entry| entry.node));
                }
            }
        }
        let removed = changes.nodes.iter().filter(|(_, node)| node.is_none()).map(|(id, _)| id);
        for id in changes.born.iter().chain(removed).filter(|id| self.kernel.holds(**id)) {
            if shown.whole.insert(*id) {
                for (name, entry) in self.entries_shown(*id) {
                    shown.entries.entry((*id, name)).or_insert(Some(entry.node));
                }
            }
        }
        for id in changes.nodes.keys() {
            shown.nodes.entry(*id).or_insert_with(|| self.view.node(*id));
        }
    }

    fn entries_shown(&self, dir: NodeId) -> Vec<(Name, Entry)> {
        self.view.with(|view| view.entries(dir, None, usize::MAX)).unwrap_or_default()
    }

    /// What to tell the kernel now that things are shown otherwise; keeps nodes that the kernel still holds.
    pub(super) fn tell(&mut self, mut shown: Shown) -> Vec<Tell> {
        for dir in std::mem::take(&mut shown.whole) {
            for (name, _) in self.entries_shown(dir) {
                shown.entries.entry((dir, name)).or_insert(None);
            }
        }
        let mut tells = Vec::new();
        let mut listings = BTreeSet::new();
        for (at, was) in shown.entries {
            let is = match self.view.entry(at.0, &at.1) {
                Ok(entry) => entry.map(|entry| entry.node),
                Err(_) => continue,
            };
            self.listings.name_changed(&at, is.is_some());
            if was != is && self.kernel.holds(at.0) {
                listings.insert(at.0);
                tells.push(Tell::Entry { parent: at.0, name: at.1 });
            }
        }
        let mut nodes = Vec::new();
        for (id, was) in shown.nodes {
            if !self.kernel.holds(id) {
                continue;
            }
            let is = self.view.node(id);
            match (&was, &is) {
                (Some(was), None) => {
                    self.kernel.orphan(id, was);
                    // Whoever has it open sees that it has no name any more.
                    nodes.push(Tell::Node { id, parents: Vec::new(), content: false });
                }
                (None, Some(_)) => {
                    // The kernel kept it as it was when it left, or as it was written to since.
                    self.kernel.adopt(id);
                    nodes.push(Tell::Node { id, parents: self.parents(id), content: true });
                }
                _ => {}
            }
            if let (Some(was), Some(is)) = (&was, &is)
                && was != is
                && !listings.contains(&id)
            {
                let content = was.content.value != is.content.value;
                nodes.push(Tell::Node { id, parents: self.parents(id), content });
            }
        }
        tells.extend(listings.into_iter().map(Tell::Listing));
        tells.extend(nodes);
        tells
    }

    /// Directories that name a node and that the kernel holds.
    fn parents(&self, id: NodeId) -> Vec<NodeId> {
        let parents = self.view.names(id).into_iter().map(|at| at.0).filter(|dir| self.kernel.holds(*dir));
        parents.collect::<BTreeSet<NodeId>>().into_iter().collect()
    }
}
