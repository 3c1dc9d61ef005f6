//! A worker: slurmd, and the processes of jobs, which are the truth about them. They outlive slurmd, not the pod.

use std::time::Duration;

use super::controller::{Registration, Requester, ToNode};
use super::ids::ControllerId;
use super::state::JobKey;

#[derive(Debug, Clone)]
pub struct HostSpec {
    /// The node name that slurmd registers (`slurmd -Z -N`).
    pub name: String,
    pub address: String,
    pub cpus: u32,
    pub features: Vec<String>,
    /// The machine's, or what `SLURMD_BOOT_TIME` says.
    pub boot_time: Duration,
}

#[derive(Debug)]
pub struct Host {
    pub spec: HostSpec,
    /// When slurmd started; `None` while it does not run.
    pub slurmd: Option<Duration>,
    pub frozen: Option<Duration>,
    /// The pod and all its processes are gone.
    pub removed: bool,
    /// When they went.
    pub died: Option<Duration>,
    pub processes: Vec<Process>,
    /// Number and launch of scripts whose end slurmctld has not received. Their slurmstepd waits to report it.
    pub(super) unreported: Vec<(u32, u64)>,
    /// Messages that came while it was frozen.
    pub(super) queue: Vec<Queued>,
}

/// A message of slurmctld that slurmd has not read.
#[derive(Debug)]
pub(super) struct Queued {
    pub(super) from: ControllerId,
    pub(super) message: ToNode,
    pub(super) sent: Duration,
}

/// The script of a job, or its part on a further node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Process {
    pub job: JobKey,
    pub id: u32,
    pub launch: u64,
    pub batch: bool,
    pub exit_code: i32,
    /// When it returns; the parts on further nodes wait to be killed.
    pub(super) ends: Option<Duration>,
    /// How long it still has to run, while it is suspended.
    pub(super) suspended: Option<Duration>,
}

impl Host {
    pub(super) fn new(spec: HostSpec) -> Self {
        Self {
            spec,
            slurmd: None,
            frozen: None,
            removed: false,
            died: None,
            processes: Vec::new(),
            unreported: Vec::new(),
            queue: Vec::new(),
        }
    }

    pub fn slurmd_responds(&self) -> bool {
        self.slurmd.is_some() && self.frozen.is_none() && !self.removed
    }

    pub(super) fn registration(&self, requester: Requester) -> Option<Registration> {
        Some(Registration {
            name: self.spec.name.clone(),
            address: self.spec.address.clone(),
            cpus: self.spec.cpus,
            features: self.spec.features.clone(),
            boot_time: self.spec.boot_time,
            slurmd_start_time: self.slurmd?,
            jobs: {
                let running = self.processes.iter().map(|process| (process.id, process.batch));
                running
                    .chain(self.unreported.iter().map(|(id, _)| (*id, true)))
                    .collect()
            },
            requester,
        })
    }

    /// Time did not pass for the processes of a frozen host.
    pub(super) fn thaw(&mut self, now: Duration) {
        if let Some(since) = self.frozen.take() {
            for process in &mut self.processes {
                process.ends = process.ends.map(|ends| ends + now.saturating_sub(since));
            }
        }
    }
}
