//! Small file helpers that say what failed on which path, and that sync what they promise.

use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

/// A failed system call, with what was attempted and where.
#[derive(Debug, thiserror::Error)]
#[error("cannot {doing} {}: {source}{}", path.display(), advice(source))]
pub struct DiskError {
    /// What was attempted, as a verb that fits behind "cannot".
    pub doing: &'static str,
    /// The file or folder it was attempted on.
    pub path: PathBuf,
    /// What the system answered.
    pub source: io::Error,
}

impl DiskError {
    /// Whether the disk, or the quota on it, was full.
    pub fn is_full(&self) -> bool {
        is_full(&self.source)
    }
}

/// Whether this error means a full disk or quota.
pub(crate) fn is_full(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded)
}

fn advice(source: &io::Error) -> &'static str {
    match source.kind() {
        _ if is_full(source) => " (free some space, then restart)",
        io::ErrorKind::PermissionDenied => " (check the owner and the mode of this path)",
        io::ErrorKind::ReadOnlyFilesystem => " (the file system is mounted read-only)",
        _ => "",
    }
}

/// Adds the action and the path to a system call's result.
pub(crate) trait Context<T> {
    /// Names what was attempted on which path.
    fn doing(self, doing: &'static str, path: &Path) -> Result<T, DiskError>;
}

impl<T> Context<T> for io::Result<T> {
    fn doing(self, doing: &'static str, path: &Path) -> Result<T, DiskError> {
        self.map_err(|source| DiskError { doing, path: path.to_owned(), source })
    }
}

/// Makes the names in a folder durable.
pub(crate) fn sync_dir(dir: &Path) -> Result<(), DiskError> {
    File::open(dir).and_then(|handle| handle.sync_all()).doing("sync", dir)
}

/// Makes a folder and its missing parents, readable by the owner only, and makes their names durable.
pub(crate) fn create_dir_synced(dir: &Path) -> Result<(), DiskError> {
    if dir.is_dir() {
        return Ok(());
    }
    if let Some(parent) = dir.parent().filter(|parent| !parent.as_os_str().is_empty()) {
        create_dir_synced(parent)?;
    }
    match fs::DirBuilder::new().mode(0o700).create(dir) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists && dir.is_dir() => {}
        other => other.doing("create folder", dir)?,
    }
    match dir.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => sync_dir(parent),
        Some(_) => sync_dir(Path::new(".")),
        None => Ok(()),
    }
}

/// Replaces a file as a whole: after a crash it holds the old bytes or the new ones. Durable when it returns.
pub(crate) fn write_atomic(path: &Path, bytes: &[u8]) -> Result<(), DiskError> {
    let mut temporary = path.as_os_str().to_owned();
    temporary.push(".tmp");
    let temporary = PathBuf::from(temporary);
    let written = fs::OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(true)
        .mode(0o600)
        .open(&temporary)
        .and_then(|mut file| file.write_all(bytes).and_then(|()| file.sync_all()));
    if let Err(source) = written {
        // The error that matters is the first one; a leftover is overwritten by the next try.
        let _ = fs::remove_file(&temporary);
        return Err(DiskError { doing: "write", path: temporary, source });
    }
    fs::rename(&temporary, path).doing("rename into place", path)?;
    sync_dir(path.parent().unwrap_or(Path::new(".")))
}

/// Reads a small file, or says that it is larger than `max` bytes. `None` when there is no such file.
pub(crate) fn read_bounded(path: &Path, max: u64) -> Result<Option<Vec<u8>>, DiskError> {
    let file = match File::open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(source) => return Err(DiskError { doing: "open", path: path.to_owned(), source }),
    };
    let mut bytes = Vec::new();
    file.take(max + 1).read_to_end(&mut bytes).doing("read", path)?;
    if bytes.len() as u64 > max {
        let source = io::Error::new(io::ErrorKind::InvalidData, format!("it is larger than {max} bytes"));
        return Err(DiskError { doing: "read", path: path.to_owned(), source });
    }
    Ok(Some(bytes))
}
