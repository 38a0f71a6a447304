//! Attaching: a new session gets a number, an old one is resumed by exactly one holder of its state folder.
//!
//! The incarnation is a compare and set. A mount stores the incarnation that it is about to have before it asks
//! for it; so when two copies of one state folder come, the second one holds an incarnation that the server has
//! moved on from, and is told so before it ships anything.

use super::{Order, Turn};
use tidefs_proto::{limits::SESSION_NAME_BYTES_MAX, wire};
use tidefs_timeline::{CheckpointNo, Position, SessionNo};
use wire::journal_record::Record;

/// What a mount says when it attaches.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AttachAsk {
    /// The id that its state folder keeps.
    pub id: [u8; 16],
    /// The name that it would like; checked already.
    pub name: String,
    /// The incarnation that its state folder holds; 0 for a new session.
    pub incarnation: u64,
    /// The one that it will have; never 0.
    pub next_incarnation: u64,
    /// The highest position that it has applied.
    pub position: Position,
    /// Drive and history that its state belongs to; none for a new session.
    pub of: Option<([u8; 16], [u8; 16])>,
}

/// What an attached session is told.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Attached {
    /// Its number.
    pub session: SessionNo,
    /// Its name.
    pub name: String,
    /// The server's epoch.
    pub epoch: u64,
    /// The head's position.
    pub position: Position,
    /// The highest of its numbers that has an answer.
    pub acknowledged: CheckpointNo,
    /// The digest of that shipment.
    pub digest: [u8; 32],
}

/// Why a mount could not attach.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AttachRefused {
    /// Somebody else went on with this session.
    #[error(
        "session {name} went on elsewhere: its state folder was copied or rolled back; attach as a new session, \
         which takes over what this one has not shipped"
    )]
    Copied {
        /// The session.
        name: String,
    },
    /// The state folder names a session that the drive has never had.
    #[error(
        "the drive has no such session: the server was restored from an older copy; attach as a new session, \
         which takes over what this one has not shipped"
    )]
    Unknown,
    /// The state is that of another drive or history.
    #[error(
        "this state folder belongs to another drive or to another history of it; export its unsent work with \
         `tidefs wal export`, then mount with an empty state folder"
    )]
    OtherHistory,
    /// The mount has seen more than this server has.
    #[error(
        "the mount has applied position {mount}, this server's head is {server}: the server was restored from an \
         older copy; restore a newer one, or export unsent work with `tidefs wal export` and mount with an empty \
         state folder"
    )]
    Ahead {
        /// The mount's position.
        mount: Position,
        /// The head's.
        server: Position,
    },
    /// The next incarnation is 0 or the present one.
    #[error("next_incarnation must be a new number, not 0")]
    BadIncarnation,
}

impl Order {
    /// Attaches a session; `live` says which sessions are in use. The answer may be given out once the turn is
    /// saved.
    ///
    /// # Errors
    /// When the state folder does not go on from what is known here; nothing changes then.
    pub fn attach(
        &mut self,
        turn: &mut Turn,
        ask: &AttachAsk,
        live: &dyn Fn(SessionNo) -> bool,
    ) -> Result<Attached, AttachRefused> {
        if ask.next_incarnation == 0 || ask.next_incarnation == ask.incarnation {
            return Err(AttachRefused::BadIncarnation);
        }
        if ask.of.is_some_and(|of| of != (self.ids.drive, self.ids.history)) {
            return Err(AttachRefused::OtherHistory);
        }
        if ask.position > self.position {
            return Err(AttachRefused::Ahead { mount: ask.position, server: self.position });
        }
        let known = self.sessions.iter().find(|(_, session)| session.id == ask.id);
        let number = match known.map(|(number, session)| (*number, session.incarnation)) {
            // Asked before, and the answer did not arrive.
            Some((number, now)) if now == ask.next_incarnation => number,
            Some((number, now)) if now == ask.incarnation => {
                let resumed = wire::SessionResumed {
                    session: number.0,
                    incarnation: ask.next_incarnation,
                    unix_us: turn.now_us,
                };
                self.resumed(&resumed).map_err(|_| AttachRefused::Unknown)?;
                turn.push(Record::Resumed(resumed));
                number
            }
            Some((number, _)) => return Err(AttachRefused::Copied { name: self.name_of(number) }),
            None if ask.incarnation != 0 => return Err(AttachRefused::Unknown),
            None => self.open(turn, ask, live)?,
        };
        self.attached(number).ok_or(AttachRefused::Unknown)
    }

    fn open(
        &mut self,
        turn: &mut Turn,
        ask: &AttachAsk,
        live: &dyn Fn(SessionNo) -> bool,
    ) -> Result<SessionNo, AttachRefused> {
        let opened = wire::SessionOpened {
            session: self.next_session,
            name: self.free_name(&ask.name, live),
            id: ask.id.to_vec().into(),
            incarnation: ask.next_incarnation,
            unix_us: turn.now_us,
        };
        self.opened(&opened).map_err(|_| AttachRefused::Unknown)?;
        let number = SessionNo(opened.session);
        turn.push(Record::Opened(opened));
        Ok(number)
    }

    fn attached(&self, number: SessionNo) -> Option<Attached> {
        let session = self.sessions.get(&number)?;
        Some(Attached {
            session: number,
            name: session.name.clone(),
            epoch: self.epoch,
            position: self.position,
            acknowledged: session.last,
            digest: session.digest,
        })
    }

    fn name_of(&self, number: SessionNo) -> String {
        self.sessions.get(&number).map(|session| session.name.clone()).unwrap_or_default()
    }

    /// The name, or NAME-2 and so on where sessions in use have it.
    fn free_name(&self, name: &str, live: &dyn Fn(SessionNo) -> bool) -> String {
        let taken: Vec<&str> =
            self.sessions.iter().filter(|(number, _)| live(**number)).map(|(_, s)| s.name.as_str()).collect();
        if !taken.contains(&name) {
            return name.to_owned();
        }
        // Among one more name than there are sessions, one is free.
        (2..taken.len() + 3)
            .map(|n| numbered(name, n))
            .find(|name| !taken.contains(&name.as_str()))
            .unwrap_or_else(|| numbered(name, taken.len() + 3))
    }
}

fn numbered(name: &str, n: usize) -> String {
    let tail = format!("-{n}");
    let mut keep = name.len().min(SESSION_NAME_BYTES_MAX - tail.len());
    while !name.is_char_boundary(keep) {
        keep -= 1;
    }
    format!("{}{tail}", &name[..keep])
}
