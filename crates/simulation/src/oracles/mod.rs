//! Judges that know nothing of the code: they compare what people ordered and what the model of Slurm really did with what there is.

mod foreign;
mod jobs;
mod left;
mod orders;
mod ours;
mod settled;

use std::{collections::BTreeMap, time::Duration};

use crate::{slurm::HostId, world::World};

pub use self::{
    foreign::create_foreign_objects,
    jobs::judge_writers,
    left::{left, remembered},
    orders::Orders,
    settled::{changes, differs, objects_of_ours, problems},
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
}

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
                failures.push(format!("{process} deleted pod {name}, on which jobs {jobs:?} run"));
            }
        }
        failures
    }

    /// Operators write to nothing that is not theirs.
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
        foreign.map(text).collect()
    }
}
