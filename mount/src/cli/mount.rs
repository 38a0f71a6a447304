//! `tidefs mount --foreground`: the process that serves a mount. The background form is this one, started by
//! [`super::background`].

use super::{
    Context,
    args::MountArgs,
    drive::check_name,
    error::CliError,
    output::{Output, remark},
    signals::Ends,
    size::{count, show_size},
    telemetry, unmount,
};
use crate::{
    config::{Limits, MountConfig, OwnerMap, SettleConfig, slug},
    control::{api::Left, client::ControlClient},
    driver,
    exit::Exit,
    state::{self, MountFile, SessionFile, StateFolder, folder, mountinfo},
};
use serde_json::json;
use std::{
    path::{Path, PathBuf},
    time::{Duration, SystemTime, UNIX_EPOCH},
};
use tidefs_proto::limits::SESSION_NAME_BYTES_MAX;
use tokio::sync::oneshot;

/// How long a mount that is told to end by a signal may ship.
const SIGNAL_LEAVE: Duration = Duration::from_secs(30);

/// Serves a mount until it is unmounted, told to leave, or cannot go on.
pub fn foreground(context: &Context, args: MountArgs) -> Result<Exit, CliError> {
    let detached = args.run.detached;
    let ended = if detached { detach().and_then(|()| serve(context, args)) } else { serve(context, args) };
    if let (true, Err(error)) = (detached, &ended) {
        // Whoever started this process reads its standard output; by now nobody may.
        let object = json!({"event": "failed", "error": error.message, "exit_code": error.exit.code()});
        let _told = Output::new(true).result(&object, "");
        return Ok(error.exit);
    }
    ended
}

/// What the command line asks for, checked, with the state folder's place. Nothing is made yet.
pub fn configure(context: &Context, args: &MountArgs) -> Result<(MountConfig, PathBuf), CliError> {
    check_name(&args.drive)?;
    if let Err(error) = crate::fuse::mounting::check_device() {
        return Err(CliError::new(Exit::Prerequisite, error.to_string()));
    }
    if args.at.at.is_some() {
        return Err(CliError::not_built("--at"));
    }
    if args.at.at_least.is_some() {
        return Err(CliError::not_built("--at-least"));
    }
    if args.limits.memory_limit.is_some() {
        return Err(CliError::not_built("--memory-limit"));
    }
    let owner = OwnerMap { uid: args.owner.uid, gid: args.owner.gid, umask: args.owner.umask };
    if owner != OwnerMap::default() {
        return Err(CliError::not_built("--uid, --gid and --umask"));
    }
    if let Some(name) = &args.session {
        check_session(name)?;
    }
    let named = context.absolute(&args.dir)?;
    let dir = folder::real_mount_point(&named)?;
    let config = MountConfig {
        state_dir: context.base()?.join(folder::folder_name(&args.drive, &dir)),
        drive: args.drive.clone(),
        dir,
        server: context.server()?,
        session: args.session.clone(),
        settle: SettleConfig {
            settle: args.settle.settle,
            signal_settle: args.settle.signal_settle,
            max_delay: args.settle.max_delay,
        },
        fsync: args.fsync,
        limits: Limits { wal_bytes: args.limits.wal_limit, cache_bytes: args.limits.cache_limit },
        read_only: args.read_only,
        owner,
        allow_other: !args.no_allow_other,
    };
    Ok((config, named))
}

fn check_session(name: &str) -> Result<(), CliError> {
    if name.len() <= SESSION_NAME_BYTES_MAX && slug(name, SESSION_NAME_BYTES_MAX) == name {
        return Ok(());
    }
    Err(CliError::usage(format!(
        "{name:?} cannot be a session's name: use at most {SESSION_NAME_BYTES_MAX} letters, digits, dots, dashes \
         and underscores, a letter, digit or underscore first"
    )))
}

/// Out of the terminal's session: its Ctrl-C and its end are not ours.
fn detach() -> Result<(), CliError> {
    match rustix::process::setsid() {
        // EPERM: this process leads its group already, because whoever started it saw to that.
        Ok(_) | Err(rustix::io::Errno::PERM) => Ok(()),
        Err(error) => {
            Err(CliError::new(Exit::Failed, format!("cannot leave the terminal's session: {error}")))
        }
    }
}

fn serve(context: &Context, args: MountArgs) -> Result<Exit, CliError> {
    let (config, named) = configure(context, &args)?;
    let state = StateFolder::open(&config.state_dir, &config.dir)?;
    if args.run.detached {
        let log = state.open_log()?;
        rustix::stdio::dup2_stderr(&log).map_err(|e| {
            CliError::new(Exit::Failed, format!("cannot log to {}: {e}", state.path().display()))
        })?;
    }
    telemetry::start("info");
    telemetry::abort_on_panic();
    clear_dead(context, &config)?;
    let before = MountFile::load(state.path()).ok().flatten();
    let file = mount_file(&config, named);
    file.store(state.path())?;
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
    let runtime = runtime.map_err(|e| CliError::new(Exit::Failed, format!("cannot start: {e}")))?;
    let out = Output::new(context.out.json() || args.run.detached);
    let ended = runtime.block_on(drive(Running { out, file, state_dir: config.state_dir.clone() }, config));
    if ended.is_err() {
        put_back_left(state.path(), before.as_ref())?;
    }
    runtime.shutdown_timeout(Duration::from_secs(1));
    drop(state);
    ended
}

/// A killed process leaves its mount point mounted and dead. This process holds the lock of the drive and mount
/// point, so what is there is such a corpse, or another drive's or another state base's, which is not ours to clear.
fn clear_dead(context: &Context, config: &MountConfig) -> Result<(), CliError> {
    if !mountinfo::tidefs_at(&mountinfo::read()?, &config.dir) {
        return Ok(());
    }
    let claims: Vec<_> = state::find_all(&context.base()?)?
        .into_iter()
        .filter(|found| found.file.mount_point == config.dir)
        .collect();
    let other = claims.iter().find(|found| found.state_dir != config.state_dir && found.running.is_some());
    match other {
        Some(other) => Err(CliError::new(
            Exit::Refused,
            format!(
                "drive {} is mounted at {} already: unmount it first with `tidefs unmount {}`",
                other.file.drive,
                config.dir.display(),
                config.dir.display()
            ),
        )),
        None if claims.is_empty() => Err(CliError::new(
            Exit::Refused,
            format!(
                "a tidefs drive that this state folder does not know is mounted at {}: unmount it first, with the \
                 --state it was mounted with",
                config.dir.display()
            ),
        )),
        None if !super::corpse::is_dead(&config.dir) => Err(CliError::new(
            Exit::Refused,
            format!(
                "a running process that this state folder does not know has a mount at {}: unmount it first, with the \
                 --state it was mounted with",
                config.dir.display()
            ),
        )),
        None => {
            tracing::warn!(dir = %config.dir.display(), "clearing the mount point that a killed process left");
            unmount::detach(&config.dir)
        }
    }
}

fn mount_file(config: &MountConfig, named: PathBuf) -> MountFile {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    MountFile {
        pid: std::process::id(),
        drive: config.drive.clone(),
        mount_point: config.dir.clone(),
        named,
        server: config.server.url.clone(),
        session: session_name(&config.state_dir).unwrap_or_else(|| config.session_name()),
        started_unix_ms: u64::try_from(now.as_millis()).unwrap_or(u64::MAX),
        control_socket: config.state_dir.join("control.sock"),
        ready: false,
        left: None,
        config: serde_json::to_value(config).unwrap_or_default(),
    }
}

/// A mount that never became usable has changed nothing: what was left before is what is left.
fn put_back_left(state_dir: &Path, before: Option<&MountFile>) -> Result<(), CliError> {
    match MountFile::load(state_dir)? {
        Some(mut file) if !file.ready => {
            file.left = before.map_or(Some(Left::default()), |before| before.left);
            Ok(file.store(state_dir)?)
        }
        _ => Ok(()),
    }
}

fn session_name(state_dir: &Path) -> Option<String> {
    SessionFile::load(state_dir).ok().flatten().map(|session| session.session_name)
}

struct Running {
    out: Output,
    file: MountFile,
    state_dir: PathBuf,
}

impl Running {
    fn usable(&mut self) -> Result<(), CliError> {
        self.file.ready = true;
        // The server may have given another name than was asked for.
        if let Some(name) = session_name(&self.state_dir) {
            self.file.session = name;
        }
        self.file.store(&self.state_dir)?;
        let MountFile { drive, mount_point, session, pid, server, .. } = &self.file;
        let object = json!({"event": "ready", "drive": drive, "mount_point": mount_point, "session": session,
            "pid": pid, "server": server, "state_dir": self.state_dir});
        let text = format!("mounted {drive} at {} (session {session})", mount_point.display());
        // Nobody may be listening any more; the mount does not depend on it.
        let _told = self.out.result(&object, &text);
        Ok(())
    }

    fn left(&mut self, left: Left) -> Result<Exit, CliError> {
        self.file.left = Some(left);
        self.file.store(&self.state_dir)?;
        let object = json!({"event": "left", "mount_point": self.file.mount_point,
            "unsent_checkpoints": left.unsent_checkpoints, "unsent_bytes": left.unsent_bytes});
        let text = format!("unmounted {}", self.file.mount_point.display());
        let _told = self.out.result(&object, &text);
        if left.is_clean() {
            return Ok(Exit::Done);
        }
        let again = format!("tidefs mount {} {}", self.file.drive, self.file.named.display());
        let told = left_unsent(left, &again);
        if self.out.json() {
            tracing::warn!("{told}");
        } else {
            remark(false, &told);
        }
        Ok(Exit::Unsent)
    }
}

/// The sentence about what stays in the log.
pub fn left_unsent(left: Left, again: &str) -> String {
    format!(
        "unsent work stays in the write-ahead log ({}, {}): ship it by mounting again with `{again}`",
        count(left.unsent_checkpoints, "checkpoint"),
        show_size(left.unsent_bytes)
    )
}

/// Waits for whatever comes: usable, told to end, ended. Each further signal is less patient.
async fn drive(mut running: Running, config: MountConfig) -> Result<Exit, CliError> {
    let mut signals = Ends::listen()?;
    let (ready, mut usable) = oneshot::channel();
    let mut listening = true;
    let mut asked = 0u32;
    let mount = driver::run(config, ready);
    tokio::pin!(mount);
    loop {
        tokio::select! {
            ended = &mut mount => return running.left(ended?),
            told = &mut usable, if listening => {
                listening = false;
                if told.is_ok() {
                    running.usable()?;
                }
            }
            () = signals.next() => {
                asked += 1;
                if listening || asked > 2 {
                    return Err(CliError::new(Exit::Failed, "ended by a signal; unsent work stays in the log"));
                }
                ask_to_leave(running.state_dir.clone(), if asked == 1 { SIGNAL_LEAVE } else { Duration::ZERO });
            }
        }
    }
}

/// Over the control socket, as a command would: one way to leave.
fn ask_to_leave(state_dir: PathBuf, deadline: Duration) {
    tokio::spawn(async move {
        if let Err(error) = ControlClient::new(&state_dir).leave(deadline, false).await {
            tracing::error!(%error, "cannot leave");
        }
    });
}
