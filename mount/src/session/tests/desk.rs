//! One mount's session with its log, and the head that several of them share.

use crate::{
    session::{
        Identity, Moment, Planned, SealJob, Session, Told,
        arrive::Arrived,
        cut::Sealed,
        loading::{Directory, DirectoryState},
        op::Op,
        record::{KIND_CHANGE, KIND_CONTEXT, SealMap, SealedRun, change_to, context_to},
        recover::Replay,
        settle::SettleConfig,
    },
    volume::{Answer, Caller, Make, RenameMode, SetAttr, Tell, WriteAt},
};
use prost::Message;
use std::{collections::BTreeMap, sync::Arc, time::Duration};
use tidefs_proto::{PlacedLine, Stages, wire};
use tidefs_timeline::{
    Checkpoint, Content, FileContent, FileMap, Hash, Head, Kind, Name, NodeId, Position, SessionNo, Source,
    Timestamp, Tree, Version, place,
};

pub fn name(name: &str) -> Name {
    Name::new(name.as_bytes()).unwrap()
}

/// The head and all that was placed.
pub struct Server {
    pub head: Tree,
    pub lines: Vec<PlacedLine>,
}

impl Server {
    pub fn new() -> Self {
        Self { head: Tree::new_drive(Timestamp::default()), lines: Vec::new() }
    }

    pub fn place(&mut self, checkpoint: &Checkpoint) -> PlacedLine {
        let placed = place(&self.head, checkpoint).unwrap();
        self.head.apply(&placed.effects);
        let line = PlacedLine {
            position: Position(self.lines.len() as u64 + 1),
            session: checkpoint.session,
            session_name: checkpoint.session_name.clone(),
            number: checkpoint.number,
            digest: [0; 32],
            placed_unix_us: 0,
            stages: Stages::default(),
            placed,
        };
        self.lines.push(line.clone());
        line
    }
}

/// A record of the log.
#[derive(Clone)]
pub struct Line {
    pub kind: u8,
    pub head: Vec<u8>,
    pub start: u64,
    pub data: u64,
}

pub struct Desk {
    pub session: Session,
    pub log: Vec<Line>,
    pub end: u64,
    pub now: u64,
    pub pid: u32,
    /// What the newest outbox entry would hold.
    pub entry: Option<wire::OutboxEntry>,
    sealed: Vec<SealMap>,
}

impl Desk {
    pub fn new(no: u32) -> Self {
        let root = Tree::new_drive(Timestamp::default()).node(NodeId::ROOT).unwrap().unwrap();
        let identity = Identity { session: SessionNo(no), name: format!("s{no}") };
        let at = (Position(0), (*root).clone());
        let mut session = Session::new(identity, SettleConfig::default(), at);
        let what = DirectoryState::Listing { entries: BTreeMap::new(), nodes: vec![(NodeId::ROOT, root)] };
        session.loaded(Directory { id: NodeId::ROOT, position: Position(0), what });
        Self { session, log: Vec::new(), end: 0, now: 1000, pid: 7, entry: None, sealed: Vec::new() }
    }

    pub fn moment(&self) -> Moment {
        let wall = Timestamp { seconds: self.now as i64, nanos: 0 };
        Moment { wall, tick: Duration::from_millis(self.now) }
    }

    pub fn at(&self) -> (Moment, Caller) {
        (self.moment(), Caller { uid: 1, gid: 1, pid: self.pid })
    }

    pub fn append(&mut self, kind: u8, head: Vec<u8>, data: &[u8]) -> (u64, u64) {
        let (start, at) = (self.end, self.end + 40 + head.len() as u64);
        self.end = at + data.len() as u64;
        self.log.push(Line { kind, head, start, data: at });
        (start, at)
    }

    /// Logs and commits what was planned, as the running mount does.
    pub fn commit(&mut self, plans: Vec<Planned>, data: &[u8]) {
        for planned in plans {
            let data = if matches!(planned.op, Op::Write { .. }) { data } else { &[] };
            if planned.orphan {
                self.session.commit(planned, 0, 1 << 62);
                continue;
            }
            let mut parts = context_to(&planned.context);
            let last = parts.pop().unwrap_or_default();
            let mut first = None;
            for part in parts {
                let at = self.append(KIND_CONTEXT, part.encode_to_vec(), &[]);
                first.get_or_insert(at.0);
            }
            let head = change_to(&planned.op, planned.now, last).encode_to_vec();
            let at = self.append(KIND_CHANGE, head, data);
            self.session.commit(planned, first.unwrap_or(at.0), at.1);
        }
        self.now += 1;
    }

    /// The node at a path that is there.
    pub fn id(&self, path: &str) -> NodeId {
        self.find(path).unwrap_or_else(|| panic!("{path} is not there"))
    }

    pub fn find(&self, path: &str) -> Option<NodeId> {
        let mut at = NodeId::ROOT;
        for part in path.split('/').filter(|part| !part.is_empty()) {
            at = self.session.view().entry(at, &name(part)).unwrap()?.node;
        }
        Some(at)
    }

    /// Everything that this mount shows.
    pub fn shown(&self) -> Vec<String> {
        self.session.view().with(|view| shape(view))
    }

    fn place<'a>(&self, path: &'a str) -> (NodeId, &'a [u8]) {
        let (way, last) = path.rsplit_once('/').unwrap_or(("", path));
        (self.id(way), last.as_bytes())
    }

    pub fn make(&mut self, path: &str, kind: Kind) -> Answer<NodeId> {
        let target = (kind == Kind::Symlink).then(|| b"to".to_vec());
        let plan =
            self.session.plan_make(self.at(), self.place(path), &Make { kind, mode: 0o644, target })?;
        self.commit(vec![plan], &[]);
        Ok(self.id(path))
    }

    pub fn create(&mut self, path: &str) -> NodeId {
        self.make(path, Kind::File).unwrap()
    }

    pub fn mkdir(&mut self, path: &str) -> NodeId {
        self.make(path, Kind::Directory).unwrap()
    }

    pub fn write(&mut self, id: NodeId, offset: u64, data: &[u8]) {
        let write = WriteAt { offset, data, append: false, from_cache: false, kill_set_id: false };
        let plans = self.session.plan_write(self.at(), id, &write).unwrap();
        self.commit(plans, data);
    }

    pub fn set(&mut self, id: NodeId, set: SetAttr) {
        let plans = self.session.plan_setattr(self.at(), id, &set).unwrap();
        self.commit(plans, &[]);
    }

    pub fn chmod(&mut self, id: NodeId, mode: u32) {
        self.set(id, SetAttr { mode: Some(mode), ..SetAttr::default() });
    }

    pub fn remove(&mut self, path: &str, dir: bool) -> Answer<()> {
        let plan = self.session.plan_remove(self.at(), self.place(path), dir)?;
        self.commit(vec![plan], &[]);
        Ok(())
    }

    pub fn unlink(&mut self, path: &str) {
        self.remove(path, false).unwrap();
    }

    pub fn link(&mut self, from: &str, to: &str) -> Answer<()> {
        let plan = self.session.plan_link(self.at(), self.id(from), self.place(to))?;
        self.commit(vec![plan], &[]);
        Ok(())
    }

    pub fn link_of(&mut self, id: NodeId, to: &str) -> Answer<()> {
        self.session.plan_link(self.at(), id, self.place(to)).map(drop)
    }

    pub fn rename(&mut self, from: &str, to: &str, mode: RenameMode) -> Answer<()> {
        let plan = self.session.plan_rename(self.at(), self.place(from), self.place(to), mode)?;
        self.commit(plan.into_iter().collect(), &[]);
        Ok(())
    }

    /// Cuts all that is open.
    pub fn cut(&mut self) -> Option<SealJob> {
        self.session.cut(self.moment(), self.end, true).unwrap()
    }

    /// Gives the bytes of a cut blocks, as the sealer does, and keeps what the outbox would.
    pub fn seal(&mut self, job: &SealJob) -> Option<Arc<Checkpoint>> {
        let mut sealed = Sealed::default();
        let number = job.checkpoint.as_ref().map(|checkpoint| checkpoint.number);
        for change in job.checkpoint.iter().flat_map(|checkpoint| &checkpoint.nodes) {
            let Content::File(file) = &change.node.content.value else { continue };
            let FileMap::Extents(map) = &file.map else { continue };
            let mut blocks = map.clone();
            for (offset, mut piece) in map.iter() {
                if let Source::Local(at) = piece.source {
                    piece.source = Source::Block { hash: block(at), offset: 0 };
                    sealed.map.add(at, SealedRun { len: piece.len, source: piece.source });
                    blocks.write(offset, piece);
                }
            }
            let content = FileContent { size: file.size, map: FileMap::Extents(blocks) };
            sealed.contents.push((change.id, content));
        }
        let mut context = wire::LogContext::default();
        for part in context_to(&job.context) {
            context.nodes.extend(part.nodes);
            context.entries.extend(part.entries);
            context.spots.extend(part.spots);
        }
        self.sealed.push(sealed.map.clone());
        self.entry = Some(wire::OutboxEntry {
            log_start: job.log_start,
            context: Some(context),
            sealed: self.sealed.iter().flat_map(SealMap::to_wire).collect(),
            next_counter: job.next_counter,
            ..Default::default()
        });
        self.log.retain(|line| line.start >= job.log_start);
        let number = number?;
        self.session.sealed(number, sealed);
        let layer = self.session.layers().iter().find(|layer| layer.checkpoint.number == number)?;
        Some(layer.checkpoint.clone())
    }

    /// Cuts, seals and returns the checkpoint that would be sent.
    pub fn ship(&mut self) -> Arc<Checkpoint> {
        let job = self.cut().expect("something to cut");
        self.seal(&job).expect("something to ship")
    }

    pub fn arrive(&mut self, line: &PlacedLine) -> Arrived {
        self.session.arrive(line, self.moment(), self.end).unwrap()
    }

    /// Takes in everything placed so far; returns what the kernel was told.
    pub fn follow(&mut self, server: &Server) -> Vec<Tell> {
        let mut tells = Vec::new();
        while let Some(line) = server.lines.get(self.session.position().0 as usize) {
            let Arrived { job, told: Told { tells: more }, load, .. } = self.arrive(line);
            assert_eq!(load, None);
            if let Some(job) = job {
                self.seal(&job);
            }
            tells.extend(more);
        }
        tells
    }

    /// Reads the log back, as a restart does behind the newest outbox entry.
    pub fn replay(&self) -> Replay {
        self.replay_behind(0)
    }

    /// The same, when the outbox has the checkpoints up to `last`.
    pub fn replay_behind(&self, last: u64) -> Replay {
        let last = tidefs_timeline::CheckpointNo(last);
        let mut replay = Replay::new(self.entry.as_ref()).unwrap().behind(last);
        let start = self.entry.as_ref().map_or(0, |entry| entry.log_start);
        for line in self.log.iter().filter(|line| line.start >= start) {
            replay.record(line.kind, &line.head, (line.start, line.data)).unwrap();
        }
        replay
    }

    pub fn sealed_map(&self) -> SealMap {
        self.entry.as_ref().map_or(SealMap::default(), |entry| SealMap::from_wire(&entry.sealed).unwrap())
    }

    pub fn version(&self) -> Version {
        Version { session: self.session.identity().session, number: self.session.open_number() }
    }
}

/// The block that the bytes at a log address went to.
pub fn block(at: u64) -> Hash {
    Hash(std::array::from_fn(|i| at.to_le_bytes().get(i).copied().unwrap_or(9)))
}

/// Everything a program can see of a tree, one line for each path.
pub fn shape<H: Head<Error = E>, E: std::fmt::Debug>(tree: &H) -> Vec<String> {
    let mut all = Vec::new();
    let mut todo = vec![(NodeId::ROOT, String::new())];
    while let Some((id, path)) = todo.pop() {
        let node = tree.node(id).unwrap().expect("bound nodes are there");
        let content = match &node.content.value {
            Content::File(file) => format!("{file:?}"),
            other => format!("{other:?}"),
        };
        let (times, owner) = (node.times.value, node.owner.value);
        let attrs: Vec<_> = node.attrs.iter().map(|(name, value)| (name, &value.value)).collect();
        let what = format!("{} nlink {} {:o} {attrs:?}", id.0, node.nlink(), owner.mode);
        all.push(format!("{path} {what} {} {content}", times.mtime.seconds));
        if node.is_dir() {
            for (name, entry) in tree.entries(id, None, usize::MAX).unwrap() {
                todo.push((entry.node, format!("{path}/{name}")));
            }
        }
    }
    all.sort();
    all
}
