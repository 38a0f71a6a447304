//! Filling a listing's reply. How many lines fit is known only by adding them, so they are asked for in
//! batches; of the attributes' kind, each line added counts as a lookup, and what did not fit is given back.

use super::{
    attributes::{attr, file_type},
    door::Door,
};
use crate::volume::{Line, Volume};
use fuser::{Generation, INodeNo, ReplyDirectory, ReplyDirectoryPlus};
use std::{ffi::OsStr, os::unix::ffi::OsStrExt, sync::Arc, time::Duration};
use tidefs_timeline::NodeId;

/// Lines asked for at once. A page holds 25 lines with attributes, a reply of 128 KiB some 800.
pub(super) const BATCH_LINES: usize = 64;

/// A reply that takes lines until it is full.
pub(super) trait Page: Send + 'static {
    /// Whether a line is a lookup too.
    const PLUS: bool;
    /// Adds a line; false when it did not fit.
    fn push(&mut self, line: &Line, ttl: Duration) -> bool;
}

impl Page for ReplyDirectory {
    const PLUS: bool = false;
    fn push(&mut self, line: &Line, _ttl: Duration) -> bool {
        let kind = file_type(line.found.node.kind);
        !self.add(INodeNo(line.found.id.0), line.cookie, kind, OsStr::from_bytes(&line.name))
    }
}

impl Page for ReplyDirectoryPlus {
    const PLUS: bool = true;
    fn push(&mut self, line: &Line, ttl: Duration) -> bool {
        let attr = attr(&line.found);
        !self.add(attr.ino, line.cookie, OsStr::from_bytes(&line.name), &ttl, &attr, Generation(0))
    }
}

/// Fills a page: from `first`, then from whatever follows it and is at hand.
pub(super) struct Filler<V: Volume> {
    volume: Arc<V>,
    ttl: Duration,
    dir: NodeId,
}

impl<V: Volume> Filler<V> {
    pub(super) fn new(door: &Door<V>, dir: NodeId) -> Self {
        Self { volume: door.volume.clone(), ttl: door.shared.caching.ttl(), dir }
    }

    pub(super) fn fill<P: Page>(&self, page: &mut P, first: Vec<Line>) {
        let mut lines = first;
        loop {
            let Some(last) = lines.last().map(|line| line.cookie) else { return };
            let asked_all = lines.len() >= BATCH_LINES;
            let taken = lines.iter().take_while(|line| page.push(line, self.ttl)).count();
            if taken < lines.len() {
                return self.give_back::<P>(&lines[taken..]);
            }
            // A short batch was the end. An answer that would have to wait, or an error, ends this page only:
            // the kernel asks again from the last cookie that it got.
            if !asked_all {
                return;
            }
            match self.volume.list(self.dir, last, BATCH_LINES, P::PLUS) {
                Ok(next) => lines = next,
                Err(_) => return,
            }
        }
    }

    fn give_back<P: Page>(&self, lines: &[Line]) {
        let counted = |line: &&Line| P::PLUS && line.name != b"." && line.name != b"..";
        for line in lines.iter().filter(counted) {
            self.volume.forget(line.found.id, 1);
        }
    }
}
