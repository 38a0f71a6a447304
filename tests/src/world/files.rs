//! Plain file work with errors that name the path.

use std::collections::BTreeMap;
use std::fs;
use std::io::Write as _;
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, ensure};

/// Writes a whole file in place: open with truncation, write, close.
///
/// # Errors
/// Those of the file system, with the path.
pub fn write(path: &Path, content: &[u8]) -> Result<()> {
    fs::write(path, content).with_context(|| format!("write {}", path.display()))
}

/// Reads a whole file.
///
/// # Errors
/// Those of the file system, with the path.
pub fn read(path: &Path) -> Result<Vec<u8>> {
    fs::read(path).with_context(|| format!("read {}", path.display()))
}

/// Appends with one call.
///
/// # Errors
/// Those of the file system, with the path; a short write.
pub fn append(path: &Path, content: &[u8]) -> Result<()> {
    let mut file = fs::File::options()
        .append(true)
        .create(true)
        .open(path)
        .with_context(|| format!("open {}", path.display()))?;
    let count = file.write(content).with_context(|| format!("append to {}", path.display()))?;
    ensure!(count == content.len(), "short append to {}", path.display());
    Ok(())
}

/// Saves as an editor does: a new temporary file, fsync, rename.
///
/// # Errors
/// Those of the file system, with the path.
pub fn save_by_rename(path: &Path, temp: &Path, content: &[u8]) -> Result<()> {
    let mut file = fs::File::options()
        .write(true)
        .create_new(true)
        .mode(0o644)
        .open(temp)
        .with_context(|| format!("create {}", temp.display()))?;
    file.write_all(content).with_context(|| format!("write {}", temp.display()))?;
    file.sync_all().with_context(|| format!("fsync {}", temp.display()))?;
    drop(file);
    fs::rename(temp, path).with_context(|| format!("rename over {}", path.display()))
}

/// The names in a directory, sorted.
///
/// # Errors
/// Those of the file system, with the path.
pub fn names(dir: &Path) -> Result<Vec<String>> {
    let list = fs::read_dir(dir).with_context(|| format!("list {}", dir.display()))?;
    let mut names = Vec::new();
    for entry in list {
        let entry = entry.with_context(|| format!("list {}", dir.display()))?;
        names.push(entry.file_name().to_string_lossy().into_owned());
    }
    names.sort();
    Ok(names)
}

/// Files down to `depth` levels that satisfy `good`, sorted; what cannot be listed is left out.
#[must_use]
pub fn find(dir: &Path, depth: usize, good: impl Fn(&Path) -> bool + Copy) -> Vec<PathBuf> {
    let mut found = Vec::new();
    if depth == 0 || !process_free(dir) {
        return found;
    }
    let mut entries: Vec<_> = fs::read_dir(dir).into_iter().flatten().filter_map(Result::ok).collect();
    entries.sort_by_key(fs::DirEntry::file_name);
    for entry in entries {
        let path = entry.path();
        match entry.file_type() {
            Ok(kind) if kind.is_dir() => found.extend(find(&path, depth - 1, good)),
            Ok(kind) if kind.is_file() && good(&path) => found.push(path),
            _ => {}
        }
    }
    found
}

/// Mount points are left out of searches: a hung one would hang the search.
fn process_free(dir: &Path) -> bool {
    !super::process::mounts_below(dir).iter().any(|point| point == dir)
}

/// What a tree holds: each path with a line on kind, permission bits and content.
pub type Tree = BTreeMap<PathBuf, String>;

/// Reads a whole tree; two equal results mean equal trees (times left out).
///
/// # Errors
/// Those of the file system, with the path.
pub fn tree(top: &Path) -> Result<Tree> {
    let mut out = Tree::new();
    let mut todo = vec![top.to_owned()];
    while let Some(dir) = todo.pop() {
        for entry in fs::read_dir(&dir).with_context(|| format!("list {}", dir.display()))? {
            let path = entry.with_context(|| format!("list {}", dir.display()))?.path();
            let meta = fs::symlink_metadata(&path).with_context(|| format!("stat {}", path.display()))?;
            let mode = meta.mode() & 0o7777;
            let line = if meta.is_dir() {
                todo.push(path.clone());
                format!("directory {mode:o}")
            } else if meta.is_symlink() {
                format!("symlink {}", fs::read_link(&path)?.display())
            } else {
                let content = read(&path)?;
                ensure!(
                    meta.len() == content.len() as u64,
                    "{}: stat says {} bytes, read gives {}",
                    path.display(),
                    meta.len(),
                    content.len()
                );
                format!("file {mode:o} {} {:016x}", content.len(), fnv(&content))
            };
            out.insert(path.strip_prefix(top)?.to_owned(), line);
        }
    }
    Ok(out)
}

/// Compares two trees.
///
/// # Errors
/// They differ; the error names the first differences.
pub fn same(left: &Tree, right: &Tree) -> Result<()> {
    let paths: std::collections::BTreeSet<&PathBuf> = left.keys().chain(right.keys()).collect();
    let differences: Vec<String> = paths
        .into_iter()
        .filter(|path| left.get(*path) != right.get(*path))
        .map(|path| format!("{}: {:?} and {:?}", path.display(), left.get(path), right.get(path)))
        .collect();
    ensure!(
        differences.is_empty(),
        "{} differences, the first: {}",
        differences.len(),
        differences[..differences.len().min(5)].join("; ")
    );
    Ok(())
}

/// Removes a folder of the test; a failure is printed, it must not hide the test's own result.
pub fn remove_tree(root: &Path) {
    if let Err(error) = fs::remove_dir_all(root) {
        eprintln!("cannot remove {}: {error}", root.display());
    }
}

/// FNV-1a: enough to tell test contents apart.
fn fnv(content: &[u8]) -> u64 {
    content.iter().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3)
    })
}
