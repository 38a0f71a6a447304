//! Rule 2: registers of nodes that existed before.

use super::{
    At, OverlapRegister, Placer, Reason,
    detach::{bare, unseen},
    resolve,
};
use crate::{
    checkpoint::NodeChange,
    ids::NodeId,
    node::{Node, Register},
    tree::Head,
};

impl<H: Head> Placer<'_, H> {
    /// Content first, bound nodes before heirs, then attributes.
    pub(super) fn write_registers(&mut self) -> Result<(), H::Error> {
        let ck = self.ck;
        let changed: Vec<&NodeChange> =
            ck.nodes.iter().filter(|change| !change.born && !change.changed.is_empty()).collect();
        let mut contents: Vec<(bool, &NodeChange)> = Vec::new();
        for change in changed.iter().filter(|change| change.changed.content.is_some()) {
            let gone = self.tree.names(self.real(change.id)?)?.is_empty();
            contents.push((gone, change));
        }
        contents.sort_by_key(|(gone, change)| (*gone, change.id));
        for (_, change) in contents {
            self.write_content(change)?;
        }
        changed.into_iter().try_for_each(|change| self.write_attributes(change))?;
        // What was made since has the times it was left with, not those of its entries being bound here.
        for change in ck.nodes.iter().filter(|change| change.born) {
            self.tree.change(change.id, |node| node.times.value = change.node.times.value)?;
        }
        Ok(())
    }

    /// The node that a change of `change`'s node goes to.
    fn target(&mut self, change: &NodeChange) -> Result<Option<NodeId>, H::Error> {
        let id = self.real(change.id)?;
        let Some(node) = self.tree.node(id)? else {
            return Ok(match resolve::living_heir(&self.tree, id)? {
                Some(heir) if self.stands_in(heir, &change.node)? && !self.tree.names(heir)?.is_empty() => {
                    self.note(Reason::ToHeir, heir, None);
                    Some(heir)
                }
                _ => None,
            });
        };
        if id == NodeId::ROOT || (node.is_dir() && node.links > 0) {
            return Ok(Some(id));
        }
        if node.links == 0 {
            return Ok(None);
        }
        let mut bound = Vec::new();
        for (dir, name) in &change.names {
            if let Some(dir) = self.standing(*dir)?
                && let Some(entry) = self.tree.entry(dir, name)?
            {
                bound.push(entry);
            }
        }
        if bound.iter().any(|entry| entry.node == id) {
            return Ok(Some(id));
        }
        for entry in bound.iter().filter(|entry| entry.version != self.ck.version()) {
            if self.moved_aside(id, *entry)? {
                self.note(Reason::ToHeir, entry.node, None);
                return Ok(Some(entry.node));
            }
        }
        Ok(Some(id))
    }

    /// Whether what is meant for `node` can go to `heir`: a symlink has no place for a file's bytes.
    fn stands_in(&self, heir: NodeId, node: &Node) -> Result<bool, H::Error> {
        Ok(self.tree.node(heir)?.is_some_and(|heir| !heir.is_dir() && heir.kind == node.kind))
    }

    /// A save with backup: the node at the name was born in the very checkpoint that moved `id` off it.
    fn moved_aside(&self, id: NodeId, there: crate::tree::Entry) -> Result<bool, H::Error> {
        let (Some(node), Some(old)) = (self.tree.node(there.node)?, self.tree.node(id)?) else {
            return Ok(false);
        };
        if node.kind != old.kind || node.birth != there.version {
            return Ok(false);
        }
        for (dir, name) in self.tree.names(id)? {
            if self.tree.entry(dir, &name)?.is_some_and(|entry| entry.version == there.version) {
                return Ok(true);
            }
        }
        Ok(false)
    }

    fn write_content(&mut self, change: &NodeChange) -> Result<(), H::Error> {
        let Some(base) = change.changed.content else { return Ok(()) };
        let version = self.ck.version();
        let Some(target) = self.target(change)? else { return self.make_file_again(change) };
        let Some(old) = self.tree.node(target)? else { return Ok(()) };
        if old.content.version == version && old.content.value == change.node.content.value {
            return Ok(());
        }
        if old.content.version == version || old.kind != change.node.kind {
            // What one checkpoint carries never replaces what it carries: the second content is kept beside.
            self.out.overlaps.push(super::Overlap {
                register: OverlapRegister::Content,
                node: change.id,
                lost: version,
                was: Some(std::sync::Arc::new(change.node.clone())),
            });
            return Ok(());
        }
        let base = if target == self.real(change.id)? { base } else { None };
        if unseen(&old.content, self.ck.session, base) && old.content.value != change.node.content.value {
            self.overlap(OverlapRegister::Content, target, old.content.version)?;
        }
        let (content, times) = (change.node.content.value.clone(), change.node.times.value);
        self.tree.change(target, |node| {
            node.content = Register::new(content, version);
            node.times.version = version;
            node.times.value.mtime = times.mtime;
            node.times.value.ctime = node.times.value.ctime.max(times.ctime);
        })
    }

    /// A content change whose node has left the tree without an heir: the file is made again.
    fn make_file_again(&mut self, change: &NodeChange) -> Result<(), H::Error> {
        let is_file = !change.node.is_dir();
        for (dir, name) in change.names.iter().filter(|_| is_file) {
            let dir = self.standing_or_made(*dir)?;
            let at: At = (dir, name.clone());
            let there = self.tree.entry(dir, name)?;
            if self.tree.node(change.id)?.is_some_and(|node| node.links > 0) {
                continue;
            }
            if let Some(there) = there {
                if self.is_dir(there.node)? || there.version == self.ck.version() {
                    continue;
                }
                if self.foreign(there.version) {
                    self.unseen.insert(there.node, there.version);
                }
                self.replaced.insert(there.node, change.id);
            }
            let removed = self.head.tombstone(dir, name)?.filter(|version| self.foreign(*version));
            self.lost_at_head(change)?;
            self.tree.put_new(change.id, bare(&change.node));
            self.bind(&at, change.id)?;
            self.note(Reason::BroughtBack, change.id, Some(at.clone()));
            if let Some(removed) = removed {
                self.overlap(OverlapRegister::Entry(at.0, at.1), change.id, removed)?;
            }
            return Ok(());
        }
        self.out.overlaps.push(super::Overlap {
            register: OverlapRegister::Content,
            node: change.id,
            lost: self.ck.version(),
            was: Some(std::sync::Arc::new(change.node.clone())),
        });
        self.note(Reason::LostToDirectory, change.id, change.names.first().cloned());
        Ok(())
    }

    /// A node that stood at the head until this very checkpoint removed its last name: a version of another
    /// session that its new content replaces unseen is an overlap.
    fn lost_at_head(&mut self, change: &NodeChange) -> Result<(), H::Error> {
        let Some(was) = self.head.node(change.id)? else { return Ok(()) };
        let base = change.changed.content.flatten();
        if unseen(&was.content, self.ck.session, base) && was.content.value != change.node.content.value {
            let lost = was.content.version;
            let register = OverlapRegister::Content;
            self.out.overlaps.push(super::Overlap { register, node: change.id, lost, was: Some(was) });
        }
        Ok(())
    }

    fn write_attributes(&mut self, change: &NodeChange) -> Result<(), H::Error> {
        let made = &change.changed;
        let rest = made.owner.is_some()
            || !made.attrs.is_empty()
            || ((made.mtime || made.ctime) && made.content.is_none());
        if !rest {
            return Ok(());
        }
        let Some(target) = self.target(change)? else {
            self.note(Reason::Gone, change.id, change.names.first().cloned());
            return Ok(());
        };
        let Some(old) = self.tree.node(target)? else { return Ok(()) };
        if target == self.real(change.id)? {
            self.attribute_overlaps(change, &old)?;
        }
        let version = self.ck.version();
        self.tree.change(target, |node| {
            let times = change.node.times.value;
            if made.mtime && made.content.is_none() {
                node.times.version = version;
                node.times.value.mtime = times.mtime;
            }
            if made.ctime && node.is_dir() && !made.mtime {
                node.touch(times.mtime, times.ctime);
            }
            node.times.value.ctime = node.times.value.ctime.max(times.ctime);
            if made.owner.is_some() {
                node.owner = Register::new(change.node.owner.value, version);
            }
            for (name, _) in &made.attrs {
                match change.node.attrs.get(name) {
                    Some(value) => {
                        drop(node.attrs.insert(name.clone(), Register::new(value.value.clone(), version)))
                    }
                    None => drop(node.attrs.remove(name)),
                }
            }
        })
    }

    fn attribute_overlaps(&mut self, change: &NodeChange, old: &Node) -> Result<(), H::Error> {
        if let Some(base) = change.changed.owner
            && unseen(&old.owner, self.ck.session, base)
            && old.owner.value != change.node.owner.value
        {
            self.overlap(OverlapRegister::Owner, change.id, old.owner.version)?;
        }
        for (name, base) in &change.changed.attrs {
            let Some(was) = old.attrs.get(name) else { continue };
            let same = change.node.attrs.get(name).is_some_and(|value| value.value == was.value);
            if unseen(was, self.ck.session, *base) && !same {
                self.overlap(OverlapRegister::Attr(name.clone()), change.id, was.version)?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use crate::{
        CheckpointNo, Content, FileContent, Kind, Name, Node, NodeId, Owner, SessionNo, Timestamp, Version,
        checkpoint::{Changed, Checkpoint, DirInfo, NodeChange},
        overlay::Work,
        place::place,
        tree::{Entry, Head, Tree},
    };
    use std::sync::Arc;

    const OWNER: Owner = Owner { mode: 0o644, uid: 0, gid: 0 };

    fn version(session: u32, number: u64) -> Version {
        Version { session: SessionNo(session), number: CheckpointNo(number) }
    }

    fn made(kind: Kind, content: Content, by: Version) -> Node {
        Node::new(kind, by, content, OWNER, Timestamp::default())
    }

    fn bound(tree: &mut Tree, name: &Name, id: NodeId, node: Node) {
        let by = node.birth;
        let below = tree.clone();
        let mut work = Work::new(&below, Default::default());
        work.put_new(id, node);
        work.set_entry(
            (NodeId::ROOT, name),
            Some(Entry { node: id, version: by }),
            (by, Timestamp::default()),
        )
        .unwrap();
        tree.apply(&work.top);
    }

    /// Bytes for a file whose name a symlink took go to the file, made again, and never into the symlink.
    #[test]
    fn a_symlink_that_took_the_name_gets_no_bytes() {
        let name = Name::new(b"name").unwrap();
        let (file, link) = (NodeId::new(SessionNo(1), 1), NodeId::new(SessionNo(2), 1));
        let mut tree = Tree::new_drive(Timestamp::default());
        bound(&mut tree, &name, link, made(Kind::Symlink, Content::Symlink(b"to"[..].into()), version(2, 1)));
        let mut heir = crate::overlay::Overlay::default();
        heir.heirs.insert(file, Some(link));
        tree.apply(&heir);
        let content = Content::File(Arc::new(FileContent { size: 5, ..FileContent::empty() }));
        let changed = Changed { content: Some(None), mtime: true, ctime: true, ..Changed::default() };
        let checkpoint = Checkpoint {
            session: SessionNo(1),
            session_name: "one".into(),
            number: CheckpointNo(2),
            applied: crate::Position(1),
            dirs: vec![DirInfo { id: NodeId::ROOT, before: None, after: None, owner: OWNER }],
            entries: Vec::new(),
            nodes: vec![NodeChange {
                id: file,
                born: false,
                node: made(Kind::File, content.clone(), version(1, 2)),
                changed,
                names: vec![(NodeId::ROOT, name.clone())],
                links_before: 1,
            }],
            lost: Vec::new(),
        };
        tree.apply(&place(&tree, &checkpoint).unwrap().effects);
        assert_eq!(tree.entry(NodeId::ROOT, &name).unwrap().unwrap().node, file);
        assert_eq!(tree.node(file).unwrap().unwrap().content.value, content);
    }
}
