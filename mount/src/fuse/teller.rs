//! Telling the kernel what to forget.
//!
//! A notification waits for the locks of the directory or file that it names, and whoever holds one may be
//! waiting for us. So notifications have threads of their own, which serve nothing and hold nothing; and there
//! are several, because one directory may be stuck behind a slow lookup while others must not be. What is told
//! of one directory goes to one thread, in the order given.
//!
//! The order is what makes it exact. A name first, then its directory's listing. For a node, first the reserved
//! name in each directory that has it: that waits for the directory's lock, so that every reply with the old
//! attributes that is still on its way there has been taken in; then the node itself.

use crate::volume::{Tell, Teller, Waiting};
use fuser::{INodeNo, Notifier};
use std::{ffi::OsStr, io, os::unix::ffi::OsStrExt, thread};
use tidefs_timeline::{Name, NodeId};
use tokio::sync::{mpsc, oneshot};

/// Threads that tell.
const THREADS: usize = 4;
/// Batches that wait for one thread; the next one makes its teller wait.
const QUEUE_MAX: usize = 64;

/// Notifications as the kernel takes them. A trait, so that order and splitting can be tested without one.
pub(super) trait Kernel: Clone + Send + Sync + 'static {
    fn entry(&self, parent: NodeId, name: &[u8]) -> io::Result<()>;
    /// Attributes, and with `content` all cached pages too.
    fn inode(&self, id: NodeId, content: bool) -> io::Result<()>;
}

impl Kernel for Notifier {
    fn entry(&self, parent: NodeId, name: &[u8]) -> io::Result<()> {
        self.inval_entry(INodeNo(parent.0), OsStr::from_bytes(name))
    }

    fn inode(&self, id: NodeId, content: bool) -> io::Result<()> {
        // A negative offset means attributes only; length 0 means up to the end.
        self.inval_inode(INodeNo(id.0), if content { 0 } else { -1 }, 0)
    }
}

struct Batch {
    what: Vec<Tell>,
    done: oneshot::Sender<()>,
}

/// Tells the kernel through the session of one mount. Its threads end once it and its clones are dropped.
#[derive(Clone)]
pub struct KernelTeller {
    queues: Vec<mpsc::Sender<Batch>>,
}

impl KernelTeller {
    /// Starts the threads. Errors: no thread could be started.
    pub fn new(notifier: Notifier) -> io::Result<Self> {
        Self::start(notifier)
    }

    pub(super) fn start(kernel: impl Kernel) -> io::Result<Self> {
        let mut queues = Vec::with_capacity(THREADS);
        for i in 0..THREADS {
            let (sender, receiver) = mpsc::channel(QUEUE_MAX);
            let kernel = kernel.clone();
            thread::Builder::new()
                .name(format!("tidefs-tell-{i}"))
                .spawn(move || serve(&kernel, receiver))?;
            queues.push(sender);
        }
        Ok(Self { queues })
    }
}

impl Teller for KernelTeller {
    fn tell(&self, what: Vec<Tell>) -> Waiting<()> {
        let mut parts: Vec<Vec<Tell>> = self.queues.iter().map(|_| Vec::new()).collect();
        for tell in what {
            parts[queue_of(&tell)].push(tell);
        }
        let sends: Vec<_> =
            self.queues.iter().cloned().zip(parts).filter(|(_, part)| !part.is_empty()).collect();
        Box::pin(async move {
            let one = |(queue, what): (mpsc::Sender<Batch>, Vec<Tell>)| async move {
                let (done, told) = oneshot::channel();
                if queue.send(Batch { what, done }).await.is_ok() {
                    // An error means that the thread is gone, and with it the mount: nothing is left to tell.
                    let _ = told.await;
                }
            };
            futures::future::join_all(sends.into_iter().map(one)).await;
        })
    }
}

/// The thread of a directory. Ids of one session are dense, so the low bits spread them.
fn queue_of(tell: &Tell) -> usize {
    let by = match tell {
        Tell::Entry { parent, .. } => *parent,
        Tell::Listing(dir) => *dir,
        Tell::Node { id, parents, .. } => parents.first().copied().unwrap_or(*id),
    };
    (by.0 % THREADS as u64) as usize
}

fn serve(kernel: &impl Kernel, mut queue: mpsc::Receiver<Batch>) {
    while let Some(batch) = queue.blocking_recv() {
        for tell in &batch.what {
            if let Err(error) = notify(kernel, tell) {
                report(&error, tell);
            }
        }
        // Whoever asked may have stopped waiting.
        let _ = batch.done.send(());
    }
}

fn notify(kernel: &impl Kernel, tell: &Tell) -> io::Result<()> {
    match tell {
        Tell::Entry { parent, name } => normal(kernel.entry(*parent, name.as_bytes())),
        Tell::Listing(dir) => normal(kernel.inode(*dir, true)),
        Tell::Node { id, parents, content } => {
            let fences: Vec<_> =
                parents.iter().map(|parent| normal(kernel.entry(*parent, Name::FENCE))).collect();
            // The node is told of even when a fence failed: a late reply is the smaller harm.
            normal(kernel.inode(*id, *content))?;
            fences.into_iter().collect()
        }
    }
}

/// ENOENT says that the kernel does not know it: nothing to forget.
fn normal(result: io::Result<()>) -> io::Result<()> {
    match result {
        Err(error) if error.raw_os_error() == Some(libc::ENOENT) => Ok(()),
        other => other,
    }
}

fn report(error: &io::Error, tell: &Tell) {
    match error.raw_os_error() {
        Some(libc::ENODEV | libc::ENOTCONN | libc::EPERM) => {
            tracing::debug!(%error, ?tell, "the mount is gone, nothing to tell")
        }
        _ => tracing::error!(%error, ?tell, "the kernel refused to forget; it may show an old version"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use parking_lot::{Condvar, Mutex};
    use std::sync::Arc;

    /// Records what it is told; blocks on one directory until released.
    #[derive(Clone, Default)]
    struct Recorder {
        told: Arc<Mutex<Vec<String>>>,
        blocked: Arc<(Mutex<Option<u64>>, Condvar)>,
    }

    impl Recorder {
        fn unblock(&self) {
            *self.blocked.0.lock() = None;
            self.blocked.1.notify_all();
        }
    }

    impl Kernel for Recorder {
        fn entry(&self, parent: NodeId, name: &[u8]) -> io::Result<()> {
            let mut blocked = self.blocked.0.lock();
            while *blocked == Some(parent.0) {
                self.blocked.1.wait(&mut blocked);
            }
            self.told.lock().push(format!("{parent}/{}", String::from_utf8_lossy(name)));
            Err(io::Error::from_raw_os_error(libc::ENOENT))
        }
        fn inode(&self, id: NodeId, content: bool) -> io::Result<()> {
            self.told.lock().push(format!("{id} {content}"));
            Ok(())
        }
    }

    fn entry(parent: u64, name: &str) -> Tell {
        Tell::Entry { parent: NodeId(parent), name: Name::new(name.as_bytes()).unwrap() }
    }

    /// Of one directory: names, then the listing; of a node: the fence in every directory, then the node.
    #[tokio::test]
    async fn the_order_given_is_the_order_told() {
        let kernel = Recorder::default();
        let teller = KernelTeller::start(kernel.clone()).unwrap();
        let node = Tell::Node { id: NodeId(9), parents: vec![NodeId(4), NodeId(5)], content: false };
        teller.tell(vec![entry(4, "a"), entry(4, "b"), Tell::Listing(NodeId(4)), node]).await;
        let told = kernel.told.lock().clone();
        assert_eq!(told, ["4/a", "4/b", "4 true", "4/.tidefs-fence", "5/.tidefs-fence", "9 false"]);
    }

    /// A thread stuck in one directory holds up neither another directory nor what is told of it later; the
    /// future that names the stuck directory ends only when it was told.
    #[tokio::test]
    async fn a_stuck_directory_stops_only_itself() {
        let kernel = Recorder::default();
        *kernel.blocked.0.lock() = Some(4);
        let teller = KernelTeller::start(kernel.clone()).unwrap();
        let mut stuck = teller.tell(vec![entry(4, "a"), entry(5, "b")]);
        assert!(futures::poll!(&mut stuck).is_pending());
        teller.tell(vec![entry(5, "c"), entry(6, "d"), entry(7, "e")]).await;
        assert!(futures::poll!(&mut stuck).is_pending());
        assert!(!kernel.told.lock().contains(&"4/a".to_owned()));
        kernel.unblock();
        stuck.await;
        assert!(kernel.told.lock().contains(&"4/a".to_owned()));
    }
}
