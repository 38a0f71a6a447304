//! The server process of a world.

use std::io::{BufRead as _, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use super::{Bins, process};

/// How long a server may take to say that it is ready.
const READY_LIMIT: Duration = Duration::from_secs(30);
/// How long a server may take to stop in the orderly way.
const STOP_LIMIT: Duration = Duration::from_secs(30);

/// A running (or stopped) server with its data folder and fixed ports.
pub struct Server {
    program: PathBuf,
    data: PathBuf,
    log: PathBuf,
    listen: String,
    http: String,
    child: Option<Child>,
}

impl Server {
    /// Starts a server on free ports with its data below `root`.
    ///
    /// # Errors
    /// It does not start or does not say that it is ready.
    pub fn start(bins: &Bins, root: &Path) -> Result<Self> {
        let any = "127.0.0.1:0".to_owned();
        let mut server = Self {
            program: bins.server(),
            data: root.join("server"),
            log: root.join("server.log"),
            listen: any.clone(),
            http: any,
            child: None,
        };
        server.spawn()?;
        Ok(server)
    }

    /// Address for `--server`.
    #[must_use]
    pub fn url(&self) -> String {
        format!("http://{}", self.listen)
    }

    /// Address of the status pages.
    #[must_use]
    pub fn http_url(&self) -> String {
        format!("http://{}", self.http)
    }

    /// The data folder.
    #[must_use]
    pub fn data(&self) -> &Path {
        &self.data
    }

    /// Kills the server; no effect when it does not run.
    pub fn kill9(&mut self) {
        if let Some(mut child) = self.child.take() {
            drop(child.kill());
            drop(child.wait());
        }
    }

    /// Stops the server in the orderly way (SIGTERM) and expects status 0.
    ///
    /// # Errors
    /// It does not end, or ends badly.
    pub fn stop(&mut self) -> Result<()> {
        let Some(mut child) = self.child.take() else { return Ok(()) };
        let pid = Pid::from_child(&child);
        kill_process(pid, Signal::TERM)?;
        if !process::wait_exit(pid, STOP_LIMIT)? {
            drop(child.kill());
            drop(child.wait());
            bail!("the server did not stop within {STOP_LIMIT:?} of SIGTERM");
        }
        let status = child.wait()?;
        if !status.success() {
            bail!("the server stopped with {status}");
        }
        Ok(())
    }

    /// Starts it again on the same data and the same ports.
    ///
    /// # Errors
    /// It still runs, or does not come up.
    pub fn restart(&mut self) -> Result<()> {
        if self.child.is_some() {
            bail!("the server still runs: stop or kill it first");
        }
        self.spawn()
    }

    fn spawn(&mut self) -> Result<()> {
        let log = std::fs::File::options().create(true).append(true).open(&self.log)?;
        let mut child = Command::new(&self.program)
            .args(["serve", "--json", "--listen", &self.listen, "--http", &self.http, "--data"])
            .arg(&self.data)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(log)
            .spawn()
            .with_context(|| format!("cannot run {}", self.program.display()))?;
        let lines = child.stdout.take().map(read_lines).context("the server has no standard output")?;
        self.child = Some(child);
        let ready = match wait_ready(&lines) {
            Ok(ready) => ready,
            Err(error) => {
                let text = std::fs::read_to_string(&self.log).unwrap_or_default();
                self.kill9();
                return Err(error).with_context(|| format!("the server did not come up\n{text}"));
            }
        };
        let address = |key: &str| {
            ready[key].as_str().map(str::to_owned).with_context(|| format!("no {key} in {ready}"))
        };
        self.listen = address("listen")?;
        self.http = address("http")?;
        Ok(())
    }
}

/// Reads on for the life of the process, so that it never blocks on a full pipe.
fn read_lines(stdout: ChildStdout) -> Receiver<String> {
    let (send, lines) = channel();
    std::thread::spawn(move || {
        for line in BufReader::new(stdout).lines().map_while(Result::ok) {
            drop(send.send(line));
        }
    });
    lines
}

fn wait_ready(lines: &Receiver<String>) -> Result<Value> {
    let deadline = std::time::Instant::now() + READY_LIMIT;
    loop {
        let left = deadline.saturating_duration_since(std::time::Instant::now());
        let line = lines.recv_timeout(left).context("no ready line (ended or silent)")?;
        if let Ok(value) = serde_json::from_str::<Value>(&line)
            && value["event"] == "ready"
        {
            return Ok(value);
        }
    }
}
