//! The running mount, from its start until it has left: the order in which its parts come up and go down.

use crate::{
    config::MountConfig,
    control::{
        api::{KernelStatus, Left},
        server::ControlServer,
    },
    engine::{Engine, EngineVolume, LeaveRequest, start},
    exit::Exit,
    fuse::{self, Caching, Door, MountOptions, Mounted, mount_at},
    link::LinkError,
};
use std::{sync::Arc, time::Duration};
use tokio::{runtime::Handle, sync::oneshot, time::Instant};

/// How long a plain unmount may take to ship, as `unmount` without a timeout does.
const SHIP_AT_END: Duration = Duration::from_secs(30);
/// How long a busy mount point is tried again before it is detached.
const BUSY_MAX: Duration = Duration::from_secs(1);
/// Pause between the two.
const BUSY_PAUSE: Duration = Duration::from_millis(50);

/// Why a mount could not start or had to end.
#[derive(Debug, thiserror::Error)]
pub enum DriverError {
    /// The server cannot be asked, or refuses.
    #[error("{0}")]
    Link(#[from] LinkError),
    /// The state folder cannot be used.
    #[error("{0}")]
    State(#[from] crate::state::StateError),
    /// The kernel does not take the mount.
    #[error("{0}")]
    Mount(#[from] fuse::MountError),
    /// The write-ahead log cannot be used.
    #[error("{0}")]
    Log(#[from] crate::wal::LogError),
    /// The outbox cannot be used.
    #[error("{0}")]
    Outbox(#[from] crate::wal::outbox::OutboxError),
    /// The local cache cannot be used.
    #[error("{0}")]
    Cache(#[from] crate::cache::CacheError),
    /// The control socket cannot be used.
    #[error("{0}")]
    Control(#[from] crate::control::server::ControlServerError),
    /// Something on the local disk is not what was written.
    #[error(
        "{what} cannot be used: {why}; nothing was changed. Look at it with `tidefs wal show`, or mount with another --state"
    )]
    Damaged {
        /// What.
        what: String,
        /// Why.
        why: String,
    },
    /// Something that unsent work needs cannot be fetched.
    #[error(
        "{what}, which unsent work needs, cannot be fetched (errno {errno}); the work stays in the log, mount again later"
    )]
    Fetch {
        /// What.
        what: String,
        /// The errno.
        errno: i32,
    },
    /// The server knows of checkpoints that this state folder does not.
    #[error(
        "the server has checkpoint {server} of this session, this state folder ends at {here}: it was rolled back; mount with another --session and --state"
    )]
    RolledBack {
        /// The server's last.
        server: u64,
        /// The folder's last.
        here: u64,
    },
    /// It cannot go on.
    #[error("{0}")]
    Ended(String),
}

impl DriverError {
    /// The status that the process ends with.
    pub fn exit_code(&self) -> Exit {
        match self {
            Self::Link(error) => start::link_exit(error),
            Self::State(error) => error.exit_code(),
            Self::Mount(error) => Exit::from_code(i64::from(error.exit_code())),
            Self::Fetch { .. } => Exit::Unreachable,
            Self::RolledBack { .. } => Exit::Refused,
            _ => Exit::Failed,
        }
    }
}

/// Mounts, tells `ready` once the mount is usable, and returns what was left when it is no longer mounted.
pub async fn run(config: MountConfig, ready: oneshot::Sender<()>) -> Result<Left, DriverError> {
    let selftest = fuse::selftest::prove(&config.state_dir);
    let (proven, started) = tokio::join!(selftest, start::start(&config));
    let started = started?;
    let engine = started.engine.clone();
    let mut following = started.following;
    let shipping = engine.run_ship(started.jobs, started.chain)?;
    let (control, mut asked) = start::control(&engine);
    let server = ControlServer::start(&config.state_dir, control.clone())?;
    let self_test = match &proven {
        Ok(()) => "passed".to_owned(),
        Err(error) => {
            tracing::warn!(%error, "the kernel does not forget as it should; it is trusted for 1 s only");
            error.to_string()
        }
    };
    let mounted = attach_kernel(&config, &engine, proven.is_ok()).await?;
    let flags = mounted.shared().flags().iter().map(|flag| (*flag).to_owned()).collect();
    // Set once; nobody else sets it.
    let _ = control.kernel.set(KernelStatus { flags, self_test });
    // Whoever started us may have gone.
    let _ = ready.send(());
    let left = tokio::select! {
        ended = mounted.ended() => {
            if let Err(error) = ended {
                tracing::error!(%error, "the kernel ended the mount");
            }
            leave(&engine, &mounted, SHIP_AT_END, false).await
        }
        Some(LeaveRequest { timeout, discard, answer }) = asked.recv() => {
            let mut left = leave(&engine, &mounted, timeout, discard).await;
            if discard {
                start::discard(&config.state_dir);
                left = Left::default();
            }
            // Whoever asked may have gone.
            let _ = answer.send(left);
            left
        }
        stopped = &mut following.taking_in => {
            let why = match stopped {
                Ok(Err(why)) => why,
                Ok(Ok(())) => "the follow stream ended".to_owned(),
                Err(error) => error.to_string(),
            };
            tracing::error!(%why, "the mount cannot go on");
            let _ = mounted.unmount(true);
            return Err(DriverError::Ended(why));
        }
    };
    server.stop().await;
    drop((following, shipping));
    Ok(left)
}

async fn attach_kernel(
    config: &MountConfig,
    engine: &Arc<Engine>,
    trusted: bool,
) -> Result<Mounted, DriverError> {
    let volume = Arc::new(EngineVolume(engine.clone()));
    let door = Door::new(volume, Handle::current(), Caching::new(trusted));
    let mut options = MountOptions::of_drive(&config.drive, config.allow_other);
    options.read_only = config.read_only;
    let dir = config.dir.clone();
    let mounted = tokio::task::spawn_blocking(move || mount_at(&dir, &options, door)).await;
    let mounted = mounted.map_err(|error| DriverError::Ended(error.to_string()))??;
    match mounted.teller() {
        // Set once; nobody else sets it.
        Ok(teller) => drop(engine.set_teller(Arc::new(teller))),
        Err(error) => {
            return Err(DriverError::Ended(format!("the kernel cannot be told of changes: {error}")));
        }
    }
    Ok(mounted)
}

/// Ships what can be shipped, unmounts, and ships what the kernel still held.
async fn leave(engine: &Arc<Engine>, mounted: &Mounted, timeout: Duration, discard: bool) -> Left {
    let begun = Instant::now();
    let rest = || timeout.saturating_sub(begun.elapsed());
    if !discard {
        engine.ship(rest()).await;
    }
    while let Err(error) = mounted.unmount(false) {
        if begun.elapsed() > BUSY_MAX.max(timeout) || begun.elapsed() > timeout + BUSY_MAX {
            tracing::warn!(%error, "still in use; taken out of the tree at once");
            let _ = mounted.unmount(true);
            break;
        }
        tokio::time::sleep(BUSY_PAUSE).await;
        if begun.elapsed() > BUSY_MAX {
            let _ = mounted.unmount(true);
            break;
        }
    }
    if !discard {
        engine.ship(rest().max(Duration::from_millis(100)).min(timeout)).await;
    }
    engine.left()
}
