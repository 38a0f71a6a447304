//! The log: lines of the timeline with the paths that they changed.

use super::{Answers, give, status};
use crate::{drive::Drive, drives::Drives, paths, timeline::records_after};
use std::sync::Arc;
use tidefs_proto::{
    Shipment,
    limits::PART_BYTES,
    wire::{self, LogChange, LogLine},
};
use tidefs_timeline::Position;
use tonic::Status;

/// Changes that one line lists; the rest is counted.
const CHANGES_MAX: usize = 1000;
/// Lines of one answer.
const LINES_MAX: u32 = 100_000;
/// Positions that one request looks at, so that a filter which nothing meets ends.
const LOOK_MAX: u64 = 1_000_000;
/// Positions that are read together when the newest come first.
const WINDOW: u64 = 64;
/// Bytes of the journal that are read together.
const READ_BYTES: usize = 4 << 20;

/// Sends the lines behind `after`, oldest or newest first.
pub(super) async fn log(
    drives: Arc<Drives>,
    request: wire::LogRequest,
    answers: Answers<LogLine>,
) -> Result<(), Status> {
    let drive = drives.named(&request.drive).await.map_err(status::drives)?;
    let limit = if request.limit == 0 { LINES_MAX } else { request.limit.min(LINES_MAX) };
    let head = drive.head.read().position();
    let reader = Reader { drive, filter: request.path, answers, left: limit };
    if request.newest_first {
        reader.newest_first(Position(request.after), head).await
    } else {
        reader.oldest_first(Position(request.after), head).await
    }
}

struct Reader {
    drive: Arc<Drive>,
    filter: String,
    answers: Answers<LogLine>,
    left: u32,
}

impl Reader {
    async fn oldest_first(mut self, mut after: Position, head: Position) -> Result<(), Status> {
        let end = head.0.min(after.0.saturating_add(LOOK_MAX));
        while after.0 < end && self.left > 0 {
            let lines = self.lines(after, Position(end)).await?;
            let Some(last) = lines.last().map(|(position, _)| *position) else { break };
            after = last;
            self.give(lines.into_iter()).await?;
        }
        Ok(())
    }

    async fn newest_first(mut self, after: Position, head: Position) -> Result<(), Status> {
        let end = after.0.max(head.0.saturating_sub(LOOK_MAX));
        let mut until = head.0;
        while until > end && self.left > 0 {
            let from = until.saturating_sub(WINDOW).max(end);
            let mut window = Vec::new();
            let mut at = Position(from);
            while at.0 < until {
                let lines = self.lines(at, Position(until)).await?;
                let Some(last) = lines.last().map(|(position, _)| *position) else { break };
                at = last;
                window.extend(lines);
            }
            self.give(window.into_iter().rev()).await?;
            until = from;
        }
        Ok(())
    }

    async fn give(&mut self, lines: impl Iterator<Item = (Position, Option<LogLine>)>) -> Result<(), Status> {
        for line in lines.filter_map(|(_, line)| line) {
            if self.left == 0 {
                break;
            }
            self.left -= 1;
            give(&self.answers, line).await?;
        }
        Ok(())
    }

    /// Lines behind `after` up to `until`, some at least; none in place of one that the filter drops.
    async fn lines(
        &self,
        after: Position,
        until: Position,
    ) -> Result<Vec<(Position, Option<LogLine>)>, Status> {
        let records = records_after(&self.drive, after, READ_BYTES).await.map_err(status::timeline)?;
        let mut lines = Vec::new();
        for record in records {
            let Some(placed) = &record.placed else { continue };
            if placed.position > until.0 {
                break;
            }
            lines.push((Position(placed.position), line(&record.shipment, placed, &self.filter)?));
        }
        Ok(lines)
    }
}

fn line(shipment: &[u8], placed: &wire::Placed, filter: &str) -> Result<Option<LogLine>, Status> {
    let shipment = Shipment::decode(shipment).map_err(|error| {
        Status::internal(format!("the journal holds at {} what is no shipment: {error}", placed.position))
    })?;
    let mut changes = paths::changes(&shipment.checkpoint);
    let all = changes.len();
    changes.retain(|change| change.is_under(filter));
    if all > 0 && changes.is_empty() {
        return Ok(None);
    }
    let mut bytes = 0;
    let fit = |change: &paths::PathChange| {
        bytes += change.path.len() + change.what.len() + 8;
        bytes < PART_BYTES
    };
    let count = changes.len();
    let listed: Vec<LogChange> = changes
        .into_iter()
        .take(CHANGES_MAX)
        .take_while(fit)
        .map(|change| LogChange { path: change.path, what: change.what })
        .collect();
    Ok(Some(LogLine {
        position: placed.position,
        session: placed.session,
        session_name: placed.session_name.clone(),
        number: placed.number,
        placed_unix_us: placed.placed_unix_us,
        stages: placed.stages,
        more_changes: (count - listed.len()) as u32,
        changes: listed,
        notes: placed.notes.len() as u32,
        overlaps: placed.overlaps.len() as u32,
    }))
}
