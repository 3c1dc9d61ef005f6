//! Ends jobs whose wait has timed out. Only this file does.

use std::{collections::BTreeMap, time::Duration};

use slurm::JobHandle;
use tokio::time::Instant;
use tracing::info;

use super::{ApplyResult, Executor};
use crate::{
    cluster::{CommandError, JobOrder, Knowledge},
    nodeset::plan::{Effect, Evidence, JobEnd, Plan, may_be_ended},
    reason,
    runtime::Error,
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
        // The job may have moved, or an administrator may have resumed the node.
        let Knowledge::Known(seen) = self.ctx.clusters.observe(&self.cluster()).await else {
            return;
        };
        let evidence = Evidence::new(&seen);
        for ending in due {
            let drained = seen.nodes.get(&ending.node).is_some_and(|node| node.state.is_drain());
            let is_there = evidence
                .jobs_on(&ending.node)
                .any(|job| may_be_ended(job) && job.handle() == ending.job);
            if drained && is_there {
                self.end_job(ending, requests, applied).await;
            }
        }
    }

    async fn end_job(&self, ending: &JobEnd, requests: &mut EndRequests, applied: &mut ApplyResult) {
        let JobEnd { job, node, order } = ending;
        let (verb, reason, past) = match order {
            JobOrder::Requeue => ("requeue", reason::JOB_REQUEUED, "Requeued"),
            JobOrder::Cancel => ("cancel", reason::JOB_CANCELLED, "Cancelled"),
        };
        info!(nodeset = %self.key(), %job, node, verb, "ending job whose wait has timed out");
        match self.ctx.clusters.command_job(&self.cluster(), job, *order).await {
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
}

#[cfg(test)]
mod tests {
    use super::*;

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
        fn turns(requests: &mut EndRequests, jobs: Vec<&JobEnd>) -> (usize, Vec<String>) {
            let (due, refused) = requests.sort(jobs, Instant::now());
            (due.len(), refused)
        }
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
}
