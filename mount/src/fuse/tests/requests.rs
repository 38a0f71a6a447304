//! Each request is decoded as it was meant.

use super::*;
use rustix::fs::{
    AtFlags, CWD, Gid, RenameFlags, Timespec, Timestamps, Uid, XattrFlags, chownat, mknodat, renameat_with,
    utimensat,
};
use std::os::unix::fs::{DirBuilderExt, FileTypeExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use tidefs_timeline::Kind;

/// Mode, owner, size and times are set field by field; times before 1970 come through with their nanoseconds.
#[test]
fn attributes_are_set_field_by_field() {
    let Some(w) = World::new("attributes_are_set_field_by_field") else { return };
    let id = w.volume.put(ROOT, "a", b"12345");
    let path = w.path("a");
    fs::set_permissions(&path, fs::Permissions::from_mode(0o4755)).unwrap();
    assert_eq!(w.volume.node(id).unwrap().owner.value.mode, 0o4755);
    fs::File::options().write(true).open(&path).unwrap().set_len(3).unwrap();
    assert_eq!(w.volume.bytes(id), b"123");
    chownat(CWD, &path, Some(Uid::from_raw(7)), Some(Gid::from_raw(8)), AtFlags::empty()).unwrap();
    let owner = w.volume.node(id).unwrap().owner.value;
    assert_eq!((owner.uid, owner.gid, owner.mode), (7, 8, 0o755), "a change of owner clears set-id bits");

    let omit = Timespec { tv_sec: 0, tv_nsec: rustix::fs::UTIME_OMIT };
    for (sec, nsec) in [(-2, 800_000_000), (-1, 1), (0, 5), (1_700_000_000, 123_456_789), (-86_400, 0)] {
        let at = Timespec { tv_sec: sec, tv_nsec: nsec };
        let times = Timestamps { last_access: omit, last_modification: at };
        utimensat(CWD, &path, &times, AtFlags::empty()).unwrap();
        let mtime = w.volume.node(id).unwrap().times.value.mtime;
        assert_eq!((mtime.seconds, i64::from(mtime.nanos)), (sec, nsec));
        w.tell_node(id, false);
        let seen = fs::metadata(&path).unwrap();
        assert_eq!((seen.mtime(), seen.mtime_nsec()), (sec, nsec));
        assert_eq!((seen.atime(), seen.atime_nsec()), (sec, nsec), "atime is not kept, mtime stands for it");
    }
    let before = w.volume.node(id).unwrap();
    let times = Timestamps { last_access: Timespec { tv_sec: 9, tv_nsec: 0 }, last_modification: omit };
    utimensat(CWD, &path, &times, AtFlags::empty()).unwrap();
    assert_eq!(w.volume.node(id).unwrap(), before, "setting atime changes nothing");
}

/// O_TRUNC of an existing file reaches the volume although no open does.
#[test]
fn truncation_by_open_is_not_lost() {
    let Some(w) = World::new("truncation_by_open_is_not_lost") else { return };
    let id = w.volume.put(ROOT, "a", b"a long old content");
    fs::write(w.path("a"), b"new").unwrap();
    assert_eq!(w.volume.bytes(id), b"new");
}

/// Every kind is made with its mode, the umask applied once, and shown with what `stat` promises.
#[test]
fn every_kind_is_made_and_shown() {
    let Some(w) = World::new("every_kind_is_made_and_shown") else { return };
    fs::DirBuilder::new().mode(0o1777).create(w.path("dir")).unwrap();
    let umask = rustix::process::umask(rustix::fs::Mode::from_raw_mode(0o022));
    rustix::process::umask(umask);
    let masked = 0o777 & !umask.as_raw_mode();
    assert_eq!(fs::metadata(w.path("dir")).unwrap().mode() & 0o777, masked);
    fs::File::options().mode(0o777).write(true).create_new(true).open(w.path("file")).unwrap();
    assert_eq!(fs::metadata(w.path("file")).unwrap().mode() & 0o777, masked);
    std::os::unix::fs::symlink("../some where", w.path("link")).unwrap();
    assert_eq!(fs::read_link(w.path("link")).unwrap(), Path::new("../some where"));

    let mode = rustix::fs::Mode::from_raw_mode(0o600);
    mknodat(CWD, w.path("fifo"), rustix::fs::FileType::Fifo, mode, 0).unwrap();
    assert!(fs::metadata(w.path("fifo")).unwrap().file_type().is_fifo());
    if rustix::process::geteuid().is_root() {
        let number = rustix::fs::makedev(1, 3);
        mknodat(CWD, w.path("null"), rustix::fs::FileType::CharacterDevice, mode, number).unwrap();
        let seen = fs::metadata(w.path("null")).unwrap();
        assert!(seen.file_type().is_char_device());
        assert_eq!(seen.rdev(), number);
        let node = w.volume.node(NodeId(seen.ino())).unwrap();
        assert!(matches!(node.kind, Kind::CharDevice(_)));
    }
    fs::write(w.path("file"), vec![7; 1000]).unwrap();
    fs::hard_link(w.path("file"), w.path("other")).unwrap();
    let seen = fs::metadata(w.path("other")).unwrap();
    assert_eq!((seen.size(), seen.blocks(), seen.nlink(), seen.blksize()), (1000, 2, 2, 64 << 10));
    assert_eq!(errno(fs::write(w.path(&"n".repeat(256)), b"")), libc::ENAMETOOLONG);
    assert_eq!(errno(fs::metadata(w.path(&"n".repeat(256)))), libc::ENAMETOOLONG);
}

/// Plain rename replaces, NOREPLACE refuses, EXCHANGE swaps; removals remove.
#[test]
fn names_are_moved_and_removed() {
    let Some(w) = World::new("names_are_moved_and_removed") else { return };
    for name in ["a", "b", "c"] {
        fs::write(w.path(name), name).unwrap();
    }
    let rename = |from: &str, to: &str, flags| renameat_with(CWD, w.path(from), CWD, w.path(to), flags);
    assert_eq!(rename("a", "b", RenameFlags::NOREPLACE), Err(rustix::io::Errno::EXIST));
    rename("a", "b", RenameFlags::EXCHANGE).unwrap();
    assert_eq!(
        (fs::read(w.path("a")).unwrap(), fs::read(w.path("b")).unwrap()),
        (b"b".to_vec(), b"a".to_vec())
    );
    assert!(rename("a", "b", RenameFlags::WHITEOUT).is_err());
    fs::rename(w.path("a"), w.path("c")).unwrap();
    assert_eq!(
        (listed(w.dir.path()), fs::read(w.path("c")).unwrap()),
        (vec!["b".into(), "c".into()], b"b".to_vec())
    );
    let held = fs::File::open(w.path("b")).unwrap();
    fs::remove_file(w.path("b")).unwrap();
    let mut bytes = [0];
    std::os::unix::fs::FileExt::read_exact_at(&held, &mut bytes, 0).unwrap();
    assert_eq!(&bytes, b"a", "an open file outlives its name");
    fs::create_dir(w.path("d")).unwrap();
    fs::write(w.path("d/x"), b"").unwrap();
    assert_eq!(errno(fs::remove_dir(w.path("d"))), libc::ENOTEMPTY);
    fs::remove_file(w.path("d/x")).unwrap();
    fs::remove_dir(w.path("d")).unwrap();
    assert_eq!(listed(w.dir.path()), ["c"]);
}

/// A name that came into being elsewhere while the kernel still holds it for missing: without O_EXCL it is
/// opened and O_TRUNC heeded, with O_EXCL the answer is EEXIST.
#[test]
fn creating_what_exists_by_now_opens_it() {
    let Some(w) = World::new("creating_what_exists_by_now_opens_it") else { return };
    assert!(!w.path("a").exists() && !w.path("b").exists());
    let (a, b) = (w.volume.put(ROOT, "a", b"there"), w.volume.put(ROOT, "b", b"there"));
    let open = |name: &str| fs::File::options().write(true).create(true).truncate(false).open(w.path(name));
    open("a").unwrap();
    assert_eq!(w.volume.bytes(a), b"there");
    assert_eq!(errno(fs::File::create_new(w.path("b"))), libc::EEXIST);
    w.tell_entry("b");
    assert_eq!(w.volume.bytes(b), b"there");
    assert!(!w.path("c").exists());
    let c = w.volume.put(ROOT, "c", b"a long old content");
    fs::write(w.path("c"), b"new").unwrap();
    assert_eq!(w.volume.bytes(c), b"new");
}

/// Attributes: length by size 0, ERANGE when too small, create and replace, absent ones, listing; access lists
/// are refused rather than kept without effect.
#[test]
fn extended_attributes_follow_their_rules() {
    let Some(w) = World::new("extended_attributes_follow_their_rules") else { return };
    w.volume.put(ROOT, "a", b"");
    let path = w.path("a");
    let set = |name: &str, value: &[u8], flags| rustix::fs::setxattr(&path, name, value, flags);
    let get = |name: &str, room: usize| {
        let mut value = vec![0; room];
        rustix::fs::getxattr(&path, name, value.as_mut_slice()).map(|len| value[..len.min(room)].to_vec())
    };
    use rustix::io::Errno;
    set("user.one", b"value", XattrFlags::empty()).unwrap();
    assert_eq!(get("user.one", 64).unwrap(), b"value");
    assert_eq!(get("user.one", 2), Err(Errno::RANGE));
    assert_eq!(value_len(&path, c"user.one"), 5);
    assert_eq!(set("user.one", b"", XattrFlags::CREATE), Err(Errno::EXIST));
    assert_eq!(set("user.two", b"", XattrFlags::REPLACE), Err(Errno::NODATA));
    assert_eq!(get("user.two", 9), Err(Errno::NODATA));
    let mut names = [0; 64];
    let len = rustix::fs::listxattr(&path, &mut names).unwrap();
    assert_eq!(&names[..len], b"user.one\0");
    rustix::fs::removexattr(&path, "user.one").unwrap();
    assert_eq!(rustix::fs::removexattr(&path, "user.one"), Err(Errno::NODATA));
    let list = [
        2, 0, 0, 0, 1, 0, 6, 0, 255, 255, 255, 255, 4, 0, 4, 0, 255, 255, 255, 255, 32, 0, 4, 0, 255, 255,
        255, 255,
    ];
    assert_eq!(set("system.posix_acl_access", &list, XattrFlags::empty()), Err(Errno::OPNOTSUPP));
}

/// What is not served is refused or done by the kernel, never done in silence: allocation is refused, holes
/// are not seen, copying copies, locks work within the mount, `statfs` tells.
#[test]
fn what_is_not_served_is_refused() {
    let Some(w) = World::new("what_is_not_served_is_refused") else { return };
    fs::write(w.path("a"), b"some bytes").unwrap();
    let a = fs::File::options().read(true).write(true).open(w.path("a")).unwrap();
    let refused = rustix::fs::fallocate(&a, rustix::fs::FallocateFlags::empty(), 0, 100);
    assert_eq!(refused, Err(rustix::io::Errno::OPNOTSUPP));
    assert_eq!(a.metadata().unwrap().size(), 10);
    assert_eq!(rustix::fs::seek(&a, rustix::fs::SeekFrom::Data(2)), Ok(2));
    fs::copy(w.path("a"), w.path("b")).unwrap();
    assert_eq!(fs::read(w.path("b")).unwrap(), b"some bytes");
    let again = fs::File::open(w.path("a")).unwrap();
    a.lock().unwrap();
    assert!(again.try_lock().is_err());
    a.sync_all().unwrap();
    fs::File::open(w.dir.path()).unwrap().sync_all().unwrap();
    assert_eq!((w.count("fsync"), w.count("fsyncdir")), (1, 1));
    let space = rustix::fs::statvfs(w.dir.path()).unwrap();
    assert_eq!((space.f_blocks * space.f_frsize, space.f_bfree * space.f_frsize), (1 << 30, 1 << 29));
    assert_eq!(space.f_namemax, 255);
}

/// The length of an attribute's value, asked for with a size of 0 (which rustix does not pass on).
#[allow(unsafe_code)]
fn value_len(path: &Path, name: &std::ffi::CStr) -> isize {
    let path = std::ffi::CString::new(path.as_os_str().as_encoded_bytes()).unwrap();
    // SAFETY: both strings end with a zero; nothing is written where the size is 0.
    unsafe { libc::getxattr(path.as_ptr(), name.as_ptr(), std::ptr::null_mut(), 0) }
}
