//! Packs as objects of an object store; on the local disk a store that syncs each file and its folder.
//!
//! A pack is at `ab/<64 hex digits>.pack`, where `ab` are its first two digits. It is put by replacing whatever has
//! its name, as one step: the name fixes the bytes, so nothing changes for readers, and a put that finds the remains
//! of an unsynced one is durable all the same. An upload is kept in memory while it is small, because most packs
//! are a few KiB and two syncs are the whole cost of putting one; past that it goes to `staging/` in parts and is
//! moved into place.

use std::ops::Range;
use std::path::Path as DiskPath;
use std::sync::Arc;

use async_trait::async_trait;
use bytes::{Bytes, BytesMut};
use futures::TryStreamExt;
use object_store::local::LocalFileSystem;
use object_store::path::Path;
use object_store::{ObjectStore, ObjectStoreExt, WriteMultipart};

use super::{
    Blocks, BlocksError, PACK_BYTES_MAX, PackId, PackUpload, check_id, check_limit, check_ranges, hex,
};
use crate::store::disk::{Context, create_dir_synced};

/// Up to this size an upload stays in memory, in bytes.
const SPOOL_BYTES: usize = 1 << 20;
/// The size of the parts of a larger one, in bytes. Object storage takes none below 5 MiB.
const PART_BYTES: usize = 5 << 20;
/// How many parts of one upload may be under way.
const PARTS_UNDER_WAY: usize = 2;

const STAGING: &str = "staging";

/// Packs in an object store. Clones are the same packs.
#[derive(Debug, Clone)]
pub struct ObjectBlocks {
    store: Arc<dyn ObjectStore>,
}

impl ObjectBlocks {
    /// Opens the packs in the local folder `dir`, which is made if it is missing, and removes what unfinished
    /// uploads left there. Blocks the thread. Open a folder once and clone: a second open takes the uploads that
    /// are under way through the first for leftovers.
    ///
    /// # Errors
    /// When the folder cannot be made, listed or cleaned.
    pub fn open_local(dir: &DiskPath) -> Result<Self, BlocksError> {
        create_dir_synced(dir)?;
        remove_leftovers(dir)?;
        let store = LocalFileSystem::new_with_prefix(dir).map_err(|source| BlocksError::Storage {
            doing: "open",
            path: dir.display().to_string(),
            source,
        })?;
        Ok(Self { store: Arc::new(store.with_fsync(true)) })
    }

    fn failed(
        id: PackId,
        doing: &'static str,
        path: &Path,
    ) -> impl FnOnce(object_store::Error) -> BlocksError {
        let path = path.to_string();
        move |source| match source {
            object_store::Error::NotFound { .. } => BlocksError::NotFound { id },
            source => BlocksError::Storage { doing, path, source },
        }
    }
}

fn storage(doing: &'static str, path: &Path) -> impl FnOnce(object_store::Error) -> BlocksError {
    let path = path.to_string();
    move |source| BlocksError::Storage { doing, path, source }
}

#[async_trait]
impl Blocks for ObjectBlocks {
    async fn put_pack(&self, id: PackId, pack: Bytes) -> Result<(), BlocksError> {
        check_limit(pack.len() as u64, PACK_BYTES_MAX)?;
        check_id(id, blake3::hash(&pack))?;
        put(&*self.store, id, pack).await
    }

    async fn begin_upload(&self, limit: u64) -> Result<Box<dyn PackUpload>, BlocksError> {
        Ok(Box::new(ObjectUpload {
            store: Arc::clone(&self.store),
            limit: limit.min(PACK_BYTES_MAX),
            bytes: 0,
            hasher: blake3::Hasher::new(),
            spool: BytesMut::new(),
            parts: None,
        }))
    }

    async fn read(&self, id: PackId, ranges: &[Range<u64>]) -> Result<Vec<Bytes>, BlocksError> {
        check_ranges(id, ranges)?;
        let size = self.size(id).await?;
        if let Some(range) = ranges.iter().find(|range| range.end > size) {
            return Err(BlocksError::OutOfRange { id, range: range.clone() });
        }
        let path = pack_path(&id);
        let asked: Vec<Range<u64>> = ranges.iter().filter(|range| !range.is_empty()).cloned().collect();
        let found = match asked.is_empty() {
            true => Vec::new(),
            false => self.store.get_ranges(&path, &asked).await.map_err(Self::failed(id, "read", &path))?,
        };
        let mut found = found.into_iter();
        let mut answers = Vec::with_capacity(ranges.len());
        for range in ranges {
            let bytes = if range.is_empty() { Bytes::new() } else { found.next().unwrap_or_default() };
            if bytes.len() as u64 != range.end - range.start {
                return Err(BlocksError::OutOfRange { id, range: range.clone() });
            }
            answers.push(bytes);
        }
        Ok(answers)
    }

    async fn size(&self, id: PackId) -> Result<u64, BlocksError> {
        let path = pack_path(&id);
        Ok(self.store.head(&path).await.map_err(Self::failed(id, "look at", &path))?.size)
    }

    async fn list(&self, after: Option<PackId>, limit: usize) -> Result<Vec<(PackId, u64)>, BlocksError> {
        let mut packs = Vec::new();
        for shard in after.map_or(0, |id| id[0])..=u8::MAX {
            if packs.len() >= limit {
                break;
            }
            let folder = Path::from(format!("{shard:02x}"));
            let mut objects = self.store.list(Some(&folder));
            let mut found = Vec::new();
            while let Some(object) = objects.try_next().await.map_err(storage("list", &folder))? {
                let id = parse_path(&object.location).filter(|id| after.is_none_or(|after| *id > after));
                found.extend(id.map(|id| (id, object.size)));
            }
            found.sort_unstable();
            packs.extend(found);
        }
        packs.truncate(limit);
        Ok(packs)
    }

    async fn delete(&self, id: PackId) -> Result<(), BlocksError> {
        let path = pack_path(&id);
        match self.store.delete(&path).await {
            Ok(()) | Err(object_store::Error::NotFound { .. }) => Ok(()),
            Err(source) => Err(storage("delete", &path)(source)),
        }
    }
}

struct ObjectUpload {
    store: Arc<dyn ObjectStore>,
    limit: u64,
    bytes: u64,
    hasher: blake3::Hasher,
    spool: BytesMut,
    parts: Option<Parts>,
}

struct Parts {
    path: Path,
    /// Dropping it removes what it stored.
    multipart: WriteMultipart,
}

#[async_trait]
impl PackUpload for ObjectUpload {
    async fn write(&mut self, part: Bytes) -> Result<(), BlocksError> {
        check_limit(self.bytes.saturating_add(part.len() as u64), self.limit)?;
        self.bytes += part.len() as u64;
        self.hasher.update(&part);
        if self.parts.is_none() {
            if self.spool.len() + part.len() <= SPOOL_BYTES {
                self.spool.extend_from_slice(&part);
                return Ok(());
            }
            let path = Path::from_iter([STAGING.to_owned(), format!("{:032x}", rand::random::<u128>())]);
            let upload = self.store.put_multipart(&path).await.map_err(storage("begin", &path))?;
            let mut multipart = WriteMultipart::new_with_chunk_size(upload, PART_BYTES);
            multipart.put(std::mem::take(&mut self.spool).freeze());
            self.parts = Some(Parts { path, multipart });
        }
        if let Some(parts) = &mut self.parts {
            parts
                .multipart
                .wait_for_capacity(PARTS_UNDER_WAY)
                .await
                .map_err(storage("write", &parts.path))?;
            parts.multipart.put(part);
        }
        Ok(())
    }

    async fn finish(mut self: Box<Self>, expected: PackId) -> Result<u64, BlocksError> {
        if let Err(error) = check_id(expected, self.hasher.finalize()) {
            self.abort().await;
            return Err(error);
        }
        match self.parts.take() {
            None => put(&*self.store, expected, self.spool.freeze()).await?,
            Some(Parts { path, multipart }) => {
                multipart.finish().await.map_err(storage("write", &path))?;
                let target = pack_path(&expected);
                if let Err(source) = self.store.rename(&path, &target).await {
                    // What stays behind is removed at the next open.
                    let _ = self.store.delete(&path).await;
                    return Err(storage("move into place", &target)(source));
                }
            }
        }
        Ok(self.bytes)
    }

    async fn abort(mut self: Box<Self>) {
        if let Some(Parts { path, multipart }) = self.parts.take()
            && let Err(error) = multipart.abort().await
        {
            tracing::warn!(%path, %error, "an upload that was given up left something behind");
        }
    }
}

async fn put(store: &dyn ObjectStore, id: PackId, pack: Bytes) -> Result<(), BlocksError> {
    let path = pack_path(&id);
    store.put(&path, pack.into()).await.map_err(storage("put", &path))?;
    Ok(())
}

fn pack_path(id: &PackId) -> Path {
    let name = hex(id);
    Path::from_iter([name[..2].to_owned(), format!("{name}.pack")])
}

/// The pack at this path, if it is the path of one.
fn parse_path(path: &Path) -> Option<PackId> {
    let id = *blake3::Hash::from_hex(path.filename()?.strip_suffix(".pack")?).ok()?.as_bytes();
    (pack_path(&id) == *path).then_some(id)
}

/// Removes what unfinished puts left: everything in `staging`, and the `…pack#1` beside packs.
fn remove_leftovers(dir: &DiskPath) -> Result<(), BlocksError> {
    let mut removed = 0;
    for folder in std::fs::read_dir(dir).doing("list", dir)? {
        let folder = folder.doing("list", dir)?.path();
        if !folder.is_dir() {
            continue;
        }
        let staging = folder.file_name().is_some_and(|name| name == STAGING);
        for file in std::fs::read_dir(&folder).doing("list", &folder)? {
            let file = file.doing("list", &folder)?;
            if staging || file.file_name().to_string_lossy().contains(".pack#") {
                std::fs::remove_file(file.path()).doing("remove", &file.path())?;
                removed += 1;
            }
        }
    }
    if removed > 0 {
        tracing::info!(dir = %dir.display(), removed, "removed what unfinished uploads left");
    }
    Ok(())
}
