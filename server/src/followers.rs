//! Who follows a drive, what was announced lately, and who has applied what.
//!
//! A queue for each follower would either grow or overflow. Instead the last lines are kept once, in a ring of
//! bounded size, and every follower reads at its own pace: from the ring while it keeps up, from the journal when
//! it has fallen out of it. So nobody is skipped, nothing is sent twice, and memory does not depend on who is slow.

use crate::order::Line;
use bytes::Bytes;
use parking_lot::Mutex;
use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    time::{Duration, Instant},
};
use tidefs_timeline::{Position, SessionNo};
use tokio::sync::watch;

/// Lines that the ring keeps at most.
const RING_LINES: usize = 4096;
/// Bytes that the ring keeps at most (one line is always kept).
const RING_BYTES: usize = 32 << 20;
/// A follower that has not reported for this long is not waited for.
pub const REPORT_MAX: Duration = Duration::from_secs(5);

/// Where a follower finds its next line.
#[derive(Debug, PartialEq, Eq)]
pub enum Next {
    /// Here it is.
    Line(Bytes),
    /// It is no longer in the ring: read it from the journal.
    Journal,
    /// There is none yet.
    None,
}

#[derive(Debug)]
struct Follower {
    session: SessionNo,
    applied: Position,
    heard: Instant,
}

#[derive(Debug, Default)]
struct Inner {
    ring: VecDeque<(Position, Bytes)>,
    bytes: usize,
    followers: BTreeMap<u64, Follower>,
    next_id: u64,
}

/// What waiting for `visible` has come to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Visible {
    /// Followers that have applied the position.
    pub applied: u32,
    /// Followers that have not, and are waited for.
    pub behind: u32,
    /// Followers that have not, and have not been heard of for [`REPORT_MAX`].
    pub silent: u32,
}

/// The followers of one drive.
#[derive(Debug)]
pub struct Followers {
    inner: Mutex<Inner>,
    head: watch::Sender<Position>,
    reports: watch::Sender<()>,
}

impl Followers {
    /// Nobody follows; the head is at `head`.
    pub fn new(head: Position) -> Self {
        Self { inner: Mutex::default(), head: watch::Sender::new(head), reports: watch::Sender::new(()) }
    }

    /// Announces lines, which follow those announced before.
    pub fn announce(&self, lines: Vec<Line>) {
        let Some(last) = lines.last().map(|line| line.position) else { return };
        let mut inner = self.inner.lock();
        for line in lines {
            inner.bytes += line.bytes.len();
            inner.ring.push_back((line.position, line.bytes));
        }
        while inner.ring.len() > RING_LINES || (inner.bytes > RING_BYTES && inner.ring.len() > 1) {
            let Some((_, bytes)) = inner.ring.pop_front() else { break };
            inner.bytes -= bytes.len();
        }
        drop(inner);
        self.head.send_replace(last);
    }

    /// The line behind `after`.
    pub fn next(&self, after: Position) -> Next {
        let inner = self.inner.lock();
        let wanted = after.next();
        if wanted > *self.head.borrow() {
            return Next::None;
        }
        let Some((first, _)) = inner.ring.front() else { return Next::Journal };
        let place = wanted.0.checked_sub(first.0).and_then(|place| inner.ring.get(place as usize));
        place.map_or(Next::Journal, |(_, bytes)| Next::Line(bytes.clone()))
    }

    /// The position of what was announced last, and word of each change of it.
    pub fn head(&self) -> watch::Receiver<Position> {
        self.head.subscribe()
    }

    /// Adds a follower that has applied everything up to `applied`.
    pub fn join(&self, session: SessionNo, applied: Position, now: Instant) -> u64 {
        let mut inner = self.inner.lock();
        inner.next_id += 1;
        let id = inner.next_id;
        inner.followers.insert(id, Follower { session, applied, heard: now });
        id
    }

    /// Takes in a follower's report.
    pub fn report(&self, id: u64, applied: Position, now: Instant) {
        if let Some(follower) = self.inner.lock().followers.get_mut(&id) {
            follower.applied = follower.applied.max(applied);
            follower.heard = now;
        }
        self.reports.send_replace(());
    }

    /// Removes a follower.
    pub fn leave(&self, id: u64) {
        self.inner.lock().followers.remove(&id);
        self.reports.send_replace(());
    }

    /// How many there are.
    pub fn count(&self) -> usize {
        self.inner.lock().followers.len()
    }

    /// The sessions that follow.
    pub fn sessions(&self) -> BTreeSet<SessionNo> {
        self.inner.lock().followers.values().map(|follower| follower.session).collect()
    }

    /// Word of each report and of each follower that left.
    pub fn reports(&self) -> watch::Receiver<()> {
        self.reports.subscribe()
    }

    /// Who has applied `position`, the session `except` left out.
    pub fn visible(&self, position: Position, except: SessionNo, now: Instant) -> Visible {
        let mut visible = Visible::default();
        for follower in self.inner.lock().followers.values().filter(|f| f.session != except) {
            if follower.applied >= position {
                visible.applied += 1;
            } else if now.saturating_duration_since(follower.heard) < REPORT_MAX {
                visible.behind += 1;
            } else {
                visible.silent += 1;
            }
        }
        visible
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tidefs_timeline::{CheckpointNo, Version};

    fn line(position: u64, bytes: usize) -> Line {
        let version = Version { session: SessionNo(1), number: CheckpointNo(position) };
        Line { position: Position(position), version, bytes: vec![position as u8; bytes].into() }
    }

    /// A follower reads each line once and in order; one that fell out of the ring is sent to the journal.
    #[test]
    fn the_ring_is_bounded_and_has_no_gap() {
        let followers = Followers::new(Position(2));
        assert_eq!(followers.next(Position(2)), Next::None);
        assert_eq!(followers.next(Position(0)), Next::Journal);
        followers.announce(vec![line(3, 8), line(4, 8)]);
        assert_eq!(followers.next(Position(2)), Next::Line(vec![3; 8].into()));
        assert_eq!(followers.next(Position(3)), Next::Line(vec![4; 8].into()));
        assert_eq!(followers.next(Position(4)), Next::None);
        assert_eq!(followers.next(Position(1)), Next::Journal);
        followers.announce(vec![line(5, RING_BYTES)]);
        assert_eq!(followers.next(Position(3)), Next::Journal);
        assert!(matches!(followers.next(Position(4)), Next::Line(bytes) if bytes.len() == RING_BYTES));
    }

    /// Visible waits for those who may still report, and says how many it did not wait for.
    #[test]
    fn a_silent_follower_is_not_counted() {
        let (followers, start) = (Followers::new(Position(0)), Instant::now());
        let asking = followers.join(SessionNo(1), Position(0), start);
        let other = followers.join(SessionNo(2), Position(0), start);
        followers.join(SessionNo(3), Position(9), start);
        let at =
            |later: u64| followers.visible(Position(5), SessionNo(1), start + Duration::from_secs(later));
        assert_eq!(at(0), Visible { applied: 1, behind: 1, silent: 0 });
        assert_eq!(at(6), Visible { applied: 1, behind: 0, silent: 1 });
        followers.report(other, Position(5), start);
        assert_eq!(at(6), Visible { applied: 2, behind: 0, silent: 0 });
        followers.leave(other);
        followers.leave(asking);
        assert_eq!(followers.sessions(), BTreeSet::from([SessionNo(3)]));
    }
}
