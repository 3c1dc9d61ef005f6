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
mod out_of_service;
pub mod plan;
mod references;
pub mod status;

#[cfg(test)]
mod end_to_end;
#[cfg(test)]
mod fixture;
#[cfg(test)]
mod golden;
#[cfg(test)]
mod nvsentinel;

use std::{
    collections::{BTreeMap, HashMap},
    sync::{Arc, PoisonError},
    time::Duration,
};

use api::{NodeSet, NodeSetStatus};
use jiff::Timestamp;
use tokio::{sync::Mutex, time::Instant};

use self::{
    apply::{ApplyResult, EndRequests, Executor, LastReservation, ReportedStaleJobs},
    mirror::MirrorMemory,
    observe::{Environment, Observed, observe},
    plan::{ConditionsSeen, LastSeen, Plan, Wait, conditions_seen, plan, vanished_since, without_pod},
    references::REFERENCES,
};
use crate::{
    cluster::{Follower, Knowledge},
    key_mismatch::find_key_mismatch,
    reason,
    runtime::{Change, Context, Error, Failure, Key, Outcome, Reconciler, TAKEN_RETRY, Writer},
};

/// How long the first reconcile after a start waits for Slurm's response, which takes milliseconds: a restart of the operator
/// must not write "unknown" everywhere.
const FIRST_POLL: Duration = Duration::from_secs(2);
/// How often counts alone are written: under load nodes change their states all the time.
const COUNTS_EVERY: Duration = Duration::from_secs(15);
/// By then Slurm has been polled again.
const SOON: Duration = Duration::from_millis(100);
/// When to look again for the result of orders after which Slurm has not responded.
const OUTDATED_RETRY: Duration = Duration::from_secs(1);

/// Reconciles NodeSets.
#[derive(Debug)]
pub struct NodeSetReconciler {
    ctx: Context,
    writer: Writer,
    memories: Memories,
}

/// By the key of the object.
type Memories = Arc<std::sync::Mutex<HashMap<Key, Arc<Mutex<Memory>>>>>;

/// What is remembered of one NodeSet between reconciles.
#[derive(Debug, Default)]
struct Memory {
    /// When the counts of Slurm's nodes were last written.
    counted: Option<Instant>,
    mirror: MirrorMemory,
    /// When the last orders had been sent. A state from before shows them as not carried out, or as reverted by a person.
    ordered: Option<Instant>,
    /// Since when Slurm has no node of a NodeSet that is being deleted.
    empty_since: Option<Timestamp>,
    /// Since when records in Slurm have had no pod.
    without_pod: BTreeMap<String, Timestamp>,
    /// What was last seen of the worker of each name.
    last_seen: BTreeMap<String, LastSeen>,
    /// Since when Kubernetes nodes have had conditions that drain.
    conditions_seen: ConditionsSeen,
    /// Since when pods have been missing that this process never saw.
    vanished_since: Option<Timestamp>,
    end_requests: EndRequests,
    stale_jobs: ReportedStaleJobs,
    reservation: LastReservation,
}

impl NodeSetReconciler {
    pub fn new(ctx: Context) -> Self {
        let memories = Memories::default();
        let counted = Arc::clone(&memories);
        let count = move || counted.lock().unwrap_or_else(PoisonError::into_inner).len();
        ctx.memories.add("nodesets", count);
        Self {
            writer: Writer::new::<NodeSet>(&ctx),
            memories,
            ctx,
        }
    }

    /// Returns also why the Controller is not known although it exists.
    async fn knowledge(&self, cluster: &Key) -> (Knowledge, Option<String>) {
        let Key { namespace, name } = cluster;
        if self.ctx.caches.controllers.get(namespace, name).is_some() {
            return (self.ctx.clusters.knowledge_within(cluster, FIRST_POLL).await, None);
        }
        let unreadable = self.ctx.unseen_controller(cluster).await;
        let why = match &unreadable {
            Some(why) => format!("Controller {name:?} {why}"),
            None => format!("there is no Controller {name:?}"),
        };
        (Knowledge::unknown(why), unreadable)
    }

    /// Returns when to write the status, if not now.
    async fn write_status(
        &self,
        observed: &Observed,
        plan: &Plan,
        applied: &ApplyResult,
        counted: &mut Option<Instant>,
    ) -> Result<Option<Duration>, Error> {
        let failure = (!applied.problems.is_empty()).then(|| Failure {
            reason: if applied.name_taken {
                reason::NAME_TAKEN
            } else {
                reason::RETRYING
            },
            message: applied.problems.join("\n"),
        });
        let wanted = status::status(observed, plan, failure.as_ref());
        let previous = observed.nodeset.status.clone().unwrap_or_default();
        let only_counts = wanted != previous && without_counts(wanted.clone()) == without_counts(previous);
        let now = self.ctx.clock.host().instant();
        let left = counted.map(|last| (last + COUNTS_EVERY).saturating_duration_since(now));
        if only_counts && let Some(left) = left.filter(|left| !left.is_zero()) {
            return Ok(Some(left));
        }
        let value = serde_json::to_value(&wanted).map_err(Error::other)?;
        if self.writer.status(observed.nodeset.as_ref(), value).await? {
            *counted = Some(self.ctx.clock.host().instant());
        }
        Ok(None)
    }

    fn memories(&self) -> std::sync::MutexGuard<'_, HashMap<Key, Arc<Mutex<Memory>>>> {
        self.memories.lock().unwrap_or_else(PoisonError::into_inner)
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
    for node in status.out_of_service.iter_mut().flatten() {
        node.state.clear();
    }
    status
}

impl Reconciler for NodeSetReconciler {
    const NAME: &'static str = "nodeset";
    type Object = NodeSet;

    fn interested(&self, change: &Change) -> Vec<Key> {
        REFERENCES.affected(change, &self.ctx.caches)
    }

    async fn reconcile(&self, key: &Key) -> Result<Outcome, Error> {
        let Some(nodeset) = self.ctx.caches.node_sets.get(&key.namespace, &key.name) else {
            self.memories().remove(key);
            return Ok(Outcome::settled());
        };
        REFERENCES.load(&nodeset, &self.ctx.caches, &self.ctx.client).await?;
        let memory = Arc::clone(self.memories().entry(key.clone()).or_default());
        // One key is never reconciled twice concurrently, so this does not wait.
        let mut memory = memory.lock().await;
        let cluster = Key::new(&key.namespace, &nodeset.spec.controller_ref.name);
        let (mut knowledge, unreadable) = self.knowledge(&cluster).await;
        let is_outdated = knowledge.known().is_some()
            && memory
                .ordered
                .is_some_and(|at| self.ctx.clusters.is_older_than(&cluster, at));
        if is_outdated {
            knowledge = Knowledge::unknown("Slurm has not responded since the last order");
        }
        let environment = Environment {
            images: self.ctx.defaults.images.clone(),
            cluster_domain: self.ctx.cluster_domain.clone(),
            propagated_conditions: self.ctx.defaults.propagated_node_conditions.clone(),
            crds_outdated: self.ctx.crds_outdated(),
            empty_since: memory.empty_since,
            last_seen: std::mem::take(&mut memory.last_seen),
        };
        let now = self.ctx.clock.now();
        let mut observed = observe(&self.ctx.caches, nodeset, knowledge, environment, now);
        observed.unreadable_controller = unreadable;
        observed.key_mismatch = observed.controller.as_deref().and_then(|controller| {
            let mismatch = find_key_mismatch(controller, &self.ctx.caches, &self.ctx.clusters, observed.now)?;
            Some(mismatch.of_pods(&observed.pods)?.message())
        });
        memory.without_pod = without_pod(&observed, &memory.without_pod);
        observed.without_pod.clone_from(&memory.without_pod);
        memory.last_seen.clone_from(&observed.last_seen);
        memory.vanished_since = vanished_since(&observed, memory.vanished_since);
        observed.vanished_since = memory.vanished_since;
        memory.conditions_seen = conditions_seen(&observed, &memory.conditions_seen);
        observed.conditions_seen.clone_from(&memory.conditions_seen);
        let plan = plan(&observed);
        let is_empty = plan.waits.contains(&Wait::Unwritten);
        memory.empty_since = is_empty.then(|| memory.empty_since.unwrap_or(observed.now));
        let executor = Executor {
            ctx: &self.ctx,
            writer: &self.writer,
            observed: &observed,
            key,
            cluster: &cluster,
        };
        let follower = Follower::NodeSet(key.clone());
        let clusters = &self.ctx.clusters;
        clusters.follow_jobs(&cluster, &follower, plan.needs_jobs);
        let mut applied = executor.apply(&plan, &mut memory).await;
        let mirror = executor.apply_mirror(&mut memory.mirror).await;
        applied.problems.extend(mirror.complaints);
        let counted = &mut memory.counted;
        let postponed = self.write_status(&observed, &plan, &applied, counted).await?;
        if let Some(error) = applied.error {
            return Err(error);
        }
        let available = status::until_available(&observed);
        // The state changed before an order of ours arrived, so the next plan is made on the new state.
        let again = applied.changed.then_some(SOON);
        let outdated = is_outdated.then_some(OUTDATED_RETRY);
        let taken = applied.name_taken.then_some(TAKEN_RETRY);
        let requeue = [
            plan.requeue,
            mirror.requeue,
            postponed,
            available,
            again,
            outdated,
            taken,
        ]
        .into_iter()
        .flatten()
        .min();
        Ok(Outcome {
            state: status::state(&plan),
            requeue,
        })
    }
}
