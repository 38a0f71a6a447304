//! Every bound of the protocol in one place, their relations asserted.

/// The version of the protocol that both ends must speak.
pub const PROTOCOL: u32 = 1;
/// Largest gRPC message that either end takes, in bytes.
pub const MESSAGE_BYTES_MAX: usize = 4 << 20;
/// Largest run of bytes that is put into one message, in bytes; longer values are sent in parts.
pub const PART_BYTES: usize = 512 << 10;
/// Largest pack, in bytes.
pub const PACK_BYTES_MAX: u64 = 1 << 30;
/// Largest encoded effects of one checkpoint, in bytes.
pub const PLACED_BYTES_MAX: usize = 128 << 20;
/// Checkpoints of one session that are under way and not answered.
pub const INFLIGHT_MAX: usize = 4;
/// Directories asked for in one request.
pub const FETCH_DIRS_MAX: usize = 256;
/// Entries that a server adds unasked to a directory fetch.
pub const PREFETCH_ENTRIES_MAX: u32 = 4096;
/// Blocks asked for in one request.
pub const FETCH_BLOCKS_MAX: usize = 64;
/// Longest session name, in bytes.
pub const SESSION_NAME_BYTES_MAX: usize = 64;
/// Longest drive name, in bytes.
pub const DRIVE_NAME_BYTES_MAX: usize = 64;
/// Leaves of one stored extent list.
pub const LEAVES_MAX: usize = 32 << 10;

const _: () = assert!(PART_BYTES * 2 < MESSAGE_BYTES_MAX);
const _: () = assert!(tidefs_timeline::limits::BLOCK_BYTES_MAX as usize * 2 < MESSAGE_BYTES_MAX);
const _: () = assert!(tidefs_timeline::limits::CHECKPOINT_BYTES_MAX <= PLACED_BYTES_MAX);
const _: () = assert!(LEAVES_MAX * 34 < 2 * tidefs_timeline::limits::BLOCK_BYTES_MAX as usize);
