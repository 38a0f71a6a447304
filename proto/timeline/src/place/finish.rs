//! The last step: nodes that lost their last name leave the tree, files among them with an heir.

use super::{OverlapRegister, Placer, Reason, detach::unseen};
use crate::{ids::NodeId, tree::Head};

impl<H: Head> Placer<'_, H> {
    pub(super) fn let_go(&mut self) -> Result<(), H::Error> {
        let nameless: Vec<NodeId> = self
            .tree
            .top
            .nodes
            .iter()
            .filter(|(id, node)| **id != NodeId::ROOT && node.as_ref().is_some_and(|node| node.links == 0))
            .map(|(id, _)| *id)
            .collect();
        for id in nameless {
            if self.is_dir(id)? && !self.is_empty(id)? {
                // No step leaves such a directory behind; should one ever, its files are kept rather than lost.
                let name = crate::name::Name::new(format!("node-{id}").as_bytes());
                let Ok(name) = name else { continue };
                let at = (NodeId::ROOT, self.free(NodeId::ROOT, &name)?);
                self.bind(&at, id)?;
                self.note(Reason::Beside, id, Some(at));
                continue;
            }
            if self.head.node(id)?.is_some() && self.is_file(id)? {
                self.lost_last_name(id)?;
            }
            self.tree.drop_node(id);
            if let Some(heir) = self.replaced.get(&id) {
                self.tree.top.heirs.insert(id, Some(*heir));
            }
        }
        // A node that is in the tree again has no heir.
        let alive: Vec<NodeId> = self.tree.top.born.iter().copied().collect();
        for id in alive {
            if self.tree.node(id)?.is_some() && self.tree.heir(id)?.is_some() {
                self.tree.top.heirs.insert(id, None);
            }
        }
        Ok(())
    }

    /// A version of another session that went with the node, unseen, is an overlap.
    fn lost_last_name(&mut self, id: NodeId) -> Result<(), H::Error> {
        let Some(was) = self.head.node(id)? else { return Ok(()) };
        let lost = self.ck.lost(id);
        let content_base = match self.ck.node(id).and_then(|change| change.changed.content) {
            Some(base) => base,
            None => lost.and_then(|lost| lost.content),
        };
        let recorded = self.out.overlaps.iter().any(|overlap| overlap.node == id);
        if let Some(version) = self.unseen.get(&id).copied().filter(|_| !recorded) {
            return self.overlap(OverlapRegister::Content, id, version);
        }
        if unseen(&was.content, self.ck.session, content_base) && !recorded {
            self.overlap(OverlapRegister::Content, id, was.content.version)?;
        }
        let owner_base = lost.and_then(|lost| lost.owner);
        let carried = self
            .out
            .notes
            .iter()
            .any(|note| note.reason == Reason::Carried && self.replaced.get(&id) == Some(&note.node));
        if unseen(&was.owner, self.ck.session, owner_base) && was.owner.version != was.birth && !carried {
            self.overlap(OverlapRegister::Owner, id, was.owner.version)?;
        }
        Ok(())
    }
}
