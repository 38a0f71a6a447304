//! The outbox: sealed checkpoints with their packs, until they are acknowledged.
//!
//! Sealing waits for the disk, and an fsync at server level waits for sealing, so syncs are counted: a checkpoint
//! whose pack is small is one file and costs one sync and one of the directory. A large pack is a file of its own,
//! synced beside the checkpoint. Names appear only after the bytes are durable, the checkpoint's last, so
//! whatever is listed is whole; what a crash left half-way has a temporary name or no checkpoint, and is removed.
//!
//! ```text
//! <16 hex digits of n>.ckpt   0 "TDCK" · 4 version u16 · 6 flags u16 (1: pack follows) · 8 number u64
//!                             16 checkpoint length u64 · 24 pack length u64 · 32 pack id · 64 crc32
//!                             68 checkpoint · pack, if flag 1
//! <16 hex digits of n>.pack   the pack, if the pack length is not 0 and flag 1 is not set
//! ```
//! Little-endian; the checksum covers everything else in the file.

mod error;
mod file;
mod sink;
#[cfg(test)]
mod tests;

use std::fs::File;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use tidefs_proto::pack::{Hash, PackSummary, PackWriter};

use super::pack_file::PackFile;
pub use error::OutboxError;
use file::Header;
pub use sink::PackSink;

/// Largest pack that lies inside its checkpoint's file, in bytes.
pub const EMBEDDED_PACK_BYTES_MAX: u64 = 64 << 10;
/// Largest checkpoint, in bytes: what one batch's limits allow, with room.
pub const CHECKPOINT_BYTES_MAX: u64 = 256 << 20;

/// The folder of sealed checkpoints.
pub struct Outbox {
    dir: PathBuf,
    dir_file: File,
    temporary: AtomicU64,
}

/// A finished pack that is not part of a checkpoint yet. Dropped, it leaves nothing behind.
#[derive(Debug)]
pub struct BuiltPack {
    /// What the pack is.
    pub summary: PackSummary,
    sink: PackSink,
}

impl BuiltPack {
    /// Finishes a pack that [`Outbox::pack_writer`] began.
    ///
    /// # Errors
    /// When the sink fails, as [`PackWriter::finish`].
    pub fn finish(writer: PackWriter<PackSink>) -> Result<BuiltPack, tidefs_proto::pack::PackError> {
        let (summary, sink) = writer.finish_into()?;
        Ok(BuiltPack { summary, sink })
    }
}

/// A checkpoint read back.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sealed {
    /// The bytes given to [`Outbox::put`].
    pub checkpoint: Vec<u8>,
    /// The id and the length in bytes of its pack, if it has one.
    pub pack: Option<(Hash, u64)>,
}

impl Outbox {
    /// Opens the folder (made if missing) and removes what a crash left half-way.
    ///
    /// # Errors
    /// [`OutboxError::Io`] when the folder cannot be made, listed or cleaned.
    pub fn open(dir: &Path) -> Result<Outbox, OutboxError> {
        let dir_file = super::durable_folder(dir).map_err(|e| OutboxError::io("make the folder", dir, e))?;
        let outbox = Outbox { dir: dir.to_path_buf(), dir_file, temporary: AtomicU64::new(0) };
        let list = |e| OutboxError::io("list", dir, e);
        for entry in std::fs::read_dir(dir).map_err(list)? {
            let path = entry.map_err(list)?.path();
            let extension = path.extension().and_then(|e| e.to_str()).unwrap_or_default();
            let orphan = extension == "pack"
                && !path
                    .with_extension("ckpt")
                    .try_exists()
                    .map_err(|e| OutboxError::io("look for", &path, e))?;
            if extension == "tmp" || orphan {
                std::fs::remove_file(&path).map_err(|e| OutboxError::io("remove", &path, e))?;
            }
        }
        Ok(outbox)
    }

    /// Begins a pack. It stays in memory while it is small and goes to a temporary file in the folder beyond.
    ///
    /// # Errors
    /// As [`PackWriter::new`].
    pub fn pack_writer(&self) -> Result<PackWriter<PackSink>, tidefs_proto::pack::PackError> {
        PackWriter::new(PackSink::new(self.temporary("pack")))
    }

    /// Stores checkpoint `n` with its pack (one without blocks counts as none); both are durable when this returns.
    ///
    /// # Errors
    /// [`OutboxError::NoSpace`], [`OutboxError::TooLarge`] or [`OutboxError::Io`]: then there is no checkpoint `n`.
    /// [`OutboxError::Exists`] when there is one: two files cannot be replaced in one step, so it stays as it is.
    pub fn put(&self, n: u64, checkpoint: &[u8], pack: Option<BuiltPack>) -> Result<(), OutboxError> {
        if checkpoint.len() as u64 > CHECKPOINT_BYTES_MAX {
            return Err(OutboxError::TooLarge { number: n, bytes: checkpoint.len() as u64 });
        }
        let path = self.checkpoint_path(n);
        if path.try_exists().map_err(|e| OutboxError::io("look for", &path, e))? {
            return Err(OutboxError::Exists { number: n, path });
        }
        let pack = pack.filter(|p| p.summary.blocks > 0);
        let result = self.put_files(n, checkpoint, pack);
        if result.is_err() {
            // Half of it would be taken for the whole.
            let _ = std::fs::remove_file(path);
            let _ = std::fs::remove_file(self.pack_path(n));
        }
        result
    }

    fn put_files(&self, n: u64, checkpoint: &[u8], pack: Option<BuiltPack>) -> Result<(), OutboxError> {
        let mut header = Header {
            embedded: false,
            number: n,
            checkpoint_len: checkpoint.len() as u64,
            pack_len: pack.as_ref().map_or(0, |p| p.summary.length),
            pack_id: pack.as_ref().map_or([0; 32], |p| p.summary.id),
        };
        let temp = Temporary(self.temporary("ckpt"));
        let separate = match pack.as_ref().map(|p| p.sink.embeddable()) {
            Some(Some(bytes)) => {
                header.embedded = true;
                write_synced(&temp.0, &[&header.encode(&[checkpoint, bytes]), checkpoint, bytes])?;
                None
            }
            None => {
                write_synced(&temp.0, &[&header.encode(&[checkpoint]), checkpoint])?;
                None
            }
            Some(None) => pack,
        };
        if let Some(mut pack) = separate {
            self.put_pack(n, &mut pack, || {
                write_synced(&temp.0, &[&header.encode(&[checkpoint]), checkpoint])
            })?;
        }
        let path = self.checkpoint_path(n);
        std::fs::rename(&temp.0, &path).map_err(|e| OutboxError::io("name", &path, e))?;
        self.dir_file.sync_all().map_err(|e| OutboxError::io("sync", &self.dir, e))
    }

    /// Syncs and names a pack of its own, while `beside` runs.
    fn put_pack(
        &self,
        n: u64,
        pack: &mut BuiltPack,
        beside: impl FnOnce() -> Result<(), OutboxError> + Send,
    ) -> Result<(), OutboxError> {
        let path = self.pack_path(n);
        let (synced, other) = std::thread::scope(|scope| {
            let other = scope.spawn(beside);
            let synced = pack.sink.sync();
            (synced, other.join())
        });
        synced.map_err(|e| OutboxError::io("sync", pack.sink.path(), e))?;
        other.unwrap_or_else(|_| {
            let source = io::Error::other("the writing thread ended early");
            Err(OutboxError::io("write", &self.checkpoint_path(n), source))
        })?;
        pack.sink.persist(&path).map_err(|e| OutboxError::io("name", &path, e))
    }

    /// The numbers of the checkpoints, ascending.
    ///
    /// # Errors
    /// [`OutboxError::Io`] when the folder cannot be listed.
    pub fn list(&self) -> Result<Vec<u64>, OutboxError> {
        let failed = |e| OutboxError::io("list", &self.dir, e);
        let mut numbers = Vec::new();
        for entry in std::fs::read_dir(&self.dir).map_err(failed)? {
            let name = entry.map_err(failed)?.file_name();
            let stem = name.to_str().and_then(|n| n.strip_suffix(".ckpt")).filter(|s| s.len() == 16);
            numbers.extend(stem.and_then(|s| u64::from_str_radix(s, 16).ok()));
        }
        numbers.sort_unstable();
        Ok(numbers)
    }

    /// Checkpoint `n`, checked.
    ///
    /// # Errors
    /// [`OutboxError::Missing`], [`OutboxError::Damaged`] or [`OutboxError::Io`].
    pub fn load(&self, n: u64) -> Result<Sealed, OutboxError> {
        let (header, checkpoint) = file::load(&self.checkpoint_path(n), n)?;
        Ok(Sealed { checkpoint, pack: (header.pack_len > 0).then_some((header.pack_id, header.pack_len)) })
    }

    /// The pack of checkpoint `n`, for upload; `None` if it has none. Its length is checked, its bytes are not: they
    /// check themselves block by block, and the receiver compares the id.
    ///
    /// # Errors
    /// As [`Outbox::load`].
    pub fn open_pack(&self, n: u64) -> Result<Option<PackFile>, OutboxError> {
        Ok(self.find_pack(n)?.map(|(_, file)| file))
    }

    fn find_pack(&self, n: u64) -> Result<Option<(Header, PackFile)>, OutboxError> {
        let path = self.checkpoint_path(n);
        let header = file::load_header(&path, n)?;
        if header.pack_len == 0 {
            return Ok(None);
        }
        if header.embedded {
            let file =
                PackFile::inside(&path, file::HEADER_BYTES as u64 + header.checkpoint_len, header.pack_len);
            return Ok(Some((header, file)));
        }
        let path = self.pack_path(n);
        let file = PackFile::whole(&path).map_err(|e| match e.kind() {
            io::ErrorKind::NotFound => OutboxError::damaged(&path, "the pack is gone"),
            _ => OutboxError::io("look at", &path, e),
        })?;
        if file.length() != header.pack_len {
            return Err(OutboxError::damaged(&path, "the pack has the wrong length"));
        }
        Ok(Some((header, file)))
    }

    /// Forgets checkpoint `n` and its pack; no error when there is none. Not synced: after a loss of power it may be
    /// listed again, and sending it again gets the first answer.
    ///
    /// # Errors
    /// [`OutboxError::Io`] when the system refuses.
    pub fn remove(&self, n: u64) -> Result<(), OutboxError> {
        for path in [self.checkpoint_path(n), self.pack_path(n)] {
            match std::fs::remove_file(&path) {
                Err(e) if e.kind() != io::ErrorKind::NotFound => {
                    return Err(OutboxError::io("remove", &path, e));
                }
                _ => {}
            }
        }
        Ok(())
    }

    /// Moves a checkpoint that the server refuses for good, with its pack, into the folder `refused` beside it:
    /// nothing of it is lost.
    ///
    /// # Errors
    /// [`OutboxError::Io`] when the system refuses.
    pub fn set_aside(&self, n: u64) -> Result<PathBuf, OutboxError> {
        let aside = self.dir.join("refused");
        std::fs::create_dir_all(&aside).map_err(|e| OutboxError::io("make", &aside, e))?;
        for path in [self.pack_path(n), self.checkpoint_path(n)] {
            let Some(name) = path.file_name() else { continue };
            match std::fs::copy(&path, aside.join(name)) {
                Err(e) if e.kind() != io::ErrorKind::NotFound => {
                    return Err(OutboxError::io("copy", &path, e));
                }
                _ => {}
            }
        }
        Ok(aside)
    }

    /// Moves the pack of an acknowledged checkpoint to `<pack id>.pack` in `cache_dir` and forgets the checkpoint.
    /// Gives the file for the cache, `None` when there was no pack.
    ///
    /// # Errors
    /// As [`Outbox::load`]; the checkpoint is still there then.
    pub fn retire(&self, n: u64, cache_dir: &Path) -> Result<Option<PackFile>, OutboxError> {
        let Some((header, source)) = self.find_pack(n)? else {
            self.remove(n)?;
            return Ok(None);
        };
        let target = cache_dir.join(format!("{}.pack", blake3::Hash::from(header.pack_id).to_hex()));
        if header.embedded {
            let bytes = source
                .read(0, source.length() as usize)
                .map_err(|e| OutboxError::io("read", source.path(), e))?;
            let temp = target.with_extension("tmp");
            // Not synced: a cached pack that a loss of power tore is noticed and dropped.
            std::fs::write(&temp, bytes)
                .and_then(|()| std::fs::rename(&temp, &target))
                .map_err(|e| OutboxError::io("write", &target, e))?;
            self.remove(n)?;
        } else {
            // The checkpoint first: without its pack it would be taken for a damaged one.
            let path = self.checkpoint_path(n);
            std::fs::remove_file(&path).map_err(|e| OutboxError::io("remove", &path, e))?;
            std::fs::rename(source.path(), &target).map_err(|e| OutboxError::io("move", source.path(), e))?;
        }
        PackFile::whole(&target).map(Some).map_err(|e| OutboxError::io("look at", &target, e))
    }

    fn checkpoint_path(&self, n: u64) -> PathBuf {
        self.dir.join(format!("{n:016x}.ckpt"))
    }

    fn pack_path(&self, n: u64) -> PathBuf {
        self.dir.join(format!("{n:016x}.pack"))
    }

    fn temporary(&self, what: &str) -> PathBuf {
        self.dir.join(format!("{what}-{}.tmp", self.temporary.fetch_add(1, Ordering::Relaxed)))
    }
}

/// A temporary name; what still has it at the end is removed.
struct Temporary(PathBuf);

impl Drop for Temporary {
    fn drop(&mut self) {
        // Absent after the rename; a leftover goes at the next open.
        let _ = std::fs::remove_file(&self.0);
    }
}

fn write_synced(path: &Path, parts: &[&[u8]]) -> Result<(), OutboxError> {
    let write = || {
        let mut file = io::BufWriter::new(File::create(path)?);
        parts.iter().try_for_each(|part| file.write_all(part))?;
        file.into_inner().map_err(io::IntoInnerError::into_error)?.sync_data()
    };
    write().map_err(|e| OutboxError::io("write", path, e))
}
