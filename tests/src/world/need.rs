//! What a test needs from the machine, and the honest answer where it is not there.
//!
//! A missing prerequisite makes a test "not run", which is printed past the harness' capture and
//! counted by `./test`; with `TIDEFS_REQUIRE=all` it is a failure, so that CI cannot go green by
//! running nothing.

use std::io::Write as _;
use std::path::Path;

use anyhow::{Result, bail};

/// A prerequisite.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Need {
    /// `/dev/fuse`, and the right to mount.
    Fuse,
    /// A program on the search path, and the Debian package that has it.
    Program(&'static str, &'static str),
}

/// git
pub const GIT: Need = Need::Program("git", "git");
/// rsync
pub const RSYNC: Need = Need::Program("rsync", "rsync");
/// The sqlite3 shell
pub const SQLITE: Need = Need::Program("sqlite3", "sqlite3");
/// Python 3
pub const PYTHON: Need = Need::Program("python3", "python3");
/// tar
pub const TAR: Need = Need::Program("tar", "tar");
/// diff
pub const DIFF: Need = Need::Program("diff", "diffutils");
/// unshare
pub const UNSHARE: Need = Need::Program("unshare", "util-linux");

/// True when all is there; prints one line and returns false when not.
///
/// # Errors
/// Something is missing and `TIDEFS_REQUIRE=all`.
pub fn met(test: &str, needs: &[Need]) -> Result<bool> {
    let Some(lack) = needs.iter().find_map(|need| lacking(*need)) else {
        return Ok(true);
    };
    if std::env::var("TIDEFS_REQUIRE").is_ok_and(|text| text == "all") {
        bail!("{test} needs {lack}, and TIDEFS_REQUIRE=all");
    }
    // Not `eprintln!`: the harness would swallow it, as the test passes.
    drop(writeln!(std::io::stderr(), "not run: {test} needs {lack}"));
    Ok(false)
}

fn lacking(need: Need) -> Option<String> {
    match need {
        Need::Fuse => {
            let device = std::fs::OpenOptions::new().read(true).write(true).open("/dev/fuse");
            match device {
                Err(error) => Some(format!("/dev/fuse ({error}; apt-get install fuse3, run as root)")),
                Ok(_) if rustix::process::geteuid().is_root() => None,
                Ok(_) if on_path("fusermount3") => None,
                Ok(_) => Some("fusermount3 or root (apt-get install fuse3)".to_owned()),
            }
        }
        Need::Program(name, _) if on_path(name) => None,
        Need::Program(name, package) => Some(format!("{name} (apt-get install {package})")),
    }
}

fn on_path(name: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).any(|folder: std::path::PathBuf| Path::is_file(&folder.join(name)))
}
