//! The mount's conversation with its server.
//!
//! One HTTP/2 connection carries everything: short questions (attach, fetch, wait for visibility) and two long
//! streams, `follow` and `commit`. A question ends within its deadline in an answer or a [`LinkError`]. A stream
//! lives as long as the mount: when it breaks it is opened again by itself, after a [`Backoff`] that grows to a
//! bound, and it goes on exactly where it was, because both ends count (positions one way, checkpoint numbers
//! the other). Nothing is decided here: what an answer means is the session's business.
//!
//! Whatever comes from the server is turned into the model's types, with every bound checked, before it leaves
//! this module; a peer that breaks a promise of the protocol costs a connection, never the mount.

mod attach;
mod backoff;
mod blocks;
mod commit;
mod directories;
mod error;
mod follow;

#[cfg(test)]
mod tests;

pub use attach::{Attach, Attached, Known};
pub use backoff::Backoff;
pub use commit::{CommitAs, CommitEvent, PackBytes, ReadPack, ShipItem, ShipSource};
pub use directories::{Directory, DirectoryIs, FETCH_ENTRIES_MAX, FETCH_WAIT};
pub use error::LinkError;
pub use follow::{FollowEvent, FollowFrom, Report};

use rand::{SeedableRng, TryRngCore, rngs::OsRng, rngs::SmallRng};
use std::{
    future::Future,
    sync::Arc,
    time::{Duration, Instant},
};
use tidefs_proto::{
    limits::MESSAGE_BYTES_MAX,
    wire::{self, drives_client::DrivesClient, tide_client::TideClient},
};
use tidefs_timeline::{Position, SessionNo};
use tonic::transport::{Channel, Endpoint};

/// A drive's id: 16 random bytes, made with the drive.
pub type DriveId = [u8; 16];

/// Receive window of one stream, in bytes: four parts under way.
const STREAM_WINDOW_BYTES: u32 = 2 << 20;
/// Receive window of the connection, in bytes: four full streams.
const CONNECTION_WINDOW_BYTES: u32 = 8 << 20;
/// A connection is asked for a sign of life this often, also while nothing is under way.
const KEEP_ALIVE_EVERY: Duration = Duration::from_secs(20);
/// A connection that gives no sign of life for this long is dead.
const KEEP_ALIVE_WAIT: Duration = Duration::from_secs(10);
/// Added to the time that the server itself may take to say whether a position is visible.
const VISIBLE_SLACK: Duration = Duration::from_secs(2);

/// How long the link waits for what. The defaults are for production; tests shorten them.
#[derive(Clone, Copy, Debug)]
pub struct Waits {
    /// Longest attempt to connect, to open a stream, or to attach.
    pub attempt: Duration,
    /// First pause before a stream is opened again.
    pub backoff_min: Duration,
    /// Longest pause before a stream is opened again.
    pub backoff_max: Duration,
    /// Longest time without progress (a part taken, an answer given) while checkpoints are not answered.
    pub answer: Duration,
    /// Longest silence on the follow stream, on which the server sends heartbeats.
    pub silence: Duration,
    /// A report that has not changed is sent again this often: a follower that is silent for 5 s does not count.
    pub report_every: Duration,
}

impl Default for Waits {
    fn default() -> Self {
        Self {
            attempt: Duration::from_secs(5),
            backoff_min: Duration::from_millis(50),
            backoff_max: Duration::from_secs(5),
            answer: Duration::from_secs(60),
            silence: Duration::from_secs(60),
            report_every: Duration::from_secs(2),
        }
    }
}

/// Which server, which drive, with what right.
#[derive(Clone)]
pub struct LinkConfig {
    /// `http://HOST:PORT`.
    pub server: String,
    /// The drive's name.
    pub drive: String,
    /// Shown at attach; empty for none.
    pub token: String,
    /// How long to wait for what.
    pub waits: Waits,
    /// Seed of the jitter that keeps many mounts from coming back at one moment.
    pub seed: u64,
}

impl LinkConfig {
    /// No token, default waits, a seed from the operating system.
    pub fn new(server: impl Into<String>, drive: impl Into<String>) -> Self {
        let seed = OsRng.try_next_u64().unwrap_or(u64::from(std::process::id()));
        let (server, drive) = (server.into(), drive.into());
        Self { server, drive, token: String::new(), waits: Waits::default(), seed }
    }
}

/// Whether a position is visible to the followers that are connected.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Visible {
    /// Whether all that were counted have applied it.
    pub visible: bool,
    /// Followers that were counted.
    pub counted: u32,
    /// Followers that were not, because they have not reported for a while.
    pub not_counted: u32,
}

/// An answer to `ping`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Pong {
    /// There and back.
    pub round_trip: Duration,
    /// The drive's head.
    pub head: Position,
}

/// The link. Cloning it is cheap and shares the connection.
#[derive(Clone)]
pub struct Link {
    config: Arc<LinkConfig>,
    channel: Channel,
}

impl Link {
    /// Makes the link; nothing is connected until something is asked. Must be called inside a tokio runtime.
    ///
    /// # Errors
    /// [`LinkError::Address`] when the server's address is not a plain `http://` URL.
    pub fn new(config: LinkConfig) -> Result<Self, LinkError> {
        let wrong = |why: String| LinkError::Address { server: config.server.clone(), why };
        let endpoint =
            Endpoint::from_shared(config.server.clone()).map_err(|error| wrong(error.to_string()))?;
        // Asked of the text: tonic gives a socket's path an http address of its own.
        if !config.server.starts_with("http://") || endpoint.uri().host().is_none() {
            return Err(wrong("it is not a plain http:// URL".into()));
        }
        let channel = endpoint
            // Shorter than an attempt, which then ends in what the network said and not in a bare deadline.
            .connect_timeout(config.waits.attempt.mul_f64(0.8))
            .tcp_nodelay(true)
            .initial_stream_window_size(STREAM_WINDOW_BYTES)
            .initial_connection_window_size(CONNECTION_WINDOW_BYTES)
            .http2_keep_alive_interval(KEEP_ALIVE_EVERY)
            .keep_alive_timeout(KEEP_ALIVE_WAIT)
            .keep_alive_while_idle(true)
            .connect_lazy();
        Ok(Self::with_channel(config, channel))
    }

    /// A link over a channel made elsewhere, for a simulated network.
    pub fn with_channel(config: LinkConfig, channel: Channel) -> Self {
        Self { config: Arc::new(config), channel }
    }

    /// Asks the server for the drive's head.
    ///
    /// # Errors
    /// Ends within `waits.attempt`: Unreachable, Deadline, NotFound (no such drive), Refused.
    pub async fn ping(&self) -> Result<Pong, LinkError> {
        let started = Instant::now();
        let ask =
            wire::ShowDriveRequest { name: self.config.drive.clone(), token: self.config.token.clone() };
        let mut client = DrivesClient::new(self.channel.clone()).max_decoding_message_size(MESSAGE_BYTES_MAX);
        let answer = async { client.show(ask).await.map_err(|status| self.error(status)) };
        let info = self.within("ping", self.config.waits.attempt, answer).await?.into_inner();
        Ok(Pong { round_trip: started.elapsed(), head: Position(info.position) })
    }

    /// Waits up to `timeout` until the followers other than `except` have applied `position`.
    ///
    /// # Errors
    /// Ends within `timeout` and two seconds. That not all have applied it by then is an answer, not an error.
    pub async fn wait_visible(
        &self,
        drive_id: DriveId,
        position: Position,
        except: SessionNo,
        timeout: Duration,
    ) -> Result<Visible, LinkError> {
        let ask = wire::VisibleRequest {
            drive_id: drive_id.to_vec().into(),
            position: position.0,
            except_session: except.0,
            timeout_ms: u64::try_from(timeout.as_millis()).unwrap_or(u64::MAX),
        };
        let mut client = self.client();
        let answer = async { client.wait_visible(ask).await.map_err(|status| self.error(status)) };
        let wait = timeout.saturating_add(VISIBLE_SLACK);
        let reply = self.within("wait for visible", wait, answer).await?.into_inner();
        let wire::VisibleReply { visible, counted, not_counted } = reply;
        Ok(Visible { visible, counted, not_counted })
    }

    fn client(&self) -> TideClient<Channel> {
        TideClient::new(self.channel.clone())
            .max_decoding_message_size(MESSAGE_BYTES_MAX)
            .max_encoding_message_size(MESSAGE_BYTES_MAX)
    }

    fn error(&self, status: tonic::Status) -> LinkError {
        LinkError::from_status(&self.config.server, status)
    }

    /// The server ended a stream that lives as long as the mount.
    fn ended(&self, what: &str) -> LinkError {
        let text = format!("it ended the {what} stream");
        LinkError::Unreachable { server: self.config.server.clone(), text }
    }

    /// A pause that grows, with a jitter of its own for each `stream`.
    fn backoff(&self, stream: u64) -> Backoff {
        let waits = self.config.waits;
        let random = SmallRng::seed_from_u64(self.config.seed.wrapping_add(stream));
        Backoff::new(waits.backoff_min, waits.backoff_max, random)
    }

    async fn within<T>(
        &self,
        what: &'static str,
        wait: Duration,
        answer: impl Future<Output = Result<T, LinkError>>,
    ) -> Result<T, LinkError> {
        let late = |_| Err(LinkError::Deadline { what, wait, server: self.config.server.clone() });
        tokio::time::timeout(wait, answer).await.unwrap_or_else(late)
    }
}
