//! What is asked of the kernel when a session begins.

use super::{attributes::Caching, door::Shared};
use fuser::{InitFlags, KernelConfig};

/// Largest write request, in bytes. fuser and the kernel would allow more only with a raised sysctl.
const WRITE_BYTES_MAX: u32 = 1 << 20;
/// Requests that the kernel keeps under way by itself, such as reads ahead; each may wait on the network.
const BACKGROUND_MAX: u16 = 64;

/// Asked for wherever the kernel offers it.
pub(super) const WANTED: InitFlags = InitFlags::FUSE_ASYNC_READ
    .union(InitFlags::FUSE_BIG_WRITES)
    .union(InitFlags::FUSE_MAX_PAGES)
    .union(InitFlags::FUSE_PARALLEL_DIROPS)
    .union(InitFlags::FUSE_DO_READDIRPLUS)
    .union(InitFlags::FUSE_NO_OPEN_SUPPORT)
    .union(InitFlags::FUSE_NO_OPENDIR_SUPPORT)
    .union(InitFlags::FUSE_CACHE_SYMLINKS)
    .union(InitFlags::FUSE_HANDLE_KILLPRIV_V2);

/// Never asked for. Writeback makes the kernel the owner of size and times, so that a remote change is not
/// seen; passthrough hides writes from the log; with `open` unanswered, ATOMIC_O_TRUNC loses the truncation;
/// without DONT_MASK the kernel applies the umask, once; the adaptive readdirplus asks for attributes one by
/// one after all; POSIX_ACL promises an inheritance and an evaluation of lists that no volume does.
#[cfg(test)]
pub(super) const REFUSED: InitFlags = InitFlags::FUSE_WRITEBACK_CACHE
    .union(InitFlags::FUSE_PASSTHROUGH)
    .union(InitFlags::FUSE_ATOMIC_O_TRUNC)
    .union(InitFlags::FUSE_DONT_MASK)
    .union(InitFlags::FUSE_READDIRPLUS_AUTO)
    .union(InitFlags::FUSE_EXPLICIT_INVAL_DATA)
    .union(InitFlags::FUSE_POSIX_ACL)
    .union(InitFlags::FUSE_POSIX_LOCKS)
    .union(InitFlags::FUSE_FLOCK_LOCKS);

/// What is asked of a kernel that offers `offered`. Where invalidations are not trusted, the kernel must throw
/// pages away by itself when it sees another mtime.
pub(super) fn wanted(offered: InitFlags, caching: &Caching) -> InitFlags {
    let own = if caching.trusted() { InitFlags::empty() } else { InitFlags::FUSE_AUTO_INVAL_DATA };
    WANTED.union(own) & offered
}

/// Negotiates, and remembers for status what was agreed.
pub(super) fn negotiate(shared: &Shared, config: &mut KernelConfig) {
    let flags = wanted(config.capabilities(), &shared.caching);
    // Each is offered, so none can be refused; the same for the sizes, which are below fuser's own limits.
    let refused = config.add_capabilities(flags).err();
    let write = config.set_max_write(WRITE_BYTES_MAX).err();
    let background = config.set_max_background(BACKGROUND_MAX).err();
    if refused.is_some() || write.is_some() || background.is_some() {
        tracing::warn!(?refused, ?write, ?background, "the FUSE library refused a setting");
    }
    let names = flags.iter_names().map(|(name, _)| name).collect();
    tracing::debug!(flags = ?names, abi = %config.kernel_abi(), "FUSE session begins");
    shared.agree(flags, names);
}
