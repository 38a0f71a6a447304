//! The commit stream: sealed checkpoints go up in order, answers come down in the same order.
//!
//! The only state that outlives a connection is the highest number that has an answer. Each connection starts
//! with the oldest item behind it and sends everything again from there; the server knows a number and digest
//! that it has placed and gives the first answer again, so a resend never does anything twice. At most
//! [`INFLIGHT_MAX`] items are sent and not answered. Sending and receiving run side by side: a pack that takes
//! minutes does not hold back answers.

use super::{DriveId, Link, LinkError};
use crate::volume::Waiting;
use bytes::Bytes;
use parking_lot::Mutex;
use std::{
    collections::VecDeque,
    convert::Infallible,
    io,
    sync::Arc,
    time::{Duration, Instant},
};
use tidefs_proto::{
    Bad,
    bad::{bad, need},
    limits::{INFLIGHT_MAX, PACK_BYTES_MAX, PART_BYTES},
    refusal::Refusal,
    wire::{self, commit_reply::Message as Reply, commit_request::Message as Request},
};
use tidefs_timeline::{CheckpointNo, Hash, Position, SessionNo, limits::CHECKPOINT_BYTES_MAX};
use tokio::{
    sync::{Notify, Semaphore, mpsc},
    task::JoinHandle,
};
use tokio_stream::wrappers::ReceiverStream;

/// Messages between the sender and the connection; each holds a part of at most [`PART_BYTES`].
const QUEUE: usize = 2;
/// A read of a pack of more than this many bytes is made off the threads that serve the network.
const READ_INLINE_BYTES: usize = 64 << 10;

/// Who ships to where.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CommitAs {
    /// The drive.
    pub drive_id: DriveId,
    /// The session.
    pub session: SessionNo,
    /// The incarnation that the server has agreed to at attach.
    pub incarnation: u64,
}

/// Reads `len` bytes of a pack at an offset; all of them or an error. Called from any thread; it may block on
/// the local disk.
pub type ReadPack = Arc<dyn Fn(u64, usize) -> io::Result<Bytes> + Send + Sync>;

/// The bytes of a pack.
#[derive(Clone)]
pub struct PackBytes {
    /// Its id.
    pub id: Hash,
    /// Its length in bytes.
    pub length: u64,
    /// Its bytes.
    pub read: ReadPack,
}

/// A sealed, synced and numbered checkpoint.
#[derive(Clone)]
pub struct ShipItem {
    /// Its number.
    pub number: CheckpointNo,
    /// The encoded shipment.
    pub shipment: Bytes,
    /// Its digest.
    pub digest: [u8; 32],
    /// The pack of its new blocks.
    pub pack: Option<PackBytes>,
}

/// Where checkpoints to ship come from: the outbox.
pub trait ShipSource: Send + Sync + 'static {
    /// The item with the lowest number above `after`, if there is one. An item stays until its answer was taken
    /// in, and is the same each time: it may be sent again.
    fn next(&self, after: CheckpointNo) -> Option<ShipItem>;
    /// Ends when `next` may have become `Some` since this call. It may end for no reason.
    fn changed(&self) -> Waiting<()>;
}

/// What happens on the commit stream.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum CommitEvent {
    /// The stream is open.
    Connected,
    /// A checkpoint is placed and stored.
    Acked {
        /// Which.
        number: CheckpointNo,
        /// Where.
        position: Position,
        /// From its first byte sent until its last, in microseconds, on the connection that was answered.
        upload_us: u64,
    },
    /// A checkpoint is refused. If the reason uses its number up, it is refused for good and the next ones go on;
    /// otherwise it is sent again by itself, after a pause.
    Refused {
        /// Which.
        number: CheckpointNo,
        /// The server's number for the reason.
        reason: u32,
        /// The reason.
        text: String,
    },
    /// The stream broke, or could not be opened; it is tried again by itself.
    Lost(LinkError),
}

impl Link {
    /// Ships what `source` has until `out` is closed (or the task aborted). Every answer is given once, in order.
    /// Must be called inside a tokio runtime.
    pub fn commit(
        &self,
        who: CommitAs,
        source: Arc<dyn ShipSource>,
        out: mpsc::Sender<CommitEvent>,
    ) -> JoinHandle<()> {
        let mut shipper =
            Shipper { link: self.clone(), who, source, answered: CheckpointNo(0), out: out.clone() };
        tokio::spawn(async move {
            tokio::select! {
                _ = out.closed() => {}
                _ = shipper.run() => {}
            }
        })
    }
}

struct Shipper {
    link: Link,
    who: CommitAs,
    source: Arc<dyn ShipSource>,
    answered: CheckpointNo,
    out: mpsc::Sender<CommitEvent>,
}

impl Shipper {
    async fn run(&mut self) -> Infallible {
        let mut backoff = self.link.backoff(2);
        loop {
            let (started, before) = (Instant::now(), self.answered);
            let Err(lost) = self.connection().await;
            if self.answered > before || started.elapsed() >= self.link.config.waits.backoff_max {
                backoff.reset();
            }
            give(&self.out, CommitEvent::Lost(lost)).await;
            tokio::time::sleep(backoff.pause()).await;
        }
    }

    async fn connection(&mut self) -> Result<Infallible, LinkError> {
        let (link, waits) = (self.link.clone(), self.link.config.waits);
        let (to, requests) = mpsc::channel(QUEUE);
        let open = wire::CommitOpen {
            drive_id: self.who.drive_id.to_vec().into(),
            session: self.who.session.0,
            incarnation: self.who.incarnation,
        };
        // The queue is new and empty: this does not wait.
        let _ = to.send(request(Request::Open(open))).await;
        let mut client = link.client();
        let opened = async {
            let requests = ReceiverStream::new(requests);
            client.commit(requests).await.map_err(|status| link.error(status))
        };
        let stream = link.within("open commit", waits.attempt, opened).await?.into_inner();
        give(&self.out, CommitEvent::Connected).await;
        let desk = Desk::new();
        let sender = Sender { source: self.source.clone(), desk: &desk, to };
        let receiver =
            Receiver { link: &link, desk: &desk, out: &self.out, answered: &mut self.answered, stream };
        let after = *receiver.answered;
        tokio::select! {
            ended = sender.run(after) => ended,
            ended = receiver.run(waits.answer) => ended,
        }
    }
}

/// A failure to send means that `out` is closed, which ends the task at its next wait.
async fn give(out: &mpsc::Sender<CommitEvent>, event: CommitEvent) {
    let _ = out.send(event).await;
}

fn request(message: Request) -> wire::CommitRequest {
    wire::CommitRequest { message: Some(message) }
}

/// What the two directions of one connection share.
struct Desk {
    flights: Mutex<VecDeque<Flight>>,
    moved: Mutex<Instant>,
    room: Semaphore,
    answered: Notify,
}

/// A checkpoint under way.
struct Flight {
    number: CheckpointNo,
    upload_us: u64,
}

impl Desk {
    fn new() -> Self {
        let room = Semaphore::new(INFLIGHT_MAX);
        Self { flights: Mutex::default(), moved: Mutex::new(Instant::now()), room, answered: Notify::new() }
    }

    /// Notes progress in either direction.
    fn progress(&self) {
        *self.moved.lock() = Instant::now();
    }

    /// Whether something is under way and nothing has moved for `wait`.
    fn stuck(&self, wait: Duration) -> bool {
        !self.flights.lock().is_empty() && self.moved.lock().elapsed() >= wait
    }

    /// Ends when `number` is the oldest under way.
    async fn oldest(&self, number: CheckpointNo) {
        while self.flights.lock().front().is_some_and(|flight| flight.number < number) {
            self.answered.notified().await;
        }
    }

    /// Takes the answer to `number`, which must be the oldest under way.
    fn answer(&self, number: u64) -> Bad<Flight> {
        let mut flights = self.flights.lock();
        match flights.front().map(|flight| flight.number.0) {
            Some(oldest) if oldest == number => {}
            oldest => {
                let due = oldest.map_or("none is due".into(), |oldest| format!("{oldest} is due"));
                return bad("commit.answer", format_args!("for {number}, but {due}"));
            }
        }
        self.room.add_permits(1);
        self.answered.notify_one();
        flights.pop_front().map_or_else(|| bad("commit.answer", "none is due"), Ok)
    }
}

/// One direction: items up.
struct Sender<'a> {
    source: Arc<dyn ShipSource>,
    desk: &'a Desk,
    to: mpsc::Sender<wire::CommitRequest>,
}

impl Sender<'_> {
    async fn run(self, mut after: CheckpointNo) -> Result<Infallible, LinkError> {
        loop {
            if let Ok(room) = self.desk.room.acquire().await {
                room.forget();
            }
            let item = self.next(after).await;
            after = item.number;
            if let Err(error) = self.send_item(&item).await {
                // An item that cannot be sent must not keep back the answers to those before it.
                self.desk.oldest(item.number).await;
                return Err(error);
            }
        }
    }

    async fn next(&self, after: CheckpointNo) -> ShipItem {
        loop {
            // Asked for before looking, so that a change in between is not missed.
            let changed = self.source.changed();
            if let Some(item) = self.source.next(after).filter(|item| item.number > after) {
                return item;
            }
            changed.await;
        }
    }

    async fn send_item(&self, item: &ShipItem) -> Result<(), LinkError> {
        let started = Instant::now();
        self.desk.progress();
        self.desk.flights.lock().push_back(Flight { number: item.number, upload_us: 0 });
        if let Some(pack) = &item.pack {
            self.send_pack(pack).await?;
        }
        if item.shipment.is_empty() || item.shipment.len() > CHECKPOINT_BYTES_MAX {
            return Ok(bad("shipment", "is empty or larger than a checkpoint may be")?);
        }
        let mut rest = item.shipment.clone();
        while !rest.is_empty() {
            let data = rest.split_to(rest.len().min(PART_BYTES));
            let last = rest.is_empty();
            let upload_us = if last { self.uploaded(item.number, started) } else { 0 };
            let (number, digest) = (item.number.0, item.digest.to_vec().into());
            self.send(Request::Shipment(wire::ShipmentPart { number, data, last, digest, upload_us })).await;
        }
        Ok(())
    }

    /// Notes, and gives, how long the upload took, in microseconds, at least one.
    fn uploaded(&self, number: CheckpointNo, started: Instant) -> u64 {
        let upload_us = u64::try_from(started.elapsed().as_micros()).unwrap_or(u64::MAX).max(1);
        if let Some(flight) = self.desk.flights.lock().iter_mut().find(|flight| flight.number == number) {
            flight.upload_us = upload_us;
        }
        upload_us
    }

    async fn send_pack(&self, pack: &PackBytes) -> Result<(), LinkError> {
        if pack.length == 0 || pack.length > PACK_BYTES_MAX {
            let text = format!("its length is {} bytes, which no pack has", pack.length);
            return Err(LinkError::Pack { pack: pack.id, text });
        }
        let mut offset = 0;
        while offset < pack.length {
            let len = (pack.length - offset).min(PART_BYTES as u64);
            let data = read_part(pack, offset, len as usize).await?;
            let last = offset + len == pack.length;
            let (id, length) = (pack.id.0.to_vec().into(), pack.length);
            self.send(Request::Pack(wire::PackPart { pack: id, offset, data, last, length })).await;
            offset += len;
        }
        Ok(())
    }

    async fn send(&self, message: Request) {
        if self.to.send(request(message)).await.is_err() {
            // The call has ended: the other direction gets to know why, or that nothing moves any more.
            std::future::pending::<()>().await;
        }
        self.desk.progress();
    }
}

async fn read_part(pack: &PackBytes, offset: u64, len: usize) -> Result<Bytes, LinkError> {
    let read = pack.read.clone();
    let bytes = if len <= READ_INLINE_BYTES {
        read(offset, len)
    } else {
        let bytes = tokio::task::spawn_blocking(move || read(offset, len)).await;
        bytes.unwrap_or_else(|error| Err(io::Error::other(error)))
    };
    let wrong = |text| Err(LinkError::Pack { pack: pack.id, text });
    match bytes {
        Ok(bytes) if bytes.len() == len => Ok(bytes),
        Ok(bytes) => wrong(format!("{} bytes at {offset} where {len} should be", bytes.len())),
        Err(error) => wrong(format!("at byte {offset}: {error}")),
    }
}

/// A refusal that leaves the number open, as an error that opens the stream anew.
fn asks_again(event: &CommitEvent) -> Option<LinkError> {
    let CommitEvent::Refused { reason, text, .. } = event else { return None };
    let used = Refusal::from_code(*reason).is_some_and(Refusal::uses_number);
    (!used).then(|| LinkError::Refused { code: tonic::Code::FailedPrecondition, text: text.clone() })
}

/// The other direction: answers down.
struct Receiver<'a> {
    link: &'a Link,
    desk: &'a Desk,
    out: &'a mpsc::Sender<CommitEvent>,
    answered: &'a mut CheckpointNo,
    stream: tonic::Streaming<wire::CommitReply>,
}

impl Receiver<'_> {
    async fn run(mut self, wait: Duration) -> Result<Infallible, LinkError> {
        loop {
            let reply = match tokio::time::timeout(wait / 4, self.stream.message()).await {
                Ok(reply) => reply.map_err(|status| self.link.error(status))?,
                Err(_) if self.desk.stuck(wait) => {
                    let server = self.link.config.server.clone();
                    return Err(LinkError::Deadline { what: "commit", wait, server });
                }
                Err(_) => continue,
            };
            let reply = reply.ok_or_else(|| self.link.ended("commit"))?;
            let (number, event) = self.event(need("commit.message", reply.message)?)?;
            if let Some(again) = asks_again(&event) {
                // Not answered for good: everything from here on is sent anew.
                give(self.out, event).await;
                return Err(again);
            }
            give(self.out, event).await;
            // No wait between the two: an answer that was given is never asked for again.
            *self.answered = number;
            // Time that the session took to take the answer in is not the server's.
            self.desk.progress();
        }
    }

    fn event(&self, reply: Reply) -> Bad<(CheckpointNo, CommitEvent)> {
        let number = match &reply {
            Reply::Acknowledged(answer) => answer.number,
            Reply::Refused(answer) => answer.number,
        };
        let Flight { number, upload_us } = self.desk.answer(number)?;
        let event = match reply {
            Reply::Acknowledged(answer) => {
                CommitEvent::Acked { number, position: Position(answer.position), upload_us }
            }
            Reply::Refused(answer) => {
                CommitEvent::Refused { number, reason: answer.reason, text: answer.text }
            }
        };
        Ok((number, event))
    }
}
