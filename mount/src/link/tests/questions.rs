use super::{
    fake::{BlocksCall, Fake},
    *,
};
use tidefs_proto::{
    limits::{FETCH_BLOCKS_MAX, FETCH_DIRS_MAX, PROTOCOL},
    model::{node_to, version_to},
};
use tidefs_timeline::{CheckpointNo, Hash, Name, NodeId, Version};

fn attach_reply() -> wire::AttachReply {
    wire::AttachReply {
        session: 3,
        session_name: "a".into(),
        drive_id: DRIVE.to_vec().into(),
        history: vec![2; 16].into(),
        epoch: 4,
        position: 50,
        acknowledged: 0,
        digest: bytes::Bytes::new(),
        root: Some(node_to(&root())),
        drive_created_unix_us: 9,
    }
}

fn attach_ask() -> Attach {
    Attach {
        session_id: [5; 16],
        session_name: "a".into(),
        incarnation: 0,
        next_incarnation: 1,
        position: Position(0),
        known: None,
    }
}

/// Attach shows what the session has and gives what the server answers.
#[tokio::test]
async fn attaches() {
    let mut fake = Fake::start().await;
    let link = link_to(&fake.url);
    let ask = attach_ask();
    let (attached, request) =
        tokio::join!(link.attach(&ask), async { next(&mut fake.attaches).await.answer(Ok(attach_reply())) });
    assert_eq!((request.protocol, &request.drive[..], request.drive_id.len()), (PROTOCOL, "main", 0));
    assert_eq!((&request.session_id[..], request.next_incarnation), (&[5; 16][..], 1));
    let attached = attached.unwrap();
    assert_eq!((attached.session, attached.drive_id, attached.history), (SessionNo(3), DRIVE, [2; 16]));
    assert_eq!((attached.acknowledged, attached.digest, attached.root), (CheckpointNo(0), [0; 32], root()));
}

/// Every field of an attach answer that is out of bounds is an error, and a refusal is told from it.
#[tokio::test]
async fn bad_attach_answers_are_errors() {
    let mut fake = Fake::start().await;
    let link = link_to(&fake.url);
    let bad = [
        wire::AttachReply { session: 0, ..attach_reply() },
        wire::AttachReply { session_name: "a/b".into(), ..attach_reply() },
        wire::AttachReply { drive_id: vec![1; 15].into(), ..attach_reply() },
        wire::AttachReply { history: bytes::Bytes::new(), ..attach_reply() },
        wire::AttachReply { acknowledged: 1, ..attach_reply() },
        wire::AttachReply { root: None, ..attach_reply() },
    ];
    let ask = attach_ask();
    for reply in bad {
        let answer = async { next(&mut fake.attaches).await.answer(Ok(reply)) };
        assert!(matches!(tokio::join!(link.attach(&ask), answer).0, Err(LinkError::Bad(_))));
    }
    let answer = async { next(&mut fake.attaches).await.answer(Err(tonic::Status::not_found("drive main"))) };
    let error = tokio::join!(link.attach(&ask), answer).0.unwrap_err();
    assert_eq!((error.exit_code(), error.errno()), (3, libc::ESTALE));
}

/// Nobody there, nobody answering, and no usable address are three different errors, each in time.
#[tokio::test]
async fn attempts_end() {
    let error = link_to("http://127.0.0.1:1").attach(&attach_ask()).await.unwrap_err();
    assert_eq!(error.exit_code(), 4, "{error}");
    let fake = Fake::start().await;
    let link = link_with(&fake, |waits| waits.attempt = Duration::from_millis(100));
    let error = link.attach(&attach_ask()).await.unwrap_err();
    assert_eq!((error.exit_code(), error.errno()), (5, libc::ETIMEDOUT), "{error}");
    for address in ["", "nonsense", "https://h:1", "unix:/x", "http://"] {
        let error = Link::new(LinkConfig::new(address, "main")).err().unwrap();
        assert_eq!(error.exit_code(), 2, "{error}");
    }
}

#[tokio::test]
async fn visibility_is_an_answer() {
    let mut fake = Fake::start().await;
    let link = link_to(&fake.url);
    let reply = wire::VisibleReply { visible: false, counted: 2, not_counted: 1 };
    let ask = link.wait_visible(DRIVE, Position(4), SessionNo(3), Duration::from_millis(1500));
    let (visible, request) = tokio::join!(ask, async { next(&mut fake.visibles).await.answer(Ok(reply)) });
    assert_eq!((request.position, request.except_session, request.timeout_ms), (4, 3, 1500));
    assert_eq!(visible.unwrap(), Visible { visible: false, counted: 2, not_counted: 1 });
}

fn block(n: usize) -> (Hash, Vec<u8>) {
    let bytes = n.to_le_bytes().repeat(100);
    (Hash(*blake3::hash(&bytes).as_bytes()), bytes)
}

/// Answers one request from the first `count` blocks, with `damage` done to each answer.
fn serve(call: BlocksCall, count: usize, damage: impl Fn(&mut wire::BlockReply)) -> usize {
    let all: std::collections::BTreeMap<_, _> = (0..count).map(block).collect();
    let find = |hash: &bytes::Bytes| {
        let hash = Hash(hash[..].try_into().unwrap());
        let data = all[&hash].clone().into();
        let mut reply = wire::BlockReply { block: hash.0.to_vec().into(), data, missing: false };
        damage(&mut reply);
        reply
    };
    let asked = call.request.blocks.len();
    let replies = call.request.blocks.iter().map(find).collect();
    call.answer(Ok(replies));
    asked
}

/// A long list goes in several requests; the answer is in the order asked, repeats included.
#[tokio::test]
async fn fetches_blocks() {
    let mut fake = Fake::start().await;
    let link = link_to(&fake.url);
    let count = FETCH_BLOCKS_MAX + 6;
    let mut hashes: Vec<Hash> = (0..count).map(|n| block(n).0).collect();
    hashes.push(hashes[0]);
    let serve = async {
        assert_eq!(serve(next(&mut fake.blocks).await, count, |_| {}), FETCH_BLOCKS_MAX);
        assert_eq!(serve(next(&mut fake.blocks).await, count, |_| {}), 6);
    };
    let (got, ()) = tokio::join!(link.fetch_blocks(DRIVE, &hashes, FETCH_WAIT), serve);
    let got = got.unwrap();
    assert_eq!(got.iter().map(|(hash, _)| *hash).collect::<Vec<_>>(), hashes);
    assert!(got.iter().all(|(hash, bytes)| blake3::hash(bytes).as_bytes() == &hash.0));
}

/// A block with other bytes is fetched once more, alone; a second time is an error that names it.
#[tokio::test]
async fn wrong_bytes_are_fetched_once_more() {
    let mut fake = Fake::start().await;
    let link = link_to(&fake.url);
    let hashes = [block(0).0, block(1).0];
    let damage = |reply: &mut wire::BlockReply| {
        if reply.block[..] == block(1).0.0 {
            reply.data = bytes::Bytes::from_static(b"other");
        }
    };
    for twice in [false, true] {
        let serve = async {
            assert_eq!(serve(next(&mut fake.blocks).await, 2, damage), 2);
            let call = next(&mut fake.blocks).await;
            assert_eq!(if twice { serve(call, 2, damage) } else { serve(call, 2, |_| {}) }, 1);
        };
        let (got, ()) = tokio::join!(link.fetch_blocks(DRIVE, &hashes, FETCH_WAIT), serve);
        match got {
            Ok(got) => assert!(!twice && got[1].1 == block(1).1),
            Err(error) => assert!(twice && error == LinkError::BlockWrong { hash: hashes[1] }, "{error}"),
        }
    }
}

/// A missing block is named; answers that were not asked for, too large, or left out are errors.
#[tokio::test]
async fn bad_block_answers_are_errors() {
    let mut fake = Fake::start().await;
    let link = link_to(&fake.url);
    let hashes = [block(0).0];
    let missing = async { serve(next(&mut fake.blocks).await, 1, |reply| reply.missing = true) };
    let (got, _) = tokio::join!(link.fetch_blocks(DRIVE, &hashes, FETCH_WAIT), missing);
    assert_eq!(got, Err(LinkError::BlockMissing { hash: hashes[0] }));
    let reply = |block: Hash, len: usize| wire::BlockReply {
        block: block.0.to_vec().into(),
        data: vec![0; len].into(),
        missing: false,
    };
    let bad = [
        vec![reply(block(1).0, 1)],
        vec![reply(hashes[0], (1 << 20) + 1)],
        vec![reply(hashes[0], 5 << 20)],
        vec![wire::BlockReply { block: vec![1; 31].into(), ..reply(hashes[0], 1) }],
        vec![reply(hashes[0], 1), reply(hashes[0], 1)],
        vec![],
    ];
    for replies in bad {
        let answer = async { next(&mut fake.blocks).await.answer(Ok(replies)) };
        let (got, _) = tokio::join!(link.fetch_blocks(DRIVE, &hashes, FETCH_WAIT), answer);
        assert!(matches!(got, Err(LinkError::Bad(_))), "{got:?}");
    }
}

fn entry(name: &str, node: u64) -> wire::DirectoryEntry {
    wire::DirectoryEntry {
        name: name.as_bytes().to_vec().into(),
        node,
        version: Some(version_to(Version::DRIVE)),
    }
}

fn node(id: u64) -> wire::NodeLine {
    wire::NodeLine { id, node: Some(node_to(&root())) }
}

fn part(dir: u64, entries: &[(&str, u64)], nodes: &[u64], last: bool) -> wire::DirectoryPart {
    wire::DirectoryPart {
        position: 9,
        dir,
        entries: entries.iter().map(|(name, id)| entry(name, *id)).collect(),
        nodes: nodes.iter().copied().map(node).collect(),
        last,
        ..Default::default()
    }
}

/// A directory comes whole from its parts; one gone, one united, and one that was not asked for come with it.
#[tokio::test]
async fn fetches_directories() {
    let mut fake = Fake::start().await;
    let link = link_to(&fake.url);
    let parts = vec![
        part(1, &[("a", 10)], &[1, 10], false),
        part(1, &[("b", 11), ("c", 10)], &[11], true),
        wire::DirectoryPart { gone: true, ..part(2, &[], &[], true) },
        wire::DirectoryPart { alias: 1, ..part(3, &[], &[], true) },
        part(10, &[], &[10], true),
    ];
    let dirs = [NodeId(1), NodeId(2), NodeId(3)];
    let answer = async { next(&mut fake.directories).await.answer(Ok(parts)) };
    let (got, request) = tokio::join!(link.fetch_directories(DRIVE, &dirs, 1 << 30, FETCH_WAIT), answer);
    assert_eq!((request.dirs, request.prefetch_entries), (vec![1, 2, 3], 4096));
    let got = got.unwrap();
    assert!(got.iter().all(|directory| directory.position == Position(9)));
    assert_eq!(got.iter().map(|directory| directory.id.0).collect::<Vec<_>>(), [1, 2, 3, 10]);
    assert_eq!((&got[1].what, &got[2].what), (&DirectoryIs::Gone, &DirectoryIs::Alias(NodeId(1))));
    let DirectoryIs::Listing { entries, nodes } = &got[0].what else { panic!("{:?}", got[0]) };
    assert_eq!(nodes.iter().map(|(id, _)| id.0).collect::<Vec<_>>(), [1, 10, 11]);
    assert_eq!((entries.len(), entries[&Name::new(b"c").unwrap()].node), (3, NodeId(10)));
}

/// A long list of directories goes in several requests.
#[tokio::test]
async fn splits_long_lists_of_directories() {
    let mut fake = Fake::start().await;
    let link = link_to(&fake.url);
    let dirs: Vec<NodeId> = (1..=FETCH_DIRS_MAX as u64 + 1).map(NodeId).collect();
    let serve = async {
        for _ in 0..2 {
            let call = next(&mut fake.directories).await;
            assert!(call.request.dirs.len() <= FETCH_DIRS_MAX);
            let parts = call.request.dirs.iter().map(|dir| part(*dir, &[], &[*dir], true)).collect();
            call.answer(Ok(parts));
        }
    };
    let (got, ()) = tokio::join!(link.fetch_directories(DRIVE, &dirs, 0, FETCH_WAIT), serve);
    assert_eq!(got.unwrap().len(), dirs.len());
}

/// Parts that do not make whole directories are an error.
#[tokio::test]
async fn bad_directory_answers_are_errors() {
    let mut fake = Fake::start().await;
    let link = link_to(&fake.url);
    let bad = [
        vec![],
        vec![part(1, &[], &[1], false)],
        vec![part(1, &[], &[], true)],
        vec![part(1, &[("a", 5)], &[1], true)],
        vec![part(1, &[("a/b", 5)], &[1, 5], true)],
        vec![part(1, &[("a", 5), ("a", 5)], &[1, 5], true)],
        vec![part(1, &[], &[1], true), part(1, &[], &[1], true)],
        vec![part(1, &[], &[1], false), part(2, &[], &[2], true), part(1, &[], &[], true)],
        vec![part(1, &[], &[1], false), wire::DirectoryPart { position: 10, ..part(1, &[], &[], true) }],
        vec![wire::DirectoryPart { gone: true, ..part(1, &[("a", 5)], &[1, 5], true) }],
        vec![wire::DirectoryPart {
            nodes: vec![wire::NodeLine { id: 1, node: None }],
            ..part(1, &[], &[], true)
        }],
    ];
    for (case, parts) in bad.into_iter().enumerate() {
        let answer = async { next(&mut fake.directories).await.answer(Ok(parts)) };
        let (got, _) = tokio::join!(link.fetch_directories(DRIVE, &[NodeId(1)], 0, FETCH_WAIT), answer);
        assert!(matches!(got, Err(LinkError::Bad(_))), "case {case}: {got:?}");
    }
}

/// A connection that broke under a question is met by asking once more, and no oftener.
#[tokio::test]
async fn a_broken_connection_is_met_by_one_more_try() {
    let mut fake = Fake::start().await;
    let link = link_to(&fake.url);
    let gone = || Err(tonic::Status::unavailable("restarting"));
    for second in [Ok(vec![part(1, &[], &[1], true)]), gone()] {
        let serve = async {
            next(&mut fake.directories).await.answer(gone());
            next(&mut fake.directories).await.answer(second);
        };
        let (got, ()) = tokio::join!(link.fetch_directories(DRIVE, &[NodeId(1)], 0, FETCH_WAIT), serve);
        assert!(matches!(got, Ok(_) | Err(LinkError::Unreachable { .. })), "{got:?}");
    }
    assert!(fake.directories.try_recv().is_err());
}

/// A question that is not answered ends at its deadline.
#[tokio::test]
async fn questions_end_at_their_deadline() {
    let fake = Fake::start().await;
    let link = link_to(&fake.url);
    let short = Duration::from_millis(50);
    let directories = link.fetch_directories(DRIVE, &[NodeId(1)], 0, short).await.err();
    let blocks = link.fetch_blocks(DRIVE, &[block(0).0], short).await.err();
    for error in [directories, blocks] {
        assert!(matches!(error, Some(LinkError::Deadline { .. })), "{error:?}");
    }
}
