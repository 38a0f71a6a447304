//! Tests of the server as a whole: its sequencer on stores that fail, and its services over loopback.

mod failures;
mod loopback;
