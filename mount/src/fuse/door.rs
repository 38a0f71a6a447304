//! What all requests share: who asks, when an answer has to wait, and for how long.
//!
//! A volume answers at once or says what must be loaded first. The thread that took the request is one of very
//! few, so it never waits: the request moves to the tokio runtime, which loads, asks again, and replies. Loads
//! end within a deadline, because a process waiting for us cannot even be killed.

use super::attributes::Caching;
use crate::volume::{Answer, Caller, Load, REQUEST_WAIT_MAX, Stop, Volume};
use fuser::{InitFlags, Request};
use std::{
    ffi::OsStr,
    future::Future,
    os::unix::ffi::OsStrExt,
    sync::{
        Arc, OnceLock,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};
use tidefs_timeline::{Name, limits::NAME_BYTES_MAX};
use tokio::{
    runtime::Handle,
    sync::{OwnedSemaphorePermit, Semaphore},
    time::{Instant, timeout_at},
};

/// Memory that waiting requests may hold in all, in units of [`WAITING_UNIT`]: 256 MiB.
const WAITING_UNITS_MAX: usize = 64 << 10;
/// Bytes of one unit; a request without data counts as one.
const WAITING_UNIT: usize = 4 << 10;
/// How often an answer is asked for again. Reached only when what was loaded is evicted at once each time.
const ASKS_MAX: usize = 10_000;
/// Room is awaited by the volume itself, as long as uploads progress; this is added so that its own answer
/// comes first.
const ROOM_GRACE: Duration = Duration::from_secs(2);

/// What the door and the mount know together.
#[derive(Debug)]
pub struct Shared {
    /// How long answers are believed.
    pub caching: Caching,
    pub(super) priming: AtomicBool,
    pub(super) open_unanswered: AtomicBool,
    pub(super) opendir_unanswered: AtomicBool,
    agreed: OnceLock<(InitFlags, Vec<&'static str>)>,
    waiting: Arc<Semaphore>,
    wait_max: Duration,
}

impl Shared {
    fn new(caching: Caching, wait_max: Duration) -> Self {
        Self {
            caching,
            priming: AtomicBool::new(false),
            open_unanswered: AtomicBool::new(false),
            opendir_unanswered: AtomicBool::new(false),
            agreed: OnceLock::new(),
            waiting: Arc::new(Semaphore::new(WAITING_UNITS_MAX)),
            wait_max,
        }
    }

    /// Names of the flags agreed with the kernel; none before the session has begun.
    pub fn flags(&self) -> &[&'static str] {
        self.agreed.get().map_or(&[], |(_, names)| names)
    }

    /// The flags themselves.
    #[cfg(test)]
    pub(super) fn agreed(&self) -> InitFlags {
        self.agreed.get().map_or(InitFlags::empty(), |(flags, _)| *flags)
    }

    pub(super) fn agree(&self, flags: InitFlags, names: Vec<&'static str>) {
        // A session negotiates once; a second answer could only repeat the first.
        let _ = self.agreed.set((flags, names));
    }

    pub(super) fn is_priming(&self) -> bool {
        self.priming.load(Ordering::Acquire)
    }
}

/// Serves the kernel's requests from a volume. Handed to [`mount_at`](super::mount_at).
pub struct Door<V: Volume> {
    pub(super) volume: Arc<V>,
    pub(super) shared: Arc<Shared>,
    pub(super) runtime: Handle,
}

impl<V: Volume> Door<V> {
    /// A door to `volume`, whose waits run on `runtime`; the runtime must outlive the mount.
    pub fn new(volume: Arc<V>, runtime: Handle, caching: Caching) -> Self {
        Self::waiting_at_most(volume, runtime, caching, REQUEST_WAIT_MAX)
    }

    pub(super) fn waiting_at_most(volume: Arc<V>, runtime: Handle, caching: Caching, wait: Duration) -> Self {
        Self { volume, shared: Arc::new(Shared::new(caching, wait)), runtime }
    }

    /// The same door, for what goes on elsewhere.
    pub(super) fn again(&self) -> Self {
        Self { volume: self.volume.clone(), shared: self.shared.clone(), runtime: self.runtime.clone() }
    }

    /// What the mount may look at while the door is in use.
    pub fn shared(&self) -> Arc<Shared> {
        self.shared.clone()
    }

    /// Asks, and hands the answer to `done`: at once, or from the runtime after what was missing is loaded.
    pub(super) fn serve<T, R>(
        &self,
        operation: &'static str,
        reply: R,
        ask: impl Fn(&V) -> Answer<T> + Send + 'static,
        done: impl FnOnce(R, Result<T, i32>) + Send + 'static,
    ) where
        T: Send + 'static,
        R: Send + 'static,
    {
        self.volume.count(operation);
        match ask(&self.volume) {
            Ok(value) => done(reply, Ok(value)),
            Err(Stop::Errno(errno)) => done(reply, Err(errno)),
            Err(Stop::Load(what)) => match self.admit(0) {
                Some(permit) => self.later(permit, what, ask, move |answer| done(reply, answer)),
                None => done(reply, Err(libc::EIO)),
            },
        }
    }

    /// Loads and asks again on the runtime, then calls `done`.
    pub(super) fn later<T: Send + 'static>(
        &self,
        permit: OwnedSemaphorePermit,
        what: Load,
        ask: impl Fn(&V) -> Answer<T> + Send + 'static,
        done: impl FnOnce(Result<T, i32>) + Send + 'static,
    ) {
        let volume = self.volume.clone();
        let wait_max = self.shared.wait_max;
        self.run(async move {
            let answer = settle(&*volume, what, ask, wait_max).await;
            done(answer);
            drop(permit);
        });
    }

    /// Runs what waits. If the runtime is gone the future is dropped, and with it the reply, which then answers
    /// EIO by itself.
    pub(super) fn run(&self, work: impl Future<Output = ()> + Send + 'static) {
        drop(self.runtime.spawn(work));
    }

    /// Memory for one more waiting request that holds `bytes`; `None` when too many wait.
    pub(super) fn admit(&self, bytes: usize) -> Option<OwnedSemaphorePermit> {
        let units = u32::try_from(1 + bytes / WAITING_UNIT).ok()?;
        let permit = self.shared.waiting.clone().try_acquire_many_owned(units).ok();
        if permit.is_none() {
            tracing::warn!("a request fails: too many others wait for the network or for room in the log");
        }
        permit
    }

    /// When a wait that begins now must end.
    pub(super) fn deadline(&self) -> Instant {
        Instant::now() + self.shared.wait_max
    }
}

/// Loads `what`, asks again, until there is an answer. At most `wait_max` in all; where room in the log is
/// awaited, anew from each time that some was made. Errors are errnos: ETIMEDOUT, ENOSPC for room.
pub(super) async fn settle<V: Volume, T>(
    volume: &V,
    mut what: Load,
    ask: impl Fn(&V) -> Answer<T>,
    wait_max: Duration,
) -> Result<T, i32> {
    let mut deadline = Instant::now() + wait_max;
    for _ in 0..ASKS_MAX {
        let room = what == Load::Room;
        let until = if room { deadline + ROOM_GRACE } else { deadline };
        match timeout_at(until, volume.load(what)).await {
            Err(_) => return Err(if room { libc::ENOSPC } else { libc::ETIMEDOUT }),
            Ok(Err(errno)) => return Err(errno),
            Ok(Ok(())) if room => deadline = Instant::now() + wait_max,
            Ok(Ok(())) => {}
        }
        match ask(volume) {
            Ok(value) => return Ok(value),
            Err(Stop::Errno(errno)) => return Err(errno),
            Err(Stop::Load(next)) => what = next,
        }
        if Instant::now() >= deadline {
            return Err(libc::ETIMEDOUT);
        }
        tokio::task::yield_now().await;
    }
    Err(libc::ETIMEDOUT)
}

/// Who asks.
pub(super) fn caller(request: &Request) -> Caller {
    Caller { uid: request.uid(), gid: request.gid(), pid: request.pid() }
}

/// A name that may be bound: ENAMETOOLONG beyond the limit, which the kernel leaves to us; EPERM for the
/// reserved name.
pub(super) fn name(name: &OsStr) -> Result<Vec<u8>, i32> {
    let bytes = name.as_bytes();
    if bytes.len() > NAME_BYTES_MAX {
        return Err(libc::ENAMETOOLONG);
    }
    if bytes == Name::FENCE {
        return Err(libc::EPERM);
    }
    Ok(bytes.to_vec())
}
