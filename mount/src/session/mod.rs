//! The session: what one mount knows and decides, as a synchronous state machine. Time and log addresses are
//! arguments, I/O happens elsewhere, so a simulation can run many of them on one thread.
//!
//! A change goes three steps: `plan_*` checks it against the view and says what must be logged; the owner appends
//! that to the log; [`Session::commit`] takes it into the view. If the append fails nothing has changed.
//!
//! | question | module |
//! |---|---|
//! | what does this mount show | `view`, read by `read` |
//! | what is not yet cut | `batch`, with `before` and `op` |
//! | when is it cut, and where | `settle`, `cut` |
//! | what was cut and is not acknowledged | `layers` |
//! | what came from the server | `arrive`, `loading` |
//! | what must the kernel forget | `changes` |

pub mod arrive;
pub mod batch;
pub mod before;
pub mod changes;
pub mod cut;
pub mod difference;
pub mod kernel;
pub mod layers;
pub mod listing;
pub mod loading;
pub mod op;
pub mod plan;
pub mod read;
pub mod record;
pub mod recover;
pub mod settle;
#[cfg(test)]
mod tests;
pub mod view;

use crate::volume::{Load, Stop};
use batch::Batch;
use kernel::Kernel;
use layers::Layers;
use listing::Listings;
use loading::Loading;
use op::Maps;
use settle::{SettleConfig, Settler, Tick};
use std::{collections::BTreeMap, sync::Arc};
use tidefs_timeline::{
    CheckpointNo, Content, ExtentMap, FileMap, Hash, Node, NodeId, NotLoaded, Position, SessionNo, Timestamp,
    Version,
};
use view::View;

pub use batch::Planned;
pub use changes::Told;
pub use cut::SealJob;

/// Who this session is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identity {
    /// Number in the drive.
    pub session: SessionNo,
    /// Name in the drive.
    pub name: String,
}

/// One moment, as every clock that matters shows it.
#[derive(Clone, Copy, Debug, Default)]
pub struct Moment {
    /// Wall clock: what files are stamped with.
    pub wall: Timestamp,
    /// Time since boot: what ages are measured with.
    pub tick: Tick,
}

/// One mount of one drive.
pub struct Session {
    identity: Identity,
    view: View,
    batch: Batch,
    layers: Layers,
    kernel: Kernel,
    settler: Settler,
    loading: Loading,
    listings: Listings,
    maps: StoredMaps,
    /// The layers could not be placed again for want of this directory; they are shown as they were.
    unplaced: Option<NodeId>,
    /// Counter of the next node id.
    next_counter: u32,
}

/// Extent lists that were loaded, by the hash of their root.
#[derive(Debug, Default)]
pub struct StoredMaps {
    lists: BTreeMap<Hash, Arc<ExtentMap>>,
    pieces: usize,
}

/// Pieces of all loaded extent lists together (about 64 bytes each).
const STORED_PIECES_MAX: usize = 1 << 20;

impl StoredMaps {
    /// Takes in a list.
    pub fn put(&mut self, root: Hash, list: Arc<ExtentMap>) {
        if self.pieces + list.len() > STORED_PIECES_MAX {
            self.lists.clear();
            self.pieces = 0;
        }
        self.pieces += list.len();
        if let Some(old) = self.lists.insert(root, list) {
            self.pieces -= old.len();
        }
    }
}

impl Maps for StoredMaps {
    fn extents(&self, root: &Hash) -> Option<Arc<ExtentMap>> {
        self.lists.get(root).cloned()
    }
}

impl Session {
    /// A session that has applied `position`, of which it knows the root; nothing unsent.
    pub fn new(identity: Identity, config: SettleConfig, at: (Position, Node)) -> Self {
        let mut view = View { position: at.0, ..View::default() };
        view.applied.put_node(NodeId::ROOT, Arc::new(at.1));
        Self {
            identity,
            view,
            batch: Batch::default(),
            layers: Layers::default(),
            kernel: Kernel::default(),
            settler: Settler::new(config),
            loading: Loading::default(),
            listings: Listings::default(),
            maps: StoredMaps::default(),
            unplaced: None,
            next_counter: 1,
        }
    }

    /// Who it is.
    pub fn identity(&self) -> &Identity {
        &self.identity
    }

    /// The position applied.
    pub fn position(&self) -> Position {
        self.view.position
    }

    /// Sealed checkpoints without an answer.
    pub fn layers(&self) -> &Layers {
        &self.layers
    }

    /// Changes in the open batch.
    pub fn open_changes(&self) -> usize {
        self.batch.len()
    }

    /// When the next cut is due, if nothing else happens.
    pub fn due(&self) -> Option<Tick> {
        self.settler.due()
    }

    /// The number that the open batch will ship under.
    pub fn open_number(&self) -> CheckpointNo {
        self.layers.last_number().next()
    }

    fn version(&self) -> Version {
        Version { session: self.identity.session, number: self.open_number() }
    }

    /// The counter that the next node gets.
    pub fn next_counter(&self) -> u32 {
        self.next_counter
    }

    /// The view, for checkers outside.
    pub fn view(&self) -> &View {
        &self.view
    }

    /// Takes in an extent list that was loaded.
    pub fn put_extents(&mut self, root: Hash, list: ExtentMap) {
        self.maps.put(root, Arc::new(list));
    }

    /// Whether the extent list of a file's content is at hand; the list itself if it is stored as blocks.
    fn file_map(&self, id: NodeId, node: &Node) -> Result<Option<Arc<ExtentMap>>, Stop> {
        match &node.content.value {
            Content::File(file) => match &file.map {
                FileMap::Extents(_) => Ok(None),
                FileMap::Stored(root) => {
                    self.maps.extents(root).map(Some).ok_or(Stop::Load(Load::Extents(id, *root)))
                }
            },
            _ => Err(Stop::Errno(libc::EINVAL)),
        }
    }
}

impl From<NotLoaded> for Stop {
    fn from(missing: NotLoaded) -> Self {
        Stop::Load(Load::Directory(missing.0))
    }
}
