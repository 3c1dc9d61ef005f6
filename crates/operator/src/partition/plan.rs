//! Plans a Partition. Pure.

use std::time::Duration;

use api::{
    ConditionStatus, Partition, Validate, conditions::READY, keys::PARTITION_FINALIZER,
    partition::PartitionDeletionPolicy,
};
use kube::ResourceExt as _;
use slurm::{Job, JobHandle, job::JobStateName, partition::PartitionState};

use super::{
    Memory,
    drift::{Baseline, is_reverted, plan_restore},
    external::{self, ExternalEffect, channel::Reach},
    observe::Observed,
    rules::{closing::is_closed, line::PartitionLine},
};
use crate::{
    cluster::{Knowledge, partition_reports::PartitionReport},
    finding::Finding,
    reason,
    runtime::Warning,
    secret::missing_controller,
};

/// The effects of a plan.
#[derive(Clone, Debug, Default)]
pub(super) struct Plan {
    /// The state of a Partition of an external slurmctld before the effects. `None` while it is not known.
    pub(super) report: Option<PartitionReport>,
    /// In the order in which they are carried out.
    pub(super) effects: Vec<Effect>,
    /// When to reconcile again without a change in Kubernetes.
    pub(super) again: Option<Duration>,
}

/// The faults of a Partition, or what it waits for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Assessment {
    pub(super) faults: Vec<Finding>,
    /// What it waits for, if no action of a user is needed.
    pub(super) waits: Option<Finding>,
    /// The next poll decides whether it is ready.
    pub(super) needs_poll: bool,
}

/// An action other than writing the status.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Effect {
    AddFinalizer,
    RemoveFinalizer,
    /// Tell why the partition is kept in Slurm although the object is deleted.
    TellKept(String),
    /// Jobs that are in no other partition.
    CancelJobs(Vec<JobHandle>),
    /// Send an order to an external slurmctld.
    External(ExternalEffect),
    /// Make slurmctld reload these keys from the Partition's line.
    Restore(Vec<String>),
}

/// An event about a fault. Some may pass: Helm creates NodeSets and Controllers in its own order.
pub(super) fn warning(fault: &Finding) -> Warning<'_> {
    Warning {
        reason: fault.reason,
        message: &fault.message,
        may_pass: [reason::CONTROLLER_MISSING, reason::BAD_MEMBERS, reason::NOT_IN_SLURM].contains(&fault.reason),
    }
}

/// Plans the effects, and completes `observed` with the report of an external slurmctld and with manual changes. `memory`
/// belongs to this Partition.
pub(super) fn plan(observed: &mut Observed, memory: &mut Memory) -> Plan {
    let mut plan = Plan::default();
    if let Some(reach) = &observed.external {
        plan = external::plan(observed, reach, memory.refusal.as_ref());
        observed.report = plan.report.take();
    }
    observed.found = Baseline::find_drift(&mut memory.baseline, observed);
    plan.effects.splice(0..0, plan_object(observed));
    let restored = Some(plan_restore(observed)).filter(|keys| !keys.is_empty());
    plan.effects.extend(restored.map(Effect::Restore));
    plan
}

/// Whether slurmrestd, which is polled more often, returned other values than the external slurmctld.
pub(super) fn is_outdated(observed: &Observed) -> bool {
    let (Some(Reach::Reached(reached)), Some(seen)) = (&observed.external, observed.knowledge.known()) else {
        return false;
    };
    let name = observed.partition.slurm_name();
    let listed = seen.partitions.as_ref().and_then(|partitions| partitions.get(&name));
    let state = reached.cluster.partition(&name).and_then(|live| live.state.name());
    let state = state.map(PartitionState::Known);
    let has_other_state = listed.is_some_and(|listed| Some(&listed.state) != state.as_ref());
    let has_drift = observed.found.drift.iter().any(|drift| !is_reverted(drift));
    seen.at > reached.at && (has_other_state || has_drift)
}

pub(super) fn has_finalizer(partition: &Partition) -> bool {
    let mut finalizers = partition.finalizers().iter();
    finalizers.any(|finalizer| finalizer == PARTITION_FINALIZER)
}

/// Plans the effects on the object itself and its jobs.
pub(super) fn plan_object(observed: &Observed) -> Vec<Effect> {
    let partition = observed.partition.as_ref();
    let is_leaving = partition.metadata.deletion_timestamp.is_some();
    let cancels = partition.spec.deletion_policy() == PartitionDeletionPolicy::Cancel;
    match (is_leaving, has_finalizer(partition)) {
        (false, false) => vec![Effect::AddFinalizer],
        (false, true) | (true, false) => Vec::new(),
        (true, true) if !is_closing(observed) => vec![Effect::RemoveFinalizer],
        (true, true) => {
            let jobs = Some(own_jobs(observed)).filter(|jobs| cancels && !jobs.is_empty());
            jobs.map(Effect::CancelJobs).into_iter().collect()
        }
    }
}

/// Whether a deleted Partition waits for the removal of its line. Without a slurmctld it does not wait.
pub(super) fn is_closing(observed: &Observed) -> bool {
    let partition = observed.partition.as_ref();
    let controller = observed.controller.as_ref();
    let is_cluster_deleted = observed.is_namespace_deleted
        || controller.map_or(observed.unreadable_controller.is_none(), |controller| {
            controller.metadata.deletion_timestamp.is_some()
        });
    let is_absent = |report: &PartitionReport| report.line.is_none() && !report.may_have_line;
    let is_gone = observed.report.as_ref().is_some_and(is_absent);
    partition.metadata.deletion_timestamp.is_some() && has_finalizer(partition) && !is_cluster_deleted && !is_gone
}

impl Assessment {
    fn at_fault(faults: Vec<Finding>) -> Self {
        Self {
            faults,
            ..Self::default()
        }
    }

    fn waiting(reason: &'static str, message: impl Into<String>) -> Self {
        Self {
            waits: Some(Finding::blocking(reason, message)),
            ..Self::default()
        }
    }

    /// Why the Partition still exists although it was deleted.
    pub(super) fn retained(&self, partition: &Partition) -> Option<&Finding> {
        let is_deleted = partition.metadata.deletion_timestamp.is_some();
        self.waits.as_ref().filter(|_| is_deleted)
    }
}

/// Assesses the state of a Partition.
pub(super) fn assess(observed: &Observed) -> Assessment {
    let partition = observed.partition.as_ref();
    let controller = &partition.spec.controller_ref.name;
    let report = observed.report.as_ref();
    let trouble = report.and_then(|report| report.trouble.clone());
    let waits = report.and_then(|report| report.waits.as_ref());
    let waits = waits.map(|why| format!("Controller {controller:?} waits: {why}"));
    let unreadable = observed.unreadable_controller.as_deref();
    let unreadable = unreadable.map(|why| missing_controller(controller, Some(why)));
    let trouble = unreadable.or(trouble);
    if partition.metadata.deletion_timestamp.is_some() {
        return match (trouble, waits.filter(|_| closed_line(observed).is_none())) {
            _ if !is_closing(observed) => Assessment::default(),
            (Some(trouble), _) => Assessment::waiting(trouble.reason, trouble.message),
            (None, Some(waits)) => Assessment::waiting(reason::WAITING, waits),
            (None, None) => Assessment::waiting(
                reason::CLOSING,
                "it accepts no new jobs, and is deleted when its jobs have ended",
            ),
        };
    }
    let invalid = Finding::of(&partition.check());
    if !invalid.is_empty() {
        return Assessment::at_fault(invalid);
    }
    if observed.controller.is_none() && trouble.is_none() {
        let message = format!(
            "spec.controllerRef.name names Controller {controller:?}, which does not exist; create it, or create a Partition for another one"
        );
        return Assessment::at_fault(vec![Finding::blocking(reason::CONTROLLER_MISSING, message)]);
    }
    if let Some(trouble) = trouble {
        return Assessment::at_fault(vec![trouble]);
    }
    let Some(report) = &observed.report else {
        let message = format!("Controller {controller:?} has not processed it yet");
        return Assessment::waiting(reason::APPLYING, message);
    };
    if let Some(waits) = waits {
        return Assessment::waiting(reason::WAITING, waits);
    }
    let line = report.line.as_ref().filter(|_| report.runs);
    let Some(line) = line.filter(|line| Some(line.generation) == partition.metadata.generation) else {
        return Assessment::waiting(reason::APPLYING, "it is being sent to slurmctld");
    };
    // The reconcile that sends it to an external slurmctld reads it back in the same step.
    if observed.is_external() {
        return Assessment::default();
    }
    let listed = match &observed.knowledge {
        Knowledge::Unknown { why } => Err(why.as_str()),
        Knowledge::Known(seen) => match &seen.partitions {
            Some(listed) => Ok((listed, seen.at)),
            None => Err("it did not return its partitions"),
        },
    };
    let waits = match listed {
        Ok((listed, _)) if listed.contains_key(&line.name) => return Assessment::default(),
        // A later poll does not list it.
        Ok((_, at)) if report.live_since.is_some_and(|since| at > since) => {
            let message = format!(
                "slurmctld received partition {:?} and does not list it; run `scontrol reconfigure` to make it read slurm.conf again, and if that does not help see its log",
                partition.slurm_name()
            );
            return Assessment::at_fault(vec![Finding::blocking(reason::NOT_IN_SLURM, message)]);
        }
        Ok(_) => Finding::blocking(
            reason::APPLYING,
            "slurmctld has received it; it is ready when a poll of Slurm has found it",
        ),
        // The last poll found it; the Controller reports that Slurm does not respond.
        Err(_) if was_ready(partition) => return Assessment::default(),
        Err(why) => Finding::blocking(
            reason::WAITING,
            format!(
                "slurmctld has received it; whether it has applied it is not known, because Slurm cannot be polled: {why}"
            ),
        ),
    };
    Assessment {
        waits: Some(waits),
        needs_poll: true,
        ..Assessment::default()
    }
}

fn was_ready(partition: &Partition) -> bool {
    let mut conditions = partition.status.iter().flat_map(|status| &status.conditions);
    conditions.any(|condition| condition.type_ == READY && condition.status == ConditionStatus::True)
}

/// Its line, if that accepts no new jobs.
fn closed_line(observed: &Observed) -> Option<&PartitionLine> {
    let line = observed.report.as_ref()?.line.as_ref();
    line.filter(|line| is_closed(&line.state))
}

/// Its unfinished jobs, once it accepts no new ones. A job that may run in another partition does not count.
fn own_jobs(observed: &Observed) -> Vec<JobHandle> {
    let jobs = observed.knowledge.known().and_then(|seen| seen.jobs.as_ref());
    let (Some(line), Some(jobs)) = (closed_line(observed), jobs) else {
        return Vec::new();
    };
    let is_own = |job: &&Job| !job.partition.is_empty() && job.partitions().all(|partition| partition == line.name);
    jobs.iter()
        .filter(|job| !job.state.is_finished() && !job.state.has(JobStateName::Completing))
        .filter(is_own)
        .map(Job::handle)
        .collect()
}
