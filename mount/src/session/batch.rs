//! The open batch: changes in the order of the log, and what they found.

use super::{
    before::{At, Before},
    op::Op,
    settle::Change,
};
use std::collections::BTreeMap;
use tidefs_timeline::Timestamp;

/// A change that was checked and is to be logged.
#[derive(Clone, Debug)]
pub struct Planned {
    /// The change.
    pub op: Op,
    /// When.
    pub now: Timestamp,
    /// What the batch has not touched before.
    pub context: Before,
    /// What it means for settling.
    pub change: Change,
    /// Whether it is about a file that has left the tree: then it is not logged and never ships.
    pub orphan: bool,
}

/// A change that is in the log.
#[derive(Clone, Debug)]
pub struct Logged {
    /// The change.
    pub op: Op,
    /// When.
    pub now: Timestamp,
    /// What it means for settling.
    pub change: Change,
    /// Where its record begins in the log.
    pub start: u64,
}

/// Changes since the last cut.
#[derive(Debug, Default)]
pub struct Batch {
    /// What they found.
    pub before: Before,
    /// The changes.
    pub ops: Vec<Logged>,
    /// Bytes written.
    pub bytes: u64,
}

impl Batch {
    /// Number of changes.
    pub fn len(&self) -> usize {
        self.ops.len()
    }

    /// Whether nothing changed.
    pub fn is_empty(&self) -> bool {
        self.ops.is_empty()
    }
}

/// When each name that the changes touch last changed.
pub fn stamps(ops: &[Logged]) -> BTreeMap<At, Timestamp> {
    let mut stamps = BTreeMap::new();
    for logged in ops {
        match &logged.op {
            Op::Make { at, .. } | Op::Link { at, .. } | Op::Remove { at } => {
                stamps.insert(at.clone(), logged.now);
            }
            Op::Rename { from, to, .. } => {
                stamps.insert(from.clone(), logged.now);
                stamps.insert(to.clone(), logged.now);
            }
            _ => {}
        }
    }
    stamps
}
