//! The two small files of a state folder. Each is replaced whole: temporary file, fsync, rename, fsync of the
//! folder; a reader sees the old one or the new one.

use super::StateError;
use crate::control::api::Left;
use serde::{Deserialize, Deserializer, Serialize, Serializer, de::DeserializeOwned, de::Error as _};
use std::{
    fs::{File, OpenOptions},
    io::{ErrorKind, Read, Write},
    os::unix::fs::OpenOptionsExt,
    path::{Path, PathBuf},
};

/// Largest state file that is read, in bytes.
const FILE_BYTES_MAX: u64 = 64 << 10;

/// `mount.json`: what is mounted with this state folder, or was last.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct MountFile {
    /// The process.
    pub pid: u32,
    /// The drive's name.
    pub drive: String,
    /// Where it is mounted, the parent without symlinks (as mountinfo shows it).
    pub mount_point: PathBuf,
    /// The same as it was given, made absolute by text.
    pub named: PathBuf,
    /// The server's URL.
    pub server: String,
    /// The session's name.
    pub session: String,
    /// When the process started, milliseconds since 1970.
    pub started_unix_ms: u64,
    /// The control socket.
    pub control_socket: PathBuf,
    /// Whether the mount has become usable.
    pub ready: bool,
    /// What the last process left; `None` while it runs and when it was killed.
    #[serde(default)]
    pub left: Option<Left>,
    /// How it was mounted.
    #[serde(default)]
    pub config: serde_json::Value,
}

impl MountFile {
    const NAME: &str = "mount.json";

    /// Reads it; `None` if there is none.
    pub fn load(state_dir: &Path) -> Result<Option<Self>, StateError> {
        load(&state_dir.join(Self::NAME))
    }

    /// Writes it durably.
    pub fn store(&self, state_dir: &Path) -> Result<(), StateError> {
        store(state_dir, Self::NAME, self)
    }
}

/// `session.json`: who this mount is to the server. Stored before an incarnation is used, so that a copied folder
/// is noticed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SessionFile {
    /// 16 random bytes that name the session, made here.
    #[serde(serialize_with = "to_hex", deserialize_with = "from_hex")]
    pub session_id: [u8; 16],
    /// Its name at the server.
    pub session_name: String,
    /// Its number in the drive; 0 before the first attach.
    pub session_no: u32,
    /// Its incarnation, exchanged at each attach; 0 before the first.
    pub incarnation: u64,
    /// The one that is being exchanged for it; 0 while none is. Kept until the answer is in, so that an answer
    /// that was lost can be asked for again.
    #[serde(default)]
    pub next_incarnation: u64,
    /// The drive; zeros before the first attach.
    #[serde(serialize_with = "to_hex", deserialize_with = "from_hex")]
    pub drive_id: [u8; 16],
    /// The drive's history; zeros before the first attach.
    #[serde(serialize_with = "to_hex", deserialize_with = "from_hex")]
    pub history: [u8; 16],
}

impl SessionFile {
    const NAME: &str = "session.json";

    /// Reads it; `None` if there is none.
    pub fn load(state_dir: &Path) -> Result<Option<Self>, StateError> {
        load(&state_dir.join(Self::NAME))
    }

    /// Writes it durably.
    pub fn store(&self, state_dir: &Path) -> Result<(), StateError> {
        store(state_dir, Self::NAME, self)
    }
}

/// Bytes as hex digits.
pub fn hex(bytes: &[u8]) -> String {
    use std::fmt::Write as _;
    bytes.iter().fold(String::new(), |mut text, byte| {
        // Writing to a String cannot fail.
        let _written = write!(text, "{byte:02x}");
        text
    })
}

fn to_hex<S: Serializer>(bytes: &[u8; 16], to: S) -> Result<S::Ok, S::Error> {
    to.serialize_str(&hex(bytes))
}

fn from_hex<'de, D: Deserializer<'de>>(from: D) -> Result<[u8; 16], D::Error> {
    let text = String::deserialize(from)?;
    if text.len() != 32 || !text.bytes().all(|b| b.is_ascii_hexdigit()) {
        return Err(D::Error::custom("not 32 hex digits"));
    }
    u128::from_str_radix(&text, 16).map(u128::to_be_bytes).map_err(D::Error::custom)
}

fn load<T: DeserializeOwned>(path: &Path) -> Result<Option<T>, StateError> {
    let file = match File::open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(StateError::io("open", path, error)),
    };
    let mut bytes = Vec::new();
    file.take(FILE_BYTES_MAX + 1).read_to_end(&mut bytes).map_err(|e| StateError::io("read", path, e))?;
    let damaged = |why: String| StateError::Damaged { path: path.to_owned(), why };
    if bytes.len() as u64 > FILE_BYTES_MAX {
        return Err(damaged(format!("it is longer than {FILE_BYTES_MAX} bytes")));
    }
    serde_json::from_slice(&bytes).map(Some).map_err(|e| damaged(e.to_string()))
}

fn store<T: Serialize>(folder: &Path, name: &str, value: &T) -> Result<(), StateError> {
    let path = folder.join(name);
    let mut bytes = serde_json::to_vec_pretty(value)
        .map_err(|e| StateError::Damaged { path: path.clone(), why: e.to_string() })?;
    bytes.push(b'\n');
    let temp = folder.join(format!("{name}.new"));
    let failed = |what, path: &Path| {
        let path = path.to_owned();
        move |source| StateError::Io { what, path, source }
    };
    let mut file = OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(true)
        .mode(0o600)
        .open(&temp)
        .map_err(failed("create", &temp))?;
    file.write_all(&bytes).map_err(failed("write", &temp))?;
    file.sync_all().map_err(failed("sync", &temp))?;
    std::fs::rename(&temp, &path).map_err(failed("rename", &temp))?;
    File::open(folder).and_then(|dir| dir.sync_all()).map_err(failed("sync", folder))
}
