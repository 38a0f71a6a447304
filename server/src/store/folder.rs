//! The data folder of a server: who uses it, which drives are in it, where each drive's stores lie.
//!
//! ```text
//! DIR/lock                            locked while a server runs; holds its process id
//! DIR/tidefs-server.json              format version and server id
//! DIR/drives/<drive id>/drive.json    name and ids
//! DIR/drives/<drive id>/{journal,packs,index}/
//! ```
//! A drive appears and disappears by one rename: it is made as `new-<id>` and removed as `deleted-<id>`, and what a
//! crash leaves under these names is removed at the next start.

use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions};
use std::io::{Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use parking_lot::Mutex;
use serde::{Deserialize, Serialize};

use super::disk::{Context, DiskError, create_dir_synced, read_bounded, sync_dir, write_atomic};

/// The version of the folder's format.
const VERSION: u32 = 1;
/// More than any of our small JSON files has, in bytes.
const JSON_BYTES_MAX: u64 = 64 << 10;
/// The longest name of a drive, in bytes.
pub const DRIVE_NAME_MAX: usize = 64;

const SERVER_FILE: &str = "tidefs-server.json";
const DRIVE_FILE: &str = "drive.json";

/// Why the data folder could not be used.
#[derive(Debug, thiserror::Error)]
pub enum FolderError {
    /// Another server runs on this folder.
    #[error("another tidefs-server uses {} (pid {}); stop it or use another --data", dir.display(), pid_text(*pid))]
    InUse {
        /// The folder.
        dir: PathBuf,
        /// The process that has it, if it said so.
        pid: Option<u32>,
    },
    /// The folder has a format that this build does not know.
    #[error("{} has format version {found}, this tidefs-server knows {VERSION}; use a newer one", path.display())]
    Version {
        /// The file that says so.
        path: PathBuf,
        /// The version found in it.
        found: u32,
    },
    /// A file is not what we wrote.
    #[error("{} is damaged: {what}; restore it from a backup or move it away", path.display())]
    Damaged {
        /// The file.
        path: PathBuf,
        /// What was found.
        what: String,
    },
    /// Not a name for a drive.
    #[error(
        "{name:?} is no name for a drive: use 1 to {DRIVE_NAME_MAX} of A-Z a-z 0-9 . _ -, no . or - in front"
    )]
    BadName {
        /// The name.
        name: String,
    },
    /// There is a drive of this name or id.
    #[error("there is a drive {name} already")]
    Exists {
        /// The name.
        name: String,
    },
    /// There is no drive of this name.
    #[error("there is no drive {name}; `tidefs drive list` shows those there are")]
    NotFound {
        /// The name.
        name: String,
    },
    /// A system call failed.
    #[error(transparent)]
    Disk(#[from] DiskError),
}

fn pid_text(pid: Option<u32>) -> String {
    pid.map_or_else(|| "unknown".into(), |pid| pid.to_string())
}

/// A drive in the catalogue.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DriveRecord {
    /// The name that users say, unique in this folder.
    pub name: String,
    /// The id, which stays when a drive is restored from a backup.
    #[serde(with = "hex16")]
    pub drive_id: [u8; 16],
    /// The id of this history of the drive.
    #[serde(with = "hex16")]
    pub history_id: [u8; 16],
    /// When it was made, in milliseconds since 1970.
    pub created_unix_ms: u64,
}

/// Where the stores of one drive lie.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DriveFolder(PathBuf);

impl DriveFolder {
    /// The folder of the drive itself.
    pub fn path(&self) -> &Path {
        &self.0
    }

    /// The folder of its journal.
    pub fn journal(&self) -> PathBuf {
        self.0.join("journal")
    }

    /// The folder of its packs.
    pub fn packs(&self) -> PathBuf {
        self.0.join("packs")
    }

    /// The folder of its index. Damaged ones are kept beside it.
    pub fn index(&self) -> PathBuf {
        self.0.join("index")
    }
}

#[derive(Serialize, Deserialize)]
struct ServerFile {
    version: u32,
    #[serde(with = "hex16")]
    server_id: [u8; 16],
}

/// The data folder, locked for this process as long as the value lives. All calls block the thread.
#[derive(Debug)]
pub struct DataFolder {
    dir: PathBuf,
    server_id: [u8; 16],
    /// By name.
    drives: Mutex<BTreeMap<String, DriveRecord>>,
    _lock: File,
}

impl DataFolder {
    /// Opens the data folder, made if it is missing, and locks it. `fresh_id` becomes the server's id if the folder
    /// has none yet.
    ///
    /// # Errors
    /// `InUse` while another server has it; `Version` and `Damaged` for what is in it; a failed system call.
    pub fn open(dir: &Path, fresh_id: [u8; 16]) -> Result<Self, FolderError> {
        create_dir_synced(dir)?;
        let lock = lock(dir)?;
        let server_id = server_id(dir, fresh_id)?;
        create_dir_synced(&dir.join("drives"))?;
        let folder = Self { dir: dir.to_owned(), server_id, drives: Mutex::default(), _lock: lock };
        let drives = folder.load()?;
        *folder.drives.lock() = drives;
        Ok(folder)
    }

    /// The folder.
    pub fn path(&self) -> &Path {
        &self.dir
    }

    /// The id of this server.
    pub fn server_id(&self) -> [u8; 16] {
        self.server_id
    }

    /// The drives, in the order of their names.
    pub fn drives(&self) -> Vec<DriveRecord> {
        self.drives.lock().values().cloned().collect()
    }

    /// The drive of this name.
    pub fn drive(&self, name: &str) -> Option<DriveRecord> {
        self.drives.lock().get(name).cloned()
    }

    /// Where the stores of a drive lie.
    pub fn drive_folder(&self, drive_id: [u8; 16]) -> DriveFolder {
        DriveFolder(self.drives_dir().join(hex(&drive_id)))
    }

    /// Adds a drive; it is durable when this returns.
    ///
    /// # Errors
    /// `BadName`; `Exists` when its name or its id is taken; a failed system call.
    pub fn create_drive(&self, record: DriveRecord) -> Result<DriveFolder, FolderError> {
        check_drive_name(&record.name)?;
        let mut drives = self.drives.lock();
        let taken = |other: &DriveRecord| other.name == record.name || other.drive_id == record.drive_id;
        if drives.values().any(taken) {
            return Err(FolderError::Exists { name: record.name });
        }
        let folder = self.drive_folder(record.drive_id);
        let fresh = self.drives_dir().join(format!("new-{}", hex(&record.drive_id)));
        remove_tree(&fresh)?;
        create_dir_synced(&fresh)?;
        let staged = DriveFolder(fresh.clone());
        for dir in [staged.journal(), staged.packs(), staged.index()] {
            create_dir_synced(&dir)?;
        }
        write_json(&fresh.join(DRIVE_FILE), &record)?;
        fs::rename(&fresh, folder.path()).doing("rename into place", &fresh)?;
        sync_dir(&self.drives_dir())?;
        drives.insert(record.name.clone(), record);
        Ok(folder)
    }

    /// Removes a drive and all that is stored for it. It is gone for good when this returns; its stores must be
    /// closed before.
    ///
    /// # Errors
    /// `NotFound`; a failed system call, after which the drive may be gone or not, as the next start shows.
    pub fn delete_drive(&self, name: &str) -> Result<(), FolderError> {
        let mut drives = self.drives.lock();
        let Some(record) = drives.get(name) else {
            return Err(FolderError::NotFound { name: name.to_owned() });
        };
        let folder = self.drive_folder(record.drive_id);
        let deleted = self.drives_dir().join(format!("deleted-{}", hex(&record.drive_id)));
        remove_tree(&deleted)?;
        fs::rename(folder.path(), &deleted).doing("rename", folder.path())?;
        drives.remove(name);
        drop(drives);
        sync_dir(&self.drives_dir())?;
        remove_tree(&deleted)
    }

    fn drives_dir(&self) -> PathBuf {
        self.dir.join("drives")
    }

    fn load(&self) -> Result<BTreeMap<String, DriveRecord>, FolderError> {
        let dir = self.drives_dir();
        let mut drives = BTreeMap::new();
        for item in fs::read_dir(&dir).doing("list", &dir)? {
            let item = item.doing("list", &dir)?;
            let name = item.file_name().to_string_lossy().into_owned();
            if name.starts_with("new-") || name.starts_with("deleted-") {
                tracing::info!(path = %item.path().display(), "removing what a crash left of a drive");
                remove_tree(&item.path())?;
                continue;
            }
            let path = item.path().join(DRIVE_FILE);
            let Some(record) = read_json::<DriveRecord>(&path)? else {
                let what = "there is no such file, though its folder is that of a drive".into();
                return Err(FolderError::Damaged { path, what });
            };
            check_record(&path, &name, &record)?;
            if let Some(other) = drives.insert(record.name.clone(), record) {
                let what = format!("drive {} has the same name {}", hex(&other.drive_id), other.name);
                return Err(FolderError::Damaged { path, what });
            }
        }
        Ok(drives)
    }
}

/// Whether a drive can have this name: 1 to 64 of `A-Z a-z 0-9 . _ -`, with no `.` or `-` in front.
///
/// # Errors
/// `BadName`.
pub fn check_drive_name(name: &str) -> Result<(), FolderError> {
    let allowed = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'_' | b'-');
    let good = (1..=DRIVE_NAME_MAX).contains(&name.len())
        && name.bytes().all(allowed)
        && !name.starts_with(['.', '-']);
    if good { Ok(()) } else { Err(FolderError::BadName { name: name.chars().take(80).collect() }) }
}

fn check_record(path: &Path, folder: &str, record: &DriveRecord) -> Result<(), FolderError> {
    let what = if hex(&record.drive_id) != folder {
        format!("it is for drive {}, not for its folder's", hex(&record.drive_id))
    } else if check_drive_name(&record.name).is_err() {
        format!("{:?} is no name for a drive", record.name)
    } else {
        return Ok(());
    };
    Err(FolderError::Damaged { path: path.to_owned(), what })
}

fn lock(dir: &Path) -> Result<File, FolderError> {
    let path = dir.join("lock");
    let mut file = OpenOptions::new()
        .read(true)
        .write(true)
        .create(true)
        .truncate(false)
        .mode(0o600)
        .open(&path)
        .doing("open", &path)?;
    match rustix::fs::flock(&file, rustix::fs::FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => {}
        Err(rustix::io::Errno::WOULDBLOCK) => {
            let mut text = String::new();
            // Whoever has the lock may not have written its number yet.
            let _ = file.take(32).read_to_string(&mut text);
            return Err(FolderError::InUse { dir: dir.to_owned(), pid: text.trim().parse().ok() });
        }
        Err(errno) => return Err(DiskError { doing: "lock", path, source: errno.into() }.into()),
    }
    file.set_len(0).doing("write", &path)?;
    writeln!(file, "{}", std::process::id()).doing("write", &path)?;
    Ok(file)
}

fn server_id(dir: &Path, fresh_id: [u8; 16]) -> Result<[u8; 16], FolderError> {
    let path = dir.join(SERVER_FILE);
    if let Some(found) = read_json::<serde_json::Value>(&path)? {
        // The version is looked at first: a later one may not have the other fields.
        let version = found.get("version").and_then(serde_json::Value::as_u64).unwrap_or(0);
        if version > u64::from(VERSION) {
            return Err(FolderError::Version { path, found: u32::try_from(version).unwrap_or(u32::MAX) });
        }
        let known: ServerFile = serde_json::from_value(found)
            .map_err(|error| FolderError::Damaged { path: path.clone(), what: error.to_string() })?;
        return Ok(known.server_id);
    }
    let drives = dir.join("drives");
    if drives.exists() && fs::read_dir(&drives).doing("list", &drives)?.next().is_some() {
        return Err(FolderError::Damaged { path, what: "it is missing, though there are drives".into() });
    }
    write_json(&path, &ServerFile { version: VERSION, server_id: fresh_id })?;
    Ok(fresh_id)
}

fn read_json<T: serde::de::DeserializeOwned>(path: &Path) -> Result<Option<T>, FolderError> {
    let Some(bytes) = read_bounded(path, JSON_BYTES_MAX)? else { return Ok(None) };
    let parsed = serde_json::from_slice(&bytes);
    Ok(Some(parsed.map_err(|error| FolderError::Damaged { path: path.to_owned(), what: error.to_string() })?))
}

fn write_json(path: &Path, value: &impl Serialize) -> Result<(), FolderError> {
    let mut bytes = serde_json::to_vec_pretty(value).map_err(|error| DiskError {
        doing: "write",
        path: path.to_owned(),
        source: error.into(),
    })?;
    bytes.push(b'\n');
    Ok(write_atomic(path, &bytes)?)
}

fn remove_tree(path: &Path) -> Result<(), FolderError> {
    match fs::remove_dir_all(path) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(()),
        other => Ok(other.doing("remove", path)?),
    }
}

/// 32 lower-case hex digits.
fn hex(id: &[u8; 16]) -> String {
    format!("{:032x}", u128::from_be_bytes(*id))
}

mod hex16 {
    use serde::{Deserialize, Deserializer, Serializer, de::Error};

    pub fn serialize<S: Serializer>(id: &[u8; 16], to: S) -> Result<S::Ok, S::Error> {
        to.serialize_str(&super::hex(id))
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<[u8; 16], D::Error> {
        let text = String::deserialize(from)?;
        let good = text.len() == 32 && text.bytes().all(|byte| byte.is_ascii_hexdigit());
        match u128::from_str_radix(&text, 16) {
            Ok(number) if good => Ok(number.to_be_bytes()),
            _ => Err(D::Error::custom(format!("{text:?} is not 32 hex digits"))),
        }
    }
}

#[cfg(test)]
#[path = "folder_tests.rs"]
mod tests;
