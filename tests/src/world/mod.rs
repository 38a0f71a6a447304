//! One world: a server, a drive `main`, and as many mounts of it as a story asks for.
//!
//! Everything is a real process with its data in one temporary folder. Nothing outlives the world:
//! whatever way a test ends, mounts are detached, processes are ended by their id and the folder is
//! removed (`TIDEFS_KEEP=1` keeps the folder for a look at the logs).

mod bins;
pub mod files;
mod gate;
mod lifeline;
pub mod model;
mod mount;
pub mod need;
pub mod process;
mod server;
pub mod wait;
pub mod writers;

use std::io::Write as _;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use serde_json::Value;

pub use bins::Bins;
pub use mount::Mount;
pub use need::Need;
pub use process::Ran;
pub use server::Server;

/// Name of the drive that every world has.
pub const DRIVE: &str = "main";

/// How long one command of the product may take before the test fails.
pub const COMMAND_LIMIT: Duration = Duration::from_secs(120);

/// A server, its drive and the folder that all of it lives in.
pub struct World {
    /// The server process; kill it, stop it, start it again.
    pub server: Server,
    root: PathBuf,
    bins: Bins,
    lifelines: lifeline::Lifelines,
    _permit: gate::Permit,
}

/// Runs one story in a world of its own.
///
/// Not run (and counted as such) where a prerequisite is missing. A story that hangs is cut after
/// `TIDEFS_STORY_LIMIT` seconds (default 300): its mounts are killed, so that blocked calls return
/// and the test fails with an error. The logs of a failed story are printed.
///
/// # Errors
/// What the story returned, or what kept the world from starting.
pub fn story(name: &str, needs: &[Need], tell: impl FnOnce(&mut World) -> Result<()>) -> Result<()> {
    if !need::met(name, &[Need::Fuse])? || !need::met(name, needs)? {
        return Ok(());
    }
    let mut world = World::new(name)?;
    let watchdog = world.lifelines.watch(name);
    let outcome = catch_unwind(AssertUnwindSafe(|| tell(&mut world)));
    let cut = watchdog.end();
    if !matches!(outcome, Ok(Ok(()))) {
        world.print_logs();
    }
    drop(world);
    match outcome {
        Ok(result) if cut => result.and_then(|()| bail!("{name}: did not end in time, mounts were killed")),
        Ok(result) => result.with_context(|| format!("story {name}")),
        Err(panic) => resume_unwind(panic),
    }
}

impl World {
    /// Starts a server on free loopback ports and makes the drive.
    ///
    /// Waits for its turn: at most two worlds exist at a time in one process.
    ///
    /// # Errors
    /// The programs are missing or stale, or the server does not come up.
    pub fn new(name: &str) -> Result<Self> {
        let permit = gate::enter();
        let bins = Bins::get()?;
        let root = tempfile::Builder::new()
            // Short: the path of a control socket has 107 bytes at most.
            .prefix(&format!("{name}-"))
            .tempdir()
            .context("cannot make the world's folder (TMPDIR)")?
            .keep();
        let server = Server::start(&bins, &root);
        let lifelines = lifeline::Lifelines::default();
        let server = match server {
            Ok(server) => server,
            Err(error) => {
                print_tail(&root.join("server.log"));
                files::remove_tree(&root);
                return Err(error);
            }
        };
        let world = Self { server, root, bins, lifelines, _permit: permit };
        world.tidefs(&["drive", "create", DRIVE])?.ok()?;
        Ok(world)
    }

    /// The folder of this world: scratch space outside the drive, removed at the end.
    #[must_use]
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// Address for `--server`.
    #[must_use]
    pub fn url(&self) -> String {
        self.server.url()
    }

    /// Where the programs are.
    #[must_use]
    pub fn bins(&self) -> &Bins {
        &self.bins
    }

    /// Mounts the drive as session `session` with default settings; usable on return.
    ///
    /// # Errors
    /// What the mount command printed.
    pub fn mount(&self, session: &str) -> Result<Mount> {
        self.mount_with(session, &[])
    }

    /// Like [`World::mount`] with further arguments for `tidefs mount`.
    ///
    /// # Errors
    /// What the mount command printed.
    pub fn mount_with(&self, session: &str, args: &[&str]) -> Result<Mount> {
        Mount::start(self, session, args)
    }

    /// A `tidefs` command that knows this world's server and a state folder of its own.
    #[must_use]
    pub fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(self.bins.tidefs());
        command
            .args(args)
            .env("TIDEFS_SERVER", self.url())
            .env("TIDEFS_STATE", self.root.join("state"))
            .env("HOME", &self.root);
        command
    }

    /// Runs `tidefs ARGS` to its end.
    ///
    /// # Errors
    /// It cannot be run, or does not end within [`COMMAND_LIMIT`]. A bad status is in the result.
    pub fn tidefs(&self, args: &[&str]) -> Result<Ran> {
        process::run(&mut self.command(args), COMMAND_LIMIT)
    }

    /// Every checkpoint of the timeline, oldest first, one JSON object each.
    ///
    /// # Errors
    /// The log cannot be read or is not JSON.
    pub fn timeline(&self) -> Result<Vec<Value>> {
        let root = format!("{DRIVE}:/");
        let mut log = self.tidefs(&["log", &root, "--json", "-n", "100000"])?.ok()?.json()?;
        log.sort_by_key(|entry| entry["position"].as_u64());
        Ok(log)
    }

    /// The newest position of the timeline, 0 when nothing was placed.
    ///
    /// # Errors
    /// As [`World::timeline`].
    pub fn head(&self) -> Result<u64> {
        Ok(self.timeline()?.last().and_then(|entry| entry["position"].as_u64()).unwrap_or(0))
    }

    /// Waits until `mount` shows `position`.
    ///
    /// # Errors
    /// It does not within the command's own deadline.
    pub fn wait(&self, position: u64, mount: &Mount) -> Result<()> {
        mount.tidefs(&["wait", &position.to_string(), &mount.path_text()])?.ok()?;
        Ok(())
    }

    /// Ships all that both mounts have and waits until both show all of it.
    ///
    /// # Errors
    /// One of the two cannot.
    pub fn settle(&self, mounts: &[&Mount]) -> Result<()> {
        for mount in mounts {
            mount.sync("visible")?;
        }
        Ok(())
    }

    fn print_logs(&self) {
        print_tail(&self.root.join("server.log"));
        for log in files::find(&self.root, 4, |path| path.extension().is_some_and(|ext| ext == "log")) {
            if log != self.root.join("server.log") {
                print_tail(&log);
            }
        }
    }
}

impl Drop for World {
    fn drop(&mut self) {
        self.lifelines.cut();
        self.server.kill9();
        process::end_below(&self.root);
        let left = process::detach_below(&self.root);
        if std::env::var_os("TIDEFS_KEEP").is_some() || !left.is_empty() {
            drop(writeln!(std::io::stderr(), "kept: {} {left:?}", self.root.display()));
            return;
        }
        files::remove_tree(&self.root);
    }
}

/// Prints the last lines of a log past the capture of the test harness' success output.
fn print_tail(log: &Path) {
    const LINES: usize = 40;
    let text = std::fs::read(log).unwrap_or_default();
    let text = String::from_utf8_lossy(&text);
    let lines: Vec<&str> = text.lines().collect();
    eprintln!("--- {} (last {LINES} lines)", log.display());
    for line in &lines[lines.len().saturating_sub(LINES)..] {
        eprintln!("{line}");
    }
}
