//! Why a shipment was not placed, as numbers that both ends know.

/// Why a shipment was not placed. The numbers stand on the wire and in the journal and are never reused.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u32)]
pub enum Refusal {
    /// The bytes are no shipment of this session and number. The number is used up.
    Malformed = 1,
    /// The shipment or its result is larger than a journal entry. The number is used up.
    TooLarge = 2,
    /// The number, or the one before it, was answered for other bytes: two copies of one session write. The
    /// number is not used up; the sender goes on as a new session.
    Fork = 3,
    /// A number before it has not arrived. Not used up: send again from the first one that has no answer.
    Gap = 4,
    /// Blocks that it names are not stored. Not used up: send its pack again, then the shipment.
    MissingBlocks = 5,
    /// The drive has no such session, or the session was resumed elsewhere since. Not used up: attach again.
    NotAttached = 6,
    /// The number was answered so long ago that the answer is no longer kept.
    Forgotten = 7,
}

impl Refusal {
    const ALL: [Refusal; 7] = [
        Refusal::Malformed,
        Refusal::TooLarge,
        Refusal::Fork,
        Refusal::Gap,
        Refusal::MissingBlocks,
        Refusal::NotAttached,
        Refusal::Forgotten,
    ];

    /// Its number.
    pub fn code(self) -> u32 {
        self as u32
    }

    /// The refusal of that number.
    pub fn from_code(code: u32) -> Option<Self> {
        Self::ALL.into_iter().find(|refusal| refusal.code() == code)
    }

    /// Whether the number is used up, so that what is in flight behind it can be placed.
    pub fn uses_number(self) -> bool {
        matches!(self, Refusal::Malformed | Refusal::TooLarge)
    }

    /// A short name for counters.
    pub fn name(self) -> &'static str {
        match self {
            Refusal::Malformed => "malformed",
            Refusal::TooLarge => "too_large",
            Refusal::Fork => "fork",
            Refusal::Gap => "gap",
            Refusal::MissingBlocks => "missing_blocks",
            Refusal::NotAttached => "not_attached",
            Refusal::Forgotten => "forgotten",
        }
    }
}
