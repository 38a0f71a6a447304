//! The index as a tree.

use super::{BlockAt, HeadError, keys};
use crate::store::Index;
use prost::Message;
use std::sync::Arc;
use tidefs_proto::{
    bad::{bad, exactly},
    model::node_from,
    pack::{BLOCK_PLACE_BYTES, BlockPlace},
    wire,
};
use tidefs_timeline::{Entry, Hash, Head, Name, Node, NodeId, SessionNo, Version};

/// Pairs that one range call of ours asks for.
pub(super) const RANGE_PAIRS: usize = 1024;

/// What an index holds of an order.
#[derive(Debug)]
pub struct LoadedFold {
    /// The order's value.
    pub order: Vec<u8>,
    /// All sessions' values.
    pub sessions: Vec<(SessionNo, Vec<u8>)>,
}

pub(super) struct Base<'a>(pub &'a dyn Index);

impl Base<'_> {
    pub fn number(&self, key: &[u8]) -> Result<Option<u64>, HeadError> {
        Ok(self.0.get(key)?.map(|value| keys::number_of(&value)).transpose()?)
    }

    pub fn block(&self, hash: &Hash) -> Result<Option<BlockAt>, HeadError> {
        let Some(value) = self.0.get(&keys::block(hash))? else { return Ok(None) };
        let (pack, place) = value.split_at_checked(32).unwrap_or_default();
        let place = BlockPlace::from_bytes(place).or_else(|error| bad("index block", error))?;
        Ok(Some((Hash(exactly("index block", pack)?), place)))
    }

    pub fn fold(&self) -> Result<Option<LoadedFold>, HeadError> {
        let Some(order) = self.0.get(keys::FOLD)? else { return Ok(None) };
        let mut sessions = Vec::new();
        for (key, value) in self.all(keys::SESSIONS)? {
            sessions.push((keys::session_of(&key)?, value));
        }
        Ok(Some(LoadedFold { order, sessions }))
    }

    /// Every pair of a prefix.
    pub fn all(&self, prefix: &[u8]) -> Result<Vec<crate::store::index::Pair>, HeadError> {
        let mut all = self.0.range(prefix, None, RANGE_PAIRS)?;
        let mut last = all.len();
        while last == RANGE_PAIRS {
            let more = self.0.range(prefix, all.last().map(|(key, _)| &key[..]), RANGE_PAIRS)?;
            last = more.len();
            all.extend(more);
        }
        Ok(all)
    }
}

pub(super) fn block_value((pack, place): &BlockAt) -> Vec<u8> {
    let mut value = Vec::with_capacity(32 + BLOCK_PLACE_BYTES);
    value.extend_from_slice(&pack.0);
    value.extend_from_slice(&place.to_bytes());
    value
}

impl Head for Base<'_> {
    type Error = HeadError;

    fn node(&self, id: NodeId) -> Result<Option<Arc<Node>>, HeadError> {
        let Some(value) = self.0.get(&keys::node(id))? else { return Ok(None) };
        let message = wire::Node::decode(&value[..]).or_else(|error| bad("index node", error))?;
        Ok(Some(Arc::new(node_from(&message)?)))
    }

    fn entry(&self, dir: NodeId, name: &Name) -> Result<Option<Entry>, HeadError> {
        let value = self.0.get(&keys::entry(dir, name))?;
        Ok(value.map(|value| keys::entry_of(&value)).transpose()?)
    }

    fn entries(
        &self,
        dir: NodeId,
        after: Option<&Name>,
        limit: usize,
    ) -> Result<Vec<(Name, Entry)>, HeadError> {
        let after = after.map(|name| keys::entry(dir, name));
        let pairs = self.0.range(&keys::entries(dir), after.as_deref(), limit)?;
        let entry = |(key, value): (Vec<u8>, Vec<u8>)| Ok((keys::name_at(&key, 9)?, keys::entry_of(&value)?));
        pairs.into_iter().map(entry).collect()
    }

    fn names(&self, node: NodeId) -> Result<Vec<(NodeId, Name)>, HeadError> {
        self.all(&keys::links(node))?.iter().map(|(key, _)| Ok(keys::link_of(key)?)).collect()
    }

    fn alias(&self, dir: NodeId) -> Result<Option<NodeId>, HeadError> {
        Ok(self.number(&keys::alias(dir))?.map(NodeId))
    }

    fn heir(&self, file: NodeId) -> Result<Option<NodeId>, HeadError> {
        Ok(self.number(&keys::heir(file))?.map(NodeId))
    }

    fn tombstone(&self, dir: NodeId, name: &Name) -> Result<Option<Version>, HeadError> {
        let value = self.0.get(&keys::tombstone(dir, name))?;
        Ok(value.map(|value| keys::version_of(&value)).transpose()?)
    }
}
