//! A small volume in memory. The self-test mounts it, and the tests count what the kernel asks of it.

use crate::volume::{
    Answer, AttrMode, Caller, Found, Line, Load, Make, Reading, RenameMode, SetAttr, Space, Stop, Volume,
    Waiting, WriteAt,
};
use parking_lot::Mutex;
use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};
use tidefs_timeline::{
    AttrName, Content, FileContent, Kind, Node, NodeId, Owner, Register, Timestamp, Version,
};
use tokio::sync::Notify;

/// The root and what is in it.
pub(super) struct Memory {
    state: Mutex<State>,
    shown: Arc<Notify>,
}

#[derive(Default)]
struct State {
    nodes: BTreeMap<NodeId, (Node, Vec<u8>)>,
    /// Node and cookie of each name.
    names: BTreeMap<(NodeId, Vec<u8>), (NodeId, u64)>,
    next: u64,
    hidden: BTreeSet<NodeId>,
    counts: BTreeMap<&'static str, u64>,
    writes: Vec<Written>,
    lookups: BTreeMap<NodeId, i64>,
}

/// How a write came.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Written {
    pub(super) offset: u64,
    pub(super) append: bool,
    pub(super) from_cache: bool,
}

/// Writes that are remembered.
const WRITES_MAX: usize = 100;

fn stop<T>(errno: i32) -> Answer<T> {
    Err(Stop::Errno(errno))
}

impl State {
    fn get(&self, id: NodeId) -> Answer<Found> {
        match self.nodes.get(&id) {
            Some((node, _)) => Ok(Found { id, node: Arc::new(node.clone()), atime: None }),
            None => stop(libc::ENOENT),
        }
    }

    fn node(&mut self, id: NodeId) -> Answer<&mut (Node, Vec<u8>)> {
        self.nodes.get_mut(&id).ok_or(Stop::Errno(libc::ENOENT))
    }

    fn known(&self, dir: NodeId) -> Answer<()> {
        if self.hidden.contains(&dir) { Err(Stop::Load(Load::Directory(dir))) } else { Ok(()) }
    }

    fn named(&self, parent: NodeId, name: &[u8]) -> Answer<NodeId> {
        self.known(parent)?;
        self.names.get(&(parent, name.to_vec())).map(|(id, _)| *id).ok_or(Stop::Errno(libc::ENOENT))
    }

    fn bind(&mut self, parent: NodeId, name: &[u8], id: NodeId) {
        self.next += 1;
        let cookie = self.next;
        self.unbind(parent, name);
        self.names.insert((parent, name.to_vec()), (id, cookie));
        if let Some((node, _)) = self.nodes.get_mut(&id) {
            node.links += 1;
        }
    }

    fn unbind(&mut self, parent: NodeId, name: &[u8]) -> Option<NodeId> {
        let (id, _) = self.names.remove(&(parent, name.to_vec()))?;
        if let Some((node, _)) = self.nodes.get_mut(&id) {
            node.links = node.links.saturating_sub(1);
        }
        Some(id)
    }

    fn resize(&mut self, id: NodeId, bytes: impl FnOnce(&mut Vec<u8>)) -> Answer<()> {
        let (node, content) = self.node(id)?;
        bytes(content);
        let file = FileContent { size: content.len() as u64, ..FileContent::empty() };
        node.content = Register::new(Content::File(Arc::new(file)), Version::DRIVE);
        let seconds = node.times.value.mtime.seconds + 1;
        node.touch(Timestamp { seconds, nanos: 0 }, Timestamp { seconds, nanos: 0 });
        Ok(())
    }
}

impl Memory {
    /// An empty root that anybody may write to.
    pub(super) fn new() -> Self {
        let mut state = State { next: 100, ..State::default() };
        let root = Node::root(Timestamp { seconds: 1_000_000, nanos: 0 });
        state.nodes.insert(NodeId::ROOT, (root, Vec::new()));
        Self { state: Mutex::new(state), shown: Arc::new(Notify::new()) }
    }

    /// Makes a node behind the kernel's back; no name yet.
    fn make_node(state: &mut State, kind: Kind, owner: Owner, target: Option<Vec<u8>>) -> NodeId {
        state.next += 1;
        let id = NodeId(state.next);
        let content = match (kind, target) {
            (Kind::File, _) => Content::File(Arc::new(FileContent::empty())),
            (_, Some(target)) => Content::Symlink(target.into()),
            _ => Content::None,
        };
        let now = Timestamp { seconds: 1_000_000, nanos: 0 };
        state.nodes.insert(id, (Node::new(kind, Version::DRIVE, content, owner, now), Vec::new()));
        id
    }

    /// As another mount would: binds `name` in `dir` to a new file of these bytes, and says nothing.
    pub(super) fn put(&self, dir: NodeId, name: &str, bytes: &[u8]) -> NodeId {
        let mut state = self.state.lock();
        let owner = Owner { mode: 0o644, uid: 0, gid: 0 };
        let id = Self::make_node(&mut state, Kind::File, owner, None);
        state.bind(dir, name.as_bytes(), id);
        // The node was made just now, so it is there.
        let _ = state.resize(id, |content| content.extend_from_slice(bytes));
        id
    }

    /// As another mount would: gives a file other bytes, and says nothing.
    pub(super) fn replace(&self, id: NodeId, bytes: &[u8]) {
        let _ = self.state.lock().resize(id, |content| *content = bytes.to_vec());
    }

    /// Requests so far, by name.
    pub(super) fn counts(&self) -> BTreeMap<&'static str, u64> {
        self.state.lock().counts.clone()
    }
}

#[cfg(test)]
impl Memory {
    /// As another mount would: makes a directory, and says nothing.
    pub(super) fn put_dir(&self, dir: NodeId, name: &str) -> NodeId {
        let mut state = self.state.lock();
        let owner = Owner { mode: 0o755, uid: 0, gid: 0 };
        let id = Self::make_node(&mut state, Kind::Directory, owner, None);
        state.bind(dir, name.as_bytes(), id);
        id
    }

    /// As another mount would: removes a name, and says nothing.
    pub(super) fn take(&self, dir: NodeId, name: &str) {
        self.state.lock().unbind(dir, name.as_bytes());
    }

    /// The entries of `dir` are not at hand until [`Memory::show`].
    pub(super) fn hide(&self, dir: NodeId) {
        self.state.lock().hidden.insert(dir);
    }

    /// Ends all loads.
    pub(super) fn show(&self) {
        self.state.lock().hidden.clear();
        self.shown.notify_waiters();
    }

    /// How the writes came.
    pub(super) fn writes(&self) -> Vec<Written> {
        self.state.lock().writes.clone()
    }

    /// The bytes of a file.
    pub(super) fn bytes(&self, id: NodeId) -> Vec<u8> {
        self.state.lock().nodes.get(&id).map(|(_, bytes)| bytes.clone()).unwrap_or_default()
    }

    /// A node's registers.
    pub(super) fn node(&self, id: NodeId) -> Option<Node> {
        self.state.lock().nodes.get(&id).map(|(node, _)| node.clone())
    }

    /// Lookups of a node that the kernel has not given back.
    pub(super) fn lookups(&self, id: NodeId) -> i64 {
        self.state.lock().lookups.get(&id).copied().unwrap_or(0)
    }
}

impl Volume for Memory {
    fn lookup(&self, parent: NodeId, name: &[u8]) -> Answer<Option<Found>> {
        let mut state = self.state.lock();
        match state.named(parent, name) {
            Ok(id) => {
                *state.lookups.entry(id).or_default() += 1;
                state.get(id).map(Some)
            }
            Err(Stop::Errno(libc::ENOENT)) => Ok(None),
            Err(other) => Err(other),
        }
    }

    fn getattr(&self, id: NodeId) -> Answer<Found> {
        self.state.lock().get(id)
    }

    fn forget(&self, id: NodeId, count: u64) {
        *self.state.lock().lookups.entry(id).or_default() -= count as i64;
    }

    fn setattr(&self, _caller: Caller, id: NodeId, set: SetAttr) -> Answer<Found> {
        let mut state = self.state.lock();
        if let Some(size) = set.size {
            let size = usize::try_from(size).map_err(|_| Stop::Errno(libc::EFBIG))?;
            state.resize(id, |content| content.resize(size, 0))?;
        }
        let (node, _) = state.node(id)?;
        let owner = &mut node.owner.value;
        if set.kill_set_id && !node.kind.eq(&Kind::Directory) {
            owner.mode &= !0o6000;
        }
        owner.mode = set.mode.unwrap_or(owner.mode);
        owner.uid = set.uid.unwrap_or(owner.uid);
        owner.gid = set.gid.unwrap_or(owner.gid);
        if let Some(mtime) = set.mtime {
            node.times.value.mtime = mtime.unwrap_or(Timestamp { seconds: 2_000_000, nanos: 0 });
        }
        state.get(id)
    }

    fn readlink(&self, id: NodeId) -> Answer<Vec<u8>> {
        match &self.state.lock().node(id)?.0.content.value {
            Content::Symlink(target) => Ok(target.to_vec()),
            _ => stop(libc::EINVAL),
        }
    }

    fn make(&self, caller: Caller, at: (NodeId, &[u8]), make: Make) -> Answer<Found> {
        let mut state = self.state.lock();
        match state.named(at.0, at.1) {
            Ok(_) => return stop(libc::EEXIST),
            Err(Stop::Errno(libc::ENOENT)) => {}
            Err(other) => return Err(other),
        }
        let owner = Owner { mode: make.mode, uid: caller.uid, gid: caller.gid };
        let id = Self::make_node(&mut state, make.kind, owner, make.target);
        state.bind(at.0, at.1, id);
        *state.lookups.entry(id).or_default() += 1;
        state.get(id)
    }

    fn unlink(&self, _caller: Caller, parent: NodeId, name: &[u8]) -> Answer<()> {
        let mut state = self.state.lock();
        state.known(parent)?;
        state.unbind(parent, name).map(|_| ()).ok_or(Stop::Errno(libc::ENOENT))
    }

    fn rmdir(&self, caller: Caller, parent: NodeId, name: &[u8]) -> Answer<()> {
        let id = self.state.lock().named(parent, name)?;
        if self.state.lock().names.keys().any(|(dir, _)| *dir == id) {
            return stop(libc::ENOTEMPTY);
        }
        self.unlink(caller, parent, name)
    }

    fn rename(
        &self,
        _caller: Caller,
        from: (NodeId, &[u8]),
        to: (NodeId, &[u8]),
        mode: RenameMode,
    ) -> Answer<()> {
        let mut state = self.state.lock();
        let (moved, there) = (state.named(from.0, from.1)?, state.named(to.0, to.1).ok());
        match (mode, there) {
            (RenameMode::NoReplace, Some(_)) => return stop(libc::EEXIST),
            (RenameMode::Exchange, None) => return stop(libc::ENOENT),
            (RenameMode::Exchange, Some(other)) => state.bind(from.0, from.1, other),
            _ => drop(state.unbind(from.0, from.1)),
        }
        state.bind(to.0, to.1, moved);
        Ok(())
    }

    fn link(&self, _caller: Caller, id: NodeId, at: (NodeId, &[u8])) -> Answer<Found> {
        let mut state = self.state.lock();
        if state.named(at.0, at.1).is_ok() {
            return stop(libc::EEXIST);
        }
        state.bind(at.0, at.1, id);
        *state.lookups.entry(id).or_default() += 1;
        state.get(id)
    }

    fn write(&self, _caller: Caller, id: NodeId, write: WriteAt<'_>) -> Answer<()> {
        let mut state = self.state.lock();
        let WriteAt { offset, append, from_cache, .. } = write;
        if state.writes.len() < WRITES_MAX {
            state.writes.push(Written { offset, append, from_cache });
        }
        if state.hidden.contains(&id) {
            return Err(Stop::Load(Load::Room));
        }
        let offset = usize::try_from(offset).map_err(|_| Stop::Errno(libc::EFBIG))?;
        state.resize(id, |content| {
            let at = if append { content.len() } else { offset };
            content.resize(content.len().max(at + write.data.len()), 0);
            content[at..at + write.data.len()].copy_from_slice(write.data);
        })
    }

    fn read(&self, id: NodeId, offset: u64, len: u32) -> Answer<Reading> {
        let mut state = self.state.lock();
        let hidden = state.hidden.contains(&id);
        let (_, content) = state.node(id)?;
        let start = content.len().min(usize::try_from(offset).unwrap_or(usize::MAX));
        let end = content.len().min(start + len as usize);
        let bytes = content[start..end].to_vec();
        if !hidden {
            return Ok(Reading::Now(bytes));
        }
        let shown = self.shown.clone().notified_owned();
        Ok(Reading::Later(Box::pin(async move {
            shown.await;
            Ok(bytes)
        })))
    }

    fn fsync(&self, _caller: Caller, _id: Option<NodeId>) -> Waiting<Result<(), i32>> {
        Box::pin(std::future::ready(Ok(())))
    }

    fn list(&self, dir: NodeId, cookie: u64, limit: usize, plus: bool) -> Answer<Vec<Line>> {
        let mut state = self.state.lock();
        state.known(dir)?;
        let mut lines = Vec::new();
        for (at, name) in [(1, "."), (2, "..")] {
            if cookie < at {
                lines.push(Line { cookie: at, name: name.into(), found: state.get(dir)? });
            }
        }
        let mut bound: Vec<_> = state.names.iter().filter(|(key, _)| key.0 == dir).collect();
        bound.sort_by_key(|(_, (_, at))| *at);
        for ((_, name), (id, at)) in bound.into_iter().filter(|(_, (_, at))| *at > cookie) {
            lines.push(Line { cookie: *at, name: name.clone(), found: state.get(*id)? });
        }
        lines.truncate(limit);
        let counted = |line: &&Line| plus && line.name != b"." && line.name != b"..";
        for line in lines.iter().filter(counted) {
            *state.lookups.entry(line.found.id).or_default() += 1;
        }
        Ok(lines)
    }

    fn getxattr(&self, id: NodeId, name: &[u8]) -> Answer<Vec<u8>> {
        let mut state = self.state.lock();
        let attrs = &state.node(id)?.0.attrs;
        let value = attrs.iter().find(|(key, _)| key.as_bytes() == name);
        value.map(|(_, value)| value.value.to_vec()).ok_or(Stop::Errno(libc::ENODATA))
    }

    fn listxattr(&self, id: NodeId) -> Answer<Vec<u8>> {
        let mut state = self.state.lock();
        let attrs = &state.node(id)?.0.attrs;
        Ok(attrs.keys().flat_map(|name| name.as_bytes().iter().copied().chain([0])).collect())
    }

    fn setxattr(&self, _caller: Caller, id: NodeId, attr: (&[u8], &[u8]), mode: AttrMode) -> Answer<()> {
        let mut state = self.state.lock();
        let attrs = &mut state.node(id)?.0.attrs;
        let name = AttrName::new(attr.0).map_err(|_| Stop::Errno(libc::ERANGE))?;
        match (mode, attrs.contains_key(&name)) {
            (AttrMode::Create, true) => return stop(libc::EEXIST),
            (AttrMode::Replace, false) => return stop(libc::ENODATA),
            _ => attrs.insert(name, Register::new(attr.1.into(), Version::DRIVE)),
        };
        Ok(())
    }

    fn removexattr(&self, _caller: Caller, id: NodeId, name: &[u8]) -> Answer<()> {
        let mut state = self.state.lock();
        let attrs = &mut state.node(id)?.0.attrs;
        let name = AttrName::new(name).map_err(|_| Stop::Errno(libc::ERANGE))?;
        attrs.remove(&name).map(|_| ()).ok_or(Stop::Errno(libc::ENODATA))
    }

    fn statfs(&self) -> Answer<Space> {
        Ok(Space { total_bytes: 1 << 30, free_bytes: 1 << 29, total_nodes: 1 << 20, free_nodes: 1 << 19 })
    }

    fn load(&self, _what: Load) -> Waiting<Result<(), i32>> {
        let state = self.state.lock();
        if state.hidden.is_empty() {
            return Box::pin(std::future::ready(Ok(())));
        }
        let shown = self.shown.clone().notified_owned();
        Box::pin(async move {
            shown.await;
            Ok(())
        })
    }

    fn count(&self, operation: &'static str) {
        *self.state.lock().counts.entry(operation).or_default() += 1;
    }
}
