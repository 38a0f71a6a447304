//! Measures the product on this machine: write-to-visible on loopback, workloads against the local
//! file system, memory of an idle mount. One JSON object a line.
//!
//! ```text
//! cargo run --profile ci -p tidefs-tests --bin tidefs-bench -- --fsbench PATH/fsbench.py
//! ```
//!
//! Write-to-visible starts with the first system call on A and ends when a read on B, through the
//! kernel, gives the new content. Workloads run in pairs, mount then local file system, because the
//! machine drifts; a ratio above 1 means faster than the local file system.

use std::collections::BTreeMap;
use std::fs::File;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Result, bail, ensure};
use clap::Parser;
use serde_json::{Value, json};
use tidefs_tests::stats::{quantile, sorted};
use tidefs_tests::world::process;
use tidefs_tests::{Mount, World};

/// Spacing of the looks on B.
const LOOK_SPACING: Duration = Duration::from_millis(1);
/// A change that takes longer than this is lost.
const CHANGE_LIMIT: Duration = Duration::from_secs(30);
/// Size of the files that are changed.
const FILE_BYTES: usize = 8_192;

/// Write-to-visible, workload ratios and idle memory, as JSON lines.
#[derive(Parser)]
struct Options {
    /// Changes of each kind.
    #[arg(long, default_value_t = 200)]
    changes: u64,
    /// Settle time of the writing mount.
    #[arg(long, default_value = "1s")]
    settle: String,
    /// Settle time after a rename over a file or an fsync.
    #[arg(long, default_value = "100ms")]
    signal_settle: String,
    /// The workload script; without it no workloads run.
    #[arg(long)]
    fsbench: Option<PathBuf>,
    /// Its groups.
    #[arg(long, default_value = "seq,small,tree,sqlite,agent")]
    groups: String,
    /// Its scale.
    #[arg(long, default_value_t = 0.2)]
    scale: f64,
    /// How many pairs of runs.
    #[arg(long, default_value_t = 3)]
    pairs: u32,
}

fn main() -> Result<()> {
    let options = Options::parse();
    let world = World::new("bench")?;
    let args = ["--settle", &options.settle, "--signal-settle", &options.signal_settle];
    let a = world.mount_with("a", &args)?;
    let b = world.mount("b")?;
    let memory = process::memory_kib(b.pid()?, "VmHWM")?;
    print(&json!({"metric": "idle_mount_memory_high", "value_bytes": memory * 1024}));
    for kind in [Kind::InPlace, Kind::Rename] {
        let sample = propagate(&a, &b, kind, options.changes)?;
        let sample = sorted(sample);
        print(&json!({
            "metric": kind.name(), "n": sample.len(),
            "p50_ms": round(quantile(&sample, 0.5)), "p99_ms": round(quantile(&sample, 0.99)),
            "max_ms": round(quantile(&sample, 1.0)),
            "settle": options.settle, "signal_settle": options.signal_settle,
            "settle_ms": millis(&options.settle), "signal_settle_ms": millis(&options.signal_settle),
        }));
    }
    if let Some(script) = &options.fsbench {
        compare(script, &options, &world, &a)?;
    }
    Ok(())
}

#[expect(clippy::print_stdout, reason = "the output of the program")]
fn print(line: &Value) {
    println!("{line}");
}

fn round(value: f64) -> f64 {
    (value * 1000.0).round() / 1000.0
}

/// The number of milliseconds in `250ms` or `1.5s`; null for what is written otherwise.
fn millis(text: &str) -> Option<f64> {
    match text.strip_suffix("ms") {
        Some(number) => number.parse().ok(),
        None => text.strip_suffix('s')?.parse::<f64>().ok().map(|seconds| seconds * 1000.0),
    }
}

#[derive(Clone, Copy)]
enum Kind {
    InPlace,
    Rename,
}

impl Kind {
    fn name(self) -> &'static str {
        match self {
            Self::InPlace => "visible_after_edit_in_place",
            Self::Rename => "visible_after_save_by_rename",
        }
    }
}

/// Milliseconds from the first call of each change on A until B reads it.
fn propagate(a: &Mount, b: &Mount, kind: Kind, changes: u64) -> Result<Vec<f64>> {
    let name = kind.name();
    a.write(name, content(0))?;
    a.sync("visible")?;
    let mut sample = Vec::new();
    for number in 1..=changes {
        let start = Instant::now();
        match kind {
            Kind::InPlace => {
                File::options().write(true).open(a.path(name))?.write_all_at(&content(number), 0)?;
            }
            Kind::Rename => a.save_by_rename(name, &format!(".{name}.tmp"), content(number))?,
        }
        while look(&b.path(name))? != content(number) {
            ensure!(start.elapsed() < CHANGE_LIMIT, "change {number} is not visible after {CHANGE_LIMIT:?}");
            std::thread::sleep(LOOK_SPACING);
        }
        sample.push(start.elapsed().as_secs_f64() * 1000.0);
    }
    Ok(sample)
}

fn content(number: u64) -> Vec<u8> {
    number.to_le_bytes().repeat(FILE_BYTES / 8)
}

fn look(path: &Path) -> Result<Vec<u8>> {
    let mut bytes = vec![0; FILE_BYTES];
    File::open(path)?.read_exact_at(&mut bytes, 0)?;
    Ok(bytes)
}

/// Runs the workload script on the mount and beside it, pair by pair, and prints the ratios.
fn compare(script: &Path, options: &Options, world: &World, mount: &Mount) -> Result<()> {
    let local = world.root().join("local");
    std::fs::create_dir_all(&local)?;
    let mut ratios: BTreeMap<String, Vec<f64>> = BTreeMap::new();
    for _ in 0..options.pairs {
        let on_mount = run_script(script, options, mount.dir())?;
        let on_local = run_script(script, options, &local)?;
        for (metric, record) in &on_mount {
            match on_local.get(metric).and_then(|other| ratio(record, other)) {
                Some(ratio) => ratios.entry(metric.clone()).or_default().push(ratio),
                None => print(&json!({"metric": metric, "error": record["error"], "note": record["note"]})),
            }
        }
    }
    for (metric, sample) in ratios {
        let sample = sorted(sample);
        print(&json!({
            "metric": metric, "pairs": sample.len(), "ratio": round(quantile(&sample, 0.5)),
            "ratio_min": round(quantile(&sample, 0.0)), "ratio_max": round(quantile(&sample, 1.0)),
        }));
    }
    Ok(())
}

/// Speed on the mount divided by speed on the local file system.
fn ratio(mount: &Value, local: &Value) -> Option<f64> {
    let (mine, other) = (mount["value"].as_f64()?, local["value"].as_f64()?);
    let ratio = if mount["better"] == "higher" { mine / other } else { other / mine };
    ratio.is_finite().then_some(ratio)
}

fn run_script(script: &Path, options: &Options, dir: &Path) -> Result<BTreeMap<String, Value>> {
    let mut command = Command::new("python3");
    command.arg(script).arg(dir).args(["--groups", &options.groups, "--scale", &options.scale.to_string()]);
    let ran = process::run(&mut command, Duration::from_secs(3_600))?;
    let records = ran.json()?;
    if records.is_empty() {
        bail!("`{}` printed nothing\n{}", ran.command, ran.stderr);
    }
    let named = records.into_iter().filter_map(|record| {
        let name = record["metric"].as_str()?.to_owned();
        Some((name, record))
    });
    Ok(named.collect())
}
