//! The command line's words. The names are the interface; one that is not built yet is there and says so.

use super::size::{parse_duration, parse_octal, parse_size};
use crate::{config::FsyncLevel, control::api::Level};
use clap::{Args, Parser, Subcommand};
use std::{ffi::OsString, path::PathBuf, time::Duration};

/// A shared drive that many machines mount at once.
#[derive(Debug, Parser)]
#[command(name = "tidefs", version, propagate_version = true)]
pub struct Cli {
    /// What every command takes.
    #[command(flatten)]
    pub common: Common,
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// What every command takes.
#[derive(Clone, Debug, Args)]
pub struct Common {
    /// The server
    #[arg(
        long,
        global = true,
        value_name = "URL",
        env = "TIDEFS_SERVER",
        default_value = "http://127.0.0.1:7440"
    )]
    pub server: String,
    /// A file that holds the token to show to the server
    #[arg(long, global = true, value_name = "FILE", env = "TIDEFS_TOKEN_FILE")]
    pub token_file: Option<PathBuf>,
    /// Allow plain text to a server beyond this machine
    #[arg(long, global = true)]
    pub insecure: bool,
    /// Base folder of the state (else TIDEFS_STATE, /var/lib/tidefs as root, the XDG state folder)
    #[arg(long, global = true, value_name = "DIR")]
    pub state: Option<PathBuf>,
    /// Print one JSON object a line; errors too
    #[arg(long, global = true)]
    pub json: bool,
}

/// What to do.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Start a server and mount a drive, on this machine
    Up(UpArgs),
    /// Mount a drive
    Mount(MountArgs),
    /// Ship what is unsent and unmount
    Unmount(UnmountArgs),
    /// Wait until what was written has reached a level
    Sync(SyncArgs),
    /// Wait until a position is applied at a mount
    Wait(WaitArgs),
    /// How mounts are
    Status(StatusArgs),
    /// What was placed on a drive's timeline, newest first
    Log(LogArgs),
    /// Make, list, show and delete drives
    #[command(subcommand)]
    Drive(DriveCommand),
    /// Live view (not built yet)
    Top(NotBuilt),
    /// A file as it was at a position (not built yet)
    Cat(NotBuilt),
    /// What changed between positions (not built yet)
    Diff(NotBuilt),
    /// Bring back a path as it was (not built yet)
    Restore(NotBuilt),
    /// Take back a session's work (not built yet)
    Undo(NotBuilt),
    /// Writes that replaced what they had not seen (not built yet)
    Overlaps(NotBuilt),
    /// Print changes as they are placed (not built yet)
    Watch(NotBuilt),
    /// Named positions (not built yet)
    Snapshot(NotBuilt),
    /// Rules of a drive (not built yet)
    Policy(NotBuilt),
    /// Tokens (not built yet)
    Token(NotBuilt),
    /// What a state folder holds unsent (not built yet)
    Wal(NotBuilt),
    /// Runs a program that ends when the given parent does.
    #[command(hide = true, name = "tethered")]
    Tethered(TetheredArgs),
}

/// Anything, for a command that is not built yet.
#[derive(Debug, Args)]
#[command(disable_help_flag = true)]
pub struct NotBuilt {
    /// What it will take
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, hide = true)]
    pub rest: Vec<OsString>,
}

/// `tidefs up`
#[derive(Debug, Args)]
pub struct UpArgs {
    /// Where to mount; made if missing
    #[arg(required = true, value_name = "DIR")]
    pub dirs: Vec<PathBuf>,
    /// The server's data folder; kept (else `up-data` in the state's base folder)
    #[arg(long, value_name = "DIR")]
    pub data: Option<PathBuf>,
    /// The drive; made if missing
    #[arg(long, default_value = "main", value_name = "NAME")]
    pub drive: String,
    /// Run a shell command, then leave and end with its status
    #[arg(long, value_name = "CMD")]
    pub exec: Option<OsString>,
}

/// `tidefs mount`
#[derive(Clone, Debug, Args)]
pub struct MountArgs {
    /// The drive
    pub drive: String,
    /// Where to mount it: an empty directory
    pub dir: PathBuf,
    /// The session's name (else the mount point's last component)
    #[arg(long, value_name = "NAME")]
    pub session: Option<String>,
    /// When work is settled.
    #[command(flatten)]
    pub settle: SettleArgs,
    /// What fsync promises
    #[arg(long, value_enum, default_value = "local")]
    pub fsync: FsyncLevel,
    /// Bounds.
    #[command(flatten)]
    pub limits: LimitArgs,
    /// Refuse every change
    #[arg(long)]
    pub read_only: bool,
    /// Past states.
    #[command(flatten)]
    pub at: AtArgs,
    /// Owners.
    #[command(flatten)]
    pub owner: OwnerArgs,
    /// Keep other users out
    #[arg(long)]
    pub no_allow_other: bool,
    /// How it runs.
    #[command(flatten)]
    pub run: RunArgs,
}

/// When work is settled.
#[derive(Clone, Debug, Args)]
pub struct SettleArgs {
    /// Quiet time after which changes are shipped
    #[arg(long, default_value = "1s", value_parser = parse_duration, value_name = "TIME")]
    pub settle: Duration,
    /// The same after a rename over a file or an fsync
    #[arg(long, default_value = "100ms", value_parser = parse_duration, value_name = "TIME")]
    pub signal_settle: Duration,
    /// Longest time that a change waits
    #[arg(long, default_value = "5s", value_parser = parse_duration, value_name = "TIME")]
    pub max_delay: Duration,
}

/// Bounds.
#[derive(Clone, Debug, Args)]
pub struct LimitArgs {
    /// Most unsent bytes kept
    #[arg(long, default_value = "10GiB", value_parser = parse_size, value_name = "SIZE")]
    pub wal_limit: u64,
    /// Most bytes of content kept that the server has too
    #[arg(long, default_value = "10GiB", value_parser = parse_size, value_name = "SIZE")]
    pub cache_limit: u64,
    /// Most memory used (not built yet)
    #[arg(long, value_parser = parse_size, value_name = "SIZE")]
    pub memory_limit: Option<u64>,
}

/// Past states.
#[derive(Clone, Debug, Args)]
pub struct AtArgs {
    /// Show the drive as it was (not built yet)
    #[arg(long, value_name = "POSITION|SNAPSHOT")]
    pub at: Option<String>,
    /// Be usable only once this position is applied (not built yet)
    #[arg(long, value_name = "POSITION")]
    pub at_least: Option<u64>,
}

/// Owners.
#[derive(Clone, Debug, Args)]
pub struct OwnerArgs {
    /// Show this user as every node's owner (not built yet)
    #[arg(long)]
    pub uid: Option<u32>,
    /// Show this group as every node's group (not built yet)
    #[arg(long)]
    pub gid: Option<u32>,
    /// Take these permission bits away, in octal (not built yet)
    #[arg(long, value_parser = parse_octal, value_name = "OCTAL")]
    pub umask: Option<u32>,
}

/// How it runs.
#[derive(Clone, Debug, Args)]
pub struct RunArgs {
    /// Stay in the foreground, log to standard error
    #[arg(long)]
    pub foreground: bool,
    /// A process of its own session that logs to its state folder and speaks JSON to whoever started it.
    #[arg(long, hide = true, requires = "foreground")]
    pub detached: bool,
}

/// `tidefs unmount`
#[derive(Debug, Args)]
pub struct UnmountArgs {
    /// The mount point
    pub dir: PathBuf,
    /// How long to ship what is unsent
    #[arg(long, default_value = "30s", value_parser = parse_duration, value_name = "TIME")]
    pub timeout: Duration,
    /// Throw away what is unsent
    #[arg(long)]
    pub discard: bool,
}

/// `tidefs sync`
#[derive(Debug, Args)]
pub struct SyncArgs {
    /// A path in a mount (else every mount of this machine)
    pub path: Option<PathBuf>,
    /// How far
    #[arg(long, value_enum, default_value = "server")]
    pub level: Level,
    /// How long to wait
    #[arg(long, default_value = "60s", value_parser = parse_duration, value_name = "TIME")]
    pub timeout: Duration,
}

/// `tidefs wait`
#[derive(Debug, Args)]
pub struct WaitArgs {
    /// The position
    pub position: u64,
    /// A path in the mount
    pub dir: PathBuf,
    /// How long to wait
    #[arg(long, default_value = "60s", value_parser = parse_duration, value_name = "TIME")]
    pub timeout: Duration,
}

/// `tidefs status`
#[derive(Debug, Args)]
pub struct StatusArgs {
    /// A path in a mount (else all mounts of this machine)
    pub path: Option<PathBuf>,
}

/// `tidefs log`
#[derive(Debug, Args)]
pub struct LogArgs {
    /// A path in a mount, or DRIVE:/path (else the mount of the current folder, or the only one)
    pub path: Option<PathBuf>,
    /// How many checkpoints; 0 for all
    #[arg(short = 'n', default_value_t = 20, value_name = "N")]
    pub count: u32,
    /// Go on with what is placed from now on (not built yet)
    #[arg(long)]
    pub follow: bool,
}

/// `tidefs drive`
#[derive(Debug, Subcommand)]
pub enum DriveCommand {
    /// Make a drive
    Create {
        /// Its name
        name: String,
        /// Be content if it is there
        #[arg(long)]
        exist_ok: bool,
    },
    /// All drives
    List,
    /// One drive
    Show {
        /// Its name
        name: String,
    },
    /// Delete a drive with all its history
    Delete {
        /// Its name
        name: String,
    },
}

/// `tidefs tethered`
#[derive(Debug, Args)]
pub struct TetheredArgs {
    /// The process whose end ends this one
    pub parent: u32,
    /// The program and its arguments
    #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true)]
    pub program: Vec<OsString>,
}
