//! Other people's programs on the drive: what works on a local disk works here, seen from both sides.

use std::io::{BufRead as _, BufReader, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use tidefs_tests::need::{DIFF, GIT, RSYNC, SQLITE, TAR};
use tidefs_tests::world::{Ran, process};
use tidefs_tests::{Mount, World, files, story};

const TOOL_LIMIT: Duration = Duration::from_secs(240);
/// Files of each of the two trees that are copied at once.
const TREE_FILES: usize = 2_000;

/// Runs a program with a clean environment for git and no terminal.
fn tool(world: &World, dir: &Path, words: &[&str]) -> Result<Ran> {
    let mut command = Command::new(words[0]);
    command.args(&words[1..]).current_dir(dir).env("HOME", world.root()).env("LC_ALL", "C");
    for (key, value) in [("NAME", "Tester"), ("EMAIL", "tester@example.org")] {
        command.env(format!("GIT_AUTHOR_{key}"), value).env(format!("GIT_COMMITTER_{key}"), value);
    }
    command.env("GIT_CONFIG_GLOBAL", "/dev/null").env("GIT_CONFIG_NOSYSTEM", "1");
    process::run(&mut command, TOOL_LIMIT)?.ok()
}

/// A clone made on one mount is a sound and clean repository on the other, which can commit to it,
/// and the first mount sees that commit.
#[test]
fn git_works_across_mounts() -> Result<()> {
    story("git", &[GIT], |world| {
        let (a, b) = (world.mount("a")?, world.mount("b")?);
        let source = world.root().join("source");
        make_repository(world, &source)?;
        let git = |mount: &Mount, words: &[&str]| -> Result<String> {
            let words = [&["git"], words].concat();
            Ok(tool(world, &mount.path("clone"), &words)?.stdout)
        };
        tool(world, a.dir(), &["git", "clone", "-q", &source.display().to_string(), "clone"])?;
        a.sync("visible")?;
        git(&b, &["fsck", "--full", "--strict"])?;
        ensure!(git(&b, &["log", "--format=%H"])?.lines().count() == 12, "history is incomplete");
        ensure!(git(&b, &["status", "--porcelain"])?.is_empty(), "unclean on the other mount");
        b.write("clone/dir1/file3", "changed on the other mount\n")?;
        b.write("clone/new", "new\n")?;
        git(&b, &["add", "-A"])?;
        git(&b, &["commit", "-q", "-m", "from the other mount"])?;
        b.sync("visible")?;
        ensure!(git(&a, &["status", "--porcelain"])?.is_empty(), "unclean on the first mount");
        ensure!(git(&a, &["log", "--format=%s", "-1"])? == "from the other mount\n", "commit not seen");
        git(&a, &["fsck", "--full", "--strict"])?;
        Ok(())
    })
}

/// Twelve commits over a hundred files, local.
fn make_repository(world: &World, dir: &Path) -> Result<()> {
    std::fs::create_dir(dir)?;
    tool(world, dir, &["git", "init", "-q"])?;
    for commit in 0..12 {
        for number in 0..100 {
            let folder = dir.join(format!("dir{}", number % 7));
            std::fs::create_dir_all(&folder)?;
            let text = format!("commit {commit} of file {number}\n").repeat(number + 1);
            files::write(&folder.join(format!("file{number}")), text.as_bytes())?;
        }
        tool(world, dir, &["git", "add", "-A"])?;
        tool(world, dir, &["git", "commit", "-q", "-m", &format!("commit {commit}")])?;
    }
    Ok(())
}

/// Two big trees copied through two mounts at once arrive complete on both.
#[test]
fn two_trees_at_once_arrive_complete() -> Result<()> {
    story("two-trees", &[TAR, DIFF], |world| {
        let (a, b) = (world.mount("a")?, world.mount("b")?);
        let [left, right] = source_trees(world)?;
        let copy = |mount: &Mount, source: &Path| -> Result<()> {
            let target = mount.path(&format!("sessions/{}", mount.session()));
            std::fs::create_dir_all(&target)?;
            let script = format!("tar -C '{}' -cf - . | tar -xf -", source.display());
            tool(world, &target, &["sh", "-c", &script]).map(drop)
        };
        thread::scope(|scope| {
            let other = scope.spawn(|| copy(&b, &right));
            copy(&a, &left)?;
            other.join().map_err(|_| anyhow::anyhow!("the copy panicked"))?
        })?;
        world.settle(&[&a, &b])?;
        for mount in [&a, &b] {
            for (session, source) in [("a", &left), ("b", &right)] {
                let copy = mount.path(&format!("sessions/{session}")).display().to_string();
                tool(world, world.root(), &["diff", "-r", &source.display().to_string(), &copy])?;
            }
        }
        Ok(())
    })
}

/// Two different trees of at least [`TREE_FILES`] files: crate sources from cargo's registry, filled
/// up with generated ones where the registry is small.
fn source_trees(world: &World) -> Result<[PathBuf; 2]> {
    let home = std::env::var_os("CARGO_HOME").map(PathBuf::from);
    let home = home.or_else(|| std::env::home_dir().map(|home| home.join(".cargo"))).unwrap_or_default();
    let mut crates: Vec<PathBuf> =
        subfolders(&home.join("registry/src")).iter().flat_map(|d| subfolders(d)).collect();
    let mut trees = Vec::new();
    for name in ["left", "right"] {
        let tree = world.root().join(name);
        std::fs::create_dir(&tree)?;
        let mut count = 0;
        while count < TREE_FILES
            && let Some(source) = crates.pop()
        {
            let found = files::find(&source, 20, |_| true).len();
            // Very big crates are mostly data and would only cost time.
            if found < 700 {
                tool(world, &tree, &["cp", "-a", &source.display().to_string(), "."])?;
                count += found;
            }
        }
        for number in count..TREE_FILES {
            let folder = tree.join(format!("generated/{}", number % 37));
            std::fs::create_dir_all(&folder)?;
            files::write(
                &folder.join(number.to_string()),
                format!("{name} {number}\n").repeat(number % 300).as_bytes(),
            )?;
        }
        trees.push(tree);
    }
    trees.try_into().map_err(|_| anyhow::anyhow!("two trees"))
}

fn subfolders(dir: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(dir).into_iter().flatten().filter_map(Result::ok);
    let mut found: Vec<PathBuf> = entries.map(|entry| entry.path()).filter(|path| path.is_dir()).collect();
    found.sort();
    found
}

/// A second rsync of the same tree transfers nothing, on the mount that wrote and on the other.
#[test]
fn a_second_rsync_is_idle() -> Result<()> {
    story("rsync", &[RSYNC, GIT], |world| {
        let (a, b) = (world.mount("a")?, world.mount("b")?);
        let source = world.root().join("source");
        make_repository(world, &source)?;
        let rsync = |mount: &Mount| -> Result<String> {
            let target = mount.path("copy").display().to_string();
            let from = format!("{}/", source.display());
            Ok(tool(world, world.root(), &["rsync", "-a", "--itemize-changes", &from, &target])?.stdout)
        };
        ensure!(rsync(&a)?.lines().count() > 100, "the first run copied nothing");
        let again = rsync(&a)?;
        ensure!(again.is_empty(), "the second run on the same mount was not idle: {again}");
        a.sync("visible")?;
        let other = rsync(&b)?;
        ensure!(other.is_empty(), "a run on the other mount was not idle: {other}");
        Ok(())
    })
}

/// A database written on one mount can be copied on the other after a sync: sound, and with exactly
/// the transactions that were committed, though the writer still has it open.
#[test]
fn a_database_copied_on_the_other_mount_is_consistent() -> Result<()> {
    story("sqlite", &[SQLITE], |world| {
        let (a, b) = (world.mount("a")?, world.mount("b")?);
        let mut writer = Command::new("sqlite3")
            .arg(a.path("data.db"))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .context("cannot run sqlite3")?;
        let mut input = writer.stdin.take().context("no standard input")?;
        let mut output = BufReader::new(writer.stdout.take().context("no standard output")?).lines();
        writeln!(input, "PRAGMA journal_mode=WAL; CREATE TABLE t(n INTEGER, pad TEXT);")?;
        for batch in 1..=5_usize {
            for number in 0..40 {
                writeln!(input, "BEGIN; INSERT INTO t VALUES({number}, hex(randomblob(200))); COMMIT;")?;
            }
            writeln!(input, "SELECT 'batch {batch}';")?;
            input.flush()?;
            let done = format!("batch {batch}");
            output.find(|line| line.as_ref().is_ok_and(|line| *line == done)).context("sqlite3 ended")??;
            a.sync("visible")?;
            check_copy(world, &b, batch)?;
        }
        drop(input);
        ensure!(writer.wait()?.success(), "the writer failed");
        Ok(())
    })
}

fn check_copy(world: &World, mount: &Mount, batch: usize) -> Result<()> {
    let copy = world.root().join(format!("copy-{batch}"));
    std::fs::create_dir(&copy)?;
    for name in ["data.db", "data.db-wal"] {
        files::write(&copy.join(name), &mount.read(name)?)?;
    }
    let query = "PRAGMA integrity_check; SELECT count(*) FROM t;";
    let answer = tool(world, &copy, &["sqlite3", "data.db", query])?.stdout;
    ensure!(answer == format!("ok\n{}\n", batch * 40), "batch {batch}: the copy says {answer:?}");
    Ok(())
}
