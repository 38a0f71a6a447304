//! The journal in memory: for tests and simulation. It outlives the server that uses it.

use std::collections::BTreeMap;
use std::sync::{Arc, OnceLock};

use async_trait::async_trait;
use bytes::Bytes;
use parking_lot::Mutex;

use super::segment::Budget;
use super::{Bounds, Journal, JournalError, check_create};
use crate::store::faults::{Faults, Op};

/// A journal in memory. Clones are the same object; [`MemoryJournal::reopen`] gives a new object on the same
/// entries, as a restarted server would have. It drops exactly what it is allowed to drop.
#[derive(Debug, Clone, Default)]
pub struct MemoryJournal {
    entries: Arc<Mutex<Entries>>,
    poison: Arc<OnceLock<String>>,
    faults: Faults,
}

#[derive(Debug)]
struct Entries {
    bodies: BTreeMap<u64, Bytes>,
    first: u64,
    next: u64,
}

impl Default for Entries {
    fn default() -> Self {
        Self { bodies: BTreeMap::new(), first: 1, next: 1 }
    }
}

impl MemoryJournal {
    /// An empty journal that fails as `faults` says.
    pub fn new(faults: Faults) -> Self {
        Self { faults, ..Self::default() }
    }

    /// A new object on the same entries, not poisoned.
    pub fn reopen(&self) -> Self {
        Self { poison: Arc::default(), ..self.clone() }
    }

    fn check_poison(&self) -> Result<(), JournalError> {
        match self.poison.get() {
            Some(why) => Err(JournalError::Poisoned { why: why.clone() }),
            None => Ok(()),
        }
    }
}

#[async_trait]
impl Journal for MemoryJournal {
    async fn create(&self, entry: u64, body: Bytes) -> Result<(), JournalError> {
        self.check_poison()?;
        let mut entries = self.entries.lock();
        check_create(entry, entries.next, body.len())?;
        let done = self.faults.run(Op::JournalCreate, || {
            entries.bodies.insert(entry, body);
            entries.next += 1;
        });
        if let Err(error) = &done {
            let _ = self.poison.set(error.to_string());
        }
        Ok(done?)
    }

    async fn read_from(&self, first: u64, max_bytes: usize) -> Result<Vec<(u64, Bytes)>, JournalError> {
        self.check_poison()?;
        let entries = self.entries.lock();
        if first < entries.first {
            return Err(JournalError::Dropped { entry: first, first: entries.first });
        }
        Ok(self.faults.run(Op::JournalRead, || {
            let mut budget = Budget::new(max_bytes);
            for (&entry, body) in entries.bodies.range(first..) {
                if !budget.admits(body.len()) {
                    break;
                }
                budget.take(entry, body.clone());
            }
            budget.entries
        })?)
    }

    async fn bounds(&self) -> Result<Bounds, JournalError> {
        self.check_poison()?;
        let entries = self.entries.lock();
        Ok(Bounds { first: entries.first, next: entries.next })
    }

    async fn drop_before(&self, entry: u64) -> Result<(), JournalError> {
        self.check_poison()?;
        let mut entries = self.entries.lock();
        if entry > entries.next {
            return Err(JournalError::NotNext { entry, next: entries.next });
        }
        if entry > entries.first {
            entries.bodies = entries.bodies.split_off(&entry);
            entries.first = entry;
        }
        Ok(())
    }
}
