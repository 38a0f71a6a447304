//! Where the control socket is. A socket's path may have 107 bytes only; a longer one is reached through the
//! folder's open descriptor.

use rustix::fs::{Mode, OFlags};
use std::{
    io,
    os::fd::{AsRawFd, OwnedFd},
    path::{Path, PathBuf},
};

/// The socket's name in the state folder.
pub const SOCKET_NAME: &str = "control.sock";
/// Longest path that is used as it is (`sun_path` has 108 bytes with its end).
const PATH_BYTES_MAX: usize = 100;

/// A path to bind or connect to, valid as long as the value lives.
pub struct SocketPath {
    path: PathBuf,
    _folder: Option<OwnedFd>,
}

impl SocketPath {
    /// The control socket of a state folder.
    pub fn of(state_dir: &Path) -> io::Result<Self> {
        let path = state_dir.join(SOCKET_NAME);
        if path.as_os_str().len() <= PATH_BYTES_MAX {
            return Ok(Self { path, _folder: None });
        }
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let folder = rustix::fs::open(state_dir, flags, Mode::empty())?;
        let path = PathBuf::from(format!("/proc/self/fd/{}/{SOCKET_NAME}", folder.as_raw_fd()));
        Ok(Self { path, _folder: Some(folder) })
    }

    /// The path.
    pub fn path(&self) -> &Path {
        &self.path
    }
}
