//! Fetching blocks. A block is named by its hash, so what came is proved to be what was asked for; damage on
//! the way is met by asking once more.

use super::{DriveId, Link, LinkError};
use bytes::Bytes;
use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};
use tidefs_proto::{
    bad::{bad, exactly},
    limits::FETCH_BLOCKS_MAX,
    wire,
};
use tidefs_timeline::{Hash, limits::BLOCK_BYTES_MAX};

impl Link {
    /// Fetches blocks and verifies each; the answer is in the order of `hashes`, one for each. Memory: up to
    /// 1 MiB for each hash, so the caller bounds the list.
    ///
    /// # Errors
    /// Ends within `deadline` (see [`super::FETCH_WAIT`]). BlockMissing and BlockWrong name the block.
    pub async fn fetch_blocks(
        &self,
        drive_id: DriveId,
        hashes: &[Hash],
        deadline: Duration,
    ) -> Result<Vec<(Hash, Bytes)>, LinkError> {
        self.within("fetch blocks", deadline, self.fetch_all(drive_id, hashes)).await
    }

    async fn fetch_all(&self, drive_id: DriveId, hashes: &[Hash]) -> Result<Vec<(Hash, Bytes)>, LinkError> {
        let wanted: Vec<Hash> = hashes.iter().copied().collect::<BTreeSet<_>>().into_iter().collect();
        let mut got = BTreeMap::new();
        for some in wanted.chunks(FETCH_BLOCKS_MAX) {
            let wrong = self.fetch_some(drive_id, some, &mut got).await?;
            if wrong.is_empty() {
                continue;
            }
            tracing::warn!(blocks = wrong.len(), "blocks came with other bytes; asking once more");
            if let Some(hash) = self.fetch_some(drive_id, &wrong, &mut got).await?.first() {
                return Err(LinkError::BlockWrong { hash: *hash });
            }
        }
        let find = |hash: &Hash| match got.get(hash) {
            Some(bytes) => Ok((*hash, Bytes::clone(bytes))),
            None => Err(LinkError::BlockMissing { hash: *hash }),
        };
        hashes.iter().map(find).collect()
    }

    /// One request, asked once more if the connection broke: then it was most often an old one that a
    /// restarted server knows nothing of. Gives back the blocks whose bytes were wrong.
    async fn fetch_some(
        &self,
        drive_id: DriveId,
        hashes: &[Hash],
        got: &mut BTreeMap<Hash, Bytes>,
    ) -> Result<Vec<Hash>, LinkError> {
        match self.fetch_once(drive_id, hashes, got).await {
            Err(LinkError::Unreachable { .. }) => self.fetch_once(drive_id, hashes, got).await,
            done => done,
        }
    }

    async fn fetch_once(
        &self,
        drive_id: DriveId,
        hashes: &[Hash],
        got: &mut BTreeMap<Hash, Bytes>,
    ) -> Result<Vec<Hash>, LinkError> {
        let mut open: BTreeSet<Hash> = hashes.iter().copied().collect();
        let ask = wire::FetchBlocksRequest {
            drive_id: drive_id.to_vec().into(),
            blocks: hashes.iter().map(|hash| hash.0.to_vec().into()).collect(),
        };
        let mut wrong = Vec::new();
        let reply = self.client().fetch_blocks(ask).await.map_err(|status| self.error(status))?;
        let mut stream = reply.into_inner();
        while let Some(reply) = stream.message().await.map_err(|status| self.error(status))? {
            let hash = Hash(exactly("block", &reply.block)?);
            if !open.remove(&hash) {
                return Ok(bad("block", format_args!("{hash} was not asked for, or came twice"))?);
            }
            if reply.missing {
                return Err(LinkError::BlockMissing { hash });
            }
            if reply.data.len() > BLOCK_BYTES_MAX as usize {
                return Ok(bad("block", format_args!("{hash} is larger than a block may be"))?);
            }
            if *blake3::hash(&reply.data).as_bytes() == hash.0 {
                got.insert(hash, reply.data);
            } else {
                wrong.push(hash);
            }
        }
        match open.first() {
            None => Ok(wrong),
            Some(hash) => Ok(bad("block", format_args!("{hash} was not answered"))?),
        }
    }
}
