//! Every error of the server as a gRPC status. The code is what a mount acts on:
//!
//! | code | what the mount does |
//! |---|---|
//! | `Aborted` | of attach: goes on as a new session with all it has unsent; of commit: attaches again |
//! | `FailedPrecondition` | stops shipping, stays readable, says the text |
//! | `Unavailable` | tries again, a commit from the first number that has no answer, packs too |
//! | `ResourceExhausted` | the server's disk is full: tries again later, says so |
//! | `InvalidArgument`, `NotFound`, `AlreadyExists` | says the text |

use crate::{
    drive::{Ended, OpenError},
    drives::DrivesError,
    head::HeadError,
    order::{AttachRefused, Refusal, ReplayError},
    packs::PacksError,
    store::{BlocksError, FolderError, IndexError, JournalError},
    timeline::TimelineError,
};
use tonic::Status;

pub(super) fn drives(error: DrivesError) -> Status {
    let text = error.to_string();
    match error {
        DrivesError::UnknownId => Status::not_found(text),
        DrivesError::Folder(error) => match error {
            FolderError::NotFound { .. } => Status::not_found(text),
            FolderError::Exists { .. } => Status::already_exists(text),
            FolderError::BadName { .. } => Status::invalid_argument(text),
            FolderError::Disk(error) if error.is_full() => Status::resource_exhausted(text),
            _ => Status::internal(text),
        },
        DrivesError::Open { error, .. } => {
            tracing::error!(error = text, "a drive could not be opened");
            open(&error, text)
        }
        DrivesError::InUse { .. } => Status::failed_precondition(text),
        DrivesError::Stopping => Status::unavailable(text),
    }
}

fn open(error: &OpenError, text: String) -> Status {
    let full = match error {
        OpenError::Journal(error) => error.is_full(),
        OpenError::Index(error) => error.is_full(),
        OpenError::Blocks(error) => error.is_full(),
        _ => false,
    };
    match error {
        _ if full => Status::resource_exhausted(text),
        OpenError::Ended | OpenError::Thread(_) => Status::unavailable(text),
        _ if error.is_busy() => Status::unavailable(text),
        _ => Status::internal(text),
    }
}

pub(super) fn ended(error: Ended) -> Status {
    Status::unavailable(error.to_string())
}

pub(super) fn attach(error: AttachRefused) -> Status {
    let text = error.to_string();
    match error {
        AttachRefused::Copied { .. } | AttachRefused::Unknown => Status::aborted(text),
        AttachRefused::OtherHistory | AttachRefused::Ahead { .. } => Status::failed_precondition(text),
        AttachRefused::BadIncarnation => Status::invalid_argument(text),
    }
}

/// A refusal that leaves its number without an answer.
pub(super) fn unanswered(reason: Refusal, text: String) -> Status {
    match reason {
        Refusal::Gap | Refusal::MissingBlocks => Status::unavailable(text),
        Refusal::Fork | Refusal::NotAttached | Refusal::Forgotten => Status::aborted(text),
        Refusal::Malformed | Refusal::TooLarge => Status::invalid_argument(text),
    }
}

pub(super) fn head(error: HeadError) -> Status {
    tracing::error!(%error, "the head could not be read");
    match error {
        HeadError::Index(IndexError::Disk(_)) => Status::unavailable(error.to_string()),
        _ => Status::internal(error.to_string()),
    }
}

pub(super) fn journal(error: JournalError) -> Status {
    match error {
        JournalError::Poisoned { .. } | JournalError::Disk(_) => Status::unavailable(error.to_string()),
        JournalError::Dropped { .. } => Status::out_of_range(error.to_string()),
        _ => {
            tracing::error!(%error, "the journal could not be read");
            Status::internal(error.to_string())
        }
    }
}

pub(super) fn replay(error: ReplayError) -> Status {
    tracing::error!(%error, "the journal could not be read");
    Status::internal(error.to_string())
}

pub(super) fn blocks(error: BlocksError) -> Status {
    let text = error.to_string();
    match error {
        _ if error.is_full() => Status::resource_exhausted(text),
        BlocksError::WrongId { .. } | BlocksError::TooLarge { .. } => Status::invalid_argument(text),
        BlocksError::NotFound { .. } => Status::not_found(text),
        _ => {
            tracing::error!(%error, "packs failed");
            Status::unavailable(text)
        }
    }
}

/// For packs that are being taken: a bad one is the sender's.
pub(super) fn taken(error: PacksError) -> Status {
    match error {
        PacksError::Blocks(error) => blocks(error),
        PacksError::Pack { .. } => Status::invalid_argument(error.to_string()),
        PacksError::Stopping => Status::unavailable(error.to_string()),
    }
}

/// For packs that were taken: a bad one is ours.
pub(super) fn stored(error: PacksError) -> Status {
    match error {
        PacksError::Blocks(error) => blocks(error),
        PacksError::Pack { .. } => {
            tracing::error!(%error, "a stored pack is damaged");
            Status::data_loss(error.to_string())
        }
        PacksError::Stopping => Status::unavailable(error.to_string()),
    }
}

pub(super) fn timeline(error: TimelineError) -> Status {
    match error {
        TimelineError::Head(error) => head(error),
        TimelineError::Journal(error) => journal(error),
        TimelineError::Replay(error) => replay(error),
        TimelineError::Unknown(_) => Status::internal(error.to_string()),
    }
}
