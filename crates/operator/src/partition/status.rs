//! Builds the status of a Partition. Pure.

use std::time::Duration;

use api::{
    PartitionStatus,
    conditions::{DEGRADED, DRIFTED, NOT_PERSISTENT, PARTITION_RETAINED, PROGRESSING, READY},
    partition::{AppliedPartition, Drift, DriftSettled},
};
use jiff::Timestamp;
use kube::ResourceExt as _;
use tokio::time::Instant;

use super::{
    drift::is_reverted,
    observe::Observed,
    plan::Assessment,
    rules::{line::PartitionLine, manual_state::ManualState},
};
use crate::{
    cluster::load,
    finding::{Finding, messages},
    reason,
    runtime::{DesiredCondition, Failure, State, settle},
};

/// Counts change often and nothing depends on them: they are written at most this often.
const COUNTS_INTERVAL: Duration = Duration::from_secs(15);

/// The status to write.
pub(super) fn build_status(
    observed: &Observed,
    assessment: &Assessment,
    failure: Option<&Failure>,
    now: Timestamp,
) -> PartitionStatus {
    let partition = observed.partition.as_ref();
    let generation = partition.metadata.generation.unwrap_or_default();
    let before = partition.status.clone().unwrap_or_default();
    let line = observed.report.as_ref().and_then(|report| report.line.as_ref());
    let name = partition.slurm_name();
    let seen = observed.knowledge.known().filter(|_| line.is_some());
    let listed = seen.and_then(|seen| seen.partitions.as_ref()?.get(&name));
    let load = seen.zip(listed).map(|(seen, _)| {
        let members = seen.nodes.values().filter(|node| node.partitions.contains(&name));
        load::of_nodes(members).remove(&name).unwrap_or_default()
    });
    let (nodes, cpus) = load.unzip();
    PartitionStatus {
        state: listed.map(|listed| listed.state.to_string()),
        nodes,
        cpus,
        jobs: seen
            .and_then(|seen| seen.job_summary.as_ref())
            .map(|jobs| jobs.loads.get(&name).cloned().unwrap_or_default()),
        drift: drift(observed),
        partition_name: Some(name),
        members: line.map(PartitionLine::members).or_else(|| before.members.clone()),
        line: line.map(PartitionLine::whole).or_else(|| before.line.clone()),
        applied: applied(observed, &before, now),
        conditions: settle(
            &before.conditions,
            &conditions(observed, assessment, failure),
            generation,
            now,
        ),
        observed_generation: Some(generation),
    }
}

/// Where Slurm differs from the values that were sent to it.
fn drift(observed: &Observed) -> Vec<Drift> {
    let manual = observed.report.as_ref().and_then(|report| report.manual_state.as_ref());
    let state = manual.map(|ManualState { state, wanted, since }| Drift {
        key: "State".to_owned(),
        wanted: wanted.clone(),
        live: state.clone(),
        since: since.clone().into(),
        settled: DriftSettled::Kept,
    });
    state.into_iter().chain(observed.found.drift.iter().cloned()).collect()
}

fn drifted(observed: &Observed) -> Option<DesiredCondition> {
    let name = observed.partition.slurm_name();
    let own = observed.partition.name_any();
    let manual = observed.report.as_ref().and_then(|report| report.manual_state.as_ref());
    // The files of an external slurmctld do not contain the manual state.
    let lasts = if observed.is_external() {
        ""
    } else {
        ", also across restarts,"
    };
    let state = manual.map(|ManualState { state, wanted, since }| {
        format!(
            "State={state} was set manually in Slurm, where spec.state is {wanted} (known since {since}); it is kept{lasts} until `kubectl slurm partition resume {own}`, `scontrol update PartitionName={name} State={wanted}`, or another spec.state"
        )
    });
    let others = observed.found.drift.iter().filter(|drift| !is_reverted(drift));
    let others = others.map(|drift| {
        let Drift { key, wanted, live, .. } = drift;
        let stuck = observed.found.stuck.get(key);
        let was_reverted = |other: &&Drift| is_reverted(other) && other.key == *key && other.live == *live;
        let why = match (stuck, observed.found.drift.iter().find(was_reverted)) {
            (Some((_, why)), _) => format!(" (it could not be reverted: {why})"),
            (None, Some(_)) => " (it was reverted once, and set again)".to_owned(),
            (None, None) => String::new(),
        };
        format!(
            "{key}={live} was set manually in Slurm, where it was {wanted}{why}; it is kept until slurmctld reads its files again; write it into the spec, or revert it with `scontrol update PartitionName={name} {key}={wanted}`"
        )
    });
    let reason = if manual.is_some() {
        reason::CLOSED_BY_HAND
    } else {
        reason::CHANGED_BY_HAND
    };
    let lines: Vec<String> = state.into_iter().chain(others).collect();
    (!lines.is_empty()).then(|| DesiredCondition::true_(DRIFTED, reason, lines.join("\n")))
}

/// The events about manual changes in Slurm that are new in this status.
pub(super) fn drift_events(observed: &Observed, status: &PartitionStatus) -> Vec<(&'static str, String)> {
    let before = observed.partition.status.as_ref();
    let is_new = |drift: &&Drift| before.is_none_or(|before| !before.drift.contains(drift));
    let new = status.drift.iter().filter(is_new);
    let (reverted, kept): (Vec<&Drift>, Vec<&Drift>) = new.partition(|drift| is_reverted(drift));
    let drifted = drifted(observed).filter(|_| !kept.is_empty());
    let mut events: Vec<_> = drifted
        .into_iter()
        .map(|drifted| (drifted.reason, drifted.message))
        .collect();
    if !reverted.is_empty() {
        let describe = |Drift { key, wanted, live, .. }: &&Drift| format!("{key}={live}, where it was {wanted}");
        let reverts = reverted.iter().map(describe).collect::<Vec<_>>().join("; ");
        let message = format!("reverted manual changes in Slurm (spec.driftPolicy): {reverts}");
        events.push((reason::REVERTED, message));
    }
    events
}

/// The state for the queue.
pub(super) fn state(assessment: &Assessment) -> State {
    match (assessment.faults.first(), &assessment.waits) {
        (Some(fault), _) => fault.state(),
        (None, Some(waits)) => State::Progressing {
            why: waits.message.clone(),
        },
        (None, None) => State::Settled,
    }
}

/// Keeps the written counts if they are recent, and returns when to write the new ones.
pub(super) fn throttle_counts(
    counted_at: &mut Option<Instant>,
    before: Option<&PartitionStatus>,
    status: &mut PartitionStatus,
    now: Instant,
) -> Option<Duration> {
    let before = before?;
    let counts = |status: &PartitionStatus| (status.nodes.clone(), status.cpus.clone(), status.jobs.clone());
    if counts(before) == counts(status) {
        return None;
    }
    let age = counted_at.map(|at| now.duration_since(at));
    let left = age.and_then(|age| COUNTS_INTERVAL.checked_sub(age));
    // The first response of Slurm is written at once.
    let left = left.filter(|left| !left.is_zero() && before.nodes.is_some());
    match left {
        Some(_) => (status.nodes, status.cpus, status.jobs) = counts(before),
        None => *counted_at = Some(now),
    }
    left
}

/// The line that slurmctld has, and the change that delivered it. An unchanged line keeps its change.
fn applied(observed: &Observed, before: &PartitionStatus, now: Timestamp) -> Option<AppliedPartition> {
    let report = observed.report.as_ref()?;
    let Some(line) = report.line.as_ref().filter(|_| report.runs) else {
        return before.applied.clone();
    };
    let change = report.change.as_ref();
    let is_same_line = before.line.as_deref() == Some(line.whole().as_str());
    // A change without a sequence was sent directly, with its own time.
    let is_direct = change.is_some_and(|change| change.sequence.is_none());
    let known = before.applied.clone().filter(|_| is_same_line && !is_direct);
    let applied = known.unwrap_or_else(|| AppliedPartition {
        generation: line.generation,
        sequence: change.and_then(|change| i64::try_from(change.sequence?).ok()),
        time: format!("{:.3}", change.map_or(now, |change| change.at)).into(),
        // Without a change, slurmctld started with the line.
        way: change
            .and_then(|change| change.way.clone())
            .unwrap_or(api::partition::PartitionWay::Restart),
        milliseconds: change.and_then(|change| i64::try_from(change.milliseconds).ok()),
    });
    Some(AppliedPartition {
        generation: line.generation,
        ..applied
    })
}

fn conditions(observed: &Observed, assessment: &Assessment, failure: Option<&Failure>) -> Vec<DesiredCondition> {
    let Assessment { faults, waits, .. } = assessment;
    let fault = faults
        .first()
        .map(|fault| Finding::blocking(fault.reason, messages(faults)));
    let retrying = failure.map(|failure| Finding::blocking(reason::RETRYING, &failure.message));
    let true_if = |type_, found: Option<&Finding>, otherwise| match found {
        Some(found) => DesiredCondition::true_(type_, found.reason, &found.message),
        None => DesiredCondition::false_(type_, otherwise, ""),
    };
    let ready = match fault.as_ref().or(waits.as_ref()) {
        Some(why) => DesiredCondition::false_(READY, why.reason, &why.message),
        None => DesiredCondition::true_(READY, reason::READY, "slurmctld has it as specified"),
    };
    let progressing = true_if(PROGRESSING, waits.as_ref(), reason::SETTLED);
    let degraded = true_if(DEGRADED, fault.as_ref().or(retrying.as_ref()), reason::HEALTHY);
    let not_persistent = observed
        .report
        .as_ref()
        .and_then(|report| report.not_persistent.as_ref());
    let not_persistent = not_persistent.map(|why| DesiredCondition::true_(NOT_PERSISTENT, reason::FILE_OF_OTHERS, why));
    let retained = assessment.retained(&observed.partition);
    let retained =
        retained.map(|retained| DesiredCondition::true_(PARTITION_RETAINED, retained.reason, &retained.message));
    let others = drifted(observed).into_iter().chain(not_persistent).chain(retained);
    [ready, progressing, degraded].into_iter().chain(others).collect()
}
