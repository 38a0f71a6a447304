//! The sequencer: one thread for each drive, which takes what waits, decides it in one turn, makes it durable with
//! one journal entry, and only then answers, shows and announces it. The index follows in the background.
//!
//! When a write fails nobody knows what is stored, so the sequencer ends without answering; the next request opens
//! the drive again from the journal, and the sessions ask again.

use crate::{
    drive::{Ask, OpenError, Stores},
    followers::Followers,
    head::{ArrivedPack, BlockAt, HeadError, IndexHead, WithPacks, Write},
    order::{Answer, AttachRefused, Attached, DriveIds, Line, Order, Saved, Submission, Turn},
    packs::{self, PacksError},
    recover::recover,
    store::{Blocks, Journal, JournalError},
    telemetry,
};
use parking_lot::RwLock;
use std::{
    collections::{BTreeMap, VecDeque},
    sync::Arc,
    time::{Duration, Instant},
};
use tidefs_timeline::{Hash, SessionNo, Timestamp};
use tokio::{
    sync::{OwnedSemaphorePermit, mpsc, oneshot},
    task::JoinHandle,
};

/// Asks that one turn takes.
const TURN_ASKS: usize = 64;
/// Bytes of records past which a turn takes no more.
const TURN_BYTES: usize = 8 << 20;
/// Changes that may wait for the index; above it the sequencer waits for the index.
const WAITING_CHANGES: usize = 100_000;
/// Packs that have arrived and that no shipment has named; the oldest are forgotten (and sent again if needed).
const ARRIVED_PACKS: usize = 256;
/// Blocks of those packs.
const ARRIVED_BLOCKS: usize = 2 << 20;
/// The index is flushed at most this often: what it loses is read from the journal again.
const FLUSH_EVERY: Duration = Duration::from_secs(10);
/// A session counts as in use this long after it attached, though it does not follow yet.
const ATTACHED_LATELY: Duration = Duration::from_secs(60);

/// What a sequencer starts from.
pub(crate) struct Start {
    pub name: String,
    pub ids: DriveIds,
    pub created: Timestamp,
    pub stores: Arc<dyn Stores>,
}

/// What a sequencer shares once it has started.
pub(crate) struct Shared {
    pub head: Arc<RwLock<IndexHead>>,
    pub journal: Arc<dyn Journal>,
    pub followers: Arc<Followers>,
}

/// Why a sequencer ended.
#[derive(Debug, thiserror::Error)]
enum SequencerError {
    #[error(transparent)]
    Journal(#[from] JournalError),
    #[error(transparent)]
    Head(#[from] HeadError),
    #[error(transparent)]
    Packs(#[from] PacksError),
    #[error("the thread that writes the index ended early")]
    Worker,
}

/// An answer that waits for its journal entry.
enum Held {
    Attach(oneshot::Sender<Result<Attached, AttachRefused>>, Result<Attached, AttachRefused>),
    Submit(oneshot::Sender<Answer>, Answer),
}

type Submitted = (Box<Submission>, oneshot::Sender<Answer>, OwnedSemaphorePermit);

struct Sequencer {
    name: String,
    order: Order,
    head: Arc<RwLock<IndexHead>>,
    journal: Arc<dyn Journal>,
    followers: Arc<Followers>,
    asks: mpsc::Receiver<Ask>,
    /// What did not fit into the last turn.
    kept: Option<Submitted>,
    arrived: Arrived,
    attached: BTreeMap<SessionNo, Instant>,
    index: IndexWriter,
    closing: bool,
}

/// Starts a sequencer on a thread of its own; returns when it has brought up the drive.
pub(crate) async fn start(start: Start, asks: mpsc::Receiver<Ask>) -> Result<Shared, OpenError> {
    let (ready, started) = oneshot::channel();
    let runtime = tokio::runtime::Handle::current();
    let name: String = format!("seq-{}", start.name).chars().take(15).collect();
    let body = move || runtime.block_on(run(start, asks, ready));
    std::thread::Builder::new().name(name).spawn(body).map_err(OpenError::Thread)?;
    started.await.unwrap_or(Err(OpenError::Ended))
}

async fn run(start: Start, asks: mpsc::Receiver<Ask>, ready: oneshot::Sender<Result<Shared, OpenError>>) {
    let begun = Instant::now();
    let mut sequencer = match bring_up(&start, asks).await {
        Ok(sequencer) => sequencer,
        Err(error) => {
            // Whoever asked for the drive says what is wrong; if that one has gone, nobody needs to know.
            let _ = ready.send(Err(error));
            return;
        }
    };
    let shared = Shared {
        head: sequencer.head.clone(),
        journal: sequencer.journal.clone(),
        followers: sequencer.followers.clone(),
    };
    tracing::info!(
        drive = start.name,
        epoch = sequencer.order.epoch(),
        position = sequencer.order.position().0,
        ms = begun.elapsed().as_millis() as u64,
        "drive opened"
    );
    if ready.send(Ok(shared)).is_err() {
        return;
    }
    drop(start);
    match sequencer.turns().await {
        Ok(()) => tracing::info!(drive = sequencer.name, "drive closed"),
        Err(error) => {
            telemetry::sequencer_failed();
            tracing::error!(drive = sequencer.name, %error, "sequencer ended; it starts again when asked");
        }
    }
}

async fn bring_up(start: &Start, asks: mpsc::Receiver<Ask>) -> Result<Sequencer, OpenError> {
    let blocks = start.stores.blocks();
    let (mut journal, mut index) = start.stores.open()?;
    let of = (start.ids, start.created);
    let (order, head) = match recover(of, &*journal, index, &*blocks).await {
        Err(error) if error.blames_index() => {
            tracing::warn!(drive = start.name, %error, "making the index again from the journal");
            drop(journal);
            start.stores.set_index_aside()?;
            (journal, index) = start.stores.open()?;
            recover(of, &*journal, index, &*blocks).await?
        }
        other => other?,
    };
    telemetry::head(&start.name, order.position());
    Ok(Sequencer {
        name: start.name.clone(),
        followers: Arc::new(Followers::new(order.position())),
        order,
        head: Arc::new(RwLock::new(head)),
        journal,
        asks,
        kept: None,
        arrived: Arrived::default(),
        attached: BTreeMap::new(),
        index: IndexWriter::new(blocks),
        closing: false,
    })
}

impl Sequencer {
    async fn turns(&mut self) -> Result<(), SequencerError> {
        while !self.closing || self.kept.is_some() {
            if self.kept.is_none() {
                let Some(first) = self.wait().await? else { break };
                self.turn(Some(first)).await?;
            } else {
                self.turn(None).await?;
            }
            self.index.keep_up(&self.head, &mut self.order).await?;
        }
        self.index.finish(&self.head, &mut self.order).await
    }

    /// The next ask; meanwhile the index is written.
    async fn wait(&mut self) -> Result<Option<Ask>, SequencerError> {
        loop {
            tokio::select! {
                biased;
                ask = self.asks.recv() => return Ok(ask),
                done = self.index.done() => {
                    self.index.ended(&self.head, done)?;
                    self.index.keep_up(&self.head, &mut self.order).await?;
                }
            }
        }
    }

    async fn turn(&mut self, first: Option<Ask>) -> Result<(), SequencerError> {
        let begun = Instant::now();
        let mut turn = Turn::new(telemetry::unix_us());
        let held = self.decide(&mut turn, first)?;
        let decided = begun.elapsed();
        let saved = match self.order.seal(turn) {
            Some(unsaved) => Some(unsaved.save(&*self.journal).await?),
            None => None,
        };
        let stored = begun.elapsed();
        let placed = held.iter().filter(|held| matches!(held, Held::Submit(..))).count();
        // Whoever has an answer finds the head at that position.
        let lines = saved.map(|saved| self.show(saved)).unwrap_or_default();
        held.into_iter().for_each(Held::give);
        self.followers.announce(lines);
        if placed > 0 {
            telemetry::turn(placed, [decided, stored - decided, begun.elapsed() - stored]);
        }
        Ok(())
    }

    /// Decides what waits, up to the bounds of a turn.
    fn decide(&mut self, turn: &mut Turn, first: Option<Ask>) -> Result<Vec<Held>, SequencerError> {
        let head = self.head.clone();
        let head = head.read();
        let mut held = Vec::new();
        if let Some(kept) = self.kept.take() {
            self.submit(turn, &head, kept, &mut held)?;
        }
        let mut next = first.or_else(|| self.asks.try_recv().ok());
        while let Some(ask) = next {
            self.ask(turn, &head, ask, &mut held)?;
            if held.len() >= TURN_ASKS || turn.bytes() >= TURN_BYTES || self.kept.is_some() || self.closing {
                break;
            }
            next = self.asks.try_recv().ok();
        }
        Ok(held)
    }

    fn ask(
        &mut self,
        turn: &mut Turn,
        head: &IndexHead,
        ask: Ask,
        held: &mut Vec<Held>,
    ) -> Result<(), SequencerError> {
        match ask {
            Ask::Attach(ask, reply) => {
                let now = Instant::now();
                self.attached.retain(|_, at| now.duration_since(*at) < ATTACHED_LATELY);
                let following = self.followers.sessions();
                let lately = &self.attached;
                let live = |session| following.contains(&session) || lately.contains_key(&session);
                let answer = self.order.attach(turn, &ask, &live);
                if let Ok(attached) = &answer {
                    self.attached.insert(attached.session, now);
                }
                held.push(Held::Attach(reply, answer));
            }
            Ask::Submit(submission, reply, permit) => {
                self.submit(turn, head, (submission, reply, permit), held)?;
            }
            Ask::Pack(pack, table) => {
                // A pack that was named before is named for good.
                if !head.knows_pack(&pack)? {
                    self.arrived.add(pack, table);
                }
            }
            Ask::HasPack(pack, reply) => {
                let known =
                    if self.arrived.packs.contains_key(&pack) { Ok(true) } else { head.knows_pack(&pack) };
                // Whoever asked may have gone.
                let _ = reply.send(known);
            }
            Ask::Close => self.closing = true,
        }
        Ok(())
    }

    fn submit(
        &mut self,
        turn: &mut Turn,
        head: &IndexHead,
        submitted: Submitted,
        held: &mut Vec<Held>,
    ) -> Result<(), SequencerError> {
        let blocks = WithPacks { head, arrived: &self.arrived.packs };
        match self.order.submit(turn, head, &blocks, &submitted.0)? {
            Some(answer) => {
                telemetry::answered(&answer, submitted.0.stages());
                held.push(Held::Submit(submitted.1, answer));
            }
            None => self.kept = Some(submitted),
        }
        Ok(())
    }

    /// Shows an entry at the head; gives the lines to announce.
    fn show(&mut self, mut saved: Saved) -> Vec<Line> {
        let mut blocks: BTreeMap<Hash, BlockAt> = BTreeMap::new();
        for pack in saved.changes.packs.keys() {
            if let Some(table) = self.arrived.remove(pack) {
                blocks.extend(table.blocks.iter().map(|(hash, place)| (*hash, (*pack, *place))));
            }
        }
        let lines = saved.changes.lines.clone();
        // The layer keeps positions only.
        saved.changes.lines.iter_mut().for_each(|line| line.bytes.clear());
        self.head.write().advance(saved, blocks);
        telemetry::head(&self.name, self.order.position());
        lines
    }
}

impl Held {
    fn give(self) {
        // Whoever asked may have gone; a resend gets the same answer.
        match self {
            Held::Attach(reply, answer) => drop(reply.send(answer)),
            Held::Submit(reply, answer) => drop(reply.send(answer)),
        }
    }
}

/// Packs that are stored and that no journal entry names yet.
#[derive(Default)]
struct Arrived {
    packs: BTreeMap<Hash, ArrivedPack>,
    oldest: VecDeque<Hash>,
    blocks: usize,
}

impl Arrived {
    fn add(&mut self, pack: Hash, table: ArrivedPack) {
        if self.packs.contains_key(&pack) {
            return;
        }
        self.blocks += table.blocks.len();
        self.packs.insert(pack, table);
        self.oldest.push_back(pack);
        while self.packs.len() > 1 && (self.packs.len() > ARRIVED_PACKS || self.blocks > ARRIVED_BLOCKS) {
            let Some(oldest) = self.oldest.front().copied() else { break };
            self.remove(&oldest);
        }
    }

    fn remove(&mut self, pack: &Hash) -> Option<ArrivedPack> {
        let table = self.packs.remove(pack)?;
        self.blocks -= table.blocks.len();
        self.oldest.retain(|other| other != pack);
        Some(table)
    }
}

/// Writes the index behind the sequencer's back, one write at a time, and before each the packs that the journal
/// holds: so whatever the index says of blocks is among the packs.
struct IndexWriter {
    blocks: Arc<dyn Blocks>,
    writing: Option<JoinHandle<Result<(), SequencerError>>>,
    flushed: Option<Instant>,
}

type Done = Result<Result<(), SequencerError>, tokio::task::JoinError>;

async fn write(blocks: Arc<dyn Blocks>, write: Write, flush: bool) -> Result<(), SequencerError> {
    packs::store(&*blocks, write.packs()).await?;
    let written = tokio::task::spawn_blocking(move || write.run(flush)).await;
    Ok(written.map_err(|_| SequencerError::Worker)??)
}

impl IndexWriter {
    fn new(blocks: Arc<dyn Blocks>) -> Self {
        Self { blocks, writing: None, flushed: None }
    }

    /// The end of the write that is under way; never if there is none.
    async fn done(&mut self) -> Done {
        match &mut self.writing {
            Some(writing) => writing.await,
            None => std::future::pending().await,
        }
    }

    fn ended(&mut self, head: &RwLock<IndexHead>, done: Done) -> Result<(), SequencerError> {
        self.writing = None;
        done.map_err(|_| SequencerError::Worker)??;
        head.write().written();
        Ok(())
    }

    /// Begins a write if there is something to write; waits when too much waits already.
    async fn keep_up(&mut self, head: &RwLock<IndexHead>, order: &mut Order) -> Result<(), SequencerError> {
        if self.writing.is_some() {
            if head.read().waiting() < WAITING_CHANGES {
                return Ok(());
            }
            let done = self.done().await;
            self.ended(head, done)?;
        }
        if !head.read().is_behind() {
            return Ok(());
        }
        let flush = self.flushed.is_none_or(|at| at.elapsed() > FLUSH_EVERY);
        if flush {
            self.flushed = Some(Instant::now());
        }
        let begun = head.write().begin_write(order.fold());
        self.writing = Some(tokio::spawn(write(self.blocks.clone(), begun, flush)));
        Ok(())
    }

    /// Writes all and makes it durable.
    async fn finish(&mut self, head: &RwLock<IndexHead>, order: &mut Order) -> Result<(), SequencerError> {
        if self.writing.is_some() {
            let done = self.done().await;
            self.ended(head, done)?;
        }
        if head.read().is_behind() {
            let begun = head.write().begin_write(order.fold());
            write(self.blocks.clone(), begun, true).await?;
            head.write().written();
        }
        Ok(head.read().flush()?)
    }
}
