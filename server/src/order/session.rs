//! A session as the server knows it, and what it was answered.

use super::{Order, Refusal, ReplayError};
use std::collections::VecDeque;
use tidefs_proto::{
    BadMessage,
    bad::{Bad, bad, exactly},
    wire,
};
use tidefs_timeline::{CheckpointNo, Position, SessionNo, Version};

/// Answers that are kept for each session: far more than the checkpoints that one may have under way.
pub const ANSWERS_KEPT: usize = 64;
/// Longest text of a refusal, in bytes, so that a session's fold stays a value that an index takes.
const TEXT_BYTES_MAX: usize = 240;

const _: () = assert!(ANSWERS_KEPT > 4 * tidefs_proto::limits::INFLIGHT_MAX);
const _: () = assert!(ANSWERS_KEPT * (TEXT_BYTES_MAX + 64) + 512 < crate::store::index::VALUE_BYTES_LIMIT);

/// What a shipment was answered.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Answer {
    /// It stands there on the timeline.
    Placed(Position),
    /// It was not placed.
    Refused(Refusal, String),
}

impl Answer {
    /// A refusal, its text cut to what is kept.
    pub fn refused(reason: Refusal, text: impl Into<String>) -> Self {
        let mut text = text.into();
        let mut end = text.len().min(TEXT_BYTES_MAX);
        while !text.is_char_boundary(end) {
            end -= 1;
        }
        text.truncate(end);
        Answer::Refused(reason, text)
    }
}

/// An answer with what it was given for.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Given {
    pub number: CheckpointNo,
    pub digest: [u8; 32],
    pub answer: Answer,
}

/// A session of a drive.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Session {
    /// Its name.
    pub name: String,
    /// The id that its state folder keeps.
    pub id: [u8; 16],
    /// The incarnation that may ship.
    pub incarnation: u64,
    /// The last number that has an answer; 0 before the first.
    pub last: CheckpointNo,
    /// The digest of that shipment; zeros before the first.
    pub digest: [u8; 32],
    /// The last answers, oldest first.
    pub(super) answers: VecDeque<Given>,
}

impl Session {
    pub(super) fn given(&self, number: CheckpointNo) -> Option<&Given> {
        self.answers.iter().rev().find(|given| given.number == number)
    }
}

impl Order {
    pub(super) fn opened(&mut self, opened: &wire::SessionOpened) -> Result<(), ReplayError> {
        let session = SessionNo(opened.session);
        if opened.session != self.next_session {
            return Err(field("opened.session", "is not the next session").into());
        }
        let fresh = Session {
            name: opened.name.clone(),
            id: exactly("opened.id", &opened.id)?,
            incarnation: opened.incarnation,
            last: CheckpointNo(0),
            digest: [0; 32],
            answers: VecDeque::new(),
        };
        self.next_session += 1;
        self.sessions.insert(session, fresh);
        self.dirty.insert(session);
        Ok(())
    }

    pub(super) fn resumed(&mut self, resumed: &wire::SessionResumed) -> Result<(), ReplayError> {
        let number = SessionNo(resumed.session);
        let Some(session) = self.sessions.get_mut(&number) else {
            return Err(field("resumed.session", "is not known").into());
        };
        session.incarnation = resumed.incarnation;
        self.dirty.insert(number);
        Ok(())
    }

    pub(super) fn answered(
        &mut self,
        version: Version,
        digest: [u8; 32],
        answer: Answer,
    ) -> Result<(), ReplayError> {
        let Some(session) = self.sessions.get_mut(&version.session) else {
            return Err(field("session", "is not known").into());
        };
        if version.number != session.last.next() {
            return Err(field("number", "is not the session's next").into());
        }
        session.last = version.number;
        session.digest = digest;
        session.answers.push_back(Given { number: version.number, digest, answer });
        if session.answers.len() > ANSWERS_KEPT {
            session.answers.pop_front();
        }
        self.dirty.insert(version.session);
        Ok(())
    }
}

fn field(field: &'static str, why: &str) -> BadMessage {
    BadMessage { field, why: why.into() }
}

/// The record of a number that a refusal used up.
pub(super) fn refused_to(version: Version, digest: [u8; 32], answer: &Answer) -> Option<wire::RefusedNumber> {
    let Answer::Refused(reason, text) = answer else { return None };
    Some(wire::RefusedNumber {
        session: version.session.0,
        number: version.number.0,
        digest: digest.to_vec().into(),
        reason: reason.code(),
        text: text.clone(),
    })
}

pub(super) fn refused_from(record: &wire::RefusedNumber) -> Bad<(Version, [u8; 32], Answer)> {
    let Some(reason) = Refusal::from_code(record.reason) else {
        return bad("refused.reason", "is not known here: use a newer tidefs-server");
    };
    let version = Version { session: SessionNo(record.session), number: CheckpointNo(record.number) };
    let digest = exactly("refused.digest", &record.digest)?;
    Ok((version, digest, Answer::refused(reason, record.text.clone())))
}
