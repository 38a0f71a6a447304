//! Bringing a drive up: the index as far as it reaches, then the journal from there.

use crate::{
    head::{BlockAt, HeadError, IndexHead},
    order::{Changes, DriveIds, Order, ReplayError, Saved},
    packs::{self, PacksError},
    store::{Blocks, BlocksError, Index, Journal, JournalError},
};
use bytes::Bytes;
use std::{collections::BTreeMap, sync::Arc};
use tidefs_timeline::{Hash, Timestamp};

/// Journal bytes that are read at a time, in bytes.
const READ_BYTES: usize = 8 << 20;
/// Changes that a replay holds in memory before it writes them to the index.
const REPLAY_CHANGES: usize = 50_000;

/// Why a drive could not be brought up.
#[derive(Debug, thiserror::Error)]
pub enum RecoverError {
    /// The index.
    #[error(transparent)]
    Head(#[from] HeadError),
    /// An entry of the journal.
    #[error(transparent)]
    Replay(#[from] ReplayError),
    /// Reading the journal.
    #[error(transparent)]
    Journal(#[from] JournalError),
    /// A pack that the journal names.
    #[error("{0}; restore the pack from a backup")]
    Packs(#[from] PacksError),
    /// The index's fold does not fit its position.
    #[error("the index is damaged: {0}")]
    Fold(String),
    /// The index is ahead of the journal.
    #[error(
        "the journal ends at entry {journal}, but the index is at {index}; restore the journal from a backup"
    )]
    Lost {
        /// The journal's last entry.
        journal: u64,
        /// The index's.
        index: u64,
    },
}

impl RecoverError {
    /// Whether an index made anew from the journal helps.
    pub fn blames_index(&self) -> bool {
        matches!(self, RecoverError::Fold(_) | RecoverError::Head(HeadError::Damaged(_)))
    }
}

/// Brings up order and head of a drive made at `created`. The journal's entries hold what placing came to, so
/// nothing is placed again.
///
/// # Errors
/// When what is stored cannot be read or does not fit together.
pub async fn recover(
    of: (DriveIds, Timestamp),
    journal: &dyn Journal,
    index: Arc<dyn Index>,
    blocks: &dyn Blocks,
) -> Result<(Order, IndexHead), RecoverError> {
    let (ids, created) = of;
    let reached = index.position().map_err(HeadError::from)?;
    let mut head = IndexHead::open(index, created)?;
    let mut order = match head.load_fold()? {
        Some(fold) => Order::from_fold(ids, &fold.order, &fold.sessions)
            .map_err(|error| RecoverError::Fold(error.to_string()))?,
        None => Order::new(ids),
    };
    if order.entry() != reached {
        return Err(RecoverError::Fold(format!("its fold is at {}, it is at {reached}", order.entry())));
    }
    head.set_position(order.position());
    let next = journal.bounds().await?.next;
    if order.entry() >= next {
        return Err(RecoverError::Lost { journal: next.saturating_sub(1), index: order.entry() });
    }
    loop {
        let entries = journal.read_from(order.entry() + 1, READ_BYTES).await?;
        if entries.is_empty() {
            break;
        }
        for (entry, body) in entries {
            let mut changes = order.replay(entry, &body)?;
            let blocks = blocks_of(&changes, blocks).await?;
            changes.packs.values_mut().for_each(Bytes::clear);
            head.advance(Saved { entry, changes }, blocks);
            if head.waiting() > REPLAY_CHANGES {
                head.write_now(&mut order)?;
            }
        }
    }
    if head.is_behind() {
        head.write_now(&mut order)?;
        head.flush()?;
    }
    order.begin_epoch();
    Ok((order, head))
}

async fn blocks_of(changes: &Changes, blocks: &dyn Blocks) -> Result<BTreeMap<Hash, BlockAt>, PacksError> {
    let mut found = BTreeMap::new();
    for (pack, bytes) in &changes.packs {
        // The entry holds it; it may not have been put among the packs before the server ended.
        if !bytes.is_empty() && matches!(blocks.size(pack.0).await, Err(BlocksError::NotFound { .. })) {
            packs::store(blocks, vec![(*pack, bytes.clone())]).await?;
        }
        let table = packs::load(blocks, *pack).await?;
        found.extend(table.blocks.iter().map(|(hash, place)| (*hash, (*pack, *place))));
    }
    Ok(found)
}
