//! The follow stream: the timeline from a position on, line by line, each line exactly once.
//!
//! What was given out last is the only state. A line that is not the next one means that something was lost or
//! repeated: the stream is dropped and opened again behind the last line given out. The channel to the session
//! is bounded; while it is full nothing is read, HTTP/2's window fills, and the server, which bounds each
//! follower, answers with a resync in the end. Reports flow the other way all the while, and the newest
//! replaces those not yet sent.

use super::{DriveId, Link, LinkError};
use futures::Stream;
use std::{
    convert::Infallible,
    time::{Duration, Instant},
};
use tidefs_proto::{
    Bad, PlacedLine,
    bad::{bad, need},
    limits::PLACED_BYTES_MAX,
    wire::{self, follow_reply::Message as Reply, follow_request::Message as Request},
};
use tidefs_timeline::{Position, SessionNo};
use tokio::{
    sync::{mpsc, watch},
    task::JoinHandle,
};

/// A line of more than this many bytes is decoded off the threads that serve the network.
const DECODE_INLINE_BYTES: usize = 256 << 10;

/// Who follows what from where.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FollowFrom {
    /// The drive.
    pub drive_id: DriveId,
    /// The session.
    pub session: SessionNo,
    /// The first line given out is the one behind this position.
    pub after: Position,
}

/// What a follower tells the server of itself.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Report {
    /// Applied, and the kernel told, up to here.
    pub applied: Position,
    /// From the last write of the newest applied checkpoint until it was visible here, in microseconds.
    pub write_to_visible_us: u64,
    /// From its arrival until it was visible here, in microseconds.
    pub apply_us: u64,
}

/// What happens on the follow stream.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum FollowEvent {
    /// The stream is open.
    Connected,
    /// The next line.
    Placed(Box<PlacedLine>),
    /// The lines up to `after` will not come: forget what was loaded. The next line is the one behind it.
    Resync {
        /// Where the stream goes on.
        after: Position,
    },
    /// The server is there; its head.
    Heartbeat {
        /// The head.
        head: Position,
    },
    /// The stream broke, or could not be opened; it is tried again by itself.
    Lost(LinkError),
}

impl Link {
    /// Follows until `out` is closed (or the task aborted). `out` should hold 64 events. A changed report is sent
    /// at once, an unchanged one every `waits.report_every`. Must be called inside a tokio runtime.
    pub fn follow(
        &self,
        from: FollowFrom,
        out: mpsc::Sender<FollowEvent>,
        reports: watch::Receiver<Report>,
    ) -> JoinHandle<()> {
        let follower = Follower { link: self.clone(), from, given: from.after, out: out.clone(), reports };
        tokio::spawn(async move {
            tokio::select! {
                _ = out.closed() => {}
                _ = follower.run() => {}
            }
        })
    }
}

struct Follower {
    link: Link,
    from: FollowFrom,
    given: Position,
    out: mpsc::Sender<FollowEvent>,
    reports: watch::Receiver<Report>,
}

impl Follower {
    async fn run(mut self) -> Infallible {
        let mut backoff = self.link.backoff(1);
        loop {
            let (started, before) = (Instant::now(), self.given);
            let Err(lost) = self.connection().await;
            if self.given > before || started.elapsed() >= self.link.config.waits.backoff_max {
                backoff.reset();
            }
            self.give(FollowEvent::Lost(lost)).await;
            tokio::time::sleep(backoff.pause()).await;
        }
    }

    /// A failure to send means that `out` is closed, which ends the task at its next wait.
    async fn give(&self, event: FollowEvent) {
        let _ = self.out.send(event).await;
    }

    async fn connection(&mut self) -> Result<Infallible, LinkError> {
        let (link, waits) = (self.link.clone(), self.link.config.waits);
        let requests = self.requests(waits.report_every);
        let mut client = link.client();
        let open = async { client.follow(requests).await.map_err(|status| link.error(status)) };
        let mut stream = link.within("open follow", waits.attempt, open).await?.into_inner();
        self.give(FollowEvent::Connected).await;
        let mut line = Line::default();
        loop {
            let next = async { stream.message().await.map_err(|status| link.error(status)) };
            let reply = link.within("follow", waits.silence, next).await?;
            match need("follow.message", reply.ok_or_else(|| link.ended("follow"))?.message)? {
                Reply::Placed(part) => {
                    if let Some(bytes) = line.add(part, self.given)? {
                        let placed = decode(bytes, self.given).await?;
                        let position = placed.position;
                        self.give(FollowEvent::Placed(Box::new(placed))).await;
                        self.given = position;
                    }
                }
                Reply::Resync(wire::Resync { after }) => {
                    if after < self.given.0 {
                        return Ok(bad("resync.after", format_args!("{after} came behind {}", self.given))?);
                    }
                    line = Line::default();
                    self.give(FollowEvent::Resync { after: Position(after) }).await;
                    self.given = Position(after);
                }
                Reply::Heartbeat(wire::Heartbeat { head }) => {
                    self.give(FollowEvent::Heartbeat { head: Position(head) }).await
                }
            }
        }
    }

    /// What is sent: where to start, then reports. Pulled by the connection, so nothing is queued.
    fn requests(&self, every: Duration) -> impl Stream<Item = wire::FollowRequest> + Send + 'static {
        let from = self.from;
        let open = wire::FollowOpen {
            drive_id: from.drive_id.to_vec().into(),
            session: from.session.0,
            after: self.given.0,
        };
        let first = wire::FollowRequest { message: Some(Request::Open(open)) };
        let mut reports = self.reports.clone();
        reports.mark_changed();
        futures::stream::unfold((Some(first), reports), move |(first, mut reports)| async move {
            if let Some(first) = first {
                return Some((first, (None, reports)));
            }
            // With its sender gone the watch is only ever as it was: it is repeated then.
            if !matches!(tokio::time::timeout(every, reports.changed()).await, Ok(Ok(())) | Err(_)) {
                tokio::time::sleep(every).await;
            }
            let report = *reports.borrow_and_update();
            let report = wire::FollowReport {
                applied: report.applied.0,
                write_to_visible_us: report.write_to_visible_us,
                apply_us: report.apply_us,
            };
            Some((wire::FollowRequest { message: Some(Request::Report(report)) }, (None, reports)))
        })
    }
}

/// A line whose parts are coming.
#[derive(Default)]
struct Line {
    bytes: Vec<u8>,
}

impl Line {
    /// Takes the next part; gives the line's bytes once it is complete.
    fn add(&mut self, part: wire::PlacedPart, given: Position) -> Bad<Option<Vec<u8>>> {
        check_next(part.position, given)?;
        if part.data.is_empty() {
            return bad("placed.part", "is empty");
        }
        if self.bytes.len() + part.data.len() > PLACED_BYTES_MAX {
            return bad("placed", "is larger than a result may be");
        }
        self.bytes.extend_from_slice(&part.data);
        Ok(part.last.then(|| std::mem::take(&mut self.bytes)))
    }
}

fn check_next(position: u64, given: Position) -> Bad<()> {
    if Some(position) == given.0.checked_add(1) {
        return Ok(());
    }
    bad("placed.position", format_args!("{position} came behind {given}, not the next one"))
}

async fn decode(bytes: Vec<u8>, given: Position) -> Bad<PlacedLine> {
    let line = if bytes.len() <= DECODE_INLINE_BYTES {
        PlacedLine::decode(&bytes)?
    } else {
        let decoded = tokio::task::spawn_blocking(move || PlacedLine::decode(&bytes)).await;
        decoded.or_else(|error| bad("placed", error))??
    };
    check_next(line.position.0, given)?;
    Ok(line)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The parts of a line are taken up to the bound and not one byte further.
    #[test]
    fn a_line_is_bounded() {
        let mut line = Line { bytes: vec![0; PLACED_BYTES_MAX - 1] };
        let part = |last| wire::PlacedPart { position: 2, data: vec![0].into(), last };
        assert_eq!(line.add(part(false), Position(1)), Ok(None));
        assert!(line.add(part(true), Position(1)).is_err());
    }
}
