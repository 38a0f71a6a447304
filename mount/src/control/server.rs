//! The mount's side of the control socket.

use super::{
    api::{ControlError, ControlKind, Controlled},
    line::{LineError, read_line},
    socket::SocketPath,
    wire::{self, Call},
};
use serde_json::Value;
use std::{
    io,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};
use tidefs_timeline::Position;
use tokio::{
    io::{AsyncWriteExt, BufReader},
    net::{UnixListener, UnixStream},
    sync::watch,
    task::{JoinHandle, JoinSet},
    time::timeout,
};

/// Clients served at a time; one more is told that the mount is busy.
const CLIENTS_MAX: usize = 16;
/// How long a client may be silent, or not take its reply.
const IDLE_MAX: Duration = Duration::from_secs(30);
/// How long after a call's own deadline its answer is still waited for.
const GRACE: Duration = Duration::from_secs(5);
/// How long a stopping server waits for replies under way.
const STOP_MAX: Duration = Duration::from_secs(2);

/// Why the control socket could not be made.
#[derive(Debug, thiserror::Error)]
#[error("cannot make the control socket in {}: {source}; is the folder writable?", state_dir.display())]
pub struct ControlServerError {
    /// The state folder.
    pub state_dir: PathBuf,
    /// What the system says.
    pub source: io::Error,
}

/// A control socket that is served until it is stopped or dropped.
pub struct ControlServer {
    socket: SocketPath,
    stop: watch::Sender<bool>,
    task: JoinHandle<()>,
}

impl ControlServer {
    /// Makes `control.sock` (0600) in the state folder and serves `mount` on it. The caller holds the folder's
    /// lock, so a socket that is there is a dead process's and is replaced.
    pub fn start(state_dir: &Path, mount: Arc<dyn Controlled>) -> Result<Self, ControlServerError> {
        let failed = |source| ControlServerError { state_dir: state_dir.to_owned(), source };
        let socket = SocketPath::of(state_dir).map_err(failed)?;
        let listener = bind(socket.path()).map_err(failed)?;
        let (stop, stopped) = watch::channel(false);
        let task = tokio::spawn(accept(listener, mount, stopped));
        Ok(Self { socket, stop, task })
    }

    /// Takes no more calls, lets the replies under way go out (at most 2 s), and removes the socket. To be
    /// awaited before the process ends, or the one who asked it to leave gets no answer.
    pub async fn stop(mut self) {
        self.stop.send_replace(true);
        if timeout(STOP_MAX, &mut self.task).await.is_err() {
            self.task.abort();
        }
    }
}

impl Drop for ControlServer {
    fn drop(&mut self) {
        self.task.abort();
        // Left behind it does no harm: the next mount replaces it, and connecting to it is refused.
        let _gone = std::fs::remove_file(self.socket.path());
    }
}

fn bind(path: &Path) -> io::Result<UnixListener> {
    match std::fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let listener = UnixListener::bind(path)?;
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o600))?;
    Ok(listener)
}

async fn accept(listener: UnixListener, mount: Arc<dyn Controlled>, mut stop: watch::Receiver<bool>) {
    let mut clients = JoinSet::new();
    let for_clients = stop.clone();
    loop {
        tokio::select! {
            () = stopping(&mut stop) => break,
            Some(_) = clients.join_next(), if !clients.is_empty() => {}
            accepted = listener.accept() => match accepted {
                Ok((stream, _)) if clients.len() < CLIENTS_MAX => {
                    clients.spawn(serve(stream, mount.clone(), for_clients.clone()));
                }
                Ok((stream, _)) => turn_away(&stream),
                Err(error) => {
                    // Out of descriptors, most likely: pausing keeps the loop from spinning.
                    tracing::warn!(%error, "control socket: cannot accept");
                    tokio::time::sleep(Duration::from_millis(100)).await;
                }
            },
        }
    }
    while clients.join_next().await.is_some() {}
}

async fn stopping(stop: &mut watch::Receiver<bool>) {
    // An error means that the server is gone, which is the same.
    let _stopped = stop.wait_for(|stop| *stop).await;
}

fn turn_away(stream: &UnixStream) {
    let busy = ControlError::new(ControlKind::Refused, "too many commands ask this mount at once: try again");
    // A fresh socket has room for a line; if not, the client sees the end of the stream.
    let _sent = stream.try_write(&wire::encode_reply(Err(busy)));
}

async fn serve(stream: UnixStream, mount: Arc<dyn Controlled>, mut stop: watch::Receiver<bool>) {
    let (from, mut to) = stream.into_split();
    let mut from = BufReader::new(from);
    loop {
        let line = tokio::select! {
            () = stopping(&mut stop) => return,
            line = timeout(IDLE_MAX, read_line(&mut from, wire::REQUEST_BYTES_MAX)) => line,
        };
        let (reply, last) = match line {
            Ok(Ok(Some(line))) => (answer(&line, mount.as_ref()).await, false),
            Ok(Err(error @ LineError::TooLong { .. })) => (
                Err(ControlError::new(ControlKind::Usage, format!("control request refused: {error}"))),
                true,
            ),
            Ok(Ok(None) | Err(LineError::Io(_))) | Err(_) => return,
        };
        let sent = timeout(IDLE_MAX, to.write_all(&wire::encode_reply(reply))).await;
        if last || !matches!(sent, Ok(Ok(()))) {
            return;
        }
    }
}

async fn answer(line: &[u8], mount: &dyn Controlled) -> Result<Value, ControlError> {
    let call = wire::decode_call(line)?;
    let deadline = Duration::from_millis(call.timeout_ms());
    match timeout(deadline + GRACE, perform(call, deadline, mount)).await {
        Ok(reply) => reply,
        Err(_) => Err(ControlError::new(
            ControlKind::Deadline,
            format!("no answer within {}: see `tidefs status`", humantime::format_duration(deadline)),
        )),
    }
}

async fn perform(call: Call, deadline: Duration, mount: &dyn Controlled) -> Result<Value, ControlError> {
    match call {
        Call::Status => json(&mount.status()),
        Call::Sync { level, .. } => json(&mount.sync(level, deadline).await?),
        Call::Wait { position, .. } => json(&mount.wait(Position(position), deadline).await?),
        Call::Leave { discard, .. } => json(&mount.leave(deadline, discard).await),
    }
}

fn json<T: serde::Serialize>(value: &T) -> Result<Value, ControlError> {
    serde_json::to_value(value).map_err(|e| ControlError::new(ControlKind::Failed, format!("no reply: {e}")))
}
