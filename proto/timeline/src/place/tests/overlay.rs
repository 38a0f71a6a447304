//! Layers over a tree: reading through them, laying them over each other, and letting go of what the tree says
//! itself by now.

use super::mini::{Mini, name, time};
use crate::{Entry, Head, Name, NodeId, NotLoaded, Overlay, SessionNo, Tree, Version, Work, overlay::Over};
use rand::{Rng, SeedableRng, rngs::SmallRng};
use std::collections::BTreeMap;

fn tree(lines: &str) -> Tree {
    let mut mini = Mini::new(1, &Tree::new_drive(time(0)));
    assert!(mini.run(lines));
    mini.seal();
    mini.base.clone()
}

/// Pages of a directory under changes give every name once, in order, however small the page and whatever the
/// layers add and remove.
#[test]
fn pages_under_layers_are_complete() {
    for seed in 0..200 {
        let mut rng = SmallRng::seed_from_u64(seed);
        let mut mini = Mini::new(1, &Tree::new_drive(time(0)));
        let mut want: BTreeMap<Name, bool> = BTreeMap::new();
        for _ in 0..3 {
            for _ in 0..rng.random_range(0..12) {
                let n = format!("n{:02}", rng.random_range(0..20));
                let there = want.get(&name(&n)).copied().unwrap_or(false);
                assert!(mini.run(&format!("{} {n}", if there { "unlink" } else { "create" })));
                want.insert(name(&n), !there);
            }
            // The layers below stay layers; the last is the open batch.
            if rng.random_bool(0.5) {
                mini.seal();
            }
        }
        let want: Vec<Name> = want.into_iter().filter(|(_, there)| *there).map(|(name, _)| name).collect();
        for limit in 1..6 {
            let mut got: Vec<Name> = Vec::new();
            loop {
                let page = mini.view().entries(NodeId::ROOT, got.last(), limit).unwrap();
                assert!(page.len() <= limit);
                got.extend(page.iter().map(|(name, _)| name.clone()));
                if page.len() < limit {
                    break;
                }
            }
            assert_eq!(got, want, "seed {seed} limit {limit}");
        }
    }
}

/// A removed directory hides what the tree below still lists; one made again under its id starts empty.
#[test]
fn a_removed_directory_hides_its_entries() {
    let tree = tree("mkdir d; create d/x");
    let dir = NodeId::new(SessionNo(1), 1);
    let mut work = Work::new(&tree, Overlay::default());
    let node = tree.node(dir).unwrap().unwrap();
    work.drop_node(dir);
    assert_eq!(work.entries(dir, None, 9), Ok(vec![]));
    assert_eq!(work.entry(dir, &name("x")), Ok(None));
    work.put_new(dir, (*node).clone());
    assert_eq!(work.entries(dir, None, 9), Ok(vec![]));
}

/// Binding and removing keeps counts, names and tombstones.
#[test]
fn what_follows_from_entries_is_kept() {
    let tree = tree("mkdir d; create f");
    let (dir, file) = (NodeId::new(SessionNo(1), 1), NodeId::new(SessionNo(1), 2));
    let version = Version { session: SessionNo(9), ..Version::DRIVE };
    let mut work = Work::new(&tree, Overlay::default());
    let entry = Some(Entry { node: file, version });
    work.set_entry((dir, &name("g")), entry, (version, time(50))).unwrap();
    assert_eq!(work.names(file).unwrap(), [(NodeId::ROOT, name("f")), (dir, name("g"))]);
    assert_eq!(work.node(file).unwrap().unwrap().links, 2);
    assert_eq!(work.node(dir).unwrap().unwrap().times.value.mtime, time(50));
    work.set_entry((NodeId::ROOT, &name("f")), None, (version, time(60))).unwrap();
    assert_eq!(work.tombstone(NodeId::ROOT, &name("f")), Ok(Some(version)));
    assert_eq!(work.names(file).unwrap(), [(dir, name("g"))]);
    // A directory's time never goes back, and a name bound again has no tombstone.
    work.set_entry((NodeId::ROOT, &name("f")), entry, (version, time(1))).unwrap();
    assert_eq!(work.tombstone(NodeId::ROOT, &name("f")), Ok(None));
    assert_eq!(work.node(NodeId::ROOT).unwrap().unwrap().times.value.mtime, time(60));
    work.set_entry((NodeId::ROOT, &name("d")), None, (version, time(61))).unwrap();
    assert_eq!(work.node(NodeId::ROOT).unwrap().unwrap().subdirs, 0);
}

/// Two layers laid over each other read as the one above the other.
#[test]
fn merged_layers_read_as_stacked() {
    let tree = tree("mkdir d; create d/x; create f; link f g");
    let mut one = Mini::new(2, &tree);
    assert!(one.run("rename d/x d/y; unlink g; create h; mkdir e"));
    let mut lower = one.view().top.clone();
    let stacked_below = Over { below: &tree, top: &lower };
    let mut work = Work::new(&stacked_below, Overlay::default());
    let (version, file) = (Version { session: SessionNo(3), ..Version::DRIVE }, NodeId::new(SessionNo(1), 2));
    let entry = Some(Entry { node: file, version });
    let dir = NodeId::new(SessionNo(1), 1);
    work.set_entry((dir, &name("y")), None, (version, time(99))).unwrap();
    work.set_entry((NodeId::ROOT, &name("g")), entry, (version, time(99))).unwrap();
    let upper = work.top;
    let stacked = Over { below: &stacked_below, top: &upper };
    let seen = |view: &dyn Head<Error = NotLoaded>| {
        let dirs = [NodeId::ROOT, dir, NodeId::new(SessionNo(2), 2)];
        let lists = dirs.map(|dir| view.entries(dir, None, 99).unwrap());
        let names = [file, NodeId::new(SessionNo(1), 3)].map(|id| (view.names(id), view.node(id)));
        let tombs = ["g", "f"].map(|n| view.tombstone(NodeId::ROOT, &name(n)));
        format!("{lists:?} {names:?} {tombs:?} {:?}", view.tombstone(dir, &name("y")))
    };
    let want = seen(&stacked);
    lower.merge(upper.clone());
    assert_eq!(seen(&Over { below: &tree, top: &lower }), want);
}

/// Once the tree below has taken in the same changes, nothing is left; what lies above them stays.
#[test]
fn shedding_leaves_what_differs() {
    let mut tree = tree("mkdir d; create d/x; create f");
    let mut mini = Mini::new(2, &tree);
    assert!(mini.run("rename d/x d/y; create h; mkdir e; create e/in; unlink f"));
    let mut mine = mini.view().top.clone();
    let theirs = mine.clone();
    assert!(mini.run("create more"));
    let mut more = mini.view().top.clone();
    tree.apply(&theirs);
    mine.shed(&tree, &theirs).unwrap();
    assert!(mine.is_empty(), "{mine:#?}");
    assert_eq!(mine, Overlay::default(), "names and born go too");
    more.shed(&tree, &theirs).unwrap();
    assert_eq!(more.entries[&NodeId::ROOT].keys().collect::<Vec<_>>(), [&name("more")]);
    let after = Over { below: &tree, top: &more };
    assert_eq!(super::mini::shape(&after), super::mini::shape(&mini.view()));
}

/// Only a directory that is there and not loaded asks for loading; changes to it are passed over, and loading a
/// listing replaces what was known.
#[test]
fn what_is_not_loaded_says_so() {
    let whole = tree("mkdir d; create d/x; link d/x d/y; create f");
    let dir = NodeId::new(SessionNo(1), 1);
    let mut part = Tree::default();
    for id in [NodeId::ROOT, dir] {
        part.put_node(id, whole.node(id).unwrap().unwrap());
    }
    assert_eq!(part.entries(NodeId::ROOT, None, 1), Err(NotLoaded(NodeId::ROOT)));
    assert_eq!(part.entry(dir, &name("x")), Err(NotLoaded(dir)));
    assert_eq!(part.entry(NodeId(77), &name("x")), Ok(None));
    let list = |dir| whole.entries(dir, None, 99).unwrap().into_iter().collect::<BTreeMap<_, _>>();
    part.load_dir(NodeId::ROOT, list(NodeId::ROOT));
    let mut mini = Mini::new(2, &whole);
    assert!(mini.run("unlink d/y; unlink f"));
    part.apply(&mini.view().top.clone());
    assert!(!part.is_loaded(dir));
    assert_eq!(part.entry(NodeId::ROOT, &name("f")), Ok(None));
    let file = NodeId::new(SessionNo(1), 2);
    part.load_dir(dir, list(dir));
    assert_eq!(part.names(file).unwrap(), [(dir, name("x")), (dir, name("y"))]);
    let mut fewer = list(dir);
    fewer.remove(&name("y"));
    part.load_dir(dir, fewer);
    assert_eq!(part.names(file).unwrap(), [(dir, name("x"))]);
    // A file has no entries to load.
    assert_eq!(whole.entries(file, None, 9), Ok(vec![]));
}
