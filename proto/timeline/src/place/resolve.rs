//! Rule 1: directories by identity, else by the name they had, else made again.

use super::{At, Placer, Reason};
use crate::{
    checkpoint::Spot,
    ids::NodeId,
    limits::{CHAIN_MAX, DEPTH_MAX},
    name::Name,
    node::{Kind, Node, Timestamp},
    tree::Head,
};

/// Follows aliases from a directory that left the tree to the one it was united with.
pub(super) fn survivor<H: Head>(tree: &H, id: NodeId) -> Result<NodeId, H::Error> {
    let mut at = id;
    for _ in 0..CHAIN_MAX {
        if tree.node(at)?.is_some() {
            break;
        }
        match tree.alias(at)? {
            Some(to) => at = to,
            None => break,
        }
    }
    Ok(at)
}

/// Follows heirs from a file that left the tree to a living one.
pub(super) fn living_heir<H: Head>(tree: &H, id: NodeId) -> Result<Option<NodeId>, H::Error> {
    let mut at = id;
    for _ in 0..CHAIN_MAX {
        if tree.node(at)?.is_some() {
            return Ok(Some(at));
        }
        match tree.heir(at)? {
            Some(to) => at = to,
            None => return Ok(None),
        }
    }
    Ok(None)
}

/// The way from a directory up to the root, nearest first; none if it hangs nowhere.
pub(super) fn way_up<H: Head>(tree: &H, dir: NodeId) -> Result<Option<Vec<At>>, H::Error> {
    let mut way = Vec::new();
    let mut at = dir;
    while at != NodeId::ROOT {
        let Some(name) = tree.names(at)?.into_iter().next() else { return Ok(None) };
        if way.len() >= DEPTH_MAX {
            return Ok(None);
        }
        at = name.0;
        way.push(name);
    }
    Ok(Some(way))
}

impl<H: Head> Placer<'_, H> {
    pub(super) fn real(&self, id: NodeId) -> Result<NodeId, H::Error> {
        survivor(&self.tree, id)
    }

    /// Where the session had the directory, first at the earlier cut.
    fn spot(&self, dir: NodeId, later: bool) -> Option<&Spot> {
        let info = self.ck.dir(dir)?;
        if later {
            info.after.as_ref().or(info.before.as_ref())
        } else {
            info.before.as_ref().or(info.after.as_ref())
        }
    }

    /// Answers rule 1 once for each directory that the checkpoint names, from the head.
    pub(super) fn find_directories(&mut self) -> Result<(), H::Error> {
        let ck = self.ck;
        let named = ck.nodes.iter().flat_map(|node| node.names.iter().map(|name| name.0));
        let mut dirs: Vec<NodeId> = ck.entries.iter().map(|entry| entry.dir).chain(named).collect();
        dirs.sort_unstable();
        dirs.dedup();
        dirs.into_iter().try_for_each(|dir| self.find(dir))
    }

    fn find(&mut self, dir: NodeId) -> Result<(), H::Error> {
        let mut below: Vec<NodeId> = Vec::new();
        let mut at = dir;
        let mut answer = loop {
            let real = survivor(self.head, at)?;
            if let Some(node) = self.head.node(real)? {
                break node.is_dir().then_some(real);
            }
            if let Some(found) = self.found.get(&at) {
                break *found;
            }
            self.found.insert(at, None);
            let Some(spot) = self.spot(at, false).filter(|_| below.len() < DEPTH_MAX) else { break None };
            let parent = spot.parent;
            below.push(at);
            at = parent;
        };
        while let Some(dir) = below.pop() {
            let name = self.spot(dir, false).map(|spot| spot.name.clone());
            if let (Some(parent), Some(name)) = (answer, name) {
                answer = match self.head.entry(parent, &name)? {
                    Some(entry) if self.head.node(entry.node)?.is_some_and(|node| node.is_dir()) => {
                        Some(entry.node)
                    }
                    _ => None,
                };
            } else {
                answer = None;
            }
            self.found.insert(dir, answer);
        }
        Ok(())
    }

    /// The directory that stands for `dir` now, if there is one.
    pub(super) fn standing(&self, dir: NodeId) -> Result<Option<NodeId>, H::Error> {
        let real = self.real(dir)?;
        if self.is_dir(real)? {
            return Ok(Some(real));
        }
        let Some(Some(found)) = self.found.get(&dir) else { return Ok(None) };
        let found = self.real(*found)?;
        Ok(self.is_dir(found)?.then_some(found))
    }

    /// The directory that stands for `dir`; made again, with those above it, where there is none.
    pub(super) fn standing_or_made(&mut self, dir: NodeId) -> Result<NodeId, H::Error> {
        let mut missing: Vec<NodeId> = Vec::new();
        let mut at = dir;
        let mut parent = loop {
            if let Some(there) = self.standing(at)? {
                break there;
            }
            let Some(spot) = self.spot(at, true).filter(|_| missing.len() < DEPTH_MAX) else {
                break NodeId::ROOT;
            };
            let up = spot.parent;
            if missing.contains(&up) {
                break NodeId::ROOT;
            }
            missing.push(at);
            at = up;
        };
        while let Some(dir) = missing.pop() {
            if !self.hangs(parent)? {
                parent = NodeId::ROOT;
            }
            let Some(name) = self.spot(dir, true).map(|spot| spot.name.clone()) else { continue };
            parent = self.make_again(dir, (parent, name))?;
        }
        Ok(parent)
    }

    fn make_again(&mut self, dir: NodeId, at: At) -> Result<NodeId, H::Error> {
        let there = self.tree.entry(at.0, &at.1)?;
        if let Some(entry) = there
            && self.is_dir(entry.node)?
        {
            self.found.insert(dir, Some(entry.node));
            return Ok(entry.node);
        }
        if self.tree.node(dir)?.is_some() {
            // A file, which only a checkpoint that no session would make takes for a directory.
            self.found.insert(dir, Some(at.0));
            return Ok(at.0);
        }
        let at = if there.is_some() { (at.0, self.free(at.0, &at.1)?) } else { at };
        let owner = self.ck.dir(dir).map(|info| info.owner).unwrap_or(crate::node::Owner {
            mode: 0o755,
            uid: 0,
            gid: 0,
        });
        let now = self.ck.entries.iter().map(|entry| entry.time).max().unwrap_or(Timestamp::default());
        let node = Node::new(Kind::Directory, self.ck.version(), crate::content::Content::None, owner, now);
        self.tree.put_new(dir, node);
        self.bind(&at, dir)?;
        self.note(Reason::DirectoryMadeAgain, dir, Some(at));
        Ok(dir)
    }

    /// Whether a directory is reached from the root.
    pub(super) fn hangs(&self, dir: NodeId) -> Result<bool, H::Error> {
        Ok(way_up(&self.tree, dir)?.is_some())
    }

    /// The first free of NAME~SESSION, NAME~SESSION~2, …
    pub(super) fn free(&self, dir: NodeId, name: &Name) -> Result<Name, H::Error> {
        let mut n = 1;
        loop {
            let free = name.beside(&self.ck.session_name, n);
            if self.tree.entry(dir, &free)?.is_none() {
                return Ok(free);
            }
            n += 1;
        }
    }
}
