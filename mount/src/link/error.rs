//! What can go wrong between a mount and its server, and what it means to a program or a command.

use rustix::io::Errno;
use std::time::Duration;
use tidefs_proto::BadMessage;
use tidefs_timeline::Hash;
use tonic::{Code, Status};

/// Why the server gave no (good) answer.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum LinkError {
    /// The address cannot be used at all.
    #[error("server address {server:?} cannot be used: {why}; give one like http://127.0.0.1:7440")]
    Address {
        /// As given.
        server: String,
        /// What is wrong with it.
        why: String,
    },
    /// No connection, or it broke.
    #[error("server {server} cannot be reached: {text}; check that it runs and that the address is right")]
    Unreachable {
        /// Its address.
        server: String,
        /// What the transport said.
        text: String,
    },
    /// The server said no.
    #[error("server refused: {text} ({code:?})")]
    Refused {
        /// The kind of no.
        code: Code,
        /// Its reason.
        text: String,
    },
    /// The server has no such drive or session.
    #[error("not found on the server: {text}; `tidefs drive list` shows what is there")]
    NotFound {
        /// What was not found.
        text: String,
    },
    /// The server sent what no correct server sends.
    #[error("{0}; if server and mount are of different versions, update the older one")]
    Bad(#[from] BadMessage),
    /// No answer in time.
    #[error("no answer from server {server} to {what} within {wait:?}; trying again may help")]
    Deadline {
        /// What was asked.
        what: &'static str,
        /// How long it was waited for.
        wait: Duration,
        /// Who was asked.
        server: String,
    },
    /// A block that a file names is not on the server.
    #[error("the server does not hold block {hash}; run `tidefs-server check` on its data")]
    BlockMissing {
        /// The block.
        hash: Hash,
    },
    /// A block came damaged, twice.
    #[error("the server sent other bytes than block {hash}, twice; run `tidefs-server check` on its data")]
    BlockWrong {
        /// The block.
        hash: Hash,
    },
    /// A pack in this mount's outbox cannot be read.
    #[error("pack {pack} cannot be read for upload: {text}; check the disk that holds the state folder")]
    Pack {
        /// The pack.
        pack: Hash,
        /// What the disk said.
        text: String,
    },
}

impl LinkError {
    /// From what tonic gives: a status of the server, or one that the transport or the decoder made up here.
    pub(super) fn from_status(server: &str, status: Status) -> Self {
        // The transport, and only it, puts its own error behind the status.
        let transport = std::error::Error::source(&status).map(deepest);
        let text = status.message().to_owned();
        match (transport, status.code()) {
            (Some(cause), _) => Self::Unreachable { server: server.into(), text: format!("{text}: {cause}") },
            (None, Code::Unavailable | Code::Cancelled) => Self::Unreachable { server: server.into(), text },
            (None, Code::NotFound) => Self::NotFound { text },
            (None, Code::Internal | Code::OutOfRange) if made_by_decoder(&text) => {
                Self::Bad(BadMessage { field: "message", why: text })
            }
            (None, code) => Self::Refused { code, text },
        }
    }

    /// The errno of a request of the kernel that fails by it.
    pub fn errno(&self) -> i32 {
        let errno = match self {
            Self::Deadline { .. } => Errno::TIMEDOUT,
            Self::Refused { code: Code::DeadlineExceeded, .. } => Errno::TIMEDOUT,
            Self::Refused { code: Code::PermissionDenied | Code::Unauthenticated, .. } => Errno::ACCESS,
            Self::NotFound { .. } => Errno::STALE,
            Self::Address { .. } => Errno::INVAL,
            Self::Unreachable { .. }
            | Self::Refused { .. }
            | Self::Bad(_)
            | Self::BlockMissing { .. }
            | Self::BlockWrong { .. }
            | Self::Pack { .. } => Errno::IO,
        };
        errno.raw_os_error()
    }

    /// The exit status of a command that fails by it.
    pub fn exit_code(&self) -> u8 {
        match self {
            Self::Address { .. } => 2,
            Self::NotFound { .. } => 3,
            Self::Unreachable { .. } => 4,
            Self::Deadline { .. } | Self::Refused { code: Code::DeadlineExceeded, .. } => 5,
            Self::Refused { code: Code::Internal | Code::Unknown | Code::DataLoss, .. } => 1,
            Self::Refused { .. } => 8,
            Self::Bad(_) | Self::BlockMissing { .. } | Self::BlockWrong { .. } | Self::Pack { .. } => 1,
        }
    }
}

/// Whether tonic's decoder wrote this text. It gives these no type of their own; a test holds them to it.
fn made_by_decoder(text: &str) -> bool {
    ["Error, decoded message length", "failed to decode", "protocol error:", "Unexpected EOF decoding"]
        .iter()
        .any(|start| text.starts_with(start))
}

/// The innermost cause, which says most (such as "Connection refused").
fn deepest<'a>(mut error: &'a (dyn std::error::Error + 'static)) -> &'a (dyn std::error::Error + 'static) {
    // Bounded: a chain of causes is built by hand and never this long.
    for _ in 0..16 {
        match error.source() {
            Some(source) => error = source,
            None => break,
        }
    }
    error
}
