//! Reading a file's bytes: from the log, from blocks at hand, or from blocks fetched from the server.

use super::{Engine, orphans::ORPHAN_BIT};
use crate::{
    link::FETCH_WAIT,
    volume::{Answer, Load, Reading, Stop},
    wal::LogPos,
};
use std::{collections::BTreeSet, sync::Arc};
use tidefs_proto::manifest;
use tidefs_timeline::{Hash, NodeId, Piece, Source};

impl Engine {
    /// Reads `len` bytes at `offset`; the lock is held only to find out where they lie.
    pub(crate) fn read_at(self: &Arc<Self>, id: NodeId, offset: u64, len: u32) -> Answer<Reading> {
        let (bytes, missing) = {
            // The log's bytes are read under the lock: a cut cannot free them meanwhile.
            let core = self.core.lock();
            let (pieces, len) = core.session.read_plan(id, offset, len)?;
            let mut bytes = vec![0; len as usize];
            self.fill_local(&pieces, offset, &mut bytes)?;
            let blocks = pieces.into_iter().filter(|(_, piece)| matches!(piece.source, Source::Block { .. }));
            (bytes, blocks.collect::<Vec<_>>())
        };
        if missing.is_empty() {
            return Ok(Reading::Now(bytes));
        }
        let mut bytes = bytes;
        let missing = self.fill_blocks(missing, offset, &mut bytes);
        if missing.is_empty() {
            return Ok(Reading::Now(bytes));
        }
        let engine = self.clone();
        Ok(Reading::Later(Box::pin(async move {
            let wanted: BTreeSet<Hash> = missing.iter().filter_map(|(_, piece)| hash_of(piece)).collect();
            let mut missing = missing;
            for some in wanted.into_iter().collect::<Vec<_>>().chunks(tidefs_proto::limits::FETCH_BLOCKS_MAX)
            {
                engine.fetch_blocks(some).await?;
                missing = engine.fill_blocks(missing, offset, &mut bytes);
            }
            if missing.is_empty() { Ok(bytes) } else { Err(libc::EIO) }
        })))
    }

    fn fill_local(&self, pieces: &[(u64, Piece)], offset: u64, bytes: &mut [u8]) -> Answer<()> {
        for (at, piece) in pieces {
            let Source::Local(address) = piece.source else { continue };
            let from = (at - offset) as usize;
            self.read_local(address, &mut bytes[from..from + piece.len as usize])?;
        }
        Ok(())
    }

    /// Reads bytes that lie in the log, or in the file of those without a name.
    pub(crate) fn read_local(&self, address: u64, into: &mut [u8]) -> Answer<()> {
        let read = if address & ORPHAN_BIT != 0 {
            self.local.orphans.read_into(address, into).map_err(|error| error.to_string())
        } else {
            self.local.reader.read_into(LogPos(address), into).map_err(|error| error.to_string())
        };
        read.map_err(|error| {
            tracing::error!(%error, address, "bytes in the log cannot be read");
            self.troubled(format_args!("bytes in the log cannot be read: {error}"));
            Stop::Errno(libc::EIO)
        })
    }

    /// Copies what is at hand; returns the pieces that are not.
    fn fill_blocks(&self, pieces: Vec<(u64, Piece)>, offset: u64, bytes: &mut [u8]) -> Vec<(u64, Piece)> {
        let mut missing = Vec::new();
        let mut last: Option<(Hash, Arc<[u8]>)> = None;
        for (at, piece) in pieces {
            let Source::Block { hash, offset: inside } = piece.source else { continue };
            let block = match &last {
                Some((known, block)) if *known == hash => Some(block.clone()),
                _ => self.local.cache.get(&hash.0),
            };
            let (from, inside) = ((at - offset) as usize, inside as usize);
            let part = block.as_ref().and_then(|block| block.get(inside..inside + piece.len as usize));
            match (part, &block) {
                (Some(part), Some(block)) => {
                    bytes[from..from + part.len()].copy_from_slice(part);
                    last = Some((hash, block.clone()));
                }
                _ => missing.push((at, piece)),
            }
        }
        missing
    }

    /// Fetches blocks into the cache.
    pub(crate) async fn fetch_blocks(&self, hashes: &[Hash]) -> Result<(), i32> {
        if !self.seen.connected.load(std::sync::atomic::Ordering::Relaxed) {
            return Err(libc::EIO);
        }
        let fetched =
            self.link.fetch_blocks(self.fixed.drive_id, hashes, FETCH_WAIT).await.map_err(|error| {
                tracing::warn!(%error, "blocks cannot be fetched");
                self.troubled(&error);
                error.errno()
            })?;
        for (hash, bytes) in fetched {
            if let Err(error) = self.local.cache.insert(&hash.0, &bytes) {
                tracing::warn!(%error, block = %hash, "a fetched block is not what it should be");
                return Err(libc::EIO);
            }
        }
        Ok(())
    }

    /// One block, from the cache or fetched.
    pub(crate) async fn block(&self, hash: Hash) -> Result<Arc<[u8]>, i32> {
        if let Some(block) = self.local.cache.get(&hash.0) {
            return Ok(block);
        }
        self.fetch_blocks(&[hash]).await?;
        self.local.cache.get(&hash.0).ok_or(libc::EIO)
    }

    /// Loads an extent list that is stored as blocks.
    pub(crate) async fn load_extents(&self, id: NodeId, root: Hash) -> Result<(), i32> {
        let size = {
            let core = self.core.lock();
            if core.session.missing_extents(id) != Some(Load::Extents(id, root)) {
                return Ok(());
            }
            core.session.getattr(id).map(|found| found.node.content.value.size()).unwrap_or(0)
        };
        let list = self.extents(root, size).await?;
        self.core.lock().session.put_extents(root, list);
        Ok(())
    }

    /// The list itself.
    pub(crate) async fn extents(&self, root: Hash, size: u64) -> Result<tidefs_timeline::ExtentMap, i32> {
        let damaged = |error: tidefs_proto::BadMessage| {
            tracing::error!(%error, root = %root, "a stored extent list cannot be read");
            libc::EIO
        };
        let leaves = manifest::decode_root(&self.block(root).await?).map_err(damaged)?;
        for some in leaves.chunks(tidefs_proto::limits::FETCH_BLOCKS_MAX) {
            let missing: Vec<Hash> =
                some.iter().copied().filter(|leaf| !self.local.cache.contains(&leaf.0)).collect();
            if !missing.is_empty() {
                self.fetch_blocks(&missing).await?;
            }
        }
        let mut blocks = Vec::new();
        for leaf in leaves {
            blocks.push(self.block(leaf).await?);
        }
        manifest::decode_leaves(blocks.iter().map(|block| &block[..]), size).map_err(damaged)
    }
}

fn hash_of(piece: &Piece) -> Option<Hash> {
    match piece.source {
        Source::Block { hash, .. } => Some(hash),
        Source::Local(_) => None,
    }
}
