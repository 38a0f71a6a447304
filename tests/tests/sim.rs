//! The seeded simulation. `TIDEFS_SIM_SEEDS` sets how many seeds are run; `TIDEFS_SIM_SEED` runs one, and prints
//! every event of it.

use anyhow::{Context as _, Result, bail, ensure};
use tidefs_tests::sim::{
    counts::Counts,
    run::{Failure, run},
    world::Size,
};

const SEEDS: u64 = 200;
/// Failed seeds after which no more are run: each is named, the first one in full.
const FAILURES_MAX: usize = 20;

/// What must have had a part in a whole run, or the run proves too little.
const ESSENTIAL: [&str; 37] = [
    "acts that wait for a directory",
    "arrivals that met the open batch",
    "arrivals, foreign",
    "arrivals, own",
    "check: dense numbers",
    "check: index made again",
    "check: own work",
    "check: own work after recovery",
    "check: predicted and announced",
    "check: the kernel's beliefs",
    "check: view and head",
    "cuts that came to nothing",
    "fault: all ended at once",
    "fault: answer to attach lost",
    "fault: append to a log failed",
    "fault: connection broken",
    "fault: mount killed",
    "fault: power of a mount lost",
    "fault: server ended between journal and answer",
    "fault: server ended, index loses All",
    "fault: server ended, index loses Nothing",
    "fault: server ended, index loses Unsynced",
    "fault: shipment sent twice",
    "fault: written work lost with the power",
    "loads from the future",
    "note: Beside",
    "note: BroughtBack",
    "note: Gone",
    "note: LostToDirectory",
    "note: MovedTwice",
    "note: NotRemoved",
    "note: ToHeir",
    "note: United",
    "recovered changes from the log",
    "recovered checkpoints from the outbox",
    "tell: entry",
    "tell: node",
];

fn setting(name: &str) -> Result<Option<u64>> {
    match std::env::var(name) {
        Ok(text) => Ok(Some(text.parse().with_context(|| format!("{name}={text} is not a number"))?)),
        Err(_) => Ok(None),
    }
}

fn size(seed: u64) -> Size {
    Size { mounts: if seed.is_multiple_of(5) { 3 } else { 2 }, acts: 120 }
}

fn failed(seed: u64, failure: &Failure) -> anyhow::Error {
    let trace = failure.trace.join("\n");
    anyhow::anyhow!(
        "seed {seed}: {:#}\nthe last events:\n{trace}\nagain: TIDEFS_SIM_SEED={seed}",
        failure.error
    )
}

/// Whatever crashes, breaks and comes twice: all mounts and the head end equal, nothing that was done is lost.
#[test]
fn seeds_come_to_rest_with_equal_trees() -> Result<()> {
    if let Some(seed) = setting("TIDEFS_SIM_SEED")? {
        let outcome = run(seed, size(seed), true).map_err(|failure| failed(seed, &failure))?;
        println!("{}", outcome.counts);
        return Ok(());
    }
    let seeds = setting("TIDEFS_SIM_SEEDS")?.unwrap_or(SEEDS);
    let mut counts = Counts::default();
    let mut failures: Vec<anyhow::Error> = Vec::new();
    for seed in 0..seeds {
        match run(seed, size(seed), false) {
            Ok(outcome) => counts.merge(&outcome.counts),
            Err(failure) => {
                eprintln!("seed {seed}: {:#}", failure.error);
                failures.push(failed(seed, &failure));
            }
        }
        if failures.len() >= FAILURES_MAX {
            break;
        }
    }
    println!("{counts}");
    if let Some(first) = failures.into_iter().next() {
        return Err(first);
    }
    if seeds >= SEEDS {
        let missing: Vec<&str> = ESSENTIAL.into_iter().filter(|name| counts.get(name) == 0).collect();
        ensure!(missing.is_empty(), "never happened in {seeds} seeds: {missing:?}");
    }
    Ok(())
}

/// Equal seeds give equal events and equal trees: a failure can be looked at again.
#[test]
fn a_seed_gives_the_same_run_twice() -> Result<()> {
    for seed in [3, 5, 11] {
        let one = run(seed, size(seed), false).map_err(|failure| failed(seed, &failure))?;
        let two = run(seed, size(seed), false).map_err(|failure| failed(seed, &failure))?;
        if one.state != two.state || one.counts != two.counts {
            bail!("seed {seed} gave two different runs");
        }
    }
    Ok(())
}
