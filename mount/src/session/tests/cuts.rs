//! What a cut carries, and what stays.

use super::desk::{Desk, Server, block, name};
use crate::volume::{RenameMode, SetAttr, Tell};
use std::time::Duration;
use tidefs_timeline::{Content, FileMap, NodeId, Source, Version};

fn sources(content: &Content) -> Vec<(u64, u64, Source)> {
    let Content::File(file) = content else { panic!("a file") };
    let FileMap::Extents(map) = &file.map else { panic!("a list") };
    map.iter().map(|(at, piece)| (at, piece.len, piece.source)).collect()
}

/// What was made and undone within a batch never ships, and uses up no number.
#[test]
fn made_and_undone_never_ships() {
    let mut desk = Desk::new(1);
    let id = desk.create("f");
    desk.write(id, 0, b"bytes");
    desk.mkdir("d");
    desk.rename("f", "d/g", RenameMode::Replace).unwrap();
    desk.unlink("d/g");
    desk.remove("d", true).unwrap();
    let job = desk.cut().unwrap();
    assert_eq!(job.log_start, desk.end, "the log before the cut is free");
    assert!(job.checkpoint.is_none());
    // Node ids are used up.
    assert_eq!(desk.session.next_counter(), 3);
}

/// A batch in which nothing is different in the end is no checkpoint, and uses up no number.
#[test]
fn nothing_different_is_no_checkpoint() {
    let mut desk = Desk::new(1);
    desk.now = 0;
    desk.create("f");
    desk.now = 0;
    desk.unlink("f");
    let job = desk.cut().unwrap();
    assert!(job.checkpoint.is_none());
    assert_eq!(job.log_start, desk.end);
    assert_eq!((desk.session.layers().len(), desk.session.open_changes()), (0, 0));
    assert_eq!((desk.session.open_number().0, desk.session.next_counter()), (1, 2));
}

/// What was made and undone moved the times of its directory; the cut takes them back and the kernel is told.
#[test]
fn times_taken_back_are_told() {
    let mut desk = Desk::new(1);
    desk.mkdir("d");
    desk.ship();
    let dir = desk.id("d");
    desk.session.count_lookup(dir);
    let before = desk.shown();
    desk.now += 10;
    desk.create("d/f");
    desk.now += 10;
    desk.unlink("d/f");
    let job = desk.cut().unwrap();
    assert!(job.checkpoint.is_none());
    assert_eq!(desk.shown(), before);
    assert!(job.tells.iter().any(|tell| matches!(tell, Tell::Node { id, .. } if *id == dir)), "{job:?}");
}

/// A save through a temporary name ships as one new file at the final name, and the old node as lost.
#[test]
fn a_save_ships_as_one_change() {
    let mut desk = Desk::new(1);
    let mut server = Server::new();
    let old = desk.create("f");
    server.place(&desk.ship());
    desk.follow(&server);
    let new = desk.create("f.tmp");
    desk.write(new, 0, b"new");
    desk.rename("f.tmp", "f", RenameMode::Replace).unwrap();
    let checkpoint = desk.ship();
    let entries: Vec<_> = checkpoint.entries.iter().map(|e| (e.name.clone(), e.old, e.new)).collect();
    assert_eq!(entries, [(name("f"), Some(old), Some(new))]);
    assert_eq!(checkpoint.nodes.iter().map(|node| (node.id, node.born)).collect::<Vec<_>>(), [(new, true)]);
    assert_eq!(checkpoint.lost.iter().map(|lost| lost.id).collect::<Vec<_>>(), [old]);
}

/// A partial cut ships a prefix; what lies behind it goes on in the next batch, on top of what was cut.
#[test]
fn a_partial_cut_leaves_the_rest() {
    let mut desk = Desk::new(1);
    desk.mkdir("d");
    let done = desk.create("d/done");
    desk.write(done, 0, b"done");
    desk.now += 950;
    desk.pid = 8;
    desk.mkdir("d/e");
    let half = desk.create("d/e/half");
    desk.pid = 9;
    desk.write(done, 4, b" more");
    let shown = desk.shown();
    desk.now = 2010;
    let job = desk.session.cut(desk.moment(), desk.end, false).unwrap().unwrap();
    let checkpoint = job.checkpoint.clone().unwrap();
    let names: Vec<_> = checkpoint.entries.iter().map(|entry| entry.name.clone()).collect();
    assert_eq!(names, ["d", "done", "e"].map(name));
    assert_eq!(desk.session.open_changes(), 2);
    assert_eq!(job.log_start, desk.log[desk.log.len() - 2].start);
    assert_eq!(checkpoint.node(done).unwrap().node.content.value.size(), 4);
    assert_eq!(desk.shown(), shown, "a cut changes nothing that is shown");
    assert_eq!(job.context, desk.session.batch.before);
    let spot = job.context.spots.get(&desk.id("d/e")).cloned().flatten();
    assert_eq!(spot.map(|spot| spot.parent), Some(desk.id("d")), "the way up is in the context");
    desk.seal(&job);
    let rest = desk.ship();
    assert_eq!(rest.entries.iter().map(|entry| entry.new).collect::<Vec<_>>(), [Some(half)]);
    let change = rest.node(done).unwrap();
    assert_eq!((change.born, change.changed.content), (false, Some(None)), "an own version is no base");
}

/// Sealing moves bytes from the log to blocks everywhere they are shown: in the layer, in the batch above it.
#[test]
fn sealing_leaves_nothing_in_the_log() {
    let mut desk = Desk::new(1);
    let id = desk.create("f");
    desk.write(id, 0, b"0123456789");
    let first = desk.log.last().unwrap().data;
    let job = desk.cut().unwrap();
    // Before the sealer is done the file is changed again, on top of bytes that still lie in the log.
    desk.write(id, 2, b"ab");
    let second = desk.log.last().unwrap().data;
    let sent = desk.seal(&job).unwrap();
    assert_eq!(
        sources(&sent.node(id).unwrap().node.content.value),
        [(0, 10, Source::Block { hash: block(first), offset: 0 })]
    );
    let part = |offset| Source::Block { hash: block(first), offset };
    let now = sources(&desk.session.view().node(id).unwrap().content.value);
    assert_eq!(now, [(0, 2, part(0)), (2, 2, Source::Local(second)), (4, 6, part(4))]);
    let sent = desk.ship();
    let new = Source::Block { hash: block(second), offset: 0 };
    assert_eq!(
        sources(&sent.node(id).unwrap().node.content.value),
        [(0, 2, part(0)), (2, 2, new), (4, 6, part(4))]
    );
}

/// A cut may be made once the one before is sealed, while fewer than the limit are unanswered; one that is asked
/// for does not wait for answers.
#[test]
fn cuts_wait_their_turn() {
    let mut desk = Desk::new(1);
    assert!(!desk.session.may_cut(1));
    desk.create("a");
    assert!(desk.session.may_cut(1));
    let job = desk.cut().unwrap();
    desk.create("b");
    assert!(!desk.session.may_cut(4), "the cut before is not sealed");
    desk.seal(&job);
    assert!(desk.session.may_cut(4));
    assert!(!desk.session.may_cut(1), "one is unanswered");
    desk.session.ask_cut();
    assert!(desk.session.may_cut(1));
}

/// Bases are the versions of other sessions that were shown; own versions are none. Registers that end as they
/// began do not ship.
#[test]
fn bases_are_foreign_versions() {
    let (mut a, mut b, mut server) = (Desk::new(1), Desk::new(2), Server::new());
    let id = a.create("f");
    server.place(&a.ship());
    let theirs = Version { session: a.version().session, number: tidefs_timeline::CheckpointNo(1) };
    b.follow(&server);
    b.chmod(id, 0o600);
    b.chmod(id, 0o644);
    b.write(id, 0, b"b");
    let sent = b.ship();
    let changed = &sent.node(id).unwrap().changed;
    assert_eq!((changed.content, changed.owner), (Some(Some(theirs)), None));
    b.write(id, 0, b"c");
    b.chmod(id, 0o600);
    let sent = b.ship();
    let changed = &sent.node(id).unwrap().changed;
    assert_eq!((changed.content, changed.owner), (Some(None), Some(Some(theirs))));
}

/// Writing takes set-id bits away, and that ships.
#[test]
fn writing_clears_set_id() {
    let mut desk = Desk::new(1);
    let id = desk.create("f");
    desk.chmod(id, 0o6755);
    desk.ship();
    desk.set(id, SetAttr { size: Some(3), kill_set_id: true, ..SetAttr::default() });
    assert_eq!(desk.session.view().node(id).unwrap().owner.value.mode, 0o755);
    let sent = desk.ship();
    assert!(sent.node(id).unwrap().changed.owner.is_some());
    assert_eq!(sent.node(id).unwrap().node.owner.value.mode, 0o755);
}

/// An fsync says "saved" of a file that had its name at the last cut, not of one made since or renamed here.
#[test]
fn fsync_says_saved_of_what_was_there() {
    let wait = |desk: &Desk| desk.session.due().unwrap() - Duration::from_millis(desk.now);
    let mut desk = Desk::new(1);
    let id = desk.create("f");
    desk.session.synced(id, desk.moment());
    assert!(wait(&desk) > Duration::from_millis(900));
    desk.ship();
    desk.now += 5000;
    desk.write(id, 0, b"x");
    desk.session.synced(id, desk.moment());
    assert_eq!(wait(&desk), Duration::from_millis(100));
    assert_ne!(id, NodeId::ROOT);
}
