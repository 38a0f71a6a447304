//! Fetching directories and blocks.

use super::{Answers, give, status};
use crate::{drives::Drives, head::BlockAt, listing, packs};
use bytes::Bytes;
use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};
use tidefs_proto::{
    bad::{Bad, exactly},
    limits::{FETCH_BLOCKS_MAX, FETCH_DIRS_MAX},
    wire,
};
use tidefs_timeline::{Hash, NodeId};
use tonic::Status;

/// Sends whole directories, all at one position.
pub(super) async fn directories(
    drives: Arc<Drives>,
    request: wire::FetchDirectoriesRequest,
    answers: Answers<wire::DirectoryPart>,
) -> Result<(), Status> {
    if request.dirs.len() > FETCH_DIRS_MAX {
        return Err(Status::invalid_argument(format!(
            "more than {FETCH_DIRS_MAX} directories in one request"
        )));
    }
    let drive = drives.of_id(&request.drive_id).await.map_err(status::drives)?;
    let head = drive.head.clone();
    let dirs: Vec<NodeId> = request.dirs.iter().copied().map(NodeId).collect();
    let read = move || {
        let head = head.read();
        listing::list(&*head, head.position(), &dirs, request.prefetch_entries)
    };
    let listed = tokio::task::spawn_blocking(read).await;
    let parts = listed.map_err(|_| Status::unavailable("the server is stopping"))?.map_err(status::head)?;
    for part in parts {
        give(&answers, part).await?;
    }
    Ok(())
}

/// Sends blocks by their hashes, those that lie together in one read.
pub(super) async fn blocks(
    drives: Arc<Drives>,
    request: wire::FetchBlocksRequest,
    answers: Answers<wire::BlockReply>,
) -> Result<(), Status> {
    if request.blocks.len() > FETCH_BLOCKS_MAX {
        return Err(Status::invalid_argument(format!("more than {FETCH_BLOCKS_MAX} blocks in one request")));
    }
    let asked: BTreeSet<Hash> =
        request.blocks.iter().map(|block| exactly("block", block).map(Hash)).collect::<Bad<_>>()?;
    let drive = drives.of_id(&request.drive_id).await.map_err(status::drives)?;
    let mut places: Vec<(Hash, BlockAt)> = Vec::new();
    let mut missing = Vec::new();
    let mut inline: BTreeMap<Hash, Bytes> = BTreeMap::new();
    {
        let head = drive.head.read();
        for hash in asked {
            match head.block(&hash).map_err(status::head)? {
                Some(at) => {
                    inline.extend(head.inline_pack(&at.0).map(|bytes| (at.0, bytes)));
                    places.push((hash, at));
                }
                None => missing.push(hash),
            }
        }
    }
    for hash in missing {
        let block = hash.0.to_vec().into();
        give(&answers, wire::BlockReply { block, missing: true, ..wire::BlockReply::default() }).await?;
    }
    for group in packs::by_frames(places) {
        let held = inline.get(&group.pack);
        for (hash, data) in packs::read_group(&*drive.blocks, held, group).await.map_err(status::stored)? {
            give(&answers, wire::BlockReply { block: hash.0.to_vec().into(), data, missing: false }).await?;
        }
    }
    Ok(())
}
