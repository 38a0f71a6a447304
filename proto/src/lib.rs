//! The language that a tidefs mount and a tidefs server speak.
//!
//! [`wire`] holds what the schema generates; it stays inside the two ends' service and link modules. Everything
//! else works with the model's types, which `model`, `shipment` and `placed` turn messages into: the one door
//! where every field of a message is bounded and checked.

#[allow(missing_docs, clippy::all, clippy::unwrap_used, clippy::expect_used, clippy::too_many_lines)]
pub mod wire {
    tonic::include_proto!("tidefs.v1");
}

pub mod bad;
pub mod limits;
pub mod manifest;
pub mod model;
pub mod pack;
pub mod placed;
pub mod refusal;
pub mod shipment;

pub use bad::{Bad, BadMessage};
pub use placed::PlacedLine;
pub use shipment::{Shipment, Stages};
