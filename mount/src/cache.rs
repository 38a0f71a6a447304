//! The local block cache: blocks that need no trip to the server.
//!
//! Two sources. *Packs on disk*: those in the outbox, which exist nowhere else and are never evicted, and those kept
//! after their acknowledgement, oldest evicted first. *Memory*: recently used blocks, least recently used evicted
//! first. A block is checked against its hash whenever it comes from disk or from outside: what fails is reported as
//! absent, so the caller fetches it. The index is rebuilt from the packs' own tables at start.

mod memory;
mod packs;
#[cfg(test)]
mod tests;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use parking_lot::Mutex;
use tidefs_proto::pack::{Hash, PackError, decode_block, verify};

use crate::wal::PackFile;
use memory::Memory;
pub use packs::PackKind;
use packs::Packs;

/// Bytes of decoded blocks kept in memory unless told otherwise.
pub const MEMORY_BYTES_DEFAULT: u64 = 32 << 20;

/// Why the cache could not be opened or a pack could not be added.
#[derive(Debug, thiserror::Error)]
pub enum CacheError {
    /// The cache's folder could not be used.
    #[error("could not use the block cache {path}: {source}; check that folder")]
    Folder {
        /// The folder.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
    /// The pack could not be read.
    #[error("could not read the pack {path}: {source}")]
    Pack {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        source: PackError,
    },
}

/// Blocks that are here. All methods take `&self`; disk is read without a lock.
pub struct BlockCache {
    state: Mutex<State>,
}

struct State {
    packs: Packs,
    memory: Memory,
}

impl BlockCache {
    /// Opens the folder of kept packs (made if missing) and reads their tables, oldest first. A pack that cannot be
    /// read is removed with a warning. Kept packs beyond `disk_bytes_max` are evicted; `memory_bytes_max` bounds the
    /// decoded blocks in memory.
    ///
    /// # Errors
    /// [`CacheError::Folder`] when the folder cannot be made or listed.
    pub fn open(dir: &Path, disk_bytes_max: u64, memory_bytes_max: u64) -> Result<BlockCache, CacheError> {
        let found =
            kept_packs(dir).map_err(|source| CacheError::Folder { path: dir.to_path_buf(), source })?;
        let state = State { packs: Packs::new(disk_bytes_max), memory: Memory::new(memory_bytes_max) };
        let cache = BlockCache { state: Mutex::new(state) };
        for file in found {
            if let Err(error) = cache.add_pack(&file, PackKind::Kept) {
                tracing::warn!(%error, "a cached pack is removed");
                remove(file.path());
            }
        }
        Ok(cache)
    }

    /// Makes the blocks of a pack available. Adding a file again changes its kind, so a pack of the outbox that was
    /// moved to the cache is added there and then dropped here.
    ///
    /// # Errors
    /// [`CacheError::Pack`] when its table cannot be read.
    pub fn add_pack(&self, file: &PackFile, kind: PackKind) -> Result<(), CacheError> {
        let index = file
            .load_index()
            .map_err(|source| CacheError::Pack { path: file.path().to_path_buf(), source })?;
        let evicted = self.state.lock().packs.add(file.clone(), kind, &index);
        evicted.iter().for_each(|path| remove(path));
        Ok(())
    }

    /// Forgets the pack in that file; the file is left alone.
    pub fn drop_pack(&self, path: &Path) {
        self.state.lock().packs.drop_path(path);
    }

    /// The block of that name, checked, if it is here. Reads at most one frame from disk.
    pub fn get(&self, hash: &Hash) -> Option<Arc<[u8]>> {
        let (file, place) = {
            let mut state = self.state.lock();
            if let Some(block) = state.memory.get(hash) {
                return Some(block);
            }
            state.packs.find(hash)?
        };
        let read = || -> Result<Vec<u8>, PackError> {
            let frame = file.read(place.frame_offset, place.stored_len as usize)?;
            let block = decode_block(&frame, &place)?;
            verify(hash, &block)?;
            Ok(block)
        };
        match read() {
            Ok(block) => {
                let block: Arc<[u8]> = block.into();
                self.state.lock().memory.insert(*hash, Arc::clone(&block));
                Some(block)
            }
            Err(error) => {
                let name = blake3::Hash::from(*hash).to_hex();
                tracing::warn!(path = %file.path().display(), block = %name, %error, "dropped a bad cached block");
                self.state.lock().packs.forget(hash, &file);
                None
            }
        }
    }

    /// Whether the block is here, without reading or checking it.
    pub fn contains(&self, hash: &Hash) -> bool {
        let state = self.state.lock();
        state.memory.contains(hash) || state.packs.find(hash).is_some()
    }

    /// Keeps a block that came from elsewhere in memory.
    ///
    /// # Errors
    /// [`PackError::WrongHash`] when the bytes are not that block; nothing is kept then.
    pub fn insert(&self, hash: &Hash, bytes: &[u8]) -> Result<Arc<[u8]>, PackError> {
        verify(hash, bytes)?;
        let block: Arc<[u8]> = bytes.into();
        self.state.lock().memory.insert(*hash, Arc::clone(&block));
        Ok(block)
    }

    /// Bytes of kept packs on disk; the outbox does not count.
    pub fn disk_bytes(&self) -> u64 {
        self.state.lock().packs.kept_bytes()
    }

    /// Bytes of blocks in memory.
    pub fn memory_bytes(&self) -> u64 {
        self.state.lock().memory.bytes()
    }
}

/// The packs in the folder, oldest first; what a crash left half-written is removed.
fn kept_packs(dir: &Path) -> std::io::Result<Vec<PackFile>> {
    std::fs::create_dir_all(dir)?;
    let mut found = Vec::new();
    for entry in std::fs::read_dir(dir)? {
        let entry = entry?;
        let path = entry.path();
        match path.extension().and_then(|e| e.to_str()) {
            Some("pack") => found.push((entry.metadata()?.modified()?, path)),
            Some("tmp") => remove(&path),
            _ => {}
        }
    }
    found.sort();
    found.iter().map(|(_, path)| PackFile::whole(path)).collect()
}

fn remove(path: &Path) {
    if let Err(error) = std::fs::remove_file(path) {
        tracing::warn!(path = %path.display(), %error, "could not remove a cached pack");
    }
}
