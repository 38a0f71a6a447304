//! Counters, histograms and the wall clock.

use crate::order::Answer;
use metrics::{counter, gauge, histogram};
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use tidefs_proto::Stages;
use tidefs_timeline::Position;

/// Upper bounds of the histograms' buckets, in seconds: from a tenth of a millisecond to a minute.
pub const BUCKETS_SECONDS: [f64; 17] = [
    0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 15.0,
    60.0,
];
/// Time in a stage, by stage.
pub const STAGE: &str = "tidefs_stage_seconds";
/// Time from a write until another mount shows it.
pub const WRITE_TO_VISIBLE: &str = "tidefs_write_to_visible_seconds";

/// Microseconds since 1970; 0 when the clock stands before that.
pub fn unix_us() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_micros() as u64)
}

fn seconds(us: u64) -> f64 {
    us as f64 / 1e6
}

/// Counts an answer and the stages that the mount measured.
pub fn answered(answer: &Answer, stages: Option<Stages>) {
    match answer {
        Answer::Placed(_) => {
            counter!("tidefs_checkpoints_total").increment(1);
            if let Some(stages) = stages {
                histogram!(STAGE, "stage" => "settle").record(seconds(stages.settle_us));
                histogram!(STAGE, "stage" => "seal").record(seconds(stages.seal_us));
            }
        }
        Answer::Refused(reason, _) => {
            counter!("tidefs_refusals_total", "reason" => reason.name()).increment(1);
        }
    }
}

/// How long the upload of a shipment and its pack took, as its sender says.
pub fn uploaded(upload_us: u64) {
    histogram!(STAGE, "stage" => "upload").record(seconds(upload_us));
}

/// The stages of a turn that answered `placed` shipments: place, store, announce.
pub fn turn(placed: usize, stages: [Duration; 3]) {
    counter!("tidefs_turns_total").increment(1);
    counter!("tidefs_turn_shipments_total").increment(placed as u64);
    for (stage, took) in ["place", "store", "announce"].into_iter().zip(stages) {
        histogram!(STAGE, "stage" => stage).record(took.as_secs_f64());
    }
}

/// What a follower measured.
pub fn reported(write_to_visible_us: u64, apply_us: u64) {
    if write_to_visible_us > 0 {
        histogram!(WRITE_TO_VISIBLE).record(seconds(write_to_visible_us));
    }
    if apply_us > 0 {
        histogram!(STAGE, "stage" => "apply").record(seconds(apply_us));
    }
}

/// The head's position of a drive.
pub fn head(drive: &str, position: Position) {
    gauge!("tidefs_head_position", "drive" => drive.to_owned()).set(position.0 as f64);
}

/// How many follow a drive.
pub fn followers(drive: &str, count: usize) {
    gauge!("tidefs_followers", "drive" => drive.to_owned()).set(count as f64);
}

/// A sequencer ended on a failure.
pub fn sequencer_failed() {
    counter!("tidefs_sequencer_failures_total").increment(1);
}
