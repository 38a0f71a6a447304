//! Submitting: each number of a session is answered once, and a resend gets that first answer.

use super::{
    Answer, Line, Order, RECORDS_BYTES_MAX, Refusal, Turn,
    session::{Session, refused_to},
};
use bytes::Bytes;
use prost::Message;
use std::collections::BTreeMap;
use tidefs_proto::{Bad, PlacedLine, Shipment, bad::bad, shipment, wire};
use tidefs_timeline::{
    CheckpointNo, Content, FileMap, Hash, Head, NodeChange, SessionNo, Source, Version, overlay::Over, place,
};
use wire::journal_record::Record;

/// A shipment as it arrived, decoded and checked against its digest.
#[derive(Debug, Clone)]
pub struct Submission {
    /// The session and the number that the sender says.
    pub version: Version,
    /// The incarnation that the sender has.
    pub incarnation: u64,
    /// The digest of the bytes.
    pub digest: [u8; 32],
    bytes: Bytes,
    shipment: Bad<Shipment>,
}

impl Submission {
    /// Takes in the bytes of a shipment. Bytes that are no shipment give a submission that is refused in its
    /// turn, because its number must be used up.
    ///
    /// # Errors
    /// When the bytes are not those of the digest: they were damaged on the way.
    pub fn read(version: Version, incarnation: u64, bytes: Bytes, digest: [u8; 32]) -> Bad<Self> {
        if shipment::digest(&bytes) != digest {
            return bad("shipment.digest", "is not that of the bytes: send them again");
        }
        let shipment = Shipment::decode(&bytes).and_then(|shipment| {
            let checkpoint = &shipment.checkpoint;
            if checkpoint.version() != version {
                return bad("shipment", "is of another session or number than it was sent as");
            }
            if shipment.incarnation > incarnation {
                return bad("shipment.incarnation", "is newer than its sender's");
            }
            Ok(shipment)
        });
        Ok(Self { version, incarnation, digest, bytes, shipment })
    }

    /// The pack that it names.
    pub fn pack(&self) -> Option<Hash> {
        self.shipment.as_ref().ok().and_then(|shipment| shipment.pack)
    }

    /// The size of the shipment, in bytes.
    pub fn len(&self) -> usize {
        self.bytes.len()
    }

    /// Whether there are no bytes.
    pub fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    /// How long the mount's stages took.
    pub fn stages(&self) -> Option<tidefs_proto::Stages> {
        self.shipment.as_ref().ok().map(|shipment| shipment.stages)
    }
}

/// A pack that a journal entry is to name.
#[derive(Debug, Clone)]
pub struct NewPack {
    /// Its length, in bytes.
    pub length: u64,
    /// Its bytes, if it is small and not stored yet: the entry then holds them. Empty if it is stored.
    pub bytes: Bytes,
}

/// What is stored of the drive's content.
pub trait StoredBlocks {
    /// Why an answer could not be given.
    type Error;
    /// Whether the block is in a pack that a journal entry before this turn names.
    fn placed(&self, block: &Hash) -> Result<bool, Self::Error>;
    /// Whether the block is in this stored pack that no journal entry before this turn names.
    fn in_pack(&self, pack: &Hash, block: &Hash) -> bool;
    /// A pack that has arrived and that no journal entry names yet.
    fn unnamed_pack(&self, pack: &Hash) -> Option<NewPack>;
}

impl Order {
    /// Answers a shipment. The answer may be given out once the turn is saved. None: it does not fit into the
    /// turn any more; submit it in the next one.
    ///
    /// # Errors
    /// Those of reading the head or the index; then the turn and this order must be dropped.
    pub fn submit<H: Head>(
        &mut self,
        turn: &mut Turn,
        head: &H,
        blocks: &impl StoredBlocks<Error = H::Error>,
        submission: &Submission,
    ) -> Result<Option<Answer>, H::Error> {
        let session = match self.next_of(submission) {
            Ok(session) => session,
            Err(answer) => return Ok(Some(answer)),
        };
        let mut shipment = match &submission.shipment {
            Ok(shipment) => shipment.clone(),
            Err(error) => {
                let answer = Answer::refused(Refusal::Malformed, error.to_string());
                return Ok(Some(self.use_up(turn, submission, answer)));
            }
        };
        if shipment.previous != session.digest {
            let text = format!(
                "the shipment before {} is not the one that was answered: go on as a new session",
                submission.version
            );
            return Ok(Some(Answer::refused(Refusal::Fork, text)));
        }
        if let Some(missing) = first_missing(&shipment, &turn.packs, blocks)? {
            let text = format!("block {missing} is not stored: send the pack again, then the shipment");
            return Ok(Some(Answer::refused(Refusal::MissingBlocks, text)));
        }
        shipment.checkpoint.session_name = session.name.clone();
        let placed = place(&Over { below: head, top: &turn.effects }, &shipment.checkpoint)?;
        let line = PlacedLine {
            position: self.position.next(),
            session: submission.version.session,
            session_name: session.name.clone(),
            number: submission.version.number,
            digest: submission.digest,
            placed_unix_us: turn.now_us,
            stages: shipment.stages,
            placed,
        };
        let pack = shipment.pack.and_then(|pack| blocks.unnamed_pack(&pack).map(|new| (pack, new)));
        Ok(self.take(turn, submission, line, pack))
    }

    /// The session, if this is its next number; else the answer.
    fn next_of(&self, submission: &Submission) -> Result<&Session, Answer> {
        let Version { session: SessionNo(of), number } = submission.version;
        let Some(session) = self.sessions.get(&submission.version.session) else {
            let text = format!("the drive has no session {of}: attach again");
            return Err(Answer::refused(Refusal::NotAttached, text));
        };
        if session.incarnation != submission.incarnation {
            let text = format!("session {} was attached again since: attach again", session.name);
            return Err(Answer::refused(Refusal::NotAttached, text));
        }
        if number <= session.last {
            return Err(first_answer(session, number, &submission.digest));
        }
        if number != session.last.next() {
            let text = format!("number {} is missing: send again from there", session.last.next().0);
            return Err(Answer::refused(Refusal::Gap, text));
        }
        Ok(session)
    }

    /// Writes down a placed checkpoint, unless it is too large for a journal.
    fn take(
        &mut self,
        turn: &mut Turn,
        submission: &Submission,
        line: PlacedLine,
        pack: Option<(Hash, NewPack)>,
    ) -> Option<Answer> {
        let message = line.to_wire();
        let bytes: Bytes = message.encode_to_vec().into();
        let inline = pack.as_ref().map_or(0, |(_, new)| new.bytes.len());
        let size = submission.len() + bytes.len() + inline;
        if size > RECORDS_BYTES_MAX {
            let text = "the checkpoint and what it came to exceed 64 MiB: cut smaller batches";
            return Some(self.use_up(turn, submission, Answer::refused(Refusal::TooLarge, text)));
        }
        if turn.bytes + size > RECORDS_BYTES_MAX {
            return None;
        }
        let answer = Answer::Placed(line.position);
        if self.answered(submission.version, submission.digest, answer.clone()).is_err() {
            return Some(Answer::refused(Refusal::Gap, "it is not the session's next number: attach again"));
        }
        self.position = line.position;
        if let Some((id, new)) = pack.filter(|(id, _)| !turn.packs.contains_key(id)) {
            turn.packs.insert(id, new.bytes.clone());
            let id = id.0.to_vec().into();
            turn.push(Record::Pack(wire::PackStored { id, length: new.length, data: new.bytes }));
        }
        let shipment = submission.bytes.clone();
        turn.push(Record::Placed(wire::PlacedRecord { shipment, placed: Some(message) }));
        turn.lines.push(Line { position: line.position, version: submission.version, bytes });
        turn.effects.merge(line.placed.effects);
        Some(answer)
    }

    fn use_up(&mut self, turn: &mut Turn, submission: &Submission, answer: Answer) -> Answer {
        let record = refused_to(submission.version, submission.digest, &answer);
        let answered = self.answered(submission.version, submission.digest, answer.clone());
        if let (Some(record), Ok(())) = (record, answered) {
            turn.push(Record::Refused(record));
        }
        answer
    }
}

fn first_answer(session: &Session, number: CheckpointNo, digest: &[u8; 32]) -> Answer {
    match session.given(number) {
        Some(given) if given.digest == *digest => given.answer.clone(),
        Some(_) => {
            let text = format!(
                "number {} of session {} was answered for other bytes: go on as a new session",
                number.0, session.name
            );
            Answer::refused(Refusal::Fork, text)
        }
        None => {
            let text = format!(
                "number {} was answered long ago; the last one is {}: attach again",
                number.0, session.last.0
            );
            Answer::refused(Refusal::Forgotten, text)
        }
    }
}

/// The first block that new content names and that is in no pack which the journal names, now or after this turn.
fn first_missing<B: StoredBlocks>(
    shipment: &Shipment,
    turn: &BTreeMap<Hash, Bytes>,
    blocks: &B,
) -> Result<Option<Hash>, B::Error> {
    let named = |hash: &Hash| shipment.pack.iter().chain(turn.keys()).any(|pack| blocks.in_pack(pack, hash));
    let new_content = |change: &&NodeChange| change.born || change.changed.content.is_some();
    for change in shipment.checkpoint.nodes.iter().filter(new_content) {
        let Content::File(file) = &change.node.content.value else { continue };
        let hashes: Vec<Hash> = match &file.map {
            FileMap::Stored(root) => vec![*root],
            FileMap::Extents(map) => map.iter().filter_map(|(_, piece)| block_of(piece.source)).collect(),
        };
        for hash in hashes {
            if !named(&hash) && !blocks.placed(&hash)? {
                return Ok(Some(hash));
            }
        }
    }
    Ok(None)
}

fn block_of(source: Source) -> Option<Hash> {
    match source {
        Source::Block { hash, .. } => Some(hash),
        Source::Local(_) => None,
    }
}
