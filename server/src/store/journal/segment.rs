//! One file of the journal: making it, checking it, reading from it.
//!
//! A crash can tear only the last record of the last file, because every record is synced before the next one is
//! written. So bad bytes with a good record header behind them are damage, which must be reported and never be cut
//! off; bad bytes with nothing behind them are a write that nobody was told about.

use std::fs::{File, OpenOptions};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use bytes::Bytes;

use super::record::{BadHeader, FILE_HEADER, FileHeader, RECORD_HEADER, RECORD_MAGIC, RecordHeader};
use super::{ENTRY_BYTES_MAX, JournalError};
use crate::store::disk::{Context, sync_dir};

/// How much is read at a time while checking, in bytes.
const CHUNK: usize = 256 << 10;

/// An open file of the journal.
#[derive(Debug)]
pub struct Segment {
    pub path: PathBuf,
    pub header: FileHeader,
    file: File,
}

/// What the check of a whole file found.
#[derive(Debug, Clone, Copy)]
pub struct Checked {
    /// The number after the last good record.
    pub next: u64,
    /// Where the last good record ends.
    pub end: u64,
    /// Where the last good record starts; equal to `end` when there is none.
    pub last: u64,
    /// Whether bytes of a torn write stand behind `end`.
    pub torn: bool,
}

enum Step {
    Record(RecordHeader),
    Bad(&'static str),
}

impl Segment {
    /// Makes the file that starts with entry `header.first`; it and its name are durable when this returns.
    pub fn create(dir: &Path, header: FileHeader) -> Result<Self, JournalError> {
        let path = dir.join(file_name(header.first));
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .create_new(true)
            .mode(0o600)
            .open(&path)
            .doing("create", &path)?;
        file.write_all_at(&header.encode(), 0).doing("write", &path)?;
        file.sync_all().doing("sync", &path)?;
        sync_dir(dir)?;
        Ok(Self { path, header, file })
    }

    /// Opens the file that starts with entry `first`. `None` when its header was torn while it was made, so that
    /// it holds nothing.
    pub fn open(dir: &Path, first: u64, drive: [u8; 16]) -> Result<Option<Self>, JournalError> {
        let path = dir.join(file_name(first));
        let file = OpenOptions::new().read(true).write(true).open(&path).doing("open", &path)?;
        let length = file.metadata().doing("look at", &path)?.len();
        if length < FILE_HEADER as u64 {
            return Ok(None);
        }
        let mut bytes = [0; FILE_HEADER];
        file.read_exact_at(&mut bytes, 0).doing("read", &path)?;
        match FileHeader::decode(&bytes) {
            Ok(header) if header.drive != drive => Err(JournalError::OtherDrive { path }),
            Ok(header) if header.first != first => {
                let what = format!("its name says entry {first}, its header {}", header.first);
                Err(JournalError::Damaged { path, offset: 0, what })
            }
            Ok(header) => Ok(Some(Self { path, header, file })),
            Err(BadHeader::Version(found)) => Err(JournalError::Version { path, found }),
            // The header is synced before the first record, so with records behind it this is no torn write.
            Err(BadHeader::Checksum) if length == FILE_HEADER as u64 => Ok(None),
            Err(BadHeader::Checksum) => {
                Err(JournalError::Damaged { path, offset: 0, what: "the file header does not verify".into() })
            }
        }
    }

    /// Writes a record at `end` and syncs it. After an error the bytes behind `end` are unknown.
    pub fn append(&self, end: u64, entry: u64, body: &[u8]) -> Result<u64, JournalError> {
        let head = RecordHeader { entry, length: body.len() as u32, body_crc: crc32fast::hash(body) };
        let mut bytes = Vec::with_capacity(RECORD_HEADER + body.len());
        bytes.extend_from_slice(&head.encode(self.header.salt));
        bytes.extend_from_slice(body);
        self.file.write_all_at(&bytes, end).doing("write", &self.path)?;
        self.sync()?;
        Ok(end + bytes.len() as u64)
    }

    pub fn sync(&self) -> Result<(), JournalError> {
        Ok(self.file.sync_data().doing("sync", &self.path)?)
    }

    /// Cuts a torn write off.
    pub fn truncate(&self, end: u64) -> Result<(), JournalError> {
        self.file.set_len(end).doing("truncate", &self.path)?;
        Ok(self.file.sync_all().doing("sync", &self.path)?)
    }

    /// Writes the last record's own bytes over it and syncs. Its first sync may have failed, or never have run;
    /// after a failed sync the kernel holds the pages for clean, and only writing them again brings them to disk.
    pub fn settle_last(&self, checked: &Checked) -> Result<(), JournalError> {
        let mut at = checked.last;
        let mut buffer = vec![0; CHUNK];
        while at < checked.end {
            let length = usize::try_from(checked.end - at).unwrap_or(CHUNK).min(CHUNK);
            let part = &mut buffer[..length];
            self.file.read_exact_at(part, at).doing("read", &self.path)?;
            self.file.write_all_at(part, at).doing("write", &self.path)?;
            at += length as u64;
        }
        self.sync()
    }

    /// Checks every record.
    pub fn check(&self) -> Result<Checked, JournalError> {
        let length = self.file.metadata().doing("look at", &self.path)?.len();
        let start = FILE_HEADER as u64;
        let mut checked = Checked { next: self.header.first, end: start, last: start, torn: false };
        while checked.end < length {
            match self.step(checked.end, length)? {
                Step::Record(head) if !self.body_verifies(checked.end, &head)? => {
                    return self.torn_or_damaged(checked, length, "the body does not verify");
                }
                Step::Record(head) => {
                    self.expect_entry(checked.end, &head, checked.next)?;
                    checked.last = checked.end;
                    checked.end += head.record_bytes();
                    checked.next += 1;
                }
                Step::Bad(what) => return self.torn_or_damaged(checked, length, what),
            }
        }
        Ok(checked)
    }

    /// Reads from the record at `at`, which is number `entry`, those from `first` on, until `budget` bytes of
    /// bodies are used up or `end` is reached. Returns where it stopped.
    pub fn read(&self, mut place: Place, first: u64, budget: &mut Budget) -> Result<Place, JournalError> {
        while place.at < place.end {
            let head = match self.step(place.at, place.end)? {
                Step::Record(head) => head,
                Step::Bad(what) => return Err(self.damaged(place.at, what)),
            };
            self.expect_entry(place.at, &head, place.entry)?;
            if place.entry >= first {
                if !budget.admits(head.length as usize) {
                    return Ok(place);
                }
                let mut body = vec![0; head.length as usize];
                self.file
                    .read_exact_at(&mut body, place.at + RECORD_HEADER as u64)
                    .doing("read", &self.path)?;
                if crc32fast::hash(&body) != head.body_crc {
                    return Err(self.damaged(place.at, "the body does not verify"));
                }
                budget.take(place.entry, body.into());
            }
            place.at += head.record_bytes();
            place.entry += 1;
        }
        Ok(place)
    }

    /// The length of the file now, in bytes.
    pub fn length(&self) -> Result<u64, JournalError> {
        Ok(self.file.metadata().doing("look at", &self.path)?.len())
    }

    pub fn damaged(&self, offset: u64, what: impl Into<String>) -> JournalError {
        JournalError::Damaged { path: self.path.clone(), offset, what: what.into() }
    }

    fn step(&self, at: u64, end: u64) -> Result<Step, JournalError> {
        if end - at < RECORD_HEADER as u64 {
            return Ok(Step::Bad("the record header is cut short"));
        }
        let mut bytes = [0; RECORD_HEADER];
        self.file.read_exact_at(&mut bytes, at).doing("read", &self.path)?;
        Ok(match RecordHeader::decode(&bytes, self.header.salt) {
            None => Step::Bad("the record header does not verify"),
            // A good header is no torn write, so this length was meant and nothing may be cut off here.
            Some(head) if head.length as usize > ENTRY_BYTES_MAX => {
                return Err(self.damaged(at, format!("a record of {} bytes is too long", head.length)));
            }
            Some(head) if head.record_bytes() > end - at => Step::Bad("the body is cut short"),
            Some(head) => Step::Record(head),
        })
    }

    fn expect_entry(&self, at: u64, head: &RecordHeader, entry: u64) -> Result<(), JournalError> {
        if head.entry == entry {
            return Ok(());
        }
        Err(self.damaged(at, format!("entry {} stands where entry {entry} belongs", head.entry)))
    }

    fn body_verifies(&self, at: u64, head: &RecordHeader) -> Result<bool, JournalError> {
        let mut hasher = crc32fast::Hasher::new();
        let mut buffer = vec![0; CHUNK.min(head.length as usize)];
        let (mut at, mut left) = (at + RECORD_HEADER as u64, head.length as usize);
        while left > 0 {
            let part = &mut buffer[..left.min(CHUNK)];
            self.file.read_exact_at(part, at).doing("read", &self.path)?;
            hasher.update(part);
            at += part.len() as u64;
            left -= part.len();
        }
        Ok(hasher.finalize() == head.body_crc)
    }

    fn torn_or_damaged(&self, checked: Checked, length: u64, what: &str) -> Result<Checked, JournalError> {
        match self.find_header(checked.end + 1, length)? {
            Some(at) => {
                Err(self.damaged(checked.end, format!("{what}, but a good record follows at byte {at}")))
            }
            None => Ok(Checked { torn: true, ..checked }),
        }
    }

    /// Where the first good record header at or behind `from` starts.
    fn find_header(&self, from: u64, length: u64) -> Result<Option<u64>, JournalError> {
        let mut at = from;
        let mut buffer = vec![0; CHUNK];
        while at + RECORD_HEADER as u64 <= length {
            let part = &mut buffer[..usize::try_from(length - at).unwrap_or(CHUNK).min(CHUNK)];
            self.file.read_exact_at(part, at).doing("read", &self.path)?;
            let found = part.windows(RECORD_HEADER).position(|window| {
                window[..4] == RECORD_MAGIC
                    && window
                        .try_into()
                        .is_ok_and(|bytes| RecordHeader::decode(bytes, self.header.salt).is_some())
            });
            if let Some(index) = found {
                return Ok(Some(at + index as u64));
            }
            at += (part.len() - RECORD_HEADER + 1) as u64;
        }
        Ok(None)
    }
}

/// A record's number and place, and where the readable part of its file ends.
#[derive(Debug, Clone, Copy)]
pub struct Place {
    pub entry: u64,
    pub at: u64,
    pub end: u64,
}

/// What one read may still return, and what it has so far.
#[derive(Debug)]
pub struct Budget {
    left: usize,
    full: bool,
    pub entries: Vec<(u64, Bytes)>,
}

impl Budget {
    pub fn new(max_bytes: usize) -> Self {
        Self { left: max_bytes.min(ENTRY_BYTES_MAX), full: false, entries: Vec::new() }
    }

    /// Whether nothing more is to be read.
    pub fn is_full(&self) -> bool {
        self.full
    }

    pub fn admits(&mut self, bytes: usize) -> bool {
        self.full |= bytes > self.left && !self.entries.is_empty();
        !self.full
    }

    pub fn take(&mut self, entry: u64, body: Bytes) {
        self.left = self.left.saturating_sub(body.len());
        self.entries.push((entry, body));
    }
}

/// The name of the file that starts with this entry.
pub fn file_name(first: u64) -> String {
    format!("{first:016x}.journal")
}

/// The entry that the file of this name starts with.
pub fn parse_file_name(name: &str) -> Option<u64> {
    let first = u64::from_str_radix(name.strip_suffix(".journal")?, 16).ok()?;
    (file_name(first) == name).then_some(first)
}
