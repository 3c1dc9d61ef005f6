//! slurmdbd: what slurmctld reported of starts and ends, a little late.

use std::time::Duration;

use super::state::{Job, JobPhase};

/// One start of a job. A requeued job has a new record, with a new time of submission.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Record {
    pub id: u32,
    pub phase: JobPhase,
    pub exit_code: i32,
    pub submitted: Duration,
    pub started: Option<Duration>,
    pub ended: Option<Duration>,
}

#[derive(Debug)]
pub struct Slurmdbd {
    pub running: bool,
    pub records: Vec<Record>,
}

impl Default for Slurmdbd {
    fn default() -> Self {
        Self {
            running: true,
            records: Vec::new(),
        }
    }
}

impl Record {
    pub(super) fn of(job: &Job) -> Self {
        Self {
            id: job.id,
            phase: job.phase,
            exit_code: job.exit_code,
            submitted: job.submitted,
            started: job.started,
            ended: job.ended,
        }
    }
}

impl Slurmdbd {
    pub(super) fn receive(&mut self, record: Record) {
        let same = |known: &&mut Record| known.id == record.id && known.submitted == record.submitted;
        match self.records.iter_mut().find(same) {
            Some(known) => *known = record,
            None => self.records.push(record),
        }
    }
}
