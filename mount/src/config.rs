//! All that a mount is told when it starts, checked once, on the command line's side.

use serde::{Serialize, Serializer};
use std::{path::PathBuf, time::Duration};

/// One mount of one drive.
#[derive(Clone, Debug, Serialize)]
pub struct MountConfig {
    /// The drive's name.
    pub drive: String,
    /// Where it is mounted: absolute, its parent without symlinks.
    pub dir: PathBuf,
    /// Where the server is and how to speak to it.
    pub server: ServerAddress,
    /// The session's name if one was asked for; else see [`MountConfig::session_name`].
    pub session: Option<String>,
    /// When work is cut into a checkpoint.
    pub settle: SettleConfig,
    /// What `fsync` promises.
    pub fsync: FsyncLevel,
    /// Bounds on disk and memory.
    pub limits: Limits,
    /// Whether every change is refused with EROFS.
    pub read_only: bool,
    /// This mount's own state folder (not the base); it exists and is locked by this process.
    pub state_dir: PathBuf,
    /// Owner and permission bits shown instead of the stored ones.
    pub owner: OwnerMap,
    /// Whether other users than the one who mounts may come in.
    pub allow_other: bool,
}

impl MountConfig {
    /// The name that the session asks for: the given one, else the mount point's last component. At most 64
    /// bytes of letters, digits, `.`, `_` and `-`.
    pub fn session_name(&self) -> String {
        match &self.session {
            Some(name) => name.clone(),
            None => slug(&self.dir.file_name().unwrap_or_default().to_string_lossy(), 48),
        }
    }
}

/// Where the server is and how to speak to it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ServerAddress {
    /// `http://HOST:PORT`, checked: loopback, or plain text was allowed by `--insecure`.
    pub url: String,
    /// The token from `--token-file`; never written to the state folder.
    #[serde(skip)]
    pub token: Option<String>,
}

/// When work is cut into a checkpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct SettleConfig {
    /// Quiet time after which changes are settled.
    #[serde(rename = "settle_ms", serialize_with = "as_ms")]
    pub settle: Duration,
    /// Quiet time after a rename over a file or an fsync.
    #[serde(rename = "signal_settle_ms", serialize_with = "as_ms")]
    pub signal_settle: Duration,
    /// Age at which the oldest change is cut however busy its path is.
    #[serde(rename = "max_delay_ms", serialize_with = "as_ms")]
    pub max_delay: Duration,
}

impl Default for SettleConfig {
    fn default() -> Self {
        Self {
            settle: Duration::from_secs(1),
            signal_settle: Duration::from_millis(100),
            max_delay: Duration::from_secs(5),
        }
    }
}

/// What `fsync` promises when it returns.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, clap::ValueEnum)]
#[serde(rename_all = "snake_case")]
pub enum FsyncLevel {
    /// In the write-ahead log, synced.
    #[default]
    Local,
    /// Placed and synced at the server.
    Server,
}

/// Bounds of one mount.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Limits {
    /// Most unsent bytes in the write-ahead log.
    pub wal_bytes: u64,
    /// Most bytes of content kept that the server has too.
    pub cache_bytes: u64,
}

/// Owner and permission bits shown instead of the stored ones; `None` shows what is stored.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct OwnerMap {
    /// Every node's user.
    pub uid: Option<u32>,
    /// Every node's group.
    pub gid: Option<u32>,
    /// Permission bits that are taken away.
    pub umask: Option<u32>,
}

/// `text` as a short name that is safe in a file name: other characters become `-`, never empty, never starting
/// with a dot or a dash.
pub fn slug(text: &str, chars_max: usize) -> String {
    let plain: String = text
        .chars()
        .map(|c| if c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-') { c } else { '-' })
        .collect();
    let short: String = plain.trim_start_matches(['.', '-']).chars().take(chars_max).collect();
    if short.is_empty() { "mount".to_owned() } else { short }
}

fn as_ms<S: Serializer>(value: &Duration, to: S) -> Result<S::Ok, S::Error> {
    to.serialize_u64(u64::try_from(value.as_millis()).unwrap_or(u64::MAX))
}
