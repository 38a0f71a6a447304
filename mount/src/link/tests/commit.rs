use super::{
    fake::{CommitCall, Fake},
    *,
};
use crate::volume::Waiting;
use bytes::Bytes;
use parking_lot::Mutex;
use std::{collections::BTreeMap, io};
use tidefs_proto::limits::{INFLIGHT_MAX, PART_BYTES};
use tidefs_timeline::{CheckpointNo, Hash};
use tokio::sync::Notify;
use wire::commit_request::Message as Request;

/// An outbox: items stay until the test removes them.
#[derive(Default)]
struct Outbox {
    items: Mutex<BTreeMap<u64, ShipItem>>,
    changed: Arc<Notify>,
}

impl ShipSource for Outbox {
    fn next(&self, after: CheckpointNo) -> Option<ShipItem> {
        self.items.lock().range(after.0 + 1..).next().map(|(_, item)| item.clone())
    }

    fn changed(&self) -> Waiting<()> {
        let notified = self.changed.clone().notified_owned();
        Box::pin(notified)
    }
}

impl Outbox {
    fn with(numbers: std::ops::RangeInclusive<u64>) -> Arc<Self> {
        let outbox = Arc::new(Self::default());
        numbers.for_each(|number| outbox.put(item(number)));
        outbox
    }

    fn put(&self, item: ShipItem) {
        self.items.lock().insert(item.number.0, item);
        self.changed.notify_waiters();
    }
}

/// The bytes of checkpoint `number`: more than a part, not a multiple of one.
fn shipment(number: u64) -> Bytes {
    vec![number as u8; PART_BYTES + number as usize].into()
}

/// The bytes of its pack; every other checkpoint has one.
fn pack(number: u64) -> Option<Bytes> {
    (number % 2 == 1).then(|| vec![!number as u8; 2 * PART_BYTES + 5].into())
}

fn item(number: u64) -> ShipItem {
    let pack = pack(number).map(|bytes| {
        let (id, length) = (Hash(*blake3::hash(&bytes).as_bytes()), bytes.len() as u64);
        let read: ReadPack = Arc::new(move |at, len| Ok(bytes.slice(at as usize..at as usize + len)));
        PackBytes { id, length, read }
    });
    let digest = [number as u8; 32];
    ShipItem { number: CheckpointNo(number), shipment: shipment(number), digest, pack }
}

/// Reads the opening and checks it.
async fn open(call: &mut CommitCall) {
    let open = wire::CommitOpen { drive_id: DRIVE.to_vec().into(), session: 3, incarnation: 9 };
    assert_eq!(call.next().await.message, Some(Request::Open(open)));
}

/// Reads one whole item, checks every byte of it, and gives its number.
async fn take(call: &mut CommitCall) -> u64 {
    let (mut packed, mut shipped) = (Vec::new(), Vec::new());
    loop {
        match call.next().await.message {
            Some(Request::Pack(part)) => {
                assert!(part.data.len() <= PART_BYTES && shipped.is_empty());
                assert_eq!(part.offset, packed.len() as u64);
                packed.extend_from_slice(&part.data);
                assert_eq!(part.last, packed.len() as u64 == part.length);
            }
            Some(Request::Shipment(part)) => {
                assert!(part.data.len() <= PART_BYTES);
                assert_eq!(part.digest, vec![part.number as u8; 32]);
                shipped.extend_from_slice(&part.data);
                if part.last {
                    assert_eq!(shipped, shipment(part.number));
                    assert_eq!(packed, pack(part.number).unwrap_or_default());
                    return part.number;
                }
            }
            other => panic!("{other:?}"),
        }
    }
}

fn acknowledged(number: u64) -> wire::CommitReply {
    let answer = wire::Acknowledged { number, position: number + 100 };
    wire::CommitReply { message: Some(wire::commit_reply::Message::Acknowledged(answer)) }
}

fn ship(link: &Link, outbox: &Arc<Outbox>) -> mpsc::Receiver<CommitEvent> {
    let (out, events) = mpsc::channel(64);
    let who = CommitAs { drive_id: DRIVE, session: SessionNo(3), incarnation: 9 };
    link.commit(who, outbox.clone(), out);
    events
}

/// Waits for the answer to `number`, which must be the next event.
async fn acked(events: &mut mpsc::Receiver<CommitEvent>, expected: u64) {
    match next(events).await {
        CommitEvent::Acked { number, position, upload_us } => {
            assert_eq!((number.0, position.0), (expected, expected + 100));
            assert!(upload_us > 0);
        }
        other => panic!("{other:?} instead of the answer to {expected}"),
    }
}

/// A connection that breaks is followed by one that starts with the oldest unanswered item; none is skipped,
/// none is answered twice, and the answers come in order.
#[tokio::test]
async fn resends_from_the_oldest_unanswered() {
    let mut fake = Fake::start().await;
    let mut events = ship(&link_to(&fake.url), &Outbox::with(1..=7));
    let mut call = next(&mut fake.commits).await;
    open(&mut call).await;
    for number in 1..=4 {
        assert_eq!(take(&mut call).await, number);
    }
    assert_eq!(next(&mut events).await, CommitEvent::Connected);
    call.answer(acknowledged(1)).await;
    call.answer(acknowledged(2)).await;
    acked(&mut events, 1).await;
    acked(&mut events, 2).await;
    call.fail(tonic::Status::unavailable("stop")).await;
    assert!(matches!(next(&mut events).await, CommitEvent::Lost(LinkError::Unreachable { .. })));

    let mut call = next(&mut fake.commits).await;
    open(&mut call).await;
    assert_eq!(next(&mut events).await, CommitEvent::Connected);
    for number in 3..=7 {
        assert_eq!(take(&mut call).await, number);
        call.answer(acknowledged(number)).await;
        acked(&mut events, number).await;
    }
}

/// No more than the agreed number of items is under way without an answer.
#[tokio::test]
async fn window_is_bounded() {
    let mut fake = Fake::start().await;
    let mut events = ship(&link_to(&fake.url), &Outbox::with(1..=6));
    let mut call = next(&mut fake.commits).await;
    open(&mut call).await;
    for number in 1..=INFLIGHT_MAX as u64 {
        assert_eq!(take(&mut call).await, number);
    }
    // Nothing else may come: a while of silence cannot be waited for as an event.
    let more = tokio::time::timeout(Duration::from_millis(100), call.requests.message()).await;
    assert!(more.is_err(), "{more:?}");
    call.answer(acknowledged(1)).await;
    assert_eq!(take(&mut call).await, INFLIGHT_MAX as u64 + 1);
    assert_eq!(next(&mut events).await, CommitEvent::Connected);
    acked(&mut events, 1).await;
}

/// Items that appear later are sent when they appear.
#[tokio::test]
async fn wakes_for_new_items() {
    let mut fake = Fake::start().await;
    let outbox = Outbox::with(1..=1);
    let mut events = ship(&link_to(&fake.url), &outbox);
    let mut call = next(&mut fake.commits).await;
    open(&mut call).await;
    assert_eq!(next(&mut events).await, CommitEvent::Connected);
    for number in 1..=5 {
        assert_eq!(take(&mut call).await, number);
        call.answer(acknowledged(number)).await;
        acked(&mut events, number).await;
        outbox.put(item(number + 1));
    }
}

/// An answer out of turn, to nothing, or empty costs the connection; nothing is taken for answered by it.
#[tokio::test]
async fn answers_out_of_turn_are_not_taken() {
    let mut fake = Fake::start().await;
    let mut events = ship(&link_to(&fake.url), &Outbox::with(1..=2));
    for bad in [acknowledged(2), acknowledged(77), wire::CommitReply { message: None }] {
        let mut call = next(&mut fake.commits).await;
        open(&mut call).await;
        assert_eq!(take(&mut call).await, 1);
        assert_eq!(take(&mut call).await, 2);
        call.answer(bad).await;
        assert_eq!(next(&mut events).await, CommitEvent::Connected);
        assert!(matches!(next(&mut events).await, CommitEvent::Lost(LinkError::Bad(_))));
    }
    let mut call = next(&mut fake.commits).await;
    open(&mut call).await;
    assert_eq!(take(&mut call).await, 1);
}

/// A refusal is given with its reason, and what is behind it goes on.
#[tokio::test]
async fn a_refusal_does_not_stop_the_next() {
    let mut fake = Fake::start().await;
    let mut events = ship(&link_to(&fake.url), &Outbox::with(1..=2));
    let mut call = next(&mut fake.commits).await;
    open(&mut call).await;
    assert_eq!(take(&mut call).await, 1);
    let refused = wire::Refused { number: 1, reason: 2, text: "too large".into() };
    call.answer(wire::CommitReply { message: Some(wire::commit_reply::Message::Refused(refused)) }).await;
    assert_eq!(take(&mut call).await, 2);
    call.answer(acknowledged(2)).await;
    assert_eq!(next(&mut events).await, CommitEvent::Connected);
    let refused = CommitEvent::Refused { number: CheckpointNo(1), reason: 2, text: "too large".into() };
    assert_eq!(next(&mut events).await, refused);
    acked(&mut events, 2).await;
}

/// A pack that cannot be read is said, and does not keep back the answers to the items before it.
#[tokio::test]
async fn an_unreadable_pack_holds_back_nothing_before_it() {
    let mut fake = Fake::start().await;
    let outbox = Outbox::with(1..=1);
    let read: ReadPack = Arc::new(|_, _| Err(io::Error::other("input/output error")));
    let pack = PackBytes { id: Hash([1; 32]), length: 1 << 20, read };
    outbox.put(ShipItem { pack: Some(pack), ..item(2) });
    let mut events = ship(&link_to(&fake.url), &outbox);
    let mut call = next(&mut fake.commits).await;
    open(&mut call).await;
    assert_eq!(next(&mut events).await, CommitEvent::Connected);
    assert_eq!(take(&mut call).await, 1);
    call.answer(acknowledged(1)).await;
    acked(&mut events, 1).await;
    assert!(matches!(next(&mut events).await, CommitEvent::Lost(LinkError::Pack { .. })));
    outbox.put(item(2));
    let mut call = loop {
        let mut call = next(&mut fake.commits).await;
        open(&mut call).await;
        match call.requests.message().await {
            Ok(Some(_)) => break call,
            _ => continue,
        }
    };
    while !matches!(call.next().await.message, Some(Request::Shipment(part)) if part.last && part.number == 2)
    {
    }
    call.answer(acknowledged(2)).await;
    while !matches!(next(&mut events).await, CommitEvent::Acked { number: CheckpointNo(2), .. }) {}
}

/// A server that takes everything and answers nothing is given up in time.
#[tokio::test]
async fn a_silent_server_is_given_up() {
    let mut fake = Fake::start().await;
    let link = link_with(&fake, |waits| waits.answer = Duration::from_millis(200));
    let mut events = ship(&link, &Outbox::with(1..=1));
    let mut call = next(&mut fake.commits).await;
    open(&mut call).await;
    assert_eq!(take(&mut call).await, 1);
    assert_eq!(next(&mut events).await, CommitEvent::Connected);
    assert!(matches!(next(&mut events).await, CommitEvent::Lost(LinkError::Deadline { .. })));
}

/// The task ends when nobody listens any more, also while it waits for work or for the server.
#[tokio::test]
async fn ends_with_its_listener() {
    let (out, events) = mpsc::channel(1);
    let who = CommitAs { drive_id: DRIVE, session: SessionNo(3), incarnation: 9 };
    let task = link_to("http://127.0.0.1:1").commit(who, Arc::new(Outbox::default()), out);
    drop(events);
    tokio::time::timeout(Duration::from_secs(20), task).await.unwrap().unwrap();
}
