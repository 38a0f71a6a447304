//! A node and its registers. Each register remembers which checkpoint wrote it.

use crate::{
    content::Content,
    ids::{SessionNo, Version},
    name::AttrName,
};
use std::{collections::BTreeMap, sync::Arc};

/// Seconds and nanoseconds since 1970, possibly before it; `nanos` is below 1,000,000,000.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default)]
pub struct Timestamp {
    /// Whole seconds, rounded down.
    pub seconds: i64,
    /// The rest.
    pub nanos: u32,
}

/// What a node is. It never changes over a node's life.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// A regular file.
    File,
    /// A directory.
    Directory,
    /// A symbolic link.
    Symlink,
    /// A named pipe.
    Fifo,
    /// A socket.
    Socket,
    /// A character device with its number.
    CharDevice(u32),
    /// A block device with its number.
    BlockDevice(u32),
}

/// A value and the checkpoint that wrote it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Register<T> {
    /// The value.
    pub value: T,
    /// Who wrote it.
    pub version: Version,
}

impl<T> Register<T> {
    /// A register written by `version`.
    pub fn new(value: T, version: Version) -> Self {
        Self { value, version }
    }

    /// The version, if a session other than `session` wrote it.
    pub fn foreign_to(&self, session: SessionNo) -> Option<Version> {
        (self.version.session != session).then_some(self.version)
    }
}

/// When content and node last changed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Times {
    /// Last change of the content, or as set.
    pub mtime: Timestamp,
    /// Last change of the node.
    pub ctime: Timestamp,
}

/// Who owns a node and who may use it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Owner {
    /// Permission bits with set-id and sticky, 0o7777 at most.
    pub mode: u32,
    /// User.
    pub uid: u32,
    /// Group.
    pub gid: u32,
}

/// A node with all its registers. `links` and `subdirs` follow from the entries and are kept with the node so
/// that a mount that has not loaded every directory can still answer `st_nlink`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Node {
    /// What it is.
    pub kind: Kind,
    /// The checkpoint that made it.
    pub birth: Version,
    /// Bytes or symlink target.
    pub content: Register<Content>,
    /// Times. A directory's follow from its entries unless set, which leaves the version as it is.
    pub times: Register<Times>,
    /// Owner and mode.
    pub owner: Register<Owner>,
    /// Extended attributes.
    pub attrs: BTreeMap<AttrName, Register<Arc<[u8]>>>,
    /// Names bound to it.
    pub links: u32,
    /// Directories among its entries.
    pub subdirs: u32,
}

impl Node {
    /// A node just made: every register has the version `birth`, no name yet.
    pub fn new(kind: Kind, birth: Version, content: Content, owner: Owner, now: Timestamp) -> Self {
        Self {
            kind,
            birth,
            content: Register::new(content, birth),
            times: Register::new(Times { mtime: now, ctime: now }, birth),
            owner: Register::new(owner, birth),
            attrs: BTreeMap::new(),
            links: 0,
            subdirs: 0,
        }
    }

    /// The root of a new drive.
    pub fn root(now: Timestamp) -> Self {
        let owner = Owner { mode: 0o777, uid: 0, gid: 0 };
        Self { links: 1, ..Self::new(Kind::Directory, Version::DRIVE, Content::None, owner, now) }
    }

    /// Whether it is a directory.
    pub fn is_dir(&self) -> bool {
        self.kind == Kind::Directory
    }

    /// `st_nlink`.
    pub fn nlink(&self) -> u32 {
        if self.is_dir() { 2 + self.subdirs } else { self.links }
    }

    /// Whether every register was written by the same checkpoint as in `other`: then the two differ at most in
    /// what follows from entries.
    pub fn same_registers(&self, other: &Node) -> bool {
        self.content.version == other.content.version
            && self.times.version == other.times.version
            && self.owner.version == other.owner.version
            && self.birth == other.birth
            && self.attrs.len() == other.attrs.len()
            && self.attrs.iter().zip(&other.attrs).all(|(a, b)| a.0 == b.0 && a.1.version == b.1.version)
    }

    /// Moves what follows from entries from lying on `old` to lying on `new`.
    pub fn rebase_derived(&mut self, old: &Node, new: &Node) {
        self.links = (self.links + new.links).saturating_sub(old.links);
        self.subdirs = (self.subdirs + new.subdirs).saturating_sub(old.subdirs);
        if self.times.version == old.times.version {
            self.touch(new.times.value.mtime, new.times.value.ctime);
        }
    }

    /// Moves times on, never back.
    pub fn touch(&mut self, mtime: Timestamp, ctime: Timestamp) {
        let times = &mut self.times.value;
        times.mtime = times.mtime.max(mtime);
        times.ctime = times.ctime.max(ctime);
    }

    /// Bytes of all extended attributes, names and values.
    pub fn attrs_bytes(&self) -> usize {
        self.attrs.iter().map(|(name, value)| name.as_bytes().len() + value.value.len()).sum()
    }
}
