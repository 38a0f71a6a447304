//! Random histories of two or three sessions against the promises. `place_checked` looks at every placing;
//! sealing checks that what was shown is what is placed, quiet checks that all end alike.

use super::{
    check::is_tree,
    mini::{Mini, World, shape},
};
use crate::{Checkpoint, DirInfo, Head, Name, NodeId, Placed, Tree, place};
use rand::{Rng, SeedableRng, rngs::SmallRng};
use std::collections::BTreeSet;

/// Histories of one run: enough to exercise every rule, few enough for a check before each commit.
const HISTORIES: u64 = 2000;

const NAMES: [&str; 3] = ["a", "b", "d"];
const CHANGES: [&str; 20] = [
    "create", "create", "mkdir", "mkdir", "write", "write", "chmod", "unlink", "rmdir", "rmrf", "rename",
    "rename", "rename", "link", "exchange", "save", "save", "emacs", "tofile", "todir",
];

fn pick<'a, T>(rng: &mut SmallRng, from: &'a [T]) -> &'a T {
    &from[rng.random_range(0..from.len())]
}

/// A path that may be there, or one that is there, or one below it.
fn path(rng: &mut SmallRng, mini: &Mini, known: f64) -> String {
    let all: Vec<String> = super::mini::paths(&mini.view()).into_keys().collect();
    if rng.random_bool(known) && !all.is_empty() {
        let path = pick(rng, &all).clone();
        return if rng.random_bool(0.2) { format!("{path}/{}", pick(rng, &NAMES)) } else { path };
    }
    let depth = *pick(rng, &[1, 1, 2, 2, 2, 3]);
    (0..depth).map(|_| *pick(rng, &NAMES)).collect::<Vec<_>>().join("/")
}

fn change(rng: &mut SmallRng, mini: &Mini, kinds: &[&str]) -> String {
    let kind = *pick(rng, kinds);
    let known = if matches!(kind, "create" | "mkdir") { 0.2 } else { 0.6 };
    let one = path(rng, mini, known);
    match kind {
        "rename" | "link" | "exchange" => format!("{kind} {one} {}", path(rng, mini, known / 2.0)),
        "chmod" => format!("chmod {one} {}", rng.random_range(0..6)),
        _ => format!("{kind} {one}"),
    }
}

pub fn begin(rng: &mut SmallRng, world: &mut World) {
    for _ in 0..rng.random_range(2..8) {
        let line = change(rng, &world.minis[0], &["create", "create", "mkdir", "mkdir", "link"]);
        world.run(0, &line);
    }
    world.quiet();
}

/// One step of a history; the story so far is printed when it fails.
pub fn step(rng: &mut SmallRng, world: &mut World, told: &mut Vec<String>) {
    let session = rng.random_range(0..world.minis.len());
    match rng.random_range(0..100) {
        0..62 => {
            let line = change(rng, &world.minis[session], &CHANGES);
            if world.run(session, &line) {
                told.push(format!("{session}: {line}"));
            }
        }
        62..78 => {
            world.minis[session].seal();
            told.push(format!("{session}: seal"));
        }
        78..90 => {
            commute(world);
            if world.send(session).is_some() {
                told.push(format!("{session}: send -> {}", shape(&world.head)));
            }
        }
        _ => {
            if world.step(session) {
                told.push(format!("{session}: step"));
            }
        }
    }
}

struct Told(u64, Vec<String>);

impl Drop for Told {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("history {}:\n{}", self.0, self.1.join("\n"));
        }
    }
}

/// Whatever two or three sessions do: every head is a tree, the same inputs give the same result, no content
/// goes without a word, each session's checkpoint gives what the session showed, and once quiet all show the
/// head.
#[test]
fn histories_keep_the_promises() {
    let mut exercised = BTreeSet::new();
    let mut overlaps = 0;
    for seed in 0..HISTORIES {
        let mut rng = SmallRng::seed_from_u64(seed);
        let sessions = if rng.random_bool(0.6) { 2 } else { 3 };
        let mut world = World::new(sessions);
        begin(&mut rng, &mut world);
        let mut told = Told(seed, vec![format!("head {}", shape(&world.head))]);
        for _ in 0..rng.random_range(3..26) {
            step(&mut rng, &mut world, &mut told.1);
        }
        world.quiet();
        assert_eq!(is_tree(&world.head), Ok(()));
        for (_, placed) in &world.log {
            exercised.extend(placed.notes.iter().map(|note| note.reason));
            overlaps += placed.overlaps.len();
        }
    }
    // A generator that exercises nothing proves nothing.
    assert!(exercised.len() >= 11, "only {exercised:?}");
    assert!(overlaps > 50, "{overlaps} overlaps");
}

/// Checkpoints that touch nothing in common, neither a path nor what is above or below it nor a node, end alike
/// in both orders.
fn commute(world: &World) {
    let waiting: Vec<&Checkpoint> = world
        .minis
        .iter()
        .filter_map(|mini| {
            let placed = world.log[mini.position..].iter().filter(|(no, _)| *no == mini.no).count();
            mini.outbox.get(placed)
        })
        .collect();
    for one in &waiting {
        for two in waiting.iter().filter(|two| two.session > one.session) {
            if disjoint(one, two) && as_seen(one, &world.head) && as_seen(two, &world.head) {
                let (x, y) = (both(&world.head, one, two), both(&world.head, two, one));
                assert_eq!(shape(&x), shape(&y), "{one:#?}\n{two:#?}");
            }
        }
    }
}

fn both(head: &Tree, one: &Checkpoint, two: &Checkpoint) -> Tree {
    let mut head = head.clone();
    for checkpoint in [one, two] {
        let Placed { effects, .. } = place(&head, checkpoint).unwrap();
        head.apply(&effects);
    }
    head
}

fn way(checkpoint: &Checkpoint, dir: NodeId, later: bool) -> Vec<Name> {
    let mut way = Vec::new();
    let mut at = dir;
    while let Some(DirInfo { before, after, .. }) = checkpoint.dir(at) {
        let Some(spot) = (if later { after } else { before }) else { break };
        way.insert(0, spot.name.clone());
        at = spot.parent;
    }
    way
}

fn touched(checkpoint: &Checkpoint) -> (BTreeSet<Vec<Name>>, BTreeSet<NodeId>) {
    let entries = checkpoint.entries.iter().map(|entry| (entry.dir, entry.name.clone()));
    let names = checkpoint.nodes.iter().flat_map(|node| node.names.iter().cloned());
    let mut paths = BTreeSet::new();
    for (dir, name) in entries.chain(names) {
        for later in [false, true] {
            let mut path = way(checkpoint, dir, later);
            path.push(name.clone());
            paths.insert(path);
        }
    }
    let mut nodes: BTreeSet<NodeId> = checkpoint.nodes.iter().map(|node| node.id).collect();
    nodes.extend(checkpoint.lost.iter().map(|lost| lost.id));
    (paths, nodes)
}

fn disjoint(one: &Checkpoint, two: &Checkpoint) -> bool {
    let (one, two) = (touched(one), touched(two));
    let meet = |a: &Vec<Name>, b: &Vec<Name>| a.starts_with(b) || b.starts_with(a);
    one.1.is_disjoint(&two.1) && !one.0.iter().any(|a| two.0.iter().any(|b| meet(a, b)))
}

/// Whether the head has everything where the checkpoint's session saw it.
fn as_seen(checkpoint: &Checkpoint, head: &Tree) -> bool {
    let entries = checkpoint.entries.iter().all(|entry| {
        head.entry(entry.dir, &entry.name).unwrap().map(|there| there.node) == entry.old
            && (head.node(entry.dir).unwrap().is_some() || checkpoint.node(entry.dir).is_some())
    });
    let dirs = checkpoint.dirs.iter().all(|dir| {
        let there = head.names(dir.id).unwrap().into_iter().next();
        there == dir.before.as_ref().map(|spot| (spot.parent, spot.name.clone()))
    });
    entries && dirs
}
