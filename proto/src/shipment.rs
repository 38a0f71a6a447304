//! What a session ships: a checkpoint, the pack that holds its new blocks, and its link in the session's chain.

use crate::{
    bad::{Bad, ascending, bad, exactly, need},
    limits::SESSION_NAME_BYTES_MAX,
    model::{
        attr_name_from, name_from, node_from, node_to, owner_from, spot_from, spot_to, time_from, time_to,
        version_from, version_to,
    },
    wire,
};
use prost::Message;
use tidefs_timeline::{
    Changed, Checkpoint, CheckpointNo, DirInfo, EntryChange, Hash, LostNode, NodeChange, NodeId, Position,
    SessionNo, Spot,
    limits::{CHECKPOINT_BYTES_MAX, CHECKPOINT_CHANGES_MAX},
};

/// The format of shipments that this code writes.
pub const SHIPMENT_FORMAT: u32 = 1;

/// How long each stage took at the mount, in microseconds.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Stages {
    /// Wall-clock time of the batch's last change, microseconds since 1970.
    pub last_change_unix_us: u64,
    /// From the last change to the cut.
    pub settle_us: u64,
    /// From the cut until the shipment was synced.
    pub seal_us: u64,
    /// From the first byte sent until the last.
    pub upload_us: u64,
}

/// A checkpoint as it is kept in the outbox, sent, and kept in the journal.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Shipment {
    /// The checkpoint.
    pub checkpoint: Checkpoint,
    /// The session's incarnation that made it.
    pub incarnation: u64,
    /// Digest of the shipment before; zeros for the first.
    pub previous: [u8; 32],
    /// The pack of its new blocks.
    pub pack: Option<Hash>,
    /// Durations.
    pub stages: Stages,
    /// The counter that the session's next node id will have.
    pub next_counter: u32,
}

/// The digest that names a shipment's bytes and, through `previous`, all those before.
pub fn digest(bytes: &[u8]) -> [u8; 32] {
    *blake3::hash(bytes).as_bytes()
}

/// Durations as a message.
pub fn stages_to(stages: &Stages) -> wire::Stages {
    wire::Stages {
        last_change_unix_us: stages.last_change_unix_us,
        settle_us: stages.settle_us,
        seal_us: stages.seal_us,
        upload_us: stages.upload_us,
    }
}

/// Durations from a message.
pub fn stages_from(stages: &Option<wire::Stages>) -> Stages {
    stages.map_or(Stages::default(), |stages| Stages {
        last_change_unix_us: stages.last_change_unix_us,
        settle_us: stages.settle_us,
        seal_us: stages.seal_us,
        upload_us: stages.upload_us,
    })
}

impl Shipment {
    /// The bytes that are kept and sent.
    pub fn encode(&self) -> Vec<u8> {
        let ck = &self.checkpoint;
        wire::Shipment {
            format: SHIPMENT_FORMAT,
            session: ck.session.0,
            session_name: ck.session_name.clone(),
            incarnation: self.incarnation,
            number: ck.number.0,
            applied: ck.applied.0,
            previous: self.previous.to_vec().into(),
            pack: self.pack.map(|pack| pack.0.to_vec()).unwrap_or_default().into(),
            stages: Some(stages_to(&self.stages)),
            dirs: ck.dirs.iter().map(dir_to).collect(),
            entries: ck.entries.iter().map(entry_to).collect(),
            nodes: ck.nodes.iter().map(change_to).collect(),
            lost: ck.lost.iter().map(lost_to).collect(),
            next_counter: self.next_counter,
        }
        .encode_to_vec()
    }

    /// Reads and checks bytes that came over the wire or from a disk.
    pub fn decode(bytes: &[u8]) -> Bad<Self> {
        if bytes.len() > CHECKPOINT_BYTES_MAX {
            return bad("shipment", "is larger than a checkpoint may be");
        }
        let message = wire::Shipment::decode(bytes).or_else(|error| bad("shipment", error))?;
        if message.format != SHIPMENT_FORMAT {
            return bad(
                "shipment.format",
                format_args!("{} is not known here: use a newer tidefs", message.format),
            );
        }
        if message.session == 0 || message.number == 0 {
            return bad("shipment", "names no session or no number");
        }
        let pack =
            if message.pack.is_empty() { None } else { Some(Hash(exactly("shipment.pack", &message.pack)?)) };
        Ok(Self {
            incarnation: message.incarnation,
            previous: exactly("shipment.previous", &message.previous)?,
            pack,
            stages: stages_from(&message.stages),
            next_counter: message.next_counter,
            checkpoint: checkpoint_from(&message)?,
        })
    }
}

fn checkpoint_from(message: &wire::Shipment) -> Bad<Checkpoint> {
    let changes = message.entries.len() + message.nodes.len() + message.dirs.len();
    if changes > 3 * CHECKPOINT_CHANGES_MAX {
        return bad("shipment", "has more changes than a checkpoint may have");
    }
    let checkpoint = Checkpoint {
        session: SessionNo(message.session),
        session_name: session_name_from(&message.session_name)?,
        number: CheckpointNo(message.number),
        applied: Position(message.applied),
        dirs: message.dirs.iter().map(dir_from).collect::<Bad<_>>()?,
        entries: message.entries.iter().map(entry_from).collect::<Bad<_>>()?,
        nodes: message.nodes.iter().map(change_from).collect::<Bad<_>>()?,
        lost: message.lost.iter().map(lost_from).collect::<Bad<_>>()?,
    };
    ascending("dirs", &checkpoint.dirs, |dir| dir.id)?;
    ascending("entries", &checkpoint.entries, |entry| (entry.dir, entry.name.clone()))?;
    ascending("nodes", &checkpoint.nodes, |node| node.id)?;
    ascending("lost", &checkpoint.lost, |lost| lost.id)?;
    let mine = checkpoint.session;
    for change in checkpoint.nodes.iter().filter(|change| change.born) {
        if change.id.session() != mine {
            return bad("nodes", format_args!("node {} is not one that this session may make", change.id));
        }
    }
    for node in checkpoint.entries.iter().filter_map(|entry| entry.new) {
        if checkpoint.node(node).is_none() {
            return bad("entries", format_args!("node {node} is bound but not described"));
        }
    }
    Ok(checkpoint)
}

/// A session's name: printable, so that it can stand in names, logs and on a terminal.
pub fn session_name_from(name: &str) -> Bad<String> {
    let fit = !name.is_empty()
        && name.len() <= SESSION_NAME_BYTES_MAX
        && name.chars().all(|c| c.is_alphanumeric() || matches!(c, '.' | '_' | '-' | '@' | ':' | '+'));
    if fit {
        Ok(name.into())
    } else {
        bad("session name", "must be 1 to 64 bytes of letters, digits and . _ - @ : +")
    }
}

fn dir_to(dir: &DirInfo) -> wire::DirInfo {
    let spot = |spot: &Option<Spot>| spot.as_ref().map(|spot| spot_to(spot.parent, &spot.name));
    let (before, after, owner) = (spot(&dir.before), spot(&dir.after), dir.owner);
    wire::DirInfo { id: dir.id.0, before, after, mode: owner.mode, uid: owner.uid, gid: owner.gid }
}

fn dir_from(dir: &wire::DirInfo) -> Bad<DirInfo> {
    let spot = |spot: &Option<wire::Spot>| spot.as_ref().map(|spot| spot_from("dir", spot)).transpose();
    Ok(DirInfo {
        id: NodeId(dir.id),
        before: spot(&dir.before)?,
        after: spot(&dir.after)?,
        owner: owner_from(dir.mode, dir.uid, dir.gid)?,
    })
}

fn entry_to(entry: &EntryChange) -> wire::EntryChange {
    wire::EntryChange {
        dir: entry.dir.0,
        name: entry.name.as_bytes().to_vec().into(),
        old: entry.old.map_or(0, |node| node.0),
        new: entry.new.map_or(0, |node| node.0),
        base: entry.base.map(version_to),
        time: Some(time_to(entry.time)),
    }
}

fn some_node(id: u64) -> Option<NodeId> {
    (id != 0).then_some(NodeId(id))
}

fn entry_from(entry: &wire::EntryChange) -> Bad<EntryChange> {
    if entry.old == entry.new {
        return bad("entry", "is no change");
    }
    if entry.new == NodeId::ROOT.0 || entry.old == NodeId::ROOT.0 {
        return bad("entry", "binds or removes the root");
    }
    Ok(EntryChange {
        dir: NodeId(entry.dir),
        name: name_from("entry.name", &entry.name)?,
        old: some_node(entry.old),
        new: some_node(entry.new),
        base: entry.base.as_ref().map(version_from),
        time: time_from("entry.time", &entry.time)?,
    })
}

fn change_to(change: &NodeChange) -> wire::NodeChange {
    let register =
        |base: &Option<Option<_>>| base.map(|base| wire::ChangedRegister { base: base.map(version_to) });
    let changed = &change.changed;
    wire::NodeChange {
        id: change.id.0,
        born: change.born,
        node: Some(node_to(&change.node)),
        content: register(&changed.content),
        owner: register(&changed.owner),
        mtime: changed.mtime,
        ctime: changed.ctime,
        attrs: changed
            .attrs
            .iter()
            .map(|(name, base)| wire::ChangedAttr {
                name: name.as_bytes().to_vec().into(),
                base: base.map(version_to),
            })
            .collect(),
        names: change.names.iter().map(|(dir, name)| spot_to(*dir, name)).collect(),
        links_before: change.links_before,
    }
}

fn change_from(change: &wire::NodeChange) -> Bad<NodeChange> {
    let register = |register: &Option<wire::ChangedRegister>| {
        register.as_ref().map(|r| r.base.as_ref().map(version_from))
    };
    let mut attrs = Vec::new();
    for attr in &change.attrs {
        attrs.push((attr_name_from("changed.attr", &attr.name)?, attr.base.as_ref().map(version_from)));
    }
    let mut names = Vec::new();
    for spot in &change.names {
        let spot = spot_from("node.name", spot)?;
        names.push((spot.parent, spot.name));
    }
    let node = node_from(need("node", change.node.as_ref())?)?;
    if change.id == 0 || (change.born && change.id == NodeId::ROOT.0) {
        return bad("node.id", "is not one that a session may make");
    }
    Ok(NodeChange {
        id: NodeId(change.id),
        born: change.born,
        node,
        changed: Changed {
            content: register(&change.content),
            owner: register(&change.owner),
            mtime: change.mtime,
            ctime: change.ctime,
            attrs,
        },
        names,
        links_before: change.links_before,
    })
}

fn lost_to(lost: &LostNode) -> wire::LostNode {
    let owner = lost.owner_seen;
    wire::LostNode {
        id: lost.id.0,
        is_dir: lost.is_dir,
        content: lost.content.map(version_to),
        owner: lost.owner.map(version_to),
        mode: owner.mode,
        uid: owner.uid,
        gid: owner.gid,
    }
}

fn lost_from(lost: &wire::LostNode) -> Bad<LostNode> {
    Ok(LostNode {
        id: NodeId(lost.id),
        is_dir: lost.is_dir,
        content: lost.content.as_ref().map(version_from),
        owner: lost.owner.as_ref().map(version_from),
        owner_seen: owner_from(lost.mode, lost.uid, lost.gid)?,
    })
}
