//! Fetching directories: the parts of the answer put together, each directory whole and at one position.

use super::{DriveId, Link, LinkError};
use prost::Message;
use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};
use tidefs_proto::{
    Bad,
    bad::{bad, need},
    limits::{FETCH_DIRS_MAX, PREFETCH_ENTRIES_MAX},
    model::{name_from, node_from, version_need},
    wire,
};
use tidefs_timeline::{Entry, Name, Node, NodeId, Position};

/// Entries that one fetch takes in all.
pub const FETCH_ENTRIES_MAX: usize = 2_000_000;
/// Encoded bytes that one fetch takes in all.
const FETCH_BYTES_MAX: usize = 1 << 30;
/// How long a fetch may take unless the caller says otherwise: less than a request of the kernel may wait.
pub const FETCH_WAIT: Duration = Duration::from_secs(8);

const _: () = assert!(FETCH_WAIT.as_secs() < crate::volume::REQUEST_WAIT_MAX.as_secs());

/// A directory as it was at one position.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Directory {
    /// Its id, as asked for.
    pub id: NodeId,
    /// The position.
    pub position: Position,
    /// What it was then.
    pub what: DirectoryIs,
}

/// What a directory is at a position.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum DirectoryIs {
    /// Not in the tree.
    Gone,
    /// United with this one.
    Alias(NodeId),
    /// In the tree.
    Listing {
        /// All its entries.
        entries: BTreeMap<Name, Entry>,
        /// The directory itself and every node that its entries name, each once, by id.
        nodes: Vec<(NodeId, Node)>,
    },
}

impl Link {
    /// Fetches directories, and with them up to `prefetch` entries of what lies below, unasked: the answer may
    /// hold more directories than were asked for, never fewer. Asked once more if the connection broke.
    ///
    /// # Errors
    /// Ends within `deadline` (see [`FETCH_WAIT`]). Bad when more than [`FETCH_ENTRIES_MAX`] entries come.
    pub async fn fetch_directories(
        &self,
        drive_id: DriveId,
        dirs: &[NodeId],
        prefetch: u32,
        deadline: Duration,
    ) -> Result<Vec<Directory>, LinkError> {
        let wanted: Vec<NodeId> = dirs.iter().copied().collect::<BTreeSet<_>>().into_iter().collect();
        let all = async {
            let mut done = Vec::new();
            let mut room = Room { entries: FETCH_ENTRIES_MAX, bytes: FETCH_BYTES_MAX };
            for some in wanted.chunks(FETCH_DIRS_MAX) {
                match self.fetch_listings(drive_id, some, prefetch, &mut room).await {
                    Err(LinkError::Unreachable { .. }) => {
                        done.extend(self.fetch_listings(drive_id, some, prefetch, &mut room).await?)
                    }
                    listings => done.extend(listings?),
                }
            }
            // A directory asked for in one request may have come unasked with another: the newest stays.
            done.sort_by_key(|directory: &Directory| (directory.id, std::cmp::Reverse(directory.position)));
            done.dedup_by_key(|directory| directory.id);
            Ok(done)
        };
        self.within("fetch directories", deadline, all).await
    }

    async fn fetch_listings(
        &self,
        drive_id: DriveId,
        dirs: &[NodeId],
        prefetch: u32,
        room: &mut Room,
    ) -> Result<Vec<Directory>, LinkError> {
        let ask = wire::FetchDirectoriesRequest {
            drive_id: drive_id.to_vec().into(),
            dirs: dirs.iter().map(|dir| dir.0).collect(),
            prefetch_entries: prefetch.min(PREFETCH_ENTRIES_MAX),
        };
        let reply = self.client().fetch_directories(ask).await.map_err(|status| self.error(status))?;
        let mut stream = reply.into_inner();
        let mut listings = Listings::default();
        while let Some(part) = stream.message().await.map_err(|status| self.error(status))? {
            room.take(&part)?;
            listings.add(&part)?;
        }
        Ok(listings.finish(dirs)?)
    }
}

/// What one fetch may still take.
struct Room {
    entries: usize,
    bytes: usize,
}

impl Room {
    fn take(&mut self, part: &wire::DirectoryPart) -> Bad<()> {
        // Every part counts as one, so that a stream of empty ones ends too.
        let rest =
            (self.entries.checked_sub(part.entries.len() + 1), self.bytes.checked_sub(part.encoded_len()));
        let (Some(entries), Some(bytes)) = rest else {
            return bad("directory", "the answer holds more than one fetch may take");
        };
        (self.entries, self.bytes) = (entries, bytes);
        Ok(())
    }
}

/// Directories that are complete, and the one whose parts are coming.
#[derive(Default)]
struct Listings {
    done: BTreeMap<NodeId, Directory>,
    open: Option<Open>,
}

struct Open {
    id: NodeId,
    position: Position,
    entries: BTreeMap<Name, Entry>,
    nodes: BTreeMap<NodeId, Node>,
}

impl Listings {
    fn add(&mut self, part: &wire::DirectoryPart) -> Bad<()> {
        let (id, position) = (NodeId(part.dir), Position(part.position));
        if id.0 == 0 || self.done.contains_key(&id) {
            return bad("directory", format_args!("{id} has no id, or came twice"));
        }
        let open = match self.open.take() {
            None => Open { id, position, entries: BTreeMap::new(), nodes: BTreeMap::new() },
            Some(open) if open.id == id && open.position == position => open,
            Some(open) => return bad("directory", format_args!("{id} came amid the parts of {}", open.id)),
        };
        let what = if part.gone || part.alias != 0 {
            // Such an answer is a part of its own: nothing before it, nothing in it.
            let alone = open.entries.is_empty() && open.nodes.is_empty();
            if !alone || !part.last || !part.entries.is_empty() || !part.nodes.is_empty() {
                return bad("directory", format_args!("{id} is gone or united, and yet lists something"));
            }
            if part.gone { DirectoryIs::Gone } else { DirectoryIs::Alias(NodeId(part.alias)) }
        } else {
            let mut open = open;
            open.add(part)?;
            if !part.last {
                self.open = Some(open);
                return Ok(());
            }
            open.finish()?
        };
        self.done.insert(id, Directory { id, position, what });
        Ok(())
    }

    fn finish(self, asked: &[NodeId]) -> Bad<Vec<Directory>> {
        if let Some(open) = self.open {
            return bad("directory", format_args!("{} ended before its last part", open.id));
        }
        if let Some(dir) = asked.iter().find(|dir| !self.done.contains_key(dir)) {
            return bad("directory", format_args!("{dir} was not answered"));
        }
        Ok(self.done.into_values().collect())
    }
}

impl Open {
    fn add(&mut self, part: &wire::DirectoryPart) -> Bad<()> {
        for line in &part.entries {
            let version = version_need("directory.version", &line.version)?;
            let entry = Entry { node: NodeId(line.node), version };
            if self.entries.insert(name_from("directory.name", &line.name)?, entry).is_some() {
                return bad("directory.name", format_args!("came twice in {}", self.id));
            }
        }
        for line in &part.nodes {
            let node = node_from(need("directory.node", line.node.as_ref())?)?;
            // Two names of one node may bring it twice, at one position, hence the same.
            if self.nodes.get(&NodeId(line.id)).is_some_and(|before| *before != node) {
                return bad("directory.node", format_args!("{} came twice, unlike, in {}", line.id, self.id));
            }
            self.nodes.insert(NodeId(line.id), node);
        }
        Ok(())
    }

    fn finish(self) -> Bad<DirectoryIs> {
        if !self.nodes.get(&self.id).is_some_and(Node::is_dir) {
            return bad("directory", format_args!("{} came without its own node", self.id));
        }
        if let Some(entry) = self.entries.values().find(|entry| !self.nodes.contains_key(&entry.node)) {
            return bad("directory", format_args!("{} names {}, which did not come", self.id, entry.node));
        }
        Ok(DirectoryIs::Listing { entries: self.entries, nodes: self.nodes.into_iter().collect() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An answer ends at its bound of entries, of bytes, and of parts that hold nothing.
    #[test]
    fn an_answer_is_bounded() {
        let entry = wire::DirectoryEntry { name: vec![b'a'; 200].into(), node: 1, version: None };
        let part = wire::DirectoryPart { entries: vec![entry; 3], ..Default::default() };
        let mut few = Room { entries: 7, bytes: 1 << 20 };
        assert!(few.take(&part).is_ok() && few.take(&part).is_err());
        let mut small = Room { entries: 100, bytes: 1000 };
        assert!(small.take(&part).is_ok() && small.take(&part).is_err());
        let mut empty = Room { entries: 1, bytes: 1000 };
        assert!(empty.take(&Default::default()).is_ok() && empty.take(&Default::default()).is_err());
    }
}
