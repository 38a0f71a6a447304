//! The index in memory: for tests and simulation. It outlives the server that uses it, and can lose what was not
//! flushed.

use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::Arc;

use parking_lot::Mutex;

use super::{Batch, Index, IndexError, Pair};
use crate::store::faults::{Faults, Op};

/// An index in memory. Clones are the same index; a restarted server uses a clone.
#[derive(Debug, Clone, Default)]
pub struct MemoryIndex {
    state: Arc<Mutex<State>>,
    faults: Faults,
}

#[derive(Debug, Default)]
struct State {
    pairs: BTreeMap<Vec<u8>, Vec<u8>>,
    position: u64,
    flushed_position: u64,
    /// What each change since the last flush replaced, oldest first.
    undo: Vec<(Vec<u8>, Option<Vec<u8>>)>,
}

impl MemoryIndex {
    /// An empty index that fails as `faults` says.
    pub fn new(faults: Faults) -> Self {
        Self { faults, ..Self::default() }
    }

    /// Loses every batch since the last flush, as a power cut does.
    pub fn lose_unsynced(&self) {
        let mut state = self.state.lock();
        let undo = std::mem::take(&mut state.undo);
        for (key, value) in undo.into_iter().rev() {
            state.set(key, value);
        }
        state.position = state.flushed_position;
    }

    /// Loses everything, as an index does that did not open and was moved aside.
    pub fn lose_all(&self) {
        *self.state.lock() = State::default();
    }
}

impl State {
    fn set(&mut self, key: Vec<u8>, value: Option<Vec<u8>>) -> Option<Vec<u8>> {
        match value {
            Some(value) => self.pairs.insert(key, value),
            None => self.pairs.remove(&key),
        }
    }
}

impl Index for MemoryIndex {
    fn get(&self, key: &[u8]) -> Result<Option<Vec<u8>>, IndexError> {
        super::check_key(key)?;
        Ok(self.state.lock().pairs.get(key).cloned())
    }

    fn range(&self, prefix: &[u8], after: Option<&[u8]>, limit: usize) -> Result<Vec<Pair>, IndexError> {
        let start = match after {
            Some(after) if after >= prefix => Bound::Excluded(after),
            _ => Bound::Included(prefix),
        };
        let state = self.state.lock();
        let behind = state.pairs.range::<[u8], _>((start, Bound::Unbounded));
        let inside = behind.take_while(|(key, _)| key.starts_with(prefix));
        Ok(inside.take(limit).map(|(key, value)| (key.clone(), value.clone())).collect())
    }

    fn commit(&self, batch: Batch, position: u64) -> Result<(), IndexError> {
        batch.check()?;
        let mut state = self.state.lock();
        if position < state.position {
            return Err(IndexError::PositionBack { asked: position, position: state.position });
        }
        self.faults.run(Op::IndexCommit, || {
            for (key, value) in batch.changes {
                let old = state.set(key.clone(), value);
                state.undo.push((key, old));
            }
            state.position = position;
        })?;
        Ok(())
    }

    fn position(&self) -> Result<u64, IndexError> {
        Ok(self.state.lock().position)
    }

    fn flush(&self) -> Result<(), IndexError> {
        let mut state = self.state.lock();
        self.faults.run(Op::IndexFlush, || {
            state.undo.clear();
            state.flushed_position = state.position;
        })?;
        Ok(())
    }
}
