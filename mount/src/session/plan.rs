//! Checks a change against the view and says what must be logged. Permissions are the kernel's
//! (`default_permissions`); what only the file system can know is checked here.

use super::{
    Moment, Session,
    batch::Planned,
    before::{At, Before},
    op::{Op, without_set_id},
    settle::{Change, Event},
};
use crate::volume::{Answer, AttrMode, Caller, Make, RenameMode, SetAttr, Stop, WriteAt};
use std::sync::Arc;
use tidefs_timeline::{
    AttrName, Content, FileContent, Kind, Name, Node, NodeId, Owner, Version,
    limits::{ATTRS_BYTES_MAX, FILE_BYTES_MAX, SYMLINK_BYTES_MAX},
};

/// The attribute that every write takes away (`capabilities(7)`).
const CAPABILITY: &[u8] = b"security.capability";

/// What a planned change means for settling, beyond who and when.
struct Meaning {
    node: NodeId,
    event: Event,
    signal: bool,
    replaced: Option<NodeId>,
}

impl Meaning {
    fn other(node: NodeId) -> Self {
        Self { node, event: Event::Other, signal: false, replaced: None }
    }
}

fn errno<T>(errno: i32) -> Answer<T> {
    Err(Stop::Errno(errno))
}

impl Session {
    fn planned(&self, op: Op, at: (Moment, Caller), meaning: Meaning) -> Answer<Planned> {
        let (now, caller) = at;
        let orphan = op.node().is_some_and(|id| self.view.node(id).is_none());
        let context = if orphan { Before::default() } else { self.context_of(&op)? };
        let bytes = if let Op::Write { len, .. } = &op { *len } else { 0 };
        let Meaning { node, event, signal, replaced } = meaning;
        let change = Change { now: now.tick, pid: caller.pid, node, event, signal, bytes, replaced };
        Ok(Planned { op, now: now.wall, context, change, orphan })
    }

    /// What the open batch has not touched yet of what `op` touches.
    pub(super) fn context_of(&self, op: &Op) -> Answer<Before> {
        let (mut nodes, mut entries): (Vec<NodeId>, Vec<At>) = (Vec::new(), Vec::new());
        match op {
            Op::Make { at, .. } => entries.push(at.clone()),
            Op::Link { id, at } => {
                nodes.push(*id);
                entries.push(at.clone());
            }
            Op::Remove { at } => entries.push(at.clone()),
            Op::Rename { from, to, .. } => entries.extend([from.clone(), to.clone()]),
            other => nodes.extend(other.node()),
        }
        for at in &entries {
            nodes.extend(self.view.entry(at.0, &at.1)?.map(|entry| entry.node));
        }
        Ok(self.view.context(&self.batch.before, &nodes, &entries)?)
    }

    /// A directory in the tree that a name may be made in, and the name.
    fn at(&self, at: (NodeId, &[u8])) -> Answer<(At, Arc<Node>)> {
        let (dir, node) = self.dir(at.0)?;
        if self.view.node(dir).is_none() {
            return errno(libc::ENOENT);
        }
        Ok(((dir, Self::name(at.1)?), node))
    }

    /// Makes a node. The planned change carries its id.
    pub fn plan_make(&self, at: (Moment, Caller), place: (NodeId, &[u8]), make: &Make) -> Answer<Planned> {
        let (place, dir) = self.at(place)?;
        if self.bound(&place)?.is_some() {
            return errno(libc::EEXIST);
        }
        let Some(counter) = self.next_counter.checked_add(1) else { return errno(libc::ENOSPC) };
        let id = NodeId::new(self.identity.session, counter - 1);
        let setgid = dir.owner.value.mode & 0o2000 != 0;
        let inherit = if setgid && make.kind == Kind::Directory { 0o2000 } else { 0 };
        let owner = Owner {
            mode: make.mode & 0o7777 | inherit,
            uid: at.1.uid,
            gid: if setgid { dir.owner.value.gid } else { at.1.gid },
        };
        let content = match (make.kind, &make.target) {
            (Kind::File, _) => Content::File(Arc::new(FileContent::empty())),
            (Kind::Symlink, Some(target)) if !target.is_empty() && target.len() <= SYMLINK_BYTES_MAX => {
                Content::Symlink(target[..].into())
            }
            (Kind::Symlink, Some(target)) if !target.is_empty() => return errno(libc::ENAMETOOLONG),
            (Kind::Symlink, _) => return errno(libc::ENOENT),
            _ => Content::None,
        };
        let node = Arc::new(Node::new(make.kind, Version::DRIVE, content, owner, at.0.wall));
        let event = if make.kind == Kind::File { Event::Started } else { Event::Other };
        self.planned(Op::Make { at: place, id, node }, at, Meaning { event, ..Meaning::other(id) })
    }

    /// Adds a name.
    pub fn plan_link(&self, at: (Moment, Caller), id: NodeId, place: (NodeId, &[u8])) -> Answer<Planned> {
        let (place, _) = self.at(place)?;
        let (id, node) = self.find(id)?;
        if node.is_dir() {
            return errno(libc::EPERM);
        }
        if self.view.node(id).is_none() {
            return errno(libc::ENOENT);
        }
        if self.bound(&place)?.is_some() {
            return errno(libc::EEXIST);
        }
        if !Self::may_link(&node) {
            return errno(libc::EMLINK);
        }
        self.planned(Op::Link { id, at: place }, at, Meaning { event: Event::Placed, ..Meaning::other(id) })
    }

    /// Removes a name; `dir` says which kind of name it must be.
    pub fn plan_remove(&self, at: (Moment, Caller), place: (NodeId, &[u8]), dir: bool) -> Answer<Planned> {
        let (place, _) = self.at(place)?;
        let Some((id, node)) = self.bound(&place)? else { return errno(libc::ENOENT) };
        match (dir, node.is_dir()) {
            (true, false) => return errno(libc::ENOTDIR),
            (false, true) => return errno(libc::EISDIR),
            (true, true) if !self.is_empty_dir(id)? => return errno(libc::ENOTEMPTY),
            _ => {}
        }
        self.planned(Op::Remove { at: place }, at, Meaning { event: Event::Placed, ..Meaning::other(id) })
    }

    /// Renames; none if both names are the same node's already, which changes nothing.
    pub fn plan_rename(
        &self,
        at: (Moment, Caller),
        from: (NodeId, &[u8]),
        to: (NodeId, &[u8]),
        mode: RenameMode,
    ) -> Answer<Option<Planned>> {
        let (from, _) = self.at(from)?;
        let (to, _) = self.at(to)?;
        let Some((id, node)) = self.bound(&from)? else { return errno(libc::ENOENT) };
        let there = self.bound(&to)?;
        if node.is_dir() && self.view.way_up(to.0).contains(&id) {
            return errno(libc::EINVAL);
        }
        match (&there, mode) {
            (Some(_), RenameMode::NoReplace) => return errno(libc::EEXIST),
            (None, RenameMode::Exchange) => return errno(libc::ENOENT),
            (Some((other, _)), _) if *other == id => return Ok(None),
            (Some((other, there)), RenameMode::Exchange) => {
                if there.is_dir() && self.view.way_up(from.0).contains(other) {
                    return errno(libc::EINVAL);
                }
            }
            (Some((other, there)), RenameMode::Replace) => match (node.is_dir(), there.is_dir()) {
                (true, false) => return errno(libc::ENOTDIR),
                (false, true) => return errno(libc::EISDIR),
                (true, true) if !self.is_empty_dir(*other)? => return errno(libc::ENOTEMPTY),
                _ => {}
            },
            (None, _) => {}
        }
        let exchange = mode == RenameMode::Exchange;
        let replaced = there.filter(|(_, there)| !exchange && !there.is_dir()).map(|(other, _)| other);
        let meaning = Meaning { node: id, event: Event::Placed, signal: replaced.is_some(), replaced };
        self.planned(Op::Rename { from, to, exchange }, at, meaning).map(Some)
    }

    /// Writes bytes that will lie in the log (or beside it, if the file has left the tree) at `local`. With
    /// O_APPEND they go to the end in view, whatever offset the kernel thinks.
    pub fn plan_write(&self, at: (Moment, Caller), id: NodeId, write: &WriteAt<'_>) -> Answer<Vec<Planned>> {
        let (id, node) = self.file(id)?;
        self.file_map(id, &node)?;
        let offset = if write.append { node.content.value.size() } else { write.offset };
        let len = write.data.len() as u64;
        if offset.checked_add(len).is_none_or(|end| end > FILE_BYTES_MAX) {
            return errno(libc::EFBIG);
        }
        let clear_set_id =
            write.kill_set_id && without_set_id(node.owner.value.mode) != node.owner.value.mode;
        let op = Op::Write { id, offset, len, local: 0, clear_set_id };
        let mut plans = self.drop_capability(at, id, &node)?;
        plans.push(self.planned(op, at, Meaning { event: Event::Wrote, ..Meaning::other(id) })?);
        Ok(plans)
    }

    fn file(&self, id: NodeId) -> Answer<(NodeId, Arc<Node>)> {
        let (id, node) = self.find(id)?;
        match node.kind {
            Kind::File => Ok((id, node)),
            Kind::Directory => errno(libc::EISDIR),
            _ => errno(libc::EINVAL),
        }
    }

    fn drop_capability(&self, at: (Moment, Caller), id: NodeId, node: &Node) -> Answer<Vec<Planned>> {
        let Some(name) = AttrName::new(CAPABILITY).ok().filter(|name| node.attrs.contains_key(name)) else {
            return Ok(Vec::new());
        };
        Ok(vec![self.planned(Op::Attr { id, name, value: None }, at, Meaning::other(id))?])
    }

    /// Sets attributes, one change for each register.
    pub fn plan_setattr(&self, at: (Moment, Caller), id: NodeId, set: &SetAttr) -> Answer<Vec<Planned>> {
        let (id, node) = self.find(id)?;
        let mut plans = Vec::new();
        let mut owner = node.owner.value;
        if let Some(size) = set.size {
            let (id, node) = self.file(id)?;
            if size > FILE_BYTES_MAX {
                return errno(libc::EFBIG);
            }
            self.file_map(id, &node)?;
            plans.extend(self.drop_capability(at, id, &node)?);
            let event = if size == 0 { Event::Started } else { Event::Wrote };
            let op = Op::Truncate { id, size, clear_set_id: set.kill_set_id };
            plans.push(self.planned(op, at, Meaning { event, ..Meaning::other(id) })?);
        }
        if set.kill_set_id && !node.is_dir() {
            owner.mode = without_set_id(owner.mode);
        }
        if set.uid.is_some() || set.gid.is_some() {
            owner.uid = set.uid.unwrap_or(owner.uid);
            owner.gid = set.gid.unwrap_or(owner.gid);
            if !node.is_dir() {
                owner.mode = without_set_id(owner.mode);
                plans.extend(self.drop_capability(at, id, &node)?);
            }
        }
        if let Some(mode) = set.mode {
            owner.mode = mode & 0o7777;
        }
        let asked = set.uid.is_some() || set.gid.is_some() || set.mode.is_some() || owner != node.owner.value;
        if asked && set.size.is_none_or(|_| owner != node.owner.value) {
            plans.push(self.planned(Op::Owner { id, owner }, at, Meaning::other(id))?);
        }
        if let Some(mtime) = set.mtime {
            let mtime = mtime.unwrap_or(at.0.wall);
            plans.push(self.planned(Op::Times { id, mtime }, at, Meaning::other(id))?);
        }
        Ok(plans)
    }

    /// Sets an attribute.
    pub fn plan_setxattr(
        &self,
        at: (Moment, Caller),
        id: NodeId,
        attr: (&[u8], &[u8]),
        mode: AttrMode,
    ) -> Answer<Planned> {
        let (id, node) = self.find(id)?;
        if attr.0.starts_with(b"user.tidefs.") {
            return errno(libc::EPERM);
        }
        let name = AttrName::new(attr.0).or(errno(libc::ERANGE))?;
        let old = node.attrs.get(&name);
        match (mode, old) {
            (AttrMode::Create, Some(_)) => return errno(libc::EEXIST),
            (AttrMode::Replace, None) => return errno(libc::ENODATA),
            _ => {}
        }
        let freed = old.map_or(0, |old| name.as_bytes().len() + old.value.len());
        if node.attrs_bytes() - freed + attr.0.len() + attr.1.len() > ATTRS_BYTES_MAX {
            return errno(libc::ENOSPC);
        }
        self.planned(Op::Attr { id, name, value: Some(attr.1.into()) }, at, Meaning::other(id))
    }

    /// Removes an attribute.
    pub fn plan_removexattr(&self, at: (Moment, Caller), id: NodeId, name: &[u8]) -> Answer<Planned> {
        let (id, node) = self.find(id)?;
        let name = AttrName::new(name).or(errno(libc::ERANGE))?;
        if !node.attrs.contains_key(&name) {
            return errno(libc::ENODATA);
        }
        self.planned(Op::Attr { id, name, value: None }, at, Meaning::other(id))
    }

    /// Whether a file had a name at the last cut: then an fsync says "saved".
    pub(super) fn named_before(&self, id: NodeId) -> bool {
        !self.view.open.born.contains(&id)
            && self.view.names(id).iter().any(|at: &(NodeId, Name)| {
                let open = self.view.open.entries.get(&at.0).and_then(|entries| entries.get(&at.1));
                open.is_none()
                    || self.batch.before.entries.get(at).is_some_and(|before| before.entry.is_some())
            })
    }
}
