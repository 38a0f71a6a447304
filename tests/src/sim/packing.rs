//! Sealing in memory: the log's bytes become blocks of a pack. The real sealer writes files; the steps are its own.

use anyhow::{Result, bail};
use std::{collections::BTreeMap, sync::Arc};
use tidefs_mount::session::{cut::Sealed, record::SealedRun};
use tidefs_proto::{
    manifest,
    pack::{PackIndex, PackWriter, decode_block},
};
use tidefs_timeline::{
    Checkpoint, Content, ExtentMap, FileContent, FileMap, Hash, Piece, Source,
    limits::{CHUNK_BYTES, INLINE_EXTENTS_MAX},
};

/// Blocks by hash.
pub type BlockMap = BTreeMap<Hash, Vec<u8>>;

/// What sealing came to: for the session, long extent lists by their root, and the pack if there is one.
pub type Packed = (Sealed, Vec<(Hash, ExtentMap)>, Option<(Hash, Vec<u8>)>);

/// Turns a checkpoint's local bytes into blocks.
pub struct Packing<'a> {
    read: &'a dyn Fn(u64, u64) -> Result<Vec<u8>>,
    writer: PackWriter<Vec<u8>>,
    /// What the session is told afterwards.
    pub sealed: Sealed,
    /// Long extent lists by their root.
    pub lists: Vec<(Hash, ExtentMap)>,
}

impl<'a> Packing<'a> {
    /// `read` gives bytes of the log.
    ///
    /// # Errors
    /// When the compressor cannot be made.
    pub fn new(read: &'a dyn Fn(u64, u64) -> Result<Vec<u8>>) -> Result<Self> {
        let writer = PackWriter::new(Vec::new())?;
        Ok(Self { read, writer, sealed: Sealed::default(), lists: Vec::new() })
    }

    /// Packs every file whose bytes lie in the log.
    ///
    /// # Errors
    /// When the log no longer has them.
    pub fn pack(&mut self, checkpoint: &mut Checkpoint) -> Result<()> {
        for change in &mut checkpoint.nodes {
            let Content::File(file) = &change.node.content.value else { continue };
            let FileMap::Extents(map) = &file.map else { continue };
            if !map.has_local() && map.len() <= INLINE_EXTENTS_MAX {
                continue;
            }
            let content = self.file(file.size, map)?;
            change.node.content.value = Content::File(Arc::new(content.clone()));
            self.sealed.contents.push((change.id, content));
        }
        Ok(())
    }

    /// The pack, if there is anything in it.
    ///
    /// # Errors
    /// When it cannot be compressed.
    pub fn finish(self) -> Result<Packed> {
        let Packing { writer, sealed, lists, .. } = self;
        if writer.blocks() == 0 {
            return Ok((sealed, lists, None));
        }
        let (summary, bytes) = writer.finish_into()?;
        Ok((sealed, lists, Some((Hash(summary.id), bytes))))
    }

    fn file(&mut self, size: u64, map: &ExtentMap) -> Result<FileContent> {
        let mut out = map.clone();
        let mut run: Vec<(u64, Piece)> = Vec::new();
        for (at, piece) in map.iter().filter(|(_, piece)| matches!(piece.source, Source::Local(_))) {
            let (mut at, mut piece) = (at, piece);
            while piece.len > 0 {
                let room = (at / CHUNK_BYTES + 1) * CHUNK_BYTES - at;
                let len = piece.len.min(room);
                let joins = run.last().is_some_and(|(last, p)| last + p.len == at && at % CHUNK_BYTES != 0);
                if !joins {
                    self.block(&mut run, &mut out)?;
                }
                run.push((at, Piece { len, source: piece.source }));
                let Source::Local(address) = piece.source else { break };
                piece = Piece { len: piece.len - len, source: Source::Local(address + len) };
                at += len;
            }
        }
        self.block(&mut run, &mut out)?;
        if out.len() <= INLINE_EXTENTS_MAX {
            return Ok(FileContent { size, map: FileMap::Extents(out) });
        }
        let mut leaves = Vec::new();
        for leaf in manifest::encode_leaves(&out) {
            leaves.push(Hash(self.writer.add(&leaf)?));
        }
        let root = Hash(self.writer.add(&manifest::encode_root(&leaves))?);
        self.lists.push((root, out));
        Ok(FileContent { size, map: FileMap::Stored(root) })
    }

    fn block(&mut self, run: &mut Vec<(u64, Piece)>, out: &mut ExtentMap) -> Result<()> {
        let Some((first, _)) = run.first().copied() else { return Ok(()) };
        let mut bytes = Vec::new();
        for (_, piece) in run.iter() {
            let Source::Local(address) = piece.source else { bail!("a block in a run of the log") };
            bytes.extend((self.read)(address, piece.len)?);
        }
        let hash = Hash(self.writer.add(&bytes)?);
        let mut offset = 0;
        for (_, piece) in run.drain(..) {
            if let Source::Local(address) = piece.source {
                let source = Source::Block { hash, offset };
                self.sealed.map.add(address, SealedRun { len: piece.len, source });
            }
            offset += piece.len as u32;
        }
        out.write(first, Piece { len: bytes.len() as u64, source: Source::Block { hash, offset: 0 } });
        Ok(())
    }
}

/// All blocks of a pack.
///
/// # Errors
/// When it is damaged.
pub fn blocks_of(pack: &[u8]) -> Result<BlockMap> {
    let read = |offset: u64, len: usize| {
        let from = offset as usize;
        pack.get(from..from + len)
            .map(<[u8]>::to_vec)
            .ok_or_else(|| std::io::Error::from(std::io::ErrorKind::UnexpectedEof))
    };
    let table = PackIndex::load(pack.len() as u64, read)?;
    let mut blocks = BlockMap::new();
    for (hash, place) in table.blocks() {
        let frame = read(place.frame_offset, place.stored_len as usize)?;
        blocks.insert(Hash(hash), decode_block(&frame, &place)?);
    }
    Ok(blocks)
}
