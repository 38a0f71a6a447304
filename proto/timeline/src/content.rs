//! What a file holds: a size and a map from file offsets to pieces. What the map does not cover reads as zeros.

use crate::ids::Hash;
use std::{collections::BTreeMap, sync::Arc};

/// Where a piece's bytes lie.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Source {
    /// In a block, from this byte of it on.
    Block {
        /// The block.
        hash: Hash,
        /// First byte within the block.
        offset: u32,
    },
    /// In this mount's own log, at this address. Never leaves the mount: sealing turns it into blocks.
    Local(u64),
}

impl Source {
    /// The source of what lies `by` bytes further on.
    fn advance(self, by: u64) -> Self {
        match self {
            Source::Block { hash, offset } => Source::Block { hash, offset: offset + by as u32 },
            Source::Local(at) => Source::Local(at + by),
        }
    }
}

/// A run of bytes of a file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Piece {
    /// Length in bytes, never 0.
    pub len: u64,
    /// Where they lie.
    pub source: Source,
}

/// Pieces by file offset; they never overlap.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct ExtentMap(BTreeMap<u64, Piece>);

impl ExtentMap {
    /// Lays `piece` at `offset` over whatever was there.
    pub fn write(&mut self, offset: u64, piece: Piece) {
        if piece.len == 0 {
            return;
        }
        self.punch(offset, piece.len);
        self.0.insert(offset, piece);
    }

    /// Makes `[offset, offset + len)` a hole.
    pub fn punch(&mut self, offset: u64, len: u64) {
        let end = offset.saturating_add(len);
        if let Some((&at, &piece)) = self.0.range(..offset).next_back()
            && at + piece.len > offset
        {
            self.0.insert(at, Piece { len: offset - at, source: piece.source });
            if at + piece.len > end {
                let rest = Piece { len: at + piece.len - end, source: piece.source.advance(end - at) };
                self.0.insert(end, rest);
            }
        }
        while let Some((&at, &piece)) = self.0.range(offset..end).next() {
            self.0.remove(&at);
            if at + piece.len > end {
                let rest = Piece { len: at + piece.len - end, source: piece.source.advance(end - at) };
                self.0.insert(end, rest);
            }
        }
    }

    /// Drops everything from `size` on.
    pub fn cut(&mut self, size: u64) {
        self.punch(size, u64::MAX - size);
    }

    /// All pieces in order.
    pub fn iter(&self) -> impl Iterator<Item = (u64, Piece)> + '_ {
        self.0.iter().map(|(&at, &piece)| (at, piece))
    }

    /// Number of pieces.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether all is a hole.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Whether any piece lies in this mount's log.
    pub fn has_local(&self) -> bool {
        self.0.values().any(|piece| matches!(piece.source, Source::Local(_)))
    }

    /// The pieces that meet `[offset, offset + len)`, cut to it, in order.
    pub fn slice(&self, offset: u64, len: u64) -> Vec<(u64, Piece)> {
        let end = offset.saturating_add(len);
        let mut out = Vec::new();
        let start = self.0.range(..=offset).next_back().map_or(offset, |(&at, _)| at);
        for (&at, &piece) in self.0.range(start..end) {
            let (from, to) = (at.max(offset), (at + piece.len).min(end));
            if from < to {
                out.push((from, Piece { len: to - from, source: piece.source.advance(from - at) }));
            }
        }
        out
    }
}

/// The map of one version of a file, as far as it is at hand.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum FileMap {
    /// The whole list.
    Extents(ExtentMap),
    /// A list too long for the node's record: the block of this hash lists the blocks that hold it.
    Stored(Hash),
}

/// One version of a file's bytes.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct FileContent {
    /// Size in bytes.
    pub size: u64,
    /// Where they lie; nothing lies at or beyond `size`.
    pub map: FileMap,
}

impl FileContent {
    /// A file of no bytes.
    pub fn empty() -> Self {
        Self { size: 0, map: FileMap::Extents(ExtentMap::default()) }
    }
}

/// What the content register of a node holds.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Content {
    /// Directories, fifos, sockets and devices have none.
    None,
    /// A regular file's bytes.
    File(Arc<FileContent>),
    /// A symlink's target.
    Symlink(Arc<[u8]>),
}

impl Content {
    /// `st_size`.
    pub fn size(&self) -> u64 {
        match self {
            Content::None => 0,
            Content::File(file) => file.size,
            Content::Symlink(target) => target.len() as u64,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        /// Writes, holes and cuts leave exactly what the same steps leave in a plain byte array.
        #[test]
        fn map_equals_plain_bytes(steps in prop::collection::vec((0u8..4, 0u64..64, 1u64..24), 1..40)) {
            let mut plain = vec![0u64; 128];
            let mut map = ExtentMap::default();
            for (i, (what, offset, len)) in steps.into_iter().enumerate() {
                let base = (i as u64 + 1) * 1000;
                let range = offset as usize..(offset + len) as usize;
                match what {
                    0 | 1 => {
                        map.write(offset, Piece { len, source: Source::Local(base) });
                        plain[range].iter_mut().enumerate().for_each(|(j, b)| *b = base + j as u64);
                    }
                    2 => { map.punch(offset, len); plain[range].fill(0); }
                    _ => { map.cut(offset); plain[offset as usize..].fill(0); }
                }
            }
            let mut seen = vec![0u64; 128];
            for (at, piece) in map.slice(3, 90) {
                let Source::Local(pos) = piece.source else { continue };
                for j in 0..piece.len { seen[(at + j) as usize] = pos + j; }
            }
            prop_assert_eq!(&seen[3..93], &plain[3..93]);
        }
    }
}
