//! A session in miniature: changes on a tree in memory, their net difference as a checkpoint, and a world of a
//! head with several such sessions on it. What is shown counts as seen.

use crate::{
    Changed, Checkpoint, CheckpointNo, Content, DirInfo, Entry, EntryChange, FileContent, FileMap, Head,
    Kind, LostNode, Name, Node, NodeChange, NodeId, Overlay, Owner, Placed, Position, Register, SessionNo,
    Spot, Timestamp, Tree, Version, Work, overlay::Over, place,
};
use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    sync::Arc,
};

pub type At = (NodeId, Name);

pub fn name(name: &str) -> Name {
    Name::new(name.as_bytes()).unwrap()
}

/// A time no two changes share.
pub fn time(seconds: i64) -> Timestamp {
    Timestamp { seconds, nanos: 0 }
}

/// Content told apart by its size: the session that wrote it and a running number.
fn content(session: SessionNo, token: u64) -> Content {
    let map = FileMap::Extents(Default::default());
    Content::File(Arc::new(FileContent { size: u64::from(session.0) << 32 | token, map }))
}

/// `a7`: the seventh content of a world, written by its first session.
pub fn token(content: &Content) -> String {
    let size = content.size();
    format!("{}{}", char::from(b'a' + (size >> 32) as u8 - 1), size as u32)
}

/// The node a path leads to.
pub fn look<H: Head<Error = E>, E: std::fmt::Debug>(tree: &H, path: &str) -> Option<NodeId> {
    let mut at = NodeId::ROOT;
    for part in path.split('/').filter(|part| !part.is_empty()) {
        if !tree.node(at).unwrap()?.is_dir() {
            return None;
        }
        at = tree.entry(at, &name(part)).unwrap()?.node;
    }
    Some(at)
}

/// Every path, with what is there: `d#1001`, or content, node and mode of a file: `a1#1002 m6`.
pub fn paths<H: Head<Error = E>, E: std::fmt::Debug>(tree: &H) -> BTreeMap<String, (NodeId, String)> {
    let mut all = BTreeMap::new();
    let mut todo = vec![(NodeId::ROOT, String::new())];
    while let Some((dir, way)) = todo.pop() {
        for (name, entry) in tree.entries(dir, None, usize::MAX).unwrap() {
            let path = if way.is_empty() { name.to_string() } else { format!("{way}/{name}") };
            let node = tree.node(entry.node).unwrap().expect("a bound node is in the tree");
            let id = u64::from(entry.node.session().0) * 1000 + u64::from(entry.node.counter());
            let text = if node.is_dir() {
                assert!(path.len() < 4096, "a cycle at {path}");
                todo.push((entry.node, path.clone()));
                format!("d#{id}")
            } else {
                format!("{}#{id} m{}", token(&node.content.value), node.owner.value.mode)
            };
            all.insert(path, (entry.node, text));
        }
    }
    all
}

/// All paths in one line.
pub fn shape<H: Head<Error = E>, E: std::fmt::Debug>(tree: &H) -> String {
    let lines: Vec<String> =
        paths(tree).into_iter().map(|(path, (_, text))| format!("{path}={text}")).collect();
    lines.join(", ")
}

pub struct Mini {
    pub no: SessionNo,
    pub name: String,
    number: u64,
    counter: u32,
    clock: i64,
    pub tokens: u64,
    pub applied: Tree,
    pub position: usize,
    /// Applied and all that is sealed.
    pub base: Tree,
    top: Overlay,
    stamps: BTreeMap<At, Timestamp>,
    pub outbox: VecDeque<Checkpoint>,
    /// Contents that were shown here.
    pub seen: BTreeSet<(NodeId, Version)>,
}

impl Mini {
    pub fn new(no: u32, head: &Tree) -> Self {
        let name = char::from(b'A' + no as u8 - 1).to_string();
        let mut mini = Self {
            no: SessionNo(no),
            name,
            number: 1,
            counter: 0,
            clock: i64::from(no),
            tokens: 0,
            applied: head.clone(),
            position: 0,
            base: head.clone(),
            top: Overlay::default(),
            stamps: BTreeMap::new(),
            outbox: VecDeque::new(),
            seen: BTreeSet::new(),
        };
        mini.note_seen();
        mini
    }

    pub fn version(&self) -> Version {
        Version { session: self.no, number: CheckpointNo(self.number) }
    }

    pub fn view(&self) -> Over<'_, Tree> {
        Over { below: &self.base, top: &self.top }
    }

    pub fn dirty(&self) -> bool {
        !self.top.is_empty()
    }

    fn note_seen(&mut self) {
        for id in self.base.node_ids() {
            let node = self.base.node(id).unwrap().unwrap();
            self.seen.insert((id, node.content.version));
        }
    }

    /// Changes the view with what `change` does to it.
    pub fn edit<T>(&mut self, change: impl FnOnce(&mut Work<'_, Tree>, (Version, Timestamp)) -> T) -> T {
        self.clock += 10;
        let by = (self.version(), time(self.clock));
        let mut work = Work::new(&self.base, std::mem::take(&mut self.top));
        let result = change(&mut work, by);
        self.top = work.top;
        result
    }

    fn parent(&self, path: &str) -> Option<At> {
        let (way, last) = path.rsplit_once('/').unwrap_or(("", path));
        let dir = look(&self.view(), way)?;
        self.view().node(dir).unwrap()?.is_dir().then(|| (dir, name(last)))
    }

    fn file(&self, path: &str) -> Option<NodeId> {
        let id = look(&self.view(), path)?;
        (!self.view().node(id).unwrap()?.is_dir()).then_some(id)
    }

    fn set(&mut self, at: &At, node: Option<NodeId>) {
        let stamp = self.edit(|work, by| {
            let entry = node.map(|node| Entry { node, version: by.0 });
            work.set_entry((at.0, &at.1), entry, by).unwrap();
            by.1
        });
        self.stamps.insert(at.clone(), stamp);
    }

    /// Binds a node made by hand.
    pub fn bind(&mut self, at: &At, node: NodeId) {
        self.set(at, Some(node));
    }

    fn drop_if_nameless(&mut self, id: NodeId) {
        self.edit(|work, _| {
            if work.node(id).unwrap().is_some_and(|node| node.links == 0) {
                work.drop_node(id);
            }
        });
    }

    /// Runs one line like `rename d/x e`; several stand behind each other with `; `. Tells whether a local disk
    /// would have done all of it.
    pub fn run(&mut self, lines: &str) -> bool {
        lines.split("; ").filter(|line| !line.is_empty()).all(|line| self.one(line).is_some())
    }

    fn one(&mut self, line: &str) -> Option<()> {
        let words: Vec<&str> = line.split(' ').collect();
        match words[..] {
            ["create", path] => self.create(path, Kind::File),
            ["mkdir", path] => self.create(path, Kind::Directory),
            ["write", path] => self.write(path),
            ["chmod", path, mode] => self.chmod(path, mode.parse().unwrap()),
            ["unlink", path] => {
                self.file(path)?;
                self.remove(path)
            }
            ["rmdir", path] => {
                let id = look(&self.view(), path).filter(|id| *id != NodeId::ROOT)?;
                let view = self.view();
                if self.file(path).is_some() || !view.entries(id, None, 1).unwrap().is_empty() {
                    return None;
                }
                self.remove(path)
            }
            ["rmrf", path] => self.rmrf(path),
            ["rename", from, to] => self.rename(from, to),
            ["exchange", one, two] => self.exchange(one, two),
            ["link", from, to] => self.link(from, to),
            ["save", path] => self.save(path),
            ["emacs", path] => {
                self.file(path)?;
                let backup = format!("{path}~");
                if look(&self.view(), &backup).is_some() {
                    self.file(&backup)?;
                }
                self.rename(path, &backup)?;
                self.create(path, Kind::File)
            }
            ["tofile", path] => {
                self.rmrf(path)?;
                self.create(path, Kind::File)
            }
            ["todir", path] => {
                self.rmrf(path)?;
                self.create(path, Kind::Directory)?;
                self.create(&format!("{path}/a"), Kind::File)
            }
            _ => panic!("no such change: {line}"),
        }
    }

    fn create(&mut self, path: &str, kind: Kind) -> Option<()> {
        let at = self.parent(path)?;
        if self.view().entry(at.0, &at.1).unwrap().is_some() {
            return None;
        }
        self.counter += 1;
        let id = NodeId::new(self.no, self.counter);
        let (mode, content) = if kind == Kind::Directory {
            (7, Content::None)
        } else {
            self.tokens += 1;
            (6, content(self.no, self.tokens))
        };
        let owner = Owner { mode, uid: 0, gid: 0 };
        self.edit(|work, by| work.put_new(id, Node::new(kind, by.0, content, owner, by.1)));
        self.set(&at, Some(id));
        Some(())
    }

    fn write(&mut self, path: &str) -> Option<()> {
        let id = self.file(path)?;
        self.tokens += 1;
        let content = content(self.no, self.tokens);
        self.edit(|work, by| {
            work.change(id, |node| {
                node.content = Register::new(content, by.0);
                node.times.version = by.0;
                node.touch(by.1, by.1);
            })
        })
        .unwrap();
        Some(())
    }

    fn chmod(&mut self, path: &str, mode: u32) -> Option<()> {
        let id = look(&self.view(), path).filter(|id| *id != NodeId::ROOT)?;
        self.edit(|work, by| {
            work.change(id, |node| node.owner = Register::new(Owner { mode, uid: 0, gid: 0 }, by.0))
        })
        .unwrap();
        Some(())
    }

    fn remove(&mut self, path: &str) -> Option<()> {
        let at = self.parent(path)?;
        let id = look(&self.view(), path)?;
        self.set(&at, None);
        self.drop_if_nameless(id);
        Some(())
    }

    fn rmrf(&mut self, path: &str) -> Option<()> {
        let id = look(&self.view(), path).filter(|id| *id != NodeId::ROOT)?;
        if self.view().node(id).unwrap()?.is_dir() {
            for (name, _) in self.view().entries(id, None, usize::MAX).unwrap() {
                self.rmrf(&format!("{path}/{name}"))?;
            }
        }
        self.remove(path)
    }

    fn inside(&self, dir: NodeId, of: NodeId) -> bool {
        let up = |at: &NodeId| self.view().names(*at).unwrap().first().map(|at| at.0);
        std::iter::successors(Some(dir), up).any(|at| at == of)
    }

    fn rename(&mut self, from: &str, to: &str) -> Option<()> {
        let id = look(&self.view(), from).filter(|id| *id != NodeId::ROOT)?;
        let (from, at) = (self.parent(from)?, self.parent(to).filter(|_| !to.is_empty())?);
        let there = look(&self.view(), to);
        if there == Some(id) || self.inside(at.0, id) {
            return None;
        }
        if let Some(there) = there {
            let (old, new) = (self.view().node(there).unwrap()?, self.view().node(id).unwrap()?);
            let full = !self.view().entries(there, None, 1).unwrap().is_empty();
            if old.is_dir() != new.is_dir() || (old.is_dir() && full) {
                return None;
            }
        }
        self.set(&from, None);
        self.set(&at, Some(id));
        there.into_iter().for_each(|there| self.drop_if_nameless(there));
        Some(())
    }

    fn exchange(&mut self, one: &str, two: &str) -> Option<()> {
        let ids = (look(&self.view(), one)?, look(&self.view(), two)?);
        if ids.0 == ids.1 || ids.0 == NodeId::ROOT || ids.1 == NodeId::ROOT {
            return None;
        }
        let (a, b) = (self.parent(one)?, self.parent(two)?);
        if self.inside(b.0, ids.0) || self.inside(a.0, ids.1) {
            return None;
        }
        self.set(&a, Some(ids.1));
        self.set(&b, Some(ids.0));
        Some(())
    }

    fn link(&mut self, from: &str, to: &str) -> Option<()> {
        let id = self.file(from)?;
        let at = self.parent(to)?;
        if self.view().entry(at.0, &at.1).unwrap().is_some() {
            return None;
        }
        self.set(&at, Some(id));
        Some(())
    }

    /// A save as most programs do it: a new file beside, with the mode of the old, renamed over it.
    fn save(&mut self, path: &str) -> Option<()> {
        let old = look(&self.view(), path);
        if old.is_some() {
            self.file(path)?;
        }
        let (way, _) = path.rsplit_once('/').unwrap_or(("", path));
        let temp = format!("{way}/tmp{}", self.name);
        self.create(&temp, Kind::File)?;
        if let Some(old) = old {
            let mode = self.view().node(old).unwrap()?.owner.value.mode;
            self.chmod(&temp, mode)?;
        }
        self.rename(&temp, path)
    }

    /// Ends the batch; its checkpoint goes to the outbox, if there is anything in it. Tells whether placing it on
    /// what was shown gives what was shown.
    pub fn seal(&mut self) {
        self.seal_with(|_| ());
    }

    /// The same, with what the net difference here does not see.
    pub fn seal_with(&mut self, more: impl FnOnce(&mut Checkpoint)) {
        let mut checkpoint = difference(self);
        let shown = shape(&self.view());
        self.top = Overlay::default();
        self.stamps.clear();
        if checkpoint.is_empty() {
            return;
        }
        more(&mut checkpoint);
        let placed = place(&self.base, &checkpoint).unwrap();
        self.base.apply(&placed.effects);
        assert_eq!(
            shape(&self.base),
            shown,
            "placed on what its session saw, a checkpoint gives what it saw"
        );
        assert_eq!(placed.overlaps, [], "an overlap with what was seen");
        self.number += 1;
        self.outbox.push_back(checkpoint);
        self.note_seen();
    }

    /// Takes in a checkpoint that was placed at the head.
    pub fn follow(&mut self, session: SessionNo, placed: &Placed) {
        if self.dirty() {
            self.seal();
        }
        self.applied.apply(&placed.effects);
        self.position += 1;
        if session == self.no {
            self.outbox.pop_front();
        }
        self.base = self.applied.clone();
        for checkpoint in &self.outbox {
            let placed = place(&self.base, checkpoint).unwrap();
            self.base.apply(&placed.effects);
        }
        self.note_seen();
    }
}

/// The net difference of what a session shows and what lies below its batch.
fn difference(mini: &Mini) -> Checkpoint {
    let foreign = |version: Version| (version.session != mini.no).then_some(version);
    let (base, view, mine) = (&mini.base, mini.view(), mini.version());
    let mut entries = Vec::new();
    for (dir, names) in &mini.top.entries {
        for (name, now) in names {
            let was = base.entry(*dir, name).unwrap();
            let (old, new) = (was.map(|entry| entry.node), now.map(|entry| entry.node));
            if old != new {
                let seen = was.map(|entry| entry.version).or(base.tombstone(*dir, name).unwrap());
                let time = mini.stamps[&(*dir, name.clone())];
                let base = seen.and_then(foreign);
                entries.push(EntryChange { dir: *dir, name: name.clone(), old, new, base, time });
            }
        }
    }
    let bound: BTreeSet<NodeId> = entries.iter().filter_map(|entry| entry.new).collect();
    let mut nodes = Vec::new();
    for (id, node) in &mini.top.nodes {
        let Some(node) = node else { continue };
        let was = base.node(*id).unwrap();
        let mut changed = Changed::default();
        if let Some(was) = &was {
            if node.content.version == mine {
                changed.content = Some(foreign(was.content.version));
                changed.mtime = true;
            }
            if node.owner.version == mine {
                changed.owner = Some(foreign(was.owner.version));
            }
            changed.ctime = node.attrs != was.attrs;
        }
        if (was.is_some() && changed.is_empty() && !bound.contains(id)) || (was.is_none() && node.links == 0)
        {
            continue;
        }
        let names: BTreeSet<At> =
            base.names(*id).unwrap().into_iter().chain(view.names(*id).unwrap()).collect();
        nodes.push(NodeChange {
            id: *id,
            born: was.is_none(),
            node: Node::clone(node),
            changed,
            names: names.into_iter().collect(),
            links_before: was.map_or(0, |was| was.links),
        });
    }
    let lost: BTreeSet<NodeId> = entries.iter().filter_map(|entry| entry.old).collect();
    let lost = lost.into_iter().map(|id| {
        let node = base.node(id).unwrap().unwrap();
        LostNode {
            id,
            is_dir: node.is_dir(),
            content: foreign(node.content.version),
            owner: foreign(node.owner.version),
            owner_seen: node.owner.value,
        }
    });
    Checkpoint {
        session: mini.no,
        session_name: mini.name.clone(),
        number: mine.number,
        applied: Position(mini.position as u64),
        dirs: dirs(mini, &entries, &nodes),
        lost: lost.collect(),
        entries,
        nodes,
    }
}

fn dirs(mini: &Mini, entries: &[EntryChange], nodes: &[NodeChange]) -> Vec<DirInfo> {
    fn spot<H: Head>(tree: &H, dir: NodeId) -> Option<Spot>
    where
        H::Error: std::fmt::Debug,
    {
        tree.node(dir).unwrap()?;
        let (parent, name) = tree.names(dir).unwrap().into_iter().next()?;
        Some(Spot { parent, name })
    }
    let named = nodes.iter().flat_map(|node| node.names.iter().map(|at| at.0));
    let moved = nodes.iter().filter(|node| node.node.is_dir()).map(|node| node.id);
    let mut todo: Vec<NodeId> = entries.iter().map(|entry| entry.dir).chain(named).chain(moved).collect();
    let mut dirs = BTreeMap::new();
    while let Some(id) = todo.pop() {
        let (before, after) = (spot(&mini.base, id), spot(&mini.view(), id));
        let node = mini.view().node(id).unwrap().or_else(|| mini.base.node(id).unwrap());
        let owner = node.map_or(Owner { mode: 7, uid: 0, gid: 0 }, |node| node.owner.value);
        if dirs.insert(id, DirInfo { id, before: before.clone(), after: after.clone(), owner }).is_none() {
            todo.extend(before.into_iter().chain(after).map(|spot| spot.parent));
        }
    }
    dirs.into_values().collect()
}

/// A drive and the sessions on it.
pub struct World {
    pub head: Tree,
    pub minis: Vec<Mini>,
    pub log: Vec<(SessionNo, Placed)>,
    tokens: u64,
}

impl World {
    pub fn new(sessions: u32) -> Self {
        let head = Tree::new_drive(time(0));
        let minis = (1..=sessions).map(|no| Mini::new(no, &head)).collect();
        Self { head, minis, log: Vec::new(), tokens: 0 }
    }

    /// Runs changes in one session (0 is A).
    pub fn run(&mut self, session: usize, lines: &str) -> bool {
        let mini = &mut self.minis[session];
        mini.tokens = self.tokens;
        let done = mini.run(lines);
        self.tokens = mini.tokens;
        done
    }

    /// Runs changes that must succeed, and seals them.
    pub fn batch(&mut self, session: usize, lines: &str) {
        assert!(self.run(session, lines), "refused: {lines}");
        self.minis[session].seal();
    }

    /// Places the oldest checkpoint of a session that is not placed yet.
    pub fn send(&mut self, session: usize) -> Option<Placed> {
        let mini = &self.minis[session];
        let answered = self.log[mini.position..].iter().filter(|(no, _)| *no == mini.no).count();
        let checkpoint = mini.outbox.get(answered)?.clone();
        let placed = super::check::place_checked(&self.head, &checkpoint, &mini.seen);
        self.head.apply(&placed.effects);
        self.log.push((checkpoint.session, placed.clone()));
        Some(placed)
    }

    /// A session takes in the next of what was placed.
    pub fn step(&mut self, session: usize) -> bool {
        let mini = &mut self.minis[session];
        let Some((no, placed)) = self.log.get(mini.position) else { return false };
        mini.follow(*no, placed);
        true
    }

    /// Seals, places and follows until nothing is left; then every session shows the head.
    pub fn quiet(&mut self) {
        loop {
            let mut idle = true;
            for session in 0..self.minis.len() {
                self.minis[session].seal();
                while self.send(session).is_some() {
                    idle = false;
                }
            }
            for session in 0..self.minis.len() {
                while self.step(session) {
                    idle = false;
                }
            }
            if idle {
                break;
            }
        }
        for mini in &self.minis {
            assert_eq!(mini.base, self.head, "{} shows another tree than the head", mini.name);
        }
    }
}
