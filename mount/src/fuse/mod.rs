//! The kernel's door: a FUSE session over a [`Volume`](crate::volume::Volume), and the way back, by which the
//! kernel is told what it must forget.
//!
//! The kernel may remember almost everything for years, because the mount says what changed. That is only true
//! while nothing is forgotten by accident, so three rules hold here. A request is never answered from the
//! session's threads after a wait: what has to wait moves to the tokio runtime, within a deadline. A
//! notification is never sent from a thread that serves requests, nor with a lock held. And the flags under
//! which the kernel would keep changes to itself (writeback, passthrough, truncation inside `open`) are never
//! asked for.

mod adapter;
mod attributes;
mod content;
mod door;
mod init;
mod listing;
mod memory;
pub mod mountinfo;
pub mod mounting;
mod prime;
mod replies;
pub mod selftest;
mod teller;
#[cfg(test)]
mod tests;

pub use attributes::{Caching, TTL_LONG, TTL_SHORT};
pub use door::{Door, Shared};
pub use mounting::{MountError, MountOptions, Mounted, UnmountError, mount_at, unmount};
pub use teller::KernelTeller;

/// Makes every panic of this process log and abort it. To be called once, before the first mount.
///
/// A panic in a handler leaves behind a view of which nobody knows which half was changed, and catching it
/// around each request would go on serving from that view. Ending the process is the safe answer: what was
/// written is in the log, the kernel answers ENOTCONN at once instead of waiting, and the next mount recovers.
pub fn abort_on_panic() {
    let before = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |info| {
        before(info);
        tracing::error!(panic = %info, "aborting: after a panic the view cannot be trusted; mount again");
        std::process::abort();
    }));
}
