//! The keys of a drive's index. Numbers are big-endian, so that keys sort as numbers do.
//!
//! ```text
//! N node u64                        the node: a wire::Node message
//! E dir u64 · name                  the entry: node u64, version
//! L node u64 · dir u64 · name       a name of the node: empty
//! A dir u64                         the directory that it was united with: u64
//! H file u64                        the file that took its last name: u64
//! T dir u64 · name                  the checkpoint that removed the name: version
//! B hash 32 bytes                   where the block lies: pack id 32 bytes, BlockPlace
//! K pack id 32 bytes                a pack that the journal names: empty
//! P position u64                    the journal entry that holds it: u64
//! R session u32 · number u64        the position of that checkpoint: u64
//! F                                 the fold of the order
//! S session u32                     the fold of a session
//!
//! version = session u32 · number u64
//! ```

use tidefs_proto::bad::{Bad, bad, exactly};
use tidefs_timeline::{CheckpointNo, Entry, Hash, Name, NodeId, Position, SessionNo, Version};

/// The fold of the order.
pub(super) const FOLD: &[u8] = b"F";
/// All folds of sessions.
pub(super) const SESSIONS: &[u8] = b"S";

fn key(prefix: u8, parts: &[&[u8]]) -> Vec<u8> {
    let mut key = Vec::with_capacity(1 + parts.iter().map(|part| part.len()).sum::<usize>());
    key.push(prefix);
    parts.iter().for_each(|part| key.extend_from_slice(part));
    key
}

pub(super) fn node(id: NodeId) -> Vec<u8> {
    key(b'N', &[&id.0.to_be_bytes()])
}

pub(super) fn entries(dir: NodeId) -> Vec<u8> {
    key(b'E', &[&dir.0.to_be_bytes()])
}

pub(super) fn entry(dir: NodeId, name: &Name) -> Vec<u8> {
    key(b'E', &[&dir.0.to_be_bytes(), name.as_bytes()])
}

pub(super) fn links(node: NodeId) -> Vec<u8> {
    key(b'L', &[&node.0.to_be_bytes()])
}

pub(super) fn link(node: NodeId, dir: NodeId, name: &Name) -> Vec<u8> {
    key(b'L', &[&node.0.to_be_bytes(), &dir.0.to_be_bytes(), name.as_bytes()])
}

pub(super) fn alias(dir: NodeId) -> Vec<u8> {
    key(b'A', &[&dir.0.to_be_bytes()])
}

pub(super) fn heir(file: NodeId) -> Vec<u8> {
    key(b'H', &[&file.0.to_be_bytes()])
}

pub(super) fn tombstone(dir: NodeId, name: &Name) -> Vec<u8> {
    key(b'T', &[&dir.0.to_be_bytes(), name.as_bytes()])
}

pub(super) fn block(hash: &Hash) -> Vec<u8> {
    key(b'B', &[&hash.0])
}

pub(super) fn pack(id: &Hash) -> Vec<u8> {
    key(b'K', &[&id.0])
}

pub(super) fn position(position: Position) -> Vec<u8> {
    key(b'P', &[&position.0.to_be_bytes()])
}

pub(super) fn checkpoint(version: Version) -> Vec<u8> {
    key(b'R', &[&version_value(version)])
}

pub(super) fn session(session: SessionNo) -> Vec<u8> {
    key(b'S', &[&session.0.to_be_bytes()])
}

pub(super) fn session_of(key: &[u8]) -> Bad<SessionNo> {
    exactly("index session key", key.get(1..).unwrap_or_default()).map(|n| SessionNo(u32::from_be_bytes(n)))
}

/// The name in a key of an entry, or of a name of a node with its directory.
pub(super) fn name_at(key: &[u8], at: usize) -> Bad<Name> {
    Name::new(key.get(at..).unwrap_or_default()).or_else(|error| bad("index key", error))
}

pub(super) fn link_of(key: &[u8]) -> Bad<(NodeId, Name)> {
    let dir = exactly("index link key", key.get(9..17).unwrap_or_default())?;
    Ok((NodeId(u64::from_be_bytes(dir)), name_at(key, 17)?))
}

pub(super) fn version_value(version: Version) -> [u8; 12] {
    let mut value = [0; 12];
    value[..4].copy_from_slice(&version.session.0.to_be_bytes());
    value[4..].copy_from_slice(&version.number.0.to_be_bytes());
    value
}

pub(super) fn version_of(value: &[u8]) -> Bad<Version> {
    let value: [u8; 12] = exactly("index version", value)?;
    let session = exactly("index version", &value[..4])?;
    let number = exactly("index version", &value[4..])?;
    Ok(Version {
        session: SessionNo(u32::from_be_bytes(session)),
        number: CheckpointNo(u64::from_be_bytes(number)),
    })
}

pub(super) fn entry_value(entry: &Entry) -> Vec<u8> {
    [&entry.node.0.to_be_bytes()[..], &version_value(entry.version)].concat()
}

pub(super) fn entry_of(value: &[u8]) -> Bad<Entry> {
    let (node, version) = value.split_at_checked(8).unwrap_or_default();
    Ok(Entry { node: NodeId(number_of(node)?), version: version_of(version)? })
}

pub(super) fn number_of(value: &[u8]) -> Bad<u64> {
    exactly("index number", value).map(u64::from_be_bytes)
}
