//! Reading the timeline back from the journal.

use crate::{
    drive::Drive,
    head::HeadError,
    order::{ReplayError, read_entry},
    store::JournalError,
};
use bytes::Bytes;
use prost::Message;
use tidefs_proto::wire;
use tidefs_timeline::Position;
use wire::journal_record::Record;

/// Why the timeline could not be read.
#[derive(Debug, thiserror::Error)]
pub enum TimelineError {
    /// Finding the entry.
    #[error(transparent)]
    Head(#[from] HeadError),
    /// Reading it.
    #[error(transparent)]
    Journal(#[from] JournalError),
    /// Its bytes.
    #[error(transparent)]
    Replay(#[from] ReplayError),
    /// The index does not know a position below the head.
    #[error(
        "the index does not know position {0}; remove the drive's index folder and start the server again"
    )]
    Unknown(Position),
}

impl TimelineError {
    /// Whether the entries are no longer kept.
    pub fn is_dropped(&self) -> bool {
        matches!(self, TimelineError::Journal(JournalError::Dropped { .. }))
    }
}

/// The placed checkpoints from the one behind `after` on, with their shipments: as many as whole journal entries of
/// about `max_bytes` hold, at least one. Empty when `after` is the head.
///
/// # Errors
/// When index or journal cannot be read.
pub async fn records_after(
    drive: &Drive,
    after: Position,
    max_bytes: usize,
) -> Result<Vec<wire::PlacedRecord>, TimelineError> {
    let wanted = after.next();
    let entry = {
        let head = drive.head.read();
        if wanted > head.position() {
            return Ok(Vec::new());
        }
        head.entry_of(wanted)?.ok_or(TimelineError::Unknown(wanted))?
    };
    let mut records = Vec::new();
    for (number, body) in drive.journal.read_from(entry, max_bytes).await? {
        for record in read_entry(number, &body)?.records {
            if let Some(Record::Placed(record)) = record.record
                && record.placed.as_ref().is_some_and(|placed| placed.position > after.0)
            {
                records.push(record);
            }
        }
    }
    Ok(records)
}

/// The encoded lines from the one behind `after` on.
///
/// # Errors
/// As [`records_after`].
pub async fn lines_after(
    drive: &Drive,
    after: Position,
    max_bytes: usize,
) -> Result<Vec<(Position, Bytes)>, TimelineError> {
    let records = records_after(drive, after, max_bytes).await?;
    let placed = records.into_iter().filter_map(|record| record.placed);
    Ok(placed.map(|placed| (Position(placed.position), placed.encode_to_vec().into())).collect())
}
