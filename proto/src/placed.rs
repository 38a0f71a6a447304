//! A checkpoint on the timeline: what placing it came to. Followers apply its effects, the journal keeps it.

use crate::{
    bad::{Bad, bad, exactly, need},
    limits::PLACED_BYTES_MAX,
    model::{
        attr_name_from, name_from, node_from, node_to, spot_from, spot_to, version_from, version_need,
        version_to,
    },
    shipment::{Stages, stages_from, stages_to},
    wire,
};
use prost::Message;
use std::sync::Arc;
use tidefs_timeline::{
    CheckpointNo, Entry, NodeId, Note, Overlap, OverlapRegister, Overlay, Placed, Position, Reason, SessionNo,
};

/// One line of the timeline.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PlacedLine {
    /// Where on the timeline.
    pub position: Position,
    /// Whose checkpoint.
    pub session: SessionNo,
    /// That session's name.
    pub session_name: String,
    /// The checkpoint's number.
    pub number: CheckpointNo,
    /// The shipment's digest.
    pub digest: [u8; 32],
    /// When it was placed, microseconds since 1970.
    pub placed_unix_us: u64,
    /// How long it took until then.
    pub stages: Stages,
    /// What it came to.
    pub placed: Placed,
}

/// Every reason with its number on the wire; new ones are added at the end.
const REASONS: [Reason; 14] = [
    Reason::DirectoryByName,
    Reason::DirectoryMadeAgain,
    Reason::RenamedIsGone,
    Reason::BroughtBack,
    Reason::MovedTwice,
    Reason::NameAdded,
    Reason::NotRemoved,
    Reason::United,
    Reason::Beside,
    Reason::LostToDirectory,
    Reason::Cycle,
    Reason::ToHeir,
    Reason::Gone,
    Reason::Carried,
];

impl PlacedLine {
    /// As a message.
    pub fn to_wire(&self) -> wire::Placed {
        wire::Placed {
            position: self.position.0,
            session: self.session.0,
            session_name: self.session_name.clone(),
            number: self.number.0,
            digest: self.digest.to_vec().into(),
            placed_unix_us: self.placed_unix_us,
            stages: Some(stages_to(&self.stages)),
            effects: Some(effects_to(&self.placed.effects)),
            notes: self.placed.notes.iter().map(note_to).collect(),
            overlaps: self.placed.overlaps.iter().map(overlap_to).collect(),
        }
    }

    /// From a message, checked.
    pub fn from_wire(message: &wire::Placed) -> Bad<Self> {
        let effects = effects_from(need("effects", message.effects.as_ref())?)?;
        Ok(Self {
            position: Position(message.position),
            session: SessionNo(message.session),
            session_name: message.session_name.clone(),
            number: CheckpointNo(message.number),
            digest: exactly("placed.digest", &message.digest)?,
            placed_unix_us: message.placed_unix_us,
            stages: stages_from(&message.stages),
            placed: Placed {
                effects,
                notes: message.notes.iter().map(note_from).collect::<Bad<_>>()?,
                overlaps: message.overlaps.iter().map(overlap_from).collect::<Bad<_>>()?,
            },
        })
    }

    /// The bytes that are kept and sent.
    pub fn encode(&self) -> Vec<u8> {
        self.to_wire().encode_to_vec()
    }

    /// Reads and checks bytes.
    pub fn decode(bytes: &[u8]) -> Bad<Self> {
        if bytes.len() > PLACED_BYTES_MAX {
            return bad("placed", "is larger than a result may be");
        }
        Self::from_wire(&wire::Placed::decode(bytes).or_else(|error| bad("placed", error))?)
    }
}

/// Effects as a message.
pub fn effects_to(effects: &Overlay) -> wire::Effects {
    let mut message = wire::Effects::default();
    for (dir, entries) in &effects.entries {
        message.entries.extend(entries.iter().map(|(name, entry)| wire::EntryEffect {
            dir: dir.0,
            name: name.as_bytes().to_vec().into(),
            node: entry.map_or(0, |entry| entry.node.0),
            version: entry.map(|entry| version_to(entry.version)),
        }));
    }
    message.nodes.extend(effects.nodes.iter().map(|(id, node)| wire::NodeEffect {
        id: id.0,
        node: node.as_ref().map(|node| node_to(node)),
        born: effects.born.contains(id),
    }));
    message
        .aliases
        .extend(effects.aliases.iter().map(|(from, to)| wire::AliasEffect { from: from.0, to: to.0 }));
    let heir = |(from, to): (&NodeId, &Option<NodeId>)| wire::HeirEffect {
        from: from.0,
        to: to.map_or(0, |to| to.0),
    };
    message.heirs.extend(effects.heirs.iter().map(heir));
    message.tombstones.extend(effects.tombstones.iter().map(|((dir, name), version)| {
        wire::TombstoneEffect {
            dir: dir.0,
            name: name.as_bytes().to_vec().into(),
            version: version.map(version_to),
        }
    }));
    message
}

/// Effects from a message, checked.
pub fn effects_from(message: &wire::Effects) -> Bad<Overlay> {
    let mut effects = Overlay::default();
    for entry in &message.entries {
        let bound = match entry.node {
            0 => None,
            node => {
                Some(Entry { node: NodeId(node), version: version_need("entry.version", &entry.version)? })
            }
        };
        let name = name_from("entry.name", &entry.name)?;
        effects.entries.entry(NodeId(entry.dir)).or_default().insert(name, bound);
    }
    for node in &message.nodes {
        let id = NodeId(node.id);
        effects.nodes.insert(id, node.node.as_ref().map(node_from).transpose()?.map(Arc::new));
        if node.born {
            effects.born.insert(id);
        }
    }
    effects.aliases.extend(message.aliases.iter().map(|alias| (NodeId(alias.from), NodeId(alias.to))));
    let heir = |heir: &wire::HeirEffect| (NodeId(heir.from), (heir.to != 0).then_some(NodeId(heir.to)));
    effects.heirs.extend(message.heirs.iter().map(heir));
    for tomb in &message.tombstones {
        let key = (NodeId(tomb.dir), name_from("tombstone.name", &tomb.name)?);
        effects.tombstones.insert(key, tomb.version.as_ref().map(version_from));
    }
    effects.index_names();
    Ok(effects)
}

fn note_to(note: &Note) -> wire::Note {
    let reason = REASONS.iter().position(|reason| *reason == note.reason).unwrap_or(REASONS.len()) as u32 + 1;
    wire::Note { reason, node: note.node.0, at: note.at.as_ref().map(|(dir, name)| spot_to(*dir, name)) }
}

fn note_from(note: &wire::Note) -> Bad<Note> {
    let reason = (note.reason as usize).checked_sub(1).and_then(|i| REASONS.get(i));
    let Some(reason) = reason else {
        return bad("note.reason", format_args!("{} is not known here: use a newer tidefs", note.reason));
    };
    let at = note.at.as_ref().map(|spot| spot_from("note.at", spot)).transpose()?;
    Ok(Note { reason: *reason, node: NodeId(note.node), at: at.map(|spot| (spot.parent, spot.name)) })
}

fn overlap_to(overlap: &Overlap) -> wire::Overlap {
    let mut message = wire::Overlap {
        node: overlap.node.0,
        lost: Some(version_to(overlap.lost)),
        was: overlap.was.as_ref().map(|node| node_to(node)),
        ..Default::default()
    };
    match &overlap.register {
        OverlapRegister::Entry(dir, name) => {
            message.register = 1;
            message.entry = Some(spot_to(*dir, name));
        }
        OverlapRegister::Content => message.register = 2,
        OverlapRegister::Owner => message.register = 3,
        OverlapRegister::Attr(name) => {
            message.register = 4;
            message.attr = name.as_bytes().to_vec().into();
        }
    }
    message
}

fn overlap_from(message: &wire::Overlap) -> Bad<Overlap> {
    let register = match message.register {
        1 => {
            let spot = spot_from("overlap.entry", need("overlap.entry", message.entry.as_ref())?)?;
            OverlapRegister::Entry(spot.parent, spot.name)
        }
        2 => OverlapRegister::Content,
        3 => OverlapRegister::Owner,
        4 => OverlapRegister::Attr(attr_name_from("overlap.attr", &message.attr)?),
        other => {
            return bad("overlap.register", format_args!("{other} is not known here: use a newer tidefs"));
        }
    };
    Ok(Overlap {
        register,
        node: NodeId(message.node),
        lost: version_need("overlap.lost", &message.lost)?,
        was: message.was.as_ref().map(node_from).transpose()?.map(Arc::new),
    })
}
