//! The order of a drive: who its sessions are, what each was answered, and what comes next.
//!
//! This is the server's one place of decision, and it is plain synchronous code: time, ids and the head are
//! arguments, nothing here waits or reads a clock. A *turn* collects what several callers ask ([`Order::attach`],
//! [`Order::submit`]), each placed on what the ones before it came to. [`Order::seal`] makes one journal entry of
//! it, and only the entry's durable form ([`Saved`]) gives out lines to announce; the answers that the calls
//! returned must be held back until then.
//!
//! Order runs ahead of the journal within a turn. When the entry cannot be saved, the whole value is dropped and
//! made again from the journal ([`Order::replay`]): nobody has seen its answers yet. Live and replayed records
//! go through the same three functions (`opened`, `resumed`, `answered`), so both give the same order.

mod attach;
mod fold;
mod session;
mod submit;
#[cfg(test)]
pub(crate) mod tests;

use crate::store::{Journal, JournalError};
use bytes::Bytes;
use prost::Message;
use std::collections::{BTreeMap, BTreeSet};
use tidefs_proto::{BadMessage, PlacedLine, wire};
use tidefs_timeline::{Hash, Overlay, Position, SessionNo, Version};
use wire::journal_record::Record;

pub use attach::{AttachAsk, AttachRefused, Attached};
pub use fold::Fold;
pub use tidefs_proto::refusal::Refusal;
pub use session::{ANSWERS_KEPT, Answer, Session};
pub use submit::{NewPack, StoredBlocks, Submission};

/// The format of journal entries that this code writes.
const ENTRY_FORMAT: u32 = 1;
/// The most bytes of records in one entry: what a journal takes, less what the entry itself needs.
const RECORDS_BYTES_MAX: usize = crate::store::journal::ENTRY_BYTES_MAX - (64 << 10);

/// Which drive, and which history of it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct DriveIds {
    /// The drive.
    pub drive: [u8; 16],
    /// Its history.
    pub history: [u8; 16],
}

/// Why stored state could not be taken in. The index may then be rebuilt; a journal that says this is damaged.
#[derive(Debug, thiserror::Error)]
pub enum ReplayError {
    /// Not the bytes that a journal or fold has.
    #[error(transparent)]
    Bad(#[from] BadMessage),
    /// An entry does not continue the one before it.
    #[error("journal entry {entry} {what}; restore the journal from a backup")]
    Broken {
        /// The entry.
        entry: u64,
        /// What is wrong with it.
        what: &'static str,
    },
}

/// One line of the timeline as it is announced.
#[derive(Clone, Debug)]
pub struct Line {
    /// Where on the timeline.
    pub position: Position,
    /// The checkpoint.
    pub version: Version,
    /// The encoded `Placed` message.
    pub bytes: Bytes,
}

/// What a turn has come to so far.
#[derive(Debug, Default)]
pub struct Turn {
    /// Wall-clock time of the turn, microseconds since 1970.
    pub now_us: u64,
    records: Vec<wire::JournalRecord>,
    bytes: usize,
    effects: Overlay,
    lines: Vec<Line>,
    packs: BTreeMap<Hash, Bytes>,
}

impl Turn {
    /// A turn that begins at `now_us`, microseconds since 1970.
    pub fn new(now_us: u64) -> Self {
        Self { now_us, ..Self::default() }
    }

    /// Bytes that its journal entry will have, about.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    fn push(&mut self, record: Record) {
        let record = wire::JournalRecord { record: Some(record) };
        self.bytes += record.encoded_len() + 8;
        self.records.push(record);
    }
}

/// A journal entry that is not durable yet.
#[derive(Debug)]
#[must_use = "what was decided must be saved or the order dropped"]
pub struct Unsaved {
    entry: u64,
    body: Bytes,
    changes: Changes,
}

/// A journal entry that is durable: what it holds may be shown.
#[derive(Debug)]
#[must_use = "what is durable must be shown"]
pub struct Saved {
    /// The journal entry.
    pub entry: u64,
    /// What it changes.
    pub changes: Changes,
}

/// What an entry changes.
#[derive(Debug, Default)]
pub struct Changes {
    /// At the head.
    pub effects: Overlay,
    /// On the timeline, in order.
    pub lines: Vec<Line>,
    /// Packs that it names for the first time; with their bytes where the entry holds them.
    pub packs: BTreeMap<Hash, Bytes>,
}

impl Unsaved {
    /// The number of the entry.
    pub fn entry(&self) -> u64 {
        self.entry
    }

    /// Makes the entry durable.
    ///
    /// # Errors
    /// Those of the journal; then whether the entry exists is unknown and the order must be made again.
    pub async fn save(self, journal: &dyn Journal) -> Result<Saved, JournalError> {
        journal.create(self.entry, self.body).await?;
        Ok(Saved { entry: self.entry, changes: self.changes })
    }

    /// As [`Unsaved::save`], for journals that never wait, such as the twin in memory. None if the journal waits;
    /// whether the entry exists is then unknown.
    pub fn save_now(self, journal: &dyn Journal) -> Option<Result<Saved, JournalError>> {
        futures::FutureExt::now_or_never(self.save(journal))
    }
}

/// The state that decides.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Order {
    ids: DriveIds,
    epoch: u64,
    entry: u64,
    chain: [u8; 32],
    position: Position,
    next_session: u32,
    sessions: BTreeMap<SessionNo, Session>,
    /// Sessions that changed since the last fold.
    dirty: BTreeSet<SessionNo>,
}

impl Order {
    /// The order of a drive that has no journal entry yet.
    pub fn new(ids: DriveIds) -> Self {
        Self {
            ids,
            epoch: 0,
            entry: 0,
            chain: [0; 32],
            position: Position(0),
            next_session: 1,
            sessions: BTreeMap::new(),
            dirty: BTreeSet::new(),
        }
    }

    /// Begins a new epoch: once per start of a server, after the journal was replayed.
    pub fn begin_epoch(&mut self) {
        self.epoch += 1;
    }

    /// The epoch; 0 before the first start.
    pub fn epoch(&self) -> u64 {
        self.epoch
    }

    /// The head's position.
    pub fn position(&self) -> Position {
        self.position
    }

    /// The last journal entry that it reflects.
    pub fn entry(&self) -> u64 {
        self.entry
    }

    /// The drive's ids.
    pub fn ids(&self) -> DriveIds {
        self.ids
    }

    /// A session of the drive.
    pub fn session(&self, session: SessionNo) -> Option<&Session> {
        self.sessions.get(&session)
    }

    /// How many sessions the drive has had.
    pub fn session_count(&self) -> usize {
        self.sessions.len()
    }

    /// Ends a turn: none if it decided nothing that must be kept.
    pub fn seal(&mut self, turn: Turn) -> Option<Unsaved> {
        if turn.records.is_empty() {
            return None;
        }
        self.entry += 1;
        let body = wire::JournalEntry {
            format: ENTRY_FORMAT,
            drive: self.ids.drive.to_vec().into(),
            history: self.ids.history.to_vec().into(),
            epoch: self.epoch,
            entry: self.entry,
            previous: self.chain.to_vec().into(),
            records: turn.records,
        }
        .encode_to_vec();
        self.chain = *blake3::hash(&body).as_bytes();
        let changes = Changes { effects: turn.effects, lines: turn.lines, packs: turn.packs };
        Some(Unsaved { entry: self.entry, body: body.into(), changes })
    }

    /// Takes in a journal entry that follows the last one. What it changes is in the entry: nothing is placed
    /// again, so later rules cannot give another tree.
    ///
    /// # Errors
    /// When it is not the next entry of this drive's history.
    pub fn replay(&mut self, number: u64, body: &[u8]) -> Result<Changes, ReplayError> {
        let entry = read_entry(number, body)?;
        let broken = |what| ReplayError::Broken { entry: number, what };
        if number != self.entry + 1 {
            return Err(broken("is not the next one"));
        }
        if entry.drive[..] != self.ids.drive || entry.history[..] != self.ids.history {
            return Err(broken("belongs to another drive or history"));
        }
        if entry.previous[..] != self.chain || entry.epoch < self.epoch {
            return Err(broken("does not continue the entry before it"));
        }
        let mut changes = Changes::default();
        for record in entry.records {
            self.replay_record(number, record.record, &mut changes)?;
        }
        self.epoch = entry.epoch;
        self.entry = number;
        self.chain = *blake3::hash(body).as_bytes();
        Ok(changes)
    }

    fn replay_record(
        &mut self,
        entry: u64,
        record: Option<Record>,
        changes: &mut Changes,
    ) -> Result<(), ReplayError> {
        let broken = |what| ReplayError::Broken { entry, what };
        match record {
            Some(Record::Opened(opened)) => self.opened(&opened)?,
            Some(Record::Resumed(resumed)) => self.resumed(&resumed)?,
            Some(Record::Placed(record)) => {
                let message = record.placed.ok_or(broken("has a checkpoint without a result"))?;
                let line = PlacedLine::from_wire(&message)?;
                if line.position != self.position.next() {
                    return Err(broken("has a gap in the timeline"));
                }
                let version = Version { session: line.session, number: line.number };
                self.answered(version, line.digest, Answer::Placed(line.position))?;
                self.position = line.position;
                let bytes = message.encode_to_vec().into();
                changes.lines.push(Line { position: line.position, version, bytes });
                changes.effects.merge(line.placed.effects);
            }
            Some(Record::Refused(refused)) => {
                let (version, digest, answer) = session::refused_from(&refused)?;
                self.answered(version, digest, answer)?;
            }
            Some(Record::Pack(pack)) => {
                let id = Hash(tidefs_proto::bad::exactly("pack.id", &pack.id)?);
                changes.packs.insert(id, pack.data);
            }
            None => return Err(broken("has a record that is not known here: use a newer tidefs-server")),
        }
        Ok(())
    }
}

/// Decodes a journal entry and checks that it is the one of that number.
///
/// # Errors
/// When it is not an entry, has a newer format, or another number.
pub fn read_entry(number: u64, body: &[u8]) -> Result<wire::JournalEntry, ReplayError> {
    let broken = |what| ReplayError::Broken { entry: number, what };
    let entry = wire::JournalEntry::decode(body).map_err(|_| broken("cannot be decoded"))?;
    if entry.format != ENTRY_FORMAT {
        return Err(broken("has a format that is not known here: use a newer tidefs-server"));
    }
    if entry.entry != number {
        return Err(broken("names another number"));
    }
    Ok(entry)
}
