//! Whole directories for mounts, and those below them while there is room.

use prost::Message;
use std::collections::{BTreeSet, VecDeque};
use tidefs_proto::{
    limits::{PART_BYTES, PREFETCH_ENTRIES_MAX},
    model::{node_to, version_to},
    wire,
};
use tidefs_timeline::{Entry, Head, Name, Node, NodeId, Position, limits::CHAIN_MAX};

/// Entries that are read at a time.
const PAGE: usize = 512;
/// Bytes of an answer past which nothing is added unasked.
const PREFETCH_BYTES: usize = 8 << 20;

/// Lists `dirs` as they are at `head`, which stands at `position`, then directories below them, breadth first, as
/// long as their entries fit into `prefetch`.
///
/// # Errors
/// Those of reading the head.
pub fn list<H: Head>(
    head: &H,
    position: Position,
    dirs: &[NodeId],
    prefetch: u32,
) -> Result<Vec<wire::DirectoryPart>, H::Error> {
    let room = prefetch.min(PREFETCH_ENTRIES_MAX) as usize;
    let mut listing = Listing { head, position, room, bytes: 0, parts: Vec::new(), below: VecDeque::new() };
    let mut seen = BTreeSet::new();
    for &dir in dirs {
        if seen.insert(dir)
            && let Some(survivor) = listing.asked(dir)?
            && seen.insert(survivor)
        {
            listing.asked(survivor)?;
        }
    }
    while let Some(dir) = listing.below.pop_front() {
        if listing.room == 0 || listing.bytes > PREFETCH_BYTES {
            break;
        }
        if seen.insert(dir) {
            listing.unasked(dir)?;
        }
    }
    Ok(listing.parts)
}

struct Listing<'a, H> {
    head: &'a H,
    position: Position,
    /// Entries that may still be added unasked.
    room: usize,
    bytes: usize,
    parts: Vec<wire::DirectoryPart>,
    /// Directories below those listed.
    below: VecDeque<NodeId>,
}

impl<H: Head> Listing<'_, H> {
    /// Lists a directory that was asked for; gives the one that it was united with, if it was.
    fn asked(&mut self, dir: NodeId) -> Result<Option<NodeId>, H::Error> {
        if let Some(node) = self.head.node(dir)?.filter(|node| node.is_dir()) {
            self.directory(dir, &node, usize::MAX)?;
            return Ok(None);
        }
        let survivor = self.survivor(dir)?;
        let alias = survivor.map_or(0, |survivor| survivor.0);
        let part = wire::DirectoryPart { gone: survivor.is_none(), alias, last: true, ..self.part(dir) };
        self.parts.push(part);
        Ok(survivor)
    }

    fn unasked(&mut self, dir: NodeId) -> Result<(), H::Error> {
        if let Some(node) = self.head.node(dir)?
            && self.head.entries(dir, None, self.room + 1)?.len() <= self.room
        {
            let entries = self.directory(dir, &node, self.room)?;
            // An empty directory costs as much as one entry.
            self.room -= entries.clamp(1, self.room);
        }
        Ok(())
    }

    fn survivor(&self, dir: NodeId) -> Result<Option<NodeId>, H::Error> {
        let mut at = dir;
        for _ in 0..CHAIN_MAX {
            let Some(next) = self.head.alias(at)? else { return Ok(None) };
            if self.head.node(next)?.is_some_and(|node| node.is_dir()) {
                return Ok(Some(next));
            }
            at = next;
        }
        Ok(None)
    }

    fn part(&self, dir: NodeId) -> wire::DirectoryPart {
        wire::DirectoryPart { position: self.position.0, dir: dir.0, ..wire::DirectoryPart::default() }
    }

    /// The parts of one directory; gives how many entries it has.
    fn directory(&mut self, dir: NodeId, node: &Node, limit: usize) -> Result<usize, H::Error> {
        let mut part = self.part(dir);
        let mut size = add_node(&mut part, dir, node);
        let mut count = 0;
        let mut after: Option<Name> = None;
        loop {
            let page = self.head.entries(dir, after.as_ref(), PAGE.min(limit))?;
            let full = page.len() == PAGE;
            after = page.last().map(|(name, _)| name.clone());
            count += page.len();
            for (name, entry) in page {
                size += self.entry(&mut part, &name, entry)?;
                if size > PART_BYTES {
                    self.bytes += size;
                    let next = self.part(dir);
                    self.parts.push(std::mem::replace(&mut part, next));
                    size = 0;
                }
            }
            if !full {
                break;
            }
        }
        part.last = true;
        self.bytes += size;
        self.parts.push(part);
        Ok(count)
    }

    fn entry(
        &mut self,
        part: &mut wire::DirectoryPart,
        name: &Name,
        entry: Entry,
    ) -> Result<usize, H::Error> {
        let line = wire::DirectoryEntry {
            name: name.as_bytes().to_vec().into(),
            node: entry.node.0,
            version: Some(version_to(entry.version)),
        };
        let mut size = line.encoded_len() + 4;
        part.entries.push(line);
        if let Some(node) = self.head.node(entry.node)? {
            if node.is_dir() {
                self.below.push_back(entry.node);
            }
            size += add_node(part, entry.node, &node);
        }
        Ok(size)
    }
}

fn add_node(part: &mut wire::DirectoryPart, id: NodeId, node: &Node) -> usize {
    let line = wire::NodeLine { id: id.0, node: Some(node_to(node)) };
    let size = line.encoded_len() + 4;
    part.nodes.push(line);
    size
}
