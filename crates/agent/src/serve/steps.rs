//! The duration of each step of a change.

use host::Host;
use slurm::agent::{Phase, StepTime};
use tokio::time::Instant;

/// The steps that one change has reached.
#[derive(Debug, Clone)]
pub(super) struct Steps {
    host: Host,
    last: Instant,
    reached: Vec<StepTime>,
}

impl Steps {
    pub(super) fn begin(host: &Host) -> Self {
        Self {
            host: host.clone(),
            last: host.instant(),
            reached: Vec::new(),
        }
    }

    pub(super) fn reach(&mut self, step: Phase) {
        let now = self.host.instant();
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
