//! Runs a program that is told to end when its parent does, however that ends: the kernel sends SIGTERM. The
//! setting is a process's own, so this small step sits between: it sets it, then becomes the program.

use super::{args::TetheredArgs, error::CliError};
use crate::exit::Exit;
use rustix::process::{Signal, getppid, set_parent_process_death_signal};
use std::{os::unix::process::CommandExt, process::Command};

/// Becomes the program; returns only if that fails.
pub fn run(args: &TetheredArgs) -> CliError {
    let Some((program, rest)) = args.program.split_first() else {
        return CliError::usage("tethered: no program");
    };
    if let Err(error) = set_parent_process_death_signal(Some(Signal::TERM)) {
        return CliError::new(Exit::Failed, format!("tethered: {error}"));
    }
    // The parent may have ended before the line above; then no signal comes.
    let parent = getppid().map(|pid| pid.as_raw_nonzero().get());
    if parent.and_then(|pid| u32::try_from(pid).ok()) != Some(args.parent) {
        return CliError::new(Exit::Failed, "tethered: the parent has ended");
    }
    let error = Command::new(program).args(rest).exec();
    CliError::new(Exit::Prerequisite, format!("cannot run {}: {error}", program.to_string_lossy()))
}
