//! Rule 7, first step: what the checkpoint moves is taken off its old place.

use super::{At, Placer, Reason};
use crate::{
    checkpoint::NodeChange,
    ids::NodeId,
    node::{Node, Register},
    tree::Head,
};

impl<H: Head> Placer<'_, H> {
    /// Nodes made since exist from here on, bound to nothing yet. One that the head has already was not made
    /// since, whatever the checkpoint says.
    pub(super) fn add_born(&mut self) -> Result<(), H::Error> {
        for change in self.ck.nodes.iter().filter(|change| change.born) {
            if self.head.node(change.id)?.is_none() {
                self.tree.put_new(change.id, bare(&change.node));
            }
        }
        Ok(())
    }

    /// Names that the checkpoint took off a node which it also bound somewhere.
    fn left_names(&self, id: NodeId) -> Vec<At> {
        let left = self.ck.entries.iter().filter(|entry| entry.old == Some(id) && entry.new != Some(id));
        left.map(|entry| (entry.dir, entry.name.clone())).collect()
    }

    pub(super) fn detach(&mut self) -> Result<(), H::Error> {
        let ck = self.ck;
        let mut bound: Vec<(NodeId, At)> =
            ck.entries.iter().filter_map(|e| e.new.map(|node| (node, (e.dir, e.name.clone())))).collect();
        bound.sort();
        for group in bound.chunk_by(|a, b| a.0 == b.0) {
            let id = group[0].0;
            let new: Vec<At> = group.iter().map(|(_, at)| at.clone()).collect();
            let Some(change) = ck.node(id) else { continue };
            let at_head = self.head.node(self.real(id)?)?;
            let is_dir = at_head.as_ref().map_or(change.node.is_dir(), |node| node.is_dir());
            match is_dir {
                _ if change.born && at_head.is_none() => {
                    self.attach.extend(new.into_iter().map(|at| (at, id)))
                }
                true => self.detach_dir(id, new)?,
                false => self.detach_file(change, new)?,
            }
        }
        Ok(())
    }

    fn detach_dir(&mut self, id: NodeId, new: Vec<At>) -> Result<(), H::Error> {
        let real = self.real(id)?;
        let Some(target) = new.into_iter().next() else { return Ok(()) };
        if self.head.node(real)?.is_none() || real == NodeId::ROOT {
            self.note(Reason::RenamedIsGone, id, Some(target));
            return Ok(());
        }
        let at_head = self.tree.names(real)?;
        let asked = self.left_names(id).into_iter().next().unwrap_or(target.clone());
        for home in at_head {
            if let Some(entry) = self.head.entry(home.0, &home.1)? {
                if self.standing(asked.0)? != Some(home.0) || asked.1 != home.1 {
                    self.note(Reason::MovedTwice, real, Some(home.clone()));
                }
                self.homes.insert(real, (home.clone(), entry.version));
            }
            self.unbind(&home, &asked)?;
        }
        self.attach.push((target, real));
        Ok(())
    }

    fn detach_file(&mut self, change: &NodeChange, new: Vec<At>) -> Result<(), H::Error> {
        let id = self.real(change.id)?;
        let olds = self.left_names(change.id);
        if self.head.node(id)?.is_none() {
            self.note(Reason::BroughtBack, id, new.first().cloned());
            self.tree.put_new(id, bare(&change.node));
            self.attach.extend(new.into_iter().map(|at| (at, id)));
            return Ok(());
        }
        let at_head = self.head.names(id)?;
        // Names beyond those bound anew are plain removals (see `remove`).
        for old in olds.iter().take(new.len()) {
            let dir = self.standing(old.0)?;
            let there = (dir.unwrap_or(old.0), old.1.clone());
            let bound =
                dir.is_some() && self.tree.entry(there.0, &there.1)?.is_some_and(|entry| entry.node == id);
            if bound {
                self.take_home(id, there, old)?;
            } else if change.links_before == 1
                && at_head.len() == 1
                && new.len() == 1
                && !self.tree.names(id)?.is_empty()
            {
                self.note(Reason::MovedTwice, id, Some(at_head[0].clone()));
                self.take_home(id, at_head[0].clone(), old)?;
            } else {
                self.note(Reason::NameAdded, id, Some(old.clone()));
            }
        }
        self.attach.extend(new.into_iter().map(|at| (at, id)));
        Ok(())
    }

    fn take_home(&mut self, id: NodeId, home: At, asked: &At) -> Result<(), H::Error> {
        if let Some(entry) = self.head.entry(home.0, &home.1)? {
            self.homes.insert(id, (home.clone(), entry.version));
        }
        self.unbind(&home, asked)
    }
}

/// A node as the checkpoint carries it, before any name is bound to it.
pub(super) fn bare(node: &Node) -> Node {
    let mut node = node.clone();
    node.links = 0;
    node.subdirs = 0;
    node
}

/// Whether the register's value was written by a session other than `session` and not seen as `base`.
pub(super) fn unseen<T>(
    register: &Register<T>,
    session: crate::ids::SessionNo,
    base: Option<crate::ids::Version>,
) -> bool {
    register.foreign_to(session).is_some_and(|version| Some(version) != base)
}
