//! What is to be done about a Partition. Pure.

use std::{sync::Arc, time::Duration};

use api::{
    ConditionStatus, Controller, Partition, Validate, conditions::READY, keys::PARTITION_FINALIZER,
    partition::PartitionDeletionPolicy,
};
use kube::ResourceExt as _;
use slurm::{Job, JobHandle, job::JobStateName, partition::PartitionState};

use super::{
    drift::{Baseline, Found},
    external::{self, ExternalEffect, channel::Reach},
    memory::Memory,
    observe::Observed,
    restore::{is_reverted, plan_restore},
};
use crate::{
    cluster::{Knowledge, partition_reports::PartitionReport},
    fault::{self, Fault},
    runtime::Warning,
};

/// How a Partition is, by all that is known.
#[derive(Clone, Debug)]
pub(super) struct View {
    pub(super) partition: Arc<Partition>,
    pub(super) controller: Option<Arc<Controller>>,
    /// Its namespace is being deleted.
    pub(super) is_namespace_deleted: bool,
    /// `None` while it is not known how it is.
    pub(super) report: Option<PartitionReport>,
    pub(super) knowledge: Knowledge,
    /// What people changed in Slurm, but for its state.
    pub(super) found: Found,
}

impl View {
    /// Whether its slurmctld runs outside Kubernetes.
    pub(super) fn is_external(&self) -> bool {
        let controller = self.controller.as_ref();
        controller.is_some_and(|controller| controller.spec.is_external())
    }
}

/// What is to be done, and how things are before that.
#[derive(Clone, Debug)]
pub(super) struct Plan {
    pub(super) view: View,
    /// In this order.
    pub(super) effects: Vec<Effect>,
    /// Its jobs decide when it goes.
    pub(super) needs_jobs: bool,
    /// When to reconcile again although nothing changed in Kubernetes.
    pub(super) again: Option<Duration>,
    /// The object goes and its partition stays in Slurm, for this reason.
    pub(super) stays: Option<String>,
}

/// What there is to say about a Partition.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Assessment {
    pub(super) faults: Vec<Fault>,
    /// What it is on its way to, where nobody needs to do anything.
    pub(super) progress: Option<Progress>,
    /// Why it is not gone yet, though deleted.
    pub(super) retained: Option<Progress>,
    /// The next poll decides whether it is ready.
    pub(super) needs_poll: bool,
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
    /// Jobs that are in no other partition.
    CancelJobs(Vec<JobHandle>),
    /// Send something to a slurmctld outside Kubernetes.
    External(ExternalEffect),
    /// Make slurmctld take these keys from the Partition's line again.
    Restore(Vec<String>),
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

/// Plans what is to be done. `memory` is that of this Partition.
pub(super) fn plan(observed: &Observed, memory: &mut Memory) -> Plan {
    let external = observed
        .external
        .as_ref()
        .map(|reach| external::plan(observed, reach, memory));
    let report = match &external {
        Some(external) => external.report.clone(),
        None => observed.report.clone(),
    };
    let mut view = View {
        partition: Arc::clone(&observed.partition),
        controller: observed.controller.clone(),
        is_namespace_deleted: observed.is_namespace_deleted,
        report,
        knowledge: observed.knowledge.clone(),
        found: Found::default(),
    };
    view.found = Baseline::find_drift(&mut memory.baseline, &view);
    let external = external.unwrap_or_default();
    let restored = Some(plan_restore(&view)).filter(|keys| !keys.is_empty());
    let mut effects = plan_object(&view);
    effects.extend(external.effect.map(Effect::External));
    effects.extend(restored.map(Effect::Restore));
    Plan {
        needs_jobs: is_closing(&view),
        effects,
        again: external.again,
        stays: external.stays,
        view,
    }
}

/// Whether slurmrestd, which is polled more often, has returned something else than the last poll of a slurmctld outside Kubernetes.
pub(super) fn is_outdated(observed: &Observed, plan: &Plan) -> bool {
    let (Some(Reach::Reached(reached)), Some(seen)) = (&observed.external, observed.knowledge.known()) else {
        return false;
    };
    // Through slurmrestd it was read just now.
    let Ok(cluster) = &reached.view.cluster else {
        return false;
    };
    let name = observed.partition.slurm_name();
    let shown = seen.partitions.as_ref().and_then(|partitions| partitions.get(&name));
    let state = cluster.partition(&name).and_then(|live| live.state.name());
    let state = state.map(PartitionState::Known);
    let has_other_state = shown.is_some_and(|shown| Some(&shown.state) != state.as_ref());
    let has_drift = plan.view.found.drift.iter().any(|drift| !is_reverted(drift));
    seen.at > reached.view.at && (has_other_state || has_drift)
}

fn has_finalizer(partition: &Partition) -> bool {
    partition
        .finalizers()
        .iter()
        .any(|finalizer| finalizer == PARTITION_FINALIZER)
}

/// What is to be done about the object itself and its jobs.
pub(super) fn plan_object(view: &View) -> Vec<Effect> {
    let partition = view.partition.as_ref();
    let has_finalizer = has_finalizer(partition);
    if partition.metadata.deletion_timestamp.is_none() {
        return (!has_finalizer).then_some(Effect::AddFinalizer).into_iter().collect();
    }
    if !has_finalizer {
        return Vec::new();
    }
    if !is_closing(view) {
        return vec![Effect::RemoveFinalizer];
    }
    let cancels = partition.spec.deletion_policy() == PartitionDeletionPolicy::Cancel;
    let jobs = Some(own_jobs(view)).filter(|jobs| cancels && !jobs.is_empty());
    jobs.map(Effect::CancelJobs).into_iter().collect()
}

/// Whether a deleted Partition waits for its line to go. It goes at once where there is nothing it could be in.
pub(super) fn is_closing(view: &View) -> bool {
    let partition = view.partition.as_ref();
    let controller = view.controller.as_ref();
    let is_cluster_deleted = view.is_namespace_deleted
        || controller.is_none_or(|controller| controller.metadata.deletion_timestamp.is_some());
    let is_gone = view.report.as_ref().is_some_and(|report| report.line.is_none());
    partition.metadata.deletion_timestamp.is_some() && has_finalizer(partition) && !is_cluster_deleted && !is_gone
}

/// Assesses how a Partition is.
pub(super) fn assess(view: &View) -> Assessment {
    if view.partition.metadata.deletion_timestamp.is_some() {
        return Assessment {
            retained: is_closing(view).then(|| closing(view)),
            ..Assessment::default()
        };
    }
    let faults = faults(view);
    if !faults.is_empty() {
        return Assessment {
            faults,
            ..Assessment::default()
        };
    }
    Assessment {
        progress: progress(view),
        needs_poll: matches!(sight(view), Some(Sight::NotYet { .. })),
        ..Assessment::default()
    }
}

fn closing(view: &View) -> Progress {
    let trouble = view.report.as_ref().and_then(|report| report.trouble.as_ref());
    match trouble {
        Some(trouble) => Progress::new(trouble.reason, trouble.message.clone()),
        None => Progress::new(
            reason::CLOSING,
            "it takes no new jobs, and goes when those it has are gone",
        ),
    }
}

fn faults(view: &View) -> Vec<Fault> {
    let partition = view.partition.as_ref();
    let invalid = Fault::of(&partition.check());
    if !invalid.is_empty() {
        return invalid;
    }
    let name = &partition.spec.controller_ref.name;
    if view.controller.is_none() {
        let message = format!(
            "spec.controllerRef.name names Controller {name:?}, which does not exist; make it, or make a Partition for another"
        );
        return vec![Fault::new(fault::CONTROLLER_MISSING, message)];
    }
    let trouble = view.report.as_ref().and_then(|report| report.trouble.as_ref());
    if let Some(trouble) = trouble {
        return vec![trouble.clone()];
    }
    let missing = matches!(sight(view), Some(Sight::Missing)).then(|| {
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
fn sight(view: &View) -> Option<Sight> {
    let report = view
        .report
        .as_ref()
        .filter(|report| report.waits.is_none() && report.runs)?;
    let generation = view.partition.metadata.generation;
    let line = report
        .line
        .as_ref()
        .filter(|line| Some(line.generation) == generation)?;
    // Whoever told a slurmctld outside has read it back in the same step.
    if view.is_external() {
        return Some(Sight::Found);
    }
    let seen = view.knowledge.known();
    let Some((at, listed)) = seen.and_then(|seen| Some((seen.at, seen.partitions.as_ref()?))) else {
        return Some(if was_ready(view) {
            // The last look found it, and what became of Slurm since then is told elsewhere.
            Sight::Found
        } else {
            let why = match &view.knowledge {
                Knowledge::Unknown { why } => why.clone(),
                Knowledge::Known(_) => "it did not tell its partitions".to_owned(),
            };
            Sight::NotYet { why: Some(why) }
        });
    };
    Some(if listed.contains_key(&line.name) {
        Sight::Found
    } else if report.live_since.is_some_and(|since| at > since) {
        Sight::Missing
    } else {
        Sight::NotYet { why: None }
    })
}

fn was_ready(view: &View) -> bool {
    let status = view.partition.status.as_ref();
    let mut conditions = status.into_iter().flat_map(|status| &status.conditions);
    conditions.any(|condition| condition.type_ == READY && condition.status == ConditionStatus::True)
}

/// None if slurmctld has it as it is written, and a look at Slurm found it.
fn progress(view: &View) -> Option<Progress> {
    let controller = &view.partition.spec.controller_ref.name;
    let Some(report) = &view.report else {
        return Some(Progress::new(
            reason::APPLYING,
            format!("Controller {controller:?} has not taken it in yet"),
        ));
    };
    if let Some(why) = &report.waits {
        return Some(Progress::new(
            reason::WAITING,
            format!("Controller {controller:?} waits: {why}"),
        ));
    }
    let generation = view.partition.metadata.generation;
    let is_live = report.runs
        && report
            .line
            .as_ref()
            .is_some_and(|line| Some(line.generation) == generation);
    if !is_live {
        return Some(Progress::new(reason::APPLYING, "it is on its way to slurmctld"));
    }
    match sight(view) {
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

/// Its jobs that nobody has ended yet, once it takes no others. One that may run in another partition too is not its own.
fn own_jobs(view: &View) -> Vec<JobHandle> {
    let line = view.report.as_ref().and_then(|report| report.line.as_ref());
    let jobs = view.knowledge.known().and_then(|seen| seen.jobs.as_ref());
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
