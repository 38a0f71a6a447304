//! When to cut, and where.
//!
//! Shipping each write at once would show other mounts half-written files and temporary names; waiting for a
//! close is impossible, as none is ever reported. So a path is settled when it has been quiet for a while, a
//! rename over a file or an fsync says "saved" and shortens the wait, and a writer that never pauses is cut
//! anyway. The cut then moves back to the last moment in the log at which no file was half made, so that each
//! checkpoint is a consistent prefix of the mount's own order.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};
use tidefs_timeline::NodeId;

/// Time since the machine booted (CLOCK_BOOTTIME).
pub type Tick = Duration;

/// How long to wait, as the command line says it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SettleConfig {
    /// A path is settled after this long without a change.
    pub settle: Duration,
    /// The same after a rename over a file, or an fsync.
    pub signal_settle: Duration,
    /// No change waits longer.
    pub max_delay: Duration,
}

impl Default for SettleConfig {
    /// 1 s, 100 ms, 5 s.
    fn default() -> Self {
        Self {
            settle: Duration::from_secs(1),
            signal_settle: Duration::from_millis(100),
            max_delay: Duration::from_secs(5),
        }
    }
}

/// A file waits at most this long behind the reply to its last write or fsync.
const WRITE_PAUSE: Duration = Duration::from_millis(100);
/// Cuts are at least this far apart (or `signal_settle`, if that is shorter).
const CUT_SPACING: Duration = Duration::from_millis(100);
/// A batch of this many bytes is cut.
pub const BATCH_BYTES_MAX: u64 = 64 << 20;
/// A batch of this many changes is cut.
pub const BATCH_CHANGES_MAX: usize = 20_000;

const _: () = assert!(BATCH_CHANGES_MAX * 2 <= tidefs_timeline::limits::CHECKPOINT_CHANGES_MAX);

/// What a change means for settling.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Event {
    /// A file was made, or cut to nothing: it is half made from now on.
    Started,
    /// Bytes were written.
    Wrote,
    /// A file was renamed, linked or removed.
    Placed,
    /// Anything else.
    Other,
}

/// One change, as settling sees it.
#[derive(Clone, Copy, Debug)]
pub struct Change {
    /// When.
    pub now: Tick,
    /// The thread that asked.
    pub pid: u32,
    /// The node changed.
    pub node: NodeId,
    /// What happened to it.
    pub event: Event,
    /// Whether it says "saved".
    pub signal: bool,
    /// Bytes written.
    pub bytes: u64,
    /// The file that lost its name to this one: what settles from now on is this one.
    pub replaced: Option<NodeId>,
}

#[derive(Clone, Copy, Debug)]
struct Path {
    changed: Tick,
    /// Number of the change in the batch.
    index: usize,
    signal: bool,
}

#[derive(Clone, Copy, Debug)]
struct Waiting {
    maker: u32,
    until: Option<Tick>,
}

/// The settling of one open batch, and of the cuts before it.
#[derive(Debug)]
pub struct Settler {
    config: SettleConfig,
    /// Changes in the batch.
    changes: usize,
    bytes: u64,
    oldest: Option<Tick>,
    newest: Tick,
    paths: BTreeMap<NodeId, Path>,
    /// Paths in the order of when they are settled.
    due: BTreeSet<(Tick, NodeId)>,
    waiting: BTreeMap<NodeId, Waiting>,
    /// Changes at the last moment at which no file was waiting.
    clear: usize,
    asked: bool,
    last_cut: Option<Tick>,
}

impl Settler {
    /// Nothing changed yet.
    pub fn new(config: SettleConfig) -> Self {
        Self {
            config,
            changes: 0,
            bytes: 0,
            oldest: None,
            newest: Tick::ZERO,
            paths: BTreeMap::new(),
            due: BTreeSet::new(),
            waiting: BTreeMap::new(),
            clear: 0,
            asked: false,
            last_cut: None,
        }
    }

    /// Takes in a change that was just logged.
    pub fn changed(&mut self, change: Change) {
        self.expire(change.now);
        self.waiting.retain(|node, waiting| waiting.maker != change.pid || *node == change.node);
        if self.waiting.is_empty() {
            self.clear = self.changes;
        }
        self.changes += 1;
        self.bytes += change.bytes;
        self.oldest.get_or_insert(change.now);
        self.newest = change.now;
        match change.event {
            Event::Started => {
                self.waiting.insert(change.node, Waiting { maker: change.pid, until: None });
            }

            Event::Wrote => self.paused(change.node, change.now),
            Event::Placed => {
                self.waiting.remove(&change.node);
            }
            Event::Other => {}
        }
        if let Some(replaced) = change.replaced {
            self.waiting.remove(&replaced);
            if let Some(path) = self.paths.remove(&replaced) {
                self.due.remove(&(self.settled(path), replaced));
            }
        }
        if self.waiting.is_empty() {
            self.clear = self.changes;
        }
        let was = self.paths.get(&change.node).is_some_and(|path| path.signal);
        self.put_path(change.node, change.now, was || change.signal);
    }

    /// A reply to a write or an fsync of a file was sent: it waits for the pause that follows.
    fn paused(&mut self, node: NodeId, now: Tick) {
        if let Some(waiting) = self.waiting.get_mut(&node) {
            waiting.until = Some(now + WRITE_PAUSE);
        }
    }

    /// A file was fsynced; `named` says whether it had a name at the last cut.
    pub fn synced(&mut self, node: NodeId, now: Tick, named: bool) {
        self.expire(now);
        self.paused(node, now);
        if named && let Some(path) = self.paths.get(&node).copied() {
            self.put_path(node, path.changed.max(now), true);
        }
    }

    fn put_path(&mut self, node: NodeId, now: Tick, signal: bool) {
        let path = Path { changed: now, index: self.changes.saturating_sub(1), signal };
        if let Some(old) = self.paths.insert(node, path) {
            self.due.remove(&(self.settled(old), node));
        }
        self.due.insert((self.settled(path), node));
    }

    fn settled(&self, path: Path) -> Tick {
        path.changed
            + if path.signal { self.config.signal_settle.min(self.config.settle) } else { self.config.settle }
    }

    /// Asks for a cut as soon as may be.
    pub fn ask(&mut self) {
        self.asked = self.oldest.is_some();
    }

    /// Whether a cut is asked for.
    pub fn is_asked(&self) -> bool {
        self.asked
    }

    /// When the next cut is due; none while nothing waits. Time alone never brings it nearer.
    pub fn due(&self) -> Option<Tick> {
        let oldest = self.oldest?;
        if self.is_full() || self.asked {
            return Some(self.spaced(Tick::ZERO));
        }
        let quiet = self.due.first().map_or(oldest + self.config.max_delay, |(at, _)| *at);
        Some(self.spaced(quiet.min(oldest + self.config.max_delay)))
    }

    fn spaced(&self, at: Tick) -> Tick {
        let spacing = CUT_SPACING.min(self.config.signal_settle);
        self.last_cut.filter(|_| !self.asked && !self.is_full()).map_or(at, |last| at.max(last + spacing))
    }

    /// Whether the batch is as large as one may be.
    pub fn is_full(&self) -> bool {
        self.bytes >= BATCH_BYTES_MAX || self.changes >= BATCH_CHANGES_MAX
    }

    /// The number of changes to cut off at a cut that is due now.
    pub fn cut_point(&mut self, now: Tick) -> usize {
        self.expire(now);
        if self.asked || self.is_full() || self.waiting.is_empty() {
            return self.changes;
        }
        // The change that made the cut due must be in it.
        let due = match self.due.first() {
            Some((at, node)) if *at <= now => self.paths.get(node).map_or(0, |path| path.index),
            _ => 0,
        };
        if self.clear > due { self.clear } else { self.changes }
    }

    /// How long ago the newest change was.
    pub fn newest(&self) -> Tick {
        self.newest
    }

    /// Starts over behind a cut at `now`; the changes that lie behind it are given again by `changed`. Files that
    /// still wait go on waiting.
    pub fn cut(&mut self, now: Tick, rest: &[Change]) {
        let waiting = std::mem::take(&mut self.waiting);
        let config = self.config;
        *self = Self { last_cut: Some(now), ..Self::new(config) };
        for change in rest {
            self.changed(*change);
        }
        for (node, waits) in waiting {
            if rest.iter().any(|change| change.node == node) {
                self.waiting.entry(node).or_insert(waits);
            }
        }
        self.expire(now);
    }

    /// Lets go of files whose pause is over.
    fn expire(&mut self, now: Tick) {
        let before = self.waiting.len();
        self.waiting.retain(|_, waiting| waiting.until.is_none_or(|until| until > now));
        if before > 0 && self.waiting.is_empty() {
            self.clear = self.changes;
        }
    }
}
