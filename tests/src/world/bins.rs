//! The programs under test: taken from `TIDEFS_BIN_DIR`, or built here once per run.
//!
//! A test that runs yesterday's program proves nothing, so what is built here is compared with the
//! sources that cargo says it was made from.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;
use std::time::SystemTime;

use anyhow::{Context as _, Result, anyhow, bail};

/// Paths of the two programs.
#[derive(Clone, Debug)]
pub struct Bins {
    folder: PathBuf,
}

impl Bins {
    /// Finds the programs, building them at the first call of a run.
    ///
    /// # Errors
    /// The build fails, a program is missing, or one is older than its sources.
    pub fn get() -> Result<Self> {
        static FOUND: OnceLock<Result<Bins, String>> = OnceLock::new();
        FOUND
            .get_or_init(|| find().map_err(|error| format!("{error:#}")))
            .clone()
            .map_err(|text| anyhow!(text))
    }

    /// The client program.
    #[must_use]
    pub fn tidefs(&self) -> PathBuf {
        self.folder.join("tidefs")
    }

    /// The server program.
    #[must_use]
    pub fn server(&self) -> PathBuf {
        self.folder.join("tidefs-server")
    }

    /// The folder that holds both.
    #[must_use]
    pub fn folder(&self) -> &Path {
        &self.folder
    }
}

fn find() -> Result<Bins> {
    if let Some(folder) = std::env::var_os("TIDEFS_BIN_DIR") {
        let bins = Bins { folder: PathBuf::from(folder) };
        for program in [bins.tidefs(), bins.server()] {
            if !program.is_file() {
                bail!("TIDEFS_BIN_DIR has no {}; build it or unset the variable", program.display());
            }
        }
        return Ok(bins);
    }
    let bins = build()?;
    for program in [bins.tidefs(), bins.server()] {
        refuse_stale(&program)?;
    }
    Ok(bins)
}

/// Builds with cargo, which has a file lock of its own: test programs that start at the same time
/// build once and wait for each other.
fn build() -> Result<Bins> {
    let workspace =
        Path::new(env!("CARGO_MANIFEST_DIR")).parent().context("the tests crate lies in the workspace")?;
    let target = std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| workspace.join("target"), PathBuf::from);
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let status = Command::new(cargo)
        .args(["build", "--quiet", "--profile", "ci", "-p", "tidefs-server", "-p", "tidefs-mount", "--bins"])
        .arg("--target-dir")
        .arg(&target)
        .current_dir(workspace)
        .status()
        .context("cannot run cargo to build the programs under test")?;
    if !status.success() {
        bail!("the programs under test do not build ({status}); run cargo build to see why");
    }
    Ok(Bins { folder: target.join("ci") })
}

/// Compares a program with the sources listed in the dependency file that cargo leaves beside it.
fn refuse_stale(program: &Path) -> Result<()> {
    let built = modified(program)?;
    let listing = program.with_extension("d");
    let text =
        std::fs::read_to_string(&listing).with_context(|| format!("cannot read {}", listing.display()))?;
    for source in text.lines().filter_map(|line| line.split_once(": ")).flat_map(|(_, rest)| rest.split(' '))
    {
        let source = Path::new(source);
        if source.is_file() && modified(source)? > built {
            bail!("{} is older than {}; build it again", program.display(), source.display());
        }
    }
    Ok(())
}

fn modified(path: &Path) -> Result<SystemTime> {
    std::fs::metadata(path)
        .and_then(|meta| meta.modified())
        .with_context(|| format!("cannot stat {}", path.display()))
}
