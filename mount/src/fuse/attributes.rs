//! A node as the kernel wants it, and for how long the kernel may believe it.

use crate::volume::Found;
use fuser::{FileAttr, FileType, INodeNo};
use std::{
    sync::atomic::{AtomicBool, Ordering},
    time::{Duration, SystemTime, UNIX_EPOCH},
};
use tidefs_timeline::{Kind, Timestamp};

/// How long names, attributes and missing names are believed when the kernel is told of every change: ten
/// years, which no uptime reaches and no clock arithmetic of the kernel overflows on.
pub const TTL_LONG: Duration = Duration::from_secs(10 * 365 * 24 * 3600);
/// The same when the self-test failed.
pub const TTL_SHORT: Duration = Duration::from_secs(1);

/// `st_blksize`: what buffered writers send at once. Every write is a trip to this process, so it is the size
/// of a chunk of content rather than that of a page.
const BLKSIZE: u32 = 64 << 10;

/// Whether the kernel may rely on being told of changes.
#[derive(Debug, Default)]
pub struct Caching {
    untrusted: AtomicBool,
}

impl Caching {
    /// By the outcome of the self-test.
    pub fn new(trusted: bool) -> Self {
        Self { untrusted: AtomicBool::new(!trusted) }
    }

    /// Whether invalidations are trusted.
    pub fn trusted(&self) -> bool {
        !self.untrusted.load(Ordering::Relaxed)
    }

    /// From now on answers are believed for [`TTL_SHORT`] only.
    pub fn distrust(&self) {
        self.untrusted.store(true, Ordering::Relaxed);
    }

    /// How long an answer may be believed.
    pub fn ttl(&self) -> Duration {
        if self.trusted() { TTL_LONG } else { TTL_SHORT }
    }
}

/// All attributes of a node.
pub(super) fn attr(found: &Found) -> FileAttr {
    let node = &found.node;
    let owner = &node.owner.value;
    let times = &node.times.value;
    let size = node.content.value.size();
    let mtime = to_system(times.mtime);
    FileAttr {
        ino: INodeNo(found.id.0),
        size,
        blocks: size.div_ceil(512),
        atime: found.atime.map_or(mtime, to_system),
        mtime,
        ctime: to_system(times.ctime),
        crtime: UNIX_EPOCH,
        kind: file_type(node.kind),
        perm: (owner.mode & 0o7777) as u16,
        nlink: node.nlink(),
        uid: owner.uid,
        gid: owner.gid,
        rdev: match node.kind {
            Kind::CharDevice(number) | Kind::BlockDevice(number) => number,
            _ => 0,
        },
        blksize: BLKSIZE,
        flags: 0,
    }
}

/// What a missing name is answered with: inode 0, which the kernel remembers as "not there".
pub(super) fn missing() -> FileAttr {
    FileAttr {
        ino: INodeNo(0),
        size: 0,
        blocks: 0,
        atime: UNIX_EPOCH,
        mtime: UNIX_EPOCH,
        ctime: UNIX_EPOCH,
        crtime: UNIX_EPOCH,
        kind: FileType::RegularFile,
        perm: 0,
        nlink: 0,
        uid: 0,
        gid: 0,
        rdev: 0,
        blksize: BLKSIZE,
        flags: 0,
    }
}

/// The kernel's word for a kind.
pub(super) fn file_type(kind: Kind) -> FileType {
    match kind {
        Kind::File => FileType::RegularFile,
        Kind::Directory => FileType::Directory,
        Kind::Symlink => FileType::Symlink,
        Kind::Fifo => FileType::NamedPipe,
        Kind::Socket => FileType::Socket,
        Kind::CharDevice(_) => FileType::CharDevice,
        Kind::BlockDevice(_) => FileType::BlockDevice,
    }
}

/// The kind that `mknod` asks for by the type bits of its mode; `None` for what `mknod` cannot make.
pub(super) fn kind_of(mode: u32, rdev: u32) -> Option<Kind> {
    match mode & libc::S_IFMT {
        0 | libc::S_IFREG => Some(Kind::File),
        libc::S_IFIFO => Some(Kind::Fifo),
        libc::S_IFSOCK => Some(Kind::Socket),
        libc::S_IFCHR => Some(Kind::CharDevice(rdev)),
        libc::S_IFBLK => Some(Kind::BlockDevice(rdev)),
        _ => None,
    }
}

fn to_system(at: Timestamp) -> SystemTime {
    let nanos = Duration::from_nanos(u64::from(at.nanos.min(999_999_999)));
    let whole = if at.seconds >= 0 {
        UNIX_EPOCH.checked_add(Duration::from_secs(at.seconds.unsigned_abs()))
    } else {
        UNIX_EPOCH.checked_sub(Duration::from_secs(at.seconds.unsigned_abs()))
    };
    whole.and_then(|whole| whole.checked_add(nanos)).unwrap_or(UNIX_EPOCH)
}

/// A time as fuser 0.18 hands it over. Before 1970 it subtracts the nanoseconds that the kernel meant to be
/// added (-2 s + 0.8 s arrives as -2.8 s); this undoes that. A test sets such a time through a mount.
pub(super) fn from_fuser(at: SystemTime) -> Timestamp {
    match at.duration_since(UNIX_EPOCH) {
        Ok(after) => Timestamp {
            seconds: i64::try_from(after.as_secs()).unwrap_or(i64::MAX),
            nanos: after.subsec_nanos(),
        },
        Err(before) => {
            let before = before.duration();
            Timestamp {
                seconds: 0i64.saturating_sub_unsigned(before.as_secs()),
                nanos: before.subsec_nanos(),
            }
        }
    }
}
