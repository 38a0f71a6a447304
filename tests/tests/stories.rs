//! Two mounts of one drive, told as stories. Each test's comment is the promise that it proves.

use std::fs::File;
use std::io::{Read as _, Seek as _, SeekFrom, Write as _};
use std::os::unix::fs::{FileExt as _, MetadataExt as _};
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use tidefs_tests::{Mount, World, story};

const SECOND: Duration = Duration::from_secs(1);

/// A lone edit reaches the other mount about a second after the last write, unasked.
#[test]
fn a_quiet_edit_reaches_the_other_mount() -> Result<()> {
    story("quiet-edit", &[], |world| {
        let (a, b) = (world.mount("a")?, world.mount("b")?);
        a.write("note", "one")?;
        b.wait_for("note", 4 * SECOND, |content| content == b"one")?;
        a.write("note", "two")?;
        b.wait_for("note", 4 * SECOND, |content| content == b"two")
    })
}

/// An edit that went quiet ships although another file never does.
#[test]
fn a_quiet_edit_beside_a_busy_log_is_not_held_up() -> Result<()> {
    story("beside-busy", &[], |world| {
        // The greatest delay is out of reach: only the quiet path itself can make the cut due.
        let a = world.mount_with("a", &["--max-delay", "60s"])?;
        let b = world.mount("b")?;
        while_busy(&a, || {
            a.write("note", "quiet")?;
            b.wait_for("note", 5 * SECOND, |content| content == b"quiet")
        })
        .map(drop)
    })
}

/// A writer that never pauses is seen to advance at least every five seconds plus the upload.
#[test]
fn a_continuous_writer_is_followed() -> Result<()> {
    story("continuous", &[], |world| {
        let (a, b) = (world.mount("a")?, world.mount("b")?);
        let gap = while_busy(&a, || {
            let (start, mut seen, mut last, mut gap) = (Instant::now(), 0, Instant::now(), Duration::ZERO);
            while start.elapsed() < 16 * SECOND {
                let size = std::fs::metadata(b.path("busy.log")).map_or(0, |meta| meta.len());
                if size > seen {
                    (seen, last) = (size, Instant::now());
                }
                gap = gap.max(last.elapsed());
                thread::sleep(Duration::from_millis(20));
            }
            ensure!(seen > 0, "nothing of the log was seen");
            Ok(gap)
        })?;
        ensure!(gap < 7 * SECOND, "no progress for {gap:?}");
        Ok(())
    })
}

/// Runs `work` while a log on `mount` grows every 50 ms.
fn while_busy<T>(mount: &Mount, work: impl FnOnce() -> Result<T>) -> Result<T> {
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        let writer = scope.spawn(|| -> Result<()> {
            while !stop.load(Ordering::SeqCst) {
                mount.append("busy.log", "one more line of a log that never rests\n")?;
                thread::sleep(Duration::from_millis(50));
            }
            Ok(())
        });
        let result = work();
        stop.store(true, Ordering::SeqCst);
        writer.join().map_err(|_| anyhow::anyhow!("the busy writer panicked"))??;
        result
    })
}

/// A save by temporary file, fsync and rename is one step: no position of the timeline holds the
/// temporary name, and on the other mount the target is always there, whole and never older.
#[test]
fn saves_by_rename_never_show_their_middle() -> Result<()> {
    const SAVES: u32 = 500;
    story("saves", &[], |world| {
        let (a, b) = (world.mount("a")?, world.mount("b")?);
        a.write("target", save(0))?;
        a.sync("visible")?;
        let finished = AtomicBool::new(false);
        let versions = thread::scope(|scope| {
            let reader = scope.spawn(|| read_saves(&b, &finished, SAVES));
            let saved = (1..=SAVES)
                .try_for_each(|number| {
                    a.save_by_rename("target", &format!(".target.tmp-{number}"), save(number))
                })
                .and_then(|()| a.sync("visible"));
            finished.store(true, Ordering::SeqCst);
            saved?;
            reader.join().map_err(|_| anyhow::anyhow!("the reader panicked"))?
        })?;
        ensure!(versions >= 2, "the reader saw {versions} versions only: nothing was tested");
        let log = world.timeline()?;
        let text = |needle: &str| log.iter().filter(|entry| entry.to_string().contains(needle)).count();
        ensure!(text("target") > 1, "the timeline does not list the target");
        ensure!(text("tmp-") == 0, "{} checkpoints list a temporary name", text("tmp-"));
        ensure!(a.names("")? == ["target"] && b.names("")? == ["target"], "temporary names remain");
        Ok(())
    })
}

/// Content of one save: its number on 500 lines of equal width.
fn save(number: u32) -> String {
    format!("{number:08}\n").repeat(500)
}

/// Reads the target until the last save is there; returns how many versions it met.
fn read_saves(mount: &Mount, finished: &AtomicBool, last: u32) -> Result<u32> {
    let (mut newest, mut versions) = (0, 1);
    loop {
        let after_the_end = finished.load(Ordering::SeqCst);
        let content = String::from_utf8(mount.read("target")?)?;
        let first = content.lines().next().context("the target is empty")?;
        let number: u32 = first.parse()?;
        ensure!(content == save(number), "the target is partial or mixed at save {number}");
        ensure!(number >= newest, "save {number} was seen after save {newest}");
        versions += u32::from(number > newest);
        newest = number;
        if newest == last {
            return Ok(versions);
        }
        ensure!(!after_the_end, "the last save seen is {newest} although all is visible");
    }
}

/// What was made and removed within one batch leaves no trace on the timeline.
#[test]
fn made_and_deleted_within_a_batch_is_never_shipped() -> Result<()> {
    story("made-and-deleted", &[], |world| {
        let a = world.mount("a")?;
        a.write("passing-file", "gone soon")?;
        std::fs::create_dir(a.path("passing-directory"))?;
        std::fs::remove_file(a.path("passing-file"))?;
        std::fs::remove_dir(a.path("passing-directory"))?;
        a.write("staying", "here")?;
        a.sync("visible")?;
        let log = world.timeline()?;
        let text: String = log.iter().map(ToString::to_string).collect();
        ensure!(text.contains("staying"), "the timeline does not list what stayed: {text}");
        ensure!(!text.contains("passing"), "the timeline lists what was undone: {text}");
        Ok(())
    })
}

/// One directory made by both mounts at once is one directory with both contents.
#[test]
fn a_directory_made_by_both_is_one_directory() -> Result<()> {
    story("both-mkdir", &[], |world| {
        let (a, b) = (world.mount("a")?, world.mount("b")?);
        both(&a, &b, |mount| {
            std::fs::create_dir(mount.path("shared"))?;
            mount.write(&format!("shared/from-{}", mount.session()), mount.session())
        })?;
        world.settle(&[&a, &b])?;
        for mount in [&a, &b] {
            ensure!(mount.names("")? == ["shared"], "{:?}", mount.names("")?);
            ensure!(mount.names("shared")? == ["from-a", "from-b"], "{:?}", mount.names("shared")?);
        }
        let inode = |mount: &Mount| std::fs::metadata(mount.path("shared")).map(|meta| meta.ino());
        ensure!(inode(&a)? == inode(&b)?, "the two mounts show two directories");
        Ok(())
    })
}

/// Changes to different files of one directory all land, whoever made them.
#[test]
fn disjoint_files_of_one_directory_all_land() -> Result<()> {
    const FILES: usize = 300;
    story("disjoint", &[], |world| {
        let (a, b) = (world.mount("a")?, world.mount("b")?);
        std::fs::create_dir(a.path("d"))?;
        a.sync("visible")?;
        both(&a, &b, |mount| {
            (0..FILES).try_for_each(|number| {
                let name = format!("d/{}-{number}", mount.session());
                mount.write(&name, name.repeat(20))
            })
        })?;
        world.settle(&[&a, &b])?;
        for mount in [&a, &b] {
            let names = mount.names("d")?;
            ensure!(names.len() == 2 * FILES, "{} names on {}", names.len(), mount.session());
            for name in names {
                let path = format!("d/{name}");
                ensure!(mount.read(&path)? == path.repeat(20).into_bytes(), "{path} is wrong");
            }
        }
        Ok(())
    })
}

/// Runs `work` on both mounts, released at one moment.
fn both(a: &Mount, b: &Mount, work: impl Fn(&Mount) -> Result<()> + Sync) -> Result<()> {
    let barrier = Barrier::new(2);
    thread::scope(|scope| {
        let threads = [a, b].map(|mount| {
            let (barrier, work) = (&barrier, &work);
            scope.spawn(move || {
                barrier.wait();
                work(mount)
            })
        });
        threads
            .into_iter()
            .try_for_each(|thread| thread.join().map_err(|_| anyhow::anyhow!("a writer panicked"))?)
    })
}

/// A file that is open stays usable after it was removed, here or on the other mount.
#[test]
fn an_unlinked_open_file_works_on_both() -> Result<()> {
    story("unlinked-open", &[], |world| {
        let (a, b) = (world.mount("a")?, world.mount("b")?);
        a.write("f", "first")?;
        a.sync("visible")?;
        let open = |mount: &Mount| File::options().read(true).write(true).open(mount.path("f"));
        let (mut on_a, mut on_b) = (open(&a)?, open(&b)?);
        std::fs::remove_file(a.path("f"))?;
        a.sync("visible")?;
        ensure!(!a.exists("f")? && !b.exists("f")?, "the name is still there");
        for file in [&mut on_a, &mut on_b] {
            let mut text = String::new();
            file.read_to_string(&mut text)?;
            ensure!(text == "first", "read {text:?} through the descriptor");
            file.write_all(b" second")?;
            file.sync_all()?;
            file.seek(SeekFrom::Start(0))?;
            text.clear();
            file.read_to_string(&mut text)?;
            ensure!(text == "first second", "read {text:?} back through the descriptor");
            ensure!(file.metadata()?.nlink() == 0, "the link count is {}", file.metadata()?.nlink());
        }
        world.settle(&[&a, &b])?;
        ensure!(a.names("")?.is_empty() && b.names("")?.is_empty(), "the file came back");
        Ok(())
    })
}

/// Both mounts write one path within one settle window, a hundred times: both, and a third that joins
/// later, agree, and the content is exactly one of the two, whole.
#[test]
fn the_last_writer_wins_whole() -> Result<()> {
    const ROUNDS: usize = 100;
    story("last-writer", &[], |world| {
        let (a, b) = (world.mount("a")?, world.mount("b")?);
        for number in (0..ROUNDS).filter(|number| number % 3 != 0) {
            a.write(&format!("f{number}"), "before")?;
        }
        a.sync("visible")?;
        let mut agreed = Vec::new();
        for number in 0..ROUNDS {
            both(&a, &b, |mount| write_own(mount, number))?;
            world.settle(&[&a, &b])?;
            let name = format!("f{number}");
            let (on_a, on_b) = (a.read(&name)?, b.read(&name)?);
            ensure!(on_a == on_b, "round {number}: the mounts disagree ({} and {})", on_a.len(), on_b.len());
            ensure!(
                on_a == version("a", number) || on_a == version("b", number),
                "round {number}: {} bytes that nobody wrote",
                on_a.len()
            );
            agreed.push(on_a);
        }
        let c = world.mount("c")?;
        for (number, content) in agreed.iter().enumerate() {
            ensure!(c.read(&format!("f{number}"))? == *content, "round {number}: a new mount disagrees");
        }
        ensure!(a.names("")?.len() == ROUNDS, "stray names: {:?}", a.names("")?);
        Ok(())
    })
}

/// Creation, overwriting in place and save by rename take turns.
fn write_own(mount: &Mount, number: usize) -> Result<()> {
    let content = version(mount.session(), number);
    match number % 3 {
        2 => mount.save_by_rename(&format!("f{number}"), &format!(".f{number}~{}", mount.session()), content),
        _ => mount.write(&format!("f{number}"), content),
    }
}

/// Two sizes and two bytes, so that any mixture shows.
fn version(session: &str, number: usize) -> Vec<u8> {
    let size = if session == "a" { 90_000 } else { 70_000 } + number;
    session.as_bytes().repeat(size)
}

/// What one session wrote part by part never mixes with another session's version of the file.
#[test]
fn partial_edits_of_two_sessions_do_not_mix() -> Result<()> {
    story("no-mixture", &[], |world: &mut World| {
        let (a, b) = (world.mount("a")?, world.mount("b")?);
        a.write("f", vec![b'0'; 200_000])?;
        a.sync("visible")?;
        b.read("f")?;
        both(&a, &b, |mount| {
            let file = File::options().write(true).open(mount.path("f"))?;
            (0..20).try_for_each(|part| {
                file.write_all_at(&mount.session().as_bytes().repeat(100), part * 9_973)
                    .context("write in place")
            })
        })?;
        world.settle(&[&a, &b])?;
        let content = a.read("f")?;
        ensure!(content == b.read("f")?, "the mounts disagree");
        let has = |byte| content.contains(&byte);
        ensure!(has(b'a') != has(b'b'), "the file holds edits of both sessions, or of none");
        Ok(())
    })
}
