//! Rules 3, 5, 6 and the rest of 7: binding names, smallest path first, where the parent already hangs.

use super::{At, OverlapRegister, Placer, Reason, detach::unseen};
use crate::{
    ids::NodeId,
    limits::{DEPTH_MAX, UNION_ENTRIES_MAX},
    name::Name,
    tree::{Entry, Head},
};
use std::collections::VecDeque;

impl<H: Head> Placer<'_, H> {
    pub(super) fn attach_all(&mut self) -> Result<(), H::Error> {
        let mut todo: Vec<(usize, At, NodeId)> = self
            .attach
            .drain(..)
            .collect::<Vec<_>>()
            .into_iter()
            .map(|(at, node)| (self.depth_after(at.0), at, node))
            .collect();
        todo.sort();
        let mut todo: VecDeque<(At, NodeId)> = todo.into_iter().map(|(_, at, node)| (at, node)).collect();
        while !todo.is_empty() {
            let ready = self.first_ready(&todo)?;
            if let Some(i) = ready {
                let Some((at, node)) = todo.remove(i) else { break };
                let node = self.real(node)?;
                if self.tree.node(node)?.is_some() {
                    self.put(&at, node)?;
                }
            } else {
                self.break_cycle(&mut todo)?;
            }
        }
        Ok(())
    }

    fn depth_after(&self, dir: NodeId) -> usize {
        let up = |at: &NodeId| {
            self.ck
                .dir(*at)
                .and_then(|info| info.after.as_ref().or(info.before.as_ref()))
                .map(|spot| spot.parent)
        };
        std::iter::successors(Some(dir), up).take(DEPTH_MAX).count()
    }

    fn first_ready(&self, todo: &VecDeque<(At, NodeId)>) -> Result<Option<usize>, H::Error> {
        for (i, (at, node)) in todo.iter().enumerate() {
            if self.ready(at.0, *node)? {
                return Ok(Some(i));
            }
        }
        Ok(None)
    }

    /// Whether a name's directory hangs in the tree, or can be made again where all that is left above does.
    fn ready(&self, dir: NodeId, node: NodeId) -> Result<bool, H::Error> {
        if let Some(there) = self.standing(dir)? {
            return self.hangs(there);
        }
        let mut at = dir;
        for _ in 0..DEPTH_MAX {
            let Some(spot) = self.ck.dir(at).and_then(|info| info.after.as_ref().or(info.before.as_ref()))
            else {
                return Ok(true);
            };
            at = spot.parent;
            let real = self.real(at)?;
            if real == self.real(node)? {
                return Ok(false);
            }
            if self.tree.node(real)?.is_some() && !self.hangs(real)? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Nothing can be attached: the moved directory highest at the head goes back where it was.
    fn break_cycle(&mut self, todo: &mut VecDeque<(At, NodeId)>) -> Result<(), H::Error> {
        let mut best: Option<(Vec<Name>, NodeId, usize)> = None;
        for (i, (_, node)) in todo.iter().enumerate() {
            let Some((home, _)) = self.homes.get(node) else { continue };
            let parent = self.real(home.0)?;
            if !self.is_dir(*node)? || !self.is_dir(parent)? || !self.hangs(parent)? {
                continue;
            }
            let way = super::resolve::way_up(self.head, *node)?.unwrap_or_default();
            let key: Vec<Name> = way.into_iter().rev().map(|at| at.1).collect();
            if best.as_ref().is_none_or(|(k, n, _)| (&key, *node) < (k, *n)) {
                best = Some((key, *node, i));
            }
        }
        let i = best.as_ref().map_or(0, |found| found.2);
        let Some((at, node)) = todo.remove(i) else { return Ok(()) };
        if self.has_its_name(node)? {
            return Ok(());
        }
        self.note(Reason::Cycle, node, Some(at.clone()));
        match self.homes.get(&node).cloned().filter(|_| best.is_some()) {
            Some((home, version)) => {
                let dir = self.real(home.0)?;
                self.put_beside((dir, home.1), node, version)
            }
            None => self.put_beside((NodeId::ROOT, at.1), node, self.ck.version()),
        }
    }

    /// A directory has one name, whatever the checkpoint says.
    fn has_its_name(&self, node: NodeId) -> Result<bool, H::Error> {
        Ok(self.is_dir(node)? && !self.tree.names(node)?.is_empty())
    }

    /// Binds `node` at the name, or at a free one beside it.
    fn put_beside(&mut self, at: At, node: NodeId, version: crate::ids::Version) -> Result<(), H::Error> {
        let at = if self.tree.entry(at.0, &at.1)?.is_some() { (at.0, self.free(at.0, &at.1)?) } else { at };
        self.bind_as(&at, node, version)
    }

    fn put(&mut self, asked: &At, node: NodeId) -> Result<(), H::Error> {
        if self.has_its_name(node)? {
            return Ok(());
        }
        let dir = self.standing_or_made(asked.0)?;
        let at: At = (dir, asked.1.clone());
        let base = self.ck.entry(asked.0, &asked.1).and_then(|entry| entry.base);
        let meant = self.ck.entry(asked.0, &asked.1).and_then(|entry| entry.old);
        let Some(there) = self.tree.entry(dir, &at.1)? else {
            let removed = self.head.tombstone(dir, &at.1)?.filter(|v| self.foreign(*v) && Some(*v) != base);
            if let (Some(removed), Some(meant)) = (removed, meant) {
                let register = OverlapRegister::Entry(dir, at.1.clone());
                self.overlap(register, meant, removed)?;
            }
            return self.bind_here(&at, asked, node);
        };
        if there.node == node {
            return Ok(());
        }
        if self.head.entry(dir, &at.1)? == Some(there)
            && self.foreign(there.version)
            && Some(there.version) != base
        {
            self.unseen.insert(there.node, there.version);
        }
        let meant = match meant {
            Some(meant) => Some(self.real(meant)?),
            None => None,
        };
        match (self.is_dir(there.node)?, self.is_dir(node)?) {
            (true, true) => self.dir_on_dir(&at, asked, (there, node, meant)),
            _ if there.version == self.ck.version() => {
                let free = (dir, self.free(dir, &at.1)?);
                self.note(Reason::Beside, node, Some(free.clone()));
                self.bind_here(&free, asked, node)
            }
            (true, false) => {
                let removed_it = meant == Some(there.node) && self.is_empty(there.node)?;
                let meant_file = asked_for_file(self.ck, asked);
                if removed_it && !meant_file {
                    return self.bind_here(&at, asked, node);
                }
                self.note(Reason::LostToDirectory, node, Some(at));
                self.lose(node)
            }
            (false, true) => self.bind_here(&at, asked, node),
            (false, false) => self.file_on_file(&at, asked, (there, node, meant)),
        }
    }

    /// Binds at `at` with the time of the change that asked for `asked`.
    fn bind_here(&mut self, at: &At, asked: &At, node: NodeId) -> Result<(), H::Error> {
        let version = self.ck.version();
        let by = (version, self.stamp(asked));
        self.tree.set_entry((at.0, &at.1), Some(Entry { node, version }), by)
    }

    fn dir_on_dir(
        &mut self,
        at: &At,
        asked: &At,
        pair: (Entry, NodeId, Option<NodeId>),
    ) -> Result<(), H::Error> {
        let (there, node, meant) = pair;
        if meant == Some(there.node) && self.is_empty(there.node)? && self.head.node(there.node)?.is_some() {
            return self.bind_here(at, asked, node);
        }
        let crowd = self.tree.entries(there.node, None, UNION_ENTRIES_MAX + 1)?.len()
            + self.tree.entries(node, None, UNION_ENTRIES_MAX + 1)?.len();
        let above = super::resolve::way_up(&self.tree, there.node)?.unwrap_or_default();
        if crowd > UNION_ENTRIES_MAX || above.iter().any(|up| up.0 == node) {
            let free = (at.0, self.free(at.0, &at.1)?);
            self.note(Reason::Beside, node, Some(free.clone()));
            return self.bind_here(&free, asked, node);
        }
        self.unite(there.node, node)
    }

    /// Rule 6: what is in `from` goes into `into`, which `from` becomes an alias of.
    fn unite(&mut self, into: NodeId, from: NodeId) -> Result<(), H::Error> {
        let mut pairs = vec![(into, from)];
        while let Some((into, from)) = pairs.pop() {
            self.note(Reason::United, from, None);
            for (name, entry) in self.tree.entries(from, None, usize::MAX)? {
                let old: At = (from, name.clone());
                self.unbind(&old, &old)?;
                let at: At = (into, name);
                match self.tree.entry(at.0, &at.1)? {
                    None => self.bind_united(&at, &old, entry)?,
                    Some(there) if there.node == entry.node => {}
                    Some(there) => match (self.is_dir(there.node)?, self.is_dir(entry.node)?) {
                        (true, true) => pairs.push((there.node, entry.node)),
                        (false, false) => {
                            if self.foreign(there.version) {
                                self.unseen.insert(there.node, there.version);
                            }
                            self.replaced.insert(there.node, entry.node);
                            let entry = Entry { node: entry.node, version: self.ck.version() };
                            self.bind_united(&at, &old, entry)?;
                        }
                        _ => {
                            let free = (into, self.free(into, &at.1)?);
                            self.note(Reason::Beside, entry.node, Some(free.clone()));
                            self.bind_united(&free, &old, entry)?;
                        }
                    },
                }
            }
            self.tree.drop_node(from);
            self.tree.top.aliases.insert(from, into);
        }
        Ok(())
    }

    fn bind_united(&mut self, at: &At, asked: &At, entry: Entry) -> Result<(), H::Error> {
        let by = (entry.version, self.stamp(asked));
        self.tree.set_entry((at.0, &at.1), Some(entry), by)
    }

    fn file_on_file(
        &mut self,
        at: &At,
        asked: &At,
        pair: (Entry, NodeId, Option<NodeId>),
    ) -> Result<(), H::Error> {
        let (there, node, meant) = pair;
        self.replaced.insert(there.node, node);
        self.carry_owner(there.node, node, (asked, meant))?;
        self.bind_here(at, asked, node)
    }

    /// Rule 3: a mode that another session changed unseen is kept on the file that a save puts in its place.
    fn carry_owner(
        &mut self,
        old: NodeId,
        new: NodeId,
        asked: (&At, Option<NodeId>),
    ) -> Result<(), H::Error> {
        let born = self.ck.node(new).is_some_and(|node| node.born);
        let lost =
            self.ck.entry(asked.0.0, &asked.0.1).and_then(|e| e.old).and_then(|id| self.ck.lost(id)).cloned();
        let (Some(lost), true) = (lost, born && asked.1 == Some(old)) else { return Ok(()) };
        let Some(was) = self.head.node(old)? else { return Ok(()) };
        let last_name = self.tree.node(old)?.is_some_and(|node| node.links == 1);
        let same = self.tree.node(new)?.is_some_and(|node| node.owner.value == lost.owner_seen);
        if last_name && same && unseen(&was.owner, self.ck.session, lost.owner) {
            self.tree.change(new, |node| node.owner = was.owner.clone())?;
            self.note(Reason::Carried, new, Some(asked.0.clone()));
        }
        Ok(())
    }

    /// A file that cannot have its name: a moved one goes back when all else is attached, a new one's bytes are
    /// an overlap.
    fn lose(&mut self, node: NodeId) -> Result<(), H::Error> {
        if !self.tree.names(node)?.is_empty() {
            return Ok(());
        }
        if self.homes.contains_key(&node) {
            self.losers.push(node);
            return Ok(());
        }
        let own = self.tree.node(node)?.is_some_and(|n| n.content.version.session == self.ck.session);
        if own {
            self.overlap(OverlapRegister::Content, node, self.ck.version())?;
        }
        Ok(())
    }

    pub(super) fn losers_go_back(&mut self) -> Result<(), H::Error> {
        for node in std::mem::take(&mut self.losers) {
            let Some((home, version)) = self.homes.get(&node).cloned() else { continue };
            if !self.tree.names(node)?.is_empty() {
                continue;
            }
            let dir = self.real(home.0)?;
            let dir = if self.is_dir(dir)? && self.hangs(dir)? { dir } else { NodeId::ROOT };
            self.put_beside((dir, home.1), node, version)?;
        }
        Ok(())
    }
}

/// Whether the session saw a file at the name that it bound.
fn asked_for_file(ck: &crate::checkpoint::Checkpoint, asked: &At) -> bool {
    let meant = ck.entry(asked.0, &asked.1).and_then(|entry| entry.old);
    meant.and_then(|id| ck.lost(id)).is_some_and(|lost| !lost.is_dir)
}
