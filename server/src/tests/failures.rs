//! The sequencer on stores that fail before or after they did what they were asked.

use crate::{
    drive::{Drive, Ended, JournalAndIndex, OpenError, Stores},
    fixture::{Maker, ask, content, pack, walk},
    head::ArrivedPack,
    order::Answer,
    packs::check_in_memory,
    store::{
        Blocks, DriveRecord, Fault, Faults, Index, Op, blocks::MemoryBlocks, index::MemoryIndex,
        journal::MemoryJournal,
    },
};
use std::sync::Arc;
use tidefs_timeline::{Kind, NodeId, Position};

struct Twins {
    faults: Faults,
    journal: MemoryJournal,
    index: MemoryIndex,
    blocks: MemoryBlocks,
}

impl Stores for Twins {
    fn open(&self) -> Result<JournalAndIndex, OpenError> {
        Ok((Arc::new(self.journal.reopen()), Arc::new(self.index.clone())))
    }

    fn set_index_aside(&self) -> Result<(), OpenError> {
        self.index.lose_all();
        Ok(())
    }

    fn blocks(&self) -> Arc<dyn Blocks> {
        Arc::new(self.blocks.clone())
    }
}

struct World {
    twins: Arc<Twins>,
    drive: Arc<Drive>,
}

impl World {
    async fn new() -> Self {
        let faults = Faults::new();
        let twins = Arc::new(Twins {
            journal: MemoryJournal::new(faults.clone()),
            index: MemoryIndex::new(faults.clone()),
            blocks: MemoryBlocks::new(faults.clone()),
            faults,
        });
        let drive = Self::open(&twins).await;
        Self { twins, drive }
    }

    async fn open(twins: &Arc<Twins>) -> Arc<Drive> {
        let record =
            DriveRecord { name: "d".into(), drive_id: [1; 16], history_id: [2; 16], created_unix_ms: 5 };
        Drive::open(&record, twins.clone()).await.unwrap()
    }

    async fn submit(&self, submission: crate::order::Submission) -> Result<Answer, Ended> {
        self.drive.submit(submission).await?.await.map_err(|_| Ended)
    }

    async fn again(&mut self) {
        self.drive.ended().await;
        self.drive = Self::open(&self.twins).await;
    }
}

/// A journal that fails, whether or not the entry exists, never leads to an answer; after a restart the resend is
/// answered once, with one position.
#[tokio::test]
async fn a_failed_journal_write_is_not_acknowledged() {
    for fault in [Fault::Before, Fault::After, Fault::Full] {
        let mut world = World::new().await;
        let attached = world.drive.attach(ask(1, "s", 0, 10)).await.unwrap().unwrap();
        assert_eq!(attached.epoch, 1);
        let mut maker = Maker::new(1, 10);
        let (first, second) = (maker.touch("a"), maker.touch("b"));
        world.twins.faults.fail_next(Op::JournalCreate, fault);
        assert_eq!(world.submit(first.clone()).await, Err(Ended));
        world.again().await;
        assert_eq!(world.submit(first.clone()).await, Ok(Answer::Placed(Position(1))), "{fault:?}");
        assert_eq!(world.submit(second).await, Ok(Answer::Placed(Position(2))));
        assert_eq!(world.submit(first).await, Ok(Answer::Placed(Position(1))));
        assert_eq!(world.drive.head.read().position(), Position(2));
    }
}

/// An index that fails ends the sequencer but loses nothing: the journal has it all.
#[tokio::test]
async fn a_failed_index_write_loses_nothing() {
    for (op, fault) in [(Op::IndexCommit, Fault::Before), (Op::IndexCommit, Fault::After)] {
        let mut world = World::new().await;
        world.drive.attach(ask(1, "s", 0, 10)).await.unwrap().unwrap();
        let mut maker = Maker::new(1, 10);
        world.twins.faults.fail_next(op, fault);
        for n in 0..20 {
            let submission = maker.touch(&format!("f{n}"));
            while world.submit(submission.clone()).await.is_err() {
                world.again().await;
            }
        }
        let live = walk(&*world.drive.head.read());
        assert_eq!(live.0.len(), 20);
        world.drive.close().await;
        world.twins.index.lose_all();
        world.again().await;
        assert_eq!(walk(&*world.drive.head.read()), live);
    }
}

/// An index whose fold is not what was written is made again, without anybody asking.
#[tokio::test]
async fn a_damaged_index_is_made_again() {
    let mut world = World::new().await;
    world.drive.attach(ask(1, "s", 0, 10)).await.unwrap().unwrap();
    world.submit(Maker::new(1, 10).touch("a")).await.unwrap();
    let live = walk(&*world.drive.head.read());
    world.drive.close().await;
    let mut batch = crate::store::Batch::new();
    batch.put(*b"F", *b"junk");
    let position = world.twins.index.position().unwrap();
    world.twins.index.commit(batch, position).unwrap();
    world.again().await;
    assert_eq!(walk(&*world.drive.head.read()), live);
}

/// A small pack is stored by the journal entry that names it. If it cannot be put among the packs, the drive starts
/// again and puts it there before anything says that its blocks are there.
#[tokio::test]
async fn a_pack_in_the_journal_reaches_the_packs() {
    let mut world = World::new().await;
    world.drive.attach(ask(1, "s", 0, 10)).await.unwrap().unwrap();
    let (id, bytes, hashes) = pack(&[b"hello"]);
    let table = ArrivedPack { bytes: bytes.clone(), ..check_in_memory(id, &bytes).unwrap() };
    world.twins.faults.fail_next(Op::PackPut, Fault::Before);
    world.drive.pack_arrived(id, table).await.unwrap();
    let mut maker = Maker::new(1, 10);
    let mut draft = maker.draft();
    draft.create(NodeId::ROOT, "a", Kind::File, content(Some((hashes[0], 5))));
    draft.pack = Some(id);
    assert_eq!(world.submit(maker.submit(draft)).await, Ok(Answer::Placed(Position(1))));
    world.again().await;
    assert_eq!(world.twins.blocks.size(id.0).await.unwrap(), bytes.len() as u64);
    let head = world.drive.head.read();
    assert_eq!(head.block(&hashes[0]).unwrap().unwrap().0, id);
    assert!(head.inline_pack(&id).is_none());
}
