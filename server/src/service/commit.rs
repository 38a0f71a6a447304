//! Commit: a session's packs and shipments come in order, and so do the answers.
//!
//! One task reads, and hands each shipment to the sequencer as soon as it is whole; a second one waits for the
//! answers in the same order, so that several are under way.

use super::{Answers, give, status, upload::Upload};
use crate::{
    drive::Drive,
    drives::Drives,
    order::{Answer, Submission},
    packs::{self, PacksError},
    store::BlocksError,
    telemetry,
};
use bytes::{Bytes, BytesMut};
use std::sync::Arc;
use tidefs_proto::{bad::exactly, limits::INFLIGHT_MAX, wire};
use tidefs_timeline::{CheckpointNo, Hash, SessionNo, Version, limits::CHECKPOINT_BYTES_MAX};
use tokio::sync::{mpsc, oneshot};
use tonic::{Status, Streaming};
use wire::commit_request::Message;

/// An answer that is awaited, with its number.
type Awaited = (u64, oneshot::Receiver<Answer>);

/// Serves one commit stream until the caller ends it.
pub(super) async fn commit(
    drives: Arc<Drives>,
    mut requests: Streaming<wire::CommitRequest>,
    answers: Answers<wire::CommitReply>,
) -> Result<(), Status> {
    let open = match requests.message().await?.and_then(|request| request.message) {
        Some(Message::Open(open)) => open,
        _ => return Err(Status::invalid_argument("a commit stream begins with its open message")),
    };
    let drive = drives.of_id(&open.drive_id).await.map_err(status::drives)?;
    let (awaited, answered) = mpsc::channel(INFLIGHT_MAX);
    let reader = Reader { drive, open, upload: None, shipment: BytesMut::new(), awaited };
    let (read, answer) = tokio::join!(reader.read(requests), reply(answered, answers));
    read.and(answer)
}

/// Gives the answers in the order of the shipments.
async fn reply(
    mut answered: mpsc::Receiver<Awaited>,
    answers: Answers<wire::CommitReply>,
) -> Result<(), Status> {
    while let Some((number, answer)) = answered.recv().await {
        let answer = answer.await.map_err(|_| status::ended(crate::drive::Ended))?;
        let message = match answer {
            Answer::Placed(position) => {
                wire::commit_reply::Message::Acknowledged(wire::Acknowledged { number, position: position.0 })
            }
            Answer::Refused(reason, text) => {
                wire::commit_reply::Message::Refused(wire::Refused { number, reason: reason.code(), text })
            }
        };
        give(&answers, wire::CommitReply { message: Some(message) }).await?;
    }
    Ok(())
}

struct Reader {
    drive: Arc<Drive>,
    open: wire::CommitOpen,
    upload: Option<Upload>,
    /// The parts of a shipment that have come.
    shipment: BytesMut,
    awaited: mpsc::Sender<Awaited>,
}

impl Reader {
    async fn read(mut self, mut requests: Streaming<wire::CommitRequest>) -> Result<(), Status> {
        loop {
            let request = tokio::select! {
                request = requests.message() => request?,
                // The answering half failed and says why.
                () = self.awaited.closed() => return Ok(()),
            };
            let Some(request) = request else { return Ok(()) };
            match request.message {
                Some(Message::Pack(part)) => Upload::part(&mut self.upload, &self.drive, part).await?,
                Some(Message::Shipment(part)) => self.shipment_part(part).await?,
                Some(Message::Open(_)) => {
                    return Err(Status::invalid_argument("a commit stream is opened once"));
                }
                None => {
                    return Err(Status::invalid_argument("an empty message: use the same version of tidefs"));
                }
            }
        }
    }

    async fn shipment_part(&mut self, part: wire::ShipmentPart) -> Result<(), Status> {
        if self.shipment.len() + part.data.len() > CHECKPOINT_BYTES_MAX {
            return Err(Status::invalid_argument(format!(
                "shipment {} exceeds {CHECKPOINT_BYTES_MAX} bytes: cut smaller batches",
                part.number
            )));
        }
        let bytes: Bytes = if part.last && self.shipment.is_empty() {
            part.data
        } else {
            self.shipment.extend_from_slice(&part.data);
            if !part.last {
                return Ok(());
            }
            std::mem::take(&mut self.shipment).freeze()
        };
        telemetry::uploaded(part.upload_us);
        let version = Version { session: SessionNo(self.open.session), number: CheckpointNo(part.number) };
        let digest = exactly("shipment.digest", &part.digest)?;
        let submission = Submission::read(version, self.open.incarnation, bytes, digest)?;
        if let Some(pack) = submission.pack() {
            know(&self.drive, pack).await?;
        }
        let answer = self.drive.submit(submission).await.map_err(status::ended)?;
        let awaited = self.awaited.send((part.number, answer)).await;
        // When the answering half has failed it says why; nothing more is read then.
        awaited.or(Ok(()))
    }
}

/// Makes a pack known that was stored before the server was started again. If it is not stored, the shipment
/// is refused in its turn.
async fn know(drive: &Drive, pack: Hash) -> Result<(), Status> {
    if drive.has_pack(pack).await.map_err(status::ended)?.map_err(status::head)? {
        return Ok(());
    }
    match packs::load(&*drive.blocks, pack).await {
        Ok(table) => drive.pack_arrived(pack, table).await.map_err(status::ended),
        Err(PacksError::Blocks(BlocksError::NotFound { .. })) => Ok(()),
        Err(error) => Err(status::stored(error)),
    }
}
