//! Bytes: reading, writing, and making durable. Their waits are their own: a read's blocks are fetched by a
//! future of the volume, a write's bytes are copied only when it has to wait.

use super::{
    door::{Door, caller},
    replies::{data, empty, errno, node},
};
use crate::volume::{Caller, Reading, Stop, Volume, WriteAt};
use fuser::{Errno, INodeNo, ReplyData, ReplyEmpty, ReplyWrite, Request};
use tidefs_timeline::NodeId;
use tokio::time::timeout_at;

impl<V: Volume> Door<V> {
    pub(super) fn read_at(&self, id: NodeId, offset: u64, size: u32, reply: ReplyData) {
        self.volume.count("read");
        let ask = move |v: &V| v.read(id, offset, size);
        match ask(&self.volume) {
            Ok(reading) => self.finish_read(reply, reading),
            Err(Stop::Errno(code)) => reply.error(errno(code)),
            Err(Stop::Load(what)) => {
                let Some(permit) = self.admit(0) else { return reply.error(Errno::EIO) };
                let door = self.again();
                self.later(permit, what, ask, move |answer| match answer {
                    Ok(reading) => door.finish_read(reply, reading),
                    Err(code) => reply.error(errno(code)),
                });
            }
        }
    }

    fn finish_read(&self, reply: ReplyData, reading: Reading) {
        match reading {
            Reading::Now(bytes) => reply.data(&bytes),
            Reading::Later(fetch) => {
                let Some(permit) = self.admit(0) else { return reply.error(Errno::EIO) };
                let deadline = self.deadline();
                self.run(async move {
                    data(reply, timeout_at(deadline, fetch).await.unwrap_or(Err(libc::ETIMEDOUT)));
                    drop(permit);
                });
            }
        }
    }

    pub(super) fn write_at(&self, caller: Caller, id: NodeId, write: WriteAt<'_>, reply: ReplyWrite) {
        self.volume.count("write");
        let Ok(len) = u32::try_from(write.data.len()) else { return reply.error(Errno::EINVAL) };
        let done = move |answer| match answer {
            Ok(()) => reply.written(len),
            Err(code) => reply.error(errno(code)),
        };
        match self.volume.write(caller, id, write) {
            Ok(()) => done(Ok(())),
            Err(Stop::Errno(code)) => done(Err(code)),
            Err(Stop::Load(what)) => match self.admit(write.data.len()) {
                Some(permit) => {
                    let data = write.data.to_vec();
                    let WriteAt { offset, append, from_cache, kill_set_id, .. } = write;
                    let ask = move |v: &V| {
                        v.write(caller, id, WriteAt { offset, data: &data, append, from_cache, kill_set_id })
                    };
                    self.later(permit, what, ask, done);
                }
                None => done(Err(libc::EIO)),
            },
        }
    }

    pub(super) fn fsync_node(&self, operation: &'static str, req: &Request, ino: INodeNo, reply: ReplyEmpty) {
        self.volume.count(operation);
        // No deadline of the door's: how long a sync may take is a matter of progress, which the volume sees.
        let synced = self.volume.fsync(caller(req), Some(node(ino)));
        self.run(async move { empty(reply, synced.await) });
    }
}
