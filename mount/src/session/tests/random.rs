//! Random changes in two sessions: what each shows is always what placing its layers on what it has applied
//! gives, a cut changes nothing that is shown, the log always gives the checkpoint that a cut would, and once
//! quiet all show the head.

use super::desk::{Desk, Server, shape};
use crate::volume::{RenameMode, SetAttr};
use rand::{Rng, SeedableRng, rngs::SmallRng};
use tidefs_timeline::{
    Checkpoint, EntryChange, Kind, LostNode, NodeChange, NodeId, Overlay, Timestamp, overlay::Over, place,
};

fn shown(desk: &Desk) -> Vec<String> {
    desk.shown()
}

fn path(rng: &mut SmallRng, desk: &Desk) -> String {
    let mut path = String::new();
    loop {
        let n = ["a", "b", "c", "d"][rng.random_range(0..4)];
        path = if path.is_empty() { n.into() } else { format!("{path}/{n}") };
        let dir =
            desk.find(&path).and_then(|id| desk.session.view().node(id)).is_some_and(|node| node.is_dir());
        if !dir || rng.random_bool(0.4) {
            return path;
        }
    }
}

fn change(rng: &mut SmallRng, desk: &mut Desk) {
    let one = path(rng, desk);
    let two = path(rng, desk);
    let id = desk.find(&one);
    let file = id.filter(|id| desk.session.view().node(*id).is_some_and(|node| node.kind == Kind::File));
    let mode = if rng.random_bool(0.3) { RenameMode::Exchange } else { RenameMode::Replace };
    match (rng.random_range(0..12), id, file) {
        (0..3, ..) => drop(desk.make(&one, Kind::File)),
        (3..5, ..) => drop(desk.make(&one, Kind::Directory)),
        (5, _, Some(id)) => desk.write(id, rng.random_range(0..9), b"bytes"),
        (6, _, Some(id)) => {
            desk.set(id, SetAttr { size: Some(rng.random_range(0..9)), ..Default::default() })
        }
        (7, Some(id), _) => desk.chmod(id, rng.random_range(0..8)),
        (8, Some(_), _) => drop(desk.remove(&one, file.is_none())),
        (9..11, Some(_), _) => drop(desk.rename(&one, &two, mode)),
        (11, _, Some(_)) => drop(desk.link(&one, &two)),
        _ => {}
    }
}

/// Below the open batch lies what placing the layers on what is applied gives.
fn check_layers(desk: &Desk, context: &str) {
    let applied = &desk.session.view().applied;
    let mut all = Overlay::default();
    for layer in desk.session.layers().iter() {
        let placed = place(&Over { below: applied, top: &all }, &layer.checkpoint).unwrap();
        all.merge(placed.effects);
    }
    let fresh = shape(&Over { below: applied, top: &all });
    assert_eq!(shape(&desk.session.view().below()), fresh, "{context}");
}

/// What a checkpoint says beyond what follows from entries: the running session counts arrivals in, the log was
/// written before they came, and placing takes neither.
fn plain(checkpoint: Option<&Checkpoint>) -> Option<(Vec<EntryChange>, Vec<NodeChange>, Vec<LostNode>)> {
    let checkpoint = checkpoint?;
    let bound = |id: NodeId| checkpoint.entries.iter().any(|entry| entry.new == Some(id));
    let mut nodes = checkpoint.nodes.clone();
    for change in nodes.iter_mut().filter(|change| !change.born) {
        change.node.subdirs = 0;
        change.node.times.value.ctime = Timestamp::default();
        change.changed.ctime = false;
        if change.node.is_dir() && !change.changed.mtime {
            change.node.times.value.mtime = Timestamp::default();
        }
    }
    nodes.retain(|change| change.born || !change.changed.is_empty() || bound(change.id));
    if nodes.is_empty() && checkpoint.entries.is_empty() {
        return None;
    }
    Some((checkpoint.entries.clone(), nodes, checkpoint.lost.clone()))
}

fn ship(desk: &mut Desk, server: &mut Server, context: &str) {
    let before = shown(desk);
    let mut replay = desk.replay();
    let (map, mut again) = (desk.sealed_map(), Desk::new(desk.session.identity().session.0));
    for line in &server.lines[..desk.session.position().0 as usize] {
        again.arrive(line);
    }
    again.session.start_after(desk.session.layers().last_number(), 1);
    let found = again.session.recover(&mut replay, &map);
    let Some(job) = desk.cut() else { return };
    assert_eq!(plain(found.as_ref()), plain(job.checkpoint.as_deref()), "{context}");
    // What came to nothing gives directories the times back that it moved; the kernel, if it holds them, is told.
    if job.checkpoint.is_some() {
        assert_eq!(shown(desk), before, "{context}: a cut changed what is shown {job:#?}");
    }
    if let Some(checkpoint) = desk.seal(&job) {
        server.place(&checkpoint);
    }
}

/// See the head of this file.
#[test]
fn sessions_show_what_will_be() {
    for seed in 0..150 {
        let mut rng = SmallRng::seed_from_u64(seed);
        let mut server = Server::new();
        let mut desks = [Desk::new(1), Desk::new(2)];
        for step in 0..60 {
            let context = format!("seed {seed} step {step}");
            let desk = &mut desks[rng.random_range(0..2)];
            match rng.random_range(0..10) {
                0..7 => change(&mut rng, desk),
                7 => ship(desk, &mut server, &context),
                _ => {
                    if let Some(line) = server.lines.get(desk.session.position().0 as usize) {
                        // What was cut because it was met ships as it is.
                        if let Some(job) = desk.arrive(line).job
                            && let Some(checkpoint) = desk.seal(&job)
                        {
                            server.place(&checkpoint);
                        }
                    }
                }
            }
            check_layers(desk, &context);
        }
        let context = format!("seed {seed} at the end");
        for desk in &mut desks {
            ship(desk, &mut server, &context);
        }
        for desk in &mut desks {
            desk.follow(&server);
            assert!(desk.session.layers().is_empty(), "{context}");
            assert_eq!(desk.session.view().applied, server.head, "{context}");
            assert_eq!(shown(desk), shape(&server.head), "{context}");
            assert_eq!(desk.session.view().node(NodeId::ROOT), server_root(&server));
        }
    }
}

fn server_root(server: &Server) -> Option<std::sync::Arc<tidefs_timeline::Node>> {
    use tidefs_timeline::Head;
    server.head.node(NodeId::ROOT).unwrap()
}
