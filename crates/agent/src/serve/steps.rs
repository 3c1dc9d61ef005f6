//! What took how long.

use std::time::Instant;

use slurm::agent::{Phase, StepTime};

/// The steps of one change, as they are reached.
#[derive(Debug, Clone)]
pub(super) struct Steps {
    last: Instant,
    reached: Vec<StepTime>,
}

impl Steps {
    pub(super) fn begin() -> Self {
        Self {
            last: Instant::now(),
            reached: Vec::new(),
        }
    }

    pub(super) fn reach(&mut self, step: Phase) {
        let now = Instant::now();
        let took = now.duration_since(self.last);
        self.last = now;
        self.reached.push(StepTime {
            step,
            milliseconds: u64::try_from(took.as_millis()).unwrap_or(u64::MAX),
        });
    }

    pub(super) fn reached(&self) -> &[StepTime] {
        &self.reached
    }
}
