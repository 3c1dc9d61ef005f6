//! Judges that know nothing of the code: they compare what people ordered and what the model of Slurm really did with what there is.

mod foreign;
mod jobs;
mod left;
mod orders;
mod ours;
mod settled;
mod workers;

use std::{collections::BTreeMap, time::Duration};

use crate::{
    slurm::HostId,
    world::{World, elapsed},
};

pub use self::{
    foreign::create_foreign_objects,
    jobs::judge_writers,
    left::{left, remembered},
    orders::{Orders, resumed},
    settled::{changes, differs, objects_of_ours, problems},
    workers::{DRAINED, LEAVING, PROTECTED, marked},
};

/// What was judged so far.
#[derive(Debug, Default)]
pub struct Judge {
    pub orders: Orders,
    pub failures: Vec<String>,
    /// When the last fault ends.
    pub faults_end: Duration,
    /// The workers at the last look.
    workers: BTreeMap<String, HostId>,
    /// Writes of operators that were judged.
    judged_writes: usize,
    /// Pods that were deleted because of us: the worker and when.
    deleted: Vec<(HostId, Duration)>,
    drains: ours::Drains,
    of_workers: workers::Workers,
    /// When slurmctld answered last.
    served: Duration,
}

/// slurmctld answers within this time of the last fault, whatever people write into its configuration.
const SERVED: Duration = Duration::from_mins(3);

/// A leader ends if it could not renew its lease for so long.
const RENEWED: Duration = Duration::from_secs(10);

impl Judge {
    pub fn fail(&mut self, world: &World, what: String) {
        if !self.failures.contains(&what) {
            world.tell(format!("FAILURE: {what}"));
            self.failures.push(what);
        }
    }

    fn fail_all(&mut self, world: &World, failures: Vec<String>) {
        for failure in failures {
            self.fail(world, failure);
        }
    }

    /// Called many times while the history goes on.
    pub fn look(&mut self, world: &World) {
        let failures = self.judge_deletions(world);
        self.fail_all(world, failures);
        let failures = self.orders.judge(world, self.faults_end);
        self.fail_all(world, failures);
        let failures = self.judge_writes(world);
        self.fail_all(world, failures);
        let failures = self.drains.judge(world, self.faults_end);
        self.fail_all(world, failures);
        let failures = self.judge_service(world);
        self.fail_all(world, failures);
        let failures = self.of_workers.judge(world, self.faults_end);
        self.fail_all(world, failures);
        self.workers = world.workers();
    }

    /// At the end: every job, every write to the state volume, and what others own.
    pub fn judge_all(&mut self, world: &World) {
        let failures = jobs::judge(world, &self.deleted);
        self.fail_all(world, failures);
        let failures = jobs::judge_writers(world);
        self.fail_all(world, failures);
        self.judge_foreign(world);
    }

    pub fn judge_foreign(&mut self, world: &World) {
        let failures = foreign::judge(world);
        self.fail_all(world, failures);
    }

    /// No pod is deleted because of us while a job is on it.
    fn judge_deletions(&mut self, world: &World) -> Vec<String> {
        let mut failures = Vec::new();
        for (at, process, name) in world.access.take_deleted_pods() {
            let now = world.workers();
            let Some(host) = self.workers.get(&name).or(now.get(&name)).copied() else {
                continue;
            };
            self.deleted.push((host, at));
            let jobs = jobs::on_host(world, host, at);
            if !jobs.is_empty() {
                let histories = jobs::histories(world, &jobs);
                failures.push(format!(
                    "{process} deleted pod {name}, on which jobs {jobs:?} run\nat {at:?}\n{histories}"
                ));
            }
        }
        failures
    }

    /// slurmctld serves, whatever people write into its configuration.
    fn judge_service(&mut self, world: &World) -> Vec<String> {
        let is_wanted = world
            .get("controllers", "slurm")
            .is_ok_and(|object| !object["metadata"]["deletionTimestamp"].is_string());
        let answers = world.active().is_some_and(|active| world.slurm().state(active).is_ok());
        if answers || !is_wanted {
            self.served = elapsed();
        }
        let fails = elapsed().saturating_sub(self.served.max(self.faults_end)) > SERVED;
        fails
            .then(|| format!("no slurmctld has answered for {SERVED:?}"))
            .into_iter()
            .collect()
    }

    /// Operators write to nothing that is not theirs, and only while they lead.
    fn judge_writes(&mut self, world: &World) -> Vec<String> {
        let writes = world.access.writes_from(self.judged_writes);
        self.judged_writes += writes.len();
        let foreign = writes.iter().filter(|write| foreign::is_foreign(&write.path));
        let text = |write: &crate::world::api::Write| {
            format!(
                "{} wrote to a foreign object: {} {}",
                write.process, write.method, write.path
            )
        };
        let mut failures: Vec<String> = foreign.map(text).collect();
        let unseated = world.unseated.lock().unwrap().clone();
        // A restored etcd has an old lease. Who leads learns that when it renews its own, and nobody else leads before.
        let is_unseated = |write: &crate::world::api::Write| {
            let mut unseated = unseated.iter();
            unseated
                .any(|(leader, at)| leader.starts_with(&write.process) && (*at..*at + RENEWED).contains(&write.sent.at))
        };
        let leads = |write: &&crate::world::api::Write| {
            write.sent.leader.is_empty() || write.sent.leader.starts_with(&write.process) || is_unseated(write)
        };
        failures.extend(writes.iter().filter(|write| !leads(write)).map(|write| {
            let (process, leader) = (&write.process, &write.sent.leader);
            let leader = &leader[..10.min(leader.len())];
            format!("{process} wrote while {leader} led: {} {}", write.method, write.path)
        }));
        failures
    }
}
