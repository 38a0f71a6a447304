//! The server as one thread runs it: the real order, head and recovery over the stores' twins in memory, with the
//! sequencer's steps in the sequencer's order (pack, journal, answer, announce, index).

use super::{counts::Counts, packing::BlockMap};
use anyhow::{Context as _, Result, anyhow, bail, ensure};
use bytes::Bytes;
use prost::Message as _;
use std::{
    collections::BTreeMap,
    future::Future,
    pin::pin,
    sync::Arc,
    task::{Poll, Waker},
};
use tidefs_mount::session::loading::{Directory, DirectoryState};
use tidefs_proto::{
    model::{node_from, version_need},
    pack::decode_block,
    wire,
};
use tidefs_server::{
    head::{ArrivedPack, IndexHead, WithPacks},
    listing,
    order::{Answer, AttachAsk, Attached, DriveIds, Order, Submission, Turn, read_entry},
    packs,
    recover::recover,
    store::{
        Blocks as _, Fault, Faults, Journal as _, Op, blocks::MemoryBlocks, index::MemoryIndex,
        journal::MemoryJournal,
    },
};
use tidefs_timeline::{Entry, Hash, Head as _, Name, Node, NodeId, Position, Timestamp};
use wire::journal_record::Record;

const IDS: DriveIds = DriveIds { drive: [7; 16], history: [9; 16] };

/// Runs a future that never waits.
///
/// # Errors
/// When it does wait.
fn now<T>(future: impl Future<Output = T>) -> Result<T> {
    let mut future = pin!(future);
    match future.as_mut().poll(&mut std::task::Context::from_waker(Waker::noop())) {
        Poll::Ready(value) => Ok(value),
        Poll::Pending => bail!("a store in memory waited"),
    }
}

/// A shipment that arrived and waits for a turn.
pub struct Arrival {
    /// The mount that sent it, and over which connection.
    pub from: (usize, u64),
    /// It.
    pub submission: Submission,
}

/// What a turn came to.
pub struct TurnDone {
    /// Answers, in order.
    pub answers: Vec<((usize, u64), u64, Answer)>,
    /// Lines placed, for counting.
    pub lines: Vec<Bytes>,
}

struct Running {
    order: Order,
    head: IndexHead,
    arrived: BTreeMap<Hash, ArrivedPack>,
}

/// The server's disk, and the server while it runs.
pub struct Server {
    journal: MemoryJournal,
    index: MemoryIndex,
    blocks: MemoryBlocks,
    /// Makes the stores fail.
    pub faults: Faults,
    up: Option<Running>,
    /// Shipments that wait for a turn.
    pub pending: Vec<Arrival>,
    /// The timeline as it was announced.
    pub lines: Vec<Bytes>,
}

fn created() -> Timestamp {
    Timestamp { seconds: 1_000_000, nanos: 0 }
}

impl Server {
    /// A new drive; not running yet.
    pub fn new() -> Self {
        let faults = Faults::new();
        Self {
            journal: MemoryJournal::new(faults.clone()),
            index: MemoryIndex::new(faults.clone()),
            blocks: MemoryBlocks::new(faults.clone()),
            faults,
            up: None,
            pending: Vec::new(),
            lines: Vec::new(),
        }
    }

    /// Whether it runs.
    pub fn is_up(&self) -> bool {
        self.up.is_some()
    }

    /// Ends without a word; `index` says what its index loses.
    pub fn crash(&mut self, index: IndexLoss) {
        self.up = None;
        self.pending.clear();
        self.faults.clear();
        match index {
            IndexLoss::Nothing => {}
            IndexLoss::Unsynced => self.index.lose_unsynced(),
            IndexLoss::All => self.index.lose_all(),
        }
    }

    /// Starts from the journal. What the journal says must begin with what was announced.
    ///
    /// # Errors
    /// When it does not come up, or history changed.
    pub fn start(&mut self) -> Result<()> {
        self.journal = self.journal.reopen();
        let index = Arc::new(self.index.clone());
        let (order, head) = now(recover((IDS, created()), &self.journal, index, &self.blocks))?
            .map_err(|error| anyhow!("the server does not start: {error}"))?;
        let stored = self.journal_lines()?;
        ensure!(stored.starts_with(&self.lines), "what was announced is not what the journal holds");
        self.lines = stored;
        ensure!(head.position() == order.position(), "head and order differ after a start");
        self.up = Some(Running { order, head, arrived: BTreeMap::new() });
        Ok(())
    }

    fn journal_lines(&self) -> Result<Vec<Bytes>> {
        let mut lines = Vec::new();
        for (entry, body) in now(self.journal.read_from(1, usize::MAX))?? {
            for record in read_entry(entry, &body)?.records {
                if let Some(Record::Placed(placed)) = record.record {
                    lines.push(placed.placed.context("a line without result")?.encode_to_vec().into());
                }
            }
        }
        Ok(lines)
    }

    fn running(&self) -> Result<&Running> {
        self.up.as_ref().context("the server is down")
    }

    /// The head.
    ///
    /// # Errors
    /// When the server is down.
    pub fn head(&self) -> Result<&IndexHead> {
        Ok(&self.running()?.head)
    }

    /// The head's position.
    pub fn position(&self) -> Position {
        self.up.as_ref().map_or(Position(0), |up| up.order.position())
    }

    /// Attaches; the entry is durable when this returns.
    ///
    /// # Errors
    /// When refused, or the server is down.
    pub fn attach(&mut self, ask: &AttachAsk, now_us: u64) -> Result<(Attached, Node)> {
        let up = self.up.as_mut().context("the server is down")?;
        let mut turn = Turn::new(now_us);
        let attached = up.order.attach(&mut turn, ask, &|_| false)?;
        if let Some(unsaved) = up.order.seal(turn) {
            let saved = now(unsaved.save(&self.journal))??;
            up.head.advance(saved, BTreeMap::new());
        }
        let root = up.head.node(NodeId::ROOT)?.context("no root")?;
        Ok((attached, Node::clone(&root)))
    }

    /// Takes a pack. False: the disk failed and the sender has to come again.
    ///
    /// # Errors
    /// When it is not a pack.
    pub fn put_pack(&mut self, id: Hash, bytes: &[u8]) -> Result<bool> {
        let mut table = packs::check_in_memory(id, bytes)?;
        // Small packs may go into the journal entry and be stored later; chance says which.
        if id.0[0].is_multiple_of(2) {
            table.bytes = Bytes::copy_from_slice(bytes);
        } else if now(self.blocks.put_pack(id.0, Bytes::copy_from_slice(bytes)))?.is_err() {
            return Ok(false);
        }
        let up = self.up.as_mut().context("the server is down")?;
        if !up.head.knows_pack(&id)? {
            up.arrived.insert(id, table);
        }
        Ok(true)
    }

    /// Decides what waits, up to and including the journal entry. None: the journal failed.
    ///
    /// # Errors
    /// When the head cannot be read.
    pub fn turn(&mut self, now_us: u64) -> Result<Option<TurnDone>> {
        let up = self.up.as_mut().context("the server is down")?;
        let mut turn = Turn::new(now_us);
        let mut answers = Vec::new();
        for arrival in std::mem::take(&mut self.pending) {
            let blocks = WithPacks { head: &up.head, arrived: &up.arrived };
            let answer = up.order.submit(&mut turn, &up.head, &blocks, &arrival.submission)?;
            let answer = answer.context("a small turn was full")?;
            answers.push((arrival.from, arrival.submission.version.number.0, answer));
        }
        let Some(unsaved) = up.order.seal(turn) else {
            return Ok(Some(TurnDone { answers, lines: Vec::new() }));
        };
        let Ok(saved) = now(unsaved.save(&self.journal))? else { return Ok(None) };
        let mut blocks = BTreeMap::new();
        for pack in saved.changes.packs.keys() {
            if let Some(table) = up.arrived.remove(pack) {
                blocks.extend(table.blocks.iter().map(|(hash, place)| (*hash, (*pack, *place))));
            }
        }
        let lines: Vec<Bytes> = saved.changes.lines.iter().map(|line| line.bytes.clone()).collect();
        up.head.advance(saved, blocks);
        self.lines.extend(lines.iter().cloned());
        Ok(Some(TurnDone { answers, lines }))
    }

    /// Writes the index. False: it failed, and the server must start again.
    ///
    /// # Errors
    /// When the server is down.
    pub fn write_index(&mut self, flush: bool) -> Result<bool> {
        let up = self.up.as_mut().context("the server is down")?;
        if !up.head.is_behind() {
            return Ok(true);
        }
        let write = up.head.begin_write(up.order.fold());
        if now(packs::store(&self.blocks, write.packs()))?.is_err() || write.run(false).is_err() {
            return Ok(false);
        }
        up.head.written();
        Ok(!flush || up.head.flush().is_ok())
    }

    /// Lists directories as the fetch service does.
    ///
    /// # Errors
    /// When the head cannot be read.
    pub fn list(&self, dir: NodeId, prefetch: u32) -> Result<Vec<Directory>> {
        let up = self.running()?;
        let parts = listing::list(&up.head, up.head.position(), &[dir], prefetch)?;
        parts.iter().map(directory_of).collect()
    }

    /// Blocks by hash.
    ///
    /// # Errors
    /// When one is not there.
    pub fn fetch(&self, hash: Hash, into: &mut BlockMap) -> Result<()> {
        let (pack, place) =
            self.head()?.block(&hash)?.with_context(|| format!("block {hash} is not stored"))?;
        let range = place.frame_offset..place.frame_offset + u64::from(place.stored_len);
        let frame = match self.head()?.inline_pack(&pack) {
            Some(bytes) => bytes.slice(range.start as usize..range.end as usize),
            None => now(self.blocks.read(pack.0, &[range]))??.swap_remove(0),
        };
        into.insert(hash, decode_block(&frame, &place)?);
        Ok(())
    }

    /// Makes the next call of a kind fail.
    pub fn fail_next(&self, op: Op, fault: Fault, counts: &mut Counts) {
        counts.add(&format!("fault: {op:?} fails {fault:?}"));
        self.faults.fail_next(op, fault);
    }
}

impl Default for Server {
    fn default() -> Self {
        Self::new()
    }
}

/// What a crash takes from the index.
#[derive(Clone, Copy, Debug)]
pub enum IndexLoss {
    /// Nothing.
    Nothing,
    /// What was not flushed.
    Unsynced,
    /// All of it.
    All,
}

fn directory_of(part: &wire::DirectoryPart) -> Result<Directory> {
    ensure!(part.last, "a small directory came in parts");
    let what = if part.gone {
        DirectoryState::Gone
    } else if part.alias != 0 {
        DirectoryState::Alias(NodeId(part.alias))
    } else {
        let mut entries = BTreeMap::new();
        for line in &part.entries {
            let entry = Entry { node: NodeId(line.node), version: version_need("version", &line.version)? };
            entries.insert(Name::new(&line.name)?, entry);
        }
        let node = |line: &wire::NodeLine| {
            let node = node_from(line.node.as_ref().context("a line without node")?)?;
            Ok((NodeId(line.id), Arc::new(node)))
        };
        DirectoryState::Listing { entries, nodes: part.nodes.iter().map(node).collect::<Result<_>>()? }
    };
    Ok(Directory { id: NodeId(part.dir), position: Position(part.position), what })
}
