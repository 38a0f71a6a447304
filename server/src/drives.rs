//! The drives of a data folder: made, found, opened when they are first asked for, opened again after a failure.

use crate::{
    drive::{Drive, FileStores, OpenError, Stores},
    store::{Blocks, DataFolder, DriveRecord, FolderError, blocks::ObjectBlocks},
    telemetry,
};
use parking_lot::Mutex;
use std::{
    collections::BTreeMap,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

/// How long an opening waits for the handles of the one before to be gone.
const BUSY_WAIT: Duration = Duration::from_secs(3);
/// How often it looks.
const BUSY_STEP: Duration = Duration::from_millis(10);

/// Why a drive is not at hand.
#[derive(Debug, thiserror::Error)]
pub enum DrivesError {
    /// The catalogue.
    #[error(transparent)]
    Folder(#[from] FolderError),
    /// There is no drive of this id.
    #[error("there is no drive of that id here; `tidefs drive list` shows those there are")]
    UnknownId,
    /// Opening it.
    #[error("cannot open drive {name}: {error}")]
    Open {
        /// The drive.
        name: String,
        /// What went wrong.
        error: Box<OpenError>,
    },
    /// Mounts follow it.
    #[error(
        "drive {name} is in use by {mounts} mounts: unmount them first (`tidefs unmount DIR`), then delete it"
    )]
    InUse {
        /// The drive.
        name: String,
        /// How many mounts.
        mounts: usize,
    },
    /// The server is stopping.
    #[error("the server is stopping")]
    Stopping,
}

/// One drive's place: whoever opens it holds the lock.
struct Slot {
    record: DriveRecord,
    blocks: tokio::sync::OnceCell<Arc<dyn Blocks>>,
    open: tokio::sync::Mutex<Option<Arc<Drive>>>,
    /// It was deleted while somebody waited for it.
    deleted: AtomicBool,
}

/// The drives of a server.
pub struct Drives {
    folder: DataFolder,
    slots: Mutex<BTreeMap<[u8; 16], Arc<Slot>>>,
    stopping: AtomicBool,
    /// Why the last opening of a drive failed, by name; emptied by a success.
    failing: Mutex<BTreeMap<String, String>>,
}

impl Drives {
    /// The drives of a data folder; none is opened yet.
    pub fn new(folder: DataFolder) -> Self {
        let drives = Self {
            folder,
            slots: Mutex::default(),
            stopping: AtomicBool::new(false),
            failing: Mutex::default(),
        };
        drives.folder.drives().into_iter().for_each(|record| drives.add(record));
        drives
    }

    fn add(&self, record: DriveRecord) {
        let id = record.drive_id;
        let slot = Slot {
            record,
            blocks: tokio::sync::OnceCell::new(),
            open: tokio::sync::Mutex::new(None),
            deleted: AtomicBool::new(false),
        };
        self.slots.lock().insert(id, Arc::new(slot));
    }

    /// The drive of this name.
    ///
    /// # Errors
    /// When there is none or it cannot be opened.
    pub async fn named(&self, name: &str) -> Result<Arc<Drive>, DrivesError> {
        let slot = self.slot_named(name)?;
        self.opened(&slot).await
    }

    /// The drive of this id.
    ///
    /// # Errors
    /// When there is none or it cannot be opened.
    pub async fn of_id(&self, id: &[u8]) -> Result<Arc<Drive>, DrivesError> {
        let id: [u8; 16] = id.try_into().map_err(|_| DrivesError::UnknownId)?;
        let slot = self.slots.lock().get(&id).cloned().ok_or(DrivesError::UnknownId)?;
        self.opened(&slot).await
    }

    /// All drives, in the order of their names.
    pub fn list(&self) -> Vec<DriveRecord> {
        self.folder.drives()
    }

    /// Makes a drive, or gives the one of that name if `exist_ok`.
    ///
    /// # Errors
    /// Those of the catalogue.
    pub fn create(&self, name: &str, exist_ok: bool) -> Result<DriveRecord, DrivesError> {
        if let Some(record) = self.folder.drive(name).filter(|_| exist_ok) {
            return Ok(record);
        }
        let record = DriveRecord {
            name: name.to_owned(),
            drive_id: rand::random(),
            history_id: rand::random(),
            created_unix_ms: telemetry::unix_us() / 1000,
        };
        match self.folder.create_drive(record.clone()) {
            Ok(_) => {
                self.add(record.clone());
                Ok(record)
            }
            // Made by another at the same time.
            Err(FolderError::Exists { name }) if exist_ok => {
                self.folder.drive(&name).ok_or(DrivesError::Folder(FolderError::Exists { name }))
            }
            Err(error) => Err(error.into()),
        }
    }

    /// Closes a drive and removes all of it.
    ///
    /// # Errors
    /// Those of the catalogue.
    pub async fn delete(&self, name: &str) -> Result<(), DrivesError> {
        let slot = self.slot_named(name)?;
        let mut open = slot.open.lock().await;
        let mounts = open.as_ref().map_or(0, |drive| drive.followers.count());
        if mounts > 0 {
            return Err(DrivesError::InUse { name: name.to_owned(), mounts });
        }
        self.slots.lock().remove(&slot.record.drive_id);
        slot.deleted.store(true, Ordering::SeqCst);
        if let Some(drive) = open.take() {
            drive.close().await;
        }
        self.failing.lock().remove(name);
        Ok(self.folder.delete_drive(name)?)
    }

    /// What is wrong with a drive that could not be opened when it was last asked for.
    pub fn failing(&self) -> Option<String> {
        self.failing.lock().iter().next().map(|(name, why)| format!("drive {name}: {why}"))
    }

    /// Closes all drives. None is opened afterwards.
    pub async fn close(&self) {
        self.stopping.store(true, Ordering::SeqCst);
        let slots: Vec<Arc<Slot>> = self.slots.lock().values().cloned().collect();
        for slot in slots {
            if let Some(drive) = slot.open.lock().await.take() {
                drive.close().await;
            }
        }
    }

    fn slot_named(&self, name: &str) -> Result<Arc<Slot>, DrivesError> {
        let found = self.slots.lock().values().find(|slot| slot.record.name == name).cloned();
        found.ok_or_else(|| FolderError::NotFound { name: name.chars().take(80).collect() }.into())
    }

    async fn opened(&self, slot: &Slot) -> Result<Arc<Drive>, DrivesError> {
        let mut open = slot.open.lock().await;
        if let Some(drive) = open.as_ref().filter(|drive| !drive.has_ended()) {
            return Ok(drive.clone());
        }
        if self.stopping.load(Ordering::SeqCst) {
            return Err(DrivesError::Stopping);
        }
        if slot.deleted.load(Ordering::SeqCst) {
            return Err(DrivesError::UnknownId);
        }
        *open = None;
        let name = slot.record.name.clone();
        match self.open(slot).await {
            Ok(drive) => {
                self.failing.lock().remove(&name);
                *open = Some(drive.clone());
                Ok(drive)
            }
            Err(error) => {
                self.failing.lock().insert(name.clone(), error.to_string());
                Err(DrivesError::Open { name, error: Box::new(error) })
            }
        }
    }

    async fn open(&self, slot: &Slot) -> Result<Arc<Drive>, OpenError> {
        let folder = self.folder.drive_folder(slot.record.drive_id);
        let packs = folder.packs();
        let blocks = slot.blocks.get_or_try_init(|| async move {
            let open = move || ObjectBlocks::open_local(&packs);
            let opened = tokio::task::spawn_blocking(open).await.map_err(|_| OpenError::Ended)??;
            Ok::<Arc<dyn Blocks>, OpenError>(Arc::new(opened))
        });
        let blocks = blocks.await?.clone();
        let stores: Arc<dyn Stores> = Arc::new(FileStores { folder, drive: slot.record.drive_id, blocks });
        let begun = Instant::now();
        loop {
            match Drive::open(&slot.record, stores.clone()).await {
                // Streams on the last opening are still letting go of it.
                Err(error) if error.is_busy() && begun.elapsed() < BUSY_WAIT => {
                    tokio::time::sleep(BUSY_STEP).await;
                }
                other => return other,
            }
        }
    }
}
