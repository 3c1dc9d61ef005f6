//! Plans a Partition. Pure.

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
    fault::Fault,
    reason,
    runtime::Warning,
};

/// The state of a Partition.
#[derive(Clone, Debug)]
pub(super) struct View {
    pub(super) partition: Arc<Partition>,
    pub(super) controller: Option<Arc<Controller>>,
    /// The namespace is being deleted.
    pub(super) is_namespace_deleted: bool,
    /// `None` while its state is not known.
    pub(super) report: Option<PartitionReport>,
    pub(super) knowledge: Knowledge,
    /// Manual changes in Slurm other than the state.
    pub(super) found: Found,
}

impl View {
    /// Whether its slurmctld runs outside Kubernetes.
    pub(super) fn is_external(&self) -> bool {
        let controller = self.controller.as_ref();
        controller.is_some_and(|controller| controller.spec.is_external())
    }
}

/// The effects of a plan, and the state before them.
#[derive(Clone, Debug)]
pub(super) struct Plan {
    pub(super) view: View,
    /// In the order in which they are carried out.
    pub(super) effects: Vec<Effect>,
    /// Its deletion waits for its jobs.
    pub(super) needs_jobs: bool,
    /// When to reconcile again without a change in Kubernetes.
    pub(super) again: Option<Duration>,
    /// Why the partition is kept in Slurm although the object is deleted.
    pub(super) stays: Option<String>,
}

/// The faults and the progress of a Partition.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Assessment {
    pub(super) faults: Vec<Fault>,
    /// What it waits for, if no action of a user is needed.
    pub(super) progress: Option<Progress>,
    /// Why it still exists although it was deleted.
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

/// An action other than writing the status.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Effect {
    AddFinalizer,
    RemoveFinalizer,
    /// Jobs that are in no other partition.
    CancelJobs(Vec<JobHandle>),
    /// Send an order to an external slurmctld.
    External(ExternalEffect),
    /// Make slurmctld reload these keys from the Partition's line.
    Restore(Vec<String>),
}

/// An event about a fault. Some may pass: Helm creates NodeSets and Controllers in its own order.
pub(super) fn warning(fault: &Fault) -> Warning<'_> {
    Warning {
        reason: fault.reason,
        message: &fault.message,
        may_pass: [reason::CONTROLLER_MISSING, reason::BAD_MEMBERS, reason::NOT_IN_SLURM].contains(&fault.reason),
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

/// Plans the effects. `memory` belongs to this Partition.
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

/// Whether slurmrestd, which is polled more often, returned other values than the external slurmctld.
pub(super) fn is_outdated(observed: &Observed, plan: &Plan) -> bool {
    let (Some(Reach::Reached(reached)), Some(seen)) = (&observed.external, observed.knowledge.known()) else {
        return false;
    };
    // If the cluster was read through slurmrestd, it was read just now.
    let Ok(cluster) = &reached.view.cluster else {
        return false;
    };
    let name = observed.partition.slurm_name();
    let listed = seen.partitions.as_ref().and_then(|partitions| partitions.get(&name));
    let state = cluster.partition(&name).and_then(|live| live.state.name());
    let state = state.map(PartitionState::Known);
    let has_other_state = listed.is_some_and(|listed| Some(&listed.state) != state.as_ref());
    let has_drift = plan.view.found.drift.iter().any(|drift| !is_reverted(drift));
    seen.at > reached.view.at && (has_other_state || has_drift)
}

fn has_finalizer(partition: &Partition) -> bool {
    partition
        .finalizers()
        .iter()
        .any(|finalizer| finalizer == PARTITION_FINALIZER)
}

/// Plans the effects on the object itself and its jobs.
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

/// Whether a deleted Partition waits for the removal of its line. Without a slurmctld it does not wait.
pub(super) fn is_closing(view: &View) -> bool {
    let partition = view.partition.as_ref();
    let controller = view.controller.as_ref();
    let is_cluster_deleted = view.is_namespace_deleted
        || controller.is_none_or(|controller| controller.metadata.deletion_timestamp.is_some());
    let is_gone = view.report.as_ref().is_some_and(|report| report.line.is_none());
    partition.metadata.deletion_timestamp.is_some() && has_finalizer(partition) && !is_cluster_deleted && !is_gone
}

/// Assesses the state of a Partition.
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
        needs_poll: matches!(presence(view), Some(Presence::NotYet { .. })),
        ..Assessment::default()
    }
}

fn closing(view: &View) -> Progress {
    let trouble = view.report.as_ref().and_then(|report| report.trouble.as_ref());
    match trouble {
        Some(trouble) => Progress::new(trouble.reason, trouble.message.clone()),
        None => Progress::new(
            reason::CLOSING,
            "it accepts no new jobs, and is deleted when its jobs have ended",
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
            "spec.controllerRef.name names Controller {name:?}, which does not exist; create it, or create a Partition for another one"
        );
        return vec![Fault::new(reason::CONTROLLER_MISSING, message)];
    }
    let trouble = view.report.as_ref().and_then(|report| report.trouble.as_ref());
    if let Some(trouble) = trouble {
        return vec![trouble.clone()];
    }
    let missing = matches!(presence(view), Some(Presence::Missing)).then(|| {
        let name = partition.slurm_name();
        Fault::new(
            reason::NOT_IN_SLURM,
            format!(
                "slurmctld received partition {name:?} and does not list it; run `scontrol reconfigure` to make it read slurm.conf again, and if that does not help see its log"
            ),
        )
    });
    missing.into_iter().collect()
}

/// Whether Slurm lists a partition that slurmctld has received.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Presence {
    Found,
    /// A later poll does not list it.
    Missing,
    NotYet {
        why: Option<String>,
    },
}

/// Returns `None` while slurmctld has not received this generation.
fn presence(view: &View) -> Option<Presence> {
    let report = view
        .report
        .as_ref()
        .filter(|report| report.waits.is_none() && report.runs)?;
    let generation = view.partition.metadata.generation;
    let line = report
        .line
        .as_ref()
        .filter(|line| Some(line.generation) == generation)?;
    // The reconcile that sends it to an external slurmctld reads it back in the same step.
    if view.is_external() {
        return Some(Presence::Found);
    }
    let seen = view.knowledge.known();
    let Some((at, listed)) = seen.and_then(|seen| Some((seen.at, seen.partitions.as_ref()?))) else {
        return Some(if was_ready(view) {
            // The last poll found it; the Controller reports that Slurm does not respond.
            Presence::Found
        } else {
            let why = match &view.knowledge {
                Knowledge::Unknown { why } => why.clone(),
                Knowledge::Known(_) => "it did not return its partitions".to_owned(),
            };
            Presence::NotYet { why: Some(why) }
        });
    };
    Some(if listed.contains_key(&line.name) {
        Presence::Found
    } else if report.live_since.is_some_and(|since| at > since) {
        Presence::Missing
    } else {
        Presence::NotYet { why: None }
    })
}

fn was_ready(view: &View) -> bool {
    let status = view.partition.status.as_ref();
    let mut conditions = status.into_iter().flat_map(|status| &status.conditions);
    conditions.any(|condition| condition.type_ == READY && condition.status == ConditionStatus::True)
}

/// Returns `None` if slurmctld has the partition as specified and a poll found it.
fn progress(view: &View) -> Option<Progress> {
    let controller = &view.partition.spec.controller_ref.name;
    let Some(report) = &view.report else {
        return Some(Progress::new(
            reason::APPLYING,
            format!("Controller {controller:?} has not processed it yet"),
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
        return Some(Progress::new(reason::APPLYING, "it is being sent to slurmctld"));
    }
    match presence(view) {
        Some(Presence::NotYet { why: None }) => Some(Progress::new(
            reason::APPLYING,
            "slurmctld has received it; it is ready when a poll of Slurm has found it",
        )),
        Some(Presence::NotYet { why: Some(why) }) => Some(Progress::new(
            reason::WAITING,
            format!(
                "slurmctld has received it; whether it has applied it is not known, because Slurm cannot be polled: {why}"
            ),
        )),
        Some(Presence::Found | Presence::Missing) | None => None,
    }
}

/// Its unfinished jobs, once it accepts no new ones. A job that may run in another partition does not count.
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
