//! Names, checked once: whoever holds a [`Name`] holds a legal one.

use crate::limits::{ATTR_NAME_BYTES_MAX, NAME_BYTES_MAX};
use std::{fmt, sync::Arc};

/// Why bytes are not a name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum NameError {
    /// Longer than the limit.
    #[error("name is longer than {NAME_BYTES_MAX} bytes")]
    TooLong,
    /// Empty, `.`, `..`, or with a slash or a zero byte in it.
    #[error("not a name: empty, `.`, `..`, or it holds `/` or a zero byte")]
    Illegal,
    /// The name that tidefs keeps for itself.
    #[error("`.tidefs-fence` is reserved")]
    Reserved,
}

/// A name in a directory: 1 to 255 bytes, any but `/` and zero.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Name(Arc<[u8]>);

impl Name {
    /// The name that never exists: invalidating it makes the kernel finish what it has begun in a directory.
    pub const FENCE: &'static [u8] = b".tidefs-fence";

    /// Checks `bytes`.
    pub fn new(bytes: &[u8]) -> Result<Self, NameError> {
        if bytes.len() > NAME_BYTES_MAX {
            return Err(NameError::TooLong);
        }
        if bytes.is_empty() || bytes == b"." || bytes == b".." || bytes.iter().any(|b| matches!(b, 0 | b'/'))
        {
            return Err(NameError::Illegal);
        }
        if bytes == Self::FENCE {
            return Err(NameError::Reserved);
        }
        Ok(Self(bytes.into()))
    }

    /// The bytes.
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    /// `NAME~SESSION`, or `NAME~SESSION~n` from the second on; NAME is shortened where the whole would be too
    /// long, and bytes of `session` that no name may hold become `_`.
    pub fn beside(&self, session: &str, n: u32) -> Self {
        let mut tail = format!("~{session}").into_bytes();
        // The number stays whole, so that each gives another name.
        tail.truncate(NAME_BYTES_MAX / 2);
        if n > 1 {
            tail.extend_from_slice(format!("~{n}").as_bytes());
        }
        tail.iter_mut().filter(|b| matches!(b, 0 | b'/')).for_each(|b| *b = b'_');
        let keep = self.0.len().min(NAME_BYTES_MAX - tail.len());
        let mut bytes = self.0[..keep].to_vec();
        bytes.extend_from_slice(&tail);
        Self(bytes.into())
    }
}

impl fmt::Debug for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", String::from_utf8_lossy(&self.0))
    }
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&String::from_utf8_lossy(&self.0))
    }
}

/// The name of an extended attribute: 1 to 255 bytes without a zero.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct AttrName(Arc<[u8]>);

impl AttrName {
    /// Checks `bytes`.
    pub fn new(bytes: &[u8]) -> Result<Self, NameError> {
        if bytes.len() > ATTR_NAME_BYTES_MAX {
            return Err(NameError::TooLong);
        }
        if bytes.is_empty() || bytes.contains(&0) {
            return Err(NameError::Illegal);
        }
        Ok(Self(bytes.into()))
    }

    /// The bytes.
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }
}

impl fmt::Debug for AttrName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", String::from_utf8_lossy(&self.0))
    }
}
