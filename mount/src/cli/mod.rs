//! The command line: one file per command; this one chooses, and turns every end into a status.

pub mod args;
mod background;
mod corpse;
pub mod drive;
pub mod error;
pub mod grpc;
mod locate;
mod log;
mod mount;
pub mod output;
mod signals;
pub mod size;
mod status;
mod sync;
mod telemetry;
#[cfg(test)]
mod tests;
mod tether;
mod unmount;
mod up;

use crate::{config::ServerAddress, exit::Exit, state};
use args::{Cli, Command, Common};
use clap::{Parser, error::ErrorKind};
use error::CliError;
use output::Output;
use std::{
    ffi::OsString,
    future::Future,
    path::{Path, PathBuf},
    process::ExitCode,
};

/// What every command works with.
#[derive(Clone, Debug)]
pub struct Context {
    common: Common,
    out: Output,
}

impl Context {
    fn new(common: Common) -> Self {
        let out = Output::new(common.json);
        Self { common, out }
    }

    /// The server that was named, checked.
    pub fn server(&self) -> Result<ServerAddress, CliError> {
        grpc::address(&self.common)
    }

    /// The token that was named.
    pub fn token(&self) -> Result<Option<String>, CliError> {
        grpc::token(&self.common)
    }

    /// The base folder of the state.
    pub fn base(&self) -> Result<PathBuf, CliError> {
        Ok(state::base(self.common.state.as_deref())?)
    }

    /// A path as given, made absolute by text.
    pub fn absolute(&self, path: &Path) -> Result<PathBuf, CliError> {
        if path.as_os_str().is_empty() {
            return Err(CliError::usage("an empty path names nothing"));
        }
        if path.is_absolute() {
            return Ok(state::text::absolute(path, Path::new("/")));
        }
        Ok(state::text::absolute(path, &state::folder::cwd()?))
    }
}

/// The whole program.
pub fn main() -> ExitCode {
    let words: Vec<OsString> = std::env::args_os().collect();
    // Errors in the command line itself are wanted as JSON too, so this is looked at before it is understood.
    let json = words.iter().any(|word| word == "--json");
    let cli = match Cli::try_parse_from(words) {
        Ok(cli) => cli,
        Err(error) => return not_understood(json, &error).into(),
    };
    let json = cli.common.json;
    match run(cli) {
        Ok(code) => code.into(),
        Err(error) => {
            output::tell(json, &error);
            error.exit.into()
        }
    }
}

fn not_understood(json: bool, error: &clap::Error) -> Exit {
    if matches!(error.kind(), ErrorKind::DisplayHelp | ErrorKind::DisplayVersion) {
        // A reader that has gone is no error.
        let _printed = error.print();
        return Exit::Done;
    }
    if json {
        let text = error.to_string();
        let first = text.split("\n\n").next().unwrap_or_default().trim_start_matches("error: ");
        output::tell(true, &CliError::usage(first.trim()));
    } else {
        let _printed = error.print();
    }
    Exit::Usage
}

fn run(cli: Cli) -> Result<u8, CliError> {
    let context = Context::new(cli.common);
    match cli.command {
        Command::Mount(args) if args.run.foreground => mount::foreground(&context, args).map(Exit::code),
        Command::Tethered(args) => Err(tether::run(&args)),
        command => {
            telemetry::start("warn");
            short(dispatch(&context, command))
        }
    }
}

async fn dispatch(context: &Context, command: Command) -> Result<u8, CliError> {
    let exit = match command {
        Command::Up(args) => return up::run(context, args).await,
        Command::Mount(args) => background::run(context, args).await,
        Command::Unmount(args) => unmount::run(context, args).await,
        Command::Sync(args) => sync::sync(context, args).await,
        Command::Wait(args) => sync::wait(context, args).await,
        Command::Status(args) => status::run(context, args).await,
        Command::Log(args) => log::run(context, args).await,
        Command::Drive(command) => drive::run(context, command).await,
        Command::Tethered(args) => Err(tether::run(&args)),
        other => Err(CliError::not_built(name_of(&other))),
    };
    exit.map(Exit::code)
}

fn name_of(command: &Command) -> &'static str {
    match command {
        Command::Top(_) => "top",
        Command::Cat(_) => "cat",
        Command::Diff(_) => "diff",
        Command::Restore(_) => "restore",
        Command::Undo(_) => "undo",
        Command::Overlaps(_) => "overlaps",
        Command::Watch(_) => "watch",
        Command::Snapshot(_) => "snapshot",
        Command::Policy(_) => "policy",
        Command::Token(_) => "token",
        Command::Wal(_) => "wal",
        _ => "this command",
    }
}

/// Runs a short command on this thread: no workers to start, no memory for them.
fn short(command: impl Future<Output = Result<u8, CliError>>) -> Result<u8, CliError> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(|e| CliError::new(Exit::Failed, format!("cannot start: {e}")))?;
    let ended = runtime.block_on(command);
    // A name that is still being looked up must not hold up the end.
    runtime.shutdown_background();
    ended
}
