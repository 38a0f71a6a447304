//! How a command ends. The numbers are part of the interface: scripts branch on them, so they never change.

/// The exit status of every command of `tidefs`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum Exit {
    /// Done.
    Done = 0,
    /// Failed for a reason that no other status names.
    Failed = 1,
    /// The command line is wrong, or names something that is not built yet.
    Usage = 2,
    /// What was named does not exist.
    NotFound = 3,
    /// The server does not answer.
    Unreachable = 4,
    /// The deadline passed first.
    Deadline = 5,
    /// Unsent work would be or was left.
    Unsent = 6,
    /// The machine lacks something that is needed.
    Prerequisite = 7,
    /// Refused: rights, version, busy, in use.
    Refused = 8,
}

impl Exit {
    /// The number.
    pub fn code(self) -> u8 {
        self as u8
    }

    /// The status that a child process reported; anything that is not one of ours is [`Exit::Failed`].
    pub fn from_code(code: i64) -> Self {
        match code {
            0 => Self::Done,
            2 => Self::Usage,
            3 => Self::NotFound,
            4 => Self::Unreachable,
            5 => Self::Deadline,
            6 => Self::Unsent,
            7 => Self::Prerequisite,
            8 => Self::Refused,
            _ => Self::Failed,
        }
    }
}

impl From<Exit> for std::process::ExitCode {
    fn from(exit: Exit) -> Self {
        Self::from(exit.code())
    }
}
