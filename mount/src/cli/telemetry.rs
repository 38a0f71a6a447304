//! Where logs go: standard error, by TIDEFS_LOG, else RUST_LOG, else the command's own level.

use std::io::{self, IsTerminal};
use tracing_subscriber::EnvFilter;

/// Starts logging. A filter that makes no sense is as good as none.
pub fn start(level: &str) {
    let filter = ["TIDEFS_LOG", "RUST_LOG"]
        .into_iter()
        .filter_map(|name| std::env::var(name).ok().filter(|text| !text.is_empty()))
        .find_map(|text| EnvFilter::try_new(text).ok())
        .unwrap_or_else(|| EnvFilter::new(level));
    let started = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(io::stderr)
        .with_ansi(io::stderr().is_terminal())
        .try_init();
    // Already started: in tests only.
    drop(started);
}

/// From now on a panic is logged and ends the process: a mount whose thread is gone would leave requests
/// unanswered for ever, while an ended process answers them all with an error.
pub fn abort_on_panic() {
    let before = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |info| {
        tracing::error!(panic = %info, "a defect in this program: ending, unsent work stays in the log");
        before(info);
        std::process::abort();
    }));
}
