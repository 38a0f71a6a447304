//! The socket with a mount that only pretends.

use super::{
    api::{ControlError, ControlKind, Controlled, Left, Level, Status, Synced},
    client::{ClientError, ControlClient},
    line::{LineError, read_line},
    server::ControlServer,
    wire,
};
use crate::{exit::Exit, volume::Waiting};
use parking_lot::Mutex;
use std::{
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};
use tidefs_timeline::Position;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt, BufReader},
    net::UnixStream,
    sync::Notify,
};

#[derive(Default)]
struct Fake {
    calls: Mutex<Vec<String>>,
    arrived: Notify,
    release: Arc<Notify>,
}

impl Controlled for Fake {
    fn status(&self) -> Status {
        let mut status = Status::default();
        status.mount.drive = "main".into();
        status.mount.mount_point = PathBuf::from("/mnt/a");
        status.unsent.oldest_unsent_ms = Some(12);
        status.requests.insert("lookup".into(), 3);
        status.latency.write_to_visible_p50_ms = Some(1.5);
        status
    }

    fn sync(&self, level: Level, timeout: Duration) -> Waiting<Result<Synced, ControlError>> {
        self.calls.lock().push(format!("sync {level:?} {timeout:?}"));
        Box::pin(async move {
            match level {
                Level::Local => Ok(Synced { position: 4, counted: 0, not_counted: 0 }),
                Level::Server => Err(ControlError::new(ControlKind::Unreachable, "the server is away")),
                Level::Visible => Ok(Synced { position: 5, counted: 2, not_counted: 1 }),
            }
        })
    }

    fn wait(&self, position: Position, _timeout: Duration) -> Waiting<Result<(), ControlError>> {
        self.calls.lock().push(format!("wait {}", position.0));
        self.arrived.notify_one();
        let release = self.release.clone();
        Box::pin(async move {
            release.notified().await;
            Ok(())
        })
    }

    fn leave(&self, timeout: Duration, discard: bool) -> Waiting<Left> {
        self.calls.lock().push(format!("leave {timeout:?} {discard}"));
        Box::pin(async { Left { unsent_checkpoints: 1, unsent_bytes: 9 } })
    }
}

struct World {
    folder: tempfile::TempDir,
    fake: Arc<Fake>,
    server: ControlServer,
}

fn world() -> World {
    let folder = tempfile::tempdir().unwrap();
    let fake = Arc::new(Fake::default());
    let server = ControlServer::start(folder.path(), fake.clone()).unwrap();
    World { folder, fake, server }
}

async fn raw(folder: &Path, bytes: &[u8]) -> String {
    let mut stream = UnixStream::connect(folder.join("control.sock")).await.unwrap();
    stream.write_all(bytes).await.unwrap();
    let reply = read_line(&mut BufReader::new(stream), wire::REPLY_BYTES_MAX).await.unwrap();
    String::from_utf8(reply.unwrap()).unwrap()
}

/// Every call arrives with its arguments, and every answer and error comes back as it was given.
#[tokio::test]
async fn every_call_goes_there_and_back() {
    let world = world();
    let client = ControlClient::new(world.folder.path());
    assert_eq!(client.status().await.unwrap(), world.fake.status());
    let second = Duration::from_secs(1);
    let synced = client.sync(Level::Visible, second).await.unwrap();
    assert_eq!(synced, Synced { position: 5, counted: 2, not_counted: 1 });
    let error = client.sync(Level::Server, second).await.unwrap_err();
    assert_eq!((error.exit_code(), error.to_string().as_str()), (Exit::Unreachable, "the server is away"));
    world.fake.release.notify_one();
    client.wait(Position(77), second).await.unwrap();
    let left = client.leave(Duration::from_millis(30), true).await.unwrap();
    assert_eq!(left, Left { unsent_checkpoints: 1, unsent_bytes: 9 });
    let calls = world.fake.calls.lock().clone();
    assert_eq!(calls, ["sync Visible 1s", "sync Server 1s", "wait 77", "leave 30ms true"]);
}

/// A client that waits does not keep another from its answer, and one connection serves several calls.
#[tokio::test]
async fn several_clients_are_served_at_once() {
    let world = world();
    let client = ControlClient::new(world.folder.path());
    let waiting = tokio::spawn({
        let client = client.clone();
        async move { client.wait(Position(1), Duration::from_secs(30)).await }
    });
    world.fake.arrived.notified().await;
    client.status().await.unwrap();
    assert!(!waiting.is_finished());
    world.fake.release.notify_one();
    waiting.await.unwrap().unwrap();

    let mut stream = UnixStream::connect(world.folder.path().join("control.sock")).await.unwrap();
    let status = b"{\"version\":1,\"call\":\"status\"}\n";
    stream.write_all(&[status.as_slice(), status.as_slice()].concat()).await.unwrap();
    let mut from = BufReader::new(stream);
    for _ in 0..2 {
        let line = read_line(&mut from, wire::REPLY_BYTES_MAX).await.unwrap().unwrap();
        assert!(String::from_utf8(line).unwrap().contains("\"drive\":\"main\""));
    }
}

/// A mount refuses what it does not understand with a sentence, and goes on serving.
#[tokio::test]
async fn bad_requests_are_answered_with_an_error() {
    let world = world();
    let folder = world.folder.path();
    let reply = raw(folder, b"{\"version\":2,\"call\":\"status\"}\n").await;
    assert!(reply.contains("\"kind\":\"refused\"") && reply.contains("version 1, not 2"), "{reply}");
    for bad in [
        "{}\n",
        "nonsense\n",
        "[]\n",
        "{\"version\":1,\"call\":\"explode\"}\n",
        "{\"version\":1,\"call\":\"wait\"}\n",
    ] {
        let reply = raw(folder, bad.as_bytes()).await;
        assert!(reply.contains("\"kind\":\"usage\""), "{bad}: {reply}");
    }
    ControlClient::new(folder).status().await.unwrap();
}

/// A request is never held past its bound: the reply comes although the line has no end, and the connection ends.
#[tokio::test]
async fn an_over_long_request_is_cut_off() {
    let world = world();
    let mut stream = UnixStream::connect(world.folder.path().join("control.sock")).await.unwrap();
    stream.write_all(&vec![b'x'; wire::REQUEST_BYTES_MAX + 1]).await.unwrap();
    let mut reply = String::new();
    // Closing with bytes unread may come as a reset behind the reply.
    let _end = stream.read_to_string(&mut reply).await;
    assert!(reply.contains("longer than 65536 bytes"), "{reply}");
}

/// Only its owner may ask a mount.
#[tokio::test]
async fn the_socket_is_its_owners() {
    let world = world();
    let mode = std::fs::metadata(world.folder.path().join("control.sock")).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
}

/// A stopping server still answers who has asked, takes nobody new, and leaves no socket behind.
#[tokio::test]
async fn stop_lets_the_last_answer_out() {
    let World { folder, fake, server } = world();
    let client = ControlClient::new(folder.path());
    let waiting = tokio::spawn({
        let client = client.clone();
        async move { client.wait(Position(1), Duration::from_secs(30)).await }
    });
    fake.arrived.notified().await;
    let stopping = tokio::spawn(server.stop());
    fake.release.notify_one();
    waiting.await.unwrap().unwrap();
    stopping.await.unwrap();
    assert!(!folder.path().join("control.sock").exists());
    let error = client.status().await.unwrap_err();
    assert!(matches!(error, ClientError::NotRunning { .. }), "{error}");
}

/// A dead process's socket is replaced, and a state folder may lie deeper than a socket's path may be long.
#[tokio::test]
async fn deep_folders_and_old_sockets() {
    let root = tempfile::tempdir().unwrap();
    let deep = root.path().join("d".repeat(120));
    std::fs::create_dir(&deep).unwrap();
    std::fs::write(deep.join("control.sock"), "old").unwrap();
    let _server = ControlServer::start(&deep, Arc::new(Fake::default())).unwrap();
    ControlClient::new(&deep).status().await.unwrap();
}

/// More clients than are served at a time are told so, and room comes back.
#[tokio::test]
async fn too_many_clients_are_turned_away() {
    let world = world();
    let client = ControlClient::new(world.folder.path());
    let mut waiting = Vec::new();
    for _ in 0..16 {
        let client = client.clone();
        waiting.push(tokio::spawn(async move { client.wait(Position(1), Duration::from_secs(30)).await }));
        world.fake.arrived.notified().await;
    }
    let error = client.status().await.unwrap_err();
    assert_eq!(error.exit_code(), Exit::Refused, "{error}");
    for task in waiting {
        world.fake.release.notify_one();
        task.await.unwrap().unwrap();
    }
    while client.status().await.is_err() {
        tokio::task::yield_now().await;
    }
}

/// A mount that says nothing, or nonsense, or too much, is an error and not a hang.
#[tokio::test]
async fn a_client_does_not_believe_everything() {
    let folder = tempfile::tempdir().unwrap();
    let listener = tokio::net::UnixListener::bind(folder.path().join("control.sock")).unwrap();
    let client = ControlClient::new(folder.path());
    for (reply, says) in
        [("", "ended before"), ("what?\n", "expected"), ("{\"version\":1,\"answer\":[]}\n", "invalid")]
    {
        let (served, asked) = tokio::join!(
            async {
                let (mut stream, _) = listener.accept().await.unwrap();
                let mut line = BufReader::new(&mut stream);
                read_line(&mut line, 1000).await.unwrap();
                stream.write_all(reply.as_bytes()).await
            },
            client.status()
        );
        served.unwrap();
        let error = asked.unwrap_err();
        assert!(matches!(&error, ClientError::BadReply { why, .. } if why.contains(says)), "{error}");
    }
    assert!(matches!(read_line(&mut &b"12345\n"[..], 4).await, Err(LineError::TooLong { limit: 4 })));
    assert_eq!(read_line(&mut &b"1234\n"[..], 4).await.unwrap().unwrap(), b"1234");
}
