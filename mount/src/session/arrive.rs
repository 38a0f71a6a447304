//! Checkpoints that the server has placed, one after the other.

use super::{
    Moment, SealJob, Session, Told,
    changes::Shown,
    layers::{UNSEALED_MAX, meets},
};
use crate::volume::Stop;
use std::sync::Arc;
use tidefs_proto::PlacedLine;
use tidefs_timeline::{Head, Node, NodeId, NotLoaded, Overlay, overlay::Over, place};

/// Why an arrival is not taken in now.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Wait {
    /// Cutting the open batch needs this directory.
    Load(NodeId),
    /// Too many checkpoints wait to be sealed.
    Seal,
    /// It is not the one that comes next; the stream has to begin again.
    NotNext,
}

/// What an arrival came to.
#[derive(Debug, Default)]
pub struct Arrived {
    /// The open batch was met and had to be cut first.
    pub job: Option<SealJob>,
    /// What the kernel must be told.
    pub told: Told,
    /// It was this session's own.
    pub own: bool,
    /// Placing the layers again needs this directory; then [`Session::place_layers`].
    pub load: Option<NodeId>,
}

impl Session {
    /// Takes in the next placed checkpoint. An arrival that touches nothing unsent changes only what is applied;
    /// otherwise the open batch is cut and the layers are placed again, as the server will place them.
    pub fn arrive(&mut self, line: &PlacedLine, now: Moment, log_end: u64) -> Result<Arrived, Wait> {
        if line.position != self.view.position.next() {
            return Err(Wait::NotNext);
        }
        if self.layers.unsealed() >= UNSEALED_MAX {
            return Err(Wait::Seal);
        }
        let theirs = &line.placed.effects;
        let own = line.session == self.identity.session;
        let expected = own && self.layers.front().is_some_and(|front| front.checkpoint.number == line.number);
        let as_told =
            expected && self.layers.front().is_some_and(|front| same_effects(&front.effects, theirs));
        let again = if expected { !as_told } else { self.is_met(theirs) };
        let job =
            if again && !self.batch.is_empty() { self.cut(now, log_end, true).map_err(wait)? } else { None };
        let mut shown = Shown::default();
        if !as_told {
            self.shown(&mut shown, theirs);
        }
        if again {
            self.shown(&mut shown, &self.view.sealed);
        }
        if !expected {
            self.rebase_derived(theirs);
        }
        self.view.applied.apply(theirs);
        self.view.position = line.position;
        self.loading.passed(line);
        if expected {
            self.layers.pop();
            self.view.sealed = self.layers.merged();
        }
        let load = if again { self.place_again(&mut shown).err().map(|missing| missing.0) } else { None };
        self.settle_loads();
        Ok(Arrived { job, told: Told { tells: self.tell(shown) }, own: expected, load })
    }

    fn is_met(&self, theirs: &Overlay) -> bool {
        let applied = &self.view.applied;
        if self.layers.iter().any(|layer| layer.meets(theirs, applied)) {
            return true;
        }
        let spots = &self.batch.before.spots;
        let way = |at: &super::before::At| {
            spots.values().flatten().any(|spot| spot.parent == at.0 && spot.name == at.1)
        };
        !self.batch.is_empty() && meets(theirs, &self.view.open, way, applied)
    }

    /// What follows from entries is counted on in layers that hold the same node.
    fn rebase_derived(&mut self, theirs: &Overlay) {
        for (id, now) in &theirs.nodes {
            let (Some(now), Ok(Some(was))) = (now, self.view.applied.node(*id)) else { continue };
            let rebase = |node: &mut Arc<Node>| {
                if !Arc::ptr_eq(node, now) {
                    Arc::make_mut(node).rebase_derived(&was, now);
                }
            };
            let layers = self.layers.iter_mut().filter_map(|layer| layer.effects.nodes.get_mut(id)).flatten();
            layers.for_each(rebase);
            self.view.sealed.nodes.get_mut(id).into_iter().flatten().for_each(rebase);
            self.view.open.nodes.get_mut(id).into_iter().flatten().for_each(rebase);
            self.batch.before.nodes.get_mut(id).into_iter().for_each(rebase);
        }
    }

    /// Places all layers again on what is applied now.
    fn place_again(&mut self, shown: &mut Shown) -> Result<(), NotLoaded> {
        let mut all = Overlay::default();
        let mut effects = Vec::new();
        for layer in self.layers.iter() {
            let placed = place(&Over { below: &self.view.applied, top: &all }, &layer.checkpoint)?;
            all.merge(placed.effects.clone());
            effects.push(placed.effects);
        }
        self.shown(shown, &all);
        for (layer, effects) in self.layers.iter_mut().zip(effects) {
            layer.effects = effects;
        }
        self.view.sealed = all;
        Ok(())
    }

    /// A checkpoint was refused for good: it is shown no longer.
    pub fn refused(&mut self, number: tidefs_timeline::CheckpointNo) -> Result<Told, NotLoaded> {
        self.layers.remove(number);
        self.place_layers()
    }

    /// After a directory was loaded that placing again had asked for.
    pub fn place_layers(&mut self) -> Result<Told, NotLoaded> {
        let mut shown = Shown::default();
        self.shown(&mut shown, &self.view.sealed);
        self.place_again(&mut shown)?;
        Ok(Told { tells: self.tell(shown) })
    }
}

fn wait(stop: Stop) -> Wait {
    match stop {
        Stop::Load(crate::volume::Load::Directory(dir)) => Wait::Load(dir),
        _ => Wait::Seal,
    }
}

/// Whether two results are the same: names that were added follow from the rest.
fn same_effects(a: &Overlay, b: &Overlay) -> bool {
    a.nodes == b.nodes
        && a.entries == b.entries
        && a.aliases == b.aliases
        && a.heirs == b.heirs
        && a.tombstones == b.tombstones
}
