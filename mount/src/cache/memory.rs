//! Decoded blocks in memory, least recently used out first.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use tidefs_proto::pack::Hash;

/// What one entry costs beside its bytes, roughly; so that tiny blocks are bounded too.
const ENTRY_BYTES: u64 = 160;

pub(super) struct Memory {
    blocks: HashMap<Hash, (Arc<[u8]>, u64)>,
    by_use: BTreeMap<u64, Hash>,
    uses: u64,
    bytes: u64,
    bytes_max: u64,
}

impl Memory {
    pub(super) fn new(bytes_max: u64) -> Memory {
        Memory { blocks: HashMap::new(), by_use: BTreeMap::new(), uses: 0, bytes: 0, bytes_max }
    }

    pub(super) fn get(&mut self, hash: &Hash) -> Option<Arc<[u8]>> {
        let (block, used) = self.blocks.get_mut(hash)?;
        self.uses += 1;
        self.by_use.remove(used);
        self.by_use.insert(self.uses, *hash);
        *used = self.uses;
        Some(Arc::clone(block))
    }

    pub(super) fn contains(&self, hash: &Hash) -> bool {
        self.blocks.contains_key(hash)
    }

    pub(super) fn insert(&mut self, hash: Hash, block: Arc<[u8]>) {
        if self.get(&hash).is_some() || cost(&block) > self.bytes_max {
            return;
        }
        self.uses += 1;
        self.bytes += cost(&block);
        self.by_use.insert(self.uses, hash);
        self.blocks.insert(hash, (block, self.uses));
        while self.bytes > self.bytes_max {
            let Some((_, oldest)) = self.by_use.pop_first() else { break };
            if let Some((gone, _)) = self.blocks.remove(&oldest) {
                self.bytes -= cost(&gone);
            }
        }
    }

    /// Bytes held, overhead included.
    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }
}

fn cost(block: &[u8]) -> u64 {
    block.len() as u64 + ENTRY_BYTES
}
