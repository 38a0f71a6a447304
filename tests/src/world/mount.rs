//! One mount of the world's drive, as a session of its own.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use rustix::process::Pid;
use serde_json::Value;

use super::lifeline::Lifelines;
use super::{COMMAND_LIMIT, DRIVE, Ran, World, files, process, wait};

/// A mount; dropping it kills its process and detaches it.
pub struct Mount {
    session: String,
    dir: PathBuf,
    state: PathBuf,
    program: PathBuf,
    url: String,
    args: Vec<String>,
    pid: Option<Pid>,
    lifelines: Lifelines,
}

impl Mount {
    pub(super) fn start(world: &World, session: &str, args: &[&str]) -> Result<Self> {
        let dir = world.root().join("mnt").join(session);
        std::fs::create_dir_all(&dir)?;
        let mut mount = Self {
            session: session.to_owned(),
            dir,
            state: world.root().join(format!("state-{session}")),
            program: world.bins().tidefs(),
            url: world.url(),
            args: args.iter().map(|&arg| arg.to_owned()).collect(),
            pid: None,
            lifelines: world.lifelines.clone(),
        };
        mount.remount()?;
        Ok(mount)
    }

    /// Where the drive is mounted.
    #[must_use]
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// A path in the mount.
    #[must_use]
    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.join(name)
    }

    /// The mount point as an argument.
    #[must_use]
    pub fn path_text(&self) -> String {
        self.dir.display().to_string()
    }

    /// The session's name.
    #[must_use]
    pub fn session(&self) -> &str {
        &self.session
    }

    /// The base state folder given as `--state`.
    #[must_use]
    pub fn state(&self) -> &Path {
        &self.state
    }

    /// The process that serves the mount.
    ///
    /// # Errors
    /// It was killed or unmounted.
    pub fn pid(&self) -> Result<Pid> {
        self.pid.with_context(|| format!("{} is not mounted", self.session))
    }

    /// Writes a whole file in place: open with truncation, write, close.
    ///
    /// # Errors
    /// Those of the file system, with the path.
    pub fn write(&self, name: &str, content: impl AsRef<[u8]>) -> Result<()> {
        files::write(&self.path(name), content.as_ref())
    }

    /// Reads a whole file.
    ///
    /// # Errors
    /// Those of the file system, with the path.
    pub fn read(&self, name: &str) -> Result<Vec<u8>> {
        files::read(&self.path(name))
    }

    /// Appends to a file with one call.
    ///
    /// # Errors
    /// Those of the file system, with the path.
    pub fn append(&self, name: &str, content: impl AsRef<[u8]>) -> Result<()> {
        files::append(&self.path(name), content.as_ref())
    }

    /// Saves as an editor does: temporary file beside it, fsync, rename over it.
    ///
    /// # Errors
    /// Those of the file system, with the path.
    pub fn save_by_rename(&self, name: &str, temp: &str, content: impl AsRef<[u8]>) -> Result<()> {
        files::save_by_rename(&self.path(name), &self.path(temp), content.as_ref())
    }

    /// The names in a directory, sorted.
    ///
    /// # Errors
    /// Those of the file system, with the path.
    pub fn names(&self, name: &str) -> Result<Vec<String>> {
        files::names(&self.path(name))
    }

    /// True when the path has something at it.
    ///
    /// # Errors
    /// Any failure other than "not found".
    pub fn exists(&self, name: &str) -> Result<bool> {
        self.path(name).try_exists().with_context(|| self.path(name).display().to_string())
    }

    /// Waits until the file's content satisfies `good`; for changes that only time brings.
    ///
    /// # Errors
    /// It does not within `limit`.
    pub fn wait_for(&self, name: &str, limit: Duration, mut good: impl FnMut(&[u8]) -> bool) -> Result<()> {
        let path = self.path(name);
        let what = format!("{} to become right on {}", path.display(), self.session);
        wait::until(&what, limit, || Ok(std::fs::read(&path).is_ok_and(|content| good(&content))))
    }

    /// Everything in the mount's log reaches `level` (`local`, `server`, `visible`).
    ///
    /// # Errors
    /// The command fails.
    pub fn sync(&self, level: &str) -> Result<()> {
        self.tidefs(&["sync", &self.path_text(), "--level", level])?.ok()?;
        Ok(())
    }

    /// What `tidefs status --json` says of this mount.
    ///
    /// # Errors
    /// The command fails or prints no JSON object.
    pub fn status(&self) -> Result<Value> {
        let ran = self.tidefs(&["status", &self.path_text(), "--json"])?.ok()?;
        ran.json()?.into_iter().next().with_context(|| format!("`{}` printed nothing", ran.command))
    }

    /// How many requests of one kind the kernel has sent to this mount.
    ///
    /// # Errors
    /// The status has no such counters.
    pub fn requests(&self, kinds: &[&str]) -> Result<u64> {
        let status = self.status()?;
        let counters = status["requests"].as_object().context("the status has no request counters")?;
        Ok(kinds.iter().filter_map(|kind| counters.get(*kind)?.as_u64()).sum())
    }

    /// Runs `tidefs ARGS` with this mount's state folder and server.
    ///
    /// # Errors
    /// It cannot be run or does not end in time. A bad status is in the result.
    pub fn tidefs(&self, args: &[&str]) -> Result<Ran> {
        process::run(&mut self.command(args), COMMAND_LIMIT)
    }

    /// The command line that [`Mount::remount`] runs.
    #[must_use]
    pub fn mount_command(&self) -> Command {
        let mut command = self.command(&["mount", DRIVE, &self.path_text(), "--session", &self.session]);
        command.arg("--server").arg(&self.url).arg("--state").arg(&self.state).args(&self.args);
        command
    }

    /// Kills the mount's process. The dead mount point stays, as it would after a crash.
    ///
    /// # Errors
    /// It is not mounted.
    pub fn kill9(&mut self) -> Result<()> {
        let pid = self.pid()?;
        self.pid = None;
        self.lifelines.clear(&self.dir);
        process::kill9(pid);
        Ok(())
    }

    /// Runs the same mount command line again; a dead mount point is the product's to clear.
    ///
    /// # Errors
    /// It is still mounted, or the command fails.
    pub fn remount(&mut self) -> Result<()> {
        ensure!(self.pid.is_none(), "{} is still mounted", self.session);
        process::run(&mut self.mount_command(), COMMAND_LIMIT)?.ok()?;
        let pid = self.find_pid()?;
        self.pid = Some(pid);
        self.lifelines.set(&self.dir, pid);
        Ok(())
    }

    /// Unmounts in the orderly way: ships what is there, then the process ends.
    ///
    /// # Errors
    /// The command fails, or the process outlives it.
    pub fn unmount(&mut self) -> Result<()> {
        self.unmount_with(&[])?.ok()?;
        Ok(())
    }

    /// `tidefs unmount` with further arguments; its status is the result, the mount counts as gone.
    ///
    /// # Errors
    /// The command cannot be run, or the process outlives it.
    pub fn unmount_with(&mut self, args: &[&str]) -> Result<Ran> {
        let pid = self.pid()?;
        let dir = self.path_text();
        let ran = self.tidefs(&[&["unmount", dir.as_str()], args].concat())?;
        if !process::wait_exit(pid, Duration::from_secs(5))? {
            bail!("the process outlives `{}`, which ended with {:?}", ran.command, ran.code);
        }
        self.pid = None;
        self.lifelines.clear(&self.dir);
        Ok(ran)
    }

    fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(&self.program);
        command.args(args).env("TIDEFS_SERVER", &self.url).env("TIDEFS_STATE", &self.state);
        command
    }

    /// The state folder names the process; it is believed only when it is one of ours.
    fn find_pid(&self) -> Result<Pid> {
        let found = files::find(&self.state, 2, |path| path.ends_with("mount.json"));
        let file = found.first().with_context(|| format!("no mount.json below {}", self.state.display()))?;
        let value: Value = serde_json::from_slice(&files::read(file)?)
            .with_context(|| format!("{} is not JSON", file.display()))?;
        let number = value["pid"].as_i64().and_then(|pid| i32::try_from(pid).ok()).and_then(Pid::from_raw);
        let pid = number.with_context(|| format!("no pid in {}", file.display()))?;
        let name = std::fs::read_to_string(format!("/proc/{}/comm", pid.as_raw_nonzero()))
            .with_context(|| format!("{} names a process that is gone", file.display()))?;
        ensure!(name.starts_with("tidefs"), "{} names a foreign process: {name}", file.display());
        Ok(pid)
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        if let Some(pid) = self.pid.take() {
            process::kill9(pid);
        }
        self.lifelines.clear(&self.dir);
        process::detach(&self.dir);
    }
}
