//! A mount's false disk. What a killed process wrote stays; of what a machine without power had not synced, some
//! prefix stays, and the record behind it may be torn, which recovery reads as the end.

use anyhow::{Result, anyhow};
use std::collections::{BTreeMap, VecDeque};
use tidefs_timeline::Hash;

/// Bytes of a record before its head.
const HEADER_BYTES: u64 = 40;
/// A log that was read back goes on in a new segment.
const SEGMENT_BYTES: u64 = 1 << 20;

/// One record of the log.
#[derive(Clone, Debug)]
pub struct LogRecord {
    /// First byte.
    pub start: u64,
    /// First byte of its data.
    pub data_at: u64,
    /// The byte behind it.
    pub end: u64,
    /// Its kind.
    pub kind: u8,
    /// The message.
    pub head: Vec<u8>,
    /// The bytes written.
    pub data: Vec<u8>,
}

/// A sealed checkpoint.
#[derive(Clone, Debug)]
pub struct Stored {
    /// The outbox entry.
    pub entry: Vec<u8>,
    /// Its pack.
    pub pack: Option<(Hash, Vec<u8>)>,
}

/// What the state folder says of the session.
#[derive(Clone, Copy, Debug, Default)]
pub struct SessionState {
    /// Id of the session.
    pub id: [u8; 16],
    /// The incarnation held; 0 before the first attach.
    pub incarnation: u64,
    /// The one asked for; 0 when there is none.
    pub next_incarnation: u64,
}

/// The disk of one mount.
#[derive(Debug, Default)]
pub struct Disk {
    log: VecDeque<LogRecord>,
    end: u64,
    /// The log is durable up to here.
    pub synced: u64,
    /// Sealed checkpoints by number; durable.
    pub outbox: BTreeMap<u64, Stored>,
    /// The session file; durable.
    pub session: SessionState,
}

impl Disk {
    /// Appends a record.
    pub fn append(&mut self, kind: u8, head: Vec<u8>, data: &[u8]) -> LogRecord {
        let start = self.end;
        let data_at = start + HEADER_BYTES + head.len() as u64;
        let record =
            LogRecord { start, data_at, end: data_at + data.len() as u64, kind, head, data: data.to_vec() };
        self.end = record.end;
        self.log.push_back(record.clone());
        record
    }

    /// Where the log ends.
    pub fn end(&self) -> u64 {
        self.end
    }

    /// Makes the log durable.
    pub fn sync(&mut self) {
        self.synced = self.end;
    }

    /// Frees the log before `start`.
    pub fn release_before(&mut self, start: u64) {
        while self.log.front().is_some_and(|record| record.end <= start) {
            self.log.pop_front();
        }
    }

    /// Records from `start` on.
    pub fn records_from(&self, start: u64) -> impl Iterator<Item = &LogRecord> + '_ {
        self.log.iter().filter(move |record| record.start >= start)
    }

    /// Reads written bytes.
    ///
    /// # Errors
    /// When they were freed or never written.
    pub fn read(&self, address: u64, len: u64) -> Result<&[u8]> {
        let i = self.log.partition_point(|record| record.data_at <= address);
        let record = i.checked_sub(1).and_then(|i| self.log.get(i));
        record
            .and_then(|record| {
                let from = (address - record.data_at) as usize;
                record.data.get(from..from + len as usize)
            })
            .ok_or_else(|| anyhow!("the log has no {len} bytes at {address}: freed too early"))
    }

    /// The process ended; the log goes on in a new segment when it is opened again.
    pub fn killed(&mut self) {
        self.end = (self.end / SEGMENT_BYTES + 1) * SEGMENT_BYTES;
    }

    /// The machine lost power: the log keeps what lies before `keep`.
    pub fn lost_power(&mut self, keep: u64) {
        self.log.retain(|record| record.end <= keep);
        // What is still there is there for good.
        self.synced = keep;
        self.killed();
    }
}
