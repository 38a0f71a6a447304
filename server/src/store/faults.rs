//! The switches that make the in-memory twins fail on purpose, at a chosen call, before or after it took effect.

use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::path::PathBuf;
use std::sync::Arc;

use parking_lot::Mutex;

use super::disk::DiskError;

/// A call that can be told to fail.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Op {
    /// Creating a journal entry.
    JournalCreate,
    /// Reading journal entries.
    JournalRead,
    /// Putting a pack, whole or as the end of an upload.
    PackPut,
    /// Reading ranges of a pack.
    PackRead,
    /// Deleting a pack.
    PackDelete,
    /// Committing a batch to the index.
    IndexCommit,
    /// Flushing the index.
    IndexFlush,
}

impl Op {
    fn doing(self) -> &'static str {
        match self {
            Op::JournalCreate => "create a journal entry in",
            Op::JournalRead => "read journal entries from",
            Op::PackPut => "put a pack into",
            Op::PackRead => "read a pack from",
            Op::PackDelete => "delete a pack from",
            Op::IndexCommit => "commit a batch to",
            Op::IndexFlush => "flush",
        }
    }
}

/// How a call fails.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// It fails and nothing was done.
    Before,
    /// It fails although all of it was done: the caller cannot know.
    After,
    /// The disk is full; nothing was done.
    Full,
}

#[derive(Debug, Default)]
struct Planned {
    next: BTreeMap<Op, VecDeque<Option<Fault>>>,
    disk_full: bool,
}

/// The failures that are planned for the stores which share this value. Clones share their plan.
#[derive(Debug, Clone, Default)]
pub struct Faults(Arc<Mutex<Planned>>);

impl Faults {
    /// No failures.
    pub fn new() -> Self {
        Self::default()
    }

    /// Makes the next call of this kind fail. Several plans for one kind follow each other, one per call.
    pub fn fail_next(&self, op: Op, fault: Fault) {
        self.0.lock().next.entry(op).or_default().push_back(Some(fault));
    }

    /// Lets `calls` more calls of this kind succeed before the failures planned afterwards.
    pub fn pass(&self, op: Op, calls: usize) {
        self.0.lock().next.entry(op).or_default().extend(std::iter::repeat_n(None, calls));
    }

    /// Makes every call that needs space fail until it is switched off.
    pub fn set_disk_full(&self, full: bool) {
        self.0.lock().disk_full = full;
    }

    /// Forgets all plans.
    pub fn clear(&self) {
        *self.0.lock() = Planned::default();
    }

    /// Runs one call under the plan: `act` is what the call does, the inner error is what the plan says.
    pub(crate) fn run<T>(&self, op: Op, act: impl FnOnce() -> T) -> Result<T, DiskError> {
        match self.take(op) {
            None => Ok(act()),
            Some(Fault::After) => {
                act();
                Err(error(op, Fault::After))
            }
            Some(fault) => Err(error(op, fault)),
        }
    }

    fn take(&self, op: Op) -> Option<Fault> {
        let mut planned = self.0.lock();
        let needs_space = matches!(op, Op::JournalCreate | Op::PackPut | Op::IndexCommit | Op::IndexFlush);
        if planned.disk_full && needs_space {
            return Some(Fault::Full);
        }
        planned.next.get_mut(&op).and_then(VecDeque::pop_front).flatten()
    }
}

fn error(op: Op, fault: Fault) -> DiskError {
    let source = match fault {
        Fault::Full => io::Error::from(io::ErrorKind::StorageFull),
        Fault::Before | Fault::After => io::Error::other("failed on purpose"),
    };
    DiskError { doing: op.doing(), path: PathBuf::from("memory"), source }
}
