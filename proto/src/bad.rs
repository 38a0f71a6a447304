//! What is wrong with a message, said by field.

use std::fmt::Display;

/// A message that no correct peer sends.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("bad message: {field}: {why}")]
pub struct BadMessage {
    /// The field at fault.
    pub field: &'static str,
    /// What is wrong with it.
    pub why: String,
}

/// A result whose error is a bad message.
pub type Bad<T> = Result<T, BadMessage>;

/// Names a field in an error.
pub fn bad<T>(field: &'static str, why: impl Display) -> Bad<T> {
    Err(BadMessage { field, why: why.to_string() })
}

/// Requires an optional part of a message.
pub fn need<T>(field: &'static str, value: Option<T>) -> Bad<T> {
    value.ok_or_else(|| BadMessage { field, why: "is missing".into() })
}

/// Requires exactly `N` bytes.
pub fn exactly<const N: usize>(field: &'static str, bytes: &[u8]) -> Bad<[u8; N]> {
    bytes.try_into().or_else(|_| bad(field, format_args!("has {} bytes, not {N}", bytes.len())))
}

/// Requires a list that is in strictly ascending order of `key`.
pub fn ascending<T, K: Ord>(field: &'static str, list: &[T], key: impl Fn(&T) -> K) -> Bad<()> {
    if list.windows(2).all(|pair| key(&pair[0]) < key(&pair[1])) {
        Ok(())
    } else {
        bad(field, "is not in ascending order")
    }
}

impl From<BadMessage> for tonic::Status {
    fn from(bad: BadMessage) -> Self {
        tonic::Status::invalid_argument(bad.to_string())
    }
}
