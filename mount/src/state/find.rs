//! Which mount of this machine a path lies in: by the state folders' `mount.json` and the kernel's table, both of
//! which answer when the mount itself does not.

use super::{
    MountFile, StateError, folder,
    mountinfo::{self, MountLine},
};
use std::{
    fs, io,
    path::{Path, PathBuf},
};

/// State folders looked at in one base; more are left out.
const FOLDERS_MAX: usize = 10_000;

/// A mount that this machine has or had.
#[derive(Clone, Debug, PartialEq)]
pub struct Found {
    /// Its state folder.
    pub state_dir: PathBuf,
    /// What its `mount.json` says.
    pub file: MountFile,
    /// The process that holds its lock; `None` if none runs.
    pub running: Option<u32>,
    /// Whether the kernel has it mounted.
    pub mounted: bool,
}

/// All mounts whose state is in `base`, by state folder name. Damaged folders are logged and left out.
pub fn find_all(base: &Path) -> Result<Vec<Found>, StateError> {
    find_all_in(base, &mountinfo::read()?)
}

/// The mount that `path` (absolute by text) lies in, and the path in its drive, which starts with `/`. A path in
/// another file system that is mounted inside the mount is not in it. Where one mount point was used for several
/// drives, the running one is meant, then the one started last.
pub fn find_mount(base: &Path, path: &Path) -> Result<Option<(Found, String)>, StateError> {
    let lines = mountinfo::read()?;
    Ok(pick(find_all_in(base, &lines)?, &lines, path))
}

/// [`find_all`] on a given table.
pub fn find_all_in(base: &Path, lines: &[MountLine]) -> Result<Vec<Found>, StateError> {
    let entries = match fs::read_dir(base) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(StateError::io("list the state folder", base, error)),
    };
    let mut folders: Vec<PathBuf> =
        entries.take(FOLDERS_MAX).filter_map(|entry| entry.ok().map(|entry| entry.path())).collect();
    folders.sort();
    Ok(folders.into_iter().filter_map(|state_dir| look(state_dir, lines)).collect())
}

fn look(state_dir: PathBuf, lines: &[MountLine]) -> Option<Found> {
    let told = |error: StateError| tracing::warn!(%error, "state folder left out");
    let file = match MountFile::load(&state_dir) {
        Ok(file) => file?,
        // The base may hold plain files and the data folder of `up`.
        Err(StateError::Io { source, .. }) if source.kind() == io::ErrorKind::NotADirectory => return None,
        Err(error) => {
            told(error);
            return None;
        }
    };
    let running = folder::holder(&state_dir).map_err(told).ok()?;
    let mounted = mountinfo::tidefs_at(lines, &file.mount_point);
    Some(Found { state_dir, file, running, mounted })
}

/// [`find_mount`] among given mounts.
pub fn pick(found: Vec<Found>, lines: &[MountLine], path: &Path) -> Option<(Found, String)> {
    found.into_iter().filter_map(|found| inside(&found, lines, path).map(|inner| (found, inner))).max_by_key(
        |(found, _)| {
            let depth = found.file.mount_point.components().count();
            (depth, found.running.is_some(), found.file.started_unix_ms)
        },
    )
}

fn inside(found: &Found, lines: &[MountLine], path: &Path) -> Option<String> {
    let real = &found.file.mount_point;
    let inner = path.strip_prefix(real).or_else(|_| path.strip_prefix(&found.file.named)).ok()?;
    let other = found.mounted
        && mountinfo::covering(lines, &real.join(inner)).is_some_and(|line| line.mount_point != *real);
    (!other).then(|| format!("/{}", inner.to_string_lossy()))
}
