//! One run: every event is handled by the real code, and the checkers look on.

use super::{
    check,
    counts::Counts,
    server::{Arrival, IndexLoss},
    world::{Event, Parcel, Size, World},
};
use anyhow::{Context as _, Result, bail, ensure};
use rand::Rng as _;
use tidefs_proto::PlacedLine;
use tidefs_server::order::{Answer, Refusal, Submission};
use tidefs_timeline::CheckpointNo;

/// Events after which a run has no end.
const EVENTS_MAX: usize = 300_000;
/// Simulated microseconds in which all must come to rest.
const CALM_MAX: u64 = 60_000_000;

/// What a run came to.
#[derive(Debug)]
pub struct Outcome {
    /// What had a part.
    pub counts: Counts,
    /// The final tree and a digest of the trace: equal for equal seeds.
    pub state: String,
}

/// A failed run.
#[derive(Debug)]
pub struct Failure {
    /// Why.
    pub error: anyhow::Error,
    /// The last events.
    pub trace: Vec<String>,
}

/// Runs one seed.
///
/// # Errors
/// The first broken promise, with the events before it.
pub fn run(seed: u64, size: Size, loud: bool) -> Result<Outcome, Box<Failure>> {
    let mut world = World::new(seed, size, loud);
    match world.run() {
        Ok(state) => Ok(Outcome { counts: world.counts, state }),
        Err(error) => Err(Box::new(Failure { error, trace: world.trace.into_iter().collect() })),
    }
}

impl World {
    fn run(&mut self) -> Result<String> {
        let mut calm_since = None;
        for _ in 0..EVENTS_MAX {
            let event = self.next_event().context("nothing happens any more, and work is left")?;
            self.handle(event)?;
            match calm_since {
                None => {
                    if self.mounts.iter().all(|mount| mount.left == 0 && mount.script.is_empty()) {
                        self.become_calm()?;
                        calm_since = Some(self.now);
                    }
                }
                Some(since) => {
                    if self.is_quiet() {
                        return self.final_checks();
                    }
                    ensure!(self.now - since < CALM_MAX, "not at rest in time: {}", self.unrest());
                }
            }
        }
        bail!("too many events: {}", self.unrest())
    }

    fn become_calm(&mut self) -> Result<()> {
        self.note(|| "calm".into());
        self.calm = true;
        self.server.faults.clear();
        (0..self.mounts.len()).try_for_each(|m| self.progress(m))
    }

    fn is_quiet(&self) -> bool {
        let at = self.server.position();
        self.server.is_up()
            && self.server.pending.is_empty()
            && self.mounts.iter().all(|mount| {
                mount.shell.up.as_ref().is_some_and(|up| up.is_quiet() && up.session.position() == at)
            })
    }

    fn unrest(&self) -> String {
        let of = |up: &super::shell::Running| {
            format!(
                "position {} of {}, open {}, layers {}, jobs {}, inbox {}, loads {:?}, unplaced {:?}, recovery {}, \
                 answered {} of {}",
                up.session.position(),
                self.server.position(),
                up.session.open_changes(),
                up.session.layers().len(),
                up.jobs.len(),
                up.inbox.len(),
                up.loads,
                up.session.unplaced(),
                up.recovery.is_some(),
                up.acknowledged.0,
                up.sealed.0,
            )
        };
        let all = self.mounts.iter().map(|mount| mount.shell.up.as_ref().map_or("down".into(), of));
        all.collect::<Vec<_>>().join(" | ")
    }

    fn handle(&mut self, event: Event) -> Result<()> {
        match event {
            Event::Act(m, run) if self.is_run(m, run) => self.act(m),
            Event::Cut(m, run) if self.is_run(m, run) => {
                self.mounts[m].armed = None;
                self.cut(m)
            }
            Event::Seal(m, run) if self.is_run(m, run) => self.seal(m),
            Event::Sealed(m, run) if self.is_run(m, run) => self.sealed(m),
            Event::Poke(m, run) if self.is_run(m, run) => self.progress(m),
            Event::Connect(m, run) if self.is_run(m, run) => self.connect(m),
            Event::Parcel(m, link, parcel) if self.is_link(m, link) => self.parcel((m, link), *parcel),
            Event::Answer(m, link, number, answer) if self.is_link(m, link) => {
                self.answer(m, number, &answer)
            }
            Event::Line(m, link, line) if self.is_link(m, link) => {
                if let Some(up) = &mut self.mounts[m].shell.up {
                    up.inbox.push_back(PlacedLine::decode(&line)?);
                }
                self.progress(m)
            }
            Event::Ask(m, run, dir) => {
                let found = match self.server.is_up() {
                    true => Some(self.server.list(dir, [0, 0, 3, 2000][self.rng.random_range(0..4)])?),
                    false => None,
                };
                self.after(100, 5000, Event::Listing(m, run, dir, found));
                Ok(())
            }
            Event::Listing(m, run, dir, found) if self.is_run(m, run) => self.listing(m, dir, found),
            Event::GiveUp(m, run, dir) if self.is_run(m, run) => self.give_up(m, dir),
            other => self.handle_world(other),
        }
    }

    fn handle_world(&mut self, event: Event) -> Result<()> {
        match event {
            Event::Turn if self.server.is_up() && !self.server.pending.is_empty() => self.turn(),
            Event::Index(flush) if self.server.is_up() => {
                if !self.server.write_index(flush)? {
                    self.note(|| "the index failed".into());
                    self.end_server(IndexLoss::Unsynced);
                }
                Ok(())
            }
            Event::Cable(m) if !self.calm => {
                self.break_link(m);
                Ok(())
            }
            Event::Kill(m) | Event::Power(m) if !self.calm => {
                let power = matches!(event, Event::Power(_));
                self.note(|| format!("m{m} {}", if power { "loses power" } else { "is killed" }));
                self.end_mount(m, power);
                Ok(())
            }
            Event::Blackout if !self.calm => {
                self.note(|| "blackout".into());
                self.counts.add("fault: all ended at once");
                (0..self.mounts.len()).for_each(|m| self.end_mount(m, true));
                self.end_server(IndexLoss::Unsynced);
                Ok(())
            }
            Event::Crash(loss) if !self.calm => {
                self.note(|| format!("the server ends, its index loses {loss:?}"));
                self.end_server(loss);
                Ok(())
            }
            Event::Fault(op, fault) if !self.calm => {
                self.server.fail_next(op, fault, &mut self.counts);
                Ok(())
            }
            Event::Start(m) => self.start(m),
            Event::StartServer if !self.server.is_up() => {
                match self.server.start() {
                    Ok(()) => self.note(|| "the server starts".into()),
                    Err(error) if format!("{error:#}").contains("failed on purpose") => {
                        self.counts.add("fault: server failed to start");
                        self.after(500, 20_000, Event::StartServer);
                    }
                    Err(error) => return Err(error),
                }
                Ok(())
            }
            _ => Ok(()),
        }
    }

    fn start(&mut self, m: usize) -> Result<()> {
        if self.mounts[m].shell.up.is_some() {
            return Ok(());
        }
        if !self.server.is_up() {
            self.after(1000, 10_000, Event::Start(m));
            return Ok(());
        }
        let lose = !self.calm && self.rng.random_bool(0.1);
        let now = self.now;
        let started = self.mounts[m].shell.start(&mut self.server, now, lose, &mut self.counts);
        let started = match started {
            Ok(started) => started,
            // The journal failed: the server ends, and the mount tries again.
            Err(error) if error.is::<tidefs_server::store::JournalError>() => {
                self.end_server(IndexLoss::Nothing);
                false
            }
            Err(error) => return Err(error.context(format!("m{m} does not start"))),
        };
        if !started {
            self.after(1000, 10_000, Event::Start(m));
            return Ok(());
        }
        self.mounts[m].run += 1;
        let run = self.mounts[m].run;
        self.note(|| format!("m{m} starts, run {run}"));
        self.after(100, 2000, Event::Connect(m, run));
        self.after(1000, 20_000, Event::Act(m, run));
        self.progress(m)
    }

    fn connect(&mut self, m: usize) -> Result<()> {
        let run = self.mounts[m].run;
        if !self.server.is_up() {
            self.after(1000, 20_000, Event::Connect(m, run));
            return Ok(());
        }
        self.seq_link(m)?;
        self.announce(m);
        self.ship(m)?;
        self.progress(m)
    }

    fn seq_link(&mut self, m: usize) -> Result<()> {
        let link = self.rng.random();
        let now = self.now;
        let mount = &mut self.mounts[m];
        let up = mount.shell.up.as_mut().context("a mount that is down connects")?;
        up.inbox.clear();
        mount.link = Some(link);
        mount.shipped = up.acknowledged.0;
        mount.followed = up.session.position().0;
        mount.wire = [now; 2];
        let at = mount.followed;
        self.note(|| format!("m{m} follows from {at}"));
        Ok(())
    }

    fn parcel(&mut self, from: (usize, u64), parcel: Parcel) -> Result<()> {
        if let Some((id, bytes)) = &parcel.pack
            && !self.server.put_pack(*id, bytes)?
        {
            self.note(|| "a pack could not be stored".into());
            self.break_link(from.0);
            return Ok(());
        }
        let submission = Submission::read(parcel.version, parcel.incarnation, parcel.bytes, parcel.digest)?;
        self.server.pending.push(Arrival { from, submission });
        self.after(10, 3000, Event::Turn);
        Ok(())
    }

    fn turn(&mut self) -> Result<()> {
        let Some(done) = self.server.turn(self.now)? else {
            self.note(|| "the journal failed".into());
            self.end_server(IndexLoss::Nothing);
            return Ok(());
        };
        for line in &done.lines {
            self.count_line(&PlacedLine::decode(line)?);
        }
        if !self.calm && self.rng.random_bool(0.02) {
            self.counts.add("fault: server ended between journal and answer");
            self.end_server(IndexLoss::Unsynced);
            return Ok(());
        }
        for ((m, link), number, answer) in done.answers {
            if self.is_link(m, link) {
                self.send(m, false, Event::Answer(m, link, number, answer));
            }
        }
        (0..self.mounts.len()).for_each(|m| self.announce(m));
        let flush = self.rng.random_bool(0.3);
        self.after(10, 20_000, Event::Index(flush));
        Ok(())
    }

    fn count_line(&mut self, line: &PlacedLine) {
        self.counts.add("checkpoints placed");
        self.note(|| format!("placed {}.{} at {}", line.session.0, line.number.0, line.position));
        for note in &line.placed.notes {
            self.counts.add(&format!("note: {:?}", note.reason));
        }
        for overlap in &line.placed.overlaps {
            let register = format!("{:?}", overlap.register);
            let kind = register.split('(').next().unwrap_or_default();
            self.counts.add(&format!("overlap: {kind}"));
        }
    }

    fn answer(&mut self, m: usize, number: u64, answer: &Answer) -> Result<()> {
        match answer {
            Answer::Placed(_) => {
                let shell = &mut self.mounts[m].shell;
                if let Some(up) = &mut shell.up {
                    up.acknowledged = up.acknowledged.max(CheckpointNo(number));
                }
                shell.drop_answered();
                self.ship(m)?;
                self.progress(m)
            }
            Answer::Refused(Refusal::Gap | Refusal::MissingBlocks, _) => {
                self.counts.add("refused: sent again");
                self.break_link(m);
                Ok(())
            }
            Answer::Refused(reason, text) => bail!("m{m}: {number} was refused: {reason:?}: {text}"),
        }
    }

    fn final_checks(&mut self) -> Result<String> {
        self.note(|| "quiet".into());
        let head = check::walk_head(&self.server)?;
        for m in 0..self.mounts.len() {
            let mount = &mut self.mounts[m];
            let up = mount.shell.up.as_mut().context("a mount is down at quiet")?;
            up.kernel.check(up, &mut self.counts).with_context(|| format!("the kernel of m{m} at quiet"))?;
            let view = check::walk_mount(up, &self.server).with_context(|| format!("walking m{m}"))?;
            check::equal(&format!("m{m} and head"), &view, &head)?;
            self.counts.add("check: view and head");
            check::own_work(&mount.model, m, &head).with_context(|| format!("work of m{m}"))?;
            self.counts.add("check: own work");
        }
        let lines =
            self.server.lines.iter().map(|line| Ok(PlacedLine::decode(line)?)).collect::<Result<Vec<_>>>()?;
        check::dense(&lines)?;
        self.counts.add("check: dense numbers");
        self.server.crash(IndexLoss::All);
        self.server.start()?;
        check::equal(
            "the head and the one made again from the journal",
            &head,
            &check::walk_head(&self.server)?,
        )?;
        self.counts.add("check: index made again");
        let tree = head.iter().map(|(path, leaf)| format!("{path} {} {:?}\n", leaf.0, leaf.1));
        Ok(format!("{}{}", tree.collect::<String>(), self.trace_digest()))
    }
}
