//! Follow and WaitVisible.

use super::{Answers, give, status};
use crate::{
    drive::Drive,
    drives::Drives,
    followers::{Followers, Next},
    telemetry,
    timeline::lines_after,
};
use bytes::Bytes;
use std::{
    sync::Arc,
    time::{Duration, Instant},
};
use tidefs_proto::{limits::PART_BYTES, wire};
use tidefs_timeline::{Position, SessionNo};
use tokio::{sync::watch, time::MissedTickBehavior};
use tonic::{Status, Streaming};
use wire::{follow_reply, follow_request};

/// How often a follower hears where the head is.
const HEARTBEAT: Duration = Duration::from_secs(2);
/// Bytes of the journal that a follower that is behind reads at a time.
const CATCH_UP_BYTES: usize = 1 << 20;
/// The longest wait for `visible`.
const VISIBLE_WAIT_MAX: Duration = Duration::from_secs(600);
/// How often a wait looks whether somebody has gone silent.
const VISIBLE_STEP: Duration = Duration::from_millis(250);

/// A follower as long as its stream lives.
struct Joined {
    drive: Arc<Drive>,
    id: u64,
}

impl Joined {
    fn new(drive: Arc<Drive>, session: SessionNo, after: Position) -> Self {
        let id = drive.followers.join(session, after, Instant::now());
        telemetry::followers(&drive.name, drive.followers.count());
        Self { drive, id }
    }
}

impl Drop for Joined {
    fn drop(&mut self) {
        self.drive.followers.leave(self.id);
        telemetry::followers(&self.drive.name, self.drive.followers.count());
    }
}

/// Serves one follow stream.
pub(super) async fn follow(
    drives: Arc<Drives>,
    mut requests: Streaming<wire::FollowRequest>,
    answers: Answers<wire::FollowReply>,
) -> Result<(), Status> {
    let open = match requests.message().await?.and_then(|request| request.message) {
        Some(follow_request::Message::Open(open)) => open,
        _ => return Err(Status::invalid_argument("a follow stream begins with its open message")),
    };
    let drive = drives.of_id(&open.drive_id).await.map_err(status::drives)?;
    let after = Position(open.after);
    let head = *drive.followers.head().borrow();
    if after > head {
        return Err(Status::failed_precondition(format!(
            "position {after} is above this server's head {head}: the server was restored from an older copy"
        )));
    }
    let joined = Joined::new(drive.clone(), SessionNo(open.session), after);
    tokio::select! {
        ended = reports(&joined, requests) => ended,
        ended = send(&drive, after, &answers) => ended,
        () = drive.ended() => Err(status::ended(crate::drive::Ended)),
    }
}

/// Takes in what the follower reports, until it ends the stream.
async fn reports(joined: &Joined, mut requests: Streaming<wire::FollowRequest>) -> Result<(), Status> {
    while let Some(request) = requests.message().await? {
        match request.message {
            Some(follow_request::Message::Report(report)) => {
                joined.drive.followers.report(joined.id, Position(report.applied), Instant::now());
                telemetry::reported(report.write_to_visible_us, report.apply_us);
            }
            _ => return Err(Status::invalid_argument("a follow stream is opened once, then it reports")),
        }
    }
    Ok(())
}

/// Sends every line behind `after`, in order, and a heartbeat.
async fn send(
    drive: &Drive,
    mut after: Position,
    answers: &Answers<wire::FollowReply>,
) -> Result<(), Status> {
    let followers: &Followers = &drive.followers;
    let mut head = followers.head();
    let mut beat = tokio::time::interval(HEARTBEAT);
    beat.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        let now = *head.borrow_and_update();
        match followers.next(after) {
            Next::Line(bytes) => {
                after = after.next();
                line(answers, after, bytes).await?;
                continue;
            }
            Next::Journal => match lines_after(drive, after, CATCH_UP_BYTES).await {
                Ok(lines) => {
                    for (position, bytes) in lines {
                        line(answers, position, bytes).await?;
                        after = position;
                    }
                    continue;
                }
                Err(error) if error.is_dropped() => {
                    let resync = follow_reply::Message::Resync(wire::Resync { after: now.0 });
                    give(answers, wire::FollowReply { message: Some(resync) }).await?;
                    return Ok(());
                }
                Err(error) => return Err(status::timeline(error)),
            },
            Next::None => {}
        }
        tokio::select! {
            changed = head.changed() => changed.map_err(|_| status::ended(crate::drive::Ended))?,
            _ = beat.tick() => {
                let beat = follow_reply::Message::Heartbeat(wire::Heartbeat { head: now.0 });
                give(answers, wire::FollowReply { message: Some(beat) }).await?;
            }
        }
    }
}

async fn line(answers: &Answers<wire::FollowReply>, position: Position, bytes: Bytes) -> Result<(), Status> {
    let mut rest = bytes;
    loop {
        let data = rest.split_to(rest.len().min(PART_BYTES));
        let last = rest.is_empty();
        let part = follow_reply::Message::Placed(wire::PlacedPart { position: position.0, data, last });
        give(answers, wire::FollowReply { message: Some(part) }).await?;
        if last {
            return Ok(());
        }
    }
}

/// Waits until every other follower that is heard of has applied a position.
pub(super) async fn wait_visible(
    drives: &Drives,
    mut stop: watch::Receiver<bool>,
    request: wire::VisibleRequest,
) -> Result<wire::VisibleReply, Status> {
    let drive = drives.of_id(&request.drive_id).await.map_err(status::drives)?;
    let (position, except) = (Position(request.position), SessionNo(request.except_session));
    let begun = Instant::now();
    let wait = Duration::from_millis(request.timeout_ms).min(VISIBLE_WAIT_MAX);
    let mut reports = drive.followers.reports();
    loop {
        reports.borrow_and_update();
        let now = drive.followers.visible(position, except, Instant::now());
        let left = wait.saturating_sub(begun.elapsed());
        if now.behind == 0 || left.is_zero() {
            return Ok(wire::VisibleReply {
                visible: now.behind == 0,
                counted: now.applied + now.behind,
                not_counted: now.silent,
            });
        }
        tokio::select! {
            _ = reports.changed() => {}
            () = tokio::time::sleep(left.min(VISIBLE_STEP)) => {}
            () = drive.ended() => return Err(status::ended(crate::drive::Ended)),
            _ = stop.wait_for(|stop| *stop) => return Err(Status::unavailable("the server is stopping")),
        }
    }
}
