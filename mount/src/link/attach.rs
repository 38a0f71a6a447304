//! Attaching a session to its drive.

use super::{DriveId, Link, LinkError};
use tidefs_proto::{
    Bad,
    bad::{bad, exactly, need},
    limits::PROTOCOL,
    model::node_from,
    shipment::session_name_from,
    wire,
};
use tidefs_timeline::{CheckpointNo, Node, Position, SessionNo};

/// The drive and the history that a session was attached to before.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Known {
    /// The drive.
    pub drive_id: DriveId,
    /// The history: another one means that the server was restored from a copy.
    pub history: [u8; 16],
}

/// What a session shows when it attaches.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Attach {
    /// 16 random bytes, kept in the state folder.
    pub session_id: [u8; 16],
    /// The name asked for.
    pub session_name: String,
    /// The incarnation that the state folder holds; 0 for a new session.
    pub incarnation: u64,
    /// The one to use from now on, stored before this is sent.
    pub next_incarnation: u64,
    /// Highest position applied.
    pub position: Position,
    /// What it was attached to before; none for a new session.
    pub known: Option<Known>,
}

/// What the server answers.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Attached {
    /// The session's number in the drive.
    pub session: SessionNo,
    /// The name that it has.
    pub session_name: String,
    /// The drive.
    pub drive_id: DriveId,
    /// Its history.
    pub history: [u8; 16],
    /// One more at each start of a server on the drive.
    pub epoch: u64,
    /// The head.
    pub position: Position,
    /// Highest checkpoint of this session that has an answer.
    pub acknowledged: CheckpointNo,
    /// The digest of that shipment; zeros when there is none.
    pub digest: [u8; 32],
    /// The root directory's node at the head.
    pub root: Node,
    /// When the drive was made, microseconds since 1970.
    pub drive_created_unix_us: u64,
}

impl Link {
    /// Attaches; one round trip. Not tried again by itself: a compare and set of the incarnation must not be
    /// repeated without the session knowing.
    ///
    /// # Errors
    /// Ends within `waits.attempt`: NotFound (no such drive), Refused (version, rights, another incarnation,
    /// another history), Unreachable, Deadline, Bad.
    pub async fn attach(&self, attach: &Attach) -> Result<Attached, LinkError> {
        let known = |part: fn(&Known) -> [u8; 16]| attach.known.as_ref().map(part).map(Vec::from);
        let ask = wire::AttachRequest {
            protocol: PROTOCOL,
            drive: self.config.drive.clone(),
            session_id: attach.session_id.to_vec().into(),
            session_name: attach.session_name.clone(),
            incarnation: attach.incarnation,
            next_incarnation: attach.next_incarnation,
            position: attach.position.0,
            drive_id: known(|known| known.drive_id).unwrap_or_default().into(),
            history: known(|known| known.history).unwrap_or_default().into(),
            token: self.config.token.clone(),
        };
        let mut client = self.client();
        let answer = async { client.attach(ask).await.map_err(|status| self.error(status)) };
        let reply = self.within("attach", self.config.waits.attempt, answer).await?.into_inner();
        Ok(attached_from(&reply)?)
    }
}

fn attached_from(reply: &wire::AttachReply) -> Bad<Attached> {
    if reply.session == 0 {
        return bad("attach.session", "is 0, which is the drive itself");
    }
    let root = node_from(need("attach.root", reply.root.as_ref())?)?;
    if !root.is_dir() {
        return bad("attach.root", "is not a directory");
    }
    let digest = match reply.acknowledged {
        0 if reply.digest.is_empty() => [0; 32],
        _ => exactly("attach.digest", &reply.digest)?,
    };
    Ok(Attached {
        session: SessionNo(reply.session),
        session_name: session_name_from(&reply.session_name)?,
        drive_id: exactly("attach.drive_id", &reply.drive_id)?,
        history: exactly("attach.history", &reply.history)?,
        epoch: reply.epoch,
        position: Position(reply.position),
        acknowledged: CheckpointNo(reply.acknowledged),
        digest,
        root,
        drive_created_unix_us: reply.drive_created_unix_us,
    })
}
