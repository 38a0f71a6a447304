//! What a restart makes of the log is what the running session would have made of it.

use super::desk::{Desk, Server, block};
use crate::{
    session::{
        before::Before,
        record::{KIND_CUT, KIND_UNDONE, SealMap, SealedRun, cut_to, undone_to},
    },
    volume::{AttrMode, RenameMode, SetAttr},
};
use prost::Message;
use tidefs_timeline::{Checkpoint, ExtentMap, Kind, Piece, Source, Timestamp};

/// A second session that has what the first had when its batch began, and finds its log.
fn recovered(desk: &Desk, server: &Server, upto: usize) -> Option<Checkpoint> {
    let mut again = Desk::new(desk.session.identity().session.0);
    for line in &server.lines[..upto] {
        again.arrive(line);
    }
    let sealed = desk.sealed_map();
    let last = desk.session.layers().last_number();
    again.session.start_after(last, 1);
    let mut replay = desk.replay();
    assert!(!replay.is_empty());
    let found = again.session.recover(&mut replay, &sealed);
    assert_eq!(again.session.next_counter(), desk.session.next_counter(), "no id is given twice");
    found
}

/// Every kind of change, on files that were there and on new ones, read back from the records of the log, gives
/// the checkpoint that the session itself cuts.
#[test]
fn the_log_gives_the_same_checkpoint() {
    let (mut other, mut desk, mut server) = (Desk::new(2), Desk::new(1), Server::new());
    for path in ["a", "b", "c"] {
        let id = other.create(path);
        other.write(id, 0, b"theirs");
    }
    other.mkdir("d");
    other.create("d/x");
    other.create("d/gone");
    other.mkdir("empty");
    server.place(&other.ship());
    desk.follow(&server);
    let (a, b) = (desk.id("a"), desk.id("b"));
    desk.write(a, 3, b"mine, and longer");
    desk.write(a, 5, b"again");
    desk.set(
        b,
        SetAttr {
            size: Some(2),
            mtime: Some(Some(Timestamp { seconds: 5, nanos: 6 })),
            ..SetAttr::default()
        },
    );
    desk.chmod(desk.id("d"), 0o700);
    desk.mkdir("d/sub");
    desk.rename("d", "moved", RenameMode::Replace).unwrap();
    let x = desk.create("moved/sub/x");
    desk.write(x, 10, b"behind a hole");
    desk.make("moved/sub/link", Kind::Symlink).unwrap();
    desk.link("a", "moved/a").unwrap();
    desk.create("tmp");
    desk.rename("tmp", "c", RenameMode::Replace).unwrap();
    desk.rename("a", "b", RenameMode::Exchange).unwrap();
    desk.unlink("moved/gone");
    desk.remove("empty", true).unwrap();
    for (key, value) in [("user.one", "1"), ("user.two", "2")] {
        let attr = (key.as_bytes(), value.as_bytes());
        let plan = desk.session.plan_setxattr(desk.at(), b, attr, AttrMode::Any).unwrap();
        desk.commit(vec![plan], &[]);
    }
    let plan = desk.session.plan_removexattr(desk.at(), b, b"user.one").unwrap();
    desk.commit(vec![plan], &[]);
    let found = recovered(&desk, &server, 1);
    let cut = desk.cut().unwrap().checkpoint.unwrap();
    assert_eq!(found.as_ref(), Some(&*cut));
    assert!(cut.entries.len() > 8 && cut.nodes.len() > 5, "{cut:#?}");
}

/// The same behind a partial cut: the outbox entry holds the context of what lies behind it and where the bytes
/// went that it builds on.
#[test]
fn the_rest_of_a_cut_is_recovered() {
    let mut desk = Desk::new(1);
    let server = Server::new();
    desk.mkdir("d");
    let id = desk.create("d/f");
    desk.write(id, 0, b"0123456789");
    desk.now += 950;
    desk.pid = 8;
    desk.create("d/half");
    desk.pid = 9;
    desk.write(id, 4, b"ab");
    desk.rename("d/f", "d/g", RenameMode::Replace).unwrap();
    desk.now = 2010;
    let job = desk.session.cut(desk.moment(), desk.end, false).unwrap().unwrap();
    assert!(job.checkpoint.is_some() && desk.session.open_changes() > 0);
    desk.seal(&job);
    let found = recovered(&desk, &server, 0);
    let cut = desk.cut().unwrap().checkpoint.unwrap();
    assert_eq!(found.as_ref(), Some(&*cut));
    assert!(cut.node(id).is_some());
}

/// A log whose changes undo each other comes to nothing.
#[test]
fn a_log_that_comes_to_nothing() {
    let mut desk = Desk::new(1);
    desk.now = 0;
    desk.create("f");
    desk.now = 0;
    desk.unlink("f");
    assert_eq!(recovered(&desk, &Server::new(), 0), None);
}

/// A file of many pieces needs several records of context; all come back.
#[test]
fn long_context_is_split_and_read_back() {
    let mut desk = Desk::new(1);
    let id = desk.create("f");
    for i in 0..5000 {
        desk.write(id, i * 2, b"x");
    }
    let job = desk.cut().unwrap();
    desk.seal(&job);
    desk.write(id, 1, b"y");
    assert!(desk.log.len() > 1, "the context has its own records");
    let found = recovered(&desk, &Server::new(), 0);
    let cut = desk.cut().unwrap().checkpoint.unwrap();
    assert_eq!(found.as_ref(), Some(&*cut));
}

/// Records that are no records are refused with a word, not taken for something else.
#[test]
fn bad_records_are_refused() {
    let mut replay = Desk::new(1).replay();
    assert!(replay.record(9, &[], (0, 0)).is_err());
    assert!(replay.record(1, &[0xff, 0xff, 0xff], (0, 0)).is_err());
    assert!(replay.record(1, &[], (0, 0)).is_err());
    let mut desk = Desk::new(1);
    desk.create("f");
    let line = desk.log[0].clone();
    for end in 1..line.head.len() {
        let _ = desk.replay().record(line.kind, &line.head[..end], (0, 0));
    }
    assert!(replay.is_empty());
}

/// Runs of the log that went to blocks are found piece by piece, however they are cut; what is not there stays.
#[test]
fn a_seal_map_resolves_pieces() {
    let run = |at, len| SealedRun { len, source: Source::Block { hash: block(at), offset: 7 } };
    let mut sealed = SealMap::default();
    sealed.add(100, run(100, 50));
    sealed.add(150, run(150, 10));
    sealed.add(200, run(200, 5));
    let local = |len, at| Piece { len, source: Source::Local(at) };
    let mut map = ExtentMap::default();
    map.write(0, local(30, 140));
    map.write(30, local(4, 120));
    map.write(40, local(10, 190));
    map.write(60, local(3, 900));
    let there = Piece { len: 2, source: Source::Block { hash: block(1), offset: 0 } };
    map.write(70, there);
    assert!(sealed.resolve(&mut map));
    let at = |at, offset| Source::Block { hash: block(at), offset };
    let want = [
        (0, 10, at(100, 47)),
        (10, 10, at(150, 7)),
        (20, 10, Source::Local(160)),
        (30, 4, at(100, 27)),
        (40, 10, Source::Local(190)),
        (60, 3, Source::Local(900)),
        (70, 2, at(1, 0)),
    ];
    assert_eq!(map.iter().map(|(at, piece)| (at, piece.len, piece.source)).collect::<Vec<_>>(), want);
    assert!(!sealed.resolve(&mut map), "a second time finds nothing");
    assert_eq!(SealMap::from_wire(&sealed.to_wire()).unwrap(), sealed);
}

/// A batch that was cut but never reached the outbox and the one behind it come back as one: what the first made
/// and the second moved is new, not something that was there before.
#[test]
fn two_unsealed_batches_come_back_as_one() {
    let (mut desk, server) = (Desk::new(1), Server::new());
    desk.mkdir("d");
    let file = desk.create("f");
    desk.write(file, 0, b"bytes");
    let cut = desk.cut().unwrap();
    assert!(cut.checkpoint.is_some());
    desk.rename("d", "e", RenameMode::Replace).unwrap();
    desk.rename("f", "e/g", RenameMode::Replace).unwrap();
    let mut again = Desk::new(1);
    let mut replay = desk.replay();
    let found = again.session.recover(&mut replay, &SealMap::default()).unwrap();
    let old: Vec<_> = found.nodes.iter().filter(|node| !node.born).map(|node| node.id).collect();
    assert_eq!(old, [tidefs_timeline::NodeId::ROOT], "only the root was there before");
    let shown: Vec<String> =
        found.entries.iter().map(|entry| format!("{} {:?}", entry.name, entry.old)).collect();
    assert_eq!(shown, ["e None", "g None"]);
    assert!(server.lines.is_empty());
}

/// What came to nothing is not read back: a removal of what another session made since is kept.
#[test]
fn what_came_to_nothing_is_not_read_back() {
    let (mut other, mut desk, mut server) = (Desk::new(2), Desk::new(1), Server::new());
    desk.create("x");
    desk.unlink("x");
    let job = desk.cut().unwrap();
    assert!(job.checkpoint.is_none());
    let undone = undone_to(job.log_start, &job.context).unwrap();
    desk.append(KIND_UNDONE, undone.encode_to_vec(), &[]);
    other.create("x");
    server.place(&other.ship());
    desk.follow(&server);
    desk.unlink("x");
    let found = recovered(&desk, &server, 1).expect("the removal");
    assert_eq!(found.entries.len(), 1);
    assert_eq!(found.entries[0].new, None);
}

/// A cut that is noted in the log ends its batch, also when its checkpoint never got into the outbox: the batch
/// behind it keeps what it found itself.
#[test]
fn a_noted_cut_ends_its_batch() {
    let mut desk = Desk::new(1);
    desk.mkdir("d");
    let file = desk.create("f");
    desk.write(file, 0, b"bytes");
    let first = desk.cut().unwrap().checkpoint.unwrap();
    let noted = cut_to(first.number, desk.end, &Before::default()).unwrap();
    desk.append(KIND_CUT, noted.encode_to_vec(), &[]);
    desk.rename("d", "e", RenameMode::Replace).unwrap();
    desk.rename("f", "e/g", RenameMode::Replace).unwrap();
    let mut again = Desk::new(1);
    let mut found = Vec::new();
    for mut batch in desk.replay().into_batches() {
        let checkpoint = again.session.recover(&mut batch.replay, &SealMap::default()).unwrap();
        again.session.start_after(checkpoint.number, 1);
        found.push(checkpoint);
    }
    assert_eq!(found.len(), 2);
    assert_eq!(found[0], *first);
    let second = desk.cut().unwrap().checkpoint.unwrap();
    assert_eq!(found[1], *second);
    // Once the outbox has it, the note means nothing.
    assert_eq!(desk.replay_behind(first.number.0).into_batches().len(), 1);
}
