//! A drive that is open: what its services share, and the door to its sequencer.

use crate::{
    followers::Followers,
    head::{ArrivedPack, HeadError, IndexHead},
    order::{Answer, AttachAsk, AttachRefused, Attached, DriveIds, Submission},
    recover::RecoverError,
    sequencer,
    store::{
        Blocks, BlocksError, DriveFolder, DriveRecord, Index, IndexError, Journal, JournalError,
        index::{SledIndex, SledOptions},
        journal::{FileJournal, FileJournalOptions},
    },
};
use parking_lot::RwLock;
use std::{path::PathBuf, sync::Arc};
use tidefs_timeline::{Hash, Timestamp};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc, oneshot};

/// Asks that wait for the sequencer at most.
const MAILBOX_ASKS: usize = 256;
/// Bytes of shipments that wait for the sequencer at most, in KiB.
const MAILBOX_KIB: usize = 256 << 10;

const _: () = assert!(MAILBOX_KIB >= tidefs_timeline::limits::CHECKPOINT_BYTES_MAX >> 10);

/// Why a drive could not be opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// The journal.
    #[error(transparent)]
    Journal(#[from] JournalError),
    /// The index.
    #[error(transparent)]
    Index(#[from] IndexError),
    /// The packs.
    #[error(transparent)]
    Blocks(#[from] BlocksError),
    /// What they hold.
    #[error(transparent)]
    Recover(#[from] RecoverError),
    /// Moving a damaged index away.
    #[error("cannot move the damaged index {} away: {source}", path.display())]
    Aside {
        /// The index.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
    /// A thread could not be started.
    #[error("cannot start the sequencer's thread: {0}")]
    Thread(std::io::Error),
    /// The sequencer ended while it started.
    #[error("the sequencer ended while it started")]
    Ended,
}

impl OpenError {
    /// Whether an earlier owner still has the stores open.
    pub fn is_busy(&self) -> bool {
        matches!(
            self,
            OpenError::Journal(JournalError::Busy { .. }) | OpenError::Index(IndexError::Busy { .. })
        )
    }
}

/// The sequencer has ended; the next request opens the drive again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the drive is being opened again after a failure: try again")]
pub struct Ended;

/// A drive's journal and index.
pub type JournalAndIndex = (Arc<dyn Journal>, Arc<dyn Index>);

/// Where a drive's stores come from. Packs are opened once for all openings of the drive.
pub trait Stores: Send + Sync {
    /// Opens journal and index, each for the first time or after all handles of the last opening are gone.
    ///
    /// # Errors
    /// When they cannot be opened.
    fn open(&self) -> Result<JournalAndIndex, OpenError>;
    /// Moves a damaged index away, so that the next opening begins an empty one.
    ///
    /// # Errors
    /// When it cannot be moved.
    fn set_index_aside(&self) -> Result<(), OpenError>;
    /// The packs.
    fn blocks(&self) -> Arc<dyn Blocks>;
}

/// The stores of a drive in the data folder.
#[derive(Debug)]
pub struct FileStores {
    /// Where they lie.
    pub folder: DriveFolder,
    /// The drive.
    pub drive: [u8; 16],
    /// Its packs.
    pub blocks: Arc<dyn Blocks>,
}

impl Stores for FileStores {
    fn open(&self) -> Result<JournalAndIndex, OpenError> {
        let options = FileJournalOptions::default();
        let journal = FileJournal::open(&self.folder.journal(), self.drive, options)?;
        let index = SledIndex::open(&self.folder.index(), SledOptions::new(self.drive))?;
        Ok((Arc::new(journal), Arc::new(index)))
    }

    fn set_index_aside(&self) -> Result<(), OpenError> {
        let path = self.folder.index();
        let aside = self.folder.path().join("index.damaged");
        let moved = || {
            if aside.exists() {
                std::fs::remove_dir_all(&aside)?;
            }
            std::fs::rename(&path, &aside)
        };
        moved().map_err(|source| OpenError::Aside { path: path.clone(), source })
    }

    fn blocks(&self) -> Arc<dyn Blocks> {
        self.blocks.clone()
    }
}

/// What a service asks of the sequencer.
#[derive(Debug)]
pub(crate) enum Ask {
    Attach(AttachAsk, oneshot::Sender<Result<Attached, AttachRefused>>),
    Submit(Box<Submission>, oneshot::Sender<Answer>, OwnedSemaphorePermit),
    Pack(Hash, ArrivedPack),
    HasPack(Hash, oneshot::Sender<Result<bool, HeadError>>),
    Close,
}

/// A drive that is open.
#[derive(Debug)]
pub struct Drive {
    /// Its name.
    pub name: String,
    /// Its ids.
    pub ids: DriveIds,
    /// When it was made, microseconds since 1970.
    pub created_unix_us: u64,
    /// The head; only the sequencer changes it.
    pub head: Arc<RwLock<IndexHead>>,
    /// The journal; only the sequencer writes it.
    pub journal: Arc<dyn Journal>,
    /// The packs.
    pub blocks: Arc<dyn Blocks>,
    /// Who follows.
    pub followers: Arc<Followers>,
    mailbox: mpsc::Sender<Ask>,
    room: Arc<Semaphore>,
}

impl Drive {
    /// Opens a drive and starts its sequencer.
    ///
    /// # Errors
    /// When what is stored cannot be opened or read.
    pub async fn open(record: &DriveRecord, stores: Arc<dyn Stores>) -> Result<Arc<Self>, OpenError> {
        let (mailbox, asks) = mpsc::channel(MAILBOX_ASKS);
        let ids = DriveIds { drive: record.drive_id, history: record.history_id };
        let created = Timestamp {
            seconds: (record.created_unix_ms / 1000) as i64,
            nanos: (record.created_unix_ms % 1000) as u32 * 1_000_000,
        };
        let blocks = stores.blocks();
        let start = sequencer::Start { name: record.name.clone(), ids, created, stores };
        let shared = sequencer::start(start, asks).await?;
        Ok(Arc::new(Self {
            name: record.name.clone(),
            ids,
            created_unix_us: record.created_unix_ms.saturating_mul(1000),
            head: shared.head,
            journal: shared.journal,
            blocks,
            followers: shared.followers,
            mailbox,
            room: Arc::new(Semaphore::new(MAILBOX_KIB)),
        }))
    }

    /// Whether its sequencer has ended.
    pub fn has_ended(&self) -> bool {
        self.mailbox.is_closed()
    }

    /// Attaches a session; the answer is durable.
    ///
    /// # Errors
    /// The outer one when the sequencer ended.
    pub async fn attach(&self, ask: AttachAsk) -> Result<Result<Attached, AttachRefused>, Ended> {
        let (reply, answer) = oneshot::channel();
        self.send(Ask::Attach(ask, reply)).await?;
        answer.await.map_err(|_| Ended)
    }

    /// Hands a shipment to the sequencer; what comes through the receiver is durable. A receiver that is closed
    /// says that the sequencer ended.
    ///
    /// # Errors
    /// When the sequencer has ended.
    pub async fn submit(&self, submission: Submission) -> Result<oneshot::Receiver<Answer>, Ended> {
        let kib = (submission.len() >> 10) as u32 + 1;
        let permit = self.room.clone().acquire_many_owned(kib.min(MAILBOX_KIB as u32));
        let permit = permit.await.map_err(|_| Ended)?;
        let (reply, answer) = oneshot::channel();
        self.send(Ask::Submit(Box::new(submission), reply, permit)).await?;
        Ok(answer)
    }

    /// Says that a pack is stored, so that shipments may name it.
    ///
    /// # Errors
    /// When the sequencer has ended.
    pub async fn pack_arrived(&self, pack: Hash, table: ArrivedPack) -> Result<(), Ended> {
        self.send(Ask::Pack(pack, table)).await
    }

    /// Whether shipments may name the pack.
    ///
    /// # Errors
    /// When the sequencer has ended; what reading the index came to is the inner result.
    pub async fn has_pack(&self, pack: Hash) -> Result<Result<bool, HeadError>, Ended> {
        let (reply, answer) = oneshot::channel();
        self.send(Ask::HasPack(pack, reply)).await?;
        answer.await.map_err(|_| Ended)
    }

    /// Ends the sequencer once it has answered what was asked before.
    pub async fn close(&self) {
        // It may have ended already.
        let _ = self.send(Ask::Close).await;
        self.mailbox.closed().await;
    }

    /// Returns when the sequencer has ended.
    pub async fn ended(&self) {
        self.mailbox.closed().await;
    }

    async fn send(&self, ask: Ask) -> Result<(), Ended> {
        self.mailbox.send(ask).await.map_err(|_| Ended)
    }
}
