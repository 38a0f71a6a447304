//! The session against a server in miniature and a log that is a list: no disk, no clock, no thread.

mod arrivals;
mod cuts;
mod desk;
mod random;
mod recovery;
mod settling;
