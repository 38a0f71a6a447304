//! Fetching directories for requests that wait for them.

use super::Engine;
use crate::{
    link::{Directory, DirectoryIs, FETCH_WAIT},
    session::loading,
    volume::{Load, REQUEST_WAIT_MAX},
};
use std::{
    sync::{Arc, atomic::Ordering},
    time::Duration,
};
use tidefs_timeline::NodeId;

/// Longest wait for the stream to reach the position of a directory that was fetched.
const STREAM_WAIT: Duration = Duration::from_secs(2);
/// Entries of directories below that come along unasked.
const PREFETCH_ENTRIES: u32 = 2000;

impl Engine {
    /// Loads what a request waits for, within its deadline.
    pub(crate) async fn load_now(&self, what: Load) -> Result<(), i32> {
        match what {
            Load::Directory(dir) => self.load_directory(dir).await,
            Load::Extents(id, root) => self.load_extents(id, root).await,
            Load::Room => self.wait_for_room().await,
        }
    }

    /// Fetches a directory and waits until it is in view.
    pub(crate) async fn load_directory(&self, dir: NodeId) -> Result<(), i32> {
        let visible = self.progress.subscribe();
        {
            let mut core = self.core.lock();
            if core.session.is_loaded(dir) {
                return Ok(());
            }
            if !self.seen.connected.load(Ordering::Relaxed) {
                return Err(libc::EIO);
            }
            core.session.load_began();
        }
        let loaded = self.fetch(dir, visible).await;
        self.core.lock().session.load_ended();
        loaded
    }

    async fn fetch(
        &self,
        dir: NodeId,
        mut moved: tokio::sync::watch::Receiver<super::Progress>,
    ) -> Result<(), i32> {
        let fetched =
            self.link.fetch_directories(self.fixed.drive_id, &[dir], PREFETCH_ENTRIES, FETCH_WAIT).await;
        let fetched = fetched.map_err(|error| {
            tracing::warn!(%error, directory = dir.0, "a directory cannot be fetched");
            self.troubled(&error);
            error.errno()
        })?;
        let mut ahead = false;
        {
            let mut core = self.core.lock();
            for directory in fetched {
                ahead |= directory.id == dir && directory.position > core.session.position();
                core.session.loaded(convert(directory));
            }
        }
        // A picture from the future is taken in when the stream gets there.
        if !ahead {
            return Ok(());
        }
        let here = moved.wait_for(|_| self.core.lock().session.is_loaded(dir));
        match tokio::time::timeout(STREAM_WAIT, here).await {
            Ok(Ok(_)) => Ok(()),
            _ => Err(libc::EIO),
        }
    }

    /// Waits until uploads have freed some of the log.
    async fn wait_for_room(&self) -> Result<(), i32> {
        self.core.lock().session.ask_cut();
        self.kick.notify_one();
        let before = self.progress.borrow().acknowledged;
        let room = self.wait_for(REQUEST_WAIT_MAX, |progress| progress.acknowledged > before).await;
        room.map(|_| ()).ok_or(libc::ENOSPC)
    }
}

fn convert(directory: Directory) -> loading::Directory {
    let what = match directory.what {
        DirectoryIs::Gone => loading::DirectoryState::Gone,
        DirectoryIs::Alias(to) => loading::DirectoryState::Alias(to),
        DirectoryIs::Listing { entries, nodes } => loading::DirectoryState::Listing {
            entries,
            nodes: nodes.into_iter().map(|(id, node)| (id, Arc::new(node))).collect(),
        },
    };
    loading::Directory { id: directory.id, position: directory.position, what }
}
