//! What programs do: random changes and looks in a small name space, mostly in a directory of the mount's own.

use super::{
    counts::Counts,
    model::{Inode, Model},
    server::Server,
    shell::{Shell, moment},
};
use anyhow::{Result, anyhow};
use rand::{Rng as _, rngs::SmallRng};
use std::collections::{BTreeMap, BTreeSet};
use tidefs_mount::{
    session::op::Op,
    volume::{Answer, AttrMode, Caller, Make, RenameMode, SetAttr, Stop, WriteAt},
};
use tidefs_timeline::{Head as _, Kind, Name, NodeId};

/// Pieces of a file that is written with gaps: more than a node's record lists.
const GAPS: usize = 140;
/// Paths that are looked at before one is picked.
const PATHS_MAX: usize = 60;

/// One thing that a program does.
#[derive(Clone, Debug)]
pub enum Act {
    /// `creat`, `mkdir`, or `symlink`.
    Make(String, Kind),
    /// A write in place.
    Write(String, u64, usize),
    /// A write to the end.
    Append(String, usize),
    /// Many short writes with gaps.
    Gaps(String),
    /// `truncate`.
    Truncate(String, u64),
    /// `rename`.
    Rename(String, String, RenameMode),
    /// `unlink`, or `rmdir`.
    Remove(String, bool),
    /// `link`.
    Link(String, String),
    /// `chmod`.
    Mode(String, u32),
    /// `utimensat`.
    Times(String),
    /// `setxattr`, or `removexattr`.
    Attr(String, &'static str, Option<u8>),
    /// `fsync`.
    Sync(String),
    /// A write through a descriptor whose file may have no name any more.
    Held(usize, usize),
    /// A walk, and a read or a listing at its end.
    Look(String),
    /// The kernel drops a node.
    Evict(usize),
}

/// A path under `top`.
fn path(rng: &mut SmallRng, top: &str) -> String {
    let mut path = top.to_owned();
    for _ in 0..rng.random_range(0..3) {
        path.push('/');
        path.push_str(["d", "e"][rng.random_range(0..2)]);
    }
    path.push('/');
    path.push_str(["a", "b", "c", "d"][rng.random_range(0..4)]);
    path
}

/// Paths in a mount's view, as far as they are loaded.
pub fn existing(shell: &Shell) -> Vec<String> {
    let Some(up) = &shell.up else { return Vec::new() };
    let mut found = Vec::new();
    let mut todo = vec![(NodeId::ROOT, String::new())];
    while let Some((dir, path)) = todo.pop() {
        let Ok(names) = up.session.view().with(|view| view.entries(dir, None, PATHS_MAX)) else { continue };
        for (name, entry) in names {
            let name = String::from_utf8_lossy(name.as_bytes());
            let path = if path.is_empty() { name.into_owned() } else { format!("{path}/{name}") };
            if up.session.view().node(entry.node).is_some_and(|node| node.is_dir()) {
                todo.push((entry.node, path.clone()));
            }
            found.push(path);
        }
        if found.len() > PATHS_MAX {
            break;
        }
    }
    found
}

/// What the mount of this index does next: one act, or several that belong together. Most acts are about a path
/// that is there.
pub fn draw(rng: &mut SmallRng, index: usize, there: &[String]) -> Vec<Act> {
    let top = match rng.random_range(0..100) {
        0..55 => format!("p{index}"),
        55..90 => "s".to_owned(),
        _ => "t".to_owned(),
    };
    let below = format!("{top}/");
    let there: Vec<&String> = there.iter().filter(|path| path.starts_with(&below)).collect();
    let mut pick = |often: f64| match there.is_empty() || rng.random_bool(1.0 - often) {
        true => path(rng, &top),
        false => there[rng.random_range(0..there.len())].clone(),
    };
    let (new, one, two) = (pick(0.1), pick(0.8), pick(0.4));
    let size = [1, 10, 200, 70_000][rng.random_range(0..4)];
    let act = match rng.random_range(0..100) {
        0..12 => Act::Make(new, Kind::File),
        12..19 => Act::Make(new, Kind::Directory),
        19..20 => return passing(new, size),
        20..22 => Act::Make(path(rng, "s"), Kind::Symlink),
        22..34 => Act::Write(one, rng.random_range(0..300), size),
        34..40 => Act::Append(one, size),
        40..41 => Act::Gaps(one),
        41..45 => Act::Truncate(one, [0, 5, 150][rng.random_range(0..3)]),
        45..53 => Act::Rename(one, two, RenameMode::Replace),
        53..55 => {
            Act::Rename(one, two, [RenameMode::Exchange, RenameMode::NoReplace][rng.random_range(0..2)])
        }
        55..61 => Act::Remove(one, false),
        61..65 => Act::Remove(one, true),
        65..68 => Act::Link(one, two),
        68..71 => Act::Mode(one, [0o600, 0o644, 0o755][rng.random_range(0..3)]),
        71..72 => Act::Times(one),
        72..75 => {
            let value = rng.random_bool(0.7).then(|| rng.random());
            Act::Attr(one, ["user.a", "user.b"][rng.random_range(0..2)], value)
        }
        75..77 => Act::Sync(one),
        77..81 => return save(one, size),
        81..83 => return backup(one, size),
        83..84 => {
            let (from, to) = if rng.random() { ("s", "t") } else { ("t", "s") };
            Act::Rename(from.into(), to.into(), RenameMode::Replace)
        }
        84..86 => Act::Held(rng.random_range(0..1000), size),
        86..87 => Act::Evict(rng.random_range(0..1000)),
        _ => Act::Look(one),
    };
    vec![act]
}

/// A save by rename.
fn save(path: String, size: usize) -> Vec<Act> {
    let temporary = format!("{path}.tmp");
    vec![
        Act::Make(temporary.clone(), Kind::File),
        Act::Write(temporary.clone(), 0, size),
        Act::Sync(temporary.clone()),
        Act::Rename(temporary, path, RenameMode::Replace),
    ]
}

/// A file that is gone before anybody hears of it.
fn passing(path: String, size: usize) -> Vec<Act> {
    vec![Act::Make(path.clone(), Kind::File), Act::Write(path.clone(), 0, size), Act::Remove(path, false)]
}

/// A save that moves the old file aside.
fn backup(path: String, size: usize) -> Vec<Act> {
    vec![
        Act::Rename(path.clone(), format!("{path}~"), RenameMode::Replace),
        Act::Make(path.clone(), Kind::File),
        Act::Write(path, 0, size),
    ]
}

/// One mount's hands.
pub struct Hands<'a> {
    /// The mount.
    pub shell: &'a mut Shell,
    /// What its own directory must hold.
    pub model: &'a mut Model,
    /// For blocks that are read.
    pub server: &'a Server,
    /// Chance.
    pub rng: &'a mut SmallRng,
    /// Now, in microseconds.
    pub now: u64,
    /// Whether the next append fails.
    pub fail: bool,
}

fn errno<T>(errno: i32) -> Answer<T> {
    Err(Stop::Errno(errno))
}

impl Hands<'_> {
    fn caller(&mut self) -> Caller {
        Caller { uid: 0, gid: 0, pid: self.rng.random_range(1..3) }
    }

    fn find(&self, path: &str) -> Answer<NodeId> {
        let Some(up) = &self.shell.up else { return errno(libc::EIO) };
        let mut at = NodeId::ROOT;
        for part in path.split('/').filter(|part| !part.is_empty()) {
            let Ok(name) = Name::new(part.as_bytes()) else { return errno(libc::EINVAL) };
            if !up.session.view().node(at).is_some_and(|node| node.is_dir()) {
                return errno(libc::ENOTDIR);
            }
            let Some(entry) = up.session.view().entry(at, &name)? else { return errno(libc::ENOENT) };
            at = entry.node;
        }
        Ok(at)
    }

    fn spot<'p>(&self, path: &'p str) -> Answer<(NodeId, &'p [u8])> {
        let (up, name) = path.rsplit_once('/').unwrap_or(("", path));
        Ok((self.find(up)?, name.as_bytes()))
    }

    /// The first directory missing on the way to a name.
    fn missing_dir(&self, path: &str) -> Option<String> {
        let cuts = path.match_indices('/').map(|(at, _)| &path[..at]);
        cuts.map(str::to_owned).find(|up| matches!(self.find(up), Err(Stop::Errno(libc::ENOENT))))
    }

    fn own(&self, path: &str) -> bool {
        path.split('/').next() == Some(&format!("p{}", self.shell.index))
    }

    /// Does it.
    ///
    /// # Errors
    /// What a program would see, or what must be loaded first.
    pub fn run(&mut self, act: &Act) -> Answer<()> {
        match act {
            Act::Make(path, kind) => {
                let path = self.missing_dir(path).map_or((path.clone(), *kind), |up| (up, Kind::Directory));
                self.make(&path.0, path.1)
            }
            Act::Write(path, offset, len) => {
                let id = self.find(path)?;
                self.write(id, Some(*offset), *len)
            }
            Act::Append(path, len) => {
                let id = self.find(path)?;
                self.write(id, None, *len)
            }
            Act::Gaps(path) => {
                let id = self.find(path)?;
                (0..GAPS).try_for_each(|i| self.write(id, Some(i as u64 * 3), 1))
            }
            Act::Truncate(path, size) => self.truncate(path, *size),
            Act::Rename(from, to, mode) => self.rename(from, to, *mode),
            Act::Remove(path, dir) => self.remove(path, *dir),
            Act::Link(path, to) => self.link(path, to),
            Act::Mode(path, mode) => {
                let id = self.find(path)?;
                self.setattr(id, SetAttr { mode: Some(*mode), ..SetAttr::default() })?;
                self.model.change(id, |inode| inode.mode = *mode);
                Ok(())
            }
            Act::Times(path) => {
                let id = self.find(path)?;
                let mtime = moment(self.now / 2).wall;
                self.setattr(id, SetAttr { mtime: Some(Some(mtime)), ..SetAttr::default() })?;
                self.model.change(id, |inode| inode.mtime = mtime);
                Ok(())
            }
            Act::Attr(path, name, value) => self.attr(path, name, *value),
            Act::Sync(path) => {
                let id = self.find(path)?;
                if let Some(up) = &mut self.shell.up {
                    up.session.synced(id, moment(self.now));
                }
                self.shell.disk.sync();
                Ok(())
            }
            Act::Held(n, len) => self.held(*n, *len),
            Act::Look(_) | Act::Evict(_) => Ok(()),
        }
    }

    fn make(&mut self, path: &str, kind: Kind) -> Answer<()> {
        let (caller, fail, now) = (self.caller(), self.fail, self.now);
        let at = self.spot(path)?;
        let mode = if kind == Kind::Directory { 0o755 } else { 0o644 };
        let make = Make { kind, mode, target: (kind == Kind::Symlink).then(|| b"target".to_vec()) };
        let id = self.shell.change(now, &[], fail, |session, now| {
            let planned = session.plan_make((now, caller), at, &make)?;
            let Op::Make { id, .. } = planned.op else { return errno(libc::EIO) };
            Ok((vec![planned], id))
        })?;
        if self.own(path) {
            let inode = Inode {
                is_dir: kind == Kind::Directory,
                bytes: Vec::new(),
                mode,
                mtime: moment(now).wall,
                attrs: BTreeMap::new(),
            };
            self.model.make(path, id, inode);
        }
        Ok(())
    }

    fn write(&mut self, id: NodeId, offset: Option<u64>, len: usize) -> Answer<()> {
        let (caller, fail, now) = (self.caller(), self.fail, self.now);
        let first: u8 = self.rng.random();
        let data: Vec<u8> = (0..len).map(|i| first.wrapping_add((i / 100) as u8)).collect();
        let write = WriteAt {
            offset: offset.unwrap_or(0),
            data: &data,
            append: offset.is_none(),
            from_cache: false,
            kill_set_id: false,
        };
        self.need_extents(id)?;
        let at = self.shell.change(now, &data, fail, |session, now| {
            let plans = session.plan_write((now, caller), id, &write)?;
            let at = plans.iter().find_map(|planned| match planned.op {
                Op::Write { offset, .. } => Some(offset),
                _ => None,
            });
            Ok((plans, at.unwrap_or(0)))
        })?;
        self.model.write(id, at as usize, &data, moment(now).wall);
        Ok(())
    }

    /// A stored extent list is loaded before the file is changed.
    fn need_extents(&mut self, id: NodeId) -> Answer<()> {
        let Some(up) = &mut self.shell.up else { return errno(libc::EIO) };
        if let Some(tidefs_mount::volume::Load::Extents(_, root)) = up.session.missing_extents(id) {
            match up.load_extents(root, self.server) {
                Ok(true) => {}
                _ => return errno(libc::EIO),
            }
        }
        Ok(())
    }

    fn truncate(&mut self, path: &str, size: u64) -> Answer<()> {
        let id = self.find(path)?;
        self.need_extents(id)?;
        self.setattr(id, SetAttr { size: Some(size), ..SetAttr::default() })?;
        self.model.truncate(id, size as usize, moment(self.now).wall);
        Ok(())
    }

    fn setattr(&mut self, id: NodeId, set: SetAttr) -> Answer<()> {
        let (caller, fail, now) = (self.caller(), self.fail, self.now);
        self.shell
            .change(now, &[], fail, |session, now| Ok((session.plan_setattr((now, caller), id, &set)?, ())))
    }

    fn rename(&mut self, from: &str, to: &str, mode: RenameMode) -> Answer<()> {
        let (caller, fail, now) = (self.caller(), self.fail, self.now);
        let (at, onto) = (self.spot(from)?, self.spot(to)?);
        let done = self.shell.change(now, &[], fail, |session, now| {
            let plans: Vec<_> = session.plan_rename((now, caller), at, onto, mode)?.into_iter().collect();
            let done = !plans.is_empty();
            Ok((plans, done))
        })?;
        if done && self.own(from) {
            self.model.rename(from, to, mode == RenameMode::Exchange);
        }
        Ok(())
    }

    fn remove(&mut self, path: &str, dir: bool) -> Answer<()> {
        let (caller, fail, now) = (self.caller(), self.fail, self.now);
        let at = self.spot(path)?;
        self.shell.change(now, &[], fail, |session, now| {
            Ok((vec![session.plan_remove((now, caller), at, dir)?], ()))
        })?;
        if self.own(path) {
            self.model.remove(path);
        }
        Ok(())
    }

    fn link(&mut self, path: &str, to: &str) -> Answer<()> {
        let (caller, fail, now) = (self.caller(), self.fail, self.now);
        let (id, at) = (self.find(path)?, self.spot(to)?);
        self.shell.change(now, &[], fail, |session, now| {
            Ok((vec![session.plan_link((now, caller), id, at)?], ()))
        })?;
        if self.own(path) {
            self.model.link(to, id);
        }
        Ok(())
    }

    fn attr(&mut self, path: &str, name: &str, value: Option<u8>) -> Answer<()> {
        let (caller, fail, now) = (self.caller(), self.fail, self.now);
        let id = self.find(path)?;
        self.shell.change(now, &[], fail, |session, now| {
            let at = (now, caller);
            let planned = match value {
                Some(value) => session.plan_setxattr(at, id, (name.as_bytes(), &[value]), AttrMode::Any)?,
                None => session.plan_removexattr(at, id, name.as_bytes())?,
            };
            Ok((vec![planned], ()))
        })?;
        self.model.change(id, |inode| match value {
            Some(value) => drop(inode.attrs.insert(name.into(), vec![value])),
            None => drop(inode.attrs.remove(name.as_bytes())),
        });
        Ok(())
    }

    /// Writes to a node that the kernel holds, with or without a name.
    fn held(&mut self, n: usize, len: usize) -> Answer<()> {
        let Some(up) = &self.shell.up else { return errno(libc::EIO) };
        let count = up.kernel.held().len().max(1);
        let found = up.kernel.held().nth(n % count).map(|held| held.0);
        let Some(id) = found else { return errno(libc::ENOENT) };
        self.write(id, Some(0), len)
    }

    /// Walks a path as the kernel does, from what it believes where it believes something, and reads the end.
    ///
    /// # Errors
    /// A directory to load, or (outer) a contradiction.
    pub fn look(&mut self, path: &str, counts: &mut Counts) -> Result<Answer<()>> {
        let Some(up) = &mut self.shell.up else { return Ok(Ok(())) };
        let mut at = NodeId::ROOT;
        for part in path.split('/') {
            let name = Name::new(part.as_bytes())?;
            if let Some(believed) = up.kernel.believes(at, &name) {
                counts.add("kernel: walked from its cache");
                match believed {
                    Some(node) => at = node,
                    None => return Ok(Ok(())),
                }
                continue;
            }
            match up.session.lookup(at, part.as_bytes()) {
                Ok(Some(found)) => {
                    up.kernel.looked_up((at, name), Some((found.id, &found.node)));
                    at = found.id;
                }
                Ok(None) => {
                    up.kernel.looked_up((at, name), None);
                    return Ok(Ok(()));
                }
                Err(stop) => return Ok(Err(stop)),
            }
        }
        let is_dir = match up.session.getattr(at) {
            Ok(found) => found.node.is_dir(),
            Err(stop) => return Ok(Err(stop)),
        };
        if is_dir {
            match up.session.list(at, 0, 1000, false) {
                Ok(lines) => {
                    let names: BTreeSet<Vec<u8>> = lines.into_iter().skip(2).map(|line| line.name).collect();
                    up.kernel.listed(at, names);
                }
                Err(stop) => return Ok(Err(stop)),
            }
        } else if up.session.readlink(at).is_err()
            && let Some(bytes) = up.bytes(at, self.server)?
        {
            up.kernel.read(at, bytes);
        }
        Ok(Ok(()))
    }

    /// The kernel drops a node that it holds.
    ///
    /// # Errors
    /// Never.
    pub fn evict(&mut self, n: usize) -> Result<()> {
        let up = self.shell.up.as_mut().ok_or_else(|| anyhow!("no mount"))?;
        let count = up.kernel.held().len();
        if let Some((id, _)) = (count > 0).then(|| up.kernel.held().nth(n % count)).flatten() {
            let lookups = up.kernel.evict(id);
            up.session.forget(id, lookups);
        }
        Ok(())
    }
}
