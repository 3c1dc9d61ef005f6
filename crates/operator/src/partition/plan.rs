//! What is to be done about a Partition. Pure.

use api::{Validate, keys::PARTITION_FINALIZER, partition::PartitionDeletionPolicy};
use kube::ResourceExt as _;
use slurm::{Job, JobHandle, job::JobStateName};

use super::observe::Observed;
use crate::{
    fault::{self, Fault},
    runtime::Warning,
};

/// What is to be done, and what is wrong.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Plan {
    pub(super) faults: Vec<Fault>,
    /// What it is on its way to, where nobody needs to do anything.
    pub(super) progress: Option<Progress>,
    /// Why it is not gone yet, though deleted.
    pub(super) retained: Option<Progress>,
    pub(super) effects: Vec<Effect>,
    /// Its jobs decide when it goes.
    pub(super) needs_jobs: bool,
}

/// Something that is waited for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Progress {
    pub(super) reason: &'static str,
    pub(super) message: String,
}

/// Something to do outside of the status.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Effect {
    AddFinalizer,
    RemoveFinalizer,
    /// Of its jobs, which are in no other partition.
    CancelJobs(Vec<JobHandle>),
}

/// An event about what is wrong. Helm makes NodeSets and Controllers beside it, in an order of its own.
pub(super) fn warning(fault: &Fault) -> Warning<'_> {
    Warning {
        reason: fault.reason,
        message: &fault.message,
        may_pass: [fault::CONTROLLER_MISSING, reason::BAD_MEMBERS].contains(&fault.reason),
    }
}

impl Progress {
    fn new(reason: &'static str, message: impl Into<String>) -> Self {
        Self {
            reason,
            message: message.into(),
        }
    }
}

/// Reasons of conditions and events. Those of the Controller come beside them.
pub(super) mod reason {
    pub(in crate::partition) const CANNOT_CREATE: &str = "CannotCreate";
    pub(in crate::partition) const BAD_MEMBERS: &str = "BadMembers";
    pub(in crate::partition) const APPLYING: &str = "Applying";
    pub(in crate::partition) const WAITING: &str = "Waiting";
    pub(in crate::partition) const CLOSING: &str = "Closing";
}

pub(super) fn plan(observed: &Observed) -> Plan {
    let partition = observed.partition.as_ref();
    let has_finalizer = partition
        .finalizers()
        .iter()
        .any(|finalizer| finalizer == PARTITION_FINALIZER);
    if partition.metadata.deletion_timestamp.is_some() {
        return plan_deletion(observed, has_finalizer);
    }
    let mut plan = Plan {
        faults: faults(observed),
        ..Plan::default()
    };
    if !has_finalizer {
        plan.effects.push(Effect::AddFinalizer);
    }
    if plan.faults.is_empty() {
        plan.progress = progress(observed);
    }
    plan
}

fn faults(observed: &Observed) -> Vec<Fault> {
    let partition = observed.partition.as_ref();
    let invalid = Fault::of(&partition.check());
    if !invalid.is_empty() {
        return invalid;
    }
    let name = &partition.spec.controller_ref.name;
    if observed.controller.is_none() {
        let message = format!(
            "spec.controllerRef.name names Controller {name:?}, which does not exist; make it, or make a Partition for another"
        );
        return vec![Fault::new(fault::CONTROLLER_MISSING, message)];
    }
    let trouble = observed
        .standing
        .as_ref()
        .and_then(|standing| standing.trouble.as_ref());
    trouble.cloned().into_iter().collect()
}

/// None if slurmctld has it as it is written.
fn progress(observed: &Observed) -> Option<Progress> {
    let controller = &observed.partition.spec.controller_ref.name;
    let Some(standing) = &observed.standing else {
        return Some(Progress::new(
            reason::APPLYING,
            format!("Controller {controller:?} has not taken it in yet"),
        ));
    };
    if let Some(why) = &standing.waits {
        return Some(Progress::new(
            reason::WAITING,
            format!("Controller {controller:?} waits: {why}"),
        ));
    }
    let generation = observed.partition.metadata.generation;
    let is_live = standing.runs
        && standing
            .line
            .as_ref()
            .is_some_and(|line| Some(line.generation) == generation);
    (!is_live).then(|| Progress::new(reason::APPLYING, "it is on its way to slurmctld"))
}

/// It goes when its line has gone; at once where there is nothing it could be in.
fn plan_deletion(observed: &Observed, has_finalizer: bool) -> Plan {
    let mut plan = Plan::default();
    if !has_finalizer {
        return plan;
    }
    let cluster_goes = observed.namespace_goes
        || observed
            .controller
            .as_ref()
            .is_none_or(|controller| controller.metadata.deletion_timestamp.is_some());
    let is_gone = observed
        .standing
        .as_ref()
        .is_some_and(|standing| standing.line.is_none());
    if cluster_goes || is_gone {
        plan.effects.push(Effect::RemoveFinalizer);
        return plan;
    }
    plan.needs_jobs = true;
    let trouble = observed
        .standing
        .as_ref()
        .and_then(|standing| standing.trouble.as_ref());
    plan.retained = Some(match trouble {
        Some(trouble) => Progress::new(trouble.reason, trouble.message.clone()),
        None => Progress::new(
            reason::CLOSING,
            "it takes no new jobs, and goes when those it has are gone",
        ),
    });
    if observed.partition.spec.deletion_policy() == PartitionDeletionPolicy::Cancel {
        let jobs = own_jobs(observed);
        if !jobs.is_empty() {
            plan.effects.push(Effect::CancelJobs(jobs));
        }
    }
    plan
}

/// Its jobs that nobody has ended yet, once it takes no others. One that may run in another partition too is not its own.
fn own_jobs(observed: &Observed) -> Vec<JobHandle> {
    let line = observed.standing.as_ref().and_then(|standing| standing.line.as_ref());
    let jobs = observed.knowledge.known().and_then(|seen| seen.jobs.as_ref());
    let (Some(line), Some(jobs)) = (line.filter(|line| line.is_closed()), jobs) else {
        return Vec::new();
    };
    let is_own = |job: &&Job| !job.partition.is_empty() && job.partitions().all(|partition| partition == line.name);
    jobs.iter()
        .filter(|job| !job.state.is_finished() && !job.state.has(JobStateName::Completing))
        .filter(is_own)
        .map(Job::handle)
        .collect()
}
