//! What the kernel remembers, and that it forgets it when told.

use super::*;
use std::{
    io::{Read, Seek, Write},
    os::{
        fd::AsRawFd,
        unix::fs::{FileExt, MetadataExt},
    },
};

/// A warm stat, read, listing, symlink and missing name cost no request, and opening costs none at all.
#[test]
fn warm_looks_cost_nothing() {
    let Some(w) = World::new("warm_looks_cost_nothing") else { return };
    w.volume.put(ROOT, "a", b"bytes");
    let sub = w.volume.put_dir(ROOT, "sub");
    w.volume.put(sub, "b", b"deep");
    std::os::unix::fs::symlink("a", w.path("link")).unwrap();
    assert_eq!(w.warm(|| fs::metadata(w.path("a")).unwrap().size()), 5);
    assert_eq!(w.warm(|| fs::read(w.path("a")).unwrap()), b"bytes");
    assert_eq!(w.warm(|| fs::read(w.path("sub/b")).unwrap()), b"deep");
    assert_eq!(w.warm(|| listed(w.dir.path())), ["a", "link", "sub"]);
    assert_eq!(w.warm(|| fs::read_link(w.path("link")).unwrap()), Path::new("a"));
    assert!(!w.warm(|| w.path("missing").exists()));
    assert!(!w.warm(|| w.path("sub/missing").exists()));
}

/// One OPEN, one OPENDIR and at most one FLUSH ever come, before the mount is announced; no RELEASE, also
/// after a CREATE.
#[test]
fn nothing_is_opened_or_closed() {
    let Some(w) = World::new("nothing_is_opened_or_closed") else { return };
    let before = w.volume.counts();
    assert_eq!((w.count("open"), w.count("opendir")), (1, 1));
    assert!(w.count("flush") <= 1);
    let mut file = fs::File::create(w.path("new")).unwrap();
    file.write_all(b"x").unwrap();
    drop(file);
    fs::read(w.path("new")).unwrap();
    listed(w.dir.path());
    for never in ["open", "opendir", "flush", "release", "releasedir"] {
        assert_eq!(before.get(never), w.volume.counts().get(never), "{never}");
    }
}

/// Content and size are new after the kernel was told: by name, through a descriptor that was open before,
/// and in a mapping. With attributes alone, no page is read again.
#[test]
fn content_is_forgotten() {
    let Some(w) = World::new("content_is_forgotten") else { return };
    let id = w.volume.put(ROOT, "a", b"first");
    let mut file = fs::File::open(w.path("a")).unwrap();
    let mut seen = String::new();
    file.read_to_string(&mut seen).unwrap();
    let map = Mapping::new(&file, 4096);
    assert_eq!((seen.as_str(), map.byte(0)), ("first", b'f'));

    w.volume.replace(id, b"other");
    assert_eq!(fs::read(w.path("a")).unwrap(), b"first", "nothing was told yet");
    w.tell_node(id, true);
    assert_eq!(map.byte(0), b'o');
    assert_eq!(fs::read(w.path("a")).unwrap(), b"other");

    w.volume.replace(id, b"and a longer one");
    w.tell_node(id, true);
    assert_eq!(file.metadata().unwrap().size(), 16);
    seen.clear();
    file.rewind().unwrap();
    file.read_to_string(&mut seen).unwrap();
    assert_eq!((seen.as_str(), map.byte(15)), ("and a longer one", b'e'));

    let reads = w.count("read");
    w.tell_node(id, false);
    assert_eq!(fs::metadata(w.path("a")).unwrap().size(), 16);
    assert_eq!(fs::read(w.path("a")).unwrap(), b"and a longer one");
    assert_eq!(w.count("read"), reads, "attributes alone must not empty the page cache");
}

/// A missing name appears, a listing grows and shrinks, a name shows its new file.
#[test]
fn names_and_listings_are_forgotten() {
    let Some(w) = World::new("names_and_listings_are_forgotten") else { return };
    w.volume.put(ROOT, "a", b"1");
    assert!(!w.warm(|| w.path("b").exists()));
    assert_eq!(w.warm(|| listed(w.dir.path())), ["a"]);

    w.volume.put(ROOT, "b", b"2");
    assert!(!w.path("b").exists(), "nothing was told yet");
    w.tell_entry("b");
    assert!(w.path("b").exists());
    assert_eq!(w.warm(|| listed(w.dir.path())), ["a", "b"]);

    w.volume.put(ROOT, "a", b"another");
    w.tell_entry("a");
    assert_eq!(fs::read(w.path("a")).unwrap(), b"another");

    w.volume.take(ROOT, "a");
    w.tell_entry("a");
    assert!(!w.path("a").exists());
    assert_eq!(listed(w.dir.path()), ["b"]);

    // A name that was never looked up: only the directory's own notification empties the listing.
    w.volume.put(ROOT, "c", b"3");
    w.tell_entry("c");
    assert_eq!(listed(w.dir.path()), ["b", "c"]);
}

/// The fence does not disturb: no listing is read again, no working directory is lost, the name is never there
/// and cannot be made.
#[test]
fn the_fence_costs_nothing() {
    let Some(w) = World::new("the_fence_costs_nothing") else { return };
    let id = w.volume.put(ROOT, "a", b"1");
    w.warm(|| listed(w.dir.path()));
    let lists = w.count("readdirplus") + w.count("readdir");
    w.tell_node(id, true);
    assert_eq!(listed(w.dir.path()), ["a"]);
    assert_eq!(w.count("readdirplus") + w.count("readdir"), lists);

    let fence = w.path(".tidefs-fence");
    assert_eq!(errno(fs::metadata(&fence)), libc::ENOENT);
    assert_eq!(errno(fs::write(&fence, b"")), libc::EPERM);
    assert_eq!(errno(fs::create_dir(&fence)), libc::EPERM);
    assert_eq!(errno(fs::rename(w.path("a"), &fence)), libc::EPERM);
}

/// A write through an O_APPEND descriptor says so, and lands behind what came from elsewhere although the
/// kernel's size is old. A store to a shared mapping comes from the cache and never claims to append.
#[test]
fn writes_say_what_they_are() {
    let Some(w) = World::new("writes_say_what_they_are") else { return };
    let id = w.volume.put(ROOT, "log", b"one.");
    let mut log = fs::File::options().append(true).read(true).open(w.path("log")).unwrap();
    assert_eq!(log.metadata().unwrap().size(), 4);
    w.volume.replace(id, b"one.two.");
    log.write_all(b"three.").unwrap();
    assert_eq!(w.volume.bytes(id), b"one.two.three.");
    let last = *w.volume.writes().last().unwrap();
    assert!(last.append && !last.from_cache, "{last:?}");

    let file = fs::File::options().read(true).write(true).open(w.path("log")).unwrap();
    file.write_all_at(b"X", 0).unwrap();
    let last = *w.volume.writes().last().unwrap();
    assert_eq!((last.offset, last.append, last.from_cache), (0, false, false));
    let mut map = Mapping::new(&file, 4096);
    map.set(1, b'Y');
    map.sync();
    let last = *w.volume.writes().last().unwrap();
    assert!(!last.append && last.from_cache, "{last:?}");
    assert_eq!(&w.volume.bytes(id)[..2], b"XY");
}

/// Every lookup counted for a listing is given back once the kernel forgets the names, so nothing is kept for
/// ever: what did not fit in a page must not stay counted. And long listings come whole, each name once.
#[test]
fn long_listings_are_whole_and_given_back() {
    let Some(w) = World::new("long_listings_are_whole_and_given_back") else { return };
    let names: Vec<_> = (0..700).map(|i| format!("name-{i:04}-{}", "x".repeat(i % 90))).collect();
    let ids: Vec<_> = names.iter().map(|name| w.volume.put(ROOT, name, b"")).collect();
    let mut expected = names.clone();
    expected.sort();
    assert_eq!(listed(w.dir.path()), expected);
    assert!(ids.iter().all(|id| w.volume.lookups(*id) >= 1));
    assert_eq!(w.count("lookup"), 0, "a listing carries the attributes");
    w.tell(names.iter().map(|name| entry(ROOT, name)).collect());
    eventually("all lookups given back", || ids.iter().all(|id| w.volume.lookups(*id) == 0));
}

/// A shared mapping of a file's first bytes.
struct Mapping(*mut u8, usize);

#[allow(unsafe_code)]
impl Mapping {
    fn new(file: &fs::File, len: usize) -> Self {
        let writable = (rustix::fs::fcntl_getfl(file).unwrap() & rustix::fs::OFlags::ACCMODE)
            == rustix::fs::OFlags::RDWR;
        let protection = if writable { libc::PROT_READ | libc::PROT_WRITE } else { libc::PROT_READ };
        // SAFETY: a new mapping at an address of the kernel's choice.
        let at = unsafe {
            libc::mmap(std::ptr::null_mut(), len, protection, libc::MAP_SHARED, file.as_raw_fd(), 0)
        };
        assert_ne!(at, libc::MAP_FAILED);
        Self(at.cast(), len)
    }

    fn byte(&self, at: usize) -> u8 {
        assert!(at < self.1);
        // SAFETY: within the mapping; volatile, because the kernel changes it.
        unsafe { self.0.add(at).read_volatile() }
    }

    fn set(&mut self, at: usize, byte: u8) {
        assert!(at < self.1);
        // SAFETY: within the mapping.
        unsafe { self.0.add(at).write_volatile(byte) }
    }

    fn sync(&self) {
        // SAFETY: exactly the mapping.
        assert_eq!(unsafe { libc::msync(self.0.cast(), self.1, libc::MS_SYNC) }, 0);
    }
}

#[allow(unsafe_code)]
impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: exactly the mapping, which nothing uses any more.
        unsafe { libc::munmap(self.0.cast(), self.1) };
    }
}
