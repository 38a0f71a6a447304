//! The pure rules of a tidefs drive: what a node, a register and a checkpoint are, and how a checkpoint is
//! placed on the timeline.
//!
//! Nothing here waits, reads a clock, draws a random number or touches a disk; maps are ordered, so that equal
//! inputs give equal results. The mount and the server run this same code, which is why a mount can predict
//! what the server will answer.

pub mod checkpoint;
pub mod content;
pub mod ids;
pub mod limits;
pub mod name;
pub mod node;
pub mod overlay;
pub mod place;
pub mod tree;

pub use checkpoint::{Changed, Checkpoint, DirInfo, EntryChange, LostNode, NodeChange, Spot};
pub use content::{Content, ExtentMap, FileContent, FileMap, Piece, Source};
pub use ids::{CheckpointNo, Hash, NodeId, Position, SessionNo, Version};
pub use name::{AttrName, Name, NameError};
pub use node::{Kind, Node, Owner, Register, Times, Timestamp};
pub use overlay::{Overlay, Work};
pub use place::{Note, Overlap, OverlapRegister, Placed, Reason, place};
pub use tree::{Entry, Head, NotLoaded, Tree};
