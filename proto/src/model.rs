//! Nodes and their registers, to and from messages.

use crate::{
    bad::{Bad, ascending, bad, exactly, need},
    wire,
};
use std::{collections::BTreeMap, sync::Arc};
use tidefs_timeline::{
    AttrName, CheckpointNo, Content, ExtentMap, FileContent, FileMap, Hash, Kind, Name, Node, NodeId, Owner,
    Piece, Register, SessionNo, Source, Spot, Times, Timestamp, Version,
    limits::{ATTRS_BYTES_MAX, BLOCK_BYTES_MAX, FILE_BYTES_MAX, INLINE_EXTENTS_MAX, SYMLINK_BYTES_MAX},
};

/// The chunker named by every file's content: pieces cut at multiples of 64 KiB of the file.
pub const CHUNKER_FIXED_64K: u32 = 1;

/// A version as a message.
pub fn version_to(version: Version) -> wire::Version {
    wire::Version { session: version.session.0, number: version.number.0 }
}

/// A version from a message.
pub fn version_from(version: &wire::Version) -> Version {
    Version { session: SessionNo(version.session), number: CheckpointNo(version.number) }
}

/// A required version.
pub fn version_need(field: &'static str, version: &Option<wire::Version>) -> Bad<Version> {
    need(field, version.as_ref()).map(version_from)
}

/// A time as a message.
pub fn time_to(time: Timestamp) -> wire::Timestamp {
    wire::Timestamp { seconds: time.seconds, nanos: time.nanos }
}

/// A required time.
pub fn time_from(field: &'static str, time: &Option<wire::Timestamp>) -> Bad<Timestamp> {
    let time = need(field, time.as_ref())?;
    if time.nanos >= 1_000_000_000 {
        return bad(field, "has a second or more of nanoseconds");
    }
    Ok(Timestamp { seconds: time.seconds, nanos: time.nanos })
}

/// A name, checked.
pub fn name_from(field: &'static str, name: &[u8]) -> Bad<Name> {
    Name::new(name).or_else(|error| bad(field, error))
}

/// An attribute's name, checked.
pub fn attr_name_from(field: &'static str, name: &[u8]) -> Bad<AttrName> {
    AttrName::new(name).or_else(|error| bad(field, error))
}

/// A name in a directory as a message.
pub fn spot_to(parent: NodeId, name: &Name) -> wire::Spot {
    wire::Spot { parent: parent.0, name: name.as_bytes().to_vec().into() }
}

/// A name in a directory.
pub fn spot_from(field: &'static str, spot: &wire::Spot) -> Bad<Spot> {
    Ok(Spot { parent: NodeId(spot.parent), name: name_from(field, &spot.name)? })
}

/// Owner and mode, checked.
pub fn owner_from(mode: u32, uid: u32, gid: u32) -> Bad<Owner> {
    if mode > 0o7777 {
        return bad("mode", format_args!("{mode:o} has more than permission bits"));
    }
    Ok(Owner { mode, uid, gid })
}

/// An extent as a message; none for a piece that lies in the mount's own log, which must never be sent.
pub fn extent_to(offset: u64, piece: &Piece) -> Option<wire::Extent> {
    let Source::Block { hash, offset: block_offset } = piece.source else { return None };
    Some(wire::Extent { offset, len: piece.len as u32, block: hash.0.to_vec().into(), block_offset })
}

/// A list of extents, checked: in order, not overlapping, inside blocks and below `size`.
pub fn extents_from(list: &[wire::Extent], size: u64) -> Bad<ExtentMap> {
    let mut map = ExtentMap::default();
    let mut end = 0;
    for extent in list {
        let inside = extent.block_offset.checked_add(extent.len).is_some_and(|end| end <= BLOCK_BYTES_MAX);
        if extent.len == 0 || !inside {
            return bad("extent", "is empty or reaches beyond its block");
        }
        let reach = extent.offset.checked_add(u64::from(extent.len)).filter(|reach| *reach <= size);
        let Some(reach) = reach.filter(|_| extent.offset >= end) else {
            return bad("extent", "overlaps another or reaches beyond the file");
        };
        end = reach;
        let hash = Hash(exactly("extent.block", &extent.block)?);
        let source = Source::Block { hash, offset: extent.block_offset };
        map.write(extent.offset, Piece { len: u64::from(extent.len), source });
    }
    Ok(map)
}

fn content_to(content: &Content) -> Option<wire::node::Content> {
    match content {
        Content::None => None,
        Content::Symlink(target) => Some(wire::node::Content::Symlink(target.to_vec().into())),
        Content::File(file) => {
            let mut message =
                wire::FileContent { size: file.size, chunker: CHUNKER_FIXED_64K, ..Default::default() };
            match &file.map {
                FileMap::Extents(map) => {
                    message.extents = map.iter().filter_map(|(at, piece)| extent_to(at, &piece)).collect()
                }
                FileMap::Stored(hash) => message.stored = hash.0.to_vec().into(),
            }
            Some(wire::node::Content::File(message))
        }
    }
}

fn content_from(content: &Option<wire::node::Content>, kind: Kind) -> Bad<Content> {
    match (content, kind) {
        (Some(wire::node::Content::File(file)), Kind::File) => {
            if file.size > FILE_BYTES_MAX {
                return bad("file.size", "is larger than a file can be");
            }
            if file.chunker != CHUNKER_FIXED_64K {
                return bad(
                    "file.chunker",
                    format_args!("{} is not known here: use a newer tidefs", file.chunker),
                );
            }
            let map = if file.stored.is_empty() {
                if file.extents.len() > INLINE_EXTENTS_MAX {
                    return bad("file.extents", "is longer than a node may list itself");
                }
                FileMap::Extents(extents_from(&file.extents, file.size)?)
            } else {
                FileMap::Stored(Hash(exactly("file.stored", &file.stored)?))
            };
            Ok(Content::File(Arc::new(FileContent { size: file.size, map })))
        }
        (Some(wire::node::Content::Symlink(target)), Kind::Symlink) => {
            if target.is_empty() || target.len() > SYMLINK_BYTES_MAX || target.contains(&0) {
                return bad("symlink", "is empty, too long, or holds a zero byte");
            }
            Ok(Content::Symlink(target[..].into()))
        }
        (None, Kind::File | Kind::Symlink) => bad("content", "is missing"),
        (None, _) => Ok(Content::None),
        (Some(_), _) => bad("content", "is not of the node's kind"),
    }
}

fn kind_to(kind: Kind) -> (wire::Kind, u32) {
    match kind {
        Kind::File => (wire::Kind::File, 0),
        Kind::Directory => (wire::Kind::Directory, 0),
        Kind::Symlink => (wire::Kind::Symlink, 0),
        Kind::Fifo => (wire::Kind::Fifo, 0),
        Kind::Socket => (wire::Kind::Socket, 0),
        Kind::CharDevice(device) => (wire::Kind::CharDevice, device),
        Kind::BlockDevice(device) => (wire::Kind::BlockDevice, device),
    }
}

fn kind_from(kind: i32, device: u32) -> Bad<Kind> {
    Ok(match wire::Kind::try_from(kind) {
        Ok(wire::Kind::File) => Kind::File,
        Ok(wire::Kind::Directory) => Kind::Directory,
        Ok(wire::Kind::Symlink) => Kind::Symlink,
        Ok(wire::Kind::Fifo) => Kind::Fifo,
        Ok(wire::Kind::Socket) => Kind::Socket,
        Ok(wire::Kind::CharDevice) => Kind::CharDevice(device),
        Ok(wire::Kind::BlockDevice) => Kind::BlockDevice(device),
        _ => return bad("kind", format_args!("{kind} is not known here: use a newer tidefs")),
    })
}

/// A node as a message.
pub fn node_to(node: &Node) -> wire::Node {
    let (kind, device) = kind_to(node.kind);
    let attr = |(name, value): (&AttrName, &Register<Arc<[u8]>>)| wire::Attr {
        name: name.as_bytes().to_vec().into(),
        value: value.value.to_vec().into(),
        version: Some(version_to(value.version)),
    };
    wire::Node {
        kind: kind.into(),
        device,
        birth: Some(version_to(node.birth)),
        content: content_to(&node.content.value),
        content_version: Some(version_to(node.content.version)),
        mtime: Some(time_to(node.times.value.mtime)),
        ctime: Some(time_to(node.times.value.ctime)),
        times_version: Some(version_to(node.times.version)),
        mode: node.owner.value.mode,
        uid: node.owner.value.uid,
        gid: node.owner.value.gid,
        owner_version: Some(version_to(node.owner.version)),
        attrs: node.attrs.iter().map(attr).collect(),
        links: node.links,
        subdirs: node.subdirs,
    }
}

/// A node from a message, every field checked.
pub fn node_from(node: &wire::Node) -> Bad<Node> {
    let kind = kind_from(node.kind, node.device)?;
    ascending("node.attrs", &node.attrs, |attr| attr.name.clone())?;
    let mut attrs = BTreeMap::new();
    for attr in &node.attrs {
        let version = version_need("attr.version", &attr.version)?;
        attrs.insert(
            attr_name_from("attr.name", &attr.name)?,
            Register::new(Arc::from(&attr.value[..]), version),
        );
    }
    let times = Times { mtime: time_from("mtime", &node.mtime)?, ctime: time_from("ctime", &node.ctime)? };
    let node = Node {
        kind,
        birth: version_need("birth", &node.birth)?,
        content: Register::new(
            content_from(&node.content, kind)?,
            version_need("content_version", &node.content_version)?,
        ),
        times: Register::new(times, version_need("times_version", &node.times_version)?),
        owner: Register::new(
            owner_from(node.mode, node.uid, node.gid)?,
            version_need("owner_version", &node.owner_version)?,
        ),
        attrs,
        links: node.links,
        subdirs: node.subdirs,
    };
    if node.attrs_bytes() > ATTRS_BYTES_MAX {
        return bad("node.attrs", "are larger than a node may have");
    }
    Ok(node)
}
