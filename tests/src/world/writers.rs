//! Many writers at once, each recording the calls that completed, outside the drive.

use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, anyhow, ensure};
use rand::SeedableRng as _;
use rand::rngs::SmallRng;

use super::model::{Call, Model};

/// One writer's directory and what it must hold.
#[derive(Clone, Debug)]
pub struct Desk {
    /// Name of its directory below the top.
    pub name: String,
    /// All completed calls, applied.
    pub model: Model,
    /// The call that got no answer.
    pub in_flight: Option<Call>,
}

/// Running writers.
pub struct Writers {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<Result<Desk>>>,
}

#[derive(Default)]
struct Shared {
    stop: AtomicBool,
    done: Mutex<u64>,
    more: Condvar,
}

impl Desk {
    /// Makes `count` empty directories below `top`.
    ///
    /// # Errors
    /// Those of the file system.
    pub fn set_up(top: &Path, count: usize) -> Result<Vec<Self>> {
        (0..count)
            .map(|number| {
                let name = format!("w{number}");
                std::fs::create_dir(top.join(&name)).with_context(|| format!("mkdir {name}"))?;
                Ok(Self { name, model: Model::default(), in_flight: None })
            })
            .collect()
    }

    /// Checks the directory below `top` and goes on from what is there.
    ///
    /// # Errors
    /// A completed call is missing, or something is there that no call made.
    pub fn check(&mut self, top: &Path) -> Result<()> {
        self.model = self.model.check(&top.join(&self.name), self.in_flight.as_ref())?;
        self.in_flight = None;
        Ok(())
    }
}

impl Writers {
    /// Starts one thread per desk, each with random calls from `seed`.
    #[must_use]
    pub fn start(top: &Path, desks: Vec<Desk>, seed: u64) -> Self {
        let shared = Arc::new(Shared::default());
        let threads = (0_u64..).zip(desks).map(|(number, desk)| {
            let dir = top.join(&desk.name);
            let (shared, random) = (Arc::clone(&shared), SmallRng::seed_from_u64(seed ^ (number << 32)));
            std::thread::spawn(move || write(&shared, desk, &dir, random))
        });
        let threads = threads.collect();
        Self { shared, threads }
    }

    /// Waits until `count` calls completed in all.
    ///
    /// # Errors
    /// They do not within `limit`.
    pub fn wait_for(&self, count: u64, limit: Duration) -> Result<()> {
        let deadline = Instant::now() + limit;
        let mut done = self.shared.done.lock().unwrap_or_else(PoisonError::into_inner);
        while *done < count {
            let left = deadline.saturating_duration_since(Instant::now());
            ensure!(!left.is_zero(), "only {} of {count} calls completed in {limit:?}", *done);
            done = self.shared.more.wait_timeout(done, left).unwrap_or_else(PoisonError::into_inner).0;
        }
        Ok(())
    }

    /// Tells the writers to stop, and returns their records.
    ///
    /// # Errors
    /// A call failed otherwise than by the end of the mount's process.
    pub fn join(self) -> Result<Vec<Desk>> {
        self.shared.stop.store(true, Ordering::SeqCst);
        let results = self.threads.into_iter().map(JoinHandle::join);
        results.map(|result| result.map_err(|_| anyhow!("a writer panicked"))?).collect()
    }
}

fn write(shared: &Shared, mut desk: Desk, dir: &Path, mut random: SmallRng) -> Result<Desk> {
    while !shared.stop.load(Ordering::SeqCst) {
        let call = desk.model.propose(&mut random);
        match call.perform(dir) {
            Ok(()) => {}
            Err(error) if is_dead_mount(&error) => {
                desk.in_flight = Some(call);
                return Ok(desk);
            }
            Err(error) => return Err(error).with_context(|| format!("{} {call:?}", dir.display())),
        }
        desk.model.apply(&call)?;
        *shared.done.lock().unwrap_or_else(PoisonError::into_inner) += 1;
        shared.more.notify_all();
    }
    Ok(desk)
}

/// What the kernel answers once the mount's process is gone.
fn is_dead_mount(error: &std::io::Error) -> bool {
    // A write that the end of the mount cuts short before its first byte returns 0.
    error.kind() == std::io::ErrorKind::WriteZero
        || matches!(error.raw_os_error(), Some(libc::ENOTCONN | libc::ECONNABORTED))
}
