//! What the kernel's door asks, answered from the session.

use super::{Engine, now};
use crate::{
    session::{Planned, op::Op},
    volume::{
        Answer, AttrMode, Caller, Found, Line, Load, Make, Reading, RenameMode, SetAttr, Space, Stop, Volume,
        Waiting, WriteAt,
    },
    wal::LogPos,
};
use std::{sync::Arc, time::Duration};
use tidefs_timeline::NodeId;

/// The mount as the door sees it.
pub struct EngineVolume(pub Arc<Engine>);

/// Longest wait for the server in an fsync at server level, without progress.
const SERVER_SYNC_WAIT: Duration = Duration::from_secs(10);

impl EngineVolume {
    fn found(&self, id: NodeId, count: bool) -> Answer<Found> {
        let mut core = self.0.core.lock();
        let found = core.session.getattr(id)?;
        if count {
            core.session.count_lookup(found.id);
        }
        Ok(found)
    }

    fn one(
        &self,
        grows: bool,
        plan: impl FnOnce(&crate::session::Session, crate::session::Moment) -> Answer<Planned>,
    ) -> Answer<()> {
        self.0.change(grows, &[], |session, now| Ok((vec![plan(session, now)?], ())))
    }
}

impl Volume for EngineVolume {
    fn lookup(&self, parent: NodeId, name: &[u8]) -> Answer<Option<Found>> {
        self.0.core.lock().session.lookup(parent, name)
    }

    fn getattr(&self, id: NodeId) -> Answer<Found> {
        self.found(id, false)
    }

    fn forget(&self, id: NodeId, count: u64) {
        let mut core = self.0.core.lock();
        core.session.forget(id, count);
        if core.session.orphans() == 0 {
            self.0.local.orphans.clear();
        }
    }

    fn setattr(&self, caller: Caller, id: NodeId, set: SetAttr) -> Answer<Found> {
        let grows = set.size.is_none();
        self.0.change(grows, &[], |session, now| Ok((session.plan_setattr((now, caller), id, &set)?, ())))?;
        if let Some(atime) = set.atime {
            self.0.core.lock().session.set_atime(id, atime.unwrap_or(now().wall));
        }
        self.found(id, false)
    }

    fn readlink(&self, id: NodeId) -> Answer<Vec<u8>> {
        self.0.core.lock().session.readlink(id)
    }

    fn make(&self, caller: Caller, at: (NodeId, &[u8]), make: Make) -> Answer<Found> {
        let id = self.0.change(true, &[], |session, now| {
            let planned = session.plan_make((now, caller), at, &make)?;
            let Op::Make { id, .. } = planned.op else { return Err(Stop::Errno(libc::EIO)) };
            Ok((vec![planned], id))
        })?;
        self.found(id, true)
    }

    fn unlink(&self, caller: Caller, parent: NodeId, name: &[u8]) -> Answer<()> {
        self.one(false, |session, now| session.plan_remove((now, caller), (parent, name), false))
    }

    fn rmdir(&self, caller: Caller, parent: NodeId, name: &[u8]) -> Answer<()> {
        self.one(false, |session, now| session.plan_remove((now, caller), (parent, name), true))
    }

    fn rename(
        &self,
        caller: Caller,
        from: (NodeId, &[u8]),
        to: (NodeId, &[u8]),
        mode: RenameMode,
    ) -> Answer<()> {
        self.0.change(true, &[], |session, now| {
            Ok((session.plan_rename((now, caller), from, to, mode)?.into_iter().collect(), ()))
        })
    }

    fn link(&self, caller: Caller, id: NodeId, at: (NodeId, &[u8])) -> Answer<Found> {
        self.one(true, |session, now| session.plan_link((now, caller), id, at))?;
        self.found(id, true)
    }

    fn write(&self, caller: Caller, id: NodeId, write: WriteAt<'_>) -> Answer<()> {
        self.0
            .change(true, write.data, |session, now| Ok((session.plan_write((now, caller), id, &write)?, ())))
    }

    fn read(&self, id: NodeId, offset: u64, len: u32) -> Answer<Reading> {
        self.0.read_at(id, offset, len)
    }

    fn fsync(&self, _caller: Caller, id: Option<NodeId>) -> Waiting<Result<(), i32>> {
        let engine = self.0.clone();
        let end = {
            let mut core = engine.core.lock();
            if let Some(id) = id {
                core.session.synced(id, now());
            }
            engine.wake_cutter(core.session.due());
            core.log.end()
        };
        Box::pin(async move {
            engine.sync_local(end).await?;
            if engine.fixed.fsync_server {
                engine.ship_all(SERVER_SYNC_WAIT).await.ok_or(libc::EIO)?;
            }
            Ok(())
        })
    }

    fn list(&self, dir: NodeId, cookie: u64, limit: usize, plus: bool) -> Answer<Vec<Line>> {
        self.0.core.lock().session.list(dir, cookie, limit, plus)
    }

    fn getxattr(&self, id: NodeId, name: &[u8]) -> Answer<Vec<u8>> {
        self.0.core.lock().session.getxattr(id, name)
    }

    fn listxattr(&self, id: NodeId) -> Answer<Vec<u8>> {
        self.0.core.lock().session.listxattr(id)
    }

    fn setxattr(&self, caller: Caller, id: NodeId, attr: (&[u8], &[u8]), mode: AttrMode) -> Answer<()> {
        self.one(true, |session, now| session.plan_setxattr((now, caller), id, attr, mode))
    }

    fn removexattr(&self, caller: Caller, id: NodeId, name: &[u8]) -> Answer<()> {
        self.one(false, |session, now| session.plan_removexattr((now, caller), id, name))
    }

    fn statfs(&self) -> Answer<Space> {
        let local = rustix::fs::statvfs(&self.0.fixed.state_dir)
            .map_err(|error| Stop::Errno(error.raw_os_error()))?;
        Ok(Space {
            total_bytes: local.f_blocks * local.f_frsize,
            free_bytes: local.f_bavail * local.f_frsize,
            total_nodes: 1 << 32,
            free_nodes: 1 << 31,
        })
    }

    fn load(&self, what: Load) -> Waiting<Result<(), i32>> {
        let engine = self.0.clone();
        Box::pin(async move { engine.load_now(what).await })
    }

    fn count(&self, operation: &'static str) {
        *self.0.seen.counts.lock().entry(operation).or_default() += 1;
    }
}

impl Engine {
    /// Waits until the log is on disk up to `end`.
    pub(crate) async fn sync_local(self: &Arc<Self>, end: LogPos) -> Result<(), i32> {
        let sync = self.local.sync.clone();
        let done = tokio::task::spawn_blocking(move || sync.sync_to(end)).await;
        match done {
            Ok(Ok(())) => Ok(()),
            Ok(Err(error)) => {
                tracing::error!(%error, "the log could not be synced; fsync fails");
                self.troubled(format_args!("the log could not be synced: {error}"));
                Err(super::log_errno(&error))
            }
            Err(_) => Err(libc::EIO),
        }
    }
}
