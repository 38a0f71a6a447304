//! The false world: one queue of events in the order of a false clock. A message arrives some time after it was
//! sent, in the order of its connection, unless the connection broke; what is down hears nothing.

use super::{
    acts::{Act, draw, existing},
    counts::Counts,
    model::Model,
    server::{IndexLoss, Server},
    shell::Shell,
};
use anyhow::Result;
use bytes::Bytes;
use rand::{Rng as _, SeedableRng as _, rngs::SmallRng};
use std::collections::{BTreeMap, VecDeque};
use tidefs_mount::session::loading::Directory;
use tidefs_server::{
    order::Answer,
    store::{Fault, Op},
};
use tidefs_timeline::{Hash, NodeId, Version};

/// Lines of the trace that are kept for a failure's report.
const TRACE_KEPT: usize = 120;

/// How large one run is.
#[derive(Clone, Copy, Debug)]
pub struct Size {
    /// Mounts.
    pub mounts: usize,
    /// What each of them does.
    pub acts: usize,
}

/// A shipment on its way.
#[derive(Clone, Debug)]
pub struct Parcel {
    /// Session and number.
    pub version: Version,
    /// The sender's incarnation.
    pub incarnation: u64,
    /// The shipment.
    pub bytes: Bytes,
    /// Its digest.
    pub digest: [u8; 32],
    /// Its pack.
    pub pack: Option<(Hash, Bytes)>,
}

/// What happens next. A mount's own events name its run, messages their connection.
#[derive(Clone, Debug)]
pub enum Event {
    /// A program does something.
    Act(usize, u64),
    /// The cutter looks.
    Cut(usize, u64),
    /// The sealer takes a job.
    Seal(usize, u64),
    /// A sealed checkpoint is known.
    Sealed(usize, u64),
    /// A shipment arrives at the server.
    Parcel(usize, u64, Box<Parcel>),
    /// The sequencer takes a turn.
    Turn,
    /// An answer arrives at a mount.
    Answer(usize, u64, u64, Answer),
    /// A line of the timeline arrives at a mount.
    Line(usize, u64, Bytes),
    /// A question for a directory arrives at the server.
    Ask(usize, u64, NodeId),
    /// What became of it arrives at the mount.
    Listing(usize, u64, NodeId, Option<Vec<Directory>>),
    /// A fetch has taken too long.
    GiveUp(usize, u64, NodeId),
    /// A mount connects.
    Connect(usize, u64),
    /// Something of a mount is tried again.
    Poke(usize, u64),
    /// A connection breaks.
    Cable(usize),
    /// A mount's process ends.
    Kill(usize),
    /// A mount's machine loses power.
    Power(usize),
    /// A mount is started.
    Start(usize),
    /// The server ends.
    Crash(IndexLoss),
    /// The server and all mounts end at once.
    Blackout,
    /// The server is started.
    StartServer,
    /// The index is written.
    Index(bool),
    /// A store will fail.
    Fault(Op, Fault),
}

/// A mount in the world.
pub struct Mount {
    /// It and its disk.
    pub shell: Shell,
    /// Grows with every start and end: events of a run before are not heard.
    pub run: u64,
    /// The connection, while there is one.
    pub link: Option<u64>,
    /// Last number sent on it.
    pub shipped: u64,
    /// Lines sent to it on this connection.
    pub followed: u64,
    /// When the last message in each direction arrives.
    pub wire: [u64; 2],
    /// When the cutter looks next.
    pub armed: Option<u64>,
    /// What its programs do next.
    pub script: VecDeque<Act>,
    /// What they still do after that.
    pub left: usize,
    /// What its own directory must hold.
    pub model: Model,
    /// The same after each change, by where the log ended.
    pub history: Vec<(u64, Model)>,
}

/// The world.
pub struct World {
    /// Chance.
    pub rng: SmallRng,
    /// Microseconds.
    pub now: u64,
    queue: BTreeMap<(u64, u64), Event>,
    seq: u64,
    /// The server.
    pub server: Server,
    /// The mounts.
    pub mounts: Vec<Mount>,
    /// What had a part.
    pub counts: Counts,
    /// The last events.
    pub trace: VecDeque<String>,
    hasher: blake3::Hasher,
    /// No more faults, all starts again.
    pub calm: bool,
    /// Whether each line of the trace is printed.
    pub loud: bool,
}

impl World {
    /// A world with its faults planned.
    pub fn new(seed: u64, size: Size, loud: bool) -> Self {
        let mut rng = SmallRng::seed_from_u64(seed);
        let mounts = (0..size.mounts).map(|i| Mount {
            shell: Shell::new(i),
            run: 0,
            link: None,
            shipped: 0,
            followed: 0,
            wire: [0; 2],
            armed: None,
            script: VecDeque::new(),
            left: size.acts,
            model: Model::default(),
            history: vec![(0, Model::default())],
        });
        let mounts: Vec<Mount> = mounts.collect();
        let span = size.acts as u64 * 10_000;
        let mut world = Self {
            now: 0,
            queue: BTreeMap::new(),
            seq: 0,
            server: Server::new(),
            mounts,
            counts: Counts::default(),
            trace: VecDeque::new(),
            hasher: blake3::Hasher::new(),
            calm: false,
            loud,
            rng: SmallRng::seed_from_u64(rng.random()),
        };
        world.at(0, Event::StartServer);
        for m in 0..size.mounts {
            world.after(10, 3000, Event::Start(m));
            for _ in 0..world.rng.random_range(0..4) {
                world.after(1000, span, Event::Cable(m));
            }
            for _ in 0..world.rng.random_range(0..3) {
                let event = if world.rng.random() { Event::Kill(m) } else { Event::Power(m) };
                world.after(1000, span, event);
            }
        }
        world.plan_server_faults(span);
        world
    }

    fn plan_server_faults(&mut self, span: u64) {
        for _ in 0..self.rng.random_range(0..3) {
            let loss = [IndexLoss::Nothing, IndexLoss::Unsynced, IndexLoss::All][self.rng.random_range(0..3)];
            self.after(1000, span, Event::Crash(loss));
        }
        if self.rng.random_bool(0.2) {
            self.after(1000, span, Event::Blackout);
        }
        for _ in 0..self.rng.random_range(0..4) {
            let op = [Op::JournalCreate, Op::PackPut, Op::IndexCommit, Op::IndexFlush]
                [self.rng.random_range(0..4)];
            let fault = if self.rng.random() { Fault::Before } else { Fault::After };
            self.after(1000, span, Event::Fault(op, fault));
        }
    }

    /// Something happens at a time.
    pub fn at(&mut self, at: u64, event: Event) {
        self.seq += 1;
        self.queue.insert((at.max(self.now), self.seq), event);
    }

    /// Something happens between `from` and `to` microseconds from now.
    pub fn after(&mut self, from: u64, to: u64, event: Event) {
        let pause = self.rng.random_range(from..to.max(from + 1));
        self.at(self.now + pause, event);
    }

    /// A message of a mount's connection, in order with those before it; `up` says whether to the server.
    pub fn send(&mut self, m: usize, up: bool, event: Event) {
        let slow = if !self.calm && self.rng.random_bool(0.05) { 250_000 } else { 40_000 };
        let pause = self.rng.random_range(100..slow);
        let at = (self.now + pause).max(self.mounts[m].wire[usize::from(up)]);
        self.mounts[m].wire[usize::from(up)] = at;
        self.at(at, event);
    }

    /// The next event.
    pub fn next_event(&mut self) -> Option<Event> {
        let ((at, _), event) = self.queue.pop_first()?;
        self.now = at;
        Some(event)
    }

    /// Writes a line of the trace.
    pub fn note(&mut self, line: impl FnOnce() -> String) {
        let line = format!("{:>9} {}", self.now, line());
        self.hasher.update(line.as_bytes());
        if self.loud {
            println!("{line}");
        }
        self.trace.push_back(line);
        if self.trace.len() > TRACE_KEPT {
            self.trace.pop_front();
        }
    }

    /// A digest of the whole trace.
    pub fn trace_digest(&self) -> String {
        self.hasher.finalize().to_hex().to_string()
    }

    /// Whether a mount's event is of its present run.
    pub fn is_run(&self, m: usize, run: u64) -> bool {
        self.mounts[m].run == run && self.mounts[m].shell.up.is_some()
    }

    /// Whether a message's connection still stands.
    pub fn is_link(&self, m: usize, link: u64) -> bool {
        self.mounts[m].link == Some(link) && self.server.is_up()
    }

    /// A mount's process ends: a kill keeps what was written, a loss of power what was synced and some of the rest.
    pub fn end_mount(&mut self, m: usize, power: bool) {
        if self.mounts[m].shell.up.is_none() {
            return;
        }
        self.counts.add(if power { "fault: power of a mount lost" } else { "fault: mount killed" });
        let mount = &mut self.mounts[m];
        mount.run += 1;
        mount.link = None;
        mount.armed = None;
        mount.script.clear();
        if power {
            let disk = &mut mount.shell.disk;
            let ends: Vec<u64> = mount.history.iter().map(|h| h.0).filter(|end| *end > disk.synced).collect();
            let keep = match self.rng.random_range(0..=ends.len()) {
                0 => disk.synced,
                n => ends[n - 1],
            };
            if ends.last().is_some_and(|last| keep < *last) {
                self.counts.add("fault: written work lost with the power");
            }
            disk.lost_power(keep);
            let durable = keep.max(mount.shell.log_start());
            mount.history.retain(|(end, _)| *end <= durable);
            mount.model = mount.history.last().map(|(_, model)| model.clone()).unwrap_or_default();
            mount.shell.up = None;
        } else {
            mount.shell.kill();
        }
        let soon = if self.calm { 3000 } else { 200_000 };
        self.after(500, soon, Event::Start(m));
    }

    /// The server ends; all connections break.
    pub fn end_server(&mut self, loss: IndexLoss) {
        if self.server.is_up() {
            self.counts.add(&format!("fault: server ended, index loses {loss:?}"));
            self.server.crash(loss);
            (0..self.mounts.len()).for_each(|m| self.break_link(m));
            self.after(500, 60_000, Event::StartServer);
        }
    }

    /// A mount's connection breaks.
    pub fn break_link(&mut self, m: usize) {
        if self.mounts[m].link.take().is_some() {
            self.counts.add("fault: connection broken");
            let run = self.mounts[m].run;
            self.after(1000, 80_000, Event::Connect(m, run));
        }
    }

    /// The next thing that a mount's programs do.
    pub fn next_act(&mut self, m: usize) -> Option<Act> {
        if self.mounts[m].script.is_empty() {
            if self.mounts[m].left == 0 {
                return None;
            }
            self.mounts[m].left -= 1;
            let acts = draw(&mut self.rng, m, &existing(&self.mounts[m].shell));
            self.mounts[m].script.extend(acts);
        }
        self.mounts[m].script.pop_front()
    }

    /// Sends what a mount may send.
    ///
    /// # Errors
    /// When its outbox is damaged.
    pub fn ship(&mut self, m: usize) -> Result<()> {
        while let Some(link) = self.mounts[m].link {
            let mount = &self.mounts[m];
            let Some(up) = &mount.shell.up else { break };
            if up.recovery.is_some()
                || mount.shipped.saturating_sub(up.acknowledged.0)
                    >= tidefs_proto::limits::INFLIGHT_MAX as u64
            {
                break;
            }
            let Some((number, entry, stored)) =
                mount.shell.ship_item(tidefs_timeline::CheckpointNo(mount.shipped))?
            else {
                break;
            };
            let parcel = Parcel {
                version: Version { session: up.number(), number: tidefs_timeline::CheckpointNo(number) },
                incarnation: up.incarnation,
                bytes: entry.shipment.clone(),
                digest: entry.digest[..].try_into()?,
                pack: stored.pack.as_ref().map(|(id, bytes)| (*id, Bytes::copy_from_slice(bytes))),
            };
            self.mounts[m].shipped = number;
            self.note(|| format!("m{m} ships {number}"));
            if !self.calm && self.rng.random_bool(0.1) {
                self.counts.add("fault: shipment sent twice");
                self.send(m, true, Event::Parcel(m, link, Box::new(parcel.clone())));
            }
            self.send(m, true, Event::Parcel(m, link, Box::new(parcel)));
        }
        Ok(())
    }

    /// Sends the lines that a mount has not been sent.
    pub fn announce(&mut self, m: usize) {
        while let Some(link) = self.mounts[m].link {
            let Some(line) = self.server.lines.get(self.mounts[m].followed as usize).cloned() else { break };
            self.mounts[m].followed += 1;
            self.send(m, false, Event::Line(m, link, line));
        }
    }
}
