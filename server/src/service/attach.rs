//! Attach.

use super::status;
use crate::{drives::Drives, order::AttachAsk, store::folder};
use tidefs_proto::{
    bad::{Bad, exactly},
    limits::PROTOCOL,
    model::node_to,
    shipment::session_name_from,
    wire,
};
use tidefs_timeline::{Head, NodeId, Position};
use tonic::Status;

/// Attaches a session to a drive.
pub(super) async fn attach(
    drives: &Drives,
    request: wire::AttachRequest,
) -> Result<wire::AttachReply, Status> {
    if request.protocol != PROTOCOL {
        return Err(Status::unimplemented(format!(
            "this server speaks protocol {PROTOCOL}, not {}: use the same version of tidefs on both sides",
            request.protocol
        )));
    }
    folder::check_drive_name(&request.drive).map_err(|error| Status::invalid_argument(error.to_string()))?;
    let ask = ask_from(&request)?;
    let drive = drives.named(&request.drive).await.map_err(status::drives)?;
    let attached = drive.attach(ask).await.map_err(status::ended)?.map_err(status::attach)?;
    let root = drive.head.read().node(NodeId::ROOT).map_err(status::head)?;
    tracing::info!(
        drive = drive.name,
        session = attached.session.0,
        name = attached.name,
        position = attached.position.0,
        "attached"
    );
    Ok(wire::AttachReply {
        session: attached.session.0,
        session_name: attached.name,
        drive_id: drive.ids.drive.to_vec().into(),
        history: drive.ids.history.to_vec().into(),
        epoch: attached.epoch,
        position: attached.position.0,
        acknowledged: attached.acknowledged.0,
        digest: attached.digest.to_vec().into(),
        root: root.as_deref().map(node_to),
        drive_created_unix_us: drive.created_unix_us,
    })
}

fn ask_from(request: &wire::AttachRequest) -> Bad<AttachAsk> {
    let of = if request.drive_id.is_empty() && request.history.is_empty() {
        None
    } else {
        Some((exactly("drive_id", &request.drive_id)?, exactly("history", &request.history)?))
    };
    Ok(AttachAsk {
        id: exactly("session_id", &request.session_id)?,
        name: session_name_from(&request.session_name)?,
        incarnation: request.incarnation,
        next_incarnation: request.next_incarnation,
        position: Position(request.position),
        of,
    })
}
