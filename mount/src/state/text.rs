//! Paths by text alone: the file system is never asked, because it may be the one that hangs.

use std::path::{Component, Path, PathBuf};

/// `path` made absolute against `cwd`, with `.` and `..` taken out by text (a `..` behind a symlink goes to the
/// text's parent, not the target's).
pub fn absolute(path: &Path, cwd: &Path) -> PathBuf {
    let mut out = PathBuf::from("/");
    for component in cwd.join(path).components() {
        match component {
            Component::Normal(part) => out.push(part),
            Component::ParentDir => {
                out.pop();
            }
            Component::RootDir | Component::CurDir | Component::Prefix(_) => {}
        }
    }
    out
}

/// A `DRIVE:/path` argument taken apart; `None` when it is an ordinary path. An ordinary path that looks like
/// one is written with `./` in front.
pub fn drive_path(text: &str) -> Option<(&str, &str)> {
    let (drive, path) = text.split_once(':')?;
    let plain = !drive.is_empty() && !drive.contains('/');
    (plain && path.starts_with('/')).then_some((drive, path))
}
