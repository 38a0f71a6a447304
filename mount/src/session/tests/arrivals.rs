//! What comes from the server: what it changes, and what the kernel is told.

use super::desk::{Desk, Server, name, shape};
use crate::{
    session::{Moment, arrive::Wait},
    volume::{RenameMode, SetAttr, Stop, Tell},
};
use tidefs_timeline::{Kind, NodeId, Timestamp};

fn two() -> (Desk, Desk, Server) {
    (Desk::new(1), Desk::new(2), Server::new())
}

fn entry(parent: NodeId, n: &str) -> Tell {
    Tell::Entry { parent, name: name(n) }
}

/// An arrival that touches nothing unsent leaves the open batch open; both are shown, counts included.
#[test]
fn an_arrival_beside_leaves_the_batch_open() {
    let (mut a, mut b, mut server) = two();
    a.mkdir("mine");
    a.create("mine/f");
    b.mkdir("theirs");
    b.create("theirs/f");
    b.create("g");
    let line = server.place(&b.ship());
    let arrived = a.arrive(&line);
    assert!(arrived.job.is_none() && !arrived.own);
    assert_eq!(a.session.open_changes(), 2);
    let root = NodeId::ROOT;
    assert_eq!(arrived.told.tells, [entry(root, "g"), entry(root, "theirs"), Tell::Listing(root)]);
    for path in ["mine/f", "theirs/f", "g"] {
        a.id(path);
    }
    assert_eq!(a.session.view().node(root).unwrap().nlink(), 4, "derived counts lie on what arrived");
    let line = server.place(&a.ship());
    let arrived = a.arrive(&line);
    assert!(arrived.own);
    assert_eq!(arrived.told.tells, [], "an own checkpoint as it was shown changes nothing");
    assert!(a.session.layers().is_empty());
    assert_eq!(a.session.view().applied, server.head);
    assert_eq!(server.head.node_ids().count(), 6);
}

/// An arrival that meets the open batch cuts it first; then this session's change is placed on top, as the
/// server will.
#[test]
fn an_arrival_that_meets_cuts_first() {
    let (mut a, mut b, mut server) = two();
    let mine = a.create("f");
    b.create("f");
    b.create("g");
    let line = server.place(&b.ship());
    let arrived = a.arrive(&line);
    let job = arrived.job.expect("the batch was met");
    assert_eq!(a.session.open_changes(), 0);
    assert_eq!(a.id("f"), mine, "placed later, this one stands");
    assert_eq!(arrived.told.tells, [entry(NodeId::ROOT, "g"), Tell::Listing(NodeId::ROOT)]);
    let sent = a.seal(&job).unwrap();
    let line = server.place(&sent);
    assert_eq!(line.placed.overlaps.len(), 1);
    let shown = a.shown();
    assert_eq!(a.arrive(&line).told.tells, []);
    assert_eq!(shape(&server.head), shown, "the mount predicted what the server placed");
}

/// A rename of a directory above an open change meets it; the change goes where the directory went.
#[test]
fn a_rename_above_meets() {
    let (mut a, mut b, mut server) = two();
    b.mkdir("d");
    server.place(&b.ship());
    a.follow(&server);
    b.follow(&server);
    a.create("d/mine");
    b.rename("d", "e", RenameMode::Replace).unwrap();
    let line = server.place(&b.ship());
    let arrived = a.arrive(&line);
    assert!(arrived.job.is_some());
    a.id("e/mine");
    assert_eq!(a.find("d"), None);
    let root = NodeId::ROOT;
    assert_eq!(arrived.told.tells, [entry(root, "d"), entry(root, "e"), Tell::Listing(root)]);
}

/// Two directories of one name become one; the id that went still answers.
#[test]
fn a_united_directory_answers_under_both_ids() {
    let (mut a, mut b, mut server) = two();
    let mine = a.mkdir("s");
    a.create("s/x");
    a.session.count_lookup(mine);
    let theirs = b.mkdir("s");
    b.create("s/y");
    server.place(&b.ship());
    a.follow(&server);
    assert_eq!(a.id("s"), theirs);
    assert_eq!(a.session.getattr(mine).unwrap().id, theirs);
    let found = a.session.lookup(mine, b"y").unwrap();
    assert!(found.is_some(), "a working directory goes on in the one that stays");
    let plan = a.session.plan_make(
        a.at(),
        (mine, b"z"),
        &crate::volume::Make { kind: Kind::File, mode: 0o600, target: None },
    );
    a.commit(vec![plan.unwrap()], &[]);
    a.id("s/z");
}

/// The kernel is told exactly of what it holds and what changed: the content, the attributes, the names.
#[test]
fn the_kernel_is_told_exactly() {
    let (mut a, mut b, mut server) = two();
    let (f, d) = (b.create("f"), b.mkdir("d"));
    let x = b.create("d/x");
    b.create("h");
    server.place(&b.ship());
    b.follow(&server);
    let root = NodeId::ROOT;
    let first = a.follow(&server);
    assert_eq!(first, [entry(root, "d"), entry(root, "f"), entry(root, "h"), Tell::Listing(root)]);
    a.session.count_lookup(f);
    let mut step = |change: &mut dyn FnMut(&mut Desk), a: &mut Desk| {
        change(&mut b);
        server.place(&b.ship());
        b.follow(&server);
        a.follow(&server)
    };
    let node = |content| Tell::Node { id: f, parents: vec![root], content };
    assert_eq!(step(&mut |b| b.write(f, 0, b"x"), &mut a), [node(true)]);
    assert_eq!(step(&mut |b| b.chmod(f, 0o600), &mut a), [node(false)]);
    let time = SetAttr { mtime: Some(Some(Timestamp { seconds: 3, nanos: 0 })), ..SetAttr::default() };
    assert_eq!(step(&mut |b| b.set(f, time), &mut a), [node(false)]);
    // What the kernel was never given needs no word.
    assert_eq!(step(&mut |b| b.write(x, 0, b"x"), &mut a), []);
    assert_eq!(
        step(
            &mut |b| {
                b.create("d/y");
            },
            &mut a
        ),
        []
    );
    // A directory that it holds is told of its names, and of its listing behind them.
    a.session.count_lookup(d);
    assert_eq!(
        step(
            &mut |b| {
                b.create("d/z");
            },
            &mut a
        ),
        [entry(d, "z"), Tell::Listing(d)]
    );
    // A rename: both names, their directory, and the node, whose ctime moved.
    let moved = step(&mut |b| b.rename("f", "g", RenameMode::Replace).unwrap(), &mut a);
    assert_eq!(moved, [entry(root, "f"), entry(root, "g"), Tell::Listing(root), node(false)]);
    // A binding that did not change is never invalidated; the directory was touched.
    let saved = step(
        &mut |b| {
            b.create("d/w");
            b.unlink("d/w");
            b.unlink("h");
        },
        &mut a,
    );
    let touched = Tell::Node { id: d, parents: vec![root], content: false };
    assert_eq!(saved, [entry(root, "h"), Tell::Listing(root), touched]);
}

/// A file that was removed here or elsewhere keeps its content while the kernel holds it; what is done to it
/// then never ships.
#[test]
fn an_orphan_keeps_its_content() {
    let (mut a, mut b, mut server) = two();
    let (f, own) = (b.create("f"), a.create("own"));
    b.write(f, 0, b"theirs");
    server.place(&b.ship());
    b.follow(&server);
    a.follow(&server);
    a.session.count_lookup(f);
    a.session.count_lookup(own);
    b.unlink("f");
    server.place(&b.ship());
    a.follow(&server);
    a.unlink("own");
    assert_eq!(a.session.orphans(), 2);
    for (id, size) in [(f, 6), (own, 0)] {
        let node = a.session.getattr(id).unwrap().node;
        assert_eq!((node.content.value.size(), node.links), (size, 0));
    }
    let open = a.session.open_changes();
    a.write(f, 6, b" and more");
    assert_eq!(a.session.getattr(f).unwrap().node.content.value.size(), 15);
    assert_eq!(a.session.open_changes(), open, "it is not in the batch");
    assert_eq!(a.session.orphan_pieces().len(), 1);
    assert!(matches!(a.link_of(f, "back"), Err(Stop::Errno(libc::ENOENT))));
    for id in [f, own] {
        a.session.forget(id, 1);
        assert!(matches!(a.session.getattr(id), Err(Stop::Errno(libc::ESTALE))));
    }
    assert_eq!(a.session.orphans(), 0);
    assert!(a.cut().unwrap().checkpoint.is_none());
}

/// A removed file that comes back is in the tree again, and no orphan.
#[test]
fn an_orphan_that_comes_back() {
    let (mut a, mut b, mut server) = two();
    let f = b.create("f");
    server.place(&b.ship());
    a.follow(&server);
    b.follow(&server);
    a.session.count_lookup(f);
    let mut third = Desk::new(3);
    third.follow(&server);
    third.unlink("f");
    server.place(&third.ship());
    a.follow(&server);
    assert_eq!((a.find("f"), a.session.orphans()), (None, 1));
    b.write(f, 0, b"again");
    server.place(&b.ship());
    a.follow(&server);
    assert_eq!((a.find("f"), a.session.orphans()), (Some(f), 0));
    assert_eq!(a.session.getattr(f).unwrap().node.content.value.size(), 5);
}

/// Only the next position is taken, and not while too much waits for the sealer.
#[test]
fn arrivals_come_in_order() {
    let (mut a, mut b, mut server) = two();
    b.create("f");
    server.place(&b.ship());
    b.create("g");
    let second = server.place(&b.ship());
    let moment = Moment::default();
    assert!(matches!(a.session.arrive(&second, moment, 0), Err(Wait::NotNext)));
    assert_eq!(a.session.position().0, 0);
    for i in 0..4 {
        a.create(&format!("a{i}"));
        a.cut().unwrap();
    }
    assert!(matches!(a.session.arrive(&server.lines[0], moment, 0), Err(Wait::Seal)));
}

/// A checkpoint that was refused is shown no longer; what was placed on it stays.
#[test]
fn a_refused_checkpoint_is_shown_no_longer() {
    let (mut a, _, _) = two();
    a.create("refused");
    let number = a.ship().number;
    a.create("kept");
    a.ship();
    let told = a.session.refused(number).unwrap();
    assert_eq!(a.find("refused"), None);
    a.id("kept");
    assert_eq!(told.tells, [entry(NodeId::ROOT, "refused"), Tell::Listing(NodeId::ROOT)]);
}

/// Names listed stay where they were while others come and go: a listing read in pages gives each name once.
#[test]
fn listings_go_on_while_names_change() {
    let (mut a, mut b, mut server) = two();
    for i in 0..20 {
        a.create(&format!("n{i}"));
    }
    let mut names = Vec::new();
    let mut cookie = 0;
    for round in 0..40 {
        let page = a.session.list(NodeId::ROOT, cookie, 3, false).unwrap();
        let Some(last) = page.last() else { break };
        cookie = last.cookie;
        names.extend(page.into_iter().map(|line| String::from_utf8(line.name).unwrap()));
        b.create(&format!("other{round}"));
        server.place(&b.ship());
        b.follow(&server);
        a.follow(&server);
    }
    for i in 0..20 {
        let n = format!("n{i}");
        assert_eq!(names.iter().filter(|name| **name == n).count(), 1, "{n} in {names:?}");
    }
}
