//! Mounting and unmounting. Everything that can be wrong with the machine or the place is found before the
//! kernel is asked, because its own answers (EINVAL, EPERM) say little.

use super::{
    door::{Door, Shared},
    mountinfo::{MountLine, absolute, mounted_at},
    prime::prime,
    teller::KernelTeller,
};
use crate::volume::Volume;
use fuser::{Config, MountOption, Notifier, Session, SessionACL};
use rustix::{
    io::Errno,
    mount::{MountFlags, UnmountFlags},
};
use std::{
    ffi::CString,
    fs::{self, File},
    io,
    os::fd::{AsRawFd, OwnedFd},
    path::{Path, PathBuf},
    process::Command,
    sync::Arc,
    thread,
};
use tokio::sync::watch;

/// The type under which our mounts are listed.
pub const FSTYPE: &str = "fuse.tidefs";
const DEVICE: &str = "/dev/fuse";
const HELPER: &str = "fusermount3";

/// Why nothing was mounted.
#[derive(Debug, thiserror::Error)]
pub enum MountError {
    /// There is no FUSE device.
    #[error("needs {DEVICE} ({0}): modprobe fuse, or run the container with --device {DEVICE}")]
    NoDevice(#[source] io::Error),
    /// This process may not mount, and nothing is there that could do it for it.
    #[error(
        "needs the right to mount: run as root (in a container with --cap-add SYS_ADMIN), or install {HELPER}"
    )]
    NoRight,
    /// The mount point is not there.
    #[error("{0}: no such directory; make it first")]
    NoSuchDirectory(PathBuf),
    /// The mount point is not a directory.
    #[error("{0}: not a directory; mount on an empty directory")]
    NotDirectory(PathBuf),
    /// Something is in it, which the mount would hide.
    #[error("{0}: not empty; mount on an empty directory, so that nothing is hidden")]
    NotEmpty(PathBuf),
    /// Something is mounted there.
    #[error("{point}: {source_name} is mounted there already; unmount it first (umount -l if it is dead)")]
    Busy {
        /// Where.
        point: PathBuf,
        /// What.
        source_name: String,
    },
    /// The mount helper refused.
    #[error("{HELPER} could not mount on {point}: {source}")]
    Helper {
        /// Where.
        point: PathBuf,
        /// What it said.
        source: io::Error,
    },
    /// The kernel took the mount but never began to use it as it must.
    #[error("{point}: mounted, but the kernel did not take it into use: {source}; it was unmounted again")]
    Unusable {
        /// Where.
        point: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// Anything else.
    #[error("cannot mount on {point}: {what}: {source}")]
    Failed {
        /// Where.
        point: PathBuf,
        /// What was being done.
        what: &'static str,
        /// Why.
        source: io::Error,
    },
}

impl MountError {
    /// The command's exit code: 7 a prerequisite is missing, 8 in use or not empty, 3 not found, 2 usage, 1 else.
    pub fn exit_code(&self) -> u8 {
        match self {
            Self::NoDevice(_) | Self::NoRight => 7,
            Self::Busy { .. } | Self::NotEmpty(_) => 8,
            Self::NoSuchDirectory(_) => 3,
            Self::NotDirectory(_) => 2,
            Self::Helper { .. } | Self::Unusable { .. } | Self::Failed { .. } => 1,
        }
    }
}

/// Why a mount is still there.
#[derive(Debug, thiserror::Error)]
pub enum UnmountError {
    /// Something uses it.
    #[error("{0}: in use; leave it (cd, open files), or unmount lazily")]
    Busy(PathBuf),
    /// Nothing is mounted there.
    #[error("{0}: nothing is mounted there")]
    NotMounted(PathBuf),
    /// Not permitted, and the helper is missing or refused.
    #[error("{point}: cannot unmount: {source}")]
    Failed {
        /// Where.
        point: PathBuf,
        /// Why.
        source: io::Error,
    },
}

impl UnmountError {
    /// The command's exit code: 8 in use, 3 not found, 1 else.
    pub fn exit_code(&self) -> u8 {
        match self {
            Self::Busy(_) => 8,
            Self::NotMounted(_) => 3,
            Self::Failed { .. } => 1,
        }
    }
}

/// How to mount. Permissions are always checked by the kernel; set-id bits and device files have no effect.
#[derive(Clone, Debug)]
pub struct MountOptions {
    /// Source as listed, such as `tidefs:main`.
    pub fsname: String,
    /// Whether other users may use it.
    pub allow_other: bool,
    /// Whether the kernel refuses all changes.
    pub read_only: bool,
    /// Threads that take requests; `None` is one per processor, at least two.
    pub threads: Option<usize>,
}

impl MountOptions {
    /// A writable mount of `drive`.
    pub fn of_drive(drive: &str, allow_other: bool) -> Self {
        Self { fsname: format!("tidefs:{drive}"), allow_other, read_only: false, threads: None }
    }

    fn config(&self) -> Config {
        let cores = thread::available_parallelism().map_or(2, usize::from);
        let mut config = Config::default();
        config.acl = if self.allow_other { SessionACL::All } else { SessionACL::Owner };
        config.n_threads = Some(self.threads.unwrap_or(cores).max(2));
        config.clone_fd = true;
        let subtype = FSTYPE.trim_start_matches("fuse.");
        config.mount_options = vec![
            MountOption::FSName(self.fsname.clone()),
            MountOption::Subtype(subtype.into()),
            MountOption::DefaultPermissions,
            MountOption::NoSuid,
            MountOption::NoDev,
        ];
        if self.read_only {
            config.mount_options.push(MountOption::RO);
        }
        config
    }
}

/// A mount in use. Dropping it unmounts lazily.
pub struct Mounted {
    point: PathBuf,
    shared: Arc<Shared>,
    notifier: Notifier,
    ended: watch::Receiver<Option<Result<(), String>>>,
}

impl Mounted {
    /// Where, absolute.
    pub fn point(&self) -> &Path {
        &self.point
    }

    /// What was agreed with the kernel.
    pub fn shared(&self) -> &Arc<Shared> {
        &self.shared
    }

    /// Starts the threads that tell the kernel.
    pub fn teller(&self) -> io::Result<KernelTeller> {
        KernelTeller::new(self.notifier.clone())
    }

    /// Ends when the kernel has given the mount up, whoever unmounted it; with why, if it was an error. No
    /// request comes after that.
    pub fn ended(&self) -> impl Future<Output = Result<(), String>> + Send + 'static {
        let mut ended = self.ended.clone();
        async move {
            match ended.wait_for(Option::is_some).await {
                Ok(result) => result.clone().unwrap_or(Ok(())),
                Err(_) => Err("the session's thread is gone".into()),
            }
        }
    }

    /// Whether the kernel has given it up.
    pub fn is_ended(&self) -> bool {
        self.ended.borrow().is_some() || self.ended.has_changed().is_err()
    }

    /// Unmounts; see [`unmount`].
    pub fn unmount(&self, lazy: bool) -> Result<(), UnmountError> {
        if self.is_ended() { Ok(()) } else { unmount(&self.point, lazy) }
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        if let Err(error) = self.unmount(true) {
            tracing::debug!(%error, "not unmounted at the end");
        }
    }
}

/// Mounts `door` on `dir` and makes the kernel give up asking for opens. Blocks for some milliseconds; not to
/// be called from a thread that the door's volume needs.
pub fn mount_at<V: Volume>(dir: &Path, options: &MountOptions, door: Door<V>) -> Result<Mounted, MountError> {
    let point = check(dir)?;
    let shared = door.shared();
    let session = open_session(&point, options, door)?;
    let notifier = session.notifier();
    let (sender, ended) = watch::channel(None);
    let (place, fsname) = (point.clone(), options.fsname.clone());
    let run = move || {
        let result = session.run().map_err(|error| error.to_string());
        if let Err(error) = &result {
            tracing::error!(%error, "the FUSE session failed; unmounting");
            clear_away(&place, &fsname);
        }
        sender.send_replace(Some(result));
    };
    let mounted = Mounted { point: point.clone(), shared, notifier, ended };
    let spawned = thread::Builder::new().name("tidefs-session".into()).spawn(run);
    spawned.map_err(|source| MountError::Failed {
        point: point.clone(),
        what: "starting the session's thread",
        source,
    })?;
    let primed = prime(&point, &mounted.shared, &mounted.notifier);
    primed.map_err(|source| MountError::Unusable { point, source })?;
    Ok(mounted)
}

/// Takes a mount that nobody serves any more out of the tree, so that whoever looks there does not hang.
fn clear_away(point: &Path, fsname: &str) {
    match mounted_at(point) {
        Ok(Some(line)) if line.source == fsname => {
            if let Err(error) = unmount(point, true) {
                tracing::error!(%error, "a dead mount is left behind");
            }
        }
        Ok(_) => {}
        Err(error) => tracing::warn!(%error, "cannot tell whether a dead mount is left behind"),
    }
}

/// Unmounts what is at `dir`, with the helper's help where this process may not. `lazy` takes it out of the
/// tree at once and lets whoever uses it finish. The process behind it sees its session end.
pub fn unmount(dir: &Path, lazy: bool) -> Result<(), UnmountError> {
    let point = absolute(dir).unwrap_or_else(|_| dir.to_path_buf());
    let detach = if lazy { UnmountFlags::DETACH } else { UnmountFlags::empty() };
    match rustix::mount::unmount(&point, UnmountFlags::NOFOLLOW | detach) {
        Ok(()) => Ok(()),
        Err(Errno::BUSY) => Err(UnmountError::Busy(point)),
        Err(Errno::INVAL | Errno::NOENT) => Err(UnmountError::NotMounted(point)),
        Err(Errno::PERM) => unmount_by_helper(point, lazy),
        Err(errno) => Err(UnmountError::Failed { point, source: errno.into() }),
    }
}

fn unmount_by_helper(point: PathBuf, lazy: bool) -> Result<(), UnmountError> {
    match mounted_at(&point) {
        Ok(None) => return Err(UnmountError::NotMounted(point)),
        Ok(Some(_)) => {}
        Err(source) => return Err(UnmountError::Failed { point, source }),
    }
    let flags = if lazy { "-uz" } else { "-u" };
    match Command::new(HELPER).arg(flags).arg("--").arg(&point).output() {
        Ok(output) if output.status.success() => Ok(()),
        Ok(output) => {
            let said = String::from_utf8_lossy(&output.stderr).trim().to_owned();
            if said.contains("busy") {
                return Err(UnmountError::Busy(point));
            }
            Err(UnmountError::Failed { point, source: io::Error::other(said) })
        }
        Err(error) => {
            let source = io::Error::new(error.kind(), format!("needs root or {HELPER} ({error})"));
            Err(UnmountError::Failed { point, source })
        }
    }
}

/// Whether the FUSE device is there and can be opened.
pub fn check_device() -> Result<(), MountError> {
    File::options().read(true).write(true).open(DEVICE).map(drop).map_err(MountError::NoDevice)
}

/// The mount point as an absolute path, if it can be one. What is mounted there is asked of the kernel's table
/// first: looking at a dead mount hangs or fails.
fn check(dir: &Path) -> Result<PathBuf, MountError> {
    check_device()?;
    let failed = |what, source| MountError::Failed { point: dir.to_path_buf(), what, source };
    let missing = |error: io::Error| match error.kind() {
        io::ErrorKind::NotFound => MountError::NoSuchDirectory(dir.to_path_buf()),
        io::ErrorKind::NotADirectory => MountError::NotDirectory(dir.to_path_buf()),
        _ => failed("looking at it", error),
    };
    let free = |point: &Path| match mounted_at(point) {
        Ok(None) => Ok(()),
        Ok(Some(line)) => Err(busy(point, &line)),
        Err(error) => Err(failed("reading /proc/self/mountinfo", error)),
    };
    free(&absolute(dir).map_err(missing)?)?;
    // A symlink may lead to a mount elsewhere, so the table is asked again with where it leads.
    let point = dir.canonicalize().map_err(missing)?;
    free(&point)?;
    if !fs::metadata(&point).map_err(missing)?.is_dir() {
        return Err(MountError::NotDirectory(point));
    }
    match fs::read_dir(&point).map_err(|error| failed("listing it", error))?.next() {
        None => Ok(point),
        Some(_) => Err(MountError::NotEmpty(point)),
    }
}

fn busy(point: &Path, line: &MountLine) -> MountError {
    let source_name = format!("{} ({})", line.source.to_string_lossy(), line.fstype);
    MountError::Busy { point: point.to_path_buf(), source_name }
}

/// Mounts by mount(2), which alone can set the subtype; where that is not permitted, by the helper.
fn open_session<V: Volume>(
    point: &Path,
    options: &MountOptions,
    door: Door<V>,
) -> Result<Session<Door<V>>, MountError> {
    let failed = |what, source: io::Error| MountError::Failed { point: point.to_path_buf(), what, source };
    let config = options.config();
    match mount_directly(point, options) {
        Ok(device) => Session::from_fd(door, device, config.acl, config).map_err(|error| {
            // Best effort: the error that matters is the handshake's.
            let _ = unmount(point, true);
            failed("speaking with the kernel", error)
        }),
        Err(error) if error.raw_os_error() == Some(libc::EPERM) => {
            if Command::new(HELPER).arg("--version").output().is_err() {
                return Err(MountError::NoRight);
            }
            let helped = Session::new(door, point, &config);
            helped.map_err(|source| MountError::Helper { point: point.to_path_buf(), source })
        }
        Err(error) => Err(failed("mounting", error)),
    }
}

fn mount_directly(point: &Path, options: &MountOptions) -> io::Result<OwnedFd> {
    let device = File::options().read(true).write(true).open(DEVICE).map(OwnedFd::from)?;
    let (uid, gid) = (rustix::process::getuid().as_raw(), rustix::process::getgid().as_raw());
    let mut data = format!("fd={},rootmode=40000,user_id={uid},group_id={gid}", device.as_raw_fd());
    data.push_str(",default_permissions");
    if options.allow_other {
        data.push_str(",allow_other");
    }
    let mut flags = MountFlags::NOSUID | MountFlags::NODEV;
    if options.read_only {
        flags |= MountFlags::RDONLY;
    }
    let data = CString::new(data)?;
    rustix::mount::mount(options.fsname.as_str(), point, FSTYPE, flags, data.as_c_str())?;
    Ok(device)
}
