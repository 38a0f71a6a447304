//! The requests one by one: decode, ask the volume, reply.
//!
//! No handle exists (`open` is not answered, see [`prime`](super::prime)): a file handle from the kernel is 0
//! and is not looked at, and nothing is ever decided by a file being closed.

use super::{
    attributes::{attr, from_fuser, kind_of, missing},
    door::{Door, caller, name},
    init,
    listing::{BATCH_LINES, Filler, Page},
    prime,
    replies::{attributes, data as bytes, empty, entry, errno, node, sized},
};
use crate::volume::{Answer, AttrMode, Make, RenameMode, SetAttr, Space, Stop, Volume, WriteAt};
use fuser::{
    BsdFileFlags, CopyFileRangeFlags, Errno, FileHandle, Filesystem, FopenFlags, Generation, INodeNo,
    IoctlFlags, KernelConfig, LockOwner, OpenFlags, PollEvents, PollFlags, PollNotifier, RenameFlags,
    ReplyAttr, ReplyCreate, ReplyData, ReplyDirectory, ReplyDirectoryPlus, ReplyEmpty, ReplyEntry,
    ReplyIoctl, ReplyLseek, ReplyOpen, ReplyPoll, ReplyStatfs, ReplyWrite, ReplyXattr, Request, TimeOrNow,
    WriteFlags,
};
use std::{
    ffi::OsStr,
    io,
    os::unix::ffi::OsStrExt,
    path::Path,
    sync::atomic::Ordering,
    time::{Duration, SystemTime},
};
use tidefs_timeline::{Kind, Name, NodeId};

/// Unit of `statfs`, in bytes.
const STATFS_BLOCK: u32 = 4096;
/// Attributes that promise an evaluation of access lists, which nothing here does.
const ACL_PREFIX: &[u8] = b"system.posix_acl_";

/// A time as asked for; none is now.
fn set_time(at: TimeOrNow) -> Option<tidefs_timeline::Timestamp> {
    match at {
        TimeOrNow::SpecificTime(at) => Some(from_fuser(at)),
        TimeOrNow::Now => None,
    }
}

impl<V: Volume> Door<V> {
    fn ttl(&self) -> Duration {
        self.shared.caching.ttl()
    }

    fn make(&self, req: &Request, at: (INodeNo, &OsStr), make: Make, reply: ReplyEntry) {
        let (caller, ttl, parent) = (caller(req), self.ttl(), node(at.0));
        let operation = match make.kind {
            Kind::Directory => "mkdir",
            Kind::Symlink => "symlink",
            _ => "mknod",
        };
        let made = name(at.1);
        let ask = move |v: &V| {
            v.make(caller, (parent, made.as_ref().map_err(|code| Stop::Errno(*code))?), make.clone())
        };
        self.serve(operation, reply, ask, move |reply, answer| entry(reply, ttl, answer));
    }

    fn remove(
        &self,
        operation: &'static str,
        (parent, removed): (INodeNo, &OsStr),
        reply: ReplyEmpty,
        ask: impl Fn(&V, NodeId, &[u8]) -> Answer<()> + Send + 'static,
    ) {
        let removed = removed.as_bytes().to_vec();
        self.serve(operation, reply, move |v| ask(v, node(parent), &removed), empty);
    }

    fn list<P: Page>(
        &self,
        operation: &'static str,
        at: (INodeNo, u64),
        page: P,
        done: impl FnOnce(P, Result<(), i32>) + Send + 'static,
    ) {
        let (dir, cookie) = (node(at.0), at.1);
        let filler = Filler::new(self, dir);
        let ask = move |v: &V| v.list(dir, cookie, BATCH_LINES, P::PLUS);
        self.serve(operation, page, ask, move |mut page, answer| {
            let answer = answer.map(|lines| filler.fill(&mut page, lines));
            done(page, answer);
        });
    }
}

impl<V: Volume> Filesystem for Door<V> {
    fn init(&mut self, _req: &Request, config: &mut KernelConfig) -> io::Result<()> {
        init::negotiate(&self.shared, config);
        Ok(())
    }

    fn lookup(&self, _req: &Request, parent: INodeNo, looked: &OsStr, reply: ReplyEntry) {
        if looked.as_bytes() == Name::FENCE {
            if parent == INodeNo::ROOT && self.shared.is_priming() {
                return reply.entry_with_ttls(
                    &prime::FILE_TTL,
                    &Duration::ZERO,
                    &prime::file(),
                    Generation(0),
                );
            }
            return reply.error(Errno::ENOENT);
        }
        let (ttl, looked) = (self.ttl(), name(looked));
        let ask = move |v: &V| v.lookup(node(parent), looked.as_ref().map_err(|code| Stop::Errno(*code))?);
        self.serve("lookup", reply, ask, move |reply, answer| match answer {
            Ok(Some(found)) => reply.entry(&ttl, &attr(&found), Generation(0)),
            Ok(None) => reply.entry(&ttl, &missing(), Generation(0)),
            Err(code) => reply.error(errno(code)),
        });
    }

    fn forget(&self, _req: &Request, ino: INodeNo, nlookup: u64) {
        if ino != prime::FILE {
            self.volume.forget(node(ino), nlookup);
        }
    }

    fn getattr(&self, _req: &Request, ino: INodeNo, _fh: Option<FileHandle>, reply: ReplyAttr) {
        if ino == prime::FILE {
            return reply.attr(&prime::FILE_TTL, &prime::file());
        }
        let ttl = self.ttl();
        let ask = move |v: &V| v.getattr(node(ino));
        self.serve("getattr", reply, ask, move |reply, answer| attributes(reply, ttl, answer));
    }

    fn setattr(
        &self,
        req: &Request,
        ino: INodeNo,
        mode: Option<u32>,
        uid: Option<u32>,
        gid: Option<u32>,
        size: Option<u64>,
        atime: Option<TimeOrNow>,
        mtime: Option<TimeOrNow>,
        _ctime: Option<SystemTime>,
        _fh: Option<FileHandle>,
        _crtime: Option<SystemTime>,
        _chgtime: Option<SystemTime>,
        _bkuptime: Option<SystemTime>,
        _flags: Option<BsdFileFlags>,
        reply: ReplyAttr,
    ) {
        let (caller, ttl) = (caller(req), self.ttl());
        let set = SetAttr {
            mode: mode.map(|mode| mode & 0o7777),
            uid,
            gid,
            size,
            mtime: mtime.map(set_time),
            atime: atime.map(set_time),
            // The kernel's own flag for this is not handed on by the FUSE library. A change of owner always
            // clears; a truncation does unless the caller may keep them, for which root stands here.
            kill_set_id: uid.is_some() || gid.is_some() || (size.is_some() && caller.uid != 0),
        };
        let ask = move |v: &V| v.setattr(caller, node(ino), set);
        self.serve("setattr", reply, ask, move |reply, answer| attributes(reply, ttl, answer));
    }

    fn readlink(&self, _req: &Request, ino: INodeNo, reply: ReplyData) {
        self.serve("readlink", reply, move |v| v.readlink(node(ino)), bytes);
    }

    fn mknod(
        &self,
        req: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        _umask: u32,
        rdev: u32,
        reply: ReplyEntry,
    ) {
        let Some(kind) = kind_of(mode, rdev) else { return reply.error(Errno::EINVAL) };
        self.make(req, (parent, name), Make { kind, mode: mode & 0o7777, target: None }, reply);
    }

    fn mkdir(&self, req: &Request, parent: INodeNo, name: &OsStr, mode: u32, _umask: u32, reply: ReplyEntry) {
        let make = Make { kind: Kind::Directory, mode: mode & 0o7777, target: None };
        self.make(req, (parent, name), make, reply);
    }

    fn symlink(&self, req: &Request, parent: INodeNo, name: &OsStr, target: &Path, reply: ReplyEntry) {
        let target = Some(target.as_os_str().as_bytes().to_vec());
        self.make(req, (parent, name), Make { kind: Kind::Symlink, mode: 0o777, target }, reply);
    }

    fn unlink(&self, req: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        let caller = caller(req);
        self.remove("unlink", (parent, name), reply, move |v, dir, name| v.unlink(caller, dir, name));
    }

    fn rmdir(&self, req: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        let caller = caller(req);
        self.remove("rmdir", (parent, name), reply, move |v, dir, name| v.rmdir(caller, dir, name));
    }

    fn rename(
        &self,
        req: &Request,
        parent: INodeNo,
        from: &OsStr,
        newparent: INodeNo,
        to: &OsStr,
        flags: RenameFlags,
        reply: ReplyEmpty,
    ) {
        let mode = match flags {
            RenameFlags::RENAME_NOREPLACE => RenameMode::NoReplace,
            RenameFlags::RENAME_EXCHANGE => RenameMode::Exchange,
            none if none.is_empty() => RenameMode::Replace,
            _ => return reply.error(Errno::EINVAL),
        };
        let (caller, from, to) = (caller(req), from.as_bytes().to_vec(), name(to));
        let ask = move |v: &V| {
            let to = to.as_ref().map_err(|code| Stop::Errno(*code))?;
            v.rename(caller, (node(parent), &from), (node(newparent), to), mode)
        };
        self.serve("rename", reply, ask, empty);
    }

    fn link(&self, req: &Request, ino: INodeNo, newparent: INodeNo, newname: &OsStr, reply: ReplyEntry) {
        let (caller, ttl, newname) = (caller(req), self.ttl(), name(newname));
        let ask = move |v: &V| {
            let newname = newname.as_ref().map_err(|code| Stop::Errno(*code))?;
            v.link(caller, node(ino), (node(newparent), newname))
        };
        self.serve("link", reply, ask, move |reply, answer| entry(reply, ttl, answer));
    }

    fn create(
        &self,
        req: &Request,
        parent: INodeNo,
        created: &OsStr,
        mode: u32,
        _umask: u32,
        flags: i32,
        reply: ReplyCreate,
    ) {
        let (caller, ttl, created) = (caller(req), self.ttl(), name(created));
        let ask = move |v: &V| {
            let make = Make { kind: Kind::File, mode: mode & 0o7777, target: None };
            v.make(caller, (node(parent), created.as_ref().map_err(|code| Stop::Errno(*code))?), make)
        };
        self.serve("create", reply, ask, move |reply, answer| match answer {
            Ok(found) => {
                reply.created(
                    &ttl,
                    &attr(&found),
                    Generation(0),
                    FileHandle(0),
                    FopenFlags::FOPEN_KEEP_CACHE,
                );
            }
            // The name came into being elsewhere a moment ago. Without O_EXCL this must open what is there,
            // with its permissions checked and O_TRUNC heeded: on ESTALE the kernel walks the path anew.
            Err(libc::EEXIST) if flags & libc::O_EXCL == 0 => reply.error(Errno::ESTALE),
            Err(code) => reply.error(errno(code)),
        });
    }

    fn open(&self, _req: &Request, _ino: INodeNo, _flags: OpenFlags, reply: ReplyOpen) {
        self.volume.count("open");
        self.shared.open_unanswered.store(true, Ordering::Release);
        reply.error(Errno::ENOSYS);
    }

    fn opendir(&self, _req: &Request, _ino: INodeNo, _flags: OpenFlags, reply: ReplyOpen) {
        self.volume.count("opendir");
        self.shared.opendir_unanswered.store(true, Ordering::Release);
        reply.error(Errno::ENOSYS);
    }

    fn flush(&self, _req: &Request, _ino: INodeNo, _fh: FileHandle, _owner: LockOwner, reply: ReplyEmpty) {
        self.volume.count("flush");
        reply.error(Errno::ENOSYS);
    }

    fn read(
        &self,
        _req: &Request,
        ino: INodeNo,
        _fh: FileHandle,
        offset: u64,
        size: u32,
        _flags: OpenFlags,
        _owner: Option<LockOwner>,
        reply: ReplyData,
    ) {
        self.read_at(node(ino), offset, size, reply);
    }

    fn write(
        &self,
        req: &Request,
        ino: INodeNo,
        _fh: FileHandle,
        offset: u64,
        data: &[u8],
        write_flags: WriteFlags,
        flags: OpenFlags,
        _owner: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        // A write from the page cache has no descriptor of its own: the kernel lends it any, so its O_APPEND
        // says nothing.
        let from_cache = write_flags.contains(WriteFlags::FUSE_WRITE_CACHE);
        let append = !from_cache && flags.0 & libc::O_APPEND != 0;
        let kill_set_id = write_flags.contains(WriteFlags::FUSE_WRITE_KILL_SUIDGID);
        let write = WriteAt { offset, data, append, from_cache, kill_set_id };
        self.write_at(caller(req), node(ino), write, reply);
    }

    fn fsync(&self, req: &Request, ino: INodeNo, _fh: FileHandle, _datasync: bool, reply: ReplyEmpty) {
        self.fsync_node("fsync", req, ino, reply);
    }

    fn fsyncdir(&self, req: &Request, ino: INodeNo, _fh: FileHandle, _datasync: bool, reply: ReplyEmpty) {
        self.fsync_node("fsyncdir", req, ino, reply);
    }

    fn readdir(&self, _req: &Request, ino: INodeNo, _fh: FileHandle, offset: u64, reply: ReplyDirectory) {
        self.list("readdir", (ino, offset), reply, |reply, answer| match answer {
            Ok(()) => reply.ok(),
            Err(code) => reply.error(errno(code)),
        });
    }

    fn readdirplus(
        &self,
        _req: &Request,
        ino: INodeNo,
        _fh: FileHandle,
        offset: u64,
        reply: ReplyDirectoryPlus,
    ) {
        self.list("readdirplus", (ino, offset), reply, |reply, answer| match answer {
            Ok(()) => reply.ok(),
            Err(code) => reply.error(errno(code)),
        });
    }

    fn statfs(&self, _req: &Request, _ino: INodeNo, reply: ReplyStatfs) {
        self.serve(
            "statfs",
            reply,
            |v| v.statfs(),
            |reply, answer: Result<Space, i32>| match answer {
                Ok(space) => {
                    let blocks = |bytes: u64| bytes / u64::from(STATFS_BLOCK);
                    let (total, free) = (blocks(space.total_bytes), blocks(space.free_bytes));
                    let (nodes, spare) = (space.total_nodes, space.free_nodes);
                    reply.statfs(total, free, free, nodes, spare, STATFS_BLOCK, 255, STATFS_BLOCK);
                }
                Err(code) => reply.error(errno(code)),
            },
        );
    }

    fn setxattr(
        &self,
        req: &Request,
        ino: INodeNo,
        name: &OsStr,
        value: &[u8],
        flags: i32,
        _position: u32,
        reply: ReplyEmpty,
    ) {
        let mode = match flags {
            0 => AttrMode::Any,
            libc::XATTR_CREATE => AttrMode::Create,
            libc::XATTR_REPLACE => AttrMode::Replace,
            _ => return reply.error(Errno::EINVAL),
        };
        if name.as_bytes().starts_with(ACL_PREFIX) {
            return reply.error(Errno::EOPNOTSUPP);
        }
        let (caller, name, value) = (caller(req), name.as_bytes().to_vec(), value.to_vec());
        let ask = move |v: &V| v.setxattr(caller, node(ino), (&name, &value), mode);
        self.serve("setxattr", reply, ask, empty);
    }

    fn getxattr(&self, _req: &Request, ino: INodeNo, name: &OsStr, size: u32, reply: ReplyXattr) {
        // Programs that list remember per file system that there are no access lists, and stop asking.
        if name.as_bytes().starts_with(ACL_PREFIX) {
            return reply.error(Errno::EOPNOTSUPP);
        }
        let name = name.as_bytes().to_vec();
        let ask = move |v: &V| v.getxattr(node(ino), &name);
        self.serve("getxattr", reply, ask, move |reply, answer| sized(reply, size, answer));
    }

    fn listxattr(&self, _req: &Request, ino: INodeNo, size: u32, reply: ReplyXattr) {
        let ask = move |v: &V| v.listxattr(node(ino));
        self.serve("listxattr", reply, ask, move |reply, answer| sized(reply, size, answer));
    }

    fn removexattr(&self, req: &Request, ino: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        let (caller, name) = (caller(req), name.as_bytes().to_vec());
        self.serve("removexattr", reply, move |v| v.removexattr(caller, node(ino), &name), empty);
    }

    // ENOSYS makes the kernel do these by itself, or refuse them, and ask no more: seeking data finds data,
    // allocation is EOPNOTSUPP, copying reads and writes, polling is always ready, no ioctl exists.

    fn lseek(
        &self,
        _req: &Request,
        _ino: INodeNo,
        _fh: FileHandle,
        _at: i64,
        _whence: i32,
        reply: ReplyLseek,
    ) {
        reply.error(Errno::ENOSYS);
    }

    fn fallocate(
        &self,
        _req: &Request,
        _ino: INodeNo,
        _fh: FileHandle,
        _offset: u64,
        _length: u64,
        _mode: i32,
        reply: ReplyEmpty,
    ) {
        reply.error(Errno::ENOSYS);
    }

    fn copy_file_range(
        &self,
        _req: &Request,
        _ino_in: INodeNo,
        _fh_in: FileHandle,
        _offset_in: u64,
        _ino_out: INodeNo,
        _fh_out: FileHandle,
        _offset_out: u64,
        _len: u64,
        _flags: CopyFileRangeFlags,
        reply: ReplyWrite,
    ) {
        reply.error(Errno::ENOSYS);
    }

    fn poll(
        &self,
        _req: &Request,
        _ino: INodeNo,
        _fh: FileHandle,
        _notifier: PollNotifier,
        _events: PollEvents,
        _flags: PollFlags,
        reply: ReplyPoll,
    ) {
        reply.error(Errno::ENOSYS);
    }

    fn ioctl(
        &self,
        _req: &Request,
        _ino: INodeNo,
        _fh: FileHandle,
        _flags: IoctlFlags,
        _cmd: u32,
        _in_data: &[u8],
        _out_size: u32,
        reply: ReplyIoctl,
    ) {
        reply.error(Errno::ENOSYS);
    }
}
