//! The head of a drive: the tree at its last position, read through the index and what is not in it yet.
//!
//! An acknowledgement must not wait for the index, so the head has three layers: the index, the changes that are
//! being written to it (`writing`), and those that came since (`fresh`). The writing layer stays in view until the
//! index has all of it; a layer says everything about what it touches, so reading is right before, during and
//! after the write. When the write is done the layers move down by one.
//!
//! The names of a node are the one thing that a layer cannot say by itself (a result read from a journal does not
//! tell which node lost a name), so all candidates are checked against the entries.

mod base;
mod keys;
#[cfg(test)]
mod tests;
mod write;

use crate::{
    order::{Fold, NewPack, Order, Saved, StoredBlocks},
    store::{Index, IndexError},
};
use base::Base;
use bytes::Bytes;
use std::{collections::BTreeMap, sync::Arc};
use tidefs_proto::{BadMessage, pack::BlockPlace};
use tidefs_timeline::{
    Entry, Hash, Head, Name, Node, NodeId, Overlay, Position, Timestamp, Version, overlay::Over,
};

pub use base::LoadedFold;

/// Why the head could not be read or written. It ends the sequencer, which starts again from the journal.
#[derive(Debug, thiserror::Error)]
pub enum HeadError {
    /// The index failed.
    #[error(transparent)]
    Index(#[from] IndexError),
    /// The index holds what nobody wrote.
    #[error("the index is damaged: {0}; it is made again from the journal at the next start")]
    Damaged(#[from] BadMessage),
}

/// Where a block lies: its pack, and where in it.
pub type BlockAt = (Hash, BlockPlace);

/// Changes that the index does not have yet.
#[derive(Debug, Default)]
pub struct Layer {
    overlay: Overlay,
    blocks: BTreeMap<Hash, BlockAt>,
    /// With the bytes of those that are not stored yet.
    packs: BTreeMap<Hash, Bytes>,
    /// Sum of these bytes.
    pack_bytes: usize,
    lines: BTreeMap<Position, (u64, Version)>,
    /// The last journal entry in it.
    entry: u64,
}

impl Layer {
    /// Changed nodes, names and blocks.
    pub fn len(&self) -> usize {
        self.overlay.len() + self.blocks.len()
    }

    /// Whether it has nothing.
    pub fn is_empty(&self) -> bool {
        self.overlay.is_empty() && self.blocks.is_empty() && self.lines.is_empty()
    }

    /// Takes in what a journal entry changes; `blocks` are those of the packs that it names first.
    pub fn take(&mut self, saved: Saved, blocks: BTreeMap<Hash, BlockAt>) {
        self.overlay.merge(saved.changes.effects);
        self.pack_bytes += saved.changes.packs.values().map(Bytes::len).sum::<usize>();
        self.packs.extend(saved.changes.packs);
        self.blocks.extend(blocks);
        let lines = saved.changes.lines.into_iter();
        self.lines.extend(lines.map(|line| (line.position, (saved.entry, line.version))));
        self.entry = saved.entry;
    }
}

/// The head of a drive.
#[derive(Debug)]
pub struct IndexHead {
    index: Arc<dyn Index>,
    writing: Arc<Layer>,
    fresh: Layer,
    position: Position,
}

impl IndexHead {
    /// The head that an index holds. That of a new drive has a root made at `created`.
    ///
    /// # Errors
    /// Those of reading the index.
    pub fn open(index: Arc<dyn Index>, created: Timestamp) -> Result<Self, HeadError> {
        let mut fresh = Layer::default();
        if Base(&*index).node(NodeId::ROOT)?.is_none() {
            fresh.overlay.nodes.insert(NodeId::ROOT, Some(Arc::new(Node::root(created))));
        }
        let entry = index.position()?;
        fresh.entry = entry;
        Ok(Self {
            index,
            writing: Arc::new(Layer { entry, ..Layer::default() }),
            fresh,
            position: Position(0),
        })
    }

    /// The fold in the index; none if it is new.
    ///
    /// # Errors
    /// Those of reading the index.
    pub fn load_fold(&self) -> Result<Option<LoadedFold>, HeadError> {
        Base(&*self.index).fold()
    }

    /// The position of the tree.
    pub fn position(&self) -> Position {
        self.position
    }

    /// Sets the position that the index was opened at.
    pub fn set_position(&mut self, position: Position) {
        self.position = position;
    }

    /// Shows what an entry changes; `blocks` are those of the packs that it names first.
    pub fn advance(&mut self, saved: Saved, blocks: BTreeMap<Hash, BlockAt>) {
        if let Some(last) = saved.changes.lines.last() {
            self.position = last.position;
        }
        self.fresh.take(saved, blocks);
    }

    /// Changes that wait to be written; a KiB of a pack counts as one.
    pub fn waiting(&self) -> usize {
        self.fresh.len() + (self.fresh.pack_bytes >> 10)
    }

    /// Whether anything waits to be written.
    pub fn is_behind(&self) -> bool {
        self.fresh.entry > self.writing.entry || !self.fresh.is_empty()
    }

    /// Begins to write what waits: the layer goes to [`write::write`] with the order's fold at its last entry, and
    /// [`IndexHead::written`] follows. Only one write may be under way.
    pub fn begin_write(&mut self, fold: Fold) -> Write {
        let entry = self.fresh.entry;
        let fresh = std::mem::replace(&mut self.fresh, Layer { entry, ..Layer::default() });
        self.writing = Arc::new(fresh);
        Write { index: self.index.clone(), layer: self.writing.clone(), fold }
    }

    /// The write is in the index: its layer is not needed any more.
    pub fn written(&mut self) {
        let entry = self.writing.entry;
        self.writing = Arc::new(Layer { entry, ..Layer::default() });
    }

    /// Writes what waits, here and now. Its packs must be stored.
    ///
    /// # Errors
    /// Those of the index; then the head must be opened again.
    pub fn write_now(&mut self, order: &mut Order) -> Result<(), HeadError> {
        self.begin_write(order.fold()).run(false)?;
        self.written();
        Ok(())
    }

    /// Makes durable what was written.
    ///
    /// # Errors
    /// Those of the index.
    pub fn flush(&self) -> Result<(), HeadError> {
        Ok(self.index.flush()?)
    }

    /// The journal entry that holds a position; none if the position is above the head.
    ///
    /// # Errors
    /// Those of reading the index.
    pub fn entry_of(&self, position: Position) -> Result<Option<u64>, HeadError> {
        for layer in [&self.fresh, &*self.writing] {
            if let Some((entry, _)) = layer.lines.get(&position) {
                return Ok(Some(*entry));
            }
        }
        Base(&*self.index).number(&keys::position(position))
    }

    /// The position of a checkpoint; none if it was not placed.
    ///
    /// # Errors
    /// Those of reading the index.
    pub fn position_of(&self, version: Version) -> Result<Option<Position>, HeadError> {
        for layer in [&self.fresh, &*self.writing] {
            if let Some((position, _)) = layer.lines.iter().find(|(_, (_, of))| *of == version) {
                return Ok(Some(*position));
            }
        }
        Ok(Base(&*self.index).number(&keys::checkpoint(version))?.map(Position))
    }

    /// Where a block lies.
    ///
    /// # Errors
    /// Those of reading the index.
    pub fn block(&self, hash: &Hash) -> Result<Option<BlockAt>, HeadError> {
        for layer in [&self.fresh, &*self.writing] {
            if let Some(at) = layer.blocks.get(hash) {
                return Ok(Some(*at));
            }
        }
        Base(&*self.index).block(hash)
    }

    /// Whether a journal entry names the pack.
    ///
    /// # Errors
    /// Those of reading the index.
    pub fn knows_pack(&self, pack: &Hash) -> Result<bool, HeadError> {
        if self.fresh.packs.contains_key(pack) || self.writing.packs.contains_key(pack) {
            return Ok(true);
        }
        Ok(self.index.get(&keys::pack(pack))?.is_some())
    }

    /// The bytes of a pack that the journal holds and that may not be stored yet.
    pub fn inline_pack(&self, pack: &Hash) -> Option<Bytes> {
        let held = self.fresh.packs.get(pack).or_else(|| self.writing.packs.get(pack));
        held.filter(|bytes| !bytes.is_empty()).cloned()
    }

    fn read<T>(&self, ask: impl FnOnce(Over<'_, Over<'_, Base<'_>>>) -> T) -> T {
        let base = Base(&*self.index);
        let below = Over { below: &base, top: &self.writing.overlay };
        ask(Over { below: &below, top: &self.fresh.overlay })
    }
}

/// A write to the index that is to be made.
#[derive(Debug)]
#[must_use = "the head waits for it"]
pub struct Write {
    index: Arc<dyn Index>,
    layer: Arc<Layer>,
    fold: Fold,
}

impl Write {
    /// Packs that must be stored before it is made, with their bytes.
    pub fn packs(&self) -> Vec<(Hash, Bytes)> {
        let held = self.layer.packs.iter().filter(|(_, bytes)| !bytes.is_empty());
        held.map(|(pack, bytes)| (*pack, bytes.clone())).collect()
    }

    /// Makes it, and durable with all before it if `flush`. Blocks the thread.
    ///
    /// # Errors
    /// Those of the index; then the head must be opened again.
    pub fn run(self, flush: bool) -> Result<(), HeadError> {
        write::write(&*self.index, &self.layer, &self.fold)?;
        if flush {
            self.index.flush()?;
        }
        Ok(())
    }
}

impl Head for IndexHead {
    type Error = HeadError;

    fn node(&self, id: NodeId) -> Result<Option<Arc<Node>>, HeadError> {
        self.read(|tree| tree.node(id))
    }
    fn entry(&self, dir: NodeId, name: &Name) -> Result<Option<Entry>, HeadError> {
        self.read(|tree| tree.entry(dir, name))
    }
    fn entries(
        &self,
        dir: NodeId,
        after: Option<&Name>,
        limit: usize,
    ) -> Result<Vec<(Name, Entry)>, HeadError> {
        self.read(|tree| tree.entries(dir, after, limit))
    }
    fn names(&self, node: NodeId) -> Result<Vec<(NodeId, Name)>, HeadError> {
        self.read(|tree| {
            let mut names = tree.names(node)?;
            let mut failed = None;
            names.retain(|(dir, name)| match tree.entry(*dir, name) {
                Ok(entry) => entry.is_some_and(|entry| entry.node == node),
                Err(error) => failed.replace(error).is_none(),
            });
            failed.map_or(Ok(names), Err)
        })
    }
    fn alias(&self, dir: NodeId) -> Result<Option<NodeId>, HeadError> {
        self.read(|tree| tree.alias(dir))
    }
    fn heir(&self, file: NodeId) -> Result<Option<NodeId>, HeadError> {
        self.read(|tree| tree.heir(file))
    }
    fn tombstone(&self, dir: NodeId, name: &Name) -> Result<Option<Version>, HeadError> {
        self.read(|tree| tree.tombstone(dir, name))
    }
}

/// The head's blocks together with those of packs that arrived and that no entry names yet.
#[derive(Debug, Clone, Copy)]
pub struct WithPacks<'a> {
    /// The head.
    pub head: &'a IndexHead,
    /// Packs by id: length in bytes, and blocks.
    pub arrived: &'a BTreeMap<Hash, ArrivedPack>,
}

/// A pack that has arrived and that no journal entry names yet.
#[derive(Debug, Clone)]
pub struct ArrivedPack {
    /// Its length, in bytes.
    pub length: u64,
    /// Where its blocks lie.
    pub blocks: Arc<BTreeMap<Hash, BlockPlace>>,
    /// Its bytes, if it is small and not stored yet; empty if it is stored.
    pub bytes: Bytes,
}

impl StoredBlocks for WithPacks<'_> {
    type Error = HeadError;

    fn placed(&self, block: &Hash) -> Result<bool, HeadError> {
        Ok(self.head.block(block)?.is_some())
    }

    fn in_pack(&self, pack: &Hash, block: &Hash) -> bool {
        self.arrived.get(pack).is_some_and(|pack| pack.blocks.contains_key(block))
    }

    fn unnamed_pack(&self, pack: &Hash) -> Option<NewPack> {
        let pack = self.arrived.get(pack)?;
        Some(NewPack { length: pack.length, bytes: pack.bytes.clone() })
    }
}
