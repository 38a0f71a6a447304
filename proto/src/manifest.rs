//! Extent lists too long for a node's record, stored as blocks: leaves that each cover 64 MiB of the file, and a
//! root that lists the leaves. A change in one place makes one new leaf and one new root; the other leaves keep
//! their hashes and are not sent again.

use crate::{
    bad::{Bad, bad, exactly},
    limits::LEAVES_MAX,
    model::{extent_to, extents_from},
    wire,
};
use prost::Message;
use tidefs_timeline::{ExtentMap, Hash, limits::BLOCK_BYTES_MAX};

/// Bytes of the file that one leaf covers.
pub const LEAF_FILE_BYTES: u64 = 64 << 20;
/// Extents in one leaf at most (a leaf is a block; an extent takes up to 60 bytes): past it a leaf is split.
const LEAF_EXTENTS_MAX: usize = 16 << 10;

const _: () = assert!(LEAF_EXTENTS_MAX * 60 < BLOCK_BYTES_MAX as usize);

/// The leaves of a map, encoded, in order.
pub fn encode_leaves(map: &ExtentMap) -> Vec<Vec<u8>> {
    let mut leaves = Vec::new();
    let mut leaf = wire::ExtentLeaf::default();
    let mut window = 0;
    for (at, piece) in map.iter() {
        if at / LEAF_FILE_BYTES != window || leaf.extents.len() == LEAF_EXTENTS_MAX {
            if !leaf.extents.is_empty() {
                leaves.push(std::mem::take(&mut leaf).encode_to_vec());
            }
            window = at / LEAF_FILE_BYTES;
        }
        leaf.extents.extend(extent_to(at, &piece));
    }
    if !leaf.extents.is_empty() {
        leaves.push(leaf.encode_to_vec());
    }
    leaves
}

/// The root that lists the leaves.
pub fn encode_root(leaves: &[Hash]) -> Vec<u8> {
    wire::ExtentRoot { leaves: leaves.iter().map(|hash| hash.0.to_vec().into()).collect() }.encode_to_vec()
}

/// The leaves that a root lists.
pub fn decode_root(bytes: &[u8]) -> Bad<Vec<Hash>> {
    let root = wire::ExtentRoot::decode(bytes).or_else(|error| bad("extent root", error))?;
    if root.leaves.len() > LEAVES_MAX {
        return bad("extent root", "lists more leaves than a file can have");
    }
    root.leaves.iter().map(|leaf| exactly("extent root", leaf).map(Hash)).collect()
}

/// The map that leaves hold together.
pub fn decode_leaves<'a>(leaves: impl IntoIterator<Item = &'a [u8]>, size: u64) -> Bad<ExtentMap> {
    let mut all = Vec::new();
    for leaf in leaves {
        all.extend(wire::ExtentLeaf::decode(leaf).or_else(|error| bad("extent leaf", error))?.extents);
    }
    extents_from(&all, size)
}
