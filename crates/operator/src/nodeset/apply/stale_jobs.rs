//! Ends stale jobs in Slurm, which has lost that they ended with the previous worker.

use std::{
    collections::{BTreeSet, HashSet},
    sync::{Mutex, PoisonError},
};

use slurm::{JobHandle, rest::Process};
use tracing::info;

use super::{ApplyResult, Executor, OrderOutcome};
use crate::{
    cluster::{CommandError, JobOrder, Knowledge, NodeOrder},
    nodeset::plan::{Effect, Evidence, Plan, Remedy, StaleJobs, stale_jobs, stale_jobs_reason},
    runtime::{Error, Key},
    worker::{ObjectId, Worker},
};

/// Stale jobs that each slurmctld process was told to end, by NodeSet and UID of the pod they were shown on. The same
/// process gets no second order about the same job: that limits the damage if a clock is wrong.
#[derive(Debug, Default)]
pub(in crate::nodeset) struct ReportedStaleJobs(Mutex<HashSet<(Key, String, Process, JobHandle)>>);

impl ReportedStaleJobs {
    /// Drops all other pods of this NodeSet.
    fn keep<'a>(&self, nodeset: &Key, uids: impl Iterator<Item = &'a str>) {
        let uids: BTreeSet<&str> = uids.collect();
        let mut reported = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        reported.retain(|(of, uid, ..)| of != nodeset || uids.contains(uid.as_str()));
    }

    fn is_new(&self, nodeset: &Key, uid: &str, process: Process, jobs: &[JobHandle]) -> bool {
        let reported = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let is_new = |job: &JobHandle| !reported.contains(&(nodeset.clone(), uid.to_owned(), process, job.clone()));
        jobs.iter().any(is_new)
    }

    fn note(&self, nodeset: &Key, uid: &str, process: Process, jobs: &[JobHandle]) {
        let mut reported = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        reported.retain(|(of, other, earlier, _)| of != nodeset || other != uid || *earlier == process);
        let jobs = jobs.iter().cloned();
        reported.extend(jobs.map(|job| (nodeset.clone(), uid.to_owned(), process, job)));
    }
}

impl Executor<'_> {
    pub(super) async fn apply_stale_jobs(&self, plan: &Plan, applied: &mut ApplyResult) {
        self.reported_stale_jobs
            .keep(&self.key(), self.observed.workers().map(Worker::uid));
        let mut sent = false;
        for effect in &plan.effects {
            if let Effect::EndStaleJobs { pod, node, stale_jobs } = effect {
                sent |= applied.take(self.end_stale_jobs(pod, node, stale_jobs).await) == Some(true);
            }
        }
        if sent {
            self.poll_now().await;
        }
    }

    /// Returns whether an order was sent.
    async fn end_stale_jobs(&self, pod: &ObjectId, node: &str, planned: &StaleJobs) -> Result<bool, Error> {
        let seen = self.observed.knowledge.known();
        let (Some(record), Some(process), Some(worker)) = (
            seen.and_then(|seen| seen.nodes.get(node)),
            seen.and_then(|seen| seen.process),
            self.worker(pod),
        ) else {
            return Ok(false);
        };
        let StaleJobs { jobs, remedy } = planned;
        if !self.reported_stale_jobs.is_new(&self.key(), &pod.uid, process, jobs) {
            return Ok(false);
        }
        if *remedy == Remedy::Down && !record.state.is_drain() {
            // No job may start between the snapshot and the next order. If that is not sent, the next plan reverts the
            // drain.
            let reason = stale_jobs_reason(record, worker);
            let order = NodeOrder::Drain { reason };
            if self.command(node, &order, &record.admin_state()).await? == OrderOutcome::Changed {
                return Ok(true);
            }
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
                let reason = stale_jobs_reason(record, worker);
                let order = NodeOrder::Down { reason };
                if self.command(node, &order, &record.admin_state()).await? == OrderOutcome::Changed {
                    return Ok(true);
                }
            }
            Remedy::Requeue(willing) => {
                for job in willing {
                    let sent = self
                        .ctx
                        .clusters
                        .command_job(&self.cluster(), job, JobOrder::Requeue)
                        .await;
                    match sent {
                        Ok(()) | Err(CommandError::NotFound(_)) => {}
                        Err(error) => {
                            let error = format!(
                                "cannot requeue job {job}, which ended with the previous worker of node {node}: {error}"
                            );
                            return Err(Error::other(error));
                        }
                    }
                }
            }
        }
        self.reported_stale_jobs.note(&self.key(), &pod.uid, process, jobs);
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
        let reported = ReportedStaleJobs::default();
        let key = Key::new("ns", "compute");
        let life = |boot_time| Process { boot_time };
        let jobs = |ids: &[&str]| -> Vec<JobHandle> { ids.iter().map(|id| JobHandle::new(*id).unwrap()).collect() };
        assert!(reported.is_new(&key, "a", life(1), &jobs(&["7"])));
        reported.note(&key, "a", life(1), &jobs(&["7"]));
        assert!(!reported.is_new(&key, "a", life(1), &jobs(&["7"])));
        assert!(reported.is_new(&key, "a", life(1), &jobs(&["7", "8"])));
        assert!(reported.is_new(&key, "b", life(1), &jobs(&["7"])));
        // The next process may have lost it.
        assert!(reported.is_new(&key, "a", life(2), &jobs(&["7"])));
        reported.note(&key, "a", life(2), &jobs(&["8"]));
        assert!(reported.is_new(&key, "a", life(2), &jobs(&["7"])));
        reported.keep(&key, ["a"].into_iter());
        assert!(!reported.is_new(&key, "a", life(2), &jobs(&["8"])));
        reported.keep(&key, ["b"].into_iter());
        assert!(reported.is_new(&key, "a", life(2), &jobs(&["8"])));
    }
}
