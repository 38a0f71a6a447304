//! How commands reach the server: with a deadline, and an error that says what to do.

use super::{args::Common, error::CliError};
use crate::{config::ServerAddress, exit::Exit};
use std::{fs::File, io::Read, net::IpAddr, path::Path, time::Duration};
use tidefs_proto::{
    limits::MESSAGE_BYTES_MAX,
    wire::{drives_client::DrivesClient, tide_client::TideClient},
};
use tonic::{
    Request, Status,
    metadata::AsciiMetadataValue,
    transport::{Channel, Endpoint, Uri},
};

/// How long connecting may take.
const CONNECT_MAX: Duration = Duration::from_secs(3);
/// How long one call may take.
pub const CALL_MAX: Duration = Duration::from_secs(10);
/// Longest token, in bytes.
const TOKEN_BYTES_MAX: u64 = 4096;

/// The server that the common options name, checked, with the token read.
pub fn address(common: &Common) -> Result<ServerAddress, CliError> {
    let url = check_url(&common.server, common.insecure)?;
    Ok(ServerAddress { url, token: token(common)? })
}

/// The token that the common options name, read.
pub fn token(common: &Common) -> Result<Option<String>, CliError> {
    common.token_file.as_deref().map(read_token).transpose()
}

/// A server's URL in full, or why it is refused.
pub fn check_url(text: &str, insecure: bool) -> Result<String, CliError> {
    let full = if text.contains("://") { text.to_owned() } else { format!("http://{text}") };
    let bad = || CliError::usage(format!("{text:?} is no server URL; write it like http://127.0.0.1:7440"));
    let uri: Uri = full.parse().map_err(|_| bad())?;
    let host = uri.host().filter(|host| !host.is_empty()).ok_or_else(bad)?;
    match uri.scheme_str() {
        Some("http") => {}
        Some("https") => return Err(CliError::not_built(&format!("{text}: https"))),
        _ => return Err(bad()),
    }
    if !insecure && !is_loopback(host) {
        return Err(CliError::usage(format!(
            "{text} is beyond this machine and plain http can be read and changed on the way: \
             give --insecure if the network between is trusted"
        )));
    }
    let port = uri.port_u16().unwrap_or(7440);
    Ok(format!("http://{host}:{port}"))
}

fn is_loopback(host: &str) -> bool {
    let plain = host.trim_start_matches('[').trim_end_matches(']');
    host.eq_ignore_ascii_case("localhost") || plain.parse::<IpAddr>().is_ok_and(|ip| ip.is_loopback())
}

fn read_token(path: &Path) -> Result<String, CliError> {
    let bad = |exit, why: String| CliError::new(exit, format!("token file {}: {why}", path.display()));
    let file = File::open(path).map_err(|e| bad(Exit::NotFound, e.to_string()))?;
    let mut text = String::new();
    file.take(TOKEN_BYTES_MAX + 1).read_to_string(&mut text).map_err(|e| bad(Exit::Failed, e.to_string()))?;
    let token = text.trim();
    let plain = !token.is_empty() && token.bytes().all(|b| b.is_ascii_graphic());
    if !plain || text.len() as u64 > TOKEN_BYTES_MAX {
        return Err(bad(Exit::Usage, "it must hold one word of at most 4096 ASCII characters".to_owned()));
    }
    Ok(token.to_owned())
}

/// A server that answers.
pub struct Server {
    address: ServerAddress,
    channel: Channel,
}

impl Server {
    /// Connects, within 3 s.
    pub async fn connect(address: ServerAddress) -> Result<Self, CliError> {
        let endpoint = Endpoint::from_shared(address.url.clone())
            .map_err(|e| CliError::usage(format!("{}: {e}", address.url)))?
            .connect_timeout(CONNECT_MAX)
            .tcp_nodelay(true);
        let channel = match tokio::time::timeout(CONNECT_MAX, endpoint.connect()).await {
            Ok(Ok(channel)) => channel,
            Ok(Err(error)) => return Err(CliError::unreachable(&address.url, &cause(&error))),
            Err(_) => return Err(CliError::unreachable(&address.url, "no answer within 3 s")),
        };
        Ok(Self { address, channel })
    }

    /// The drives' service.
    pub fn drives(&self) -> DrivesClient<Channel> {
        DrivesClient::new(self.channel.clone()).max_decoding_message_size(MESSAGE_BYTES_MAX)
    }

    /// The timeline's service.
    pub fn tide(&self) -> TideClient<Channel> {
        TideClient::new(self.channel.clone()).max_decoding_message_size(MESSAGE_BYTES_MAX)
    }

    /// The token, or an empty text.
    pub fn token(&self) -> String {
        self.address.token.clone().unwrap_or_default()
    }

    /// A request that carries the token.
    pub fn request<T>(&self, message: T) -> Request<T> {
        let mut request = Request::new(message);
        let bearer =
            self.address.token.as_ref().map(|token| AsciiMetadataValue::try_from(format!("Bearer {token}")));
        if let Some(Ok(value)) = bearer {
            request.metadata_mut().insert("authorization", value);
        }
        request
    }

    /// What the server said to `what`, as an error.
    pub fn refused(&self, status: &Status, what: &str) -> CliError {
        CliError::from_status(status, &self.address.url, what)
    }

    /// The end of a call that took too long.
    pub fn late(&self, what: &str) -> CliError {
        CliError::new(
            Exit::Deadline,
            format!("{what}: no answer from {} in time: try again", self.address.url),
        )
    }
}

/// The innermost cause, which is the one that says something.
fn cause(error: &dyn std::error::Error) -> String {
    let mut inner = error;
    while let Some(source) = inner.source() {
        inner = source;
    }
    inner.to_string()
}
