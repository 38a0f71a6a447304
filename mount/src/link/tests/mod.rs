//! The link against a server that the test plays by hand. Nothing here sleeps: every step waits for the message
//! or event that it needs.

mod commit;
mod fake;
mod follow;
mod questions;

use super::*;
use fake::Fake;
use tidefs_timeline::{Node, Timestamp};
use tokio::sync::mpsc;

const DRIVE: DriveId = [7; 16];

/// A link to `server` whose pauses are short.
fn link_to(server: &str) -> Link {
    let mut config = LinkConfig::new(server, "main");
    config.waits.backoff_min = Duration::from_millis(1);
    config.waits.backoff_max = Duration::from_millis(20);
    Link::new(config).unwrap()
}

fn link_with(fake: &Fake, change: impl FnOnce(&mut Waits)) -> Link {
    let mut config = (*link_to(&fake.url).config).clone();
    change(&mut config.waits);
    Link::new(config).unwrap()
}

/// The next of a queue, or a failure: a test that waits for what never comes must not hang.
async fn next<T>(queue: &mut mpsc::Receiver<T>) -> T {
    tokio::time::timeout(Duration::from_secs(20), queue.recv()).await.expect("in time").expect("open")
}

fn root() -> Node {
    Node::root(Timestamp { seconds: 1, nanos: 0 })
}

/// Pauses double up to the bound, never pass it, and start again after progress.
#[test]
fn backoff_is_bounded() {
    let link = |seed| {
        let (min, max) = (Duration::from_millis(50), Duration::from_secs(5));
        Backoff::new(min, max, SmallRng::seed_from_u64(seed))
    };
    for seed in 0..50 {
        let mut backoff = link(seed);
        let mut step = Duration::from_millis(50);
        for _ in 0..100 {
            let pause = backoff.pause();
            assert!(pause <= step && pause >= step / 2, "{pause:?} in a step of {step:?}");
            step = (step * 2).min(Duration::from_secs(5));
        }
        backoff.reset();
        assert!(backoff.pause() <= Duration::from_millis(50));
    }
    assert_ne!(link(1).pause(), link(2).pause());
}

/// What tonic's decoder says about bytes that are no message is told apart from a refusal.
#[test]
fn statuses_become_errors() {
    use prost::Message;
    let text = wire::AttachReply::decode(&[0xff_u8][..]).unwrap_err().to_string();
    let of = |status| LinkError::from_status("http://s", status);
    assert!(matches!(of(tonic::Status::internal(text)), LinkError::Bad(_)));
    let internal = of(tonic::Status::internal("disk full"));
    assert!(matches!(&internal, LinkError::Refused { text, .. } if text == "disk full"));
    let cases = [
        (internal, libc::EIO, 1),
        (of(tonic::Status::not_found("drive x")), libc::ESTALE, 3),
        (of(tonic::Status::unavailable("going away")), libc::EIO, 4),
        (of(tonic::Status::permission_denied("no")), libc::EACCES, 8),
        (of(tonic::Status::failed_precondition("fork")), libc::EIO, 8),
        (of(tonic::Status::deadline_exceeded("late")), libc::ETIMEDOUT, 5),
    ];
    for (error, errno, exit) in cases {
        assert_eq!((error.errno(), error.exit_code()), (errno, exit), "{error}");
    }
}
