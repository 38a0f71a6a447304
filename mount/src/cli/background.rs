//! `tidefs mount`: starts the process that serves the mount, and returns when the mount is usable or has failed.
//!
//! The process is this program again with `--foreground --detached`. It says how it fares in one JSON line on its
//! standard output, a pipe to here; its log is in its state folder.

use super::{Context, args::MountArgs, error::CliError, mount, signals::Ends};
use crate::{control::line::read_line, exit::Exit};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};
use std::{ffi::OsString, path::Path, process::Stdio, time::Duration};
use tokio::{
    io::BufReader,
    process::{Child, ChildStdout, Command},
    time::timeout,
};

/// How long a mount may take to become usable.
pub const USABLE_MAX: Duration = Duration::from_secs(60);
/// Longest line that a child says, in bytes.
const LINE_BYTES_MAX: usize = 64 << 10;

/// Runs the command.
pub async fn run(context: &Context, args: MountArgs) -> Result<Exit, CliError> {
    // Checked here too, so that a wrong command line starts no process.
    let (config, _) = mount::configure(context, &args)?;
    let log = config.state_dir.join("mount.log");
    let mut words: Vec<OsString> = std::env::args_os().skip(1).collect();
    // Behind the command's own words, for they are the mount command's, but before a `--` that ends all options.
    let end = words.iter().position(|word| word == "--").unwrap_or(words.len());
    words.splice(end..end, ["--foreground".into(), "--detached".into()]);
    let mut signals = Ends::listen()?;
    let mut command = Command::new(own_program()?);
    command.args(words).stdin(Stdio::null()).stdout(Stdio::piped());
    let child =
        command.spawn().map_err(|e| CliError::new(Exit::Failed, format!("cannot start the mount: {e}")))?;
    let mut child = Speaking::new(child)?;
    let told = tokio::select! {
        told = timeout(USABLE_MAX, child.ready(&log)) => told,
        () = signals.next() => {
            child.end();
            return Err(CliError::new(Exit::Failed, "ended by a signal before the mount was usable"));
        }
    };
    let Ok(told) = told else {
        child.end();
        return Err(CliError::new(
            Exit::Deadline,
            format!("the mount was not usable within {USABLE_MAX:?}: see {}", log.display()),
        ));
    };
    let told = told?;
    let text = |name: &str| told.get(name).and_then(Value::as_str).unwrap_or_default().to_owned();
    let line = format!("mounted {} at {} (session {})", text("drive"), text("mount_point"), text("session"));
    context.out.result(&told, &line)?;
    Ok(Exit::Done)
}

/// The path of this program.
pub fn own_program() -> Result<std::path::PathBuf, CliError> {
    std::env::current_exe().map_err(|e| CliError::new(Exit::Failed, format!("cannot find this program: {e}")))
}

/// A child that says how it fares, one JSON object a line.
pub struct Speaking {
    child: Child,
    lines: BufReader<ChildStdout>,
}

impl Speaking {
    /// The child, whose standard output is a pipe.
    pub fn new(mut child: Child) -> Result<Self, CliError> {
        let stdout = child.stdout.take();
        let stdout = stdout.ok_or_else(|| CliError::new(Exit::Failed, "the child has no standard output"))?;
        Ok(Self { child, lines: BufReader::new(stdout) })
    }

    /// The next object that it says; `None` when it says no more. What is no JSON object is passed over.
    pub async fn says(&mut self) -> Option<Value> {
        loop {
            let line = read_line(&mut self.lines, LINE_BYTES_MAX).await.ok()??;
            match serde_json::from_slice::<Value>(&line) {
                Ok(value) if value.is_object() => return Some(value),
                _ => {}
            }
        }
    }

    /// Waits until it says that it is ready; else its own error, or a sentence that points at `log`.
    pub async fn ready(&mut self, log: &Path) -> Result<Value, CliError> {
        let told = self.says().await;
        let told = match told {
            Some(told) if told.get("event").and_then(Value::as_str) == Some("ready") => return Ok(told),
            Some(told) => told,
            None => json!({}),
        };
        let status = self.child.wait().await.ok();
        let code = told.get("exit_code").and_then(Value::as_i64);
        let code = code.or_else(|| status.and_then(|status| status.code()).map(i64::from));
        let exit = match code.map(Exit::from_code) {
            None | Some(Exit::Done) => Exit::Failed,
            Some(exit) => exit,
        };
        let message = match told.get("error").and_then(Value::as_str) {
            Some(error) => error.to_owned(),
            None => {
                let how = status.map_or_else(|| "unknown".to_owned(), |status| status.to_string());
                format!("it ended before it was ready ({how}): see {}", log.display())
            }
        };
        Err(CliError::new(exit, message))
    }

    /// Asks it to end: SIGTERM, by its id.
    pub fn end(&self) {
        self.send(Signal::TERM);
    }

    /// Waits for its end.
    pub async fn ended(&mut self) -> Option<std::process::ExitStatus> {
        self.child.wait().await.ok()
    }

    /// Ends it without asking, and takes its status.
    pub async fn kill(&mut self) {
        // It may have ended by itself meanwhile, which is as good.
        let _ended = self.child.kill().await;
    }

    fn send(&self, signal: Signal) {
        let pid = self.child.id().and_then(|pid| i32::try_from(pid).ok()).and_then(Pid::from_raw);
        if let Some(pid) = pid {
            // Not waited for yet, so the id is still this child's.
            let _sent = kill_process(pid, signal);
        }
    }
}
