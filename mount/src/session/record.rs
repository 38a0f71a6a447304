//! Records of the log: a change and the context that its batch had not touched before.

use super::{
    before::{At, Before, EntryBefore},
    op::Op,
};
use std::sync::Arc;
use tidefs_proto::{
    bad::{Bad, bad, exactly, need},
    model::{
        attr_name_from, extent_to, extents_from, name_from, node_from, node_to, owner_from, spot_from,
        spot_to, time_from, time_to, version_from, version_need, version_to,
    },
    wire,
};
use tidefs_timeline::{
    CheckpointNo, Content, Entry, ExtentMap, FileContent, FileMap, Hash, Node, NodeId, Piece, Source, Spot,
    Timestamp,
};

/// Record kind: a change with its context.
pub const KIND_CHANGE: u8 = 1;
/// Record kind: context that is too long for the record of its change.
pub const KIND_CONTEXT: u8 = 2;

/// Record kind: what lies before has come to nothing.
pub const KIND_UNDONE: u8 = 3;

/// Record kind: what lies before was cut into a checkpoint.
pub const KIND_CUT: u8 = 4;

/// The record of a cut: until its checkpoint is in the outbox, the log says where it ends and what the changes
/// behind it found. None as for [`undone_to`].
pub fn cut_to(number: CheckpointNo, log_start: u64, context: &Before) -> Option<wire::OutboxEntry> {
    undone_to(log_start, context).map(|entry| wire::OutboxEntry { after: number.0, ..entry })
}

/// The record of a cut that came to nothing. No outbox entry says where the log goes on behind it, and what its
/// changes found is no longer what is there: a replay that kept it would undo what came since. None if what lies
/// behind the cut is too much for one record; then the log is read from further back.
pub fn undone_to(log_start: u64, context: &Before) -> Option<wire::OutboxEntry> {
    let mut parts = context_to(context);
    let context = parts.pop().filter(|_| parts.is_empty());
    context.map(|context| wire::OutboxEntry { log_start, context: Some(context), ..Default::default() })
}

/// Pieces of a file in one line of context; more are split over several.
const PIECES_MAX: usize = 4096;

/// Context as messages, each small enough for one record.
pub fn context_to(before: &Before) -> Vec<wire::LogContext> {
    let mut parts = vec![wire::LogContext::default()];
    let mut pieces = 0;
    for (id, node) in &before.nodes {
        for line in node_lines(*id, node, before.names.get(id).map_or(&[], Vec::as_slice)) {
            pieces += line.blocks.len() + line.locals.len() + line.names.len() + 1;
            if pieces > PIECES_MAX {
                parts.push(wire::LogContext::default());
                pieces = 0;
            }
            if let Some(part) = parts.last_mut() {
                part.nodes.push(line);
            }
        }
    }
    if let Some(part) = parts.last_mut() {
        part.entries = before.entries.iter().map(|(at, entry)| entry_to(at, entry)).collect();
        let spot = |(dir, spot): (&NodeId, &Option<Spot>)| wire::LogSpot {
            dir: dir.0,
            at: spot.as_ref().map(|spot| spot_to(spot.parent, &spot.name)),
        };
        part.spots = before.spots.iter().map(spot).collect();
    }
    parts
}

fn entry_to(at: &At, before: &EntryBefore) -> wire::LogEntry {
    wire::LogEntry {
        dir: at.0.0,
        name: at.1.as_bytes().to_vec().into(),
        node: before.entry.map_or(0, |entry| entry.node.0),
        version: before.entry.map(|entry| version_to(entry.version)),
        tombstone: before.tombstone.map(version_to),
    }
}

/// A node as lines; the pieces of a file stand beside the node, in as many lines as it takes.
fn node_lines(id: NodeId, node: &Node, names: &[At]) -> Vec<wire::LogNode> {
    let names = names.iter().map(|(dir, name)| spot_to(*dir, name)).collect();
    let mut message = node_to(node);
    let mut lines = Vec::new();
    let mut line = wire::LogNode { id: id.0, names, ..Default::default() };
    if let Content::File(file) = &node.content.value
        && let FileMap::Extents(map) = &file.map
    {
        if let Some(wire::node::Content::File(file)) = &mut message.content {
            file.extents.clear();
        }
        for (offset, piece) in map.iter() {
            match piece.source {
                Source::Local(position) => {
                    line.locals.push(wire::LocalExtent { offset, len: piece.len, position })
                }
                Source::Block { .. } => line.blocks.extend(extent_to(offset, &piece)),
            }
            if line.locals.len() + line.blocks.len() >= PIECES_MAX {
                lines.push(std::mem::replace(&mut line, wire::LogNode { id: id.0, ..Default::default() }));
            }
        }
    }
    lines.push(line);
    lines[0].node = Some(message);
    lines
}

/// Reads context back, adding to `before` what it does not hold yet. Lines of one node may follow each other in
/// several messages; `open` names the node whose later lines are still taken in.
pub fn context_from(context: &wire::LogContext, before: &mut Before, open: &mut Option<NodeId>) -> Bad<()> {
    for line in &context.nodes {
        let id = NodeId(line.id);
        if let Some(message) = &line.node {
            *open = (!before.nodes.contains_key(&id)).then_some(id);
            if open.is_none() {
                continue;
            }
            before.nodes.insert(id, Arc::new(node_from(message)?));
            let names = line
                .names
                .iter()
                .map(|spot| spot_from("log.name", spot).map(|spot| (spot.parent, spot.name)));
            before.names.insert(id, names.collect::<Bad<_>>()?);
        }
        if *open == Some(id)
            && let Some(node) = before.nodes.get_mut(&id)
        {
            add_pieces(Arc::make_mut(node), line)?;
        }
    }
    for entry in &context.entries {
        let at = (NodeId(entry.dir), name_from("log.entry", &entry.name)?);
        let bound = match entry.node {
            0 => None,
            node => Some(Entry { node: NodeId(node), version: version_need("log.entry", &entry.version)? }),
        };
        let tombstone = entry.tombstone.as_ref().map(version_from);
        before.entries.entry(at).or_insert(EntryBefore { entry: bound, tombstone });
    }
    for spot in &context.spots {
        let at = spot.at.as_ref().map(|at| spot_from("log.spot", at)).transpose()?;
        before.spots.entry(NodeId(spot.dir)).or_insert(at);
    }
    Ok(())
}

fn add_pieces(node: &mut Node, line: &wire::LogNode) -> Bad<()> {
    let Content::File(file) = &mut node.content.value else { return Ok(()) };
    let file = Arc::make_mut(file);
    let FileContent { size, map: FileMap::Extents(map) } = file else { return Ok(()) };
    for (offset, piece) in extents_from(&line.blocks, *size)?.iter() {
        map.write(offset, piece);
    }
    for local in &line.locals {
        map.write(local.offset, Piece { len: local.len, source: Source::Local(local.position) });
    }
    Ok(())
}

/// A change as a message.
pub fn change_to(op: &Op, now: Timestamp, context: wire::LogContext) -> wire::LoggedChange {
    use wire::logged_change::Change;
    let spot = |at: &At| Some(spot_to(at.0, &at.1));
    let change = match op {
        Op::Make { at, id, node } => {
            Change::Make(wire::LogMake { at: spot(at), id: id.0, node: Some(node_to(node)) })
        }
        Op::Link { id, at } => Change::Link(wire::LogLink { id: id.0, at: spot(at) }),
        Op::Remove { at } => Change::Remove(wire::LogRemove { at: spot(at) }),
        Op::Rename { from, to, exchange } => {
            Change::Rename(wire::LogRename { from: spot(from), to: spot(to), exchange: *exchange })
        }
        Op::Write { id, offset, len, clear_set_id, .. } => Change::Write(wire::LogWrite {
            id: id.0,
            offset: *offset,
            len: *len,
            clear_set_id: *clear_set_id,
        }),
        Op::Truncate { id, size, clear_set_id } => {
            Change::Truncate(wire::LogTruncate { id: id.0, size: *size, clear_set_id: *clear_set_id })
        }
        Op::Times { id, mtime } => Change::Times(wire::LogTimes { id: id.0, mtime: Some(time_to(*mtime)) }),
        Op::Owner { id, owner } => {
            Change::Owner(wire::LogOwner { id: id.0, mode: owner.mode, uid: owner.uid, gid: owner.gid })
        }
        Op::Attr { id, name, value } => Change::Attr(wire::LogAttr {
            id: id.0,
            name: name.as_bytes().to_vec().into(),
            value: value.as_ref().map(|value| value.to_vec()).unwrap_or_default().into(),
            remove: value.is_none(),
        }),
    };
    wire::LoggedChange { context: Some(context), now: Some(time_to(now)), change: Some(change) }
}

/// Reads a change; `data` is where the record's bytes lie in the log.
pub fn change_from(message: &wire::LoggedChange, data: u64) -> Bad<(Op, Timestamp)> {
    use wire::logged_change::Change;
    let at = |spot: &Option<wire::Spot>| {
        let spot = spot_from("log.at", need("log.at", spot.as_ref())?)?;
        Ok((spot.parent, spot.name))
    };
    let op = match need("log.change", message.change.as_ref())? {
        Change::Make(make) => {
            let node = Arc::new(node_from(need("log.node", make.node.as_ref())?)?);
            Op::Make { at: at(&make.at)?, id: NodeId(make.id), node }
        }
        Change::Link(link) => Op::Link { id: NodeId(link.id), at: at(&link.at)? },
        Change::Remove(remove) => Op::Remove { at: at(&remove.at)? },
        Change::Rename(rename) => {
            Op::Rename { from: at(&rename.from)?, to: at(&rename.to)?, exchange: rename.exchange }
        }
        Change::Write(write) => {
            if write
                .offset
                .checked_add(write.len)
                .is_none_or(|end| end > tidefs_timeline::limits::FILE_BYTES_MAX)
            {
                return bad("log.write", "reaches beyond the largest file");
            }
            let (id, offset, len, clear_set_id) =
                (NodeId(write.id), write.offset, write.len, write.clear_set_id);
            Op::Write { id, offset, len, local: data, clear_set_id }
        }
        Change::Truncate(cut) => {
            Op::Truncate { id: NodeId(cut.id), size: cut.size, clear_set_id: cut.clear_set_id }
        }
        Change::Times(times) => {
            Op::Times { id: NodeId(times.id), mtime: time_from("log.mtime", &times.mtime)? }
        }
        Change::Owner(owner) => {
            Op::Owner { id: NodeId(owner.id), owner: owner_from(owner.mode, owner.uid, owner.gid)? }
        }
        Change::Attr(attr) => Op::Attr {
            id: NodeId(attr.id),
            name: attr_name_from("log.attr", &attr.name)?,
            value: (!attr.remove).then(|| Arc::from(&attr.value[..])),
        },
    };
    Ok((op, time_from("log.now", &message.now)?))
}

/// Where a run of the log's bytes lies after sealing.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SealedRun {
    /// Bytes.
    pub len: u64,
    /// Their source now.
    pub source: Source,
}

/// Log addresses to where their bytes lie now.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct SealMap(std::collections::BTreeMap<u64, SealedRun>);

impl SealMap {
    /// Says where `len` bytes at `position` lie now.
    pub fn add(&mut self, position: u64, run: SealedRun) {
        self.0.insert(position, run);
    }

    /// Replaces what a map still finds in the log by where it lies now. Returns whether anything changed.
    pub fn resolve(&self, map: &mut ExtentMap) -> bool {
        let mut found = Vec::new();
        for (offset, piece) in map.iter() {
            let Source::Local(position) = piece.source else { continue };
            let end = position + piece.len;
            let first = self.0.range(..=position).next_back().map_or(position, |(at, _)| *at);
            for (at, run) in self.0.range(first..end) {
                let (from, to) = ((*at).max(position), (at + run.len).min(end));
                if from < to {
                    let source = match run.source {
                        Source::Block { hash, offset } => {
                            Source::Block { hash, offset: offset + (from - at) as u32 }
                        }
                        Source::Local(there) => Source::Local(there + (from - at)),
                    };
                    found.push((offset + (from - position), Piece { len: to - from, source }));
                }
            }
        }
        for (offset, piece) in &found {
            map.write(*offset, *piece);
        }
        !found.is_empty()
    }

    /// Does the same for a node's content.
    pub fn resolve_node(&self, node: &mut Arc<Node>) {
        let local = |node: &Node| match &node.content.value {
            Content::File(file) => matches!(&file.map, FileMap::Extents(map) if map.has_local()),
            _ => false,
        };
        if !self.0.is_empty() && local(node) {
            self.resolve_content(Arc::make_mut(node));
        }
    }

    /// The same for a node that is not shared.
    pub fn resolve_content(&self, node: &mut Node) {
        if let Content::File(file) = &mut node.content.value
            && let FileMap::Extents(map) = &file.map
            && map.has_local()
            && let FileMap::Extents(map) = &mut Arc::make_mut(file).map
        {
            self.resolve(map);
        }
    }

    /// As messages.
    pub fn to_wire(&self) -> Vec<wire::SealedExtent> {
        let line = |(position, run): (&u64, &SealedRun)| match run.source {
            Source::Block { hash, offset } => Some(wire::SealedExtent {
                position: *position,
                len: run.len,
                block: hash.0.to_vec().into(),
                block_offset: offset,
            }),
            Source::Local(_) => None,
        };
        self.0.iter().filter_map(line).collect()
    }

    /// From messages.
    pub fn from_wire(lines: &[wire::SealedExtent]) -> Bad<Self> {
        let mut map = Self::default();
        for line in lines {
            let hash = Hash(exactly("sealed.block", &line.block)?);
            map.add(
                line.position,
                SealedRun { len: line.len, source: Source::Block { hash, offset: line.block_offset } },
            );
        }
        Ok(map)
    }
}
