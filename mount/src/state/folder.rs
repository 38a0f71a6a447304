//! One mount's state folder and the lock on it.

use super::{StateError, mountinfo, text};
use crate::config::slug;
use rustix::fs::{FlockOperation, flock};
use std::{
    env,
    fs::{DirBuilder, File, OpenOptions},
    io::{Read, Seek, Write},
    os::unix::{
        ffi::OsStrExt,
        fs::{DirBuilderExt, OpenOptionsExt},
    },
    path::{Path, PathBuf},
};

/// A log larger than this is put aside when a mount starts, in bytes.
const LOG_BYTES_MAX: u64 = 10 << 20;

/// The base of all state: `--state`, else TIDEFS_STATE, else `/var/lib/tidefs` as root, else the XDG state
/// folder. Absolute; it need not exist.
pub fn base(flag: Option<&Path>) -> Result<PathBuf, StateError> {
    let set = |name| env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    let chosen = flag.map(Path::to_owned).or_else(|| set("TIDEFS_STATE"));
    let base = match chosen {
        Some(base) => base,
        None if rustix::process::geteuid().is_root() => PathBuf::from("/var/lib/tidefs"),
        None => match (set("XDG_STATE_HOME"), set("HOME")) {
            (Some(state), _) if state.is_absolute() => state.join("tidefs"),
            (_, Some(home)) => home.join(".local/state/tidefs"),
            _ => return Err(StateError::NoBase),
        },
    };
    Ok(text::absolute(&base, &cwd()?))
}

/// The current folder, as the kernel names it.
pub fn cwd() -> Result<PathBuf, StateError> {
    env::current_dir().map_err(|e| StateError::io("find the current folder from", ".", e))
}

/// Where `dir` (absolute by text) really is, so that two spellings of one mount point have one state. What is
/// mounted already is not touched.
pub fn real_mount_point(dir: &Path) -> Result<PathBuf, StateError> {
    let bad = |why: String| StateError::BadPath { path: dir.to_owned(), why, missing: false };
    let cannot = |at: &Path, error: std::io::Error| {
        let missing = error.kind() == std::io::ErrorKind::NotFound;
        let next = if missing { "; make it with mkdir first" } else { "" };
        StateError::BadPath { path: dir.to_owned(), why: format!("{}: {error}{next}", at.display()), missing }
    };
    let (Some(parent), Some(name)) = (dir.parent(), dir.file_name()) else {
        return Err(bad("it is the root of the file system".to_owned()));
    };
    let real = parent.canonicalize().map_err(|e| cannot(parent, e))?.join(name);
    if mountinfo::read()?.iter().any(|line| line.mount_point == real) {
        return Ok(real);
    }
    match real.symlink_metadata() {
        Ok(meta) if meta.is_symlink() => real.canonicalize().map_err(|e| cannot(&real, e)),
        Ok(meta) if !meta.is_dir() => Err(bad("it is not a directory".to_owned())),
        Ok(_) => Ok(real),
        Err(error) => Err(cannot(&real, error)),
    }
}

/// The folder's name for a drive and a (real) mount point: readable, and apart for any two.
pub fn folder_name(drive: &str, mount_point: &Path) -> String {
    let mut hasher = blake3::Hasher::new();
    hasher.update(drive.as_bytes()).update(b"\0").update(mount_point.as_os_str().as_bytes());
    let hash = hasher.finalize().to_hex();
    let place = mount_point.file_name().unwrap_or_default().to_string_lossy();
    format!("{}-{}-{}", slug(drive, 32), slug(&place, 32), hash.get(..10).unwrap_or_default())
}

/// A state folder that this process has for itself as long as the value lives.
#[derive(Debug)]
pub struct StateFolder {
    path: PathBuf,
    _lock: File,
}

impl StateFolder {
    /// Makes the folder (0700) if it is missing, and takes its lock. [`StateError::Busy`] if another process has
    /// it.
    pub fn open(path: &Path, mount_point: &Path) -> Result<Self, StateError> {
        DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(path)
            .map_err(|e| StateError::io("create the state folder", path, e))?;
        let lock_path = path.join("lock");
        let mut lock = open_lock(&lock_path, true).map_err(|e| StateError::io("open", &lock_path, e))?;
        match flock(&lock, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => {}
            Err(rustix::io::Errno::WOULDBLOCK) => {
                let pid = read_pid(&mut lock);
                return Err(StateError::Busy { pid, folder: path.to_owned(), dir: mount_point.to_owned() });
            }
            Err(error) => return Err(StateError::io("lock", lock_path, error)),
        }
        // The text is for people and for the error of the next one; the lock itself is the kernel's.
        let named = lock
            .set_len(0)
            .and_then(|()| lock.rewind())
            .and_then(|()| writeln!(lock, "{}", std::process::id()));
        named.map_err(|e| StateError::io("write", &lock_path, e))?;
        Ok(Self { path: path.to_owned(), _lock: lock })
    }

    /// The folder.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Opens `mount.log` to append to, after putting one aside that has grown past 10 MiB (one old one is kept).
    pub fn open_log(&self) -> Result<File, StateError> {
        open_log(&self.path.join("mount.log"))
    }
}

/// Opens a log to append to, after putting one aside that has grown past 10 MiB (one old one is kept).
pub fn open_log(path: &Path) -> Result<File, StateError> {
    if path.metadata().is_ok_and(|meta| meta.len() > LOG_BYTES_MAX) {
        let old = path.with_extension("log.1");
        std::fs::rename(path, &old).map_err(|e| StateError::io("rename", path, e))?;
    }
    let opened = OpenOptions::new().append(true).create(true).mode(0o600).open(path);
    opened.map_err(|e| StateError::io("open", path, e))
}

/// Whether a process holds the folder's lock, and which.
pub fn holder(path: &Path) -> Result<Option<u32>, StateError> {
    let lock_path = path.join("lock");
    let mut lock = match open_lock(&lock_path, false) {
        Ok(lock) => lock,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(StateError::io("open", lock_path, error)),
    };
    // A shared lock, so that two commands that look at the same time do not take each other for the mount.
    match flock(&lock, FlockOperation::NonBlockingLockShared) {
        Ok(()) => Ok(None),
        Err(rustix::io::Errno::WOULDBLOCK) => Ok(Some(read_pid(&mut lock).unwrap_or(0))),
        Err(error) => Err(StateError::io("lock", lock_path, error)),
    }
}

fn open_lock(path: &Path, create: bool) -> std::io::Result<File> {
    let mut options = OpenOptions::new();
    options.read(true);
    if create {
        options.write(true).create(true).truncate(false).mode(0o600);
    }
    options.open(path)
}

fn read_pid(lock: &mut File) -> Option<u32> {
    let mut text = String::new();
    lock.take(32).read_to_string(&mut text).ok()?;
    text.trim().parse().ok()
}
