//! How the command line speaks to a running mount: over a socket in the state folder, never through the mount
//! point, so that it works when the mount does not.

pub mod api;
pub mod client;
pub mod line;
pub mod server;
mod socket;
#[cfg(test)]
mod tests;
pub mod wire;
