//! When a cut is due, and where it is made.

use crate::session::settle::{
    BATCH_BYTES_MAX, BATCH_CHANGES_MAX, Change, Event, SettleConfig, Settler, Tick,
};
use std::time::Duration;
use tidefs_timeline::NodeId;

fn ms(ms: u64) -> Tick {
    Duration::from_millis(ms)
}

fn settler() -> Settler {
    Settler::new(SettleConfig::default())
}

/// A change by thread `node` at `at` milliseconds.
fn change(at: u64, node: u64, event: Event) -> Change {
    let node = NodeId(node);
    Change { now: ms(at), pid: node.0 as u32, node, event, signal: false, bytes: 1, replaced: None }
}

fn other(at: u64, node: u64) -> Change {
    change(at, node, Event::Other)
}

/// Nothing is due while nothing changed; then a second after the last change.
#[test]
fn quiet() {
    let mut settler = settler();
    assert_eq!(settler.due(), None);
    settler.changed(other(0, 1));
    settler.changed(other(400, 1));
    assert_eq!(settler.due(), Some(ms(1400)));
    assert_eq!(settler.cut_point(ms(1400)), 2);
    settler.cut(ms(1400), &[]);
    assert_eq!(settler.due(), None);
}

/// A path that is quiet is due though another stays busy.
#[test]
fn quiet_beside_busy() {
    let mut settler = settler();
    settler.changed(other(0, 1));
    (1..10).for_each(|i| settler.changed(other(i * 100, 2)));
    assert_eq!(settler.due(), Some(ms(1000)));
}

/// No change waits longer than `max_delay`, however busy its path.
#[test]
fn max_delay() {
    let mut settler = settler();
    for at in (0..5000).step_by(500) {
        settler.changed(other(at, 1));
        assert!(settler.due() <= Some(ms(5000)));
    }
    assert_eq!(settler.due(), Some(ms(5000)));
}

/// "Saved" shortens the wait: a rename over a file, and an fsync of what had a name at the last cut.
#[test]
fn signals() {
    let mut renamed = settler();
    renamed.changed(Change { signal: true, ..change(300, 2, Event::Placed) });
    assert_eq!(renamed.due(), Some(ms(400)));
    // The path stays saved: what follows at once is part of it.
    renamed.changed(other(350, 2));
    assert_eq!(renamed.due(), Some(ms(450)));
    let mut synced = settler();
    synced.changed(other(0, 1));
    synced.synced(NodeId(1), ms(200), false);
    assert_eq!(synced.due(), Some(ms(1000)), "a file made in this batch is not saved by an fsync");
    synced.synced(NodeId(1), ms(300), true);
    assert_eq!(synced.due(), Some(ms(400)));
    synced.synced(NodeId(9), ms(310), true);
    assert_eq!(synced.due(), Some(ms(400)), "what did not change is not settled");
}

/// The cut moves back to the last moment at which no file was half made.
#[test]
fn a_waiting_file_moves_the_cut_back() {
    let mut settler = settler();
    settler.changed(other(0, 1));
    settler.changed(change(950, 2, Event::Started));
    settler.changed(other(960, 3));
    assert_eq!(settler.due(), Some(ms(1000)));
    assert_eq!(settler.cut_point(ms(1000)), 1);
    // The two behind the cut go on; the file still waits.
    let rest = [change(950, 2, Event::Started), other(960, 3)];
    settler.cut(ms(1000), &rest);
    assert_eq!(settler.due(), Some(ms(1950)));
    settler.changed(other(1000, 4));
    // Its wait began before the change that makes the cut due: the cut is not moved before that.
    assert_eq!(settler.cut_point(ms(1950)), 3);
}

/// A file waits until a pause behind its last write or fsync, until it is placed, or until its maker turns to
/// another path.
#[test]
fn what_ends_the_wait() {
    let started = |events: &[Change]| {
        let mut settler = settler();
        settler.changed(other(0, 1));
        settler.changed(change(900, 2, Event::Started));
        events.iter().for_each(|change| settler.changed(*change));
        settler
    };
    assert_eq!(started(&[]).cut_point(ms(1000)), 1);
    let wrote = [change(950, 2, Event::Wrote)];
    assert_eq!(started(&wrote).cut_point(ms(1049)), 1);
    assert_eq!(started(&wrote).cut_point(ms(1050)), 3);
    let mut synced = started(&wrote);
    synced.synced(NodeId(2), ms(1040), false);
    assert_eq!(synced.cut_point(ms(1100)), 1);
    assert_eq!(synced.cut_point(ms(1140)), 3);
    assert_eq!(started(&[change(950, 2, Event::Placed)]).cut_point(ms(1000)), 3);
    let turned = Change { pid: 2, ..other(950, 3) };
    assert_eq!(started(&[turned]).cut_point(ms(1000)), 3);
    let another = Change { pid: 5, ..other(950, 3) };
    assert_eq!(started(&[another]).cut_point(ms(1000)), 1);
    // A write by its maker to the file itself does not end the wait at once.
    assert_eq!(started(&[change(990, 2, Event::Other)]).cut_point(ms(1000)), 1);
}

/// A cut that is asked for is due at once and takes everything; nothing is asked where nothing changed.
#[test]
fn asked() {
    let mut settler = settler();
    settler.ask();
    assert_eq!((settler.due(), settler.is_asked()), (None, false));
    settler.changed(other(500, 1));
    settler.changed(change(600, 2, Event::Started));
    settler.ask();
    assert_eq!(settler.due(), Some(Tick::ZERO));
    assert_eq!(settler.cut_point(ms(600)), 2);
    settler.cut(ms(600), &[]);
    assert!(!settler.is_asked());
}

/// A full batch is due at once, by bytes or by changes.
#[test]
fn full() {
    let mut bytes = settler();
    bytes.changed(Change { bytes: BATCH_BYTES_MAX - 1, ..other(10, 1) });
    assert!(!bytes.is_full());
    bytes.changed(change(11, 2, Event::Started));
    assert!(bytes.is_full());
    assert_eq!((bytes.due(), bytes.cut_point(ms(11))), (Some(Tick::ZERO), 2));
    let mut changes = settler();
    (0..BATCH_CHANGES_MAX).for_each(|_| changes.changed(other(10, 1)));
    assert!(changes.is_full());
}

/// Cuts keep their distance, unless one is asked for.
#[test]
fn spacing() {
    let mut settler = settler();
    settler.changed(other(0, 1));
    settler.cut(ms(1000), &[]);
    settler.changed(Change { signal: true, ..other(1000, 1) });
    settler.synced(NodeId(1), ms(1000), true);
    assert_eq!(settler.due(), Some(ms(1100)));
    settler.ask();
    assert_eq!(settler.due(), Some(Tick::ZERO));
    let config = SettleConfig { settle: ms(5), signal_settle: ms(5), ..SettleConfig::default() };
    let mut quick = Settler::new(config);
    quick.changed(other(0, 1));
    quick.cut(ms(10), &[]);
    quick.changed(other(7, 2));
    assert_eq!(quick.due(), Some(ms(15)), "never longer than the signal's wait");
}

/// After a rename over a file the new file is what settles; the old one's clock is gone.
#[test]
fn a_replaced_path_is_forgotten() {
    let mut settler = settler();
    settler.changed(other(0, 1));
    settler.changed(change(500, 2, Event::Started));
    let saved = Change { signal: true, replaced: Some(NodeId(1)), ..change(900, 2, Event::Placed) };
    settler.changed(saved);
    assert_eq!(settler.due(), Some(ms(1000)));
    settler.changed(other(950, 2));
    assert_eq!(settler.due(), Some(ms(1050)));
    assert_eq!(settler.cut_point(ms(1050)), 4);
}
