//! The order's state at one journal entry, as values of the index, so that a start does not read the whole journal.
//!
//! One value for the order and one for each session; a fold holds only the sessions that changed since the one
//! before, because the index still has the others.

use super::{
    Answer, DriveIds, Order, Refusal,
    session::{Given, Session},
};
use prost::Message;
use std::collections::BTreeMap;
use tidefs_proto::bad::{Bad, bad, exactly};
use tidefs_timeline::{CheckpointNo, Position, SessionNo};

/// Values that bring an index's fold up to date.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Fold {
    /// The order itself.
    pub order: Vec<u8>,
    /// Sessions that changed.
    pub sessions: BTreeMap<SessionNo, Vec<u8>>,
}

#[derive(Clone, PartialEq, Message)]
struct OrderValue {
    #[prost(uint64, tag = "1")]
    epoch: u64,
    #[prost(uint64, tag = "2")]
    entry: u64,
    #[prost(bytes = "vec", tag = "3")]
    chain: Vec<u8>,
    #[prost(uint64, tag = "4")]
    position: u64,
    #[prost(uint32, tag = "5")]
    next_session: u32,
}

#[derive(Clone, PartialEq, Message)]
struct SessionValue {
    #[prost(string, tag = "1")]
    name: String,
    #[prost(bytes = "vec", tag = "2")]
    id: Vec<u8>,
    #[prost(uint64, tag = "3")]
    incarnation: u64,
    #[prost(uint64, tag = "4")]
    last: u64,
    #[prost(bytes = "vec", tag = "5")]
    digest: Vec<u8>,
    #[prost(message, repeated, tag = "6")]
    answers: Vec<AnswerValue>,
}

#[derive(Clone, PartialEq, Message)]
struct AnswerValue {
    #[prost(uint64, tag = "1")]
    number: u64,
    #[prost(bytes = "vec", tag = "2")]
    digest: Vec<u8>,
    /// 0 for a refusal.
    #[prost(uint64, tag = "3")]
    position: u64,
    #[prost(uint32, tag = "4")]
    reason: u32,
    #[prost(string, tag = "5")]
    text: String,
}

impl Order {
    /// The fold at the last entry. The next one holds what changes from here on.
    pub fn fold(&mut self) -> Fold {
        let order = OrderValue {
            epoch: self.epoch,
            entry: self.entry,
            chain: self.chain.to_vec(),
            position: self.position.0,
            next_session: self.next_session,
        };
        let dirty = std::mem::take(&mut self.dirty);
        let value = |number| self.sessions.get(&number).map(|session| (number, session_to(session)));
        Fold { order: order.encode_to_vec(), sessions: dirty.into_iter().filter_map(value).collect() }
    }

    /// The order that a fold holds, all its sessions given.
    ///
    /// # Errors
    /// When the bytes are not those of a fold.
    pub fn from_fold(ids: DriveIds, order: &[u8], sessions: &[(SessionNo, Vec<u8>)]) -> Bad<Self> {
        let value = OrderValue::decode(order).or_else(|error| bad("fold", error))?;
        let mut known = BTreeMap::new();
        for (number, bytes) in sessions {
            if number.0 >= value.next_session {
                return bad("fold.session", "is newer than the fold");
            }
            known.insert(*number, session_from(bytes)?);
        }
        Ok(Self {
            epoch: value.epoch,
            entry: value.entry,
            chain: exactly("fold.chain", &value.chain)?,
            position: Position(value.position),
            next_session: value.next_session,
            sessions: known,
            ..Self::new(ids)
        })
    }
}

fn session_to(session: &Session) -> Vec<u8> {
    let answer = |given: &Given| {
        let mut value =
            AnswerValue { number: given.number.0, digest: given.digest.to_vec(), ..AnswerValue::default() };
        match &given.answer {
            Answer::Placed(position) => value.position = position.0,
            Answer::Refused(reason, text) => {
                value.reason = reason.code();
                value.text = text.clone();
            }
        }
        value
    };
    SessionValue {
        name: session.name.clone(),
        id: session.id.to_vec(),
        incarnation: session.incarnation,
        last: session.last.0,
        digest: session.digest.to_vec(),
        answers: session.answers.iter().map(answer).collect(),
    }
    .encode_to_vec()
}

fn session_from(bytes: &[u8]) -> Bad<Session> {
    let value = SessionValue::decode(bytes).or_else(|error| bad("fold.session", error))?;
    let answer = |value: AnswerValue| {
        let answer = match (value.position, Refusal::from_code(value.reason)) {
            (0, Some(reason)) => Answer::refused(reason, value.text),
            (0, None) => return bad("fold.answer", "is neither a position nor a refusal"),
            (position, _) => Answer::Placed(Position(position)),
        };
        let digest = exactly("fold.answer.digest", &value.digest)?;
        Ok(Given { number: CheckpointNo(value.number), digest, answer })
    };
    Ok(Session {
        name: value.name,
        id: exactly("fold.session.id", &value.id)?,
        incarnation: value.incarnation,
        last: CheckpointNo(value.last),
        digest: exactly("fold.session.digest", &value.digest)?,
        answers: value.answers.into_iter().map(answer).collect::<Bad<_>>()?,
    })
}
