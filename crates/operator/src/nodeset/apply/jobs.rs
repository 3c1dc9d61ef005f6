//! Ends jobs whose wait has timed out, and stale jobs in Slurm, which has lost that they ended with the previous worker.
//! Only this file does.

use std::{
    collections::{BTreeMap, BTreeSet, HashSet},
    time::Duration,
};

use slurm::{JobHandle, agent::Reason, rest::Process};
use tokio::time::Instant;
use tracing::info;

use super::{ApplyResult, Executor, StepError};
use crate::{
    cluster::{CommandError, JobOrder, NodeOrder, Seen},
    nodeset::plan::{
        Effect, Evidence, JobEnd, Plan, PlannedOrder, StaleJobs, may_be_ended, stale_jobs, stale_jobs_reason,
    },
    reason,
    runtime::Error,
    worker::{ObjectId, Worker},
};

/// A job that still runs after the request needs time to clean up, or Slurm has refused; a retry sooner does not help.
const RETRY_AFTER: Duration = Duration::from_mins(1);

/// When the end of which jobs was requested, and Slurm's message if it refused.
#[derive(Debug, Default)]
pub(in crate::nodeset) struct EndRequests(BTreeMap<JobHandle, (Instant, Option<String>)>);

impl EndRequests {
    /// Returns the jobs that are due, and Slurm's refusals of the others. Drops all other jobs.
    fn sort<'a>(&mut self, mut jobs: Vec<&'a JobEnd>, now: Instant) -> (Vec<&'a JobEnd>, Vec<String>) {
        self.0.retain(|job, _| jobs.iter().any(|ending| ending.job == *job));
        let mut refused = Vec::new();
        jobs.retain(|ending| match self.0.get(&ending.job) {
            Some((at, message)) if now.duration_since(*at) < RETRY_AFTER => {
                refused.extend(message.clone());
                false
            }
            _ => true,
        });
        (jobs, refused)
    }

    fn note(&mut self, job: &JobHandle, refused: Option<String>, now: Instant) {
        self.0.insert(job.clone(), (now, refused));
    }
}

/// Stale jobs that each slurmctld process was ordered to end, by UID of the pod they were shown on. The same process gets no
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

/// Returns the jobs that are to be ended by a later snapshot, too: a job may have moved, or an administrator may have resumed the
/// node. No job is ended by a snapshot that is not signed.
fn still_due<'a>(seen: &Seen, mut due: Vec<&'a JobEnd>) -> Result<Vec<&'a JobEnd>, String> {
    if let Some(doubt) = seen.doubt() {
        return Err(format!("no job is ended on a node that leaves: {doubt}"));
    }
    let evidence = Evidence::new(seen);
    due.retain(|JobEnd { job: ending, node, .. }| {
        let is_drained = seen.nodes.get(node).is_some_and(|node| node.state.is_drain());
        is_drained
            && evidence
                .jobs_on(node)
                .any(|job| may_be_ended(job) && job.handle() == *ending)
    });
    Ok(due)
}

impl Executor<'_> {
    pub(super) async fn apply_ends(&self, plan: &Plan, requests: &mut EndRequests, applied: &mut ApplyResult) {
        let jobs = plan.effects.iter().filter_map(|effect| match effect {
            Effect::EndJob(end) => Some(end),
            _ => None,
        });
        let (due, refused) = requests.sort(jobs.collect(), self.instant());
        applied.problems.extend(refused);
        if due.is_empty() {
            return;
        }
        let Ok(seen) = self.fresh_snapshot().await else {
            return;
        };
        match still_due(&seen, due) {
            Ok(due) => {
                for ending in due {
                    self.end_job(ending, requests, applied).await;
                }
            }
            Err(problem) => applied.problems.push(problem),
        }
    }

    async fn end_job(&self, ending: &JobEnd, requests: &mut EndRequests, applied: &mut ApplyResult) {
        let JobEnd { job, node, order } = ending;
        let (verb, reason, past) = match order {
            JobOrder::Requeue => ("requeue", reason::JOB_REQUEUED, "Requeued"),
            JobOrder::Cancel => ("cancel", reason::JOB_CANCELLED, "Cancelled"),
        };
        info!(nodeset = %self.key, %job, node, verb, "ending job whose wait has timed out");
        match self.ctx.clusters.command_job(self.cluster, job, *order).await {
            Ok(()) => {
                requests.note(job, None, self.instant());
                let message = format!("{past} job {job} on node {node}, which leaves: spec.drain.timeout has passed");
                self.event(reason, message);
            }
            Err(CommandError::NotFound(_)) => {}
            Err(CommandError::Refused(why)) => {
                let message =
                    format!("cannot {verb} job {job} on node {node}, which waits for it: Slurm refused: {why}");
                self.warn(reason::JOB_NOT_ENDED, message.clone());
                applied.problems.push(message.clone());
                requests.note(job, Some(message), self.instant());
            }
            Err(error) => {
                let error = Error::other(format!("cannot {verb} job {job} on node {node}: {error}"));
                applied.take::<()>(Err(error));
            }
        }
    }

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
        let StaleJobs { jobs, requeue } = planned;
        if !reported.is_new(&pod.uid, process, jobs) {
            return Ok(false);
        }
        if requeue.is_none() && !record.state.is_drain() {
            // No job may start between the snapshot and the next order. If that is not sent, the next plan reverts the
            // drain.
            let reason = stale_jobs_reason(record, worker).as_deref().map(Reason::of);
            let order = PlannedOrder::new(record, NodeOrder::Drain { reason });
            self.command(&order).await?;
        }
        let Ok(seen) = self.fresh_snapshot().await else {
            return Ok(false);
        };
        let still = stale_jobs(&Evidence::new(&seen), worker);
        let (Some(record), Some(process)) = (
            seen.nodes.get(node),
            seen.process.filter(|_| still.as_ref() == Some(planned)),
        ) else {
            info!(nodeset = %self.key, node, "stale jobs have changed; planning again");
            return Ok(true);
        };
        let names: Vec<&str> = jobs.iter().map(JobHandle::as_str).collect();
        let names = names.join(", ");
        info!(nodeset = %self.key, node, jobs = names, ?requeue, "ending stale jobs");
        if requeue.is_none() {
            let reason = stale_jobs_reason(record, worker).as_deref().map(Reason::of);
            let order = PlannedOrder::new(record, NodeOrder::Down { reason });
            self.command(&order).await?;
        }
        for job in requeue.iter().flatten() {
            let clusters = &self.ctx.clusters;
            match clusters.command_job(self.cluster, job, JobOrder::Requeue).await {
                Ok(()) | Err(CommandError::NotFound(_)) => {}
                Err(error) => {
                    let error = format!(
                        "cannot requeue job {job}, which ended with the previous worker of node {node}: {error}"
                    );
                    return Err(Error::other(error).into());
                }
            }
        }
        reported.note(&pod.uid, process, jobs);
        let message =
            format!("Ended jobs in Slurm that had ended with the previous worker of node {node}: job {names}");
        self.warn(reason::JOBS_LOST, message);
        Ok(true)
    }
}

#[cfg(test)]
mod tests {
    use jiff::Timestamp;
    use serde_json::json;
    use slurm::rest::Observation;

    use super::*;
    use crate::cluster::Source;

    fn turns(requests: &mut EndRequests, jobs: Vec<&JobEnd>) -> (usize, Vec<String>) {
        let (due, refused) = requests.sort(jobs, Instant::now());
        (due.len(), refused)
    }

    #[tokio::test(start_paused = true)]
    async fn the_end_of_a_job_is_requested_once_a_minute_and_a_refusal_is_remembered() {
        let mut requests = EndRequests::default();
        let job = JobHandle::new("7").unwrap();
        let end = JobEnd {
            job: job.clone(),
            node: "n".to_owned(),
            order: JobOrder::Requeue,
        };
        let ending = || vec![&end];
        assert_eq!(turns(&mut requests, ending()), (1, vec![]));
        requests.note(&job, Some("no".to_owned()), Instant::now());
        assert_eq!(turns(&mut requests, ending()), (0, vec!["no".to_owned()]));
        tokio::time::advance(RETRY_AFTER).await;
        assert_eq!(turns(&mut requests, ending()), (1, vec![]));
        requests.note(&job, None, Instant::now());
        assert_eq!(turns(&mut requests, ending()), (0, vec![]));
        // A job that was not due in between is due again.
        assert_eq!(turns(&mut requests, vec![]), (0, vec![]));
        assert_eq!(turns(&mut requests, ending()), (1, vec![]));
    }

    #[test]
    fn no_job_is_ended_by_a_snapshot_that_is_not_signed_or_shows_it_elsewhere() {
        let end = JobEnd {
            job: JobHandle::new("7").unwrap(),
            node: "n".to_owned(),
            order: JobOrder::Cancel,
        };
        let due = |source: Source, node_state: &[&str], on: &str| {
            let node = json!({ "name": "n", "state": node_state });
            let job = json!({ "job_id": 7, "job_state": ["RUNNING"], "nodes": on });
            let seen = Observation {
                nodes: vec![serde_json::from_value(node).unwrap()],
                jobs: vec![serde_json::from_value(job).unwrap()],
                process: Some(Process { boot_time: 1 }),
            };
            let seen = Seen::new(seen, Timestamp::UNIX_EPOCH, source);
            still_due(&seen, vec![&end]).map(|due| due.len())
        };
        let drained = ["MIXED", "DRAIN"];
        assert_eq!(due(Source::Agent, &drained, "n"), Ok(1));
        assert_eq!(due(Source::Agentless, &drained, "n"), Ok(1));
        assert!(
            due(Source::Unsigned, &drained, "n")
                .unwrap_err()
                .contains("is not signed")
        );
        assert_eq!(due(Source::Agent, &["MIXED"], "n"), Ok(0), "resumed");
        assert_eq!(due(Source::Agent, &drained, "m"), Ok(0), "moved");
    }

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
