//! Ending jobs that were waited for long enough. Only this file tells Slurm to.

use std::{
    collections::{BTreeMap, HashMap},
    sync::{Mutex, PoisonError},
    time::Duration,
};

use slurm::JobHandle;
use tokio::time::Instant;
use tracing::info;

use super::{Applied, Hands};
use crate::{
    cluster::{CommandError, JobOrder, Knowledge},
    nodeset::plan::{Effect, Evidence, Plan, may_be_ended},
    runtime::{Error, Key},
};

/// A job that was told and is still there needs time to clear up, or Slurm has refused; neither gets better by haste.
const AGAIN: Duration = Duration::from_mins(1);

/// Which jobs of each NodeSet were told when, and what Slurm said if it refused.
#[derive(Debug, Default)]
pub(in crate::nodeset) struct Told(Mutex<HashMap<Key, Jobs>>);

type Jobs = BTreeMap<JobHandle, (Instant, Option<String>)>;

impl Told {
    /// Of these jobs, those whose turn it is, and what was refused to the others. What is not among them is forgotten.
    fn sort<'a>(&self, nodeset: &Key, jobs: Vec<Ending<'a>>) -> (Vec<Ending<'a>>, Vec<String>) {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if jobs.is_empty() {
            all.remove(nodeset);
            return (Vec::new(), Vec::new());
        }
        let told = all.entry(nodeset.clone()).or_default();
        told.retain(|job, _| jobs.iter().any(|ending| ending.job == job));
        let (later, due): (Vec<Ending<'a>>, Vec<Ending<'a>>) = jobs
            .into_iter()
            .partition(|ending| told.get(ending.job).is_some_and(|(at, _)| at.elapsed() < AGAIN));
        let refused = later
            .iter()
            .filter_map(|ending| told.get(ending.job)?.1.clone())
            .collect();
        (due, refused)
    }

    fn note(&self, nodeset: &Key, job: &JobHandle, refused: Option<String>) {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        all.entry(nodeset.clone())
            .or_default()
            .insert(job.clone(), (Instant::now(), refused));
    }
}

impl Hands<'_> {
    pub(super) async fn apply_ends(&self, plan: &Plan, applied: &mut Applied) {
        let jobs = plan.effects.iter().filter_map(Ending::of).collect();
        let (due, refused) = self.told.sort(&self.key(), jobs);
        applied.problems.extend(refused);
        if due.is_empty() {
            return;
        }
        // By now the job may be elsewhere, or somebody may have taken the drain back.
        let Knowledge::Known(seen) = self.ctx.clusters.observe(&self.cluster()).await else {
            return;
        };
        let evidence = Evidence::new(&seen);
        for ending in due {
            let drained = seen.nodes.get(ending.node).is_some_and(|node| node.state.is_drain());
            let is_there = evidence
                .jobs_on(ending.node)
                .any(|job| may_be_ended(job) && job.handle() == *ending.job);
            if drained && is_there {
                self.end_job(&ending, applied).await;
            }
        }
    }

    async fn end_job(&self, ending: &Ending<'_>, applied: &mut Applied) {
        let Ending { job, node, order } = ending;
        let (verb, reason, past) = match order {
            JobOrder::Requeue => ("requeue", "JobRequeued", "Requeued"),
            JobOrder::Cancel => ("cancel", "JobCancelled", "Cancelled"),
        };
        info!(nodeset = %self.key(), %job, node, verb, "Ending a job that was waited for long enough");
        match self.ctx.clusters.command_job(&self.cluster(), job, *order).await {
            Ok(()) => {
                self.told.note(&self.key(), job, None);
                let message = format!("{past} job {job} on node {node}, which leaves: spec.drain.timeout is over");
                self.ctx.events.normal(self.nodeset(), reason, message);
            }
            Err(CommandError::NotFound(_)) => {}
            Err(CommandError::Refused(why)) => {
                let message =
                    format!("cannot {verb} job {job} on node {node}, which is waited for: Slurm refused: {why}");
                self.ctx.events.warn(self.nodeset(), "JobNotEnded", message.clone());
                applied.problems.push(message.clone());
                self.told.note(&self.key(), job, Some(message));
            }
            Err(error) => {
                let error = Error::other(format!("cannot {verb} job {job} on node {node}: {error}"));
                applied.take::<()>(Err(error));
            }
        }
    }
}

#[derive(Debug)]
struct Ending<'a> {
    job: &'a JobHandle,
    node: &'a str,
    order: JobOrder,
}

impl<'a> Ending<'a> {
    fn of(effect: &'a Effect) -> Option<Self> {
        match effect {
            Effect::EndJob { job, node, order } => Some(Self {
                job,
                node,
                order: *order,
            }),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_job_is_told_once_a_minute_at_most_and_a_refusal_is_not_forgotten() {
        let told = Told::default();
        let key = Key::new("ns", "compute");
        let job = JobHandle::new("7").unwrap();
        let ending = || {
            vec![Ending {
                job: &job,
                node: "n",
                order: JobOrder::Requeue,
            }]
        };
        let turns = |jobs: Vec<Ending<'_>>| {
            let (due, refused) = told.sort(&key, jobs);
            (due.len(), refused)
        };
        assert_eq!(turns(ending()), (1, vec![]));
        told.note(&key, &job, Some("no".to_owned()));
        assert_eq!(turns(ending()), (0, vec!["no".to_owned()]));
        tokio::time::advance(AGAIN).await;
        assert_eq!(turns(ending()), (1, vec![]));
        told.note(&key, &job, None);
        assert_eq!(turns(ending()), (0, vec![]));
        // One that came and went is another when it comes again.
        assert_eq!(turns(vec![]), (0, vec![]));
        assert_eq!(turns(ending()), (1, vec![]));
    }
}
