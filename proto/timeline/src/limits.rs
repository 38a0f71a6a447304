//! Every bound of the model in one place, their relations asserted.

/// Longest name in a directory, in bytes (`NAME_MAX` of Linux).
pub const NAME_BYTES_MAX: usize = 255;
/// Longest name of an extended attribute, in bytes (`XATTR_NAME_MAX` of Linux).
pub const ATTR_NAME_BYTES_MAX: usize = 255;
/// All extended attributes of one node together, names and values, in bytes. A node is one value of the
/// index, which holds values under 32 KiB.
pub const ATTRS_BYTES_MAX: usize = 16 << 10;
/// Longest symlink target, in bytes (`PATH_MAX` of Linux less the terminating zero).
pub const SYMLINK_BYTES_MAX: usize = 4095;
/// Largest file, in bytes (`MAX_LFS_FILESIZE` of 64-bit Linux).
pub const FILE_BYTES_MAX: u64 = i64::MAX as u64;
/// Largest block of content, in bytes.
pub const BLOCK_BYTES_MAX: u32 = 1 << 20;
/// Content is cut at multiples of this many bytes of the file (the chunker named `fixed-64k`).
pub const CHUNK_BYTES: u64 = 64 << 10;
/// Extents that a node's record lists itself; a longer list is stored as blocks.
pub const INLINE_EXTENTS_MAX: usize = 128;
/// A union of directories above this many entries keeps the two apart (rule 6).
pub const UNION_ENTRIES_MAX: usize = 10_000;
/// Names of one node.
pub const LINKS_MAX: u32 = 65_000;
/// Directories between a node and the root. Linux's `PATH_MAX` allows 2,048 of one letter.
pub const DEPTH_MAX: usize = 4096;
/// Changed names and nodes that one checkpoint may carry; a batch that grows past half of it is cut.
pub const CHECKPOINT_CHANGES_MAX: usize = 200_000;
/// Bytes of one encoded checkpoint.
pub const CHECKPOINT_BYTES_MAX: usize = 64 << 20;
/// Hops that are followed from a node to its heir or its alias.
pub const CHAIN_MAX: usize = 10_000;

const _: () = assert!(CHUNK_BYTES <= BLOCK_BYTES_MAX as u64);
const _: () = assert!(INLINE_EXTENTS_MAX * 64 + ATTRS_BYTES_MAX + SYMLINK_BYTES_MAX < 32 << 10);
