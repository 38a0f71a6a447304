//! One promise of placing each, with what it notes and records.

use super::mini::{Mini, World, look, name, paths, shape, time, token};
use crate::{
    AttrName, CheckpointNo, Content, Head, Kind, Node, NodeId, OverlapRegister, Owner, Placed, Reason,
    Register, SessionNo, Tree, Version, place,
};

/// A world in which both sessions saw what A made with `both`.
fn world(both: &str) -> World {
    let mut world = World::new(2);
    if !both.is_empty() {
        world.batch(0, both);
    }
    world.quiet();
    world.log.clear();
    for mini in &mut world.minis {
        mini.position = 0;
    }
    world
}

/// A, then B, each having seen only `both`; what placing B came to.
fn second(both: &str, a: &str, b: &str) -> (World, Placed) {
    let mut world = world(both);
    world.batch(0, a);
    world.batch(1, b);
    world.send(0).unwrap();
    let placed = world.send(1).unwrap();
    (world, placed)
}

fn reasons(placed: &Placed) -> Vec<Reason> {
    placed.notes.iter().map(|note| note.reason).collect()
}

fn lost(placed: &Placed) -> Vec<String> {
    placed.overlaps.iter().map(|o| token(&o.was.as_ref().unwrap().content.value)).collect()
}

/// mkdir by two sessions gives one directory with both contents; the id that went is an alias of the one that
/// stays, and what its session does there afterwards lands in it.
#[test]
fn two_mkdirs_are_one_directory() {
    let (mut world, placed) = second("", "mkdir s; create s/x", "mkdir s; create s/y");
    assert_eq!(reasons(&placed), [Reason::United]);
    assert_eq!(placed.overlaps, []);
    let (mine, theirs) = (NodeId::new(SessionNo(1), 1), NodeId::new(SessionNo(2), 1));
    assert_eq!(world.head.alias(theirs), Ok(Some(mine)));
    world.batch(1, "create s/later; mkdir s/z");
    world.quiet();
    let all: Vec<String> = paths(&world.head).into_keys().collect();
    assert_eq!(all, ["s", "s/later", "s/x", "s/y", "s/z"]);
    assert_eq!(look(&world.head, "s"), Some(mine));
    assert_eq!(world.head.node(mine).unwrap().unwrap().nlink(), 3);
}

/// Unions go all the way down; of two files the incoming one stands and the other is told; where kinds differ
/// the incoming gets a free name.
#[test]
fn unions_go_down() {
    let (world, placed) = second(
        "",
        "mkdir s; mkdir s/t; create s/t/f; create s/k; create s/t/only",
        "mkdir s; mkdir s/t; create s/t/f; mkdir s/k; create s/k/in",
    );
    let all: Vec<String> = paths(&world.head).into_keys().collect();
    assert_eq!(all, ["s", "s/k", "s/k/in", "s/t", "s/t/f", "s/t/only"]);
    assert!(world.head.node(look(&world.head, "s/k").unwrap()).unwrap().unwrap().is_dir());
    assert_eq!(lost(&placed), ["a1", "a2"]);
    let mut world = self::world("mkdir p; mkdir p/k; create q; create p/k/in");
    world.batch(0, "rename p s");
    world.batch(1, "mkdir s; create s/k");
    world.send(1).unwrap();
    let placed = world.send(0).unwrap();
    assert!(reasons(&placed).contains(&Reason::Beside), "{placed:#?}");
    let all: Vec<String> = paths(&world.head).into_keys().collect();
    assert_eq!(all, ["q", "s", "s/k", "s/k~A", "s/k~A/in"]);
}

/// A removal acts on what it meant where it was seen; a directory moved away keeps everything.
#[test]
fn removals_never_follow() {
    let (world, placed) = second("mkdir d; create d/x; create d/y", "rename d e", "rmrf d");
    assert_eq!(shape(&world.head), "e=d#1001, e/x=a1#1002 m6, e/y=a2#1003 m6");
    assert_eq!(reasons(&placed), [Reason::NotRemoved; 3]);
    // Moved out from under the removal, and another put in its place.
    let (world, placed) = second("create f", "rename f g; create f", "unlink f");
    assert_eq!(shape(&world.head), "f=a2#1002 m6, g=a1#1001 m6");
    assert_eq!(reasons(&placed), [Reason::NotRemoved]);
    // The directory is not empty any more.
    let (world, placed) = second("mkdir d", "create d/new", "rmdir d");
    assert_eq!(shape(&world.head), "d=d#1001, d/new=a1#1002 m6");
    assert_eq!(reasons(&placed), [Reason::NotRemoved]);
}

/// A removal reaches the file that took the name of the one it meant, and what goes unseen is told.
#[test]
fn a_removal_reaches_the_heir() {
    let (world, placed) = second("create f", "save f; save f", "unlink f");
    assert_eq!(shape(&world.head), "");
    assert_eq!(lost(&placed), ["a3"]);
}

/// Two moves into each other: the second stays where the head has it, and that is noted.
#[test]
fn a_cycle_is_broken_where_the_head_has_it() {
    let (world, placed) = second("mkdir x; mkdir y; create x/f; create y/g", "rename x y/x", "rename y x/y");
    assert_eq!(shape(&world.head), "y=d#1002, y/g=a2#1004 m6, y/x=d#1001, y/x/f=a1#1003 m6");
    assert_eq!(reasons(&placed), [Reason::Cycle]);
    assert_eq!(placed.overlaps, []);
}

/// Each register of a node is written by itself: content and mode by two sessions both stand.
#[test]
fn last_writer_wins_by_register() {
    let (world, placed) = second("create f", "write f", "chmod f 1");
    assert_eq!(shape(&world.head), "f=a2#1001 m1");
    assert_eq!(placed.overlaps, []);
    let (world, placed) = second("create f", "write f; chmod f 2", "chmod f 1; write f");
    assert_eq!(shape(&world.head), "f=b3#1001 m1");
    let registers: Vec<_> = placed.overlaps.iter().map(|overlap| overlap.register.clone()).collect();
    assert_eq!(registers, [OverlapRegister::Content, OverlapRegister::Owner]);
    // The same value is no loss.
    let (_, placed) = second("create f", "chmod f 1", "chmod f 1");
    assert_eq!(placed.overlaps, []);
}

/// Attributes are registers too: other names stand, the same name is told, a removal of one goes through.
#[test]
fn attributes_are_registers() {
    let mut world = world("create f");
    let id = look(&world.head, "f").unwrap();
    let attr = |key: &str| AttrName::new(key.as_bytes()).unwrap();
    for (session, keys) in [(0, ["user.both", "user.a"]), (1, ["user.both", "user.b"])] {
        let mini = &mut world.minis[session];
        let value = mini.name.clone();
        mini.edit(|work, by| {
            work.change(id, |node| {
                for key in keys {
                    node.attrs.insert(attr(key), Register::new(value.as_bytes().into(), by.0));
                }
            })
        })
        .unwrap();
        mini.seal_with(|checkpoint| {
            let change = &mut checkpoint.nodes[0];
            change.changed.attrs = keys.iter().map(|key| (attr(key), None)).collect();
            change.changed.attrs.sort();
        });
    }
    world.send(0).unwrap();
    let placed = world.send(1).unwrap();
    let node = world.head.node(id).unwrap().unwrap();
    assert_eq!(node.attrs.keys().cloned().collect::<Vec<_>>(), ["user.a", "user.b", "user.both"].map(attr));
    assert_eq!(&*node.attrs[&attr("user.both")].value, b"B");
    assert_eq!(placed.overlaps.len(), 1);
    assert_eq!(placed.overlaps[0].register, OverlapRegister::Attr(attr("user.both")));
}

/// Placing the same checkpoint twice, as if a resend were not recognised, changes no path and no content.
#[test]
fn placed_twice_changes_nothing_more() {
    for (both, b) in [
        ("create f", "write f; chmod f 2"),
        ("create f", "save f"),
        ("mkdir d; create d/x", "rename d e; create e/y"),
        ("mkdir d; create d/x", "rmrf d"),
        ("create f", "link f g"),
        ("", "mkdir s; create s/x"),
    ] {
        let mut world = world(both);
        world.batch(1, b);
        let checkpoint = world.minis[1].outbox[0].clone();
        world.send(1).unwrap();
        let once = world.head.clone();
        let placed = place(&world.head, &checkpoint).unwrap();
        world.head.apply(&placed.effects);
        assert_eq!(shape(&world.head), shape(&once), "{b}");
        assert_eq!(placed.overlaps, [], "{b}");
        assert_eq!(super::check::is_tree(&world.head), Ok(()), "{b}");
    }
}

/// A save binds its own name only: other hard links keep the old file.
#[test]
fn a_save_leaves_other_links() {
    let (world, placed) = second("create f; link f h", "write h", "save f");
    assert_eq!(shape(&world.head), "f=b3#2001 m6, h=a2#1001 m6");
    assert_eq!(placed.overlaps, []);
    assert_eq!(world.head.node(look(&world.head, "h").unwrap()).unwrap().unwrap().nlink(), 1);
    // And one name more or less on each side comes out exact.
    let (world, _) = second("create f; link f g", "unlink g", "link f h");
    assert_eq!(shape(&world.head), "f=a1#1001 m6, h=a1#1001 m6");
    assert_eq!(world.head.node(look(&world.head, "f").unwrap()).unwrap().unwrap().links, 2);
}

/// Two renames of one file: with one name it is moved from where it is, with several a name is added.
#[test]
fn a_file_renamed_twice() {
    let (world, placed) = second("create a", "rename a b", "rename a c");
    assert_eq!(shape(&world.head), "c=a1#1001 m6");
    assert_eq!(reasons(&placed), [Reason::MovedTwice]);
    let (world, placed) = second("create a; link a h", "rename a b", "rename a c");
    assert_eq!(shape(&world.head), "b=a1#1001 m6, c=a1#1001 m6, h=a1#1001 m6");
    assert_eq!(reasons(&placed), [Reason::NameAdded]);
}

/// A mode set by another session meanwhile survives a save that carries the mode seen before; a save that sets
/// its own mode wins, and that is told.
#[test]
fn a_mode_survives_a_save() {
    let (world, placed) = second("create f", "chmod f 1", "save f");
    assert_eq!(shape(&world.head), "f=b2#2001 m1");
    assert_eq!((reasons(&placed), placed.overlaps), (vec![Reason::Carried], vec![]));
    let (world, placed) = second("create f", "chmod f 1", "save f; chmod f 2");
    assert_eq!(shape(&world.head), "f=b2#2001 m2");
    assert_eq!(placed.overlaps.len(), 1);
    assert_eq!(placed.overlaps[0].register, OverlapRegister::Owner);
}

/// A change of a file that was saved over goes to the file that took its name, through any number of saves.
#[test]
fn changes_go_to_the_heir() {
    let (world, placed) = second("create f", "save f; save f; save f", "write f");
    assert_eq!(shape(&world.head), "f=b5#1004 m6");
    assert_eq!((reasons(&placed), lost(&placed)), (vec![Reason::ToHeir], vec!["a4".to_string()]));
    // Attributes follow but never bring back.
    let (world, placed) = second("create f", "unlink f", "chmod f 1");
    assert_eq!(shape(&world.head), "");
    assert_eq!(reasons(&placed), [Reason::Gone]);
    let (world, placed) = second("create f", "unlink f", "write f");
    assert_eq!(shape(&world.head), "f=b2#1001 m6");
    assert_eq!(reasons(&placed), [Reason::BroughtBack]);
    assert_eq!(world.head.heir(NodeId::new(SessionNo(1), 1)), Ok(None));
}

/// A file's bytes have no place in a symlink: the file is made again and the symlink is told.
#[test]
fn bytes_never_go_to_a_symlink() {
    let mut world = world("create f");
    world.batch(1, "write f");
    let (mini, id) = (&mut world.minis[0], NodeId::new(SessionNo(1), 90));
    assert!(mini.run("unlink f"));
    mini.edit(|work, by| {
        let owner = Owner { mode: 7, uid: 0, gid: 0 };
        let target = Content::Symlink(b"elsewhere"[..].into());
        work.put_new(id, Node::new(Kind::Symlink, by.0, target, owner, by.1));
    });
    mini.bind(&(NodeId::ROOT, name("f")), id);
    mini.seal();
    world.send(0).unwrap();
    let placed = world.send(1).unwrap();
    let node = world.head.node(look(&world.head, "f").unwrap()).unwrap().unwrap();
    assert_eq!((node.kind, token(&node.content.value)), (Kind::File, "b2".to_string()));
    assert_eq!(placed.overlaps.len(), 1, "{placed:#?}");
    assert_eq!(placed.overlaps[0].was.as_ref().unwrap().kind, Kind::Symlink);
}

/// Names beside: NAME~SESSION, then NAME~SESSION~2, and so on; a name too long is shortened.
#[test]
fn names_beside_are_counted() {
    // The directory is removed and a file put there; what another creates inside goes beside, each time anew.
    let (mut world, _) = second("mkdir d; create d/x", "tofile d", "create d/z");
    assert_eq!(paths(&world.head).into_keys().collect::<Vec<_>>(), ["d", "d~B", "d~B/z"]);
    world.quiet();
    world.batch(0, "unlink d; mkdir d; create d/x");
    world.quiet();
    world.batch(0, "tofile d");
    world.batch(1, "create d/z");
    world.send(0).unwrap();
    world.send(1).unwrap();
    assert_eq!(paths(&world.head).into_keys().collect::<Vec<_>>(), ["d", "d~B", "d~B/z", "d~B~2", "d~B~2/z"]);
    let long = name(&"n".repeat(255));
    let (one, two) = (long.beside("session", 1), long.beside("session", 2));
    assert!(one != two && one.as_bytes().len() == 255 && two.as_bytes().len() == 255);
    let many: std::collections::BTreeSet<_> = (1..50).map(|n| long.beside(&"s".repeat(300), n)).collect();
    assert_eq!(many.len(), 49, "every number gives another name, however long the session's");
}

/// What one checkpoint carries never replaces what it carries: here two links that meet at one name.
#[test]
fn own_links_that_meet_both_stay() {
    // B makes a file in each of two directories that A has united meanwhile.
    let mut world = world("mkdir p; mkdir q");
    world.batch(0, "rmdir p; rename q p");
    world.batch(1, "create p/n; create q/n");
    world.send(0).unwrap();
    world.send(1).unwrap();
    let names: Vec<String> = paths(&world.head).into_keys().collect();
    assert_eq!(names, ["p", "p/n", "p/n~B"]);
}

/// Above the limit two directories are kept apart.
#[test]
fn a_crowd_is_kept_apart() {
    let mut maker = Mini::new(1, &Tree::new_drive(time(0)));
    for dir in ["u", "v"] {
        assert!(maker.run(&format!("mkdir {dir}")));
        assert!((0..5001).all(|n| maker.run(&format!("create {dir}/{dir}{n}"))));
    }
    maker.seal();
    let mut head = maker.base.clone();
    let (mut one, mut two) = (Mini::new(2, &head), Mini::new(3, &head));
    assert!(one.run("rename u w") && two.run("rename v w"));
    for (mini, want) in [(&mut one, vec![]), (&mut two, vec![Reason::Beside])] {
        mini.seal();
        let placed = place(&head, &mini.outbox[0]).unwrap();
        head.apply(&placed.effects);
        assert_eq!(reasons(&placed), want);
    }
    let entries = |path| head.entries(look(&head, path).unwrap(), None, usize::MAX).unwrap().len();
    assert_eq!((entries("w"), entries("w~C")), (5001, 5001));
}

/// Nothing but the head and the checkpoint decides: what another session's number is does not.
#[test]
fn foreign_base_is_no_overlap() {
    let (mut world, _) = second("create f", "write f", "create other");
    world.quiet();
    // B has seen A's write; its own write over it is no overlap, nor is its second.
    world.batch(1, "write f");
    world.batch(1, "write f");
    assert_eq!(world.send(1).unwrap().overlaps, []);
    let placed = world.send(1).unwrap();
    assert_eq!(placed.overlaps, []);
    let node = world.head.node(look(&world.head, "f").unwrap()).unwrap().unwrap();
    assert_eq!(node.content.version, Version { session: SessionNo(2), number: CheckpointNo(3) });
}
