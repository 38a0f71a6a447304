//! Which mount a command means.

use super::{Context, error::CliError};
use crate::{
    exit::Exit,
    state::{Found, find_all, find_mount},
};
use std::path::Path;

/// The mount that `path` lies in, running or not, and the path in its drive.
pub fn by_path(context: &Context, path: &Path) -> Result<(Found, String), CliError> {
    let base = context.base()?;
    let absolute = context.absolute(path)?;
    find_mount(&base, &absolute)?.ok_or_else(|| {
        CliError::new(
            Exit::NotFound,
            format!(
                "{} is in no mount that {} knows of: see `tidefs status`, or give the --state it was mounted with",
                absolute.display(),
                base.display()
            ),
        )
    })
}

/// The same, and it must be running.
pub fn running(context: &Context, path: &Path) -> Result<(Found, String), CliError> {
    let (found, inner) = by_path(context, path)?;
    if found.running.is_none() {
        return Err(not_running(&found));
    }
    Ok((found, inner))
}

/// All mounts that run on this machine.
pub fn all_running(context: &Context) -> Result<Vec<Found>, CliError> {
    let all = find_all(&context.base()?)?;
    Ok(all.into_iter().filter(|found| found.running.is_some()).collect())
}

/// No process serves this mount.
pub fn not_running(found: &Found) -> CliError {
    CliError::new(
        Exit::NotFound,
        format!(
            "{} is not running: mount it again with `{}`",
            found.file.mount_point.display(),
            mount_again(found)
        ),
    )
}

/// The command line that resumes a mount.
pub fn mount_again(found: &Found) -> String {
    format!("tidefs mount {} {} --server {}", found.file.drive, found.file.named.display(), found.file.server)
}
