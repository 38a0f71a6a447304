//! A layer as one batch of the index: tree, blocks, lines and fold change together or not at all.

use super::{
    HeadError, Layer,
    base::{Base, block_value},
    keys,
};
use crate::{
    order::Fold,
    store::{Batch, Index},
};
use prost::Message;
use tidefs_proto::model::node_to;
use tidefs_timeline::{Head, Overlay};

/// Commits a layer with the order's fold at its last entry.
pub(super) fn write(index: &dyn Index, layer: &Layer, fold: &Fold) -> Result<(), HeadError> {
    let base = Base(index);
    let mut batch = Batch::new();
    put_nodes(&base, &mut batch, &layer.overlay)?;
    put_entries(&base, &mut batch, &layer.overlay)?;
    put_rest(&mut batch, &layer.overlay);
    for (hash, at) in &layer.blocks {
        batch.put(keys::block(hash), block_value(at));
    }
    for pack in layer.packs.keys() {
        batch.put(keys::pack(pack), Vec::new());
    }
    for (position, (entry, version)) in &layer.lines {
        batch.put(keys::position(*position), entry.to_be_bytes());
        batch.put(keys::checkpoint(*version), position.0.to_be_bytes());
    }
    batch.put(keys::FOLD, fold.order.clone());
    for (session, value) in &fold.sessions {
        batch.put(keys::session(*session), value.clone());
    }
    Ok(index.commit(batch, layer.entry)?)
}

fn put_nodes(base: &Base<'_>, batch: &mut Batch, overlay: &Overlay) -> Result<(), HeadError> {
    for (id, node) in &overlay.nodes {
        let made = overlay.born.contains(id) && node.as_ref().is_some_and(|node| node.is_dir());
        // A directory that left the tree, or is here anew, takes nothing along from before.
        if node.is_none() || made {
            for (key, value) in base.all(&keys::entries(*id))? {
                let name = keys::name_at(&key, 9)?;
                batch.delete(keys::link(keys::entry_of(&value)?.node, *id, &name));
                batch.delete(key);
            }
        }
        match node {
            Some(node) => batch.put(keys::node(*id), node_to(node).encode_to_vec()),
            None => batch.delete(keys::node(*id)),
        }
    }
    Ok(())
}

fn put_entries(base: &Base<'_>, batch: &mut Batch, overlay: &Overlay) -> Result<(), HeadError> {
    for (dir, entries) in &overlay.entries {
        for (name, entry) in entries {
            if let Some(old) = base.entry(*dir, name)? {
                batch.delete(keys::link(old.node, *dir, name));
            }
            match entry {
                Some(entry) => {
                    batch.put(keys::entry(*dir, name), keys::entry_value(entry));
                    batch.put(keys::link(entry.node, *dir, name), Vec::new());
                }
                None => batch.delete(keys::entry(*dir, name)),
            }
        }
    }
    Ok(())
}

fn put_rest(batch: &mut Batch, overlay: &Overlay) {
    for (from, to) in &overlay.aliases {
        batch.put(keys::alias(*from), to.0.to_be_bytes());
    }
    for (from, to) in &overlay.heirs {
        match to {
            Some(to) => batch.put(keys::heir(*from), to.0.to_be_bytes()),
            None => batch.delete(keys::heir(*from)),
        }
    }
    for ((dir, name), version) in &overlay.tombstones {
        match version {
            Some(version) => batch.put(keys::tombstone(*dir, name), keys::version_value(*version)),
            None => batch.delete(keys::tombstone(*dir, name)),
        }
    }
}
