//! The words on the control socket: one JSON object a line, a request then its reply, in turns.
//!
//! A request is `{"version":1,"call":"sync","level":"server","timeout_ms":60000}`; a reply is
//! `{"version":1,"answer":…}` or `{"version":1,"error":{"kind":"deadline","message":"…"}}`.

use super::api::{ControlError, ControlKind, Level};
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// The version of this language; another one is refused.
pub const VERSION: u32 = 1;
/// Longest request, in bytes.
pub const REQUEST_BYTES_MAX: usize = 64 << 10;
/// Longest reply, in bytes.
pub const REPLY_BYTES_MAX: usize = 4 << 20;
/// Longest timeout that a request may carry, in milliseconds: a day.
pub const TIMEOUT_MS_MAX: u64 = 24 * 3600 * 1000;

/// What a mount can be asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "call", rename_all = "snake_case")]
pub enum Call {
    /// How the mount is.
    Status,
    /// Bring what was written to a level.
    Sync {
        /// The level.
        level: Level,
        /// Deadline in milliseconds.
        timeout_ms: u64,
    },
    /// Wait until a position is applied.
    Wait {
        /// The position.
        position: u64,
        /// Deadline in milliseconds.
        timeout_ms: u64,
    },
    /// Ship and unmount.
    Leave {
        /// Deadline for shipping in milliseconds.
        timeout_ms: u64,
        /// Whether unsent work is thrown away.
        discard: bool,
    },
}

impl Call {
    /// The deadline that the call carries, in milliseconds, bounded; none for what is answered at once.
    pub fn timeout_ms(self) -> u64 {
        match self {
            Self::Status => 0,
            Self::Sync { timeout_ms, .. }
            | Self::Wait { timeout_ms, .. }
            | Self::Leave { timeout_ms, .. } => timeout_ms.min(TIMEOUT_MS_MAX),
        }
    }
}

#[derive(Serialize)]
struct Request {
    version: u32,
    #[serde(flatten)]
    call: Call,
}

/// A reply as it is on the wire.
#[derive(Debug, Serialize, Deserialize)]
pub struct Reply {
    version: u32,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    answer: Option<Value>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    error: Option<ControlError>,
}

/// A request as a line, its end included.
pub fn encode_call(call: Call) -> Result<Vec<u8>, serde_json::Error> {
    line(&Request { version: VERSION, call })
}

/// The call that a line asks for.
pub fn decode_call(bytes: &[u8]) -> Result<Call, ControlError> {
    let bad =
        |why: String| ControlError::new(ControlKind::Usage, format!("control request not understood: {why}"));
    let value: Value = serde_json::from_slice(bytes).map_err(|e| bad(e.to_string()))?;
    match value.get("version").and_then(Value::as_u64) {
        Some(version) if version == u64::from(VERSION) => {}
        Some(version) => {
            return Err(ControlError::new(
                ControlKind::Refused,
                format!(
                    "this mount speaks control version {VERSION}, not {version}: use the tidefs it was mounted with, or mount again"
                ),
            ));
        }
        None => return Err(bad("it has no version".to_owned())),
    }
    serde_json::from_value(value).map_err(|e| bad(e.to_string()))
}

/// A reply as a line, its end included; one that does not fit is replaced by an error that says so.
pub fn encode_reply(answer: Result<Value, ControlError>) -> Vec<u8> {
    let reply = match answer {
        Ok(answer) => Reply { version: VERSION, answer: Some(answer), error: None },
        Err(error) => Reply { version: VERSION, answer: None, error: Some(error) },
    };
    match line(&reply) {
        Ok(bytes) if bytes.len() <= REPLY_BYTES_MAX => bytes,
        _ => b"{\"version\":1,\"error\":{\"kind\":\"failed\",\"message\":\"the reply is too long\"}}\n"
            .to_vec(),
    }
}

/// What a reply says.
pub fn decode_reply(bytes: &[u8]) -> Result<Result<Value, ControlError>, serde_json::Error> {
    let reply: Reply = serde_json::from_slice(bytes)?;
    Ok(match reply.error {
        Some(error) => Err(error),
        None => Ok(reply.answer.unwrap_or(Value::Null)),
    })
}

fn line<T: Serialize>(value: &T) -> Result<Vec<u8>, serde_json::Error> {
    let mut bytes = serde_json::to_vec(value)?;
    bytes.push(b'\n');
    Ok(bytes)
}
