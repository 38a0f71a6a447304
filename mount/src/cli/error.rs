//! Where every module's error becomes a status and a sentence. This is the one table from causes to statuses.

use crate::{control::client::ClientError, driver::DriverError, exit::Exit, state::StateError};
use std::io;
use tonic::Code;

/// Why a command ends without being done: what to say, and the status.
#[derive(Debug, thiserror::Error)]
#[error("{message}")]
pub struct CliError {
    /// The status.
    pub exit: Exit,
    /// What happened, to what, and what to do next. Empty when there is nobody left to tell.
    pub message: String,
}

impl CliError {
    /// An error that ends with `exit`.
    pub fn new(exit: Exit, message: impl Into<String>) -> Self {
        Self { exit, message: message.into() }
    }

    /// A command line that is wrong.
    pub fn usage(message: impl Into<String>) -> Self {
        Self::new(Exit::Usage, message)
    }

    /// A name of the interface that this build does not have yet.
    pub fn not_built(what: &str) -> Self {
        Self::new(Exit::Usage, format!("{what}: not built yet"))
    }

    /// Standard output cannot be written; a reader that has gone (`| head`) is no error.
    pub fn output(error: &io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::BrokenPipe => Self::new(Exit::Done, ""),
            _ => Self::new(Exit::Failed, format!("cannot write the output: {error}")),
        }
    }

    /// What a server at `url` answered while `what` was tried.
    pub fn from_status(status: &tonic::Status, url: &str, what: &str) -> Self {
        let exit = exit_of(status.code());
        let text = status.message();
        match exit {
            Exit::Unreachable => Self::unreachable(url, text),
            _ => Self::new(exit, format!("{what}: {text}")),
        }
    }

    /// No server at `url`.
    pub fn unreachable(url: &str, why: &str) -> Self {
        Self::new(
            Exit::Unreachable,
            format!(
                "cannot reach tidefs-server at {url}: {why}: is it running? start it with \
                 `tidefs-server --data DIR`, or name another one with --server URL or TIDEFS_SERVER"
            ),
        )
    }
}

/// The status that a gRPC code ends with.
pub fn exit_of(code: Code) -> Exit {
    match code {
        Code::Ok => Exit::Done,
        Code::NotFound => Exit::NotFound,
        Code::Unavailable => Exit::Unreachable,
        Code::DeadlineExceeded => Exit::Deadline,
        Code::InvalidArgument => Exit::Usage,
        Code::PermissionDenied
        | Code::FailedPrecondition
        | Code::Unauthenticated
        | Code::AlreadyExists
        | Code::ResourceExhausted => Exit::Refused,
        Code::Cancelled
        | Code::Unknown
        | Code::Aborted
        | Code::OutOfRange
        | Code::Unimplemented
        | Code::Internal
        | Code::DataLoss => Exit::Failed,
    }
}

impl From<StateError> for CliError {
    fn from(error: StateError) -> Self {
        Self::new(error.exit_code(), error.to_string())
    }
}

impl From<ClientError> for CliError {
    fn from(error: ClientError) -> Self {
        Self::new(error.exit_code(), error.to_string())
    }
}

impl From<DriverError> for CliError {
    fn from(error: DriverError) -> Self {
        Self::new(error.exit_code(), error.to_string())
    }
}
