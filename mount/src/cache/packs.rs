//! Which pack on disk has which block, and which packs go when there are too many.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::path::{Path, PathBuf};

use tidefs_proto::pack::{BlockPlace, Hash, PackIndex};

use crate::wal::PackFile;

/// Blocks of kept packs in the index at most: about 128 MiB of memory.
const KEPT_BLOCKS_MAX: usize = 1 << 20;
/// Kept packs at most, so that reading their tables at start stays short.
const KEPT_PACKS_MAX: usize = 4096;

/// Whether a pack may be evicted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PackKind {
    /// In the outbox: not acknowledged, never evicted.
    Outbox,
    /// Acknowledged and kept as cache: evicted when space is short.
    Kept,
}

pub(super) struct Packs {
    /// By age.
    packs: BTreeMap<u64, Pack>,
    /// May name packs that are gone, `stale` of them at most.
    blocks: HashMap<Hash, (u64, BlockPlace)>,
    stale: usize,
    next: u64,
    kept: Kept,
    disk_bytes_max: u64,
}

struct Pack {
    file: PackFile,
    kind: PackKind,
    blocks: usize,
}

/// Sums over the kept packs.
#[derive(Default)]
struct Kept {
    packs: usize,
    blocks: usize,
    bytes: u64,
}

impl Packs {
    pub(super) fn new(disk_bytes_max: u64) -> Packs {
        Packs {
            packs: BTreeMap::new(),
            blocks: HashMap::new(),
            stale: 0,
            next: 0,
            kept: Kept::default(),
            disk_bytes_max,
        }
    }

    /// Adds a pack as the newest; gives the files of the packs that have to go for it.
    pub(super) fn add(&mut self, file: PackFile, kind: PackKind, index: &PackIndex) -> Vec<PathBuf> {
        self.drop_path(file.path());
        let number = self.next;
        self.next += 1;
        let pack = Pack { file, kind, blocks: index.len() };
        self.kept.count(&pack, true);
        self.packs.insert(number, pack);
        for (hash, place) in index.blocks() {
            self.blocks.insert(hash, (number, place));
        }
        self.evict()
    }

    pub(super) fn find(&self, hash: &Hash) -> Option<(PackFile, BlockPlace)> {
        let (number, place) = self.blocks.get(hash)?;
        Some((self.packs.get(number)?.file.clone(), *place))
    }

    /// Forgets one block of one pack; if the block is found in another by now, that stays.
    pub(super) fn forget(&mut self, hash: &Hash, file: &PackFile) {
        if self.find(hash).is_some_and(|(found, _)| found == *file) {
            self.blocks.remove(hash);
        }
    }

    pub(super) fn drop_path(&mut self, path: &Path) {
        let gone: HashSet<u64> =
            self.packs.iter().filter(|(_, p)| p.file.path() == path).map(|(&n, _)| n).collect();
        self.drop_numbers(&gone);
    }

    pub(super) fn kept_bytes(&self) -> u64 {
        self.kept.bytes
    }

    /// A pack goes with every acknowledgement, so the walk over the whole index is put off until it frees half.
    fn drop_numbers(&mut self, gone: &HashSet<u64>) {
        for number in gone {
            if let Some(pack) = self.packs.remove(number) {
                self.kept.count(&pack, false);
                self.stale += pack.blocks;
            }
        }
        if self.stale > self.blocks.len() / 2 {
            let packs = &self.packs;
            self.blocks.retain(|_, (number, _)| packs.contains_key(number));
            self.stale = 0;
        }
    }

    /// Drops the oldest kept packs until all limits hold with a tenth to spare.
    fn evict(&mut self) -> Vec<PathBuf> {
        if self.kept.within(self.disk_bytes_max, KEPT_BLOCKS_MAX, KEPT_PACKS_MAX) {
            return Vec::new();
        }
        let low = self.disk_bytes_max - self.disk_bytes_max / 10;
        let mut left = Kept { ..self.kept };
        let mut gone = HashSet::new();
        let mut paths = Vec::new();
        for (&number, pack) in self.packs.iter().filter(|(_, p)| p.kind == PackKind::Kept) {
            if left.within(low, KEPT_BLOCKS_MAX / 10 * 9, KEPT_PACKS_MAX / 10 * 9) {
                break;
            }
            left.count(pack, false);
            gone.insert(number);
            paths.push(pack.file.path().to_path_buf());
        }
        self.drop_numbers(&gone);
        paths
    }
}

impl Kept {
    fn count(&mut self, pack: &Pack, added: bool) {
        if pack.kind == PackKind::Outbox {
            return;
        }
        let (packs, blocks, bytes) = (1, pack.blocks, pack.file.length());
        if added {
            *self =
                Kept { packs: self.packs + packs, blocks: self.blocks + blocks, bytes: self.bytes + bytes };
        } else {
            *self =
                Kept { packs: self.packs - packs, blocks: self.blocks - blocks, bytes: self.bytes - bytes };
        }
    }

    fn within(&self, bytes: u64, blocks: usize, packs: usize) -> bool {
        self.bytes <= bytes && self.blocks <= blocks && self.packs <= packs
    }
}
