//! The services over loopback, with a client by hand.

use crate::{
    config::Config,
    fixture::{Draft, Maker, content, pack},
    server::Server,
};
use bytes::Bytes;
use std::{collections::BTreeMap, path::Path, time::Instant};
use tidefs_proto::{
    PlacedLine,
    limits::PROTOCOL,
    wire::{
        self, commit_reply, commit_request, drives_client::DrivesClient, follow_reply, follow_request,
        tide_client::TideClient,
    },
};
use tidefs_timeline::{Content, Hash, Kind, NodeId, Position};
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Code, Streaming, transport::Channel};

async fn serve(data: &Path) -> (Server, TideClient<Channel>) {
    let any = "127.0.0.1:0".parse().unwrap();
    let server = Server::start(&Config { data: data.into(), listen: any, http: any }).await.unwrap();
    let url = format!("http://{}", server.listen);
    let create = wire::CreateDriveRequest { name: "main".into(), exist_ok: true, ..Default::default() };
    DrivesClient::connect(url.clone()).await.unwrap().create(create).await.unwrap();
    (server, TideClient::connect(url).await.unwrap())
}

fn attach_request(id: u8, incarnation: u64, next: u64) -> wire::AttachRequest {
    wire::AttachRequest {
        protocol: PROTOCOL,
        drive: "main".into(),
        session_id: vec![id; 16].into(),
        session_name: format!("agent{id}"),
        incarnation,
        next_incarnation: next,
        ..Default::default()
    }
}

/// One attached session with its commit stream.
struct Session {
    client: TideClient<Channel>,
    drive: Bytes,
    maker: Maker,
    requests: mpsc::Sender<wire::CommitRequest>,
    replies: Streaming<wire::CommitReply>,
}

impl Session {
    async fn attach(client: &TideClient<Channel>, id: u8) -> Self {
        let mut client = client.clone();
        let reply = client.attach(attach_request(id, 0, 10)).await.unwrap().into_inner();
        assert_eq!(reply.root.unwrap().kind, wire::Kind::Directory as i32);
        Self::open(client, reply.drive_id, Maker::new(reply.session, 10)).await
    }

    async fn open(mut client: TideClient<Channel>, drive: Bytes, maker: Maker) -> Self {
        let (requests, stream) = mpsc::channel(16);
        let open = wire::CommitOpen {
            drive_id: drive.clone(),
            session: maker.session.0,
            incarnation: maker.incarnation,
        };
        requests.send(commit(commit_request::Message::Open(open))).await.unwrap();
        let replies = client.commit(ReceiverStream::new(stream)).await.unwrap().into_inner();
        Self { client, drive, maker, requests, replies }
    }

    /// Sends without waiting for the answer.
    async fn send(&mut self, draft: Draft) -> u64 {
        let (bytes, digest) = self.maker.ship(draft);
        self.send_bytes(self.maker.number, bytes, digest).await;
        self.maker.number
    }

    async fn send_bytes(&mut self, number: u64, bytes: Bytes, digest: [u8; 32]) {
        let (head, tail) = (bytes.slice(..bytes.len() / 2), bytes.slice(bytes.len() / 2..));
        for (data, last) in [(head, false), (tail, true)] {
            let digest = digest.to_vec().into();
            let part = wire::ShipmentPart { number, data, last, digest, upload_us: 5 };
            self.requests.send(commit(commit_request::Message::Shipment(part))).await.unwrap();
        }
    }

    async fn send_pack(&mut self, id: Hash, bytes: &Bytes, part_bytes: usize) {
        for (n, data) in bytes.chunks(part_bytes).enumerate() {
            let offset = (n * part_bytes) as u64;
            let last = offset as usize + data.len() == bytes.len();
            let part = wire::PackPart {
                pack: id.0.to_vec().into(),
                offset,
                data: data.to_vec().into(),
                last,
                length: bytes.len() as u64,
            };
            self.requests.send(commit(commit_request::Message::Pack(part))).await.unwrap();
        }
    }

    async fn answer(&mut self) -> commit_reply::Message {
        self.replies.message().await.unwrap().unwrap().message.unwrap()
    }

    async fn ship(&mut self, draft: Draft) -> u64 {
        let number = self.send(draft).await;
        match self.answer().await {
            commit_reply::Message::Acknowledged(ack) if ack.number == number => ack.position,
            other => panic!("not acknowledged: {other:?}"),
        }
    }

    async fn touch(&mut self, name: &str) -> u64 {
        let mut draft = self.maker.draft();
        draft.create(NodeId::ROOT, name, Kind::File, content(None));
        self.ship(draft).await
    }

    async fn follow(
        &mut self,
        after: u64,
    ) -> (mpsc::Sender<wire::FollowRequest>, Streaming<wire::FollowReply>) {
        let (requests, stream) = mpsc::channel(16);
        let open = wire::FollowOpen { drive_id: self.drive.clone(), session: self.maker.session.0, after };
        let message = Some(follow_request::Message::Open(open));
        requests.send(wire::FollowRequest { message }).await.unwrap();
        let replies = self.client.follow(ReceiverStream::new(stream)).await.unwrap().into_inner();
        (requests, replies)
    }

    async fn list(&mut self, dirs: &[u64], prefetch: u32) -> Vec<wire::DirectoryPart> {
        let request = wire::FetchDirectoriesRequest {
            drive_id: self.drive.clone(),
            dirs: dirs.to_vec(),
            prefetch_entries: prefetch,
        };
        all(self.client.fetch_directories(request).await.unwrap().into_inner()).await.unwrap()
    }

    async fn blocks(&mut self, blocks: &[Hash]) -> BTreeMap<Bytes, Option<Bytes>> {
        let blocks = blocks.iter().map(|hash| hash.0.to_vec().into()).collect();
        let request = wire::FetchBlocksRequest { drive_id: self.drive.clone(), blocks };
        let replies = all(self.client.fetch_blocks(request).await.unwrap().into_inner()).await.unwrap();
        replies.into_iter().map(|reply| (reply.block, (!reply.missing).then_some(reply.data))).collect()
    }

    async fn log(&mut self, request: wire::LogRequest) -> Vec<(u64, Vec<(String, String)>)> {
        let request = wire::LogRequest { drive: "main".into(), ..request };
        let lines = all(self.client.log(request).await.unwrap().into_inner()).await.unwrap();
        let change = |change: wire::LogChange| (change.path, change.what);
        lines.into_iter().map(|l| (l.position, l.changes.into_iter().map(change).collect())).collect()
    }
}

fn commit(message: commit_request::Message) -> wire::CommitRequest {
    wire::CommitRequest { message: Some(message) }
}

async fn all<T>(mut stream: Streaming<T>) -> Result<Vec<T>, tonic::Status> {
    let mut out = Vec::new();
    while let Some(message) = stream.message().await? {
        out.push(message);
    }
    Ok(out)
}

/// The next line of the timeline, its parts put together.
async fn next_line(replies: &mut Streaming<wire::FollowReply>) -> PlacedLine {
    let mut bytes = Vec::new();
    loop {
        match replies.message().await.unwrap().unwrap().message.unwrap() {
            follow_reply::Message::Placed(part) => {
                bytes.extend_from_slice(&part.data);
                if part.last {
                    return PlacedLine::decode(&bytes).unwrap();
                }
            }
            follow_reply::Message::Heartbeat(_) => {}
            follow_reply::Message::Resync(resync) => panic!("told to resync: {resync:?}"),
        }
    }
}

/// What one session ships, the other is told of, lists and reads; small and large packs alike.
#[tokio::test(flavor = "multi_thread")]
async fn what_one_ships_the_other_reads() {
    let dir = tempfile::tempdir().unwrap();
    let (server, client) = serve(dir.path()).await;
    let (mut one, mut two) = (Session::attach(&client, 1).await, Session::attach(&client, 2).await);
    let (_reports, mut lines) = two.follow(0).await;
    let noise: Vec<u8> =
        (0..3_000_000u32).flat_map(|n| n.wrapping_mul(2_654_435_761).to_le_bytes()).collect();
    let large: Vec<&[u8]> = noise.chunks(64 << 10).collect();
    let packs = [pack(&[b"hello", b"world"]), pack(&large)];
    for (n, (id, bytes, hashes)) in packs.iter().enumerate() {
        one.send_pack(*id, bytes, 500_000).await;
        let mut draft = one.maker.draft();
        let made = draft.create(NodeId::ROOT, &format!("d{n}"), Kind::Directory, Content::None);
        draft.create(made, "file", Kind::File, content(Some((hashes[0], 5))));
        draft.pack = Some(*id);
        assert_eq!(one.ship(draft).await, n as u64 + 1);
        let line = next_line(&mut lines).await;
        assert_eq!((line.position, line.session_name.as_str()), (Position(n as u64 + 1), "agent1"));
    }
    assert!(packs[1].1.len() > 4 << 20);
    let parts = two.list(&[1], 100).await;
    let names = |part: &wire::DirectoryPart| part.entries.iter().map(|e| e.name.clone()).collect::<Vec<_>>();
    assert_eq!(parts.len(), 3);
    assert_eq!(names(&parts[0]), ["d0", "d1"]);
    assert_eq!((names(&parts[1]), parts[1].nodes.len()), (vec![Bytes::from("file")], 2));
    assert!(parts.iter().all(|part| part.position == 2 && part.last));
    assert_eq!(two.list(&[1], 0).await.len(), 1);
    assert!(two.list(&[77], 0).await[0].gone);

    let wanted = [packs[0].2[1], packs[1].2[3], packs[1].2[40], Hash([9; 32])];
    let found = two.blocks(&wanted).await;
    let of = |hash: &Hash| found[&Bytes::from(hash.0.to_vec())].clone();
    assert_eq!(of(&wanted[0]).unwrap(), "world");
    assert_eq!(of(&wanted[1]).unwrap(), large[3]);
    assert_eq!(of(&wanted[2]).unwrap(), large[40]);
    assert_eq!(of(&wanted[3]), None);
    server.stop().await;
}

/// A restarted server, even without its index, has the same sessions, answers and tree.
#[tokio::test(flavor = "multi_thread")]
async fn a_restart_keeps_answers_and_tree() {
    let dir = tempfile::tempdir().unwrap();
    let (server, client) = serve(dir.path()).await;
    let mut one = Session::attach(&client, 1).await;
    let (id, bytes, hashes) = pack(&[b"hello"]);
    one.send_pack(id, &bytes, 10).await;
    let mut draft = one.maker.draft();
    draft.create(NodeId::ROOT, "a", Kind::File, content(Some((hashes[0], 5))));
    draft.pack = Some(id);
    let before = one.maker.clone();
    assert_eq!(one.ship(draft).await, 1);
    let tree = one.list(&[1], 0).await;
    let (drive, maker) = (one.drive.clone(), one.maker.clone());
    drop(one);
    server.stop().await;

    for without_index in [false, true] {
        if without_index {
            for drive in std::fs::read_dir(dir.path().join("drives")).unwrap() {
                std::fs::remove_dir_all(drive.unwrap().path().join("index")).unwrap();
            }
        }
        let (server, client) = serve(dir.path()).await;
        let mut again = Session::open(client.clone(), drive.clone(), before.clone()).await;
        let mut draft = again.maker.draft();
        draft.create(NodeId::ROOT, "a", Kind::File, content(Some((hashes[0], 5))));
        draft.pack = Some(id);
        assert_eq!(again.ship(draft).await, 1, "the resend gets the first answer");
        assert_eq!(again.maker.previous, maker.previous);
        assert_eq!(again.list(&[1], 0).await, tree);
        assert_eq!(again.blocks(&hashes).await.into_values().next().unwrap().unwrap(), "hello");
        let lines = again.log(wire::LogRequest::default()).await;
        assert_eq!(lines.len(), 1);
        let (_requests, mut lines) = again.follow(0).await;
        assert_eq!(next_line(&mut lines).await.position, Position(1));
        server.stop().await;
    }
}

/// Followers that join at any moment, and one that starts far behind, get every position once and in order, while
/// two sessions commit at the same time.
#[tokio::test(flavor = "multi_thread")]
async fn following_has_no_gap_under_concurrent_commits() {
    const EACH: u64 = 40;
    let dir = tempfile::tempdir().unwrap();
    let (server, client) = serve(dir.path()).await;
    let mut committers = Vec::new();
    for id in [1, 2] {
        let mut session = Session::attach(&client, id).await;
        committers.push(tokio::spawn(async move {
            for n in 0..EACH {
                session.touch(&format!("f{id}-{n}")).await;
            }
        }));
    }
    let mut followers = Vec::new();
    for id in [3, 4, 5] {
        let mut session = Session::attach(&client, id).await;
        followers.push(tokio::spawn(async move {
            let (reports, mut lines) = session.follow(0).await;
            for position in 1..=2 * EACH {
                let line = next_line(&mut lines).await;
                assert_eq!(line.position, Position(position));
                let report = wire::FollowReport { applied: position, write_to_visible_us: 9, apply_us: 3 };
                let message = Some(follow_request::Message::Report(report));
                reports.send(wire::FollowRequest { message }).await.unwrap();
            }
            (reports, lines)
        }));
    }
    for committer in committers {
        committer.await.unwrap();
    }
    let mut open = Vec::new();
    for follower in followers {
        open.push(follower.await.unwrap());
    }
    let mut asking = Session::attach(&client, 9).await;
    let request = wire::VisibleRequest {
        drive_id: asking.drive.clone(),
        position: 2 * EACH,
        except_session: asking.maker.session.0,
        timeout_ms: 20_000,
    };
    let visible = asking.client.wait_visible(request).await.unwrap().into_inner();
    assert_eq!(visible, wire::VisibleReply { visible: true, counted: 3, not_counted: 0 });
    server.stop().await;
}

/// The log says what each checkpoint changed, by path; newest first, and filtered.
#[tokio::test(flavor = "multi_thread")]
async fn the_log_names_paths() {
    let dir = tempfile::tempdir().unwrap();
    let (server, client) = serve(dir.path()).await;
    let mut one = Session::attach(&client, 1).await;
    let mut draft = one.maker.draft();
    let made = draft.create(NodeId::ROOT, "dir", Kind::Directory, Content::None);
    let file = draft.create(made, "old", Kind::File, content(None));
    one.ship(draft).await;
    let mut draft = one.maker.draft();
    draft.hangs(made, NodeId::ROOT, "dir");
    draft.rename((made, "old"), (made, "new"), file);
    one.ship(draft).await;
    let mut draft = one.maker.draft();
    draft.hangs(made, NodeId::ROOT, "dir");
    draft.write(file, (made, "new"), content(None), None);
    one.ship(draft).await;
    let mut draft = one.maker.draft();
    draft.hangs(made, NodeId::ROOT, "dir");
    draft.remove((made, "new"), file, false);
    one.ship(draft).await;
    one.touch("other").await;

    let line = |position, changes: &[(&str, &str)]| {
        (
            position,
            changes.iter().map(|(path, what)| (path.to_string(), what.to_string())).collect::<Vec<_>>(),
        )
    };
    let expected = [
        line(1, &[("/dir", "created"), ("/dir/old", "created")]),
        line(2, &[("/dir/new", "renamed from /dir/old")]),
        line(3, &[("/dir/new", "changed")]),
        line(4, &[("/dir/new", "removed")]),
        line(5, &[("/other", "created")]),
    ];
    assert_eq!(one.log(wire::LogRequest::default()).await, expected);
    let newest = wire::LogRequest { newest_first: true, limit: 2, ..Default::default() };
    assert_eq!(one.log(newest).await, [expected[4].clone(), expected[3].clone()]);
    let filtered = wire::LogRequest { after: 1, path: "dir/old".into(), ..Default::default() };
    assert_eq!(one.log(filtered).await, [expected[1].clone()]);
    server.stop().await;
}

/// Messages that no correct mount sends are errors, and the server goes on.
#[tokio::test(flavor = "multi_thread")]
async fn malformed_messages_are_errors() {
    let dir = tempfile::tempdir().unwrap();
    let (server, client) = serve(dir.path()).await;
    let mut raw = client.clone();
    let attach = |change: fn(&mut wire::AttachRequest)| {
        let mut request = attach_request(1, 0, 10);
        change(&mut request);
        let mut client = client.clone();
        async move { client.attach(request).await.unwrap_err().code() }
    };
    assert_eq!(attach(|r| r.protocol = 9).await, Code::Unimplemented);
    assert_eq!(attach(|r| r.drive = "../x".into()).await, Code::InvalidArgument);
    assert_eq!(attach(|r| r.drive = "none".into()).await, Code::NotFound);
    assert_eq!(attach(|r| r.session_id = Bytes::from("short")).await, Code::InvalidArgument);
    assert_eq!(attach(|r| r.session_name = "a/b".into()).await, Code::InvalidArgument);
    assert_eq!(attach(|r| r.incarnation = 4).await, Code::Aborted);
    assert_eq!(attach(|r| r.position = 4).await, Code::FailedPrecondition);

    let mut one = Session::attach(&client, 1).await;
    one.send_bytes(1, Bytes::from("junk of a shipment"), [0; 32]).await;
    assert_eq!(one.replies.message().await.unwrap_err().code(), Code::InvalidArgument);

    let mut one = Session::open(client.clone(), one.drive.clone(), one.maker.clone()).await;
    one.send_pack(Hash([7; 32]), &Bytes::from("not that pack"), 5).await;
    assert_eq!(one.replies.message().await.unwrap_err().code(), Code::InvalidArgument);

    let mut one = Session::open(client.clone(), one.drive.clone(), one.maker.clone()).await;
    let (_requests, mut lines) = one.follow(99).await;
    assert_eq!(lines.message().await.unwrap_err().code(), Code::FailedPrecondition);
    let request = wire::FetchBlocksRequest { drive_id: one.drive.clone(), blocks: vec![Bytes::from("x")] };
    assert_eq!(
        all(raw.fetch_blocks(request).await.unwrap().into_inner()).await.unwrap_err().code(),
        Code::InvalidArgument
    );
    let request = wire::FetchDirectoriesRequest { dirs: vec![1; 300], ..Default::default() };
    assert!(all(raw.fetch_directories(request).await.unwrap().into_inner()).await.is_err());
    assert_eq!(one.touch("still works").await, 1);
    server.stop().await;
}

/// What leaves a number without an answer ends the stream, with a status that says what to do: send again from
/// there, or attach again.
#[tokio::test(flavor = "multi_thread")]
async fn a_number_without_an_answer_ends_the_stream() {
    let dir = tempfile::tempdir().unwrap();
    let (server, client) = serve(dir.path()).await;
    let mut one = Session::attach(&client, 1).await;
    let (drive, maker) = (one.drive.clone(), one.maker.clone());
    let mut draft = maker.draft();
    let (id, bytes, hashes) = pack(&[b"hello"]);
    draft.create(NodeId::ROOT, "a", Kind::File, content(Some((hashes[0], 5))));
    draft.pack = Some(id);
    let (shipment, digest) = maker.clone().ship(draft);
    one.send_bytes(1, shipment.clone(), digest).await;
    assert_eq!(one.replies.message().await.unwrap_err().code(), Code::Unavailable);

    let mut one = Session::open(client.clone(), drive.clone(), maker.clone()).await;
    one.send_pack(id, &bytes, 100).await;
    one.send_bytes(1, shipment, digest).await;
    assert!(matches!(one.answer().await, commit_reply::Message::Acknowledged(_)));

    let stale = Maker { incarnation: 9, number: 1, ..maker.clone() };
    let mut one = Session::open(client.clone(), drive.clone(), stale).await;
    let draft = one.maker.draft();
    one.send(draft).await;
    assert_eq!(one.replies.message().await.unwrap_err().code(), Code::Aborted);

    let mut one = Session::open(client.clone(), drive, maker).await;
    let draft = one.maker.draft();
    one.send(draft).await;
    assert_eq!(one.replies.message().await.unwrap_err().code(), Code::Aborted);
    server.stop().await;
}

/// Drives are made once, listed and deleted, but not while somebody follows.
#[tokio::test(flavor = "multi_thread")]
async fn drives_come_and_go() {
    let dir = tempfile::tempdir().unwrap();
    let (server, client) = serve(dir.path()).await;
    let mut admin = DrivesClient::connect(format!("http://{}", server.listen)).await.unwrap();
    let create = wire::CreateDriveRequest { name: "main".into(), ..Default::default() };
    assert_eq!(admin.create(create).await.unwrap_err().code(), Code::AlreadyExists);
    let mut one = Session::attach(&client, 1).await;
    one.touch("a").await;
    let show = wire::ShowDriveRequest { name: "main".into(), ..Default::default() };
    assert_eq!(admin.show(show).await.unwrap().into_inner().position, 1);
    let (requests, mut lines) = one.follow(0).await;
    let delete = wire::DeleteDriveRequest { name: "main".into(), ..Default::default() };
    assert!(lines.message().await.unwrap().is_some());
    let refused = admin.delete(delete.clone()).await.unwrap_err();
    assert_eq!(refused.code(), Code::FailedPrecondition);
    drop((requests, lines));
    // The server notices the end of the stream a moment later.
    let ended = tokio::time::timeout(std::time::Duration::from_secs(10), async {
        while admin.delete(delete.clone()).await.is_err() {
            tokio::task::yield_now().await;
        }
    });
    ended.await.unwrap();
    let list = admin.list(wire::ListDrivesRequest::default()).await.unwrap().into_inner();
    assert!(list.drives.is_empty());
    assert_eq!(client.clone().attach(attach_request(1, 10, 11)).await.unwrap_err().code(), Code::NotFound);
    server.stop().await;
}

/// How long a checkpoint of one file takes until it is acknowledged. Prints; fails only when something waits that
/// should not.
#[tokio::test(flavor = "multi_thread")]
async fn acknowledging_one_file_is_quick() {
    let dir = tempfile::tempdir().unwrap();
    let (server, client) = serve(dir.path()).await;
    let mut one = Session::attach(&client, 1).await;
    let mut took = Vec::new();
    for n in 0..60u32 {
        let data = n.to_le_bytes();
        let (id, bytes, hashes) = pack(&[&data]);
        let mut draft = one.maker.draft();
        draft.create(NodeId::ROOT, &format!("f{n}"), Kind::File, content(Some((hashes[0], 4))));
        draft.pack = Some(id);
        let begun = Instant::now();
        one.send_pack(id, &bytes, 500_000).await;
        one.ship(draft).await;
        took.push(begun.elapsed());
    }
    took.sort();
    eprintln!("acknowledged after p50 {:?}, p90 {:?}, worst {:?}", took[30], took[54], took[59]);
    assert!(took[30].as_millis() < 1000, "half of the checkpoints took more than {:?}", took[30]);
    server.stop().await;
}
