//! One run: every event is handled by the real code, and the checkers look on.

use super::{
    acts::{Act, Hands},
    check,
    counts::Counts,
    server::{Arrival, IndexLoss},
    shell::{Recovered, moment},
    world::{Event, Parcel, Size, World},
};
use anyhow::{Context as _, Result, anyhow, bail, ensure};
use rand::Rng as _;
use tidefs_mount::{
    session::{
        arrive::Wait,
        loading::{Directory, DirectoryState},
    },
    volume::{Load, Stop},
};
use tidefs_proto::{PlacedLine, limits::INFLIGHT_MAX};
use tidefs_server::order::{Answer, Refusal, Submission};
use tidefs_timeline::{CheckpointNo, NodeId, Overlay};

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
            let event = self.next().context("nothing happens any more, and work is left")?;
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

    fn act(&mut self, m: usize) -> Result<()> {
        let run = self.mounts[m].run;
        let ready = self.mounts[m].shell.up.as_ref().is_some_and(|up| up.recovery.is_none());
        if !ready {
            self.after(1000, 10_000, Event::Act(m, run));
            return Ok(());
        }
        let Some(act) = self.next_act(m) else { return Ok(()) };
        let fail = !self.calm && self.rng.random_bool(0.01);
        let done = self.with_hands(m, fail, &act)?;
        self.note(|| format!("m{m} {act:?}: {done:?}"));
        match done {
            Ok(()) => {
                self.counts.add("acts done");
                let mount = &mut self.mounts[m];
                let end = mount.shell.disk.end();
                mount.history.push((end, mount.model.clone()));
            }
            Err(Stop::Load(Load::Directory(dir))) => {
                self.counts.add("acts that wait for a directory");
                self.load(m, dir)?;
                self.mounts[m].script.push_front(act);
            }
            Err(_) => self.counts.add("acts refused"),
        }
        self.arm(m);
        self.after(200, 12_000, Event::Act(m, run));
        self.check_kernel(m)
    }

    fn with_hands(&mut self, m: usize, fail: bool, act: &Act) -> Result<Result<(), Stop>> {
        let mount = &mut self.mounts[m];
        let mut hands = Hands {
            shell: &mut mount.shell,
            model: &mut mount.model,
            server: &self.server,
            rng: &mut self.rng,
            now: self.now,
            fail,
        };
        match act {
            Act::Look(path) => hands.look(path, &mut self.counts),
            Act::Evict(n) => hands.evict(*n).map(Ok),
            act => {
                let done = hands.run(act);
                if fail && done == Err(Stop::Errno(libc::EIO)) {
                    self.counts.add("fault: append to a log failed");
                }
                Ok(done)
            }
        }
    }

    /// Has the cutter look when the next cut is due.
    pub(super) fn arm(&mut self, m: usize) {
        let run = self.mounts[m].run;
        let Some(up) = &self.mounts[m].shell.up else { return };
        let Some(due) = up.session.due() else { return };
        let due = (due.as_micros() as u64).max(self.now);
        if self.mounts[m].armed.is_none_or(|armed| due < armed) {
            self.mounts[m].armed = Some(due);
            self.at(due, Event::Cut(m, run));
        }
    }

    fn cut(&mut self, m: usize) -> Result<()> {
        let now = moment(self.now);
        let mount = &mut self.mounts[m];
        let end = mount.shell.disk.end();
        let Some(up) = &mut mount.shell.up else { return Ok(()) };
        let due = up.session.due().is_some_and(|due| due <= now.tick);
        if !due || up.recovery.is_some() || !up.session.may_cut(INFLIGHT_MAX) {
            if !due {
                self.arm(m);
            }
            return Ok(());
        }
        match up.session.cut(now, end, false) {
            Ok(Some(job)) => self.give(m, job),
            Ok(None) => Ok(()),
            Err(Stop::Load(Load::Directory(dir))) => self.load(m, dir),
            Err(stop) => bail!("a cut of m{m} failed: {stop:?}"),
        }?;
        self.check_kernel(m)?;
        self.arm_if_may(m);
        Ok(())
    }

    fn arm_if_may(&mut self, m: usize) {
        let may = self.mounts[m].shell.up.as_ref().is_some_and(|up| up.session.may_cut(INFLIGHT_MAX));
        if may {
            self.arm(m);
        }
    }

    fn give(&mut self, m: usize, job: tidefs_mount::session::SealJob) -> Result<()> {
        let number = job.checkpoint.as_ref().map(|checkpoint| checkpoint.number.0);
        self.note(|| format!("m{m} cuts {number:?}"));
        self.counts.add(if number.is_some() { "cuts" } else { "cuts that came to nothing" });
        let run = self.mounts[m].run;
        let Some(up) = &mut self.mounts[m].shell.up else { return Ok(()) };
        up.jobs.push_back(job);
        self.after(100, 8000, Event::Seal(m, run));
        Ok(())
    }

    fn seal(&mut self, m: usize) -> Result<()> {
        let run = self.mounts[m].run;
        let shell = &mut self.mounts[m].shell;
        let Some(up) = &mut shell.up else { return Ok(()) };
        if up.put.is_some() {
            self.after(100, 2000, Event::Seal(m, run));
            return Ok(());
        }
        let Some(job) = up.jobs.pop_front() else { return Ok(()) };
        shell.seal(&job)?;
        self.after(10, 2000, Event::Sealed(m, run));
        Ok(())
    }

    fn sealed(&mut self, m: usize) -> Result<()> {
        self.mounts[m].shell.finish_seal()?;
        let log_start = self.mounts[m].shell.log_start();
        let history = &mut self.mounts[m].history;
        let old = history.partition_point(|(end, _)| *end <= log_start);
        history.drain(..old.saturating_sub(1));
        self.check_kernel(m)?;
        self.ship(m)?;
        self.progress(m)
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

    /// Begins to fetch a directory.
    fn load(&mut self, m: usize, dir: NodeId) -> Result<()> {
        let connected = self.mounts[m].link.is_some();
        let run = self.mounts[m].run;
        let Some(up) = &mut self.mounts[m].shell.up else { return Ok(()) };
        if up.loads.contains_key(&dir) {
            return Ok(());
        }
        ensure!(!up.session.is_loaded(dir), "m{m} waits for directory {dir}, which it says is loaded");
        self.counts.add("loads");
        up.session.load_began();
        up.loads.insert(dir, false);
        if connected {
            self.after(100, 5000, Event::Ask(m, run, dir));
            self.after(2_000_000, 2_000_001, Event::GiveUp(m, run, dir));
        } else {
            self.after(20_000, 30_000, Event::Listing(m, run, dir, None));
        }
        Ok(())
    }

    fn listing(&mut self, m: usize, dir: NodeId, found: Option<Vec<Directory>>) -> Result<()> {
        let Some(up) = &mut self.mounts[m].shell.up else { return Ok(()) };
        let mut ahead = false;
        let seen: Vec<String> = found.iter().flatten().map(describe).collect();
        let at = up.session.position();
        for directory in found.into_iter().flatten() {
            ahead |= directory.id == dir && directory.position > up.session.position();
            up.session.loaded(directory);
        }
        if ahead {
            self.counts.add("loads from the future");
            up.loads.insert(dir, true);
        } else if up.loads.remove(&dir).is_some() {
            up.session.load_ended();
        }
        self.note(|| format!("m{m}, at {at}, hears of {dir}: {}", seen.join(", ")));
        self.check_kernel(m)?;
        self.progress(m)
    }

    fn give_up(&mut self, m: usize, dir: NodeId) -> Result<()> {
        if let Some(up) = &mut self.mounts[m].shell.up
            && up.loads.get(&dir) == Some(&true)
        {
            up.loads.remove(&dir);
            up.session.load_ended();
            return self.progress(m);
        }
        Ok(())
    }

    /// Goes on with whatever a mount can go on with.
    fn progress(&mut self, m: usize) -> Result<()> {
        if self.mounts[m].shell.up.as_ref().is_some_and(|up| up.recovery.is_some()) {
            self.recover(m)?;
        }
        self.place_layers(m)?;
        self.take_in(m)?;
        if self.calm
            && let Some(up) = &mut self.mounts[m].shell.up
        {
            up.session.ask_cut();
        }
        self.arm_if_may(m);
        Ok(())
    }

    fn recover(&mut self, m: usize) -> Result<()> {
        let run = self.mounts[m].run;
        match self.mounts[m].shell.recover(&self.server, self.now)? {
            Recovered::Done => {
                self.note(|| format!("m{m} has recovered"));
                let mount = &mut self.mounts[m];
                let up = mount.shell.up.as_mut().context("recovered and down")?;
                up.recovered = up.sealed;
                let whole =
                    check::own_view(&mount.model, up).with_context(|| format!("m{m} after recovery"))?;
                self.counts.add(if whole {
                    "check: own work after recovery"
                } else {
                    "check: part of own work after recovery"
                });
                self.ship(m)
            }
            Recovered::Load(dir) => self.load(m, dir),
            Recovered::Later => {
                self.after(1000, 10_000, Event::Poke(m, run));
                Ok(())
            }
        }
    }

    fn place_layers(&mut self, m: usize) -> Result<()> {
        let Some(up) = self.mounts[m].shell.up.as_mut().filter(|up| up.session.unplaced().is_some()) else {
            return Ok(());
        };
        match up.session.place_layers() {
            Ok(told) => {
                up.kernel.tell(&told.tells, &mut self.counts);
                self.counts.add("layers placed once a directory was there");
                self.check_kernel(m)
            }
            Err(missing) => self.load(m, missing.0),
        }
    }

    fn take_in(&mut self, m: usize) -> Result<()> {
        loop {
            let end = self.mounts[m].shell.disk.end();
            let now = moment(self.now);
            let Some(up) = &mut self.mounts[m].shell.up else { return Ok(()) };
            let Some(line) = up.inbox.front().cloned() else { return Ok(()) };
            let expected = self.expected(m, &line)?;
            let Some(up) = &mut self.mounts[m].shell.up else { return Ok(()) };
            match up.session.arrive(&line, now, end) {
                Ok(arrived) => {
                    up.inbox.pop_front();
                    up.kernel.tell(&arrived.told.tells, &mut self.counts);
                    self.arrived(m, &line, (arrived.job, arrived.load, expected))?;
                }
                Err(Wait::Load(dir)) => {
                    self.counts.add("arrivals that wait for a directory");
                    return self.load(m, dir);
                }
                Err(Wait::Seal) => {
                    self.counts.add("arrivals that wait for the sealer");
                    return Ok(());
                }
                Err(Wait::NotNext) => bail!("m{m}: position {} came out of order", line.position),
            }
        }
    }

    /// An own checkpoint must come to what was predicted when nothing foreign was placed since its cut.
    fn expected(&mut self, m: usize, line: &PlacedLine) -> Result<bool> {
        let Some(up) = &self.mounts[m].shell.up else { return Ok(false) };
        let own = line.session == up.number();
        let Some(front) =
            up.session.layers().front().filter(|front| own && front.checkpoint.number == line.number)
        else {
            return Ok(false);
        };
        let since = &self.server.lines[front.checkpoint.applied.0 as usize..line.position.0 as usize - 1];
        // What a restart has not loaded (heirs, a file moved elsewhere) cannot be counted on.
        let mut alone = front.checkpoint.number > up.recovered;
        for other in since {
            alone &= PlacedLine::decode(other)?.session == line.session;
        }
        if alone {
            same(&front.effects, &line.placed.effects)
                .with_context(|| format!("m{m}: {} came to other than predicted", line.number.0))?;
            self.counts.add("check: predicted and announced");
        }
        Ok(true)
    }

    fn arrived(
        &mut self,
        m: usize,
        line: &PlacedLine,
        after: (Option<tidefs_mount::session::SealJob>, Option<NodeId>, bool),
    ) -> Result<()> {
        let (job, load, own) = after;
        self.note(|| format!("m{m} takes in {} ({}.{})", line.position, line.session.0, line.number.0));
        self.counts.add(if own { "arrivals, own" } else { "arrivals, foreign" });
        if let Some(job) = job {
            self.counts.add("arrivals that met the open batch");
            self.give(m, job)?;
        }
        if let Some(dir) = load {
            self.counts.add("layers that wait for a directory");
            self.load(m, dir)?;
        }
        if let Some(up) = &mut self.mounts[m].shell.up {
            let done: Vec<NodeId> = up
                .loads
                .iter()
                .filter(|(dir, ahead)| **ahead && up.session.is_loaded(**dir))
                .map(|l| *l.0)
                .collect();
            let recovering = up.recovery.is_some() && !done.is_empty();
            for dir in done {
                up.loads.remove(&dir);
                up.session.load_ended();
            }
            if recovering {
                let run = self.mounts[m].run;
                self.at(self.now, Event::Poke(m, run));
            }
        }
        self.check_kernel(m)
    }

    fn check_kernel(&mut self, m: usize) -> Result<()> {
        match &self.mounts[m].shell.up {
            Some(up) => up.kernel.check(up, &mut self.counts).with_context(|| format!("the kernel of m{m}")),
            None => Ok(()),
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

/// Whether what can be seen of two results is the same.
fn same(a: &Overlay, b: &Overlay) -> Result<()> {
    let differ = |what: &str, a: String, b: String| anyhow!("{what} differ:\n  {a}\n  {b}");
    if a.entries != b.entries {
        return Err(differ("entries", format!("{:?}", a.entries), format!("{:?}", b.entries)));
    }
    for id in a.nodes.keys().chain(b.nodes.keys()) {
        let (one, two) = (a.nodes.get(id), b.nodes.get(id));
        if one != two {
            return Err(differ(&format!("nodes {id}"), format!("{one:?}"), format!("{two:?}")));
        }
    }
    ensure!(a.aliases == b.aliases, "aliases differ");
    Ok(())
}

/// A line for the trace.
fn describe(directory: &Directory) -> String {
    let what = match &directory.what {
        DirectoryState::Gone => "gone".to_owned(),
        DirectoryState::Alias(to) => format!("now {to}"),
        DirectoryState::Listing { entries, .. } => format!("{} entries", entries.len()),
    };
    format!("{} at {} {what}", directory.id, directory.position)
}
