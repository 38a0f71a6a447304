//! The head against a tree in memory, at random moments of writing the index; and made again from the journal.

use super::*;
use crate::{
    fixture::{Maker, ask, content, walk},
    order::{DriveIds, Turn},
    recover::recover,
    store::{Faults, blocks::MemoryBlocks, index::MemoryIndex, journal::MemoryJournal},
};
use rand::{Rng, SeedableRng, rngs::SmallRng};
use tidefs_timeline::{Content, Kind, SessionNo, Tree};

const IDS: DriveIds = DriveIds { drive: [1; 16], history: [2; 16] };
const NAMES: [&str; 6] = ["a", "b", "c", "d", "e", "f"];

/// A session that makes, removes, renames and writes what it finds at the head of a moment ago.
fn step(rng: &mut SmallRng, maker: &mut Maker, tree: &Tree) -> crate::order::Submission {
    let mut draft = maker.draft();
    let dirs: Vec<NodeId> = tree.loaded_dirs().filter(|dir| tree.node(*dir).unwrap().is_some()).collect();
    let dir = dirs[rng.random_range(0..dirs.len())];
    let mut at = dir;
    while let Some((parent, name)) = tree.names(at).unwrap().into_iter().next() {
        draft.hangs(at, parent, &name.to_string());
        at = parent;
    }
    let name = NAMES[rng.random_range(0..NAMES.len())];
    let found = tree.entry(dir, &crate::fixture::name(name)).unwrap();
    match found {
        None if rng.random_bool(0.4) => {
            draft.create(dir, name, Kind::Directory, Content::None);
        }
        None => {
            draft.create(dir, name, Kind::File, content(None));
        }
        Some(entry) => {
            let is_dir = tree.node(entry.node).unwrap().unwrap().is_dir();
            let to = NAMES[rng.random_range(0..NAMES.len())];
            let free = tree.entry(dir, &crate::fixture::name(to)).unwrap().is_none();
            if !is_dir && free && rng.random_bool(0.5) {
                draft.rename((dir, name), (dir, to), entry.node);
            } else if !is_dir && rng.random_bool(0.3) {
                draft.write(entry.node, (dir, name), content(None), None);
            } else {
                draft.remove((dir, name), entry.node, is_dir);
            }
        }
    }
    maker.submit(draft)
}

struct World {
    order: Order,
    head: IndexHead,
    journal: MemoryJournal,
    index: MemoryIndex,
    tree: Tree,
}

impl World {
    async fn new() -> Self {
        let (journal, index) = (MemoryJournal::new(Faults::new()), MemoryIndex::new(Faults::new()));
        let (order, head) = Self::up(&journal, &index).await;
        Self { order, head, journal, index, tree: Tree::new_drive(Timestamp::default()) }
    }

    async fn up(journal: &MemoryJournal, index: &MemoryIndex) -> (Order, IndexHead) {
        let blocks = MemoryBlocks::new(Faults::new());
        let index = Arc::new(index.clone());
        recover((IDS, Timestamp::default()), &journal.reopen(), index, &blocks).await.unwrap()
    }

    async fn keep(&mut self, turn: Turn) {
        let saved = self.order.seal(turn).unwrap().save(&self.journal).await.unwrap();
        self.tree.apply(&saved.changes.effects);
        self.head.advance(saved, BTreeMap::new());
    }

    fn check(&self) {
        assert_eq!(walk(&self.head), walk(&self.tree));
    }
}

/// Whatever the index has taken over so far, the head shows the tree of its position: before, during and after a
/// write. And a deleted index, or one that lost its last batches, comes back as the same head.
#[tokio::test]
async fn the_head_is_the_same_with_any_part_of_the_index() {
    for seed in 0..5 {
        let mut rng = SmallRng::seed_from_u64(seed);
        let mut world = World::new().await;
        let mut turn = Turn::new(1);
        for id in [1, 2] {
            world.order.attach(&mut turn, &ask(id, "s", 0, 10), &|_| true).unwrap();
        }
        world.keep(turn).await;
        let mut makers = [Maker::new(1, 10), Maker::new(2, 10)];
        let mut seen = world.tree.clone();
        let mut write: Option<Write> = None;
        for _ in 0..120 {
            let mut turn = Turn::new(1);
            for maker in &mut makers {
                let submission = step(&mut rng, maker, &seen);
                let none = BTreeMap::new();
                let blocks = WithPacks { head: &world.head, arrived: &none };
                world.order.submit(&mut turn, &world.head, &blocks, &submission).unwrap();
            }
            world.keep(turn).await;
            if rng.random_bool(0.5) {
                seen = world.tree.clone();
            }
            match write.take() {
                Some(begun) if rng.random_bool(0.5) => {
                    begun.run(rng.random_bool(0.3)).unwrap();
                    world.check();
                    world.head.written();
                }
                Some(begun) => write = Some(begun),
                None if rng.random_bool(0.3) => write = Some(world.head.begin_write(world.order.fold())),
                None => {}
            }
            world.check();
        }
        let live = walk(&world.head);
        assert!(live.0.len() > 3, "the history must leave something");
        for lose in [MemoryIndex::lose_unsynced, MemoryIndex::lose_all, |_: &MemoryIndex| {}] {
            lose(&world.index);
            let (order, head) = World::up(&world.journal, &world.index).await;
            assert_eq!(walk(&head), live);
            assert_eq!(order.position(), world.order.position());
            assert_eq!(order.session(SessionNo(2)), world.order.session(SessionNo(2)));
            assert_eq!(head.position(), world.head.position());
            for at in 1..=order.position().0 {
                let entry = world.head.entry_of(Position(at)).unwrap();
                assert_eq!(head.entry_of(Position(at)).unwrap(), entry);
                assert!(entry.is_some());
            }
        }
    }
}

/// An index ahead of its journal means that the journal lost what it had promised: the drive does not open.
#[tokio::test]
async fn an_index_ahead_of_the_journal_is_an_error() {
    let mut world = World::new().await;
    let mut turn = Turn::new(1);
    world.order.attach(&mut turn, &ask(1, "s", 0, 10), &|_| true).unwrap();
    world.keep(turn).await;
    world.head.write_now(&mut world.order).unwrap();
    let empty = MemoryJournal::new(Faults::new());
    let index = Arc::new(world.index.clone());
    let blocks = MemoryBlocks::new(Faults::new());
    let error = recover((IDS, Timestamp::default()), &empty, index, &blocks).await.unwrap_err();
    assert!(matches!(error, crate::recover::RecoverError::Lost { journal: 0, index: 1 }), "{error}");
}
