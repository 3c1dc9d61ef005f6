//! NodeSet: the workers of a cluster.
//!
//! ```text
//!  observe ▶ plan (build) ▶ apply ▶ status
//! ```
//! Workers are created without asking Slurm. They are removed only on proof that no job runs there: see [`plan`]'s `proof`.

mod apply;
pub mod build;
pub mod identity;
pub mod mirror;
pub mod observe;
pub mod plan;
mod references;
pub mod status;

#[cfg(test)]
mod end_to_end;
#[cfg(test)]
mod fixture;
#[cfg(test)]
mod golden;

use std::{
    collections::HashMap,
    sync::{Mutex, PoisonError},
    time::Duration,
};

use api::{NodeSet, NodeSetStatus};
use jiff::Timestamp;
use tokio::time::Instant;

use self::{
    apply::{ApplyResult, EndRequests, Executor, ReportedStaleJobs, ReservationRequests},
    mirror::{Mirror, MirrorMemory as Memory},
    observe::{Environment as Surroundings, Observed, observe},
    plan::{Plan, Wait, plan},
};
use crate::{
    cluster::{Follower, Knowledge},
    key_mismatch::find_key_mismatch,
    runtime::{Change, Context, Error, Failure, Key, NAME_TAKEN, Outcome, Reconciler, TAKEN_RETRY, Writer},
    worker::Worker,
};

/// How long the first reconcile after a start waits for Slurm's response, which takes milliseconds: a restart of the operator
/// must not write "unknown" everywhere.
const FIRST_POLL: Duration = Duration::from_secs(2);
/// How often counts alone are written: under load nodes change their states all the time.
const COUNTS_EVERY: Duration = Duration::from_secs(15);
/// By then Slurm has been polled again.
const SOON: Duration = Duration::from_millis(100);
/// When to retry after a state could not be mirrored to a pod or a node.
const MIRROR_RETRY: Duration = Duration::from_secs(15);

/// Reconciles NodeSets.
#[derive(Debug)]
pub struct NodeSetReconciler {
    ctx: Context,
    writer: Writer,
    /// Jobs that were requested to end.
    end_requests: EndRequests,
    /// Jobs of workers that are gone, which were reported to Slurm.
    reported_stale_jobs: ReportedStaleJobs,
    /// Reservations that were requested.
    reservation_requests: ReservationRequests,
    memories: Mutex<HashMap<Key, SetMemory>>,
}

/// What is remembered of one NodeSet between reconciles.
#[derive(Debug, Default)]
struct SetMemory {
    /// When the counts of Slurm's nodes were last written.
    counted: Option<Instant>,
    mirror: Memory,
    /// Since when Slurm has no node of a NodeSet that is being deleted.
    empty_since: Option<Timestamp>,
}

impl NodeSetReconciler {
    pub fn new(ctx: Context) -> Self {
        Self {
            writer: Writer::new::<NodeSet>(&ctx),
            end_requests: EndRequests::default(),
            reported_stale_jobs: ReportedStaleJobs::default(),
            reservation_requests: ReservationRequests::default(),
            memories: Mutex::default(),
            ctx,
        }
    }

    async fn knowledge(&self, nodeset: &NodeSet, key: &Key) -> Knowledge {
        let controller = Key::new(&key.namespace, &nodeset.spec.controller_ref.name);
        if self
            .ctx
            .caches
            .controllers
            .get(&controller.namespace, &controller.name)
            .is_none()
        {
            return Knowledge::unknown(format!("there is no Controller {:?}", controller.name));
        }
        self.ctx.clusters.knowledge_within(&controller, FIRST_POLL).await
    }

    async fn write_status(
        &self,
        key: &Key,
        observed: &Observed,
        plan: &Plan,
        applied: &ApplyResult,
    ) -> Result<Option<Duration>, Error> {
        let failure = (!applied.problems.is_empty()).then(|| applied.problems.join("\n"));
        let failure = failure.map(|message| Failure {
            reason: if applied.name_taken { NAME_TAKEN } else { "Failed" },
            message,
        });
        let wanted = status::status(observed, plan, failure.as_ref());
        let previous = observed.nodeset.status.clone().unwrap_or_default();
        let only_counts = wanted != previous && without_counts(wanted.clone()) == without_counts(previous);
        if only_counts && let Some(wait) = self.until_next_count(key) {
            return Ok(Some(wait));
        }
        let value = serde_json::to_value(&wanted).map_err(Error::other)?;
        if self.writer.status(observed.nodeset.as_ref(), value).await? {
            let now = self.ctx.clock.host().instant();
            self.memory(key, |memory| memory.counted = Some(now));
        }
        Ok(None)
    }

    /// Mirrors states between pods and Slurm's nodes. What failed is among the complaints.
    async fn apply_mirror(&self, key: &Key, executor: &Executor<'_>) -> Mirror {
        // One key is never reconciled twice concurrently, so nothing else needs the memory in the meantime.
        let mut memory = self.memory(key, |memory| std::mem::take(&mut memory.mirror));
        memory.keep(executor.observed.workers().map(Worker::uid));
        let mut mirror = mirror::mirror(executor.observed, &memory);
        let problems = executor.apply_mirror(&mirror, &mut memory).await;
        if !problems.is_empty() {
            mirror.requeue = Some(mirror.requeue.unwrap_or(MIRROR_RETRY).min(MIRROR_RETRY));
            mirror.complaints.extend(problems);
        }
        self.memory(key, |own| own.mirror = memory);
        mirror
    }

    fn memory<T>(&self, key: &Key, access: impl FnOnce(&mut SetMemory) -> T) -> T {
        let mut memories = self.memories.lock().unwrap_or_else(PoisonError::into_inner);
        access(memories.entry(key.clone()).or_default())
    }

    fn forget(&self, key: &Key) {
        let mut memories = self.memories.lock().unwrap_or_else(PoisonError::into_inner);
        memories.remove(key);
    }

    fn until_next_count(&self, key: &Key) -> Option<Duration> {
        let last = self.memory(key, |memory| memory.counted)?;
        (last + COUNTS_EVERY)
            .checked_duration_since(self.ctx.clock.host().instant())
            .filter(|left| !left.is_zero())
    }
}

/// The status without the counts that change with every job. Whether there are counts is kept.
fn without_counts(mut status: NodeSetStatus) -> NodeSetStatus {
    for count in [
        &mut status.slurm_idle,
        &mut status.slurm_allocated,
        &mut status.slurm_down,
        &mut status.slurm_drain,
    ] {
        *count = count.map(|_| 0);
    }
    status
}

impl Reconciler for NodeSetReconciler {
    const NAME: &'static str = "nodeset";
    type Object = NodeSet;

    fn interested(&self, change: &Change) -> Vec<Key> {
        references::interested(change, &self.ctx.caches)
    }

    async fn reconcile(&self, key: &Key) -> Result<Outcome, Error> {
        let Some(nodeset) = self.ctx.caches.node_sets.get(&key.namespace, &key.name) else {
            self.forget(key);
            return Ok(Outcome::settled());
        };
        let surroundings = Surroundings {
            knowledge: self.knowledge(&nodeset, key).await,
            images: self.ctx.defaults.images.clone(),
            cluster_domain: self.ctx.cluster_domain.clone(),
            propagated_conditions: self.ctx.defaults.propagated_node_conditions.clone(),
            crds_outdated: self.ctx.crds_outdated(),
            empty_since: self.memory(key, |memory| memory.empty_since),
            now: self.ctx.clock.now(),
        };
        let Some(mut observed) = observe(&self.ctx.caches, key, surroundings) else {
            return Ok(Outcome::settled());
        };
        observed.key_mismatch = observed.controller.as_deref().and_then(|controller| {
            let mismatch = find_key_mismatch(controller, &self.ctx.caches, &self.ctx.clusters, observed.now)?;
            Some(mismatch.of_pods(&observed.pods)?.message())
        });
        let plan = plan(&observed);
        let is_empty = plan.waits.contains(&Wait::Unwritten);
        self.memory(key, |memory| {
            memory.empty_since = is_empty.then(|| memory.empty_since.unwrap_or(observed.now));
        });
        let executor = Executor {
            ctx: &self.ctx,
            writer: &self.writer,
            observed: &observed,
            end_requests: &self.end_requests,
            reported_stale_jobs: &self.reported_stale_jobs,
            reservation_requests: &self.reservation_requests,
        };
        let follower = Follower::NodeSet(key.clone());
        self.ctx
            .clusters
            .follow_jobs(&executor.cluster(), &follower, plan.needs_jobs);
        let mut applied = executor.apply(&plan).await;
        let mirror = self.apply_mirror(key, &executor).await;
        applied.problems.extend(mirror.complaints);
        let postponed = self.write_status(key, &observed, &plan, &applied).await?;
        if let Some(error) = applied.error {
            return Err(error);
        }
        let available = status::until_available(&observed).and_then(|left| Duration::try_from(left).ok());
        // The state changed before an order of ours arrived, so the next plan is made on the new state.
        let again = applied.changed.then_some(SOON);
        let taken = applied.name_taken.then_some(TAKEN_RETRY);
        let requeue = [plan.requeue, mirror.requeue, postponed, available, again, taken]
            .into_iter()
            .flatten()
            .min();
        Ok(Outcome {
            state: status::state(&plan),
            requeue,
        })
    }
}
