//! Reconciles Partitions: partitions of their own, across NodeSets and external machines.
//!
//! The [`crate::controller`], which alone changes a slurmctld, writes their lines: Partitions are an input of its
//! configuration, as NodeSets are. [`rules`] decides what a line contains and which nodes it names; reports come back
//! through [`crate::cluster::partition_reports`].

mod apply;
mod drift;
mod external;
mod observe;
mod plan;
mod references;
pub(crate) mod rules;
mod status;
#[cfg(test)]
mod tests;

use std::{
    collections::HashMap,
    sync::{Arc, PoisonError},
    time::Duration,
};

use api::Partition;
use tokio::{sync::Mutex, time::Instant};

use self::{
    drift::Baseline,
    external::Refusal,
    plan::{assess, is_closing, is_outdated},
};
use crate::{
    cluster::Follower,
    references::References,
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
    references: References<Partition>,
    memories: Memories,
}

/// By the key of the object.
type Memories = Arc<std::sync::Mutex<HashMap<Key, Arc<Mutex<Memory>>>>>;

/// What is remembered of one Partition between reconciles.
#[derive(Debug, Default)]
struct Memory {
    /// When its counts were last written.
    counted_at: Option<Instant>,
    /// The values that drift is measured against.
    baseline: Option<Baseline>,
    /// The last line that an external slurmctld rejected.
    refusal: Option<Refusal>,
}

impl PartitionReconciler {
    pub fn new(context: Context) -> Self {
        let memories = Memories::default();
        let counted = Arc::clone(&memories);
        let count = move || counted.lock().unwrap_or_else(PoisonError::into_inner).len();
        context.memories.add("partitions", count);
        Self {
            writer: Writer::new::<Partition>(&context),
            context,
            references: references::references(),
            memories,
        }
    }
}

impl Reconciler for PartitionReconciler {
    const NAME: &'static str = "partition";
    type Object = Partition;

    fn interested(&self, change: &Change) -> Vec<Key> {
        self.references.affected(change, &self.context.caches)
    }

    async fn reconcile(&self, key: &Key) -> Result<Outcome, Error> {
        let context = &self.context;
        let memories = || self.memories.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(partition) = context.caches.partitions.get(&key.namespace, &key.name) else {
            memories().remove(key);
            return Ok(Outcome::settled());
        };
        let memory = Arc::clone(memories().entry(key.clone()).or_default());
        // One key is never reconciled twice concurrently, so this does not wait.
        let mut memory = memory.lock().await;
        let mut observed = observe::observe(Arc::clone(&partition), context).await;
        let cluster = observed.cluster.clone();
        let mut plan = plan::plan(&mut observed, &mut memory);
        if is_outdated(&observed) {
            // A restarted slurmctld that lost its partitions is not a manual change.
            if let Some(external) = context.clusters.external(&cluster) {
                external.poll().await;
            }
            observed = observe::observe(Arc::clone(&partition), context).await;
            plan = plan::plan(&mut observed, &mut memory);
        }
        context
            .clusters
            .follow_jobs(&cluster, &Follower::Partition(key.clone()), is_closing(&observed));
        let (applied, mut again) = apply::apply(context, &self.writer, &mut observed, &mut memory, plan).await;
        let now = context.clock.now();
        let assessment = assess(&observed);
        again.extend(context.warn(partition.as_ref(), assessment.faults.iter().map(plan::warning)));
        let mut status = status::build_status(&observed, &assessment, applied.failure().as_ref(), now);
        let before = partition.status.as_ref();
        again.extend(status::throttle_counts(
            &mut memory.counted_at,
            before,
            &mut status,
            context.clock.host().instant(),
        ));
        for (reason, message) in status::drift_events(&observed, &status) {
            context.events.warn(partition.as_ref(), reason, message);
        }
        if assessment.retained(&partition).is_some() {
            let status = serde_json::to_value(&status).map_err(Error::other)?;
            self.writer.status(partition.as_ref(), status).await?;
        }
        let state = status::state(&assessment);
        let outcome = self.writer.finish(partition.as_ref(), status, applied, state).await?;
        if assessment.needs_poll {
            let is_requested = context.clusters.poll_soon(&cluster);
            again.push(if is_requested { REQUESTED_POLL } else { NEXT_POLL });
        }
        Ok(again.into_iter().fold(outcome, Outcome::requeue))
    }
}
