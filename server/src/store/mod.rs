//! What the server keeps, as three bytes-level traits and the folder that they share.
//!
//! The *journal* is the truth: a dense list of entries, each made exactly once. *Blocks* holds packs, each put
//! once and named by its BLAKE3. The *index* is a rebuildable copy of what the journal says, sorted by key. None
//! of them knows what the bytes mean, and nothing outside the traits may assume one process or one disk: a later
//! journal lives on object storage, where "create exactly once" is a conditional put that fences a second server.
//!
//! Each trait has an implementation on the local disk and a twin in memory which can be told to fail
//! ([`faults::Faults`]), and one conformance suite runs on both.

pub mod blocks;
pub mod disk;
pub mod faults;
pub mod folder;
pub mod index;
pub mod journal;

pub use blocks::{Blocks, BlocksError, PackId, PackUpload};
pub use disk::DiskError;
pub use faults::{Fault, Faults, Op};
pub use folder::{DataFolder, DriveFolder, DriveRecord, FolderError};
pub use index::{Batch, Index, IndexError};
pub use journal::{Bounds, Journal, JournalError};
