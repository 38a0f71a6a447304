use super::{
    fake::{Fake, FollowCall},
    *,
};
use tidefs_proto::{PlacedLine, Stages};
use tidefs_timeline::{CheckpointNo, Placed};
use tokio::sync::watch;
use wire::{follow_reply::Message as Reply, follow_request::Message as Request};

struct Following {
    events: mpsc::Receiver<FollowEvent>,
    reports: watch::Sender<Report>,
}

fn follow(link: &Link, after: u64, capacity: usize) -> Following {
    let (out, events) = mpsc::channel(capacity);
    let (reports, watched) = watch::channel(Report::default());
    link.follow(FollowFrom { drive_id: DRIVE, session: SessionNo(3), after: Position(after) }, out, watched);
    Following { events, reports }
}

/// Reads the opening and gives the position behind which the mount wants to go on.
async fn open(call: &mut FollowCall) -> u64 {
    match call.next().await.message {
        Some(Request::Open(open)) if open.drive_id[..] == DRIVE && open.session == 3 => open.after,
        other => panic!("{other:?}"),
    }
}

fn line(position: u64) -> PlacedLine {
    PlacedLine {
        position: Position(position),
        session: SessionNo(2),
        session_name: "x".repeat(40),
        number: CheckpointNo(position),
        digest: [1; 32],
        placed_unix_us: 5,
        stages: Stages::default(),
        placed: Placed::default(),
    }
}

fn reply(message: Reply) -> wire::FollowReply {
    wire::FollowReply { message: Some(message) }
}

fn part(position: u64, data: &[u8], last: bool) -> wire::FollowReply {
    reply(Reply::Placed(wire::PlacedPart { position, data: data.to_vec().into(), last }))
}

async fn send(call: &FollowCall, position: u64) {
    call.answer(part(position, &line(position).encode(), true)).await;
}

async fn placed(events: &mut mpsc::Receiver<FollowEvent>, position: u64) {
    assert_eq!(next(events).await, FollowEvent::Placed(Box::new(line(position))));
}

/// A broken stream goes on behind the last line given out; a line that had come in part comes whole.
#[tokio::test]
async fn resumes_behind_the_last_line() {
    let mut fake = Fake::start().await;
    let mut f = follow(&link_to(&fake.url), 5, 64);
    let mut call = next(&mut fake.follows).await;
    assert_eq!(open(&mut call).await, 5);
    assert_eq!(next(&mut f.events).await, FollowEvent::Connected);
    send(&call, 6).await;
    let bytes = line(7).encode();
    call.answer(part(7, &bytes[..10], false)).await;
    call.answer(part(7, &bytes[10..], true)).await;
    placed(&mut f.events, 6).await;
    placed(&mut f.events, 7).await;
    call.answer(part(8, &line(8).encode()[..10], false)).await;
    call.fail(tonic::Status::unavailable("stop")).await;
    assert!(matches!(next(&mut f.events).await, FollowEvent::Lost(LinkError::Unreachable { .. })));

    let mut call = next(&mut fake.follows).await;
    assert_eq!(open(&mut call).await, 7);
    assert_eq!(next(&mut f.events).await, FollowEvent::Connected);
    send(&call, 8).await;
    placed(&mut f.events, 8).await;
}

/// Whatever is not the next line, or not a line at all, costs the stream and never reaches the session.
#[tokio::test]
async fn gaps_repeats_and_nonsense_are_not_given_out() {
    let mut fake = Fake::start().await;
    let mut f = follow(&link_to(&fake.url), 0, 64);
    let whole = line(2).encode();
    let wrong = [
        part(3, &line(3).encode(), true),
        part(1, &line(1).encode(), true),
        part(2, &line(9).encode(), true),
        part(2, b"no line", true),
        part(2, b"", false),
        part(2, &vec![0; 5 << 20], true),
        wire::FollowReply { message: None },
        reply(Reply::Resync(wire::Resync { after: 0 })),
        part(u64::MAX, &whole, true),
    ];
    for (round, wrong) in wrong.into_iter().enumerate() {
        let mut call = next(&mut fake.follows).await;
        assert_eq!(open(&mut call).await, u64::from(round > 0));
        assert_eq!(next(&mut f.events).await, FollowEvent::Connected);
        if round == 0 {
            send(&call, 1).await;
            placed(&mut f.events, 1).await;
        }
        call.answer(wrong).await;
        let event = next(&mut f.events).await;
        assert!(matches!(event, FollowEvent::Lost(LinkError::Bad(_))), "round {round}: {event:?}");
    }
    let mut call = next(&mut fake.follows).await;
    assert_eq!(open(&mut call).await, 1);
    assert_eq!(next(&mut f.events).await, FollowEvent::Connected);
    send(&call, 2).await;
    placed(&mut f.events, 2).await;
}

/// A resync says where the stream goes on, also for the connections after it; the largest position is no trap.
#[tokio::test]
async fn resync_moves_on() {
    let mut fake = Fake::start().await;
    let mut f = follow(&link_to(&fake.url), 5, 64);
    let mut call = next(&mut fake.follows).await;
    assert_eq!(open(&mut call).await, 5);
    call.answer(reply(Reply::Heartbeat(wire::Heartbeat { head: 90 }))).await;
    call.answer(reply(Reply::Resync(wire::Resync { after: 80 }))).await;
    send(&call, 81).await;
    call.answer(reply(Reply::Resync(wire::Resync { after: u64::MAX }))).await;
    send(&call, 82).await;
    assert_eq!(next(&mut f.events).await, FollowEvent::Connected);
    assert_eq!(next(&mut f.events).await, FollowEvent::Heartbeat { head: Position(90) });
    assert_eq!(next(&mut f.events).await, FollowEvent::Resync { after: Position(80) });
    placed(&mut f.events, 81).await;
    assert_eq!(next(&mut f.events).await, FollowEvent::Resync { after: Position(u64::MAX) });
    assert!(matches!(next(&mut f.events).await, FollowEvent::Lost(LinkError::Bad(_))));
}

/// Reports flow while the session takes nothing in, and the newest replaces those not sent.
#[tokio::test]
async fn reports_flow_under_backpressure() {
    let mut fake = Fake::start().await;
    let mut f = follow(&link_to(&fake.url), 0, 1);
    let mut call = next(&mut fake.follows).await;
    open(&mut call).await;
    for position in 1..=8 {
        send(&call, position).await;
    }
    for applied in 1..=50 {
        f.reports.send(Report { applied: Position(applied), write_to_visible_us: 2, apply_us: 1 }).unwrap();
    }
    loop {
        match call.next().await.message {
            Some(Request::Report(report)) if report.applied == 50 => break,
            Some(Request::Report(_)) => continue,
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(next(&mut f.events).await, FollowEvent::Connected);
    for position in 1..=8 {
        placed(&mut f.events, position).await;
    }
}

/// A report that does not change is repeated, so that an idle follower still counts.
#[tokio::test]
async fn reports_are_repeated() {
    let mut fake = Fake::start().await;
    let link = link_with(&fake, |waits| waits.report_every = Duration::from_millis(5));
    let f = follow(&link, 0, 64);
    let mut call = next(&mut fake.follows).await;
    open(&mut call).await;
    for _ in 0..3 {
        assert!(matches!(call.next().await.message, Some(Request::Report(_))));
    }
    drop(f);
}

/// A stream on which nothing comes any more is opened again in time.
#[tokio::test]
async fn a_silent_stream_is_given_up() {
    let mut fake = Fake::start().await;
    let link = link_with(&fake, |waits| waits.silence = Duration::from_millis(100));
    let mut f = follow(&link, 0, 64);
    let mut call = next(&mut fake.follows).await;
    open(&mut call).await;
    assert_eq!(next(&mut f.events).await, FollowEvent::Connected);
    assert!(matches!(next(&mut f.events).await, FollowEvent::Lost(LinkError::Deadline { .. })));
    assert_eq!(open(&mut next(&mut fake.follows).await).await, 0);
}

/// A server that is not there is said to be unreachable, and found when it comes.
#[tokio::test]
async fn finds_a_server_that_comes_later() {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    drop(listener);
    let mut f = follow(&link_to(&format!("http://{address}")), 0, 64);
    let FollowEvent::Lost(lost) = next(&mut f.events).await else { panic!("connected to nothing") };
    assert_eq!(lost.exit_code(), 4, "{lost}");
    assert!(lost.to_string().contains("refused"), "{lost}");
    let mut fake = Fake::start_on(tokio::net::TcpListener::bind(address).await.unwrap());
    open(&mut next(&mut fake.follows).await).await;
    while next(&mut f.events).await != FollowEvent::Connected {}
}
