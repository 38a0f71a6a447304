//! Processes: run with a deadline, wait for an exit as an event, end by id, detach mounts.

use std::fs::File;
use std::io::{Read as _, Seek as _, SeekFrom};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::mount::{UnmountFlags, unmount};
use rustix::process::{Pid, PidfdFlags, Signal, kill_process, pidfd_open};
use serde_json::Value;

/// How long a killed process may take to disappear.
const DEATH_LIMIT: Duration = Duration::from_secs(20);

/// What a command did.
#[derive(Debug)]
pub struct Ran {
    /// The command line, for messages.
    pub command: String,
    /// Exit status; none when a signal ended it.
    pub code: Option<i32>,
    /// All of standard output.
    pub stdout: String,
    /// All of standard error.
    pub stderr: String,
}

impl Ran {
    /// Itself when the status was 0.
    ///
    /// # Errors
    /// The status was another one; the error carries what was printed.
    pub fn ok(self) -> Result<Self> {
        self.code(0)
    }

    /// Itself when the status was `want`.
    ///
    /// # Errors
    /// The status was another one; the error carries what was printed.
    pub fn code(self, want: i32) -> Result<Self> {
        if self.code == Some(want) {
            return Ok(self);
        }
        bail!(
            "`{}` ended with {:?}, expected {want}\n{}{}",
            self.command,
            self.code,
            self.stdout,
            self.stderr
        )
    }

    /// The lines of standard output as JSON objects.
    ///
    /// # Errors
    /// A line is not a JSON object.
    pub fn json(&self) -> Result<Vec<Value>> {
        let lines = self.stdout.lines().filter(|line| !line.trim().is_empty());
        lines
            .map(|line| {
                let value: Value = serde_json::from_str(line)
                    .with_context(|| format!("`{}` printed no JSON: {line}", self.command))?;
                ensure!(value.is_object(), "`{}` printed no object: {line}", self.command);
                Ok(value)
            })
            .collect()
    }
}

/// Runs a command to its end.
///
/// Output goes to unnamed files, not pipes: a background process that keeps its standard output open
/// must not keep the test waiting.
///
/// # Errors
/// The program cannot be started, or runs longer than `limit` (it is killed then).
pub fn run(command: &mut Command, limit: Duration) -> Result<Ran> {
    let text = format!("{command:?}");
    let (mut stdout, mut stderr) = (tempfile::tempfile()?, tempfile::tempfile()?);
    let mut child = command
        .stdin(Stdio::null())
        .stdout(stdout.try_clone()?)
        .stderr(stderr.try_clone()?)
        .spawn()
        .with_context(|| format!("cannot run {text}"))?;
    if !wait_exit(Pid::from_child(&child), limit)? {
        drop(child.kill());
        drop(child.wait());
        bail!("`{text}` did not end within {limit:?}\n{}{}", slurp(&mut stdout)?, slurp(&mut stderr)?);
    }
    let code = child.wait()?.code();
    Ok(Ran { command: text, code, stdout: slurp(&mut stdout)?, stderr: slurp(&mut stderr)? })
}

fn slurp(file: &mut File) -> Result<String> {
    let mut bytes = Vec::new();
    file.seek(SeekFrom::Start(0))?;
    file.read_to_end(&mut bytes)?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

/// Waits until the process has ended; false when it has not within `limit`.
///
/// # Errors
/// The kernel refuses to watch the process.
pub fn wait_exit(pid: Pid, limit: Duration) -> Result<bool> {
    let fd = match pidfd_open(pid, PidfdFlags::empty()) {
        Ok(fd) => fd,
        Err(Errno::SRCH) => return Ok(true),
        Err(error) => return Err(error).with_context(|| format!("cannot watch process {pid:?}")),
    };
    let deadline = std::time::Instant::now() + limit;
    loop {
        let left = deadline.saturating_duration_since(std::time::Instant::now());
        let timeout = Timespec::try_from(left)?;
        match poll(&mut [PollFd::new(&fd, PollFlags::IN)], Some(&timeout)) {
            Ok(count) => return Ok(count > 0),
            Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
}

/// Ends a process that cannot object, and waits until it is gone. No effect when it is gone already.
pub fn kill9(pid: Pid) {
    if kill_process(pid, Signal::KILL).is_ok() && !matches!(wait_exit(pid, DEATH_LIMIT), Ok(true)) {
        eprintln!("process {pid:?} is still there {DEATH_LIMIT:?} after SIGKILL");
    }
}

/// Ends every process whose command line names a path below `root`, by its id. For what a failed
/// command left behind without telling.
pub fn end_below(root: &Path) {
    let needle = format!("{}/", root.display()).into_bytes();
    for entry in std::fs::read_dir("/proc").into_iter().flatten().filter_map(Result::ok) {
        let number = entry.file_name().to_string_lossy().parse().ok().and_then(Pid::from_raw);
        let line = std::fs::read(entry.path().join("cmdline")).unwrap_or_default();
        if let Some(pid) = number
            && pid != rustix::process::getpid()
            && line.windows(needle.len()).any(|window| window == needle)
        {
            kill9(pid);
        }
    }
}

/// Detaches whatever is mounted at `dir`. No effect when nothing is.
pub fn detach(dir: &Path) {
    while unmount(dir, UnmountFlags::DETACH).is_ok() {}
}

/// Detaches every mount below `root`; returns those that could not be.
#[must_use]
pub fn detach_below(root: &Path) -> Vec<PathBuf> {
    mounts_below(root).iter().for_each(|dir| detach(dir));
    mounts_below(root)
}

/// The mount points below `root`, deepest first, as the kernel lists them; touches none.
#[must_use]
pub fn mounts_below(root: &Path) -> Vec<PathBuf> {
    let table = std::fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    let points = table.lines().filter_map(|line| line.split(' ').nth(4)).map(unescape);
    let mut points: Vec<PathBuf> = points.filter(|point| point.starts_with(root)).collect();
    points.reverse();
    points
}

/// The kernel writes blanks and backslashes of a path as three octal digits.
fn unescape(text: &str) -> PathBuf {
    PathBuf::from(text.replace("\\040", " ").replace("\\134", "\\"))
}

/// One number of `/proc/PID/status`, in KiB: `VmHWM`, `VmRSS` and the like.
///
/// # Errors
/// The process is gone or has no such line.
pub fn memory_kib(pid: Pid, key: &str) -> Result<u64> {
    let text = std::fs::read_to_string(format!("/proc/{}/status", pid.as_raw_nonzero()))?;
    let line = text.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(':'));
    let number = line.and_then(|rest| rest.split_whitespace().next());
    number.context("no such line")?.parse().context("not a number")
}
