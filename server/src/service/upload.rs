//! A pack on its way in: small ones are checked in memory and stored in one step, the smallest by the journal itself; larger ones go to the storage as
//! they come and are checked there.

use super::status;
use crate::{drive::Drive, packs, store::PackUpload};
use bytes::{Bytes, BytesMut};
use tidefs_proto::{bad::exactly, limits::PACK_BYTES_MAX, wire};
use tidefs_timeline::Hash;
use tonic::Status;

/// Up to this size a pack stays in memory, in bytes.
const MEMORY_BYTES: usize = 1 << 20;
/// Up to this size a pack is checked on the spot, in bytes: shorter than a change of threads.
const INLINE_BYTES: usize = 128 << 10;

/// Up to this size a pack is stored with the journal entry that names it, in bytes: one sync instead of three.
const JOURNAL_BYTES: usize = 64 << 10;

/// A pack of which some parts have come.
pub(super) struct Upload {
    pack: Hash,
    offset: u64,
    held: BytesMut,
    stored: Option<Box<dyn PackUpload>>,
}

impl Upload {
    /// Takes in the next part; true when it was the last and the pack is stored and known.
    pub async fn part(
        upload: &mut Option<Upload>,
        drive: &Drive,
        part: wire::PackPart,
    ) -> Result<(), Status> {
        let pack = Hash(exactly("pack.pack", &part.pack)?);
        let mut now =
            upload.take().unwrap_or(Upload { pack, offset: 0, held: BytesMut::new(), stored: None });
        if now.pack != pack || now.offset != part.offset {
            return Err(Status::invalid_argument(format!(
                "a part of pack {pack} at {} came where one of pack {} at {} belongs: send the pack again",
                part.offset, now.pack, now.offset
            )));
        }
        now.write(drive, part.data).await?;
        if !part.last {
            *upload = Some(now);
            return Ok(());
        }
        if part.length != 0 && part.length != now.offset {
            return Err(Status::invalid_argument(format!(
                "pack {pack} has {} bytes, not {} as said: send it again",
                now.offset, part.length
            )));
        }
        now.finish(drive).await
    }

    async fn write(&mut self, drive: &Drive, data: Bytes) -> Result<(), Status> {
        self.offset += data.len() as u64;
        if let Some(stored) = &mut self.stored {
            return stored.write(data).await.map_err(status::blocks);
        }
        self.held.extend_from_slice(&data);
        if self.held.len() > MEMORY_BYTES {
            let mut stored = drive.blocks.begin_upload(PACK_BYTES_MAX).await.map_err(status::blocks)?;
            stored.write(std::mem::take(&mut self.held).freeze()).await.map_err(status::blocks)?;
            self.stored = Some(stored);
        }
        Ok(())
    }

    async fn finish(self, drive: &Drive) -> Result<(), Status> {
        let pack = self.pack;
        let table = match self.stored {
            Some(stored) => {
                stored.finish(pack.0).await.map_err(status::blocks)?;
                let table = packs::load(&*drive.blocks, pack).await.map_err(status::taken)?;
                packs::check_stored(&*drive.blocks, pack, &table).await.map_err(status::taken)?;
                table
            }
            None => {
                let bytes = self.held.freeze();
                let checked = bytes.clone();
                let check = move || packs::check_in_memory(pack, &checked);
                let table = if bytes.len() <= INLINE_BYTES {
                    check()
                } else {
                    let checked = tokio::task::spawn_blocking(check).await;
                    checked.map_err(|_| Status::unavailable("the server is stopping"))?
                };
                let mut table = table.map_err(status::taken)?;
                if packs::id_of(&bytes) != pack {
                    return Err(Status::invalid_argument(format!(
                        "the bytes sent as pack {pack} are another: send it again"
                    )));
                }
                if bytes.len() <= JOURNAL_BYTES {
                    table.bytes = bytes;
                } else {
                    drive.blocks.put_pack(pack.0, bytes).await.map_err(status::blocks)?;
                }
                table
            }
        };
        drive.pack_arrived(pack, table).await.map_err(status::ended)
    }
}
