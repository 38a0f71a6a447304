//! Directories that are being fetched.
//!
//! A fetched directory is a picture at the server's position, which is rarely the one applied here. One from the
//! future waits until the stream has brought us there; one from the past is brought forward with what has passed
//! since it was asked for.

use super::Session;
use std::{
    collections::{BTreeMap, VecDeque},
    sync::Arc,
};
use tidefs_proto::PlacedLine;
use tidefs_timeline::{Entry, Name, Node, NodeId, Overlay, Position};

/// What a server said of a directory.
#[derive(Clone, Debug)]
pub struct Directory {
    /// The directory asked for.
    pub id: NodeId,
    /// The position that it is a picture of.
    pub position: Position,
    /// What it is there.
    pub what: DirectoryState,
}

/// What a directory is at a position.
#[derive(Clone, Debug)]
pub enum DirectoryState {
    /// Not in the tree.
    Gone,
    /// United with another.
    Alias(NodeId),
    /// Its entries, and every node that they name, with itself.
    Listing {
        /// Entries.
        entries: BTreeMap<Name, Entry>,
        /// Nodes.
        nodes: Vec<(NodeId, Arc<Node>)>,
    },
}

/// Lines kept for pictures from the past.
const PASSED_MAX: usize = 4096;

/// Fetches under way.
#[derive(Debug, Default)]
pub struct Loading {
    under_way: usize,
    /// What has passed since the oldest of them began.
    passed: VecDeque<(Position, Arc<Overlay>)>,
    /// Pictures from positions that are not applied yet.
    early: Vec<Directory>,
}

impl Loading {
    pub(super) fn passed(&mut self, line: &PlacedLine) {
        if self.under_way > 0 {
            self.passed.push_back((line.position, Arc::new(line.placed.effects.clone())));
            if self.passed.len() > PASSED_MAX {
                self.passed.pop_front();
            }
        }
    }
}

impl Session {
    /// A fetch begins. Each needs its [`Session::load_ended`].
    pub fn load_began(&mut self) {
        self.loading.under_way += 1;
    }

    /// A fetch ended, well or not.
    pub fn load_ended(&mut self) {
        self.loading.under_way = self.loading.under_way.saturating_sub(1);
        if self.loading.under_way == 0 {
            self.loading.passed.clear();
        }
    }

    /// Takes in what was fetched. A picture from the future is kept until its position is applied.
    pub fn loaded(&mut self, directory: Directory) {
        if directory.position > self.view.position {
            self.loading.early.push(directory);
        } else {
            self.take_in(directory);
        }
    }

    /// Whether a directory can be looked into now.
    pub fn is_loaded(&self, dir: NodeId) -> bool {
        self.view.applied.is_loaded(dir)
            || self.view.sealed.born.contains(&dir)
            || self.view.open.born.contains(&dir)
    }

    pub(super) fn settle_loads(&mut self) {
        if self.loading.early.is_empty() {
            return;
        }
        let here = self.view.position;
        let (ready, early) =
            std::mem::take(&mut self.loading.early).into_iter().partition(|dir| dir.position <= here);
        self.loading.early = early;
        let ready: Vec<Directory> = ready;
        ready.into_iter().for_each(|directory| self.take_in(directory));
    }

    fn take_in(&mut self, directory: Directory) {
        let oldest = self.loading.passed.front().map(|(position, _)| *position);
        let reaches = directory.position == self.view.position
            || oldest.is_some_and(|oldest| oldest <= directory.position.next());
        if self.view.applied.is_loaded(directory.id) || !reaches {
            return;
        }
        let tree = &mut self.view.applied;
        match directory.what {
            DirectoryState::Gone => tree.apply(&gone(directory.id)),
            DirectoryState::Alias(to) => tree.put_alias(directory.id, to),
            DirectoryState::Listing { entries, nodes } => {
                nodes.into_iter().for_each(|(id, node)| tree.put_node(id, node));
                tree.load_dir(directory.id, entries);
            }
        }
        for (position, effects) in &self.loading.passed {
            if *position > directory.position {
                tree.apply(effects);
            }
        }
        self.listings.forget(directory.id);
    }
}

fn gone(dir: NodeId) -> Overlay {
    let mut gone = Overlay::default();
    gone.nodes.insert(dir, None);
    gone
}
