//! What a running mount answers on its control socket.

use crate::{exit::Exit, volume::Waiting};
use serde::{Deserialize, Serialize};
use std::{collections::BTreeMap, path::PathBuf, time::Duration};
use tidefs_timeline::Position;

/// How far work has come.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "snake_case")]
pub enum Level {
    /// In the write-ahead log, synced.
    Local,
    /// Placed and synced at the server.
    #[default]
    Server,
    /// Applied by the other mounts that are connected, their kernels told.
    Visible,
}

/// A mount that can be asked. Every future ends within the timeout it was given, by itself.
pub trait Controlled: Send + Sync + 'static {
    /// How the mount is; from memory, at once.
    fn status(&self) -> Status;
    /// Brings all that was written before the call to `level`.
    fn sync(&self, level: Level, timeout: Duration) -> Waiting<Result<Synced, ControlError>>;
    /// Waits until `position` is applied here and the kernel was told.
    fn wait(&self, position: Position, timeout: Duration) -> Waiting<Result<(), ControlError>>;
    /// Ships what can be shipped within the timeout (nothing with `discard`), then unmounts; the answer says what
    /// stays in the write-ahead log. Asked again while it is at it, the earlier deadline holds.
    fn leave(&self, timeout: Duration, discard: bool) -> Waiting<Left>;
}

/// How a mount is. One flat JSON object; names are only added to.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Status {
    /// Which mount it is.
    #[serde(flatten)]
    pub mount: MountIdentity,
    /// How it stands to the server.
    #[serde(flatten)]
    pub link: LinkStatus,
    /// What the server does not have yet.
    #[serde(flatten)]
    pub unsent: Unsent,
    /// Requests of the kernel since the start, by operation.
    pub requests: BTreeMap<String, u64>,
    /// What was agreed with the kernel.
    pub kernel: KernelStatus,
    /// How long things take.
    pub latency: Latency,
    /// What the user should know, one sentence each.
    pub warnings: Vec<String>,
}

/// Which mount it is.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct MountIdentity {
    /// The drive's name.
    pub drive: String,
    /// The session's name.
    pub session: String,
    /// The session's number.
    pub session_no: u32,
    /// Where it is mounted.
    pub mount_point: PathBuf,
    /// The server's URL.
    pub server: String,
    /// The process.
    pub pid: u32,
    /// Its state folder.
    pub state_dir: PathBuf,
}

/// How a mount stands to the server.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct LinkStatus {
    /// Whether the server answers.
    pub connected: bool,
    /// The position applied here.
    pub position: u64,
    /// The newest position known of.
    pub head: u64,
    /// The last thing that went wrong.
    pub last_error: Option<String>,
}

/// What the server does not have yet.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Unsent {
    /// Bytes.
    pub unsent_bytes: u64,
    /// Checkpoints, the open batch counted as one.
    pub unsent_checkpoints: u64,
    /// Age of the oldest change among them, in milliseconds; `None` when there is none.
    pub oldest_unsent_ms: Option<u64>,
}

/// What was agreed with the kernel.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct KernelStatus {
    /// Names of the features that are on.
    pub flags: Vec<String>,
    /// `passed`, or what the invalidation self-test found.
    pub self_test: String,
}

/// How long things take, in milliseconds; `None` before the first.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Latency {
    /// From a write elsewhere to its being visible here, half of them.
    pub write_to_visible_p50_ms: Option<f64>,
    /// The same, 99 of 100.
    pub write_to_visible_p99_ms: Option<f64>,
    /// From arrival to the kernel being told, half of them.
    pub apply_p50_ms: Option<f64>,
    /// The same, 99 of 100.
    pub apply_p99_ms: Option<f64>,
    /// From sealing to acknowledgement, half of them.
    pub ship_p50_ms: Option<f64>,
    /// The same, 99 of 100.
    pub ship_p99_ms: Option<f64>,
}

/// What a sync came to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Synced {
    /// The position that holds the work; the applied one when there was nothing to ship or the level is local.
    pub position: u64,
    /// Followers that were waited for at level visible.
    pub counted: u32,
    /// Followers that have not reported for 5 s and were not waited for.
    pub not_counted: u32,
}

/// What a mount that ended has left in its write-ahead log.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Left {
    /// Checkpoints, the open batch counted as one.
    pub unsent_checkpoints: u64,
    /// Bytes.
    pub unsent_bytes: u64,
}

impl Left {
    /// Whether nothing was left.
    pub fn is_clean(self) -> bool {
        self == Self::default()
    }
}

/// What kind of failure a mount reports.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ControlKind {
    /// The request makes no sense to this mount.
    Usage,
    /// The server does not answer.
    Unreachable,
    /// The deadline passed first.
    Deadline,
    /// Refused: version, busy.
    Refused,
    /// Anything else; also a kind that a later version made up.
    #[serde(other)]
    Failed,
}

/// Why a mount could not do what it was asked, in its own words.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[error("{message}")]
pub struct ControlError {
    /// What kind of failure.
    pub kind: ControlKind,
    /// What happened and what to do next.
    pub message: String,
}

impl ControlError {
    /// An error of `kind`.
    pub fn new(kind: ControlKind, message: impl Into<String>) -> Self {
        Self { kind, message: message.into() }
    }

    /// The status that a command ends with.
    pub fn exit_code(&self) -> Exit {
        match self.kind {
            ControlKind::Usage => Exit::Usage,
            ControlKind::Unreachable => Exit::Unreachable,
            ControlKind::Deadline => Exit::Deadline,
            ControlKind::Refused => Exit::Refused,
            ControlKind::Failed => Exit::Failed,
        }
    }
}
