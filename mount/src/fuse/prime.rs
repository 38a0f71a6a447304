//! Teaching the kernel that `open` is not answered. It learns this from the first ENOSYS, so the first open
//! had better be our own: before the mount is announced, the mount opens its root directory and a file. A
//! volume may hold no file yet, so for this one moment the reserved name is one, with an id of its own that
//! the volume never hears of.

use super::{attributes::missing, door::Shared};
use fuser::{FileAttr, FileType, INodeNo, Notifier};
use std::{
    ffi::OsStr,
    fs::File,
    io,
    os::unix::ffi::OsStrExt,
    path::{Path, PathBuf},
    sync::{Arc, atomic::Ordering, mpsc},
    time::Duration,
};
use tidefs_timeline::Name;

/// The id of the file that exists only while priming. No session has the number that it would belong to.
pub(super) const FILE: INodeNo = INodeNo(u64::MAX - 1);
/// Attributes of [`FILE`] are believed for this long; its name is not believed at all.
pub(super) const FILE_TTL: Duration = Duration::from_secs(10);
/// How long the two opens may take; they wait for nothing but a look at the root.
const PRIME_MAX: Duration = Duration::from_secs(10);

/// The attributes of [`FILE`].
pub(super) fn file() -> FileAttr {
    FileAttr { ino: FILE, kind: FileType::RegularFile, perm: 0o444, nlink: 1, ..missing() }
}

/// Opens the root of the mount at `dir` and a file in it. From a thread of its own, so that a volume that does
/// not answer cannot hold up the caller for longer than [`PRIME_MAX`].
pub(super) fn prime(dir: &Path, shared: &Arc<Shared>, notifier: &Notifier) -> io::Result<()> {
    let (sender, receiver) = mpsc::sync_channel(1);
    let dir: PathBuf = dir.to_path_buf();
    shared.priming.store(true, Ordering::Release);
    std::thread::Builder::new().name("tidefs-prime".into()).spawn(move || {
        // The receiver may have given up; then nobody needs the answer.
        let _ = sender.send(open_both(&dir));
    })?;
    let opened = receiver.recv_timeout(PRIME_MAX);
    shared.priming.store(false, Ordering::Release);
    opened.map_err(|_| io::Error::from(io::ErrorKind::TimedOut))??;
    // Were the name still known, the first fence would drop the root's cached listing along with it.
    notifier.inval_entry(INodeNo::ROOT, OsStr::from_bytes(Name::FENCE))?;
    if shared.open_unanswered.load(Ordering::Acquire) && shared.opendir_unanswered.load(Ordering::Acquire) {
        return Ok(());
    }
    Err(io::Error::other("the kernel asked for no open at all"))
}

fn open_both(dir: &Path) -> io::Result<()> {
    File::open(dir)?;
    File::open(dir.join(OsStr::from_bytes(Name::FENCE)))?;
    Ok(())
}
