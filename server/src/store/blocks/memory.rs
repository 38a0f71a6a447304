//! Packs in memory: for tests and simulation. They outlive the server that uses them.

use std::collections::BTreeMap;
use std::ops::Bound;
use std::ops::Range;
use std::sync::Arc;

use async_trait::async_trait;
use bytes::{Bytes, BytesMut};
use parking_lot::Mutex;

use super::{Blocks, BlocksError, PACK_BYTES_MAX, PackId, PackUpload, check_id, check_limit, check_ranges};
use crate::store::faults::{Faults, Op};

/// Packs in memory. Clones are the same packs; a restarted server uses a clone.
#[derive(Debug, Clone, Default)]
pub struct MemoryBlocks {
    packs: Arc<Mutex<BTreeMap<PackId, Bytes>>>,
    faults: Faults,
}

impl MemoryBlocks {
    /// No packs, failing as `faults` says.
    pub fn new(faults: Faults) -> Self {
        Self { faults, ..Self::default() }
    }

    fn put(&self, id: PackId, pack: Bytes) -> Result<(), BlocksError> {
        check_limit(pack.len() as u64, PACK_BYTES_MAX)?;
        check_id(id, blake3::hash(&pack))?;
        self.faults.run(Op::PackPut, || self.packs.lock().insert(id, pack))?;
        Ok(())
    }
}

#[async_trait]
impl Blocks for MemoryBlocks {
    async fn put_pack(&self, id: PackId, pack: Bytes) -> Result<(), BlocksError> {
        self.put(id, pack)
    }

    async fn begin_upload(&self, limit: u64) -> Result<Box<dyn PackUpload>, BlocksError> {
        let limit = limit.min(PACK_BYTES_MAX);
        Ok(Box::new(MemoryUpload { blocks: self.clone(), limit, bytes: BytesMut::new() }))
    }

    async fn read(&self, id: PackId, ranges: &[Range<u64>]) -> Result<Vec<Bytes>, BlocksError> {
        check_ranges(id, ranges)?;
        let pack = self.packs.lock().get(&id).cloned().ok_or(BlocksError::NotFound { id })?;
        if let Some(range) = ranges.iter().find(|range| range.end > pack.len() as u64) {
            return Err(BlocksError::OutOfRange { id, range: range.clone() });
        }
        let slice = |range: &Range<u64>| pack.slice(range.start as usize..range.end as usize);
        Ok(self.faults.run(Op::PackRead, || ranges.iter().map(slice).collect())?)
    }

    async fn size(&self, id: PackId) -> Result<u64, BlocksError> {
        self.packs.lock().get(&id).map(|pack| pack.len() as u64).ok_or(BlocksError::NotFound { id })
    }

    async fn list(&self, after: Option<PackId>, limit: usize) -> Result<Vec<(PackId, u64)>, BlocksError> {
        let start = after.map_or(Bound::Unbounded, Bound::Excluded);
        let packs = self.packs.lock();
        let behind = packs.range((start, Bound::Unbounded)).take(limit);
        Ok(behind.map(|(id, pack)| (*id, pack.len() as u64)).collect())
    }

    async fn delete(&self, id: PackId) -> Result<(), BlocksError> {
        self.faults.run(Op::PackDelete, || self.packs.lock().remove(&id))?;
        Ok(())
    }
}

struct MemoryUpload {
    blocks: MemoryBlocks,
    limit: u64,
    bytes: BytesMut,
}

#[async_trait]
impl PackUpload for MemoryUpload {
    async fn write(&mut self, part: Bytes) -> Result<(), BlocksError> {
        check_limit((self.bytes.len() + part.len()) as u64, self.limit)?;
        self.bytes.extend_from_slice(&part);
        Ok(())
    }

    async fn finish(self: Box<Self>, expected: PackId) -> Result<u64, BlocksError> {
        let size = self.bytes.len() as u64;
        self.blocks.put(expected, self.bytes.freeze())?;
        Ok(size)
    }

    async fn abort(self: Box<Self>) {}
}
