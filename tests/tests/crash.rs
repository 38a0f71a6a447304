//! Processes killed at any moment under load. A call that returned is kept; nothing else appears.
//!
//! `TIDEFS_CRASH_ROUNDS` sets the rounds of each test (default 6); `TIDEFS_SEED` the moments and calls.

use std::collections::BTreeMap;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::{Context as _, Result, ensure};
use rand::rngs::SmallRng;
use rand::{Rng as _, SeedableRng as _};
use tidefs_tests::world::writers::{Desk, Writers};
use tidefs_tests::{Mount, World, story};

const WRITERS: usize = 8;
const CALLS_LIMIT: Duration = Duration::from_secs(60);
/// Short, so that kills meet every stage of a checkpoint's way.
const QUICK: [&str; 6] = ["--settle", "30ms", "--signal-settle", "10ms", "--max-delay", "120ms"];

/// What a round kills.
#[derive(Clone, Copy, PartialEq)]
enum Victim {
    Mount,
    Server,
    Both,
}

/// kill -9 of a mount loses no completed call, and all of them reach the other mount.
#[test]
fn a_killed_mount_loses_nothing() -> Result<()> {
    rounds("kill-mount", Victim::Mount)
}

/// kill -9 of the server loses nothing that was acknowledged and nothing that was on its way.
#[test]
fn a_killed_server_loses_nothing() -> Result<()> {
    rounds("kill-server", Victim::Server)
}

/// kill -9 of both at one moment loses nothing.
#[test]
fn both_killed_at_once_lose_nothing() -> Result<()> {
    rounds("kill-both", Victim::Both)
}

fn rounds(name: &str, victim: Victim) -> Result<()> {
    let count: u64 = setting("TIDEFS_CRASH_ROUNDS")?.unwrap_or(6);
    let seed = match setting("TIDEFS_SEED")? {
        Some(seed) => seed,
        None => u64::from(SystemTime::now().duration_since(UNIX_EPOCH)?.subsec_nanos()),
    };
    story(name, &[], |world| {
        let mut a = world.mount_with("a", &QUICK)?;
        let b = world.mount("b")?;
        let mut desks = Desk::set_up(a.dir(), WRITERS)?;
        for round in 0..count {
            desks = one_round(world, victim, (&mut a, &b), (desks, seed + round))
                .with_context(|| format!("round {round} of TIDEFS_SEED={seed}"))?;
        }
        check_numbers(world)
    })
}

fn setting(name: &str) -> Result<Option<u64>> {
    std::env::var(name).ok().map(|text| text.parse().with_context(|| format!("{name}={text}"))).transpose()
}

fn one_round(
    world: &mut World,
    victim: Victim,
    (a, b): (&mut Mount, &Mount),
    (desks, seed): (Vec<Desk>, u64),
) -> Result<Vec<Desk>> {
    let mut random = SmallRng::seed_from_u64(seed);
    let writers = Writers::start(a.dir(), desks, seed);
    writers.wait_for(random.random_range(20..3_000), CALLS_LIMIT)?;
    if victim != Victim::Server {
        a.kill9()?;
    }
    if victim != Victim::Mount {
        world.server.kill9();
    }
    if victim == Victim::Server {
        // The mount goes on without its server.
        writers.wait_for(random.random_range(3_000..4_000), CALLS_LIMIT)?;
    }
    let mut desks = writers.join()?;
    if victim != Victim::Mount {
        world.server.restart()?;
    }
    if victim != Victim::Server {
        ensure!(desks.iter().any(|desk| desk.in_flight.is_some()), "no writer noticed the kill");
        a.remount()?;
    }
    for desk in &mut desks {
        desk.check(a.dir()).context("on the mount itself")?;
    }
    a.sync("visible")?;
    // A follower that is not back yet is not waited for by that.
    world.wait(world.head()?, b)?;
    for desk in &mut desks {
        desk.check(b.dir()).context("on the other mount")?;
    }
    Ok(desks)
}

/// Each session's checkpoints stand on the timeline as 1, 2, 3 ... without gap or repeat, and
/// positions are dense.
fn check_numbers(world: &World) -> Result<()> {
    let mut numbers: BTreeMap<String, Vec<u64>> = BTreeMap::new();
    let mut positions = Vec::new();
    let mut timeline = world.timeline()?;
    timeline.sort_by_key(|entry| entry["position"].as_u64());
    for entry in timeline {
        positions.push(entry["position"].as_u64().with_context(|| format!("no position in {entry}"))?);
        if let Some(number) = entry["number"].as_u64() {
            numbers.entry(entry["session"].to_string()).or_default().push(number);
        }
    }
    let first = positions.first().copied().context("the timeline is empty")?;
    ensure!((first..).zip(&positions).all(|(want, got)| want == *got), "positions have a gap or repeat");
    ensure!(!numbers.is_empty(), "the timeline lists no checkpoint");
    for (session, found) in numbers {
        let right = (1..).zip(&found).all(|(want, got)| want == *got);
        ensure!(right, "session {session} has the numbers {found:?}");
    }
    Ok(())
}
