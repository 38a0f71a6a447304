//! The running mount.

use crate::{config::MountConfig, control::api::Left, exit::Exit};
use tokio::sync::oneshot;

/// Why a mount could not start or had to end.
#[derive(Debug, thiserror::Error)]
pub enum DriverError {
    /// This build has no running mount yet.
    #[error("mounting {drive} is not built yet")]
    NotBuilt {
        /// The drive.
        drive: String,
    },
}

impl DriverError {
    /// The status that the process ends with.
    pub fn exit_code(&self) -> Exit {
        match self {
            Self::NotBuilt { .. } => Exit::Usage,
        }
    }
}

/// Mounts, tells `ready` once the mount is usable, and returns what was left when it is no longer mounted.
pub async fn run(config: MountConfig, ready: oneshot::Sender<()>) -> Result<Left, DriverError> {
    drop(ready);
    Err(DriverError::NotBuilt { drive: config.drive })
}
