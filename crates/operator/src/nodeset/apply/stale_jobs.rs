//! Ends stale jobs in Slurm, which has lost that they ended with the previous worker.

use std::collections::{BTreeSet, HashSet};

use slurm::{JobHandle, agent::Reason, rest::Process};
use tracing::info;

use super::{ApplyResult, Executor, StepError};
use crate::{
    cluster::{CommandError, JobOrder, Knowledge, NodeOrder},
    nodeset::plan::{Effect, Evidence, Plan, Remedy, StaleJobs, stale_jobs, stale_jobs_reason},
    runtime::Error,
    worker::{ObjectId, Worker},
};

/// Stale jobs that each slurmctld process was told to end, by UID of the pod they were shown on. The same process gets no
/// second order about the same job: that limits the damage if a clock is wrong.
#[derive(Debug, Default)]
pub(in crate::nodeset) struct ReportedStaleJobs(HashSet<(String, Process, JobHandle)>);

impl ReportedStaleJobs {
    /// Drops all other pods.
    fn keep<'a>(&mut self, uids: impl Iterator<Item = &'a str>) {
        let uids: BTreeSet<&str> = uids.collect();
        self.0.retain(|(uid, ..)| uids.contains(uid.as_str()));
    }

    fn is_new(&self, uid: &str, process: Process, jobs: &[JobHandle]) -> bool {
        let is_new = |job: &JobHandle| !self.0.contains(&(uid.to_owned(), process, job.clone()));
        jobs.iter().any(is_new)
    }

    fn note(&mut self, uid: &str, process: Process, jobs: &[JobHandle]) {
        self.0.retain(|(other, earlier, _)| other != uid || *earlier == process);
        let jobs = jobs.iter().cloned();
        self.0.extend(jobs.map(|job| (uid.to_owned(), process, job)));
    }
}

impl Executor<'_> {
    pub(super) async fn apply_stale_jobs(
        &self,
        plan: &Plan,
        reported: &mut ReportedStaleJobs,
        applied: &mut ApplyResult,
    ) {
        reported.keep(self.observed.workers().map(Worker::uid));
        for effect in &plan.effects {
            if let Effect::EndStaleJobs { pod, node, stale_jobs } = effect {
                let sent = applied.take(self.end_stale_jobs(pod, node, stale_jobs, reported).await);
                applied.ordered |= sent == Some(true);
            }
        }
    }

    /// Returns whether an order was sent.
    async fn end_stale_jobs(
        &self,
        pod: &ObjectId,
        node: &str,
        planned: &StaleJobs,
        reported: &mut ReportedStaleJobs,
    ) -> Result<bool, StepError> {
        let seen = self.observed.knowledge.known();
        let (Some(record), Some(process), Some(worker)) = (
            seen.and_then(|seen| seen.nodes.get(node)),
            seen.and_then(|seen| seen.process),
            self.worker(pod),
        ) else {
            return Ok(false);
        };
        let StaleJobs { jobs, remedy } = planned;
        if !reported.is_new(&pod.uid, process, jobs) {
            return Ok(false);
        }
        if *remedy == Remedy::Down && !record.state.is_drain() {
            // No job may start between the snapshot and the next order. If that is not sent, the next plan reverts the
            // drain.
            let reason = stale_jobs_reason(record, worker).as_deref().map(Reason::of);
            let order = NodeOrder::Drain { reason };
            self.command(node, &order, &record.admin_state()).await?;
        }
        let Knowledge::Known(seen) = self.ctx.clusters.observe(&self.cluster()).await else {
            return Ok(false);
        };
        let still = stale_jobs(&Evidence::new(&seen), worker);
        let (Some(record), Some(process)) = (
            seen.nodes.get(node),
            seen.process.filter(|_| still.as_ref() == Some(planned)),
        ) else {
            info!(nodeset = %self.key(), node, "stale jobs have changed; planning again");
            return Ok(true);
        };
        let names: Vec<&str> = jobs.iter().map(JobHandle::as_str).collect();
        let names = names.join(", ");
        info!(nodeset = %self.key(), node, jobs = names, ?remedy, "ending stale jobs");
        match remedy {
            Remedy::Down => {
                let reason = stale_jobs_reason(record, worker).as_deref().map(Reason::of);
                let order = NodeOrder::Down { reason };
                self.command(node, &order, &record.admin_state()).await?;
            }
            Remedy::Requeue(willing) => {
                for job in willing {
                    let clusters = &self.ctx.clusters;
                    match clusters.command_job(&self.cluster(), job, JobOrder::Requeue).await {
                        Ok(()) | Err(CommandError::NotFound(_)) => {}
                        Err(error) => {
                            let error = format!(
                                "cannot requeue job {job}, which ended with the previous worker of node {node}: {error}"
                            );
                            return Err(Error::other(error).into());
                        }
                    }
                }
            }
        }
        reported.note(&pod.uid, process, jobs);
        let message =
            format!("Ended jobs in Slurm that had ended with the previous worker of node {node}: job {names}");
        self.warn("JobsLost", message);
        Ok(true)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slurmctld_process_gets_one_order_per_job_and_worker() {
        let mut reported = ReportedStaleJobs::default();
        let life = |boot_time| Process { boot_time };
        let jobs = |ids: &[&str]| -> Vec<JobHandle> { ids.iter().map(|id| JobHandle::new(*id).unwrap()).collect() };
        assert!(reported.is_new("a", life(1), &jobs(&["7"])));
        reported.note("a", life(1), &jobs(&["7"]));
        assert!(!reported.is_new("a", life(1), &jobs(&["7"])));
        assert!(reported.is_new("a", life(1), &jobs(&["7", "8"])));
        assert!(reported.is_new("b", life(1), &jobs(&["7"])));
        // The next process may have lost it.
        assert!(reported.is_new("a", life(2), &jobs(&["7"])));
        reported.note("a", life(2), &jobs(&["8"]));
        assert!(reported.is_new("a", life(2), &jobs(&["7"])));
        reported.keep(["a"].into_iter());
        assert!(!reported.is_new("a", life(2), &jobs(&["8"])));
        reported.keep(["b"].into_iter());
        assert!(reported.is_new("a", life(2), &jobs(&["8"])));
    }
}
