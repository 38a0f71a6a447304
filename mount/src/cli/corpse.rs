//! Whether a mount point is the corpse of a process that was killed.
//!
//! State folders do not tell: the process may have another one. The kernel does, but asking it goes to the process if
//! there is one, which may not answer. So it is asked from a thread of its own, and only a clear "not connected"
//! counts.

use std::{path::Path, sync::mpsc, time::Duration};

/// Longest wait for the kernel's word.
const ASK_MAX: Duration = Duration::from_secs(2);

/// Whether nobody serves the mount at `dir` any more.
pub fn is_dead(dir: &Path) -> bool {
    let (sender, receiver) = mpsc::sync_channel(1);
    let dir = dir.to_path_buf();
    let ask = move || {
        // Whoever asked may have stopped waiting.
        let _ = sender.send(rustix::fs::statvfs(&dir).err());
    };
    let asked = std::thread::Builder::new().name("tidefs-corpse".into()).spawn(ask);
    let answer = asked.ok().and_then(|_| receiver.recv_timeout(ASK_MAX).ok());
    matches!(answer, Some(Some(rustix::io::Errno::NOTCONN | rustix::io::Errno::CONNABORTED)))
}
