//! The command line as an interface: exit codes, JSON, and what it refuses.

use std::io::Read as _;
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use serde_json::Value;
use tidefs_tests::need::UNSHARE;
use tidefs_tests::world::{COMMAND_LIMIT, DRIVE, process};
use tidefs_tests::{World, files, story};

const USAGE: i32 = 2;
const NOT_FOUND: i32 = 3;
const UNREACHABLE: i32 = 4;
const UNSENT: i32 = 6;
const PREREQUISITE: i32 = 7;
const REFUSED: i32 = 8;

/// Wrong usage ends with 2 and says on standard error what is wrong, nothing on standard output.
#[test]
fn wrong_usage_ends_with_2() -> Result<()> {
    story("usage", &[], |world| {
        for words in [&["no-such-command"][..], &["mount"], &["mount", "--settle", "soon", "main", "/tmp/x"]]
        {
            let ran = world.tidefs(words)?.code(USAGE)?;
            ensure!(ran.stdout.is_empty() && !ran.stderr.is_empty(), "`{}`: {ran:?}", ran.command);
        }
        Ok(())
    })
}

/// A name of the interface that is not there yet says so and ends with 2.
#[test]
fn names_not_built_yet_say_so() -> Result<()> {
    story("not-built", &[], |world| {
        let ran = world.tidefs(&["token", "list"])?.code(USAGE)?;
        ensure!(ran.stderr.contains("not built yet"), "{}", ran.stderr);
        Ok(())
    })
}

/// An unknown drive ends with 3 and is named.
#[test]
fn an_unknown_drive_ends_with_3() -> Result<()> {
    story("unknown-drive", &[], |world| {
        let dir = mount_point(world)?;
        let ran = world.tidefs(&["mount", "nowhere", &dir])?.code(NOT_FOUND)?;
        ensure!(ran.stderr.contains("nowhere"), "the drive is not named: {}", ran.stderr);
        ensure!(process::mounts_below(world.root()).is_empty(), "something is mounted");
        Ok(())
    })
}

/// A server that does not answer ends with 4 and its address is named.
#[test]
fn an_unreachable_server_ends_with_4() -> Result<()> {
    story("unreachable", &[], |world| {
        let dir = mount_point(world)?;
        world.server.stop()?;
        let ran = world.tidefs(&["mount", DRIVE, &dir])?.code(UNREACHABLE)?;
        ensure!(ran.stderr.contains("127.0.0.1"), "the address is not named: {}", ran.stderr);
        world.tidefs(&["drive", "list"])?.code(UNREACHABLE)?;
        Ok(())
    })
}

/// Where the kernel's FUSE device is missing, mounting ends with 7 and says what to install.
#[test]
fn a_missing_device_ends_with_7() -> Result<()> {
    story("no-device", &[UNSHARE], |world| {
        let dir = mount_point(world)?;
        let script = "mount -t tmpfs none /dev && exec \"$0\" mount \"$1\" \"$2\"";
        let mut command = Command::new("unshare");
        command.args(["--mount", "sh", "-c", script]).arg(world.bins().tidefs()).args([DRIVE, &dir]);
        command.env("TIDEFS_SERVER", world.url()).env("TIDEFS_STATE", world.root().join("state"));
        let ran = process::run(&mut command, COMMAND_LIMIT)?.code(PREREQUISITE)?;
        ensure!(ran.stderr.contains("/dev/fuse"), "the device is not named: {}", ran.stderr);
        Ok(())
    })
}

/// A mount point with files in it is refused with 8; the files stay as they are.
#[test]
fn a_mount_point_in_use_is_refused() -> Result<()> {
    story("non-empty", &[], |world| {
        let dir = mount_point(world)?;
        files::write(&world.root().join("point/precious"), b"mine")?;
        let ran = world.tidefs(&["mount", DRIVE, &dir])?.code(REFUSED)?;
        ensure!(ran.stderr.contains(&dir), "the folder is not named: {}", ran.stderr);
        ensure!(files::read(&world.root().join("point/precious"))? == b"mine", "the file is gone");
        Ok(())
    })
}

/// The same mount command a second time is refused with 8, and the first mount goes on.
#[test]
fn a_busy_state_folder_is_refused() -> Result<()> {
    story("busy", &[], |world| {
        let a = world.mount("a")?;
        a.write("f", "before")?;
        process::run(&mut a.mount_command(), COMMAND_LIMIT)?.code(REFUSED)?;
        ensure!(a.read("f")? == b"before", "the first mount is disturbed");
        a.sync("server")
    })
}

/// Unmounting ships what was written, at once and whole.
#[test]
fn unmount_ships() -> Result<()> {
    story("unmount", &[], |world| {
        let mut a = world.mount_with("a", &["--settle", "60s", "--max-delay", "60s"])?;
        let b = world.mount("b")?;
        (0..100).try_for_each(|number| a.write(&format!("f{number}"), vec![b'x'; 10_000]))?;
        a.unmount()?;
        world.wait(world.head()?, &b)?;
        ensure!(b.names("")?.len() == 100, "{} of 100 files arrived", b.names("")?.len());
        ensure!(b.read("f99")? == vec![b'x'; 10_000], "wrong content");
        ensure!(a.names("")?.is_empty(), "the mount point is not an empty folder again");
        Ok(())
    })
}

/// Unmounting without a server ends with 6, and the same mount command brings the work back.
#[test]
fn unmount_without_a_server_keeps_the_work() -> Result<()> {
    story("unmount-away", &[], |world| {
        let mut a = world.mount("a")?;
        let b = world.mount("b")?;
        world.server.stop()?;
        a.write("f", "unsent")?;
        a.unmount_with(&["--timeout", "2s"])?.code(UNSENT)?;
        world.server.restart()?;
        a.remount()?;
        ensure!(a.read("f")? == b"unsent", "the work is gone");
        a.sync("visible")?;
        // A follower that is not back yet is not waited for by that.
        world.wait(world.head()?, &b)?;
        ensure!(b.read("f")? == b"unsent", "the work did not arrive");
        Ok(())
    })
}

/// After a crash the mount command works on the dead mount point that is left, and so does unmount.
#[test]
fn a_dead_mount_point_is_taken_over() -> Result<()> {
    story("dead-mount", &[], |world| {
        let mut a = world.mount("a")?;
        a.write("f", "kept")?;
        a.kill9()?;
        ensure!(std::fs::metadata(a.dir()).is_err(), "the mount point is not dead: nothing is tested");
        a.remount()?;
        ensure!(a.read("f")? == b"kept", "the work is gone");
        Ok(())
    })
}

/// A mount in the background lets go of the pipes of whoever started it.
#[test]
fn a_background_mount_closes_its_output() -> Result<()> {
    story("background", &[], |world| {
        let mut a = world.mount("a")?;
        a.unmount()?;
        let mut child = a.mount_command().stdout(Stdio::piped()).stderr(Stdio::piped()).spawn()?;
        let (mut out, mut err) = (child.stdout.take().context("out")?, child.stderr.take().context("err")?);
        let (send, ended) = std::sync::mpsc::channel();
        std::thread::spawn(move || {
            let mut text = String::new();
            let read = out.read_to_string(&mut text).and_then(|_| err.read_to_string(&mut text));
            drop(send.send(read.map(|_| text)));
        });
        ensure!(child.wait()?.success(), "the mount failed");
        let end = ended.recv_timeout(Duration::from_secs(10));
        let unmounted = a.tidefs(&["unmount", &a.path_text()])?.ok();
        end.context("the background process keeps the pipes open")??;
        unmounted.map(drop)
    })
}

/// Every `--json` answer is one object a line; `*_ms` and `*_bytes` are numbers; `log` and `status`
/// carry the names that tools build on.
#[test]
fn json_has_one_object_a_line() -> Result<()> {
    story("json", &[], |world| {
        let a = world.mount("a")?;
        a.write("f", "x")?;
        a.sync("server")?;
        let dir = a.path_text();
        for words in
            [&["status", &dir, "--json"][..], &["sync", &dir, "--json"], &["drive", "list", "--json"]]
        {
            let ran = a.tidefs(words)?.ok()?;
            let lines = ran.json()?;
            ensure!(!lines.is_empty(), "`{}` printed nothing", ran.command);
            lines.iter().try_for_each(|line| numbers_are_numbers(line, &ran.command))?;
        }
        let log = world.timeline()?;
        let last = log.last().context("the log is empty")?;
        for key in ["position", "session", "number", "changes"] {
            ensure!(!last[key].is_null(), "the log has no {key}: {last}");
        }
        ensure!(last.to_string().contains("/f") || last["changes"].to_string().contains("\"/f\""), "{last}");
        Ok(())
    })
}

fn numbers_are_numbers(value: &Value, command: &str) -> Result<()> {
    let Some(object) = value.as_object() else { return Ok(()) };
    for (key, inner) in object {
        let unit = key.ends_with("_ms") || key.ends_with("_bytes");
        ensure!(!unit || inner.is_number() || inner.is_null(), "`{command}`: {key} is {inner}");
        numbers_are_numbers(inner, command)?;
    }
    Ok(())
}

/// One command gives a shared folder: `up` mounts in two places, runs a program, ships and leaves with
/// that program's status; the data is kept for the next time.
#[test]
fn up_runs_a_program_and_leaves() -> Result<()> {
    story("up", &[], |world| {
        let (left, right) = (world.root().join("left"), world.root().join("right"));
        std::fs::create_dir_all(&left)?;
        std::fs::create_dir_all(&right)?;
        let data = world.root().join("data").display().to_string();
        let up = |script: &str| {
            let (left, right) = (left.display().to_string(), right.display().to_string());
            world.tidefs(&["up", &left, &right, "--data", &data, "--exec", script])
        };
        let (left_text, right_text) = (left.display(), right.display());
        let tidefs = world.bins().tidefs();
        let script = format!(
            "echo hello > {left_text}/f && {} sync {left_text} --level visible && cp {right_text}/f {}",
            tidefs.display(),
            world.root().join("copy").display()
        );
        up(&script)?.ok()?;
        ensure!(files::read(&world.root().join("copy"))? == b"hello\n", "not seen in the second place");
        ensure!(process::mounts_below(world.root()).is_empty(), "a mount is left behind");
        up(&format!("grep -q hello {right_text}/f && exit 7"))?.code(7)?;
        ensure!(process::mounts_below(world.root()).is_empty(), "a mount is left behind");
        Ok(())
    })
}

fn mount_point(world: &World) -> Result<String> {
    let dir = world.root().join("point");
    std::fs::create_dir_all(&dir)?;
    Ok(dir.display().to_string())
}
