//! The cutter, which waits until a cut is due, and the sealer, which turns what was cut into an outbox file: the
//! log's bytes become blocks of a pack, the pack and the checkpoint are synced, then the log is freed.

use super::{Engine, now, orphans::ORPHAN_BIT};
use crate::{
    cache::PackKind,
    session::{
        SealJob,
        cut::Sealed,
        record::{SealMap, SealedRun, context_to},
    },
    wal::{LogPos, outbox::BuiltPack},
};
use prost::Message;
use std::{
    fs::File,
    io::Write,
    path::Path,
    sync::{Arc, atomic::Ordering},
    time::{Duration, Instant},
};
use tidefs_proto::{
    Shipment, Stages, limits::INFLIGHT_MAX, manifest, pack::PackWriter, shipment::digest, wire,
};
use tidefs_timeline::{
    Checkpoint, Content, ExtentMap, FileContent, FileMap, Hash, Piece, Source,
    limits::{CHUNK_BYTES, INLINE_EXTENTS_MAX},
};
use tokio::sync::mpsc;

/// The format of outbox entries that this code writes.
pub(crate) const OUTBOX_FORMAT: u32 = 1;
/// How long the cutter sleeps when nothing is due.
const IDLE: Duration = Duration::from_secs(60);
/// First pause before sealing is tried again; doubles up to [`SEAL_PAUSE_MAX`].
const SEAL_PAUSE: Duration = Duration::from_millis(100);
const SEAL_PAUSE_MAX: Duration = Duration::from_secs(5);

/// What the sealer remembers from one checkpoint to the next.
#[derive(Debug, Default)]
pub(crate) struct Chain {
    /// Digest of the shipment before.
    pub(crate) previous: [u8; 32],
}

/// Log that came to nothing and is kept before a marker is written.
const UNDONE_BYTES_MAX: u64 = 32 << 20;
/// The marker's name in the state folder.
pub(crate) const MARKER: &str = "log.start";

fn write_marker(state_dir: &Path, bytes: &[u8]) -> std::io::Result<()> {
    let (path, temp) = (state_dir.join(MARKER), state_dir.join("log.start.tmp"));
    let mut file = File::create(&temp)?;
    file.write_all(bytes)?;
    file.sync_all()?;
    std::fs::rename(&temp, &path)?;
    File::open(state_dir)?.sync_all()
}

/// Why a checkpoint could not be sealed now.
#[derive(Debug, thiserror::Error)]
pub(crate) enum SealError {
    #[error("the log's bytes cannot be read")]
    Read,
    #[error("the pack cannot be built: {0}")]
    Pack(#[from] tidefs_proto::pack::PackError),
    #[error("{0}")]
    Outbox(#[from] crate::wal::outbox::OutboxError),
    #[error("the log cannot be written: {0}")]
    Io(#[from] std::io::Error),
}

impl Engine {
    /// Cuts when a cut is due, for as long as the mount lives.
    pub(crate) async fn cutter(self: Arc<Self>) {
        let mut progress = self.progress.subscribe();
        loop {
            let due = self.core.lock().session.due();
            let tick = now().tick;
            let pause = due.map_or(IDLE, |due| due.saturating_sub(tick));
            if pause.is_zero() && self.cut_now().await {
                continue;
            }
            // When the outbox is full, or a cut is being sealed, progress wakes the cutter.
            let pause = if pause.is_zero() { IDLE } else { pause };
            self.armed.store((tick + pause).as_micros() as u64, Ordering::Release);
            tokio::select! {
                _ = tokio::time::sleep(pause) => {}
                _ = self.kick.notified() => {}
                _ = progress.changed() => {}
            }
        }
    }

    async fn cut_now(&self) -> bool {
        let cut = {
            let mut core = self.core.lock();
            if !core.session.may_cut(INFLIGHT_MAX) {
                return false;
            }
            let end = core.log.end().0;
            let cut = core.session.cut(now(), end, false);
            if let Ok(Some(job)) = &cut {
                self.log_cut(&mut core, job);
            }
            cut
        };
        match cut {
            Ok(Some(job)) => self.give(job).await,
            Ok(None) => return false,
            Err(crate::volume::Stop::Load(load)) => {
                if let Err(errno) = self.load_now(load).await {
                    tracing::warn!(errno, "a cut waits for a directory that cannot be fetched");
                    tokio::time::sleep(SEAL_PAUSE).await;
                }
            }
            Err(stop) => {
                tracing::error!(?stop, "a cut failed");
                return false;
            }
        }
        true
    }

    /// Hands a cut to the sealer.
    pub(crate) async fn give(&self, job: SealJob) {
        let nothing = job.checkpoint.is_none();
        self.tell(job.tells.clone()).await;
        if self.jobs.send(job).await.is_err() {
            tracing::error!("the sealer has ended");
        }
        self.progress.send_modify(|progress| progress.cuts += 1);
        if nothing {
            self.kick.notify_one();
        }
    }

    /// Seals one checkpoint after the other; each is tried until it is in the outbox.
    pub(crate) fn sealer(self: Arc<Self>, mut jobs: mpsc::Receiver<SealJob>, mut chain: Chain) {
        while let Some(job) = jobs.blocking_recv() {
            let mut pause = SEAL_PAUSE;
            while let Err(error) = self.seal(&job, &mut chain) {
                tracing::error!(%error, "a checkpoint cannot be sealed; its changes stay in the log, trying again");
                self.troubled(format_args!("a checkpoint cannot be sealed: {error}"));
                std::thread::sleep(pause);
                pause = (pause * 2).min(SEAL_PAUSE_MAX);
            }
        }
    }

    /// Puts a cut into the outbox and frees the log before it.
    pub(crate) fn seal(&self, job: &SealJob, chain: &mut Chain) -> Result<(), SealError> {
        let Some(cut) = &job.checkpoint else { return self.free_undone(job, chain) };
        let begun = Instant::now();
        let number = cut.number;
        // Bytes of a checkpoint sealed before may have moved since the cut.
        let mut checkpoint = {
            let core = self.core.lock();
            let layer = core.session.layers().iter().find(|layer| layer.checkpoint.number == number);
            Checkpoint::clone(layer.map_or(cut, |layer| &layer.checkpoint))
        };
        let mut packing = Packing {
            engine: self,
            writer: self.local.outbox.pack_writer()?,
            sealed: Sealed::default(),
            lists: Vec::new(),
        };
        packing.pack(&mut checkpoint)?;
        let Packing { writer, sealed, lists, .. } = packing;
        let pack = if writer.blocks() > 0 { Some(BuiltPack::finish(writer)?) } else { None };
        let shipment = Shipment {
            incarnation: self.fixed.incarnation,
            previous: chain.previous,
            pack: pack.as_ref().map(|pack| Hash(pack.summary.id)),
            stages: stages(job, begun),
            next_counter: job.next_counter,
            checkpoint,
        }
        .encode();
        let digest = digest(&shipment);
        let entry = self.outbox_entry(job, (&shipment, digest), &sealed.map);
        let bytes = entry.encode_to_vec();
        let unsent = bytes.len() as u64 + pack.as_ref().map_or(0, |pack| pack.summary.length);
        self.local.outbox.put(number.0, &bytes, pack)?;
        if let Some(file) = self.local.outbox.open_pack(number.0)?
            && let Err(error) = self.local.cache.add_pack(&file, PackKind::Outbox)
        {
            tracing::warn!(%error, checkpoint = number.0, "own blocks are not cached; they will be fetched");
        }
        chain.previous = digest;
        self.seen.unsent_bytes.fetch_add(unsent, Ordering::Relaxed);
        self.finish_seal(job, number, (sealed, lists));
        Ok(())
    }

    /// A cut that came to nothing leaves no outbox file that says where the log goes on. When it is worth it, a
    /// marker says so, and the log before it is freed.
    fn free_undone(&self, job: &SealJob, chain: &Chain) -> Result<(), SealError> {
        let after = self.progress.borrow().sealed;
        if job.log_start.saturating_sub(self.core.lock().log_start) < UNDONE_BYTES_MAX {
            return Ok(());
        }
        let mut entry = self.outbox_entry(job, (&[], chain.previous), &SealMap::default());
        entry.after = after.0;
        write_marker(&self.fixed.state_dir, &entry.encode_to_vec())?;
        self.rescue_orphans(job.log_start);
        let mut core = self.core.lock();
        core.log_start = core.log_start.max(job.log_start);
        let start = LogPos(core.log_start);
        core.log.release_before(start);
        Ok(())
    }

    fn outbox_entry(&self, job: &SealJob, shipment: (&[u8], [u8; 32]), map: &SealMap) -> wire::OutboxEntry {
        let mut context = wire::LogContext::default();
        for part in context_to(&job.context) {
            context.nodes.extend(part.nodes);
            context.entries.extend(part.entries);
            context.spots.extend(part.spots);
        }
        let mut sealed = map.to_wire();
        for older in self.core.lock().session.layers().recent() {
            sealed.extend(older.to_wire());
        }
        wire::OutboxEntry {
            format: OUTBOX_FORMAT,
            shipment: shipment.0.to_vec().into(),
            digest: shipment.1.to_vec().into(),
            log_start: job.log_start,
            context: Some(context),
            sealed,
            next_counter: job.next_counter,
            after: 0,
        }
    }

    fn finish_seal(
        &self,
        job: &SealJob,
        number: tidefs_timeline::CheckpointNo,
        result: (Sealed, Vec<(Hash, ExtentMap)>),
    ) {
        self.rescue_orphans(job.log_start);
        {
            let mut core = self.core.lock();
            for (root, list) in result.1 {
                core.session.put_extents(root, list);
            }
            core.session.sealed(number, result.0);
            core.log_start = core.log_start.max(job.log_start);
            let start = LogPos(core.log_start);
            core.log.release_before(start);
        }
        self.drop_answered();
        self.progress.send_modify(|progress| progress.sealed = progress.sealed.max(number));
    }

    /// Bytes that only files without a name have left in the log before `start` go elsewhere.
    fn rescue_orphans(&self, start: u64) {
        loop {
            let found: Vec<Piece> = {
                let mut core = self.core.lock();
                let pieces = core.session.orphan_pieces();
                pieces.into_iter().filter(|piece| lies_before(piece, start)).collect()
            };
            if found.is_empty() {
                return;
            }
            let mut map = SealMap::default();
            for piece in found {
                let Source::Local(address) = piece.source else { continue };
                let mut bytes = vec![0; piece.len as usize];
                let moved = self
                    .read_local(address, &mut bytes)
                    .ok()
                    .and_then(|()| self.local.orphans.append(&bytes).ok());
                let Some(there) = moved else { return };
                map.add(address, SealedRun { len: piece.len, source: Source::Local(there) });
            }
            self.core.lock().session.resolve_orphans(&map);
        }
    }
}

fn lies_before(piece: &Piece, start: u64) -> bool {
    matches!(piece.source, Source::Local(address) if address & ORPHAN_BIT == 0 && address < start)
}

fn stages(job: &SealJob, begun: Instant) -> Stages {
    let (last, age) = job.settled;
    let last = Duration::new(last.seconds.max(0) as u64, last.nanos);
    Stages {
        last_change_unix_us: last.as_micros() as u64,
        settle_us: age.as_micros() as u64,
        seal_us: begun.elapsed().as_micros() as u64,
        upload_us: 0,
    }
}

/// Turns the log's bytes into blocks.
struct Packing<'a> {
    engine: &'a Engine,
    writer: PackWriter<crate::wal::outbox::PackSink>,
    sealed: Sealed,
    lists: Vec<(Hash, ExtentMap)>,
}

impl Packing<'_> {
    fn pack(&mut self, checkpoint: &mut Checkpoint) -> Result<(), SealError> {
        for change in &mut checkpoint.nodes {
            let Content::File(file) = &change.node.content.value else { continue };
            let FileMap::Extents(map) = &file.map else { continue };
            if !map.has_local() && map.len() <= INLINE_EXTENTS_MAX {
                continue;
            }
            let content = self.file(file.size, map)?;
            change.node.content.value = Content::File(Arc::new(content.clone()));
            self.sealed.contents.push((change.id, content));
        }
        Ok(())
    }

    fn file(&mut self, size: u64, map: &ExtentMap) -> Result<FileContent, SealError> {
        let mut out = map.clone();
        let mut run: Vec<(u64, Piece)> = Vec::new();
        for (at, piece) in map.iter().filter(|(_, piece)| matches!(piece.source, Source::Local(_))) {
            let mut at = at;
            let mut piece = piece;
            // Pieces are cut where the chunker cuts; neighbours within one chunk become one block.
            while piece.len > 0 {
                let room = (at / CHUNK_BYTES + 1) * CHUNK_BYTES - at;
                let len = piece.len.min(room);
                let joins = run.last().is_some_and(|(last, p)| last + p.len == at && at % CHUNK_BYTES != 0);
                if !joins {
                    self.block(&mut run, &mut out)?;
                }
                run.push((at, Piece { len, source: piece.source }));
                let Source::Local(address) = piece.source else { break };
                piece = Piece { len: piece.len - len, source: Source::Local(address + len) };
                at += len;
            }
        }
        self.block(&mut run, &mut out)?;
        if out.len() <= INLINE_EXTENTS_MAX {
            return Ok(FileContent { size, map: FileMap::Extents(out) });
        }
        let mut leaves = Vec::new();
        for leaf in manifest::encode_leaves(&out) {
            leaves.push(Hash(self.writer.add(&leaf)?));
        }
        let root = Hash(self.writer.add(&manifest::encode_root(&leaves))?);
        self.lists.push((root, out));
        Ok(FileContent { size, map: FileMap::Stored(root) })
    }

    /// Makes one block of neighbouring pieces.
    fn block(&mut self, run: &mut Vec<(u64, Piece)>, out: &mut ExtentMap) -> Result<(), SealError> {
        let Some((first, _)) = run.first().copied() else { return Ok(()) };
        let mut bytes = vec![0; run.iter().map(|(_, piece)| piece.len as usize).sum()];
        let mut done = 0;
        for (_, piece) in run.iter() {
            let Source::Local(address) = piece.source else { continue };
            let part = &mut bytes[done..done + piece.len as usize];
            self.engine.read_local(address, part).map_err(|_| SealError::Read)?;
            done += piece.len as usize;
        }
        let hash = Hash(self.writer.add(&bytes)?);
        let mut offset = 0;
        for (_, piece) in run.drain(..) {
            if let Source::Local(address) = piece.source {
                let source = Source::Block { hash, offset };
                self.sealed.map.add(address, SealedRun { len: piece.len, source });
            }
            offset += piece.len as u32;
        }
        out.write(first, Piece { len: bytes.len() as u64, source: Source::Block { hash, offset: 0 } });
        Ok(())
    }
}
