//! Plans what to do about a NodeSet. Pure: the same observation gives the same plan.

mod cordon;
mod daemon;
mod deletion;
mod departure;
mod drains;
mod elastic;
mod health;
mod loss;
mod marks;
mod proof;
mod reject;
mod reservation;
mod revision;
mod rollout;
mod scale;
mod schedule;
mod stale_jobs;

#[cfg(test)]
mod tests;

use std::{collections::BTreeMap, mem::take, time::Duration};

use api::{Problem, Validate, keys};
use kube::ResourceExt;
use serde_json::Value;
use slurm::{AdminState, JobHandle, Node, ReservationName, ReservationRequest};

pub use self::{
    cordon::is_cordoned,
    daemon::fit,
    departure::may_be_ended,
    drains::{in_force_from, reason_to_leave},
    elastic::RecordCreation,
    health::{ConditionsSeen, conditions_seen},
    loss::{
        Death, LastSeen, cut_off, death_of_node, last_places, may_run_unseen, missed_address, note_workers,
        vanished_since, without_pod,
    },
    proof::{Evidence, Occupancy},
    reservation::ReservationReport,
    revision::RevisionPlan,
    stale_jobs::{StaleJobs, stale_jobs, stale_jobs_reason},
};
use super::{
    build::{self, Blueprint},
    observe::Observed,
};
use crate::{
    cluster::{JobOrder, Knowledge, NodeOrder},
    finding::Finding,
    worker::{Cause, Leaving, ObjectId, Worker},
};

/// The changes that `apply` makes, in this order. Nothing else deletes pods or sends orders to Slurm.
#[derive(Clone, Debug, PartialEq)]
pub enum Effect {
    /// Comes before anything is created that has to be cleaned up.
    AddFinalizer,
    RemoveFinalizer {
        /// The cleanup that is skipped, if any.
        because: Option<String>,
    },
    /// Adopts a pod with our labels and name that has no owner.
    AdoptPod { pod: ObjectId },
    /// Sets the Slurm node of a dead worker down, so that its jobs start elsewhere; then frees the pod's name.
    LoseWorker(WorkerLoss),
    /// Creates the claims before the pod.
    CreatePod { pod: Box<Value>, claims: Vec<Value> },
    /// Records that the worker leaves, so that the next leader makes the same choice. `None` reverts that.
    MarkLeaving { pod: ObjectId, leaving: Option<Leaving> },
    /// Drains a node, reverts the operator's drain, or returns a node to service that was down.
    OrderNode {
        order: PlannedOrder,
        /// The pod on which the reason of a drain is recorded before the order, and the time after it. Before a drain is reverted,
        /// the records of it are removed.
        note_on: Option<ObjectId>,
    },
    /// Deletes Slurm's record of a node without a pod, if a fresh snapshot shows that no job needs it.
    DeleteRecord(PlannedOrder),
    /// Creates Slurm's record of a node that power saving starts and stops.
    CreateRecord(RecordCreation),
    /// Removes a worker, if a fresh snapshot shows the same occupancy.
    RemoveWorker(WorkerRemoval),
    /// Requeues or cancels a job whose wait has timed out, if a fresh snapshot shows it on that node and the node drained.
    EndJob(JobEnd),
    /// Ends jobs that Slurm still shows although they ended with the previous worker, if a fresh snapshot shows the same.
    EndStaleJobs {
        pod: ObjectId,
        node: String,
        stale_jobs: StaleJobs,
    },
    /// Allows a worker to be evicted, if a fresh snapshot shows the same occupancy.
    Unprotect {
        pod: ObjectId,
        node: String,
        occupancy: Occupancy,
    },
    /// Sets labels and annotations of a pod.
    MarkPod {
        pod: ObjectId,
        labels: MetadataPatch,
        annotations: MetadataPatch,
    },
    /// Creates or changes the reservation of a scheduled update.
    Reserve { request: ReservationRequest, new: bool },
    /// Deletes the reservation; planned before a [`Effect::Reserve`] that replaces it.
    Unreserve { name: ReservationName },
    /// Adds or removes the NodeSet as an owner of a claim.
    OwnClaim { name: String, uid: String, owned: bool },
}

/// An order to a node. It is rejected if the node has changed since it was planned.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlannedOrder {
    pub node: String,
    pub order: NodeOrder,
    pub expect: AdminState,
}

impl PlannedOrder {
    pub fn new(node: &Node, order: NodeOrder) -> Self {
        Self {
            node: node.name.clone(),
            order,
            expect: node.admin_state(),
        }
    }
}

/// A dead worker.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WorkerLoss {
    /// `None` if the pod no longer exists.
    pub pod: Option<ObjectId>,
    pub death: Death,
    /// The order to Slurm, unless the node is already down.
    pub down: Option<PlannedOrder>,
    /// The worker was deleted on purpose and had no job, so no warning is needed.
    pub is_planned: bool,
}

/// A worker to remove, and what its node looked like when that was planned.
#[derive(Clone, Debug, PartialEq)]
pub struct WorkerRemoval {
    pub pod: ObjectId,
    pub node: String,
    pub occupancy: Occupancy,
    /// Deletes Slurm's record before the pod, so that Slurm does not take a successor for the removed worker. If the record
    /// is kept, the drain is sent again, so that it is in force when the worker is removed. `None` without a record.
    pub order: Option<PlannedOrder>,
    /// Why the record is kept, if it is.
    pub keep_record: Option<String>,
    pub claims: Vec<String>,
}

/// A job to requeue or cancel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JobEnd {
    pub job: JobHandle,
    pub node: String,
    pub order: JobOrder,
}

/// Labels or annotations to set, or to remove.
pub type MetadataPatch = BTreeMap<String, Option<String>>;

/// Why a change has to wait.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Wait {
    /// There is no snapshot of Slurm.
    SlurmUnknown { why: String },
    /// Another pod or NodeSet uses the name.
    NameTaken(String),
    /// Slurm may not have saved yet that the nodes of a deleted NodeSet are gone.
    Unwritten,
    /// Anything else, as a sentence.
    Other(String),
}

impl Wait {
    /// A worker has jobs, or their absence is not proven.
    fn draining(node: &str, why: &str) -> Self {
        Self::Other(format!("node {node} is drained and kept: {why}"))
    }

    pub fn message(&self) -> String {
        match self {
            Self::SlurmUnknown { why } => format!("nothing is removed while Slurm cannot be asked: {why}"),
            Self::Unwritten => "its nodes are deleted in Slurm, which saves its state within seconds".to_owned(),
            Self::NameTaken(message) | Self::Other(message) => message.clone(),
        }
    }
}

#[derive(Clone, Debug, Default, PartialEq)]
pub struct Plan {
    /// Why the workers are left alone, if they are.
    pub rejection: Option<Finding>,
    /// Validation problems that do not block the NodeSet.
    pub warnings: Vec<Problem>,
    pub service: Option<Value>,
    pub budget: Option<Value>,
    pub ssh_config: Option<Value>,
    pub revision: Option<RevisionPlan>,
    pub effects: Vec<Effect>,
    pub waits: Vec<Wait>,
    /// What the status reports about the reservation of a scheduled update.
    pub reservation: ReservationReport,
    /// Whether the poll has to list jobs, because a step waits for their end.
    pub needs_jobs: bool,
    /// Desired number of pods.
    pub desired: u32,
    /// When to reconcile again although nothing changed.
    pub requeue: Option<Duration>,
    /// Labels and annotations to set, by pod.
    marks: BTreeMap<ObjectId, (MetadataPatch, MetadataPatch)>,
}

impl Plan {
    /// Sets labels and annotations of a pod, in one write for all rules.
    fn mark(&mut self, worker: Worker<'_>, labels: MetadataPatch, annotations: MetadataPatch) {
        if !labels.is_empty() || !annotations.is_empty() {
            let (all_labels, all_annotations) = self.marks.entry(worker.id()).or_default();
            all_labels.extend(labels);
            all_annotations.extend(annotations);
        }
    }

    fn apply_marks(&mut self) {
        let marks = take(&mut self.marks).into_iter();
        self.effects
            .extend(marks.map(|(pod, (labels, annotations))| Effect::MarkPod {
                pod,
                labels,
                annotations,
            }));
    }

    /// Adds the wait for a snapshot of Slurm, if there is none.
    fn wait_for_slurm(&mut self, observed: &Observed) {
        if let Knowledge::Unknown { why } = &observed.knowledge {
            self.waits.push(Wait::SlurmUnknown { why: why.clone() });
        }
    }
}

/// Workers created in one reconcile; more would exceed its time.
const BURST: usize = 500;
/// A safety net for missed watch events.
const REQUEUE: Duration = Duration::from_mins(5);
/// A safety net for what the poll does not see while a step waits.
const REQUEUE_WHILE_WAITING: Duration = Duration::from_secs(15);
/// The next step follows the status update that this plan causes.
const SOON: Duration = Duration::from_millis(100);

pub fn plan(observed: &Observed) -> Plan {
    let nodeset = observed.nodeset.as_ref();
    if nodeset.metadata.deletion_timestamp.is_some() {
        return deletion::plan_deletion(observed);
    }
    let problems = nodeset.check();
    let mut plan = Plan {
        warnings: problems.warnings().cloned().collect(),
        desired: nodeset.spec.replicas(),
        requeue: Some(REQUEUE),
        ..Plan::default()
    };
    let controller = match reject::check(observed, &problems) {
        Ok(controller) => controller,
        Err(rejection) => {
            plan.rejection = Some(rejection);
            return plan;
        }
    };
    plan.service = Some(build::build_service(controller, &observed.siblings));
    plan.budget = Some(build::build_disruption_budget(controller, &observed.siblings));
    plan.ssh_config = build::build_ssh_config_map(nodeset);
    let revision = revision::plan_revision(observed);
    let blueprint = Blueprint {
        observed,
        controller,
        revision: &revision.hash,
    };
    plan_workers(observed, &blueprint, &mut plan);
    plan.revision = Some(revision);
    plan
}

/// What the steps decide on.
struct Situation<'a> {
    observed: &'a Observed,
    evidence: Option<Evidence<'a>>,
    /// All active workers that are not dead stay or leave.
    stay: Vec<Worker<'a>>,
    leave: Vec<(Worker<'a>, Cause)>,
}

impl<'a> Situation<'a> {
    fn new(observed: &'a Observed, stay: Vec<Worker<'a>>, leave: Vec<(Worker<'a>, Cause)>) -> Self {
        Self {
            observed,
            evidence: observed.knowledge.known().map(Evidence::new),
            stay,
            leave,
        }
    }

    fn workers(&self) -> impl Iterator<Item = Worker<'a>> {
        let leaving = self.leave.iter().map(|(worker, _)| worker);
        self.stay.iter().chain(leaving).copied()
    }
}

fn plan_workers(observed: &Observed, blueprint: &Blueprint<'_>, plan: &mut Plan) {
    let nodeset = observed.nodeset.as_ref();
    let finalizers = nodeset.finalizers();
    if !finalizers.iter().any(|finalizer| finalizer == keys::NODESET_FINALIZER) {
        plan.effects.push(Effect::AddFinalizer);
    }
    if !observed.orphans.is_empty() {
        // Adopted pods may be all that is missing, so nothing else is planned now.
        let orphans = observed.orphans.iter().map(|pod| Worker(pod).id());
        plan.effects.extend(orphans.map(|pod| Effect::AdoptPod { pod }));
        return;
    }
    let workers: Vec<Worker<'_>> = observed.workers().collect();
    let dead = loss::plan_losses(observed, &workers, plan);
    let mut scale = scale::plan_scale(observed, &workers);
    plan.desired = scale.desired;
    for place in scale.create.iter().take(BURST) {
        let name = &place.hostname;
        if let Some(by) = taken_by(observed, name) {
            plan.waits.push(Wait::NameTaken(format!(
                "the name {name:?} is taken by {by}; rename one of the two or delete the other"
            )));
        } else if is_off_record(observed, name) {
            plan.waits.push(Wait::Other(format!(
                "the name {name:?} has a record in Slurm that power saving has stopped; it is deleted first"
            )));
        } else if let Some(node) = loss::may_be_alive_on(observed, name) {
            plan.waits.push(Wait::Other(format!(
                "the name {name:?} is reserved while its last worker may run jobs on Kubernetes node {node}, which does not answer; \
                 if that machine is off, delete its Node or taint it with node.kubernetes.io/out-of-service"
            )));
        } else if let Some(end) = loss::may_be_alive_until(observed, name) {
            // The poll shows when it has ended.
            plan.needs_jobs = true;
            plan.waits.push(Wait::Other(format!(
                "the name {name:?} is reserved until {end:.0}: the pod of its last worker is gone, but Slurm does not \
                 show that it has ended; if it runs on a node that has just become unreachable, Kubernetes notices that by then"
            )));
        } else {
            plan.effects.push(Effect::CreatePod {
                pod: Box::new(build::build_pod(blueprint, place)),
                claims: build::build_claims(nodeset, place),
            });
        }
    }
    plan.waits.extend(scale.awaited.iter().map(|worker| {
        let pod = worker.name();
        Wait::Other(format!("pod {pod} has to terminate before its successor is created"))
    }));
    scale.stay.retain(|worker| !dead.contains(worker.uid()));
    scale.leave.retain(|(worker, _)| !dead.contains(worker.uid()));
    let mut situation = Situation::new(observed, take(&mut scale.stay), take(&mut scale.leave));
    marks::plan_marks(&situation, plan);
    marks::plan_claims(observed, plan);
    rollout::plan_rollout(&mut situation, blueprint.revision, plan);
    reservation::plan_reservation(&situation, plan);
    plan_steps(&situation, plan);
    loss::plan_returns(&situation, plan);
    loss::plan_unregistered(&situation, plan);
    loss::plan_records(observed, &scale, plan);
    elastic::plan_boot_failures(observed, plan);
    elastic::plan_elastic_records(observed, plan);
    plan.apply_marks();
    if !plan.waits.is_empty() {
        plan.requeue = plan.requeue.map(|requeue| requeue.min(REQUEUE_WHILE_WAITING));
    }
    let requeues = [plan.requeue, loss::until_back(observed), health::until_due(observed)];
    plan.requeue = requeues.into_iter().flatten().min();
}

/// Plans the next step of every worker, whether it stays or leaves.
fn plan_steps(situation: &Situation<'_>, plan: &mut Plan) {
    departure::plan_marks(situation, plan);
    drains::plan_drains(situation, plan);
    cordon::plan_protection(situation, plan);
    departure::plan_removals(situation, plan);
    stale_jobs::plan_stale_jobs(situation, plan);
}

/// Whether Slurm still has the stopped record of a node that autoscaling created and that is not to be started by Slurm.
fn is_off_record(observed: &Observed, name: &str) -> bool {
    let node = observed.knowledge.known().and_then(|seen| seen.nodes.get(name));
    let is_created = observed
        .records
        .get(name)
        .is_some_and(|identity| !identity.settings.is_empty());
    is_created && node.is_some_and(|node| node.state.is_cloud() && node.state.is_off())
}

/// Returns what else uses this node name in the same cluster.
fn taken_by(observed: &Observed, hostname: &str) -> Option<String> {
    let mut sets = observed.siblings.iter();
    if sets.any(|nodeset| nodeset.slurm_name() == hostname) {
        return Some(format!(
            "the NodeSet {hostname:?} itself, which Slurm could not tell from the node"
        ));
    }
    let pod = observed.foreign_hostnames.get(hostname)?;
    Some(format!("pod {}", pod.name))
}

/// Returns how many workers may be unavailable at a time.
fn max_unavailable(observed: &Observed, desired: u32) -> usize {
    let limit = observed.nodeset.spec.update_strategy().max_unavailable(desired);
    size(limit.max(1))
}

fn size(count: u32) -> usize {
    usize::try_from(count).unwrap_or(usize::MAX)
}
