//! `tidefs unmount`: asks the mount's process to ship and leave; where no process is left, clears what it left in
//! the kernel.

use super::{Context, args::UnmountArgs, error::CliError, locate, mount::left_unsent, output::remark};
use crate::{
    control::{
        api::Left,
        client::{ClientError, ControlClient},
    },
    exit::Exit,
    state::{Found, find_mount, mountinfo},
};
use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    io::Errno,
    mount::UnmountFlags,
    process::{Pid, PidfdFlags, pidfd_open},
};
use serde_json::json;
use std::{os::fd::OwnedFd, path::Path, process::Command, time::Duration};

/// How long a process may take to end after it has said what it left.
const END_MAX: Duration = Duration::from_secs(5);

/// Runs the command.
pub async fn run(context: &Context, args: UnmountArgs) -> Result<Exit, CliError> {
    let dir = context.absolute(&args.dir)?;
    let found = find_mount(&context.base()?, &dir)?.map(|(found, _)| found);
    match found.filter(|found| found.file.mount_point == dir || found.file.named == dir) {
        Some(found) if found.running.is_some() => leave(context, &args, &found).await,
        Some(found) => clear(context, &args, &found),
        None => clear_unknown(context, &dir),
    }
}

async fn leave(context: &Context, args: &UnmountArgs, found: &Found) -> Result<Exit, CliError> {
    let process = found.running.and_then(open_process);
    let left = match ControlClient::new(&found.state_dir).leave(args.timeout, args.discard).await {
        Ok(left) => left,
        Err(error @ ClientError::NotRunning { .. }) => {
            return Err(CliError::new(
                Exit::Refused,
                format!(
                    "process {} has the mount at {} and does not listen ({error}): it is starting or ending; \
                     try again, or end it with `kill {}`",
                    found.running.unwrap_or_default(),
                    found.file.mount_point.display(),
                    found.running.unwrap_or_default()
                ),
            ));
        }
        Err(error) => return Err(error.into()),
    };
    let ended = match process {
        Some(process) => has_ended(process).await,
        None => true,
    };
    if !ended {
        remark(context.out.json(), "the mount's process is slow to end; its work is done");
    }
    say(context, found, left)
}

fn say(context: &Context, found: &Found, left: Left) -> Result<Exit, CliError> {
    let dir = &found.file.mount_point;
    let object = json!({"mount_point": dir, "drive": found.file.drive,
        "unsent_checkpoints": left.unsent_checkpoints, "unsent_bytes": left.unsent_bytes});
    context.out.result(&object, &format!("unmounted {}", dir.display()))?;
    if left.is_clean() {
        return Ok(Exit::Done);
    }
    Err(CliError::new(
        Exit::Unsent,
        format!("{}: {}", dir.display(), left_unsent(left, &locate::mount_again(found))),
    ))
}

/// No process: the kernel may still hold the corpse.
fn clear(context: &Context, args: &UnmountArgs, found: &Found) -> Result<Exit, CliError> {
    let dir = &found.file.mount_point;
    if !found.mounted {
        return Err(CliError::new(Exit::NotFound, format!("{} is not mounted", dir.display())));
    }
    if !super::corpse::is_dead(dir) {
        return Err(CliError::new(
            Exit::Refused,
            format!(
                "{} is served by a process that this state folder does not know: use the --state it was mounted with",
                dir.display()
            ),
        ));
    }
    remark(
        context.out.json(),
        &format!("no process answers for {}; clearing the mount point", dir.display()),
    );
    detach(dir)?;
    if args.discard {
        remark(context.out.json(), "nothing was discarded: that needs the mount's process");
    }
    match found.file.left {
        Some(left) => say(context, found, left),
        // Killed: only the log knows, and it is better said once too often than never.
        None => {
            let object = json!({"mount_point": dir, "drive": found.file.drive,
                "unsent_checkpoints": null, "unsent_bytes": null});
            context.out.result(&object, &format!("unmounted {}", dir.display()))?;
            Err(CliError::new(
                Exit::Unsent,
                format!(
                    "the process of {} was killed and its write-ahead log in {} may hold unsent work: ship it by \
                     mounting again with `{}`",
                    dir.display(),
                    found.state_dir.display(),
                    locate::mount_again(found)
                ),
            ))
        }
    }
}

fn clear_unknown(context: &Context, dir: &Path) -> Result<Exit, CliError> {
    if !mountinfo::tidefs_at(&mountinfo::read()?, dir) {
        return Err(CliError::new(
            Exit::NotFound,
            format!("no tidefs drive is mounted at {}", dir.display()),
        ));
    }
    // Its process may live and have unsent work: a plain unmount, which that process notices and ships after.
    remark(
        context.out.json(),
        &format!(
            "no state is known for {}; unmounting it by the kernel. Its process ships what is unsent within 30 s; its \
             mount.log says what it could not",
            dir.display()
        ),
    );
    kernel_unmount(dir, false)?;
    context.out.result(&json!({"mount_point": dir}), &format!("unmounted {}", dir.display()))?;
    Ok(Exit::Done)
}

/// Takes a mount point whose process is gone out of the tree, even while other processes still stand in it.
pub fn detach(dir: &Path) -> Result<(), CliError> {
    kernel_unmount(dir, true)
}

fn kernel_unmount(dir: &Path, lazy: bool) -> Result<(), CliError> {
    let failed = |exit, why: String| CliError::new(exit, format!("cannot unmount {}: {why}", dir.display()));
    let flags = if lazy { UnmountFlags::DETACH } else { UnmountFlags::empty() };
    match rustix::mount::unmount(dir, flags | UnmountFlags::NOFOLLOW) {
        Ok(()) => return Ok(()),
        Err(Errno::PERM) => {}
        Err(Errno::BUSY) => {
            return Err(failed(
                Exit::Refused,
                "processes use it: see `fuser -m` or `lsof`, end them".to_owned(),
            ));
        }
        Err(error) => return Err(failed(Exit::Failed, error.to_string())),
    }
    let arguments: &[&str] = if lazy { &["-u", "-z"] } else { &["-u"] };
    let ran = Command::new("fusermount3").args(arguments).arg("--").arg(dir).output();
    let ran = ran.map_err(|e| {
        failed(Exit::Prerequisite, format!("fusermount3: {e}; install it (package fuse3) or unmount as root"))
    })?;
    if ran.status.success() {
        return Ok(());
    }
    Err(failed(Exit::Refused, String::from_utf8_lossy(&ran.stderr).trim().to_owned()))
}

/// A handle on the process that does not go over to another one of the same id.
fn open_process(pid: u32) -> Option<OwnedFd> {
    let pid = Pid::from_raw(i32::try_from(pid).ok()?)?;
    pidfd_open(pid, PidfdFlags::NONBLOCK).ok()
}

/// Waits for the process's end on a thread made for waiting; false when it is slow.
async fn has_ended(process: OwnedFd) -> bool {
    let wait = move || {
        let limit = Timespec { tv_sec: END_MAX.as_secs().cast_signed(), tv_nsec: 0 };
        let mut ends = [PollFd::new(&process, PollFlags::IN)];
        poll(&mut ends, Some(&limit))
    };
    // Where it cannot be waited for, the answer that it gave must do.
    !matches!(tokio::task::spawn_blocking(wait).await, Ok(Ok(0)))
}
