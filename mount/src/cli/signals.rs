//! SIGTERM, SIGINT and SIGHUP: all mean "come to an end".

use super::error::CliError;
use crate::exit::Exit;
use tokio::signal::unix::{Signal, SignalKind, signal};

/// The signals that end a command, from now on held back and told one by one.
pub struct Ends {
    term: Signal,
    int: Signal,
    hup: Signal,
}

impl Ends {
    /// Starts to listen.
    pub fn listen() -> Result<Self, CliError> {
        let on = |kind| {
            signal(kind).map_err(|e| CliError::new(Exit::Failed, format!("cannot listen for signals: {e}")))
        };
        Ok(Self {
            term: on(SignalKind::terminate())?,
            int: on(SignalKind::interrupt())?,
            hup: on(SignalKind::hangup())?,
        })
    }

    /// Waits for the next one. Cancelling it loses none.
    pub async fn next(&mut self) {
        tokio::select! {
            Some(()) = self.term.recv() => {}
            Some(()) = self.int.recv() => {}
            Some(()) = self.hup.recv() => {}
            else => std::future::pending().await,
        }
    }
}
