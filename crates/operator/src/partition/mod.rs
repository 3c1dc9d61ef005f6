//! Reconciles Partitions: partitions of their own, across NodeSets and external machines.
//!
//! The [`crate::controller`], which alone changes a slurmctld, writes their lines: Partitions are an input of its
//! configuration, as NodeSets are. [`rules`] decides what a line contains and which nodes it names; reports come back
//! through [`crate::cluster::partition_reports`].

mod apply;
mod drift;
mod external;
mod memory;
mod observe;
mod plan;
mod references;
mod restore;
pub(crate) mod rules;
mod status;
#[cfg(test)]
mod tests;

use std::{sync::Arc, time::Duration};

use api::Partition;

use self::{
    drift::Baseline,
    memory::Memories,
    plan::{View, assess, is_outdated},
};
use crate::{
    cluster::Follower,
    runtime::{Change, Context, Error, Key, Outcome, Reconciler, Writer},
};

/// Slurm is polled every few seconds: by then a poll has ended.
const NEXT_POLL: Duration = Duration::from_secs(10);
/// By then a requested poll has ended.
const REQUESTED_POLL: Duration = Duration::from_secs(1);

/// Reports the state of Partitions, and removes their finalizer once their lines are removed.
#[derive(Debug)]
pub struct PartitionReconciler {
    context: Context,
    writer: Writer,
    memories: Memories,
}

impl PartitionReconciler {
    pub fn new(context: Context) -> Self {
        Self {
            writer: Writer::new::<Partition>(&context),
            context,
            memories: Memories::default(),
        }
    }
}

impl Reconciler for PartitionReconciler {
    const NAME: &'static str = "partition";
    type Object = Partition;

    fn interested(&self, change: &Change) -> Vec<Key> {
        references::interested(change, &self.context.caches)
    }

    async fn reconcile(&self, key: &Key) -> Result<Outcome, Error> {
        let context = &self.context;
        let Some(partition) = context.caches.partitions.get(&key.namespace, &key.name) else {
            self.memories.forget(key);
            return Ok(Outcome::settled());
        };
        let mut observed = observe::observe(Arc::clone(&partition), context).await;
        let cluster = observed.cluster();
        let mut plan = self.memories.with(key, |memory| plan::plan(&observed, memory));
        if is_outdated(&observed, &plan) {
            // A restarted slurmctld that lost its partitions is not a manual change.
            if let Some(external) = context.clusters.external(&cluster) {
                external.poll().await;
            }
            observed = observe::observe(Arc::clone(&partition), context).await;
            plan = self.memories.with(key, |memory| plan::plan(&observed, memory));
        }
        context
            .clusters
            .follow_jobs(&cluster, &Follower::Partition(key.clone()), plan.needs_jobs);
        let results = apply::apply(context, &self.writer, &observed, &plan).await;
        let now = context.clock.now();
        let external_again = results.external.as_ref().and_then(|done| done.again);
        let restored_again = results.restored.is_some().then_some(NEXT_POLL);
        let (view, applied) = self.conclude(key, plan.view, results);
        let assessment = assess(&view);
        let warn_again = context.warn(partition.as_ref(), assessment.faults.iter().map(plan::warning));
        let mut status = status::build_status(&view, &assessment, applied.failure().as_ref(), now);
        let count_again = self.memories.with(key, |memory| {
            memory.throttle_counts(partition.status.as_ref(), &mut status, now)
        });
        if let Some(drifted) = status::new_drift(&view, &status) {
            context.events.warn(partition.as_ref(), drifted.reason, drifted.message);
        }
        if let Some(reverted) = status::new_reverts(&view, &status) {
            context.events.warn(partition.as_ref(), "Reverted", reverted);
        }
        let state = status::state(&assessment);
        if assessment.retained.is_some() {
            let status = serde_json::to_value(&status).map_err(Error::other)?;
            self.writer.status(partition.as_ref(), status).await?;
        }
        let outcome = self.writer.finish(partition.as_ref(), status, applied, state).await?;
        let polled = assessment.needs_poll.then(|| {
            if context.clusters.poll_soon(&cluster) {
                REQUESTED_POLL
            } else {
                NEXT_POLL
            }
        });
        let again = [
            warn_again,
            polled,
            count_again,
            restored_again,
            external_again,
            plan.again,
        ];
        Ok(again.into_iter().flatten().fold(outcome, Outcome::requeue))
    }
}

impl PartitionReconciler {
    /// The state of the Partition after the plan was carried out.
    fn conclude(&self, key: &Key, mut view: View, results: apply::Results) -> (View, crate::runtime::Applied) {
        let now = self.context.clock.now();
        self.memories.with(key, |memory| {
            if let Some(done) = results.external {
                view.report = Some(done.report);
                memory.refusal = done.refusal;
            }
            if let Some((keys, restored)) = &results.restored {
                let outcome = restore::settle_restored(&view.found, keys, restored);
                if let Some(baseline) = memory.baseline.as_mut() {
                    Baseline::note_restored(baseline, now, &outcome);
                }
                view.found = outcome.found;
            }
        });
        (view, results.applied)
    }
}
