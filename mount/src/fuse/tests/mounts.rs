//! Mounting, unmounting, what is negotiated, and the end of it all.

use super::*;
use crate::fuse::{
    MountError, UnmountError, abort_on_panic,
    init::{REFUSED, WANTED, wanted},
    mountinfo::mounted_at,
    mounting::FSTYPE,
    selftest, unmount,
};
use fuser::InitFlags;
use std::{os::unix::process::ExitStatusExt, process::Command};

fn door(runtime: &Runtime) -> Door<Memory> {
    Door::new(Arc::new(Memory::new()), runtime.handle().clone(), Caching::new(true))
}

/// Flags that would let the kernel keep changes to itself are never agreed, whatever it offers.
#[test]
fn dangerous_flags_are_never_asked_for() {
    for trusted in [true, false] {
        let flags = wanted(InitFlags::all(), &Caching::new(trusted));
        assert_eq!(flags & REFUSED, InitFlags::empty());
        assert_eq!(flags.contains(InitFlags::FUSE_AUTO_INVAL_DATA), !trusted);
    }
    let Some(w) = World::new("dangerous_flags_are_never_asked_for") else { return };
    let agreed = w.mounted.shared().agreed();
    assert_eq!(agreed & REFUSED, InitFlags::empty());
    assert!(agreed.contains(WANTED), "this kernel lacks {:?}", WANTED & !agreed);
    let names = w.mounted.shared().flags();
    assert!(names.contains(&"FUSE_DO_READDIRPLUS") && !names.contains(&"FUSE_WRITEBACK_CACHE"));
}

/// What is in the way is named, with its exit code, before anything is mounted; a mount in place is found
/// without looking at it.
#[test]
fn a_place_that_cannot_be_mounted_is_refused() {
    let Some(w) = World::new("a_place_that_cannot_be_mounted_is_refused") else { return };
    let dir = tempfile::tempdir().unwrap();
    fs::create_dir(dir.path().join("full")).unwrap();
    fs::write(dir.path().join("full/file"), b"").unwrap();
    std::os::unix::fs::symlink(w.dir.path(), dir.path().join("link")).unwrap();
    let options = MountOptions::of_drive("test", false);
    let refused = |dir: &Path| match mount_at(dir, &options, door(&w.runtime)) {
        Ok(_) => panic!("{} was mounted", dir.display()),
        Err(error) => error,
    };
    let before = w.requests();
    for (place, code) in [(w.dir.path().to_path_buf(), 8), (dir.path().join("link"), 8)] {
        let error = refused(&place);
        assert!(matches!(&error, MountError::Busy { .. }), "{error}");
        assert!(error.to_string().contains("tidefs:test"));
        assert_eq!(error.exit_code(), code);
    }
    assert_eq!(w.requests(), before, "the mount point was touched");
    for (name, code) in [("none", 3), ("none/deeper", 3), ("full", 8), ("full/file", 2), ("full/file/x", 2)] {
        assert_eq!(refused(&dir.path().join(name)).exit_code(), code, "{name}");
    }
}

/// The mount is listed as `fuse.tidefs` from `tidefs:DRIVE`; while it is in use it is not unmounted, lazily it
/// is; and its end is noticed by the process behind it.
#[test]
fn an_unmount_from_outside_is_noticed() {
    let Some(w) = World::new("an_unmount_from_outside_is_noticed") else { return };
    let line = mounted_at(w.mounted.point()).unwrap().unwrap();
    assert_eq!((line.fstype.as_str(), line.drive()), (FSTYPE, Some("test")));
    let held = fs::File::open(w.dir.path()).unwrap();
    let error = unmount(w.dir.path(), false).unwrap_err();
    assert!(matches!(error, UnmountError::Busy(_)), "{error}");
    assert!(!w.mounted.is_ended());
    drop(held);
    // A file just closed may be in use for a moment yet.
    eventually("unmounted", || unmount(w.dir.path(), false).is_ok());
    let ended = async { tokio::time::timeout(Duration::from_secs(10), w.mounted.ended()).await };
    assert_eq!(w.runtime.block_on(ended), Ok(Ok(())));
    assert!(w.mounted.is_ended());
    assert!(matches!(unmount(w.dir.path(), true), Err(UnmountError::NotMounted(_))));
    // Telling a mount that is gone ends too.
    w.tell_node(ROOT, true);
}

/// Dropping a mount that is in use takes it out of the tree.
#[test]
fn dropping_unmounts() {
    let Some(w) = World::new("dropping_unmounts") else { return };
    let World { mounted, dir, .. } = w;
    let held = fs::File::open(dir.path()).unwrap();
    let (point, ended) = (mounted.point().to_path_buf(), mounted.ended());
    drop(mounted);
    assert_eq!(mounted_at(&point).unwrap(), None);
    drop(held);
    assert_eq!(w.runtime.block_on(ended), Ok(()));
}

/// A read-only mount is refused by the kernel itself.
#[test]
fn read_only_is_read_only() {
    if !can_mount("read_only_is_read_only") {
        return;
    }
    let (runtime, dir) = (Runtime::new().unwrap(), tempfile::tempdir().unwrap());
    let options = MountOptions { read_only: true, ..MountOptions::of_drive("test", true) };
    let mounted = mount_at(dir.path(), &options, door(&runtime)).unwrap();
    assert_eq!(errno(fs::write(dir.path().join("a"), b"")), libc::EROFS);
    mounted.unmount(false).unwrap();
}

/// This kernel passes, and nothing is left behind.
#[test]
fn the_selftest_passes_here() {
    if !can_mount("the_selftest_passes_here") {
        return;
    }
    let (runtime, dir) = (Runtime::new().unwrap(), tempfile::tempdir().unwrap());
    let begun = Instant::now();
    runtime.block_on(selftest::prove(dir.path())).unwrap();
    eprintln!("self-test took {:?}", begun.elapsed());
    assert!(listed(dir.path()).is_empty());
}

/// Where the kernel forgets nothing, the self-test says so and cleans up all the same.
#[test]
fn the_selftest_fails_when_nothing_is_forgotten() {
    struct Deaf;
    impl Teller for Deaf {
        fn tell(&self, _what: Vec<Tell>) -> crate::volume::Waiting<()> {
            Box::pin(std::future::ready(()))
        }
    }
    if !can_mount("the_selftest_fails_when_nothing_is_forgotten") {
        return;
    }
    let (runtime, dir) = (Runtime::new().unwrap(), tempfile::tempdir().unwrap());
    let proven = runtime.block_on(selftest::prove_with(dir.path(), |_| Ok(Arc::new(Deaf))));
    assert!(matches!(proven, Err(selftest::SelftestError::Unproven(_))), "{proven:?}");
    assert!(listed(dir.path()).is_empty());
}

/// Without trust in invalidations, a change that nobody told of is seen after a second by itself.
#[test]
fn without_trust_answers_live_a_second() {
    if !can_mount("without_trust_answers_live_a_second") {
        return;
    }
    let (runtime, dir) = (Runtime::new().unwrap(), tempfile::tempdir().unwrap());
    let volume = Arc::new(Memory::new());
    let id = volume.put(ROOT, "a", b"old");
    let door = Door::new(volume.clone(), runtime.handle().clone(), Caching::new(false));
    let mounted = mount_at(dir.path(), &MountOptions::of_drive("test", false), door).unwrap();
    let path = dir.path().join("a");
    assert_eq!(fs::read(&path).unwrap(), b"old");
    assert_eq!(listed(dir.path()), ["a"]);
    volume.replace(id, b"new");
    volume.put(ROOT, "b", b"");
    eventually("content seen", || {
        fs::metadata(&path).unwrap().len() == 3 && fs::read(&path).unwrap() == b"new"
    });
    eventually("name seen", || dir.path().join("b").exists());
    mounted.unmount(true).unwrap();
}

/// After a panic anywhere the process is gone, having said why. Runs itself as a child, which panics.
#[test]
fn a_panic_ends_the_process() {
    const CHILD: &str = "TIDEFS_TEST_PANICS";
    if std::env::var_os(CHILD).is_some() {
        abort_on_panic();
        let _ = std::thread::spawn(|| panic!("on purpose")).join();
        return;
    }
    let test = "fuse::tests::mounts::a_panic_ends_the_process";
    let mut child = Command::new(std::env::current_exe().unwrap());
    let output = child.args(["--exact", test, "--nocapture"]).env(CHILD, "1").output().unwrap();
    assert_eq!(output.status.signal(), Some(libc::SIGABRT), "{output:?}");
    assert!(String::from_utf8_lossy(&output.stderr).contains("on purpose"));
}
