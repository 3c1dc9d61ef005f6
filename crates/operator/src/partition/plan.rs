//! What is to be done about a Partition. Pure.

use api::{
    ConditionStatus, Validate, conditions::READY, keys::PARTITION_FINALIZER, partition::PartitionDeletionPolicy,
};
use kube::ResourceExt as _;
use slurm::{Job, JobHandle, job::JobStateName};

use super::observe::Observed;
use crate::{
    cluster::Knowledge,
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
    /// The next look at Slurm decides whether it is ready.
    pub(super) needs_look: bool,
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
        may_pass: [fault::CONTROLLER_MISSING, reason::BAD_MEMBERS, reason::NOT_IN_SLURM].contains(&fault.reason),
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
    pub(crate) const CANNOT_CREATE: &str = "CannotCreate";
    pub(crate) const BAD_MEMBERS: &str = "BadMembers";
    pub(crate) const APPLYING: &str = "Applying";
    pub(crate) const WAITING: &str = "Waiting";
    pub(crate) const CLOSING: &str = "Closing";
    pub(crate) const NOT_IN_SLURM: &str = "NotInSlurm";
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
    plan.needs_look = plan.faults.is_empty() && matches!(sight(observed), Some(Sight::NotYet { .. }));
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
    if let Some(trouble) = trouble {
        return vec![trouble.clone()];
    }
    let missing = matches!(sight(observed), Some(Sight::Missing)).then(|| {
        let name = partition.slurm_name();
        Fault::new(
            reason::NOT_IN_SLURM,
            format!(
                "slurmctld was given partition {name:?} and does not list it; `scontrol reconfigure` has it read slurm.conf again, and if that does not help its log says why"
            ),
        )
    });
    missing.into_iter().collect()
}

/// What the last look at Slurm says of a partition that slurmctld was given.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Sight {
    Found,
    /// Slurm was looked at since then, and does not list it.
    Missing,
    NotYet {
        why: Option<String>,
    },
}

/// None while slurmctld has not been given this generation.
fn sight(observed: &Observed) -> Option<Sight> {
    let standing = observed
        .standing
        .as_ref()
        .filter(|standing| standing.waits.is_none() && standing.runs)?;
    let generation = observed.partition.metadata.generation;
    let line = standing
        .line
        .as_ref()
        .filter(|line| Some(line.generation) == generation)?;
    // Whoever told a slurmctld outside has read it back in the same step.
    if observed.is_outside() {
        return Some(Sight::Found);
    }
    let seen = observed.knowledge.known();
    let Some((at, listed)) = seen.and_then(|seen| Some((seen.at, seen.partitions.as_ref()?))) else {
        return Some(if was_ready(observed) {
            // The last look found it, and what became of Slurm since then is told elsewhere.
            Sight::Found
        } else {
            let why = match &observed.knowledge {
                Knowledge::Unknown { why } => why.clone(),
                Knowledge::Known(_) => "it did not tell its partitions".to_owned(),
            };
            Sight::NotYet { why: Some(why) }
        });
    };
    Some(if listed.contains_key(&line.name) {
        Sight::Found
    } else if standing.live_since.is_some_and(|since| at > since) {
        Sight::Missing
    } else {
        Sight::NotYet { why: None }
    })
}

fn was_ready(observed: &Observed) -> bool {
    let status = observed.partition.status.as_ref();
    let mut conditions = status.into_iter().flat_map(|status| &status.conditions);
    conditions.any(|condition| condition.type_ == READY && condition.status == ConditionStatus::True)
}

/// None if slurmctld has it as it is written, and a look at Slurm found it.
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
    if !is_live {
        return Some(Progress::new(reason::APPLYING, "it is on its way to slurmctld"));
    }
    match sight(observed) {
        Some(Sight::NotYet { why: None }) => Some(Progress::new(
            reason::APPLYING,
            "slurmctld was given it; it is ready when a look at Slurm has found it",
        )),
        Some(Sight::NotYet { why: Some(why) }) => Some(Progress::new(
            reason::WAITING,
            format!("slurmctld was given it; whether it has it is not known, since Slurm cannot be asked: {why}"),
        )),
        Some(Sight::Found | Sight::Missing) | None => None,
    }
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
