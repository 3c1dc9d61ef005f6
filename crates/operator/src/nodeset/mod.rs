//! NodeSet: the workers of a cluster.
//!
//! ```text
//!  observe ▶ plan (build) ▶ apply ▶ status
//! ```
//! Workers are made without asking Slurm. They are removed only on proof that no job is there: see [`plan`]'s `proof`.

mod apply;
pub mod build;
pub mod identity;
mod interest;
pub mod mirror;
pub mod observe;
pub mod plan;
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
    apply::{
        ApplyResult as Applied, EndRequests as Told, Executor as Hands, ReportedStaleJobs as Disinherited,
        ReservationRequests as Asked,
    },
    mirror::{Mirror, MirrorMemory as Memory},
    observe::{Environment as Surroundings, Observed, observe},
    plan::{Plan, Wait, plan},
};
use crate::{
    cluster::{Follower, Knowledge},
    cluster_domain,
    key_mismatch::find_key_mismatch,
    runtime::{Caches, Change, Context, Error, Failure, Key, NAME_TAKEN, Outcome, Reconciler, TAKEN_AGAIN, Writer},
    worker::Worker,
};

/// A cluster that answers does so in milliseconds; the first reconcile after a start waits that long for it, so that a
/// restart of the operator does not write "unknown" everywhere.
const FIRST_LOOK: Duration = Duration::from_secs(2);
/// Under load nodes change their state all the time, and each count of them would be a write.
const COUNTS_EVERY: Duration = Duration::from_secs(15);
/// A fresh look at Slurm has been taken by then.
const SOON: Duration = Duration::from_millis(100);
/// After a pod or a node could not be told what the other side says.
const MIRROR_AGAIN: Duration = Duration::from_secs(15);

/// Brings NodeSets to what their specs ask for.
#[derive(Debug)]
pub struct NodeSetReconciler {
    ctx: Context,
    writer: Writer,
    cluster_domain: String,
    /// When the counts of Slurm's nodes were last written.
    counted: Mutex<HashMap<Key, Instant>>,
    /// Jobs that were told to end.
    told: Told,
    /// Jobs of workers that are gone, about which Slurm was told.
    disinherited: Disinherited,
    /// Reservations that were asked for.
    asked: Asked,
    mirrored: Mutex<HashMap<Key, Memory>>,
    /// Since when nothing is left in Slurm of sets that go.
    emptied: Mutex<HashMap<Key, Timestamp>>,
}

impl NodeSetReconciler {
    pub fn new(ctx: Context) -> Self {
        Self {
            writer: Writer::new(&ctx, Self::NAME),
            cluster_domain: cluster_domain::of_this_pod(),
            counted: Mutex::default(),
            told: Told::default(),
            disinherited: Disinherited::default(),
            asked: Asked::default(),
            mirrored: Mutex::default(),
            emptied: Mutex::default(),
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
        self.ctx.clusters.knowledge_within(&controller, FIRST_LOOK).await
    }

    async fn write_status(
        &self,
        key: &Key,
        observed: &Observed,
        plan: &Plan,
        applied: &Applied,
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
            self.counted().insert(key.clone(), Instant::now());
        }
        Ok(None)
    }

    /// What could not be said to the other side is among the complaints.
    async fn apply_mirror(&self, key: &Key, hands: &Hands<'_>) -> Mirror {
        // A key is never looked at twice at once, so nobody else wants it meanwhile.
        let mut memory = self.mirrored().remove(key).unwrap_or_default();
        memory.keep(hands.observed.workers().map(Worker::uid));
        let mut mirror = mirror::mirror(hands.observed, &memory);
        let problems = hands.apply_mirror(&mirror, &mut memory).await;
        if !problems.is_empty() {
            mirror.requeue = Some(mirror.requeue.unwrap_or(MIRROR_AGAIN).min(MIRROR_AGAIN));
            mirror.complaints.extend(problems);
        }
        self.mirrored().insert(key.clone(), memory);
        mirror
    }

    fn mirrored(&self) -> std::sync::MutexGuard<'_, HashMap<Key, Memory>> {
        self.mirrored.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn emptied(&self) -> std::sync::MutexGuard<'_, HashMap<Key, Timestamp>> {
        self.emptied.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn until_next_count(&self, key: &Key) -> Option<Duration> {
        let last = *self.counted().get(key)?;
        (last + COUNTS_EVERY)
            .checked_duration_since(Instant::now())
            .filter(|left| !left.is_zero())
    }

    fn counted(&self) -> std::sync::MutexGuard<'_, HashMap<Key, Instant>> {
        self.counted.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Everything but what comes and goes with every job. Whether there are counts at all is no count.
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

    fn interested(&self, change: &Change, caches: &Caches) -> Vec<Key> {
        interest::interested(change, caches)
    }

    async fn reconcile(&self, key: &Key) -> Result<Outcome, Error> {
        let Some(nodeset) = self.ctx.caches.node_sets.get(&key.namespace, &key.name) else {
            self.counted().remove(key);
            self.mirrored().remove(key);
            self.emptied().remove(key);
            return Ok(Outcome::settled());
        };
        let surroundings = Surroundings {
            knowledge: self.knowledge(&nodeset, key).await,
            images: self.ctx.defaults.images.clone(),
            cluster_domain: self.cluster_domain.clone(),
            propagated_conditions: self.ctx.defaults.propagated_node_conditions.clone(),
            crds_outdated: self.ctx.crds_outdated(),
            empty_since: self.emptied().get(key).copied(),
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
        if plan.waits.contains(&Wait::Unwritten) {
            self.emptied().entry(key.clone()).or_insert(observed.now);
        } else {
            self.emptied().remove(key);
        }
        let hands = Hands {
            ctx: &self.ctx,
            writer: &self.writer,
            observed: &observed,
            told: &self.told,
            disinherited: &self.disinherited,
            asked: &self.asked,
        };
        let follower = Follower::NodeSet(key.clone());
        self.ctx
            .clusters
            .follow_jobs(&hands.cluster(), &follower, plan.needs_jobs);
        let mut applied = hands.apply(&plan).await;
        let mirror = self.apply_mirror(key, &hands).await;
        applied.problems.extend(mirror.complaints);
        let postponed = self.write_status(key, &observed, &plan, &applied).await?;
        if let Some(error) = applied.error {
            return Err(error);
        }
        let available = status::until_available(&observed).and_then(|left| Duration::try_from(left).ok());
        // Somebody was faster than an order of ours: it is planned anew on what they did.
        let again = applied.changed.then_some(SOON);
        let taken = applied.name_taken.then_some(TAKEN_AGAIN);
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
