//! Numbers that name things. Each is a type of its own, so that none is taken for another.

use std::fmt;

/// A session's number in its drive: given at attach, never reused in that drive. 0 is the drive itself.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct SessionNo(pub u32);

/// A checkpoint's number in its session, dense from 1.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct CheckpointNo(pub u64);

impl CheckpointNo {
    /// The number after this one.
    pub fn next(self) -> Self {
        Self(self.0 + 1)
    }
}

/// A place on a drive's timeline, dense from 1; 0 is the empty drive.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct Position(pub u64);

impl Position {
    /// The position after this one.
    pub fn next(self) -> Self {
        Self(self.0 + 1)
    }
}

/// A node's id, the same on every mount and shown as `st_ino`: session number << 32 | counter.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct NodeId(pub u64);

impl NodeId {
    /// The root directory of every drive (also FUSE's root id).
    pub const ROOT: NodeId = NodeId(1);

    /// The id that `session` gives to the node it makes as its `counter`-th.
    pub fn new(session: SessionNo, counter: u32) -> Self {
        Self((u64::from(session.0) << 32) | u64::from(counter))
    }

    /// The session that made the node; 0 for the root.
    pub fn session(self) -> SessionNo {
        SessionNo((self.0 >> 32) as u32)
    }

    /// The counter part.
    pub fn counter(self) -> u32 {
        self.0 as u32
    }
}

/// Which checkpoint wrote a register. `Version::DRIVE` marks what a new drive comes with.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Version {
    /// The session that wrote it.
    pub session: SessionNo,
    /// Its checkpoint.
    pub number: CheckpointNo,
}

impl Version {
    /// The version of everything that a drive has from its creation.
    pub const DRIVE: Version = Version { session: SessionNo(0), number: CheckpointNo(0) };
}

/// The BLAKE3 hash that a block is addressed by.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Hash(pub [u8; 32]);

impl fmt::Debug for Hash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl fmt::Display for Hash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.session.0, self.number.0)
    }
}

impl fmt::Display for NodeId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}

impl fmt::Display for Position {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}
