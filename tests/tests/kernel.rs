//! What the kernel keeps, and what it must forget. Statements of the design about the kernel, each
//! with a guard, so that a new kernel or a changed flag is noticed here and not by a user.

use std::fs::File;
use std::io::{BufRead as _, BufReader, Write as _};
use std::os::unix::fs::FileExt as _;
use std::process::{Command, Stdio};

use anyhow::{Context as _, Result, ensure};
use tidefs_tests::need::PYTHON;
use tidefs_tests::{Mount, story};

/// Kinds of requests that a warm look may not cause.
const LOOKS: [&str; 9] =
    ["lookup", "getattr", "read", "open", "opendir", "readdir", "readdirplus", "flush", "release"];

/// Stat, read and list of what was looked at once cost no request.
#[test]
fn warm_looks_cost_no_request() -> Result<()> {
    story("warm", &[], |world| {
        let a = world.mount("a")?;
        std::fs::create_dir(a.path("d"))?;
        (0..50).try_for_each(|number| a.write(&format!("d/f{number}"), format!("{number}")))?;
        let look = || -> Result<()> {
            for name in a.names("d")? {
                let path = format!("d/{name}");
                std::fs::metadata(a.path(&path))?;
                ensure!(a.read(&path)? == name.trim_start_matches('f').as_bytes(), "{path} is wrong");
            }
            Ok(())
        };
        look()?;
        look()?;
        let before = a.requests(&LOOKS)?;
        ensure!(before > 0, "the counters count nothing");
        look()?;
        let after = a.requests(&LOOKS)?;
        ensure!(after == before, "a warm look at 50 files cost {} requests", after - before);
        Ok(())
    })
}

/// The absence of a name is remembered, until another mount makes that name.
#[test]
fn absence_is_cached_until_the_name_appears() -> Result<()> {
    story("negative", &[], |world| {
        let (a, b) = (world.mount("a")?, world.mount("b")?);
        ensure!(!b.exists("later")?, "it is there already");
        let before = b.requests(&["lookup"])?;
        for _ in 0..100 {
            ensure!(!b.exists("later")?, "it is there already");
        }
        let after = b.requests(&["lookup"])?;
        ensure!(after == before, "100 looks at an absent name cost {} lookups", after - before);
        a.write("later", "now")?;
        a.sync("visible")?;
        ensure!(b.read("later")? == b"now", "wrong content");
        ensure!(b.names("")? == ["later"], "the listing does not have it");
        Ok(())
    })
}

/// An edit in place on one mount is seen on the other through an old descriptor, through an old
/// mapping, and by a new open.
#[test]
fn an_edit_in_place_reaches_old_descriptors_and_mappings() -> Result<()> {
    story("page-cache", &[PYTHON], |world| {
        let (a, b) = (world.mount("a")?, world.mount("b")?);
        a.write("f", vec![b'1'; 20_000])?;
        a.sync("visible")?;
        let old = File::open(b.path("f"))?;
        ensure!(byte_at(&old)? == b'1', "wrong at first");
        let mut mapping = Mapping::open(&b)?;
        ensure!(mapping.look()? == "49 20000", "the mapping is wrong at first");
        let editor = File::options().write(true).open(a.path("f"))?;
        for byte in [b'2', b'3'] {
            editor.write_all_at(&vec![byte; 20_000], 0)?;
            a.sync("visible")?;
            ensure!(byte_at(&old)? == byte, "the old descriptor shows {}", byte_at(&old)?);
            ensure!(mapping.look()? == format!("{byte} 20000"), "the mapping shows {}", mapping.look()?);
            ensure!(b.read("f")? == vec![byte; 20_000], "a new open shows something else");
        }
        Ok(())
    })
}

fn byte_at(file: &File) -> Result<u8> {
    let mut byte = [0];
    file.read_exact_at(&mut byte, 10_000)?;
    Ok(byte[0])
}

/// A shared mapping held by a process that answers each line with the byte in the middle and the
/// size. Python, because a mapping that changes under a program cannot be had without `unsafe` here.
struct Mapping {
    child: std::process::Child,
    answers: std::io::Lines<BufReader<std::process::ChildStdout>>,
}

impl Mapping {
    fn open(mount: &Mount) -> Result<Self> {
        const SCRIPT: &str = "import mmap,os,sys\nf=open(sys.argv[1],'rb')\n\
            m=mmap.mmap(f.fileno(),0,mmap.MAP_SHARED,mmap.PROT_READ)\n\
            for _ in sys.stdin: print(m[10000],os.fstat(f.fileno()).st_size,flush=True)\n";
        let mut child = Command::new("python3")
            .args(["-c", SCRIPT])
            .arg(mount.path("f"))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .context("cannot run python3")?;
        let answers = BufReader::new(child.stdout.take().context("no standard output")?).lines();
        Ok(Self { child, answers })
    }

    fn look(&mut self) -> Result<String> {
        writeln!(self.child.stdin.as_mut().context("no standard input")?)?;
        self.answers.next().context("the mapping's process ended")?.context("no answer")
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

/// A descriptor opened for appending before the other mount made the file longer appends at the new
/// end, although the kernel's idea of the size was old.
#[test]
fn an_old_append_descriptor_appends_at_the_new_end() -> Result<()> {
    story("append", &[], |world| {
        let (a, b) = (world.mount("a")?, world.mount("b")?);
        a.write("log", "one\n")?;
        a.sync("visible")?;
        let mut old = File::options().append(true).open(b.path("log"))?;
        a.append("log", "two\n")?;
        a.sync("visible")?;
        old.write_all(b"three\n")?;
        b.sync("visible")?;
        for mount in [&a, &b] {
            let text = String::from_utf8(mount.read("log")?)?;
            ensure!(text == "one\ntwo\nthree\n", "{} shows {text:?}", mount.session());
        }
        Ok(())
    })
}

/// The kernel features that would lose or hide changes are not asked for.
#[test]
fn harmful_kernel_features_are_off() -> Result<()> {
    story("flags", &[], |world| {
        let status = world.mount("a")?.status()?;
        let flags = status["kernel"]["flags"].as_array().context("the status lists no kernel flags")?;
        let flags: Vec<String> = flags.iter().map(|flag| flag.to_string().to_uppercase()).collect();
        ensure!(!flags.is_empty(), "the list of kernel flags is empty");
        for harmful in ["ATOMIC_O_TRUNC", "WRITEBACK", "PASSTHROUGH"] {
            ensure!(!flags.iter().any(|flag| flag.contains(harmful)), "{harmful} is on: {flags:?}");
        }
        Ok(())
    })
}

/// A truncation by open reaches the file although `open` itself never reaches the mount.
#[test]
fn truncation_by_open_is_not_lost() -> Result<()> {
    story("o-trunc", &[], |world| {
        let (a, b) = (world.mount("a")?, world.mount("b")?);
        a.write("f", "a long first version")?;
        drop(File::options().write(true).truncate(true).open(a.path("f"))?);
        ensure!(a.read("f")?.is_empty(), "the old content is still there");
        a.write("f", "short")?;
        a.sync("visible")?;
        ensure!(b.read("f")? == b"short", "the old tail is on the other mount");
        Ok(())
    })
}

/// A shell keeps its working directory while the other mount changes things elsewhere and in it.
#[test]
fn a_working_directory_survives_remote_changes() -> Result<()> {
    story("cwd", &[], |world| {
        let (a, b) = (world.mount("a")?, world.mount("b")?);
        std::fs::create_dir_all(a.path("work/deep"))?;
        a.write("work/deep/file", "old")?;
        a.sync("visible")?;
        let here = b.path("work/deep");
        let mut shell = Command::new("sh")
            .args(["-c", "read go; /bin/pwd && cat file && ls"])
            .current_dir(&here)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        a.write("other", "elsewhere")?;
        a.write("work/beside", "one level up")?;
        a.write("work/deep/file", "new")?;
        a.write("work/deep/second", "")?;
        a.sync("visible")?;
        writeln!(shell.stdin.take().context("no standard input")?, "go")?;
        let output = String::from_utf8(shell.wait_with_output()?.stdout)?;
        let want = format!("{}\nnewfile\nsecond\n", here.canonicalize()?.display());
        ensure!(output == want, "the shell printed {output:?}, expected {want:?}");
        Ok(())
    })
}
