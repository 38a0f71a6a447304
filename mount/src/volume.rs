//! What the kernel's door asks of the mount behind it, and what the mount asks of the door. The door decodes,
//! calls and replies; it knows nothing of logs, checkpoints or servers.

use std::{future::Future, pin::Pin, sync::Arc, time::Duration};
use tidefs_timeline::{Hash, Kind, Name, Node, NodeId, Timestamp};

/// Who asks.
#[derive(Clone, Copy, Debug, Default)]
pub struct Caller {
    /// User.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Thread, 0 when the kernel itself asks.
    pub pid: u32,
}

/// Why a question is not answered now.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Stop {
    /// Never: this errno is the answer.
    Errno(i32),
    /// This must be loaded first (see [`Volume::load`]); then ask again.
    Load(Load),
}

/// Something that has to be at hand before a question can be answered.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Load {
    /// The entries of a directory.
    Directory(NodeId),
    /// The extent list of a file's content, stored in the block of this hash.
    Extents(NodeId, Hash),
    /// Room in the log; waits until uploads free some, or fails.
    Room,
}

/// An answer, an errno, or something to wait for first.
pub type Answer<T> = Result<T, Stop>;

/// A node as the kernel is told of it.
#[derive(Clone, Debug)]
pub struct Found {
    /// Its id, which is also its `st_ino`.
    pub id: NodeId,
    /// All its registers.
    pub node: Arc<Node>,
    /// Time of the last access as set on this mount, if it was set lately; atime is not kept otherwise.
    pub atime: Option<Timestamp>,
}

/// One line of a listing.
#[derive(Clone, Debug)]
pub struct Line {
    /// Cookie to go on behind this line.
    pub cookie: u64,
    /// The name.
    pub name: Vec<u8>,
    /// The node (its directory's or own id for `.` and `..`).
    pub found: Found,
}

/// What `setattr` changes; fields left out stay as they are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SetAttr {
    /// Permission bits.
    pub mode: Option<u32>,
    /// User.
    pub uid: Option<u32>,
    /// Group.
    pub gid: Option<u32>,
    /// New size.
    pub size: Option<u64>,
    /// mtime: `Some(None)` is now.
    pub mtime: Option<Option<Timestamp>>,
    /// atime: likewise; remembered while the kernel holds the node.
    pub atime: Option<Option<Timestamp>>,
    /// Whether set-id bits must be cleared (FUSE's KILL_SUIDGID).
    pub kill_set_id: bool,
}

/// What is made: mode (type left out), and for a symlink its target.
#[derive(Clone, Debug)]
pub struct Make {
    /// What kind of node.
    pub kind: Kind,
    /// Permission bits, umask already applied.
    pub mode: u32,
    /// A symlink's target.
    pub target: Option<Vec<u8>>,
}

/// A write as it came.
#[derive(Clone, Copy, Debug)]
pub struct WriteAt<'a> {
    /// Offset asked for.
    pub offset: u64,
    /// The bytes, at most 1 MiB.
    pub data: &'a [u8],
    /// Whether the descriptor has O_APPEND: then the mount places it at the end that it knows.
    pub append: bool,
    /// Whether it comes from the page cache (a shared mapping), not from a write call.
    pub from_cache: bool,
    /// Whether set-id bits must be cleared.
    pub kill_set_id: bool,
}

/// How a name is renamed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RenameMode {
    /// Whatever is there is replaced.
    Replace,
    /// RENAME_NOREPLACE.
    NoReplace,
    /// RENAME_EXCHANGE.
    Exchange,
}

/// How an extended attribute is set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AttrMode {
    /// Made or replaced.
    Any,
    /// XATTR_CREATE.
    Create,
    /// XATTR_REPLACE.
    Replace,
}

/// What `statfs` answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Space {
    /// Bytes in all.
    pub total_bytes: u64,
    /// Bytes free.
    pub free_bytes: u64,
    /// Nodes in all.
    pub total_nodes: u64,
    /// Nodes free.
    pub free_nodes: u64,
}

/// A future that any thread may run.
pub type Waiting<T> = Pin<Box<dyn Future<Output = T> + Send>>;

/// One longest wait of a request on the network or on room, after which it fails with an errno.
pub const REQUEST_WAIT_MAX: Duration = Duration::from_secs(10);

/// What stands behind the door. Calls return at once (memory, one append to the local log); only what a future
/// is returned for may take longer, and each future ends within [`REQUEST_WAIT_MAX`]. `lookup`, `make`, `link`
/// and each listed line of `list_plus` count one lookup of the node, which `forget` gives back.
pub trait Volume: Send + Sync + 'static {
    /// Finds a name; `None` if there is none (the kernel may remember that).
    fn lookup(&self, parent: NodeId, name: &[u8]) -> Answer<Option<Found>>;
    /// A node by id.
    fn getattr(&self, id: NodeId) -> Answer<Found>;
    /// The kernel gives back `count` lookups.
    fn forget(&self, id: NodeId, count: u64);
    /// Changes attributes.
    fn setattr(&self, caller: Caller, id: NodeId, set: SetAttr) -> Answer<Found>;
    /// A symlink's target.
    fn readlink(&self, id: NodeId) -> Answer<Vec<u8>>;
    /// Makes a node.
    fn make(&self, caller: Caller, at: (NodeId, &[u8]), make: Make) -> Answer<Found>;
    /// Removes a name that is not a directory's.
    fn unlink(&self, caller: Caller, parent: NodeId, name: &[u8]) -> Answer<()>;
    /// Removes an empty directory.
    fn rmdir(&self, caller: Caller, parent: NodeId, name: &[u8]) -> Answer<()>;
    /// Renames.
    fn rename(
        &self,
        caller: Caller,
        from: (NodeId, &[u8]),
        to: (NodeId, &[u8]),
        mode: RenameMode,
    ) -> Answer<()>;
    /// Adds a name.
    fn link(&self, caller: Caller, id: NodeId, at: (NodeId, &[u8])) -> Answer<Found>;
    /// Writes; all of it or an errno.
    fn write(&self, caller: Caller, id: NodeId, write: WriteAt<'_>) -> Answer<()>;
    /// Reads up to `len` bytes; short only at the end. The future holds no lock while it waits.
    fn read(&self, id: NodeId, offset: u64, len: u32) -> Answer<Reading>;
    /// Makes durable at the mount's level what was written to the node (or to anything, if none is given).
    fn fsync(&self, caller: Caller, id: Option<NodeId>) -> Waiting<Result<(), i32>>;
    /// Lists from behind `cookie` (0 = from the start) at most `limit` lines, `.` and `..` first; cookies stay
    /// valid while the directory changes. `plus` counts a lookup of each line but `.` and `..`.
    fn list(&self, dir: NodeId, cookie: u64, limit: usize, plus: bool) -> Answer<Vec<Line>>;
    /// An attribute's value; ENODATA if there is none.
    fn getxattr(&self, id: NodeId, name: &[u8]) -> Answer<Vec<u8>>;
    /// Names of all attributes, each followed by a zero byte.
    fn listxattr(&self, id: NodeId) -> Answer<Vec<u8>>;
    /// Sets an attribute.
    fn setxattr(&self, caller: Caller, id: NodeId, attr: (&[u8], &[u8]), mode: AttrMode) -> Answer<()>;
    /// Removes an attribute; ENODATA if there is none.
    fn removexattr(&self, caller: Caller, id: NodeId, name: &[u8]) -> Answer<()>;
    /// Room and use.
    fn statfs(&self) -> Answer<Space>;
    /// Fetches what an answer waits for; an errno when it cannot be had in time.
    fn load(&self, what: Load) -> Waiting<Result<(), i32>>;
    /// Counts a request of the kernel by its operation's name, for status.
    fn count(&self, operation: &'static str);
}

/// Bytes at once, or once their blocks are here.
pub enum Reading {
    /// All of them.
    Now(Vec<u8>),
    /// Once fetched; an errno when they cannot be had in time.
    Later(Waiting<Result<Vec<u8>, i32>>),
}

/// What the kernel must be told after the view has changed, in this order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Tell {
    /// A name is bound to another node than before, or to none: `inval_entry`.
    Entry {
        /// The directory.
        parent: NodeId,
        /// The name.
        name: Name,
    },
    /// A directory's listing changed: `inval_inode` of the directory, after all its entries.
    Listing(NodeId),
    /// A node's attributes or content changed: the fence in each directory that names it, then `inval_inode`.
    Node {
        /// The node.
        id: NodeId,
        /// Loaded directories that have a name of it.
        parents: Vec<NodeId>,
        /// Whether the content changed too, or attributes only.
        content: bool,
    },
}

/// How the mount tells the kernel.
pub trait Teller: Send + Sync + 'static {
    /// Tells all of it; the future ends once every notification has returned (or the mount is gone). Called with
    /// no lock held.
    fn tell(&self, what: Vec<Tell>) -> Waiting<()>;
}
