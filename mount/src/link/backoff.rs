//! Pauses between attempts that grow to a bound, each with a jitter, so that the mounts of a server that comes
//! back do not all ask at one moment.

use rand::{Rng, rngs::SmallRng};
use std::time::Duration;

/// Doubling pauses. It reads no clock and waits for nothing: the caller does.
#[derive(Clone, Debug)]
pub struct Backoff {
    min: Duration,
    max: Duration,
    next: Duration,
    random: SmallRng,
}

impl Backoff {
    /// Pauses from `min` to `max`, jittered by `random`.
    pub fn new(min: Duration, max: Duration, random: SmallRng) -> Self {
        Self { min, max, next: min.min(max), random }
    }

    /// The next pause: between one half and the whole of a step that doubles up to the bound.
    pub fn pause(&mut self) -> Duration {
        let step = self.next;
        self.next = step.saturating_mul(2).min(self.max);
        step.mul_f64(self.random.random_range(0.5..=1.0))
    }

    /// Starts from the first pause again, after progress.
    pub fn reset(&mut self) {
        self.next = self.min.min(self.max);
    }
}
