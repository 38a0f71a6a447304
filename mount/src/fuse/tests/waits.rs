//! Requests that have to wait: others go on meanwhile, and every wait ends.

use super::*;
use std::thread;

/// While one directory is not at hand, more requests for it than there are threads hold up nothing else; all
/// are answered once it is there.
#[test]
fn a_wait_holds_up_nobody_else() {
    let Some(w) = World::new("a_wait_holds_up_nobody_else") else { return };
    let far = w.volume.put_dir(ROOT, "far");
    w.volume.put(far, "a", b"far away");
    w.volume.put(ROOT, "near", b"here");
    w.volume.hide(far);
    thread::scope(|scope| {
        let looking: Vec<_> = (0..16)
            .map(|i| {
                let path = w.path(&format!("far/{}", if i % 2 == 0 { "a" } else { "missing" }));
                scope.spawn(move || path.exists())
            })
            .collect();
        eventually("lookups are on their way", || w.count("lookup") > 2);
        fs::write(w.path("new"), b"1").unwrap();
        assert_eq!(fs::read(w.path("near")).unwrap(), b"here");
        assert!(looking.iter().all(|thread| !thread.is_finished()));
        w.volume.show();
        let seen: Vec<_> = looking.into_iter().map(|thread| thread.join().unwrap()).collect();
        assert!(seen.iter().enumerate().all(|(i, seen)| *seen == (i % 2 == 0)));
    });
}

/// The fence waits for a lookup that is in flight in the directory, so that its reply, which may carry old
/// attributes, is taken in before the node is forgotten; other directories are told meanwhile.
#[test]
fn the_fence_waits_for_lookups_in_flight() {
    let Some(w) = World::new("the_fence_waits_for_lookups_in_flight") else { return };
    // Directories share threads by their ids; this one has another than the root.
    w.volume.put_dir(ROOT, "filler");
    let far = w.volume.put_dir(ROOT, "far");
    assert_ne!(far.0 % 4, ROOT.0 % 4);
    let id = w.volume.put(far, "a", b"old");
    let near = w.volume.put(ROOT, "near", b"old");
    assert_eq!(fs::read(w.path("near")).unwrap(), b"old");
    assert!(w.path("far").exists());
    w.volume.hide(far);
    thread::scope(|scope| {
        let looks = w.count("lookup");
        let path = w.path("far/a");
        let looking = scope.spawn(move || fs::read(path));
        eventually("the lookup is on its way", || w.count("lookup") > looks);
        let tell = |id, dir| w.teller.tell(vec![Tell::Node { id, parents: vec![dir], content: true }]);
        w.runtime.block_on(async {
            let mut told = tell(id, far);
            let early = tokio::time::timeout(Duration::from_millis(50), &mut told).await;
            assert!(early.is_err(), "the fence did not wait");
            w.volume.replace(near, b"new");
            tell(near, ROOT).await;
            w.volume.show();
            told.await;
        });
        looking.join().unwrap().unwrap();
        assert_eq!(fs::read(w.path("near")).unwrap(), b"new");
    });
}

/// A read whose blocks are fetched and a write that waits for room are answered when it is there, and the
/// write is done once.
#[test]
fn reads_and_writes_wait_too() {
    let Some(w) = World::new("reads_and_writes_wait_too") else { return };
    let (from, to) = (w.volume.put(ROOT, "from", b"bytes"), w.volume.put(ROOT, "to", b"some"));
    w.volume.hide(from);
    w.volume.hide(to);
    thread::scope(|scope| {
        let path = w.path("from");
        let reading = scope.spawn(move || fs::read(path));
        let path = w.path("to");
        let writing = scope
            .spawn(move || io::Write::write_all(&mut fs::File::options().append(true).open(path)?, b" more"));
        eventually("both are on their way", || w.count("read") > 0 && w.count("write") > 0);
        assert!(!reading.is_finished() && !writing.is_finished());
        w.volume.show();
        assert_eq!(reading.join().unwrap().unwrap(), b"bytes");
        writing.join().unwrap().unwrap();
    });
    assert_eq!(w.volume.bytes(to), b"some more");
}

/// What does not come within the deadline fails, for lookups, listings and reads, and the mount goes on.
#[test]
fn every_wait_ends() {
    let Some(w) = World::waiting_at_most("every_wait_ends", Duration::from_millis(100)) else { return };
    let far = w.volume.put_dir(ROOT, "far");
    let id = w.volume.put(ROOT, "a", b"bytes");
    w.volume.hide(far);
    w.volume.hide(id);
    assert_eq!(errno(fs::metadata(w.path("far/a"))), libc::ETIMEDOUT);
    assert_eq!(errno(fs::read_dir(w.path("far")).unwrap().next().unwrap()), libc::ETIMEDOUT);
    assert!(fs::read(w.path("a")).is_err());
    w.volume.show();
    assert_eq!(listed(&w.path("far")), Vec::<String>::new());
    assert_eq!(fs::read(w.path("a")).unwrap(), b"bytes");
}
