//! The command line's side of the control socket.

use super::{
    api::{ControlError, Left, Level, Status, Synced},
    line::{LineError, read_line},
    socket::SocketPath,
    wire::{self, Call},
};
use crate::exit::Exit;
use serde::de::DeserializeOwned;
use std::{
    io,
    path::{Path, PathBuf},
    time::Duration,
};
use tidefs_timeline::Position;
use tokio::{
    io::{AsyncWriteExt, BufReader},
    net::UnixStream,
    time::timeout,
};

/// How long a mount may take beyond a call's own deadline before the client gives up.
const GRACE: Duration = Duration::from_secs(10);
/// How long a status may take.
const STATUS_MAX: Duration = Duration::from_secs(5);

/// Why a mount did not do what it was asked.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// No process serves the socket.
    #[error("no process answers for the mount in {}: {source}", state_dir.display())]
    NotRunning {
        /// The state folder.
        state_dir: PathBuf,
        /// What the system says.
        source: io::Error,
    },
    /// The process is there and does not answer.
    #[error("the mount in {} does not answer within {waited:?}: see mount.log there", state_dir.display())]
    Silent {
        /// The state folder.
        state_dir: PathBuf,
        /// How long it was waited for.
        waited: Duration,
    },
    /// What it said is no reply.
    #[error("the mount in {} gave no proper reply: {why}; see mount.log there", state_dir.display())]
    BadReply {
        /// The state folder.
        state_dir: PathBuf,
        /// What is wrong with it.
        why: String,
    },
    /// It says why not.
    #[error(transparent)]
    Refused(#[from] ControlError),
}

impl ClientError {
    /// The status that a command ends with.
    pub fn exit_code(&self) -> Exit {
        match self {
            Self::NotRunning { .. } => Exit::NotFound,
            Self::Silent { .. } => Exit::Deadline,
            Self::BadReply { .. } => Exit::Failed,
            Self::Refused(error) => error.exit_code(),
        }
    }
}

/// A running mount, by its state folder.
#[derive(Clone, Debug)]
pub struct ControlClient {
    state_dir: PathBuf,
}

impl ControlClient {
    /// The mount whose state folder this is; nothing is opened yet.
    pub fn new(state_dir: &Path) -> Self {
        Self { state_dir: state_dir.to_owned() }
    }

    /// How the mount is.
    pub async fn status(&self) -> Result<Status, ClientError> {
        self.call(Call::Status, STATUS_MAX).await
    }

    /// Brings what was written to `level`.
    pub async fn sync(&self, level: Level, deadline: Duration) -> Result<Synced, ClientError> {
        self.call(Call::Sync { level, timeout_ms: ms(deadline) }, deadline + GRACE).await
    }

    /// Waits until `position` is applied.
    pub async fn wait(&self, position: Position, deadline: Duration) -> Result<(), ClientError> {
        self.call(Call::Wait { position: position.0, timeout_ms: ms(deadline) }, deadline + GRACE).await
    }

    /// Ships within the deadline and unmounts.
    pub async fn leave(&self, deadline: Duration, discard: bool) -> Result<Left, ClientError> {
        self.call(Call::Leave { timeout_ms: ms(deadline), discard }, deadline + GRACE).await
    }

    async fn call<T: DeserializeOwned>(&self, call: Call, waited: Duration) -> Result<T, ClientError> {
        let state_dir = || self.state_dir.clone();
        let reply = timeout(waited, self.exchange(call))
            .await
            .map_err(|_| ClientError::Silent { state_dir: state_dir(), waited })??;
        let bad = |e: serde_json::Error| ClientError::BadReply { state_dir: state_dir(), why: e.to_string() };
        let answer = wire::decode_reply(&reply).map_err(bad)??;
        serde_json::from_value(answer).map_err(bad)
    }

    async fn exchange(&self, call: Call) -> Result<Vec<u8>, ClientError> {
        let bad = |why: String| ClientError::BadReply { state_dir: self.state_dir.clone(), why };
        let mut stream = self.connect().await?;
        let request = wire::encode_call(call).map_err(|e| bad(e.to_string()))?;
        // A mount that turns a client away replies without reading, so a failed send is no answer yet.
        let sent = stream.write_all(&request).await;
        let mut from = BufReader::new(stream);
        match (read_line(&mut from, wire::REPLY_BYTES_MAX).await, sent) {
            (Ok(Some(line)), _) => Ok(line),
            (Ok(None), Ok(())) => Err(bad("it ended before it replied".to_owned())),
            (Ok(None), Err(error)) => Err(bad(error.to_string())),
            (Err(LineError::Io(error)), _) => Err(bad(error.to_string())),
            (Err(error), _) => Err(bad(error.to_string())),
        }
    }

    async fn connect(&self) -> Result<UnixStream, ClientError> {
        let failed = |source| ClientError::NotRunning { state_dir: self.state_dir.clone(), source };
        let socket = SocketPath::of(&self.state_dir).map_err(failed)?;
        UnixStream::connect(socket.path()).await.map_err(failed)
    }
}

fn ms(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX).min(wire::TIMEOUT_MS_MAX)
}
