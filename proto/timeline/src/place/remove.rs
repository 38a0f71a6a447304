//! Rule 4: removals never follow.

use super::{At, Placer, Reason, resolve};
use crate::{checkpoint::EntryChange, ids::NodeId, limits::DEPTH_MAX, name::Name, tree::Head};
use std::collections::{BTreeMap, BTreeSet};

impl<H: Head> Placer<'_, H> {
    pub(super) fn remove(&mut self) -> Result<(), H::Error> {
        let mut dooms: Vec<(usize, &EntryChange)> = Vec::new();
        let mut left: BTreeMap<NodeId, usize> = BTreeMap::new();
        let mut bound: BTreeMap<NodeId, usize> = BTreeMap::new();
        for id in self.ck.entries.iter().filter_map(|entry| entry.new) {
            *bound.entry(id).or_default() += 1;
        }
        for entry in &self.ck.entries {
            let Some(old) = entry.old.filter(|old| entry.new != Some(*old)) else { continue };
            // The removal half of a rename was done by `detach`.
            let born = self.ck.node(old).is_some_and(|node| node.born);
            let moved = bound.get(&old).copied().unwrap_or(0);
            let seen = left.entry(old).or_default();
            *seen += 1;
            let is_dir = self.ck.node(old).is_some_and(|node| node.node.is_dir());
            if (moved > 0 && is_dir) || (!born && *seen <= moved) || entry.new.is_some() {
                continue;
            }
            dooms.push((self.depth_before(entry.dir), entry));
        }
        dooms.sort_by(|a, b| b.0.cmp(&a.0).then_with(|| (a.1.dir, &a.1.name).cmp(&(b.1.dir, &b.1.name))));
        let mut ways = Ways::default();
        for (_, entry) in dooms {
            self.remove_one(entry, &mut ways)?;
        }
        Ok(())
    }

    fn remove_one(&mut self, entry: &EntryChange, ways: &mut Ways) -> Result<(), H::Error> {
        let Some(meant) = entry.old else { return Ok(()) };
        let asked: At = (entry.dir, entry.name.clone());
        let dir = self.real(entry.dir)?;
        let in_place = self.head.node(dir)?.is_some() && self.way_as_seen(entry.dir, dir, ways)?;
        let there = if in_place { self.tree.entry(dir, &entry.name)? } else { None };
        let Some(there) = there else {
            self.note(Reason::NotRemoved, meant, Some(asked));
            return Ok(());
        };
        let meant_now = self.real(meant)?;
        if there.node == meant_now {
            if self.is_dir(there.node)? && !self.is_empty(there.node)? {
                self.note(Reason::NotRemoved, meant, Some(asked));
                return Ok(());
            }
        } else {
            let file_meant = self.ck.lost(meant).is_some_and(|lost| !lost.is_dir);
            let heir = self.head.node(meant_now)?.is_none()
                && file_meant
                && self.is_file(there.node)?
                && resolve::living_heir(self.head, meant_now)? == Some(there.node);
            if !heir {
                self.note(Reason::NotRemoved, meant, Some(asked));
                return Ok(());
            }
            if self.foreign(there.version) {
                self.unseen.insert(there.node, there.version);
            }
        }
        self.unbind(&(dir, entry.name.clone()), &asked)
    }

    /// Directories above a directory of the checkpoint, as it was before.
    fn depth_before(&self, dir: NodeId) -> usize {
        let up = |at: &NodeId| self.ck.dir(*at).and_then(|info| info.before.as_ref()).map(|spot| spot.parent);
        std::iter::successors(Some(dir), up).take(DEPTH_MAX).count()
    }

    /// Whether every name from the root to the directory is at the head as the session saw it.
    fn way_as_seen(&self, asked: NodeId, dir: NodeId, ways: &mut Ways) -> Result<bool, H::Error> {
        if let Some(known) = ways.0.get(&asked) {
            return Ok(*known);
        }
        let here = resolve::way_up(self.head, dir)?;
        let mut seen: Vec<&Name> = Vec::new();
        let mut passed = BTreeSet::new();
        let mut at = asked;
        while let Some(spot) =
            self.ck.dir(at).and_then(|info| info.before.as_ref()).filter(|_| passed.insert(at))
        {
            seen.push(&spot.name);
            at = spot.parent;
        }
        let same = at == NodeId::ROOT && here.is_some_and(|here| here.iter().map(|at| &at.1).eq(seen));
        ways.0.insert(asked, same);
        Ok(same)
    }
}

/// Answers already found, by directory of the checkpoint.
#[derive(Default)]
struct Ways(BTreeMap<NodeId, bool>);
