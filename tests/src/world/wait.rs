//! Waiting where no event exists: a remote change in a mounted file wakes nobody.

use std::time::{Duration, Instant};

use anyhow::{Result, bail};

/// Spacing of the looks.
const SPACING: Duration = Duration::from_millis(20);

/// Looks until `good` says yes.
///
/// # Errors
/// It says no until `limit` has passed, or fails.
pub fn until(what: &str, limit: Duration, mut good: impl FnMut() -> Result<bool>) -> Result<()> {
    let start = Instant::now();
    loop {
        if good()? {
            return Ok(());
        }
        if start.elapsed() > limit {
            bail!("waited {limit:?} for {what}");
        }
        std::thread::sleep(SPACING);
    }
}
