//! Builds the status of a Partition. Pure.

use api::{
    PartitionStatus,
    conditions::{DEGRADED, DRIFTED, NOT_PERSISTENT, PARTITION_RETAINED, PROGRESSING, READY},
    partition::{AppliedPartition, Drift, DriftSettled, PartitionCpus, PartitionJobs, PartitionNodes},
};
use jiff::Timestamp;
use kube::ResourceExt as _;

use super::{
    plan::{Assessment, View},
    restore::is_reverted,
    rules::{line::PartitionLine, manual_state::ManualState},
};
use crate::{
    cluster::{
        Seen,
        load::{self, NodeLoad},
    },
    runtime::{DesiredCondition, Failure, State, settle},
};

/// The status to write.
pub(super) fn build_status(
    view: &View,
    assessment: &Assessment,
    failure: Option<&Failure>,
    now: Timestamp,
) -> PartitionStatus {
    let partition = view.partition.as_ref();
    let generation = partition.metadata.generation.unwrap_or_default();
    let before = partition.status.clone().unwrap_or_default();
    let line = view.report.as_ref().and_then(|report| report.line.as_ref());
    let name = partition.slurm_name();
    let seen = view.knowledge.known().filter(|_| line.is_some());
    let listed = seen.and_then(|seen| seen.partitions.as_ref()?.get(&name));
    let load = seen.zip(listed).map(|(seen, _)| load(seen, &name));
    PartitionStatus {
        state: listed.map(|listed| listed.state.to_string()),
        nodes: load.as_ref().map(count_nodes),
        cpus: load.as_ref().map(count_cpus),
        jobs: seen.and_then(|seen| seen.job_summary.as_ref()).map(|jobs| {
            let load = jobs.loads.get(&name).cloned().unwrap_or_default();
            PartitionJobs {
                running: small(load.running),
                pending: small(load.pending),
            }
        }),
        drift: drift(view),
        partition_name: Some(name),
        members: line.map(|line| line.nodes.clone()).or_else(|| before.members.clone()),
        line: line.map(PartitionLine::whole).or_else(|| before.line.clone()),
        applied: applied(view, &before, now),
        conditions: settle(
            &before.conditions,
            &conditions(view, assessment, failure),
            generation,
            now,
        ),
        observed_generation: Some(generation),
    }
}

fn small(count: u32) -> i32 {
    i32::try_from(count).unwrap_or(i32::MAX)
}

fn large(count: u64) -> i64 {
    i64::try_from(count).unwrap_or(i64::MAX)
}

fn load(seen: &Seen, name: &str) -> NodeLoad {
    let members = seen
        .nodes
        .values()
        .filter(|node| node.partitions.iter().any(|partition| partition == name));
    load::of_nodes(members).remove(name).unwrap_or_default()
}

fn count_nodes(load: &NodeLoad) -> PartitionNodes {
    PartitionNodes {
        total: small(load.nodes),
        idle: small(load.idle),
        allocated: small(load.allocated),
        drain: small(load.drain),
        down: small(load.down),
    }
}

fn count_cpus(load: &NodeLoad) -> PartitionCpus {
    PartitionCpus {
        total: large(load.cpus),
        allocated: large(load.allocated_cpus),
        idle: large(load.idle_cpus),
    }
}

/// Where Slurm differs from the values that were sent to it.
fn drift(view: &View) -> Vec<Drift> {
    let manual = view.report.as_ref().and_then(|report| report.manual_state.as_ref());
    let state = manual.map(|ManualState { state, wanted, since }| Drift {
        key: "State".to_owned(),
        wanted: wanted.clone(),
        live: state.clone(),
        since: since.clone().into(),
        settled: DriftSettled::Kept,
    });
    state.into_iter().chain(view.found.drift.iter().cloned()).collect()
}

fn drifted(view: &View) -> Option<DesiredCondition> {
    let name = view.partition.slurm_name();
    let own = view.partition.name_any();
    let manual = view.report.as_ref().and_then(|report| report.manual_state.as_ref());
    // The files of an external slurmctld do not contain the manual state.
    let lasts = if view.is_external() {
        ""
    } else {
        ", also across restarts,"
    };
    let state = manual.map(|ManualState { state, wanted, since }| {
        format!(
            "State={state} was set manually in Slurm, where spec.state is {wanted} (known since {since}); it is kept{lasts} until `kubectl slurm partition resume {own}`, `scontrol update PartitionName={name} State={wanted}`, or another spec.state"
        )
    });
    let others = view.found.drift.iter().filter(|drift| !is_reverted(drift));
    let others = others.map(|drift| {
        let Drift { key, wanted, live, .. } = drift;
        let stuck = view.found.stuck.get(key);
        let was_reverted = |other: &&Drift| is_reverted(other) && other.key == *key && other.live == *live;
        let why = match (stuck, view.found.drift.iter().find(was_reverted)) {
            (Some(why), _) => format!(" (it could not be reverted: {why})"),
            (None, Some(_)) => " (it was reverted once, and set again)".to_owned(),
            (None, None) => String::new(),
        };
        format!(
            "{key}={live} was set manually in Slurm, where it was {wanted}{why}; it is kept until slurmctld reads its files again; write it into the spec, or revert it with `scontrol update PartitionName={name} {key}={wanted}`"
        )
    });
    let reason = if manual.is_some() {
        "ClosedByHand"
    } else {
        "ChangedByHand"
    };
    let lines: Vec<String> = state.into_iter().chain(others).collect();
    (!lines.is_empty()).then(|| DesiredCondition::true_(DRIFTED, reason, lines.join("\n")))
}

/// The event about manual changes in Slurm that were just reverted.
pub(super) fn new_reverts(view: &View, status: &PartitionStatus) -> Option<String> {
    let before = view.partition.status.as_ref();
    let known = before.map(|before| before.drift.as_slice()).unwrap_or_default();
    let new = status
        .drift
        .iter()
        .filter(|drift| is_reverted(drift) && !known.contains(drift));
    let changes = new.map(|Drift { key, wanted, live, .. }| format!("{key}={live}, where it was {wanted}"));
    let changes: Vec<String> = changes.collect();
    (!changes.is_empty()).then(|| {
        format!(
            "reverted manual changes in Slurm (spec.driftPolicy): {}",
            changes.join("; ")
        )
    })
}

/// The event about a new manual change in Slurm.
pub(super) fn new_drift(view: &View, status: &PartitionStatus) -> Option<DesiredCondition> {
    let before = view.partition.status.as_ref();
    let known = before.map(|before| before.drift.as_slice()).unwrap_or_default();
    let new = status
        .drift
        .iter()
        .any(|drift| !is_reverted(drift) && !known.contains(drift));
    new.then(|| drifted(view)).flatten()
}

/// The state for the queue.
pub(super) fn state(assessment: &Assessment) -> State {
    match (
        assessment.faults.first(),
        assessment.progress.as_ref().or(assessment.retained.as_ref()),
    ) {
        (Some(fault), _) if fault.is_invalid() => State::Invalid {
            message: fault.message.clone(),
        },
        (Some(fault), _) => State::Blocked {
            on: fault.message.clone(),
        },
        (None, Some(progress)) => State::Progressing {
            why: progress.message.clone(),
        },
        (None, None) => State::Settled,
    }
}

/// The line that slurmctld has, and the change that delivered it. An unchanged line keeps its change.
fn applied(view: &View, before: &PartitionStatus, now: Timestamp) -> Option<AppliedPartition> {
    let report = view.report.as_ref()?;
    let Some(line) = report.line.as_ref().filter(|_| report.runs) else {
        return before.applied.clone();
    };
    let is_same_line = before.line.as_deref() == Some(line.whole().as_str());
    // A change without a sequence was sent directly, with its own time.
    let is_direct = report.change.as_ref().is_some_and(|change| change.sequence.is_none());
    if let Some(known) = before.applied.as_ref().filter(|_| is_same_line && !is_direct) {
        return Some(AppliedPartition {
            generation: line.generation,
            ..known.clone()
        });
    }
    let change = report.change.as_ref();
    Some(AppliedPartition {
        generation: line.generation,
        sequence: change.and_then(|change| i64::try_from(change.sequence?).ok()),
        time: format!("{:.3}", change.map_or(now, |change| change.at)).into(),
        // Without a change, slurmctld started with the line.
        way: change
            .and_then(|change| change.way.clone())
            .unwrap_or(api::partition::PartitionWay::Restart),
        milliseconds: change.and_then(|change| i64::try_from(change.milliseconds).ok()),
    })
}

fn conditions(view: &View, assessment: &Assessment, failure: Option<&Failure>) -> Vec<DesiredCondition> {
    let messages: Vec<&str> = assessment.faults.iter().map(|fault| fault.message.as_str()).collect();
    let messages = messages.join("\n");
    let waits = assessment.progress.as_ref().or(assessment.retained.as_ref());
    let ready = match (assessment.faults.first(), waits) {
        (Some(fault), _) => DesiredCondition::false_(READY, fault.reason, messages.clone()),
        (None, Some(progress)) => DesiredCondition::false_(READY, progress.reason, progress.message.clone()),
        (None, None) => DesiredCondition::true_(READY, "Ready", "slurmctld has it as specified"),
    };
    let progressing = match waits {
        Some(progress) => DesiredCondition::true_(PROGRESSING, progress.reason, progress.message.clone()),
        None => DesiredCondition::false_(PROGRESSING, "Settled", ""),
    };
    let degraded = match (assessment.faults.first(), failure) {
        (Some(fault), _) => DesiredCondition::true_(DEGRADED, fault.reason, messages),
        (None, Some(failure)) => DesiredCondition::true_(DEGRADED, "Retrying", failure.message.clone()),
        (None, None) => DesiredCondition::false_(DEGRADED, "Healthy", ""),
    };
    let mut wanted = vec![ready, progressing, degraded];
    wanted.extend(drifted(view));
    let not_persistent = view.report.as_ref().and_then(|report| report.not_persistent.as_ref());
    wanted.extend(not_persistent.map(|why| DesiredCondition::true_(NOT_PERSISTENT, "FileOfOthers", why.clone())));
    wanted.extend(
        assessment
            .retained
            .as_ref()
            .map(|retained| DesiredCondition::true_(PARTITION_RETAINED, retained.reason, retained.message.clone())),
    );
    wanted
}
