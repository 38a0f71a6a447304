//! What tests have in common: a session that makes shipments by hand, and walks through a whole tree.

use crate::order::{AttachAsk, Submission};
use bytes::Bytes;
use std::{collections::BTreeMap, sync::Arc};
use tidefs_proto::{Shipment, Stages, pack::PackWriter, shipment::digest};
use tidefs_timeline::{
    Changed, Checkpoint, CheckpointNo, Content, DirInfo, Entry, EntryChange, ExtentMap, FileContent, FileMap,
    Hash, Head, Kind, LostNode, Name, Node, NodeChange, NodeId, Owner, Piece, Position, SessionNo, Source,
    Spot, Timestamp, Version,
};

pub const OWNER: Owner = Owner { mode: 0o644, uid: 1, gid: 2 };

pub fn name(text: &str) -> Name {
    Name::new(text.as_bytes()).unwrap()
}

pub fn ask(id: u8, named: &str, incarnation: u64, next: u64) -> AttachAsk {
    AttachAsk {
        id: [id; 16],
        name: named.into(),
        incarnation,
        next_incarnation: next,
        position: Position(0),
        of: None,
    }
}

/// A pack of these blocks: its id, its bytes, the blocks' hashes.
pub fn pack(blocks: &[&[u8]]) -> (Hash, Bytes, Vec<Hash>) {
    let mut writer = PackWriter::new(Vec::new()).unwrap();
    let hashes = blocks.iter().map(|block| Hash(writer.add(block).unwrap())).collect();
    let (summary, bytes) = writer.finish_into().unwrap();
    (Hash(summary.id), bytes.into(), hashes)
}

/// A file of one block, or an empty one.
pub fn content(block: Option<(Hash, u64)>) -> Content {
    let mut map = ExtentMap::default();
    if let Some((hash, len)) = block {
        map.write(0, Piece { len, source: Source::Block { hash, offset: 0 } });
    }
    let size = block.map_or(0, |(_, len)| len);
    Content::File(Arc::new(FileContent { size, map: FileMap::Extents(map) }))
}

/// A session that makes shipments.
#[derive(Clone, Debug)]
pub struct Maker {
    pub session: SessionNo,
    pub incarnation: u64,
    pub number: u64,
    pub previous: [u8; 32],
    counter: u32,
}

impl Maker {
    pub fn new(session: u32, incarnation: u64) -> Self {
        Self { session: SessionNo(session), incarnation, number: 0, previous: [0; 32], counter: 1 }
    }

    pub fn draft(&self) -> Draft {
        Draft {
            checkpoint: Checkpoint {
                session: self.session,
                session_name: format!("s{}", self.session.0),
                number: CheckpointNo(self.number + 1),
                applied: Position(0),
                dirs: vec![DirInfo { id: NodeId::ROOT, before: None, after: None, owner: OWNER }],
                entries: Vec::new(),
                nodes: Vec::new(),
                lost: Vec::new(),
            },
            counter: self.counter,
            pack: None,
        }
    }

    /// The bytes of the next shipment and their digest.
    pub fn ship(&mut self, draft: Draft) -> (Bytes, [u8; 32]) {
        let mut checkpoint = draft.checkpoint;
        checkpoint.dirs.sort_by_key(|dir| dir.id);
        checkpoint.dirs.dedup_by_key(|dir| dir.id);
        checkpoint.entries.sort_by(|a, b| (a.dir, &a.name).cmp(&(b.dir, &b.name)));
        checkpoint.nodes.sort_by_key(|node| node.id);
        checkpoint.lost.sort_by_key(|lost| lost.id);
        let bytes: Bytes = Shipment {
            checkpoint,
            incarnation: self.incarnation,
            previous: self.previous,
            pack: draft.pack,
            stages: Stages::default(),
            next_counter: draft.counter,
        }
        .encode()
        .into();
        let digest = digest(&bytes);
        self.number += 1;
        self.previous = digest;
        self.counter = draft.counter;
        (bytes, digest)
    }

    pub fn submit(&mut self, draft: Draft) -> Submission {
        let (bytes, digest) = self.ship(draft);
        self.submission(self.number, bytes, digest)
    }

    pub fn submission(&self, number: u64, bytes: Bytes, digest: [u8; 32]) -> Submission {
        let version = Version { session: self.session, number: CheckpointNo(number) };
        Submission::read(version, self.incarnation, bytes, digest).unwrap()
    }

    /// A shipment that makes one empty file in the root.
    pub fn touch(&mut self, file: &str) -> Submission {
        let mut draft = self.draft();
        draft.create(NodeId::ROOT, file, Kind::File, content(None));
        self.submit(draft)
    }
}

/// A checkpoint in the making.
pub struct Draft {
    pub checkpoint: Checkpoint,
    pub pack: Option<Hash>,
    counter: u32,
}

impl Draft {
    fn version(&self) -> Version {
        self.checkpoint.version()
    }

    /// Says where a directory hangs, for the chain.
    pub fn hangs(&mut self, dir: NodeId, parent: NodeId, at: &str) {
        let spot = Some(Spot { parent, name: name(at) });
        self.checkpoint.dirs.push(DirInfo { id: dir, before: spot.clone(), after: spot, owner: OWNER });
    }

    fn entry(&mut self, dir: NodeId, at: &str, old: Option<NodeId>, new: Option<NodeId>) {
        let time = Timestamp { seconds: 5, nanos: 0 };
        self.checkpoint.entries.push(EntryChange { dir, name: name(at), old, new, base: None, time });
    }

    pub fn create(&mut self, dir: NodeId, at: &str, kind: Kind, content: Content) -> NodeId {
        let id = NodeId::new(self.checkpoint.session, self.counter);
        self.counter += 1;
        let node = Node::new(kind, self.version(), content, OWNER, Timestamp::default());
        self.entry(dir, at, None, Some(id));
        self.checkpoint.nodes.push(NodeChange {
            id,
            born: true,
            node: Node { links: 1, ..node },
            changed: Changed::default(),
            names: vec![(dir, name(at))],
            links_before: 0,
        });
        if kind == Kind::Directory {
            let after = Some(Spot { parent: dir, name: name(at) });
            self.checkpoint.dirs.push(DirInfo { id, before: None, after, owner: OWNER });
        }
        id
    }

    pub fn write(&mut self, id: NodeId, spot: (NodeId, &str), content: Content, base: Option<Version>) {
        let node = Node::new(Kind::File, self.version(), content, OWNER, Timestamp::default());
        self.checkpoint.nodes.push(NodeChange {
            id,
            born: false,
            node: Node { links: 1, ..node },
            changed: Changed { content: Some(base), mtime: true, ctime: true, ..Changed::default() },
            names: vec![(spot.0, name(spot.1))],
            links_before: 1,
        });
    }

    pub fn remove(&mut self, spot: (NodeId, &str), id: NodeId, is_dir: bool) {
        self.entry(spot.0, spot.1, Some(id), None);
        let lost = LostNode { id, is_dir, content: None, owner: None, owner_seen: OWNER };
        self.checkpoint.lost.push(lost);
    }

    pub fn rename(&mut self, from: (NodeId, &str), to: (NodeId, &str), id: NodeId) {
        self.entry(from.0, from.1, Some(id), None);
        self.entry(to.0, to.1, None, Some(id));
        let node = Node::new(Kind::File, self.version(), content(None), OWNER, Timestamp::default());
        self.checkpoint.nodes.push(NodeChange {
            id,
            born: false,
            node: Node { links: 1, ..node },
            changed: Changed::default(),
            names: vec![(from.0, name(from.1)), (to.0, name(to.1))],
            links_before: 1,
        });
        let lost = LostNode { id, is_dir: false, content: None, owner: None, owner_seen: OWNER };
        self.checkpoint.lost.push(lost);
    }
}

/// All of a tree: entries by directory and name, nodes with their names.
pub type Walk = (BTreeMap<(NodeId, Name), Entry>, BTreeMap<NodeId, (Arc<Node>, Vec<(NodeId, Name)>)>);

/// Walks through a whole tree, three entries at a time.
pub fn walk<H: Head>(head: &H) -> Walk
where
    H::Error: std::fmt::Debug,
{
    let (mut entries, mut nodes) = Walk::default();
    let mut dirs = vec![NodeId::ROOT];
    let mut put = |id: NodeId| {
        let node = head.node(id).unwrap().expect("a bound node is in the tree");
        nodes.insert(id, (node.clone(), head.names(id).unwrap()));
        node.is_dir()
    };
    put(NodeId::ROOT);
    while let Some(dir) = dirs.pop() {
        let mut after: Option<Name> = None;
        loop {
            let page = head.entries(dir, after.as_ref(), 3).unwrap();
            for (name, entry) in &page {
                assert_eq!(head.entry(dir, name).unwrap(), Some(*entry));
                if put(entry.node) {
                    dirs.push(entry.node);
                }
                entries.insert((dir, name.clone()), *entry);
            }
            after = page.last().map(|(name, _)| name.clone());
            if page.len() < 3 {
                break;
            }
        }
    }
    (entries, nodes)
}
