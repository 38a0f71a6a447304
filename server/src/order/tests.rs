//! The order by hand: no thread, no clock, a journal in memory.

use super::*;
use crate::{
    fixture::{Maker, ask, content, name, pack},
    head::{ArrivedPack, IndexHead, WithPacks},
    packs::check_in_memory,
    store::{Faults, index::MemoryIndex, journal::MemoryJournal},
};
use std::{slice::from_ref, sync::Arc};
use tidefs_timeline::{CheckpointNo, Head, Kind, Name, NodeId, Timestamp};

const IDS: DriveIds = DriveIds { drive: [1; 16], history: [2; 16] };

struct World {
    order: Order,
    head: IndexHead,
    journal: MemoryJournal,
    arrived: BTreeMap<Hash, ArrivedPack>,
}

impl World {
    fn new() -> Self {
        let index = Arc::new(MemoryIndex::new(Faults::new()));
        let head = IndexHead::open(index, Timestamp::default()).unwrap();
        let journal = MemoryJournal::new(Faults::new());
        Self { order: Order::new(IDS), head, journal, arrived: BTreeMap::new() }
    }

    async fn keep(&mut self, turn: Turn) {
        if let Some(unsaved) = self.order.seal(turn) {
            let saved = unsaved.save(&self.journal).await.unwrap();
            let mut blocks = BTreeMap::new();
            for pack in saved.changes.packs.keys() {
                let table = self.arrived.remove(pack).unwrap();
                blocks.extend(table.blocks.iter().map(|(hash, place)| (*hash, (*pack, *place))));
            }
            self.head.advance(saved, blocks);
        }
    }

    async fn attach(&mut self, ask: AttachAsk) -> Result<Attached, AttachRefused> {
        let mut turn = Turn::new(7);
        let attached = self.order.attach(&mut turn, &ask, &|_| true);
        self.keep(turn).await;
        attached
    }

    /// All in one turn.
    async fn submit(&mut self, submissions: &[Submission]) -> Vec<Answer> {
        let mut turn = Turn::new(7);
        let blocks = WithPacks { head: &self.head, arrived: &self.arrived };
        let answers = submissions
            .iter()
            .map(|s| self.order.submit(&mut turn, &self.head, &blocks, s).unwrap().unwrap())
            .collect();
        self.keep(turn).await;
        answers
    }

    async fn maker(&mut self, id: u8) -> Maker {
        let attached = self.attach(ask(id, "s", 0, 10)).await.unwrap();
        Maker::new(attached.session.0, 10)
    }

    /// The order that the journal alone gives.
    async fn replayed(&self) -> Order {
        let mut order = Order::new(IDS);
        for (entry, body) in self.journal.reopen().read_from(1, usize::MAX).await.unwrap() {
            order.replay(entry, &body).unwrap();
        }
        order
    }
}

fn placed(position: u64) -> Answer {
    Answer::Placed(Position(position))
}

fn reason(answer: &Answer) -> Option<Refusal> {
    match answer {
        Answer::Refused(reason, _) => Some(*reason),
        Answer::Placed(_) => None,
    }
}

/// A resend gets the first answer, also after a restart, and changes nothing.
#[tokio::test]
async fn a_resend_gets_the_first_answer() {
    let mut world = World::new();
    let mut maker = world.maker(1).await;
    let first = maker.touch("a");
    assert_eq!(world.submit(from_ref(&first)).await, [placed(1)]);
    assert_eq!(world.submit(&[maker.touch("b"), first.clone()]).await, [placed(2), placed(1)]);
    world.order = world.replayed().await;
    assert_eq!(world.submit(&[first]).await, [placed(1)]);
    assert_eq!(world.order.position(), Position(2));
}

/// Answers are kept for as many numbers as the promise says; older ones are refused, never placed again.
#[tokio::test]
async fn old_answers_are_forgotten_not_repeated() {
    let mut world = World::new();
    let mut maker = world.maker(1).await;
    let all: Vec<Submission> = (0..=ANSWERS_KEPT).map(|n| maker.touch(&format!("f{n}"))).collect();
    world.submit(&all).await;
    let again = world.submit(&all[..2]).await;
    assert_eq!(reason(&again[0]), Some(Refusal::Forgotten));
    assert_eq!(again[1], placed(2));
}

/// Two copies of one session cannot both be acknowledged: other bytes for a number, or on another predecessor.
#[tokio::test]
async fn a_fork_is_refused() {
    let mut world = World::new();
    let mut maker = world.maker(1).await;
    let mut copy = maker.clone();
    world.submit(&[maker.touch("a")]).await;
    let other = world.submit(&[copy.touch("b"), copy.touch("c")]).await;
    assert_eq!(reason(&other[0]), Some(Refusal::Fork));
    assert_eq!(reason(&other[1]), Some(Refusal::Fork));
    assert_eq!(world.order.position(), Position(1));
    assert_eq!(world.submit(&[maker.touch("d")]).await, [placed(2)]);
}

/// A number behind a gap waits for the one before it: it is not used up.
#[tokio::test]
async fn a_gap_uses_up_nothing() {
    let mut world = World::new();
    let mut maker = world.maker(1).await;
    let (first, second) = (maker.touch("a"), maker.touch("b"));
    assert_eq!(reason(&world.submit(from_ref(&second)).await[0]), Some(Refusal::Gap));
    assert_eq!(world.submit(&[first, second]).await, [placed(1), placed(2)]);
}

/// What cannot be decoded uses up its number, so that what is in flight behind it can be placed.
#[tokio::test]
async fn a_malformed_shipment_uses_up_its_number() {
    let mut world = World::new();
    let mut maker = world.maker(1).await;
    let bytes = Bytes::from_static(b"not a shipment");
    let digest = tidefs_proto::shipment::digest(&bytes);
    let bad = maker.submission(1, bytes, digest);
    (maker.number, maker.previous) = (1, digest);
    let next = maker.touch("a");
    let answers = world.submit(&[bad.clone(), next]).await;
    assert_eq!(reason(&answers[0]), Some(Refusal::Malformed));
    assert_eq!(answers[1], placed(1));
    assert_eq!(world.submit(&[bad]).await[0], answers[0]);
    assert_eq!(world.replayed().await.session(SessionNo(1)).unwrap().last, CheckpointNo(2));
}

/// Bytes that are not those of their digest are no shipment at all.
#[test]
fn damaged_bytes_are_told_apart_from_malformed_ones() {
    let version = Version { session: SessionNo(1), number: CheckpointNo(1) };
    assert!(Submission::read(version, 1, Bytes::from_static(b"x"), [0; 32]).is_err());
}

/// A checkpoint is placed only when its blocks are in its own pack, or in one that the journal names. A pack that
/// somebody else sent and nobody named does not count: a restart would not find it.
#[tokio::test]
async fn missing_blocks_are_refused_and_use_up_nothing() {
    let mut world = World::new();
    let maker = world.maker(1).await;
    let (id, bytes, hashes) = pack(&[b"hello"]);
    let with = |pack| {
        let mut draft = maker.draft();
        draft.create(NodeId::ROOT, "a", Kind::File, content(Some((hashes[0], 5))));
        draft.pack = pack;
        maker.clone().submit(draft)
    };
    let (alone, whole) = (with(None), with(Some(id)));
    assert_eq!(reason(&world.submit(from_ref(&whole)).await[0]), Some(Refusal::MissingBlocks));
    world.arrived.insert(id, check_in_memory(id, &bytes).unwrap());
    assert_eq!(reason(&world.submit(&[alone]).await[0]), Some(Refusal::MissingBlocks));
    assert_eq!(world.submit(from_ref(&whole)).await, [placed(1)]);
    assert!(world.head.knows_pack(&id).unwrap());

    // From now on the drive has the block, and others need not send it.
    let mut other = world.maker(2).await;
    let mut draft = other.draft();
    draft.create(NodeId::ROOT, "b", Kind::File, content(Some((hashes[0], 5))));
    assert_eq!(world.submit(&[other.submit(draft)]).await, [placed(2)]);
}

/// Checkpoints of one turn are placed one on the other: two new directories of one name become one.
#[tokio::test]
async fn a_turn_places_each_on_the_one_before() {
    let mut world = World::new();
    let (mut one, mut two) = (world.maker(1).await, world.maker(2).await);
    let dir = |maker: &mut Maker, file: &str| {
        let mut draft = maker.draft();
        let dir = draft.create(NodeId::ROOT, "d", Kind::Directory, tidefs_timeline::Content::None);
        draft.create(dir, file, Kind::File, content(None));
        maker.submit(draft)
    };
    let turn = [dir(&mut one, "a"), dir(&mut two, "b")];
    assert_eq!(world.submit(&turn).await, [placed(1), placed(2)]);
    let dir = world.head.entry(NodeId::ROOT, &name("d")).unwrap().unwrap().node;
    let names: Vec<Name> = world.head.entries(dir, None, 9).unwrap().into_iter().map(|(n, _)| n).collect();
    assert_eq!(names, [name("a"), name("b")]);
    assert_eq!(world.journal.bounds().await.unwrap().next, 4);
}

/// The incarnation is exchanged exactly once: a copied or rolled back state folder is told so.
#[tokio::test]
async fn attach_is_a_compare_and_set() {
    let mut world = World::new();
    let first = world.attach(ask(1, "agent", 0, 10)).await.unwrap();
    assert_eq!((first.session, first.epoch), (SessionNo(1), 0));
    // The answer was lost: the same question again gets the same session.
    assert_eq!(world.attach(ask(1, "agent", 0, 10)).await.unwrap(), first);
    assert_eq!(world.attach(ask(1, "agent", 10, 11)).await.unwrap().session, SessionNo(1));
    let copied = Err(AttachRefused::Copied { name: "agent".into() });
    assert_eq!(world.attach(ask(1, "agent", 10, 12)).await, copied);
    assert_eq!(world.attach(ask(1, "agent", 0, 13)).await, copied);
    assert_eq!(world.attach(ask(2, "agent", 5, 6)).await, Err(AttachRefused::Unknown));
    assert_eq!(world.attach(ask(2, "agent", 0, 0)).await, Err(AttachRefused::BadIncarnation));
    let stale = Maker::new(1, 10).touch("a");
    assert_eq!(reason(&world.submit(&[stale]).await[0]), Some(Refusal::NotAttached));
}

/// A mount of another history, or that is ahead of a restored server, is not let in.
#[tokio::test]
async fn attach_refuses_what_is_not_of_this_history() {
    let mut world = World::new();
    let of = |drive, history| AttachAsk { of: Some(([drive; 16], [history; 16])), ..ask(1, "a", 0, 1) };
    assert_eq!(world.attach(of(9, 2)).await, Err(AttachRefused::OtherHistory));
    assert_eq!(world.attach(of(1, 9)).await, Err(AttachRefused::OtherHistory));
    let ahead = AttachAsk { position: Position(4), ..of(1, 2) };
    let refused = AttachRefused::Ahead { mount: Position(4), server: Position(0) };
    assert_eq!(world.attach(ahead).await, Err(refused));
    assert!(world.attach(of(1, 2)).await.is_ok());
}

/// Sessions in use have names of their own; those no longer in use give theirs up.
#[tokio::test]
async fn names_in_use_are_numbered() {
    let mut world = World::new();
    for expected in ["agent", "agent-2", "agent-3"] {
        let id = expected.len() as u8 + expected.as_bytes()[expected.len() - 1];
        assert_eq!(world.attach(ask(id, "agent", 0, 1)).await.unwrap().name, expected);
    }
    let mut turn = Turn::new(1);
    let attached = world.order.attach(&mut turn, &ask(99, "agent", 0, 1), &|_| false).unwrap();
    assert_eq!(attached.name, "agent");
    let long = "é".repeat(32);
    let mut twice = |id| world.order.attach(&mut turn, &ask(id, &long, 0, 1), &|_| true).unwrap().name;
    assert_eq!(twice(100), long);
    assert_eq!(twice(101), format!("{}-2", "é".repeat(31)));
}

/// Journal and fold both give the order that was live, with every answer.
#[tokio::test]
async fn replay_and_fold_give_the_same_order() {
    let mut world = World::new();
    let (mut one, mut two) = (world.maker(1).await, world.maker(2).await);
    world.submit(&[one.touch("a"), two.touch("a"), one.touch("b")]).await;
    world.attach(ask(1, "s", 10, 11)).await.unwrap();
    let mut replayed = world.replayed().await;
    assert_eq!(replayed, world.order);
    let fold = replayed.fold();
    let sessions: Vec<_> = fold.sessions.into_iter().collect();
    let mut folded = Order::from_fold(IDS, &fold.order, &sessions).unwrap();
    world.order.fold();
    assert_eq!(folded, world.order);
    assert_eq!(folded.fold().sessions.len(), 0);
}

/// A journal entry of another drive, out of order, or not on its predecessor is damage, never taken in.
#[tokio::test]
async fn replay_refuses_what_does_not_fit() {
    let mut world = World::new();
    let mut maker = world.maker(1).await;
    world.submit(&[maker.touch("a")]).await;
    let entries = world.journal.read_from(1, usize::MAX).await.unwrap();
    assert!(Order::new(IDS).replay(2, &entries[1].1).is_err());
    assert!(Order::new(IDS).replay(1, &entries[1].1).is_err());
    assert!(Order::new(IDS).replay(1, b"junk").is_err());
    assert!(Order::new(DriveIds { drive: [9; 16], ..IDS }).replay(1, &entries[0].1).is_err());
    let mut other = World::new();
    other.attach(ask(7, "other", 0, 1)).await.unwrap();
    assert!(other.order.replay(2, &entries[1].1).is_err());
}
