//! What really happened, for oracles. Nothing here is read by the model.

use std::time::Duration;

use super::ids::{ControllerId, HostId, VolumeId};
use super::request::{Failure, Request};
use super::state::{JobKey, JobPhase, Submission};

#[derive(Debug, Default)]
pub struct Ledger {
    /// By [`JobKey`].
    pub jobs: Vec<JobHistory>,
    pub orders: Vec<Order>,
    pub writes: Vec<Write>,
    pub starts: Vec<Start>,
    /// When a slurmctld that was stopped went on.
    pub thaws: Vec<(ControllerId, Duration)>,
}

/// One submission.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JobHistory {
    pub key: JobKey,
    pub id: u32,
    pub spec: Submission,
    pub controller: ControllerId,
    pub acknowledged: Duration,
    /// When a state with this job was first saved.
    pub durable: Option<Duration>,
    /// When a killed slurmctld forgot it altogether.
    pub forgotten: Option<Duration>,
    /// Launches that a killed slurmctld forgot, though it kept the job.
    pub forgotten_launches: Vec<u64>,
    /// Launches whose recorded end a killed slurmctld forgot.
    pub forgotten_ends: Vec<u64>,
    /// Each start that slurmctld decided on.
    pub launches: Vec<Launch>,
    pub runs: Vec<Run>,
    /// Its processes on further nodes.
    pub parts: Vec<Run>,
    /// Each end that slurmctld recorded, with the time when it was saved.
    pub ends: Vec<RecordedEnd>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Launch {
    pub launch: u64,
    pub at: Duration,
    pub nodes: Vec<String>,
}

/// The script of a job as a process, on its first node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Run {
    pub launch: u64,
    pub host: HostId,
    pub node: String,
    pub began: Duration,
    pub ended: Option<(Duration, End)>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum End {
    /// The script returned.
    Exited(i32),
    /// slurmctld ordered it.
    Killed,
    /// The pod or the machine went away.
    HostLost,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RecordedEnd {
    pub at: Duration,
    pub phase: JobPhase,
    pub launch: u64,
    /// Whether the job is pending again.
    pub requeued: bool,
    pub durable: Option<Duration>,
}

/// A request that slurmctld carried out or refused.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Order {
    pub at: Duration,
    pub sender: String,
    pub controller: ControllerId,
    pub request: Request,
    pub failure: Option<Failure>,
}

/// A write to a state volume.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Write {
    pub at: Duration,
    pub volume: VolumeId,
    pub writer: ControllerId,
}

/// A slurmctld that has read a state volume.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Start {
    pub at: Duration,
    pub volume: VolumeId,
    pub controller: ControllerId,
}

impl Ledger {
    pub fn job(&self, key: JobKey) -> &JobHistory {
        &self.jobs[usize::try_from(key.0).unwrap()]
    }

    pub(super) fn job_mut(&mut self, key: JobKey) -> &mut JobHistory {
        &mut self.jobs[usize::try_from(key.0).unwrap()]
    }

    /// Returns the jobs whose script runs on a host.
    pub fn running_on(&self, host: HostId) -> impl Iterator<Item = &JobHistory> {
        let runs = move |job: &&JobHistory| job.runs.iter().any(|run| run.host == host && run.ended.is_none());
        self.jobs.iter().filter(runs)
    }
}
