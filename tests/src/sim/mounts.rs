//! What happens in a mount: its programs act, it cuts, seals, loads, recovers and takes in what was placed.

use super::{
    acts::{Act, Hands},
    check,
    restart::Recovered,
    shell::moment,
    world::{Event, World},
};
use anyhow::{Context as _, Result, anyhow, bail, ensure};
use rand::Rng as _;
use tidefs_mount::{
    session::{
        SealJob,
        arrive::Wait,
        loading::{Directory, DirectoryState},
    },
    volume::{Load, Stop},
};
use tidefs_proto::{PlacedLine, limits::INFLIGHT_MAX};
use tidefs_timeline::{CheckpointNo, NodeId, Overlay};

impl World {
    pub(super) fn act(&mut self, m: usize) -> Result<()> {
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

    pub(super) fn with_hands(&mut self, m: usize, fail: bool, act: &Act) -> Result<Result<(), Stop>> {
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

    pub(super) fn cut(&mut self, m: usize) -> Result<()> {
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

    pub(super) fn arm_if_may(&mut self, m: usize) {
        let may = self.mounts[m].shell.up.as_ref().is_some_and(|up| up.session.may_cut(INFLIGHT_MAX));
        if may {
            self.arm(m);
        }
    }

    pub(super) fn give(&mut self, m: usize, job: SealJob) -> Result<()> {
        let number = job.checkpoint.as_ref().map(|checkpoint| checkpoint.number.0);
        self.note(|| format!("m{m} cuts {number:?}"));
        self.counts.add(if number.is_some() { "cuts" } else { "cuts that came to nothing" });
        let run = self.mounts[m].run;
        self.mounts[m].shell.log_undone(&job);
        let Some(up) = &mut self.mounts[m].shell.up else { return Ok(()) };
        up.kernel.tell(&job.tells, &mut self.counts);
        up.jobs.push_back(job);
        self.after(100, 8000, Event::Seal(m, run));
        Ok(())
    }

    pub(super) fn seal(&mut self, m: usize) -> Result<()> {
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

    pub(super) fn sealed(&mut self, m: usize) -> Result<()> {
        self.mounts[m].shell.finish_seal()?;
        let log_start = self.mounts[m].shell.log_start();
        let history = &mut self.mounts[m].history;
        let old = history.partition_point(|(end, _)| *end <= log_start);
        history.drain(..old.saturating_sub(1));
        self.check_kernel(m)?;
        self.ship(m)?;
        self.progress(m)
    }

    /// Begins to fetch a directory.
    pub(super) fn load(&mut self, m: usize, dir: NodeId) -> Result<()> {
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

    pub(super) fn listing(&mut self, m: usize, dir: NodeId, found: Option<Vec<Directory>>) -> Result<()> {
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

    pub(super) fn give_up(&mut self, m: usize, dir: NodeId) -> Result<()> {
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
    pub(super) fn progress(&mut self, m: usize) -> Result<()> {
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

    pub(super) fn recover(&mut self, m: usize) -> Result<()> {
        let run = self.mounts[m].run;
        match self.mounts[m].shell.recover(&self.server, self.now)? {
            Recovered::Done => {
                self.note(|| format!("m{m} has recovered"));
                let mount = &mut self.mounts[m];
                let up = mount.shell.up.as_mut().context("recovered and down")?;
                up.recovered = up.sealed;
                // With nothing unsent nothing is guessed.
                up.guessed = if up.session.layers().is_empty() { CheckpointNo(0) } else { up.sealed };
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

    pub(super) fn place_layers(&mut self, m: usize) -> Result<()> {
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

    pub(super) fn take_in(&mut self, m: usize) -> Result<()> {
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
    pub(super) fn expected(&mut self, m: usize, line: &PlacedLine) -> Result<bool> {
        let Some(up) = &self.mounts[m].shell.up else { return Ok(false) };
        let own = line.session == up.number();
        let Some(front) =
            up.session.layers().front().filter(|front| own && front.checkpoint.number == line.number)
        else {
            return Ok(false);
        };
        let since = &self.server.lines[front.checkpoint.applied.0 as usize..line.position.0 as usize - 1];
        // What a restart has not loaded (heirs, a file moved elsewhere) cannot be counted on.
        let mut alone = front.checkpoint.number > up.guessed;
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

    pub(super) fn arrived(
        &mut self,
        m: usize,
        line: &PlacedLine,
        after: (Option<SealJob>, Option<NodeId>, bool),
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
            // Programs saw what recovery had guessed, and went on from there.
            if own && line.number <= up.guessed && up.recovered < CheckpointNo(u64::MAX) {
                let open = up.session.open_changes() > 0;
                let last = up.session.layers().last_number();
                up.guessed = up.guessed.max(if open { last.next() } else { last });
            }
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

    pub(super) fn check_kernel(&mut self, m: usize) -> Result<()> {
        match &self.mounts[m].shell.up {
            Some(up) => up.kernel.check(up, &mut self.counts).with_context(|| format!("the kernel of m{m}")),
            None => Ok(()),
        }
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
