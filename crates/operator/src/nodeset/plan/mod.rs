//! What to do about a NodeSet, from what was observed. Pure: the same observation gives the same plan.

mod choose;
mod claims;
mod cordon;
mod daemon;
mod deletion;
mod departure;
mod drains;
mod fates;
mod inherited;
mod loss;
mod marks;
mod proof;
mod protect;
mod rank;
mod records;
pub mod refuse;
pub mod reservation;
mod revisions;
mod rollout;
mod schedule;
mod service;
mod timeout;

#[cfg(test)]
mod model;
#[cfg(test)]
mod model_loss;
#[cfg(test)]
mod tests;

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use api::{NodeSet, Problem, Validate, keys};
use kube::ResourceExt;
use serde_json::Value;
use slurm::{AdminState, JobHandle, ReservationName, ReservationRequest};

use self::fates::Fates;
pub use self::{
    daemon::{Fit, fit},
    drains::{in_force_from, reason_to_leave},
    inherited::{Inherited, Remedy, inherited, reason_for_them},
    loss::{Death, cut_off, death_of_node, missed_address},
    proof::{Evidence, Standing},
    refuse::Refused,
    reservation::Booking,
    revisions::RevisionPlan,
    service::trouble,
    timeout::may_be_ended,
};
use super::{
    build::{self, Blueprint, SshFiles},
    observe::Observed,
};
use crate::{
    cluster::JobOrder,
    runtime::Key,
    worker::{Cause, Leaving, ObjectId, Worker},
};

/// What is done to the world, in this order. Executors are in `apply.rs`; nothing else deletes or talks to Slurm.
#[derive(Clone, Debug, PartialEq)]
pub enum Effect {
    /// Before anything is made that has to be cleared away.
    AddFinalizer,
    /// The NodeSet may go.
    RemoveFinalizer {
        /// What is left undone, if something is.
        because: Option<String>,
    },
    /// Takes in a pod that has our labels and our name and no owner.
    AdoptPod { pod: ObjectId },
    /// A worker is dead: Slurm is told, so that its jobs start elsewhere; then its pod goes, so that its name can be used
    /// again.
    LoseWorker {
        /// `None` if it is gone already.
        pod: Option<ObjectId>,
        death: Death,
        /// If Slurm does not know.
        down: Option<Down>,
        /// It was deleted on purpose and had no job: nobody has to be warned.
        by_plan: bool,
    },
    /// Claims first, then the pod.
    CreatePod { pod: Box<Value>, claims: Vec<Value> },
    /// Writes the choice down, so that a restart of the operator does not choose again.
    MarkLeaving { pod: ObjectId, leaving: Leaving },
    /// Takes the choice back.
    Spare { pod: ObjectId },
    /// Keeps new jobs away. Like all orders to a node, it is carried out only if the node is still as it was when this was planned.
    DrainNode {
        pod: ObjectId,
        node: String,
        /// `None` leaves the reason that stands there.
        reason: Option<String>,
        /// The pod says first that this drain is ours, and then since when.
        is_noted: bool,
        expect: AdminState,
    },
    /// Takes a drain of ours back.
    UndrainNode {
        pod: ObjectId,
        node: String,
        expect: AdminState,
    },
    /// Brings a node back that was down.
    ResumeNode {
        pod: ObjectId,
        node: String,
        expect: AdminState,
    },
    /// Removes Slurm's record of a node without a pod. It is carried out only if a fresh look at Slurm shows that no job
    /// needs it.
    DeleteRecord { node: String, expect: AdminState },
    /// Removes a worker. It is carried out only if a fresh look at Slurm gives the same standing.
    RemoveWorker {
        pod: ObjectId,
        node: String,
        standing: Standing,
        record: Record,
        claims: Vec<String>,
    },
    /// Requeues or cancels a job that was waited for long enough. It is carried out only if a fresh look at Slurm shows it
    /// on that node, and that drained.
    EndJob {
        job: JobHandle,
        node: String,
        order: JobOrder,
    },
    /// Tells Slurm about jobs that ended with the worker before. It is carried out only if a fresh look at Slurm shows the same.
    Disinherit {
        pod: ObjectId,
        node: String,
        inherited: Inherited,
    },
    /// Lets a worker be evicted. It is carried out only if a fresh look at Slurm gives the same standing.
    Unprotect {
        pod: ObjectId,
        node: String,
        standing: Standing,
    },
    /// Puts these labels and annotations on a pod that lacks them; `None` takes one away.
    MarkPod {
        pod: ObjectId,
        labels: Marks,
        annotations: Marks,
    },
    /// Makes the reservation of a scheduled update, or changes it.
    Reserve {
        request: ReservationRequest,
        /// There is none yet.
        new: bool,
    },
    /// Removes it. Before one is made, where both are planned.
    Unreserve { name: ReservationName },
    /// Makes the NodeSet an owner of a claim, or no longer one.
    OwnClaim { name: String, uid: String, owned: bool },
}

/// What becomes of Slurm's record of a node whose worker is removed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Record {
    /// There is none.
    Absent,
    /// It goes first, so that a successor is not taken for the one that was.
    Delete { expect: AdminState },
    /// It stays, for this reason. Its drain is given once more, so that it still holds when the worker goes.
    Keep { why: String, expect: AdminState },
}

/// A node that is to be down.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Down {
    pub node: String,
    /// `None` leaves the reason that stands there.
    pub reason: Option<String>,
    pub expect: AdminState,
}

/// Labels or annotations to set, or to remove.
pub type Marks = BTreeMap<String, Option<String>>;

/// Why something that should happen does not happen yet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Wait {
    /// Slurm cannot be asked.
    SlurmUnknown { why: String },
    /// A worker's jobs are not done, or it cannot be shown that they are.
    Draining { node: String, why: String },
    /// A name that is to be used is taken.
    NameTaken { name: String, by: String },
    /// A pod has to be gone before another can take its name.
    Leaving { pod: String },
    /// Workers of an older revision are yet to be replaced.
    Updating {
        old: usize,
        /// What has to be right first, if something is not.
        obstacle: Option<String>,
    },
    /// The last worker of a name may be alive on a node that does not answer.
    MayBeAlive { name: String, node: String },
    /// A worker is ready and Slurm does not know it.
    Unregistered { node: String },
    /// Jobs would be lost with the partition.
    Partition { name: String, why: String },
    /// Slurm shows jobs on a worker that ended with the one before it.
    Inherited { node: String, jobs: String },
    /// Somebody took back in Slurm what we had drained, and that is respected.
    Resumed {
        node: String,
        /// It was drained to leave, and not for a cordon.
        leaves: bool,
    },
    /// Nothing is left in Slurm of a set that goes, but Slurm may not have written that down.
    Unwritten,
}

impl Wait {
    /// As a sentence for people.
    pub fn message(&self) -> String {
        match self {
            Self::SlurmUnknown { why } => format!("nothing is removed while Slurm cannot be asked: {why}"),
            Self::Draining { node, why } => format!("node {node} is drained and kept: {why}"),
            Self::NameTaken { name, by } => {
                format!("the name {name:?} is taken by {by}; rename one of the two or delete the other")
            }
            Self::Leaving { pod } => format!("pod {pod} has to be gone before its successor is made"),
            Self::Updating { old, obstacle: None } => format!("{old} workers of an older revision are being replaced"),
            Self::Updating {
                old,
                obstacle: Some(why),
            } => format!(
                "{old} workers of an older revision are yet to be replaced; those of the new one come first: {why}"
            ),
            Self::MayBeAlive { name, node } => format!(
                "the name {name:?} is not used again while jobs may run under it on Kubernetes node {node}, which does not answer; \
                 if that machine is off, delete its Node or taint it with node.kubernetes.io/out-of-service"
            ),
            Self::Unregistered { node } => {
                format!("node {node} is ready and Slurm does not know it; its pod is replaced, so that it registers")
            }
            Self::Partition { name, why } => format!("partition {name:?} goes with the NodeSet: {why}"),
            Self::Inherited { node, jobs } => format!(
                "Slurm shows on node {node} what ended with the worker before this one: {jobs}; it is being told, and scontrol \
                 requeue or scancel settles what stays"
            ),
            Self::Resumed { node, leaves: true } => format!(
                "node {node} is to leave, but somebody has resumed it in Slurm, which stands; drain it with scontrol to let it go"
            ),
            Self::Resumed { node, leaves: false } => format!(
                "node {node} is cordoned, but somebody has resumed it in Slurm, which stands; uncordon and cordon again to drain it"
            ),
            Self::Unwritten => "its nodes are gone from Slurm, which writes that down within seconds".to_owned(),
        }
    }
}

/// What to do about a NodeSet.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Plan {
    /// Nothing is done to its workers, for this reason.
    pub refused: Option<Refused>,
    /// What validation has to say that does not stop the NodeSet.
    pub warnings: Vec<Problem>,
    /// Server-side applied.
    pub service: Option<Value>,
    pub budget: Option<Value>,
    pub ssh_config: Option<Value>,
    pub revision: Option<RevisionPlan>,
    pub effects: Vec<Effect>,
    pub waits: Vec<Wait>,
    /// What is said about the reservation of a scheduled update.
    pub reservation: Booking,
    /// Jobs have to be read, because something waits for their end.
    pub needs_jobs: bool,
    /// Number of pods there should be.
    pub desired: u32,
    /// When to look again although nothing changed.
    pub requeue: Option<Duration>,
}

/// Workers made in one go. More would not be done within one reconcile's time.
const BURST: usize = 500;
/// A worker that has just become ready counts as available only later; and caches can miss an event.
const LOOK_AGAIN: Duration = Duration::from_mins(5);
/// A node that drains is seen by the poller; this is for what the poller cannot see.
const LOOK_AGAIN_WHILE_WAITING: Duration = Duration::from_secs(15);
/// What is written into the status now is acted on next.
const SOON: Duration = Duration::from_millis(100);

/// What to do.
pub fn plan(observed: &Observed) -> Plan {
    let nodeset = observed.nodeset.as_ref();
    if nodeset.metadata.deletion_timestamp.is_some() {
        return deletion::plan_deletion(observed);
    }
    let problems = nodeset.check();
    let mut plan = Plan {
        warnings: problems.warnings().cloned().collect(),
        desired: nodeset.spec.replicas(),
        requeue: Some(LOOK_AGAIN),
        ..Plan::default()
    };
    let controller = match refuse::check(observed, &problems) {
        Ok(controller) => controller,
        Err(refused) => {
            plan.refused = Some(refused);
            return plan;
        }
    };
    let owners: Vec<&NodeSet> = observed.siblings.iter().map(AsRef::as_ref).collect();
    let namespace = nodeset.namespace().unwrap_or_default();
    let names = controller.child_names();
    plan.service = Some(build::build_service(&namespace, &names, &owners));
    plan.budget = Some(build::build_disruption_budget(&namespace, &names, &owners));

    let extra = |ssh: &api::nodeset::Ssh| ssh.extra_sshd_config.clone().unwrap_or_default();
    let ssh = SshFiles {
        sshd_config: nodeset
            .spec
            .wanted_ssh()
            .map(|ssh| build::render_sshd_config(&extra(ssh))),
        sssd_conf: observed.sssd_conf.clone(),
    };
    plan.ssh_config = ssh
        .sshd_config
        .as_ref()
        .map(|sshd_config| build::build_ssh_config_map(nodeset, sshd_config));

    let revision = revisions::plan_revision(observed);
    let blueprint = Blueprint {
        nodeset,
        controller,
        images: &observed.images,
        cluster_domain: &observed.cluster_domain,
        revision: &revision.hash,
        ssh: &ssh,
        slurm_key: observed.slurm_key.as_deref(),
    };
    plan_workers(observed, &blueprint, &mut plan);
    plan.revision = Some(revision);
    plan
}

fn plan_workers(observed: &Observed, blueprint: &Blueprint<'_>, plan: &mut Plan) {
    let nodeset = blueprint.nodeset;
    let finalizers = nodeset.finalizers();
    if !finalizers.iter().any(|finalizer| finalizer == keys::NODESET_FINALIZER) {
        plan.effects.push(Effect::AddFinalizer);
    }
    if !observed.orphans.is_empty() {
        // They may be all that is missing; the next look tells.
        let adopted = observed.orphans.iter().map(|orphan| Effect::AdoptPod {
            pod: Worker(orphan).id(),
        });
        plan.effects.extend(adopted);
        return;
    }
    let workers: Vec<Worker<'_>> = observed.workers().collect();
    let dead = loss::plan_losses(observed, &workers, plan);
    let mut choice = choose::choose(observed, &workers);
    plan.desired = choice.desired;
    for place in choice.create.iter().take(BURST) {
        if let Some(by) = taken_by(observed, &place.hostname) {
            plan.waits.push(Wait::NameTaken {
                name: place.hostname.clone(),
                by,
            });
            continue;
        }
        if let Some(node) = loss::may_be_alive_on(observed, &place.hostname) {
            plan.waits.push(Wait::MayBeAlive {
                name: place.hostname.clone(),
                node: node.to_owned(),
            });
            continue;
        }
        plan.effects.push(Effect::CreatePod {
            pod: Box::new(build::build_pod(blueprint, place)),
            claims: build::build_claims(nodeset, place),
        });
    }
    plan.waits.extend(choice.awaited.iter().map(|worker| Wait::Leaving {
        pod: worker.name().to_owned(),
    }));
    let living: Vec<Worker<'_>> = workers
        .iter()
        .copied()
        .filter(|worker| !dead.contains(worker.uid()))
        .collect();
    marks::plan_marks(blueprint, &living, plan);
    claims::plan_owners(observed, plan);

    let mut fates = std::mem::take(&mut choice.fates).without(&dead);
    let rollout = rollout::choose(observed, &fates, choice.desired, blueprint.revision);
    fates.dismiss(&rollout.replace, Cause::Update);
    plan.waits.extend(rollout.wait);
    let evidence = observed.knowledge.known().map(Evidence::new);
    reservation::plan_reservation(observed, &fates, evidence.as_ref(), choice.desired, plan);
    plan_fates(observed, &fates, evidence.as_ref(), plan);
    loss::plan_returns(observed, &fates, plan);
    loss::plan_unregistered(observed, &fates, choice.desired, plan);
    let now: BTreeSet<&str> = choice.create.iter().map(|place| place.hostname.as_str()).collect();
    let is_wanted = |hostname: &str| now.contains(hostname) || choice.is_made_later(nodeset, hostname);
    records::plan_records(observed, is_wanted, plan);
    marks::gather(&mut plan.effects);
    if !plan.waits.is_empty() {
        plan.requeue = plan.requeue.map(|requeue| requeue.min(LOOK_AGAIN_WHILE_WAITING));
    }
}

/// The next step for every worker, whether it stays or goes.
fn plan_fates(observed: &Observed, fates: &Fates<'_>, evidence: Option<&Evidence<'_>>, plan: &mut Plan) {
    departure::plan_marks(observed, fates, plan);
    drains::plan_drains(observed, fates, plan);
    protect::plan_protection(observed, fates, evidence, plan);
    departure::plan_removals(observed, fates, evidence, plan);
    inherited::plan_inherited(observed, fates, evidence, plan);
}

/// Who has this node name in the same cluster already.
fn taken_by(observed: &Observed, hostname: &str) -> Option<String> {
    let sets: BTreeSet<String> = observed.siblings.iter().map(|nodeset| nodeset.slurm_name()).collect();
    if sets.contains(hostname) {
        return Some(format!(
            "the set {hostname:?} itself, and Slurm could not tell node and set apart"
        ));
    }
    let pod: &Key = observed.foreign_hostnames.get(hostname)?;
    Some(format!("pod {}", pod.name))
}
