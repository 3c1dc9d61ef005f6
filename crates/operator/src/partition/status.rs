//! What is said about a Partition. Pure.

use api::{
    PartitionStatus,
    conditions::{DEGRADED, DRIFTED, NOT_PERSISTENT, PARTITION_RETAINED, PROGRESSING, READY},
    partition::{AppliedPartition, Drift, DriftSettled, PartitionCpus, PartitionJobs, PartitionNodes},
};
use jiff::Timestamp;
use kube::ResourceExt as _;

use super::{line::Line, observe::Observed, plan::Plan, restore::is_reverted};
use crate::{
    access::{
        Seen,
        load::{self, NodeLoad},
    },
    controller::Kept,
    runtime::{DesiredCondition, Failure, State, settle},
};

/// The status to write.
pub(super) fn build_status(
    observed: &Observed,
    plan: &Plan,
    failure: Option<&Failure>,
    now: Timestamp,
) -> PartitionStatus {
    let partition = observed.partition.as_ref();
    let generation = partition.metadata.generation.unwrap_or_default();
    let before = partition.status.clone().unwrap_or_default();
    let line = observed.standing.as_ref().and_then(|standing| standing.line.as_ref());
    let name = partition.slurm_name();
    let seen = observed.knowledge.known().filter(|_| line.is_some());
    let shown = seen.and_then(|seen| seen.partitions.as_ref()?.get(&name));
    let load = seen.zip(shown).map(|(seen, _)| load(seen, &name));
    PartitionStatus {
        state: shown.map(|shown| shown.state.to_string()),
        nodes: load.as_ref().map(count_nodes),
        cpus: load.as_ref().map(count_cpus),
        jobs: seen.and_then(|seen| seen.job_loads.as_ref()).map(|loads| {
            let load = loads.get(&name).cloned().unwrap_or_default();
            PartitionJobs {
                running: small(load.running),
                pending: small(load.pending),
            }
        }),
        drift: drift(observed),
        partition_name: Some(name),
        members: line.map(|line| line.nodes.clone()).or_else(|| before.members.clone()),
        line: line.map(Line::whole).or_else(|| before.line.clone()),
        applied: applied(observed, &before, now),
        conditions: settle(
            &before.conditions,
            &conditions(observed, plan, failure),
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

/// Where Slurm differs from what was written to it.
fn drift(observed: &Observed) -> Vec<Drift> {
    let kept = observed.standing.as_ref().and_then(|standing| standing.kept.as_ref());
    let state = kept.map(|Kept { state, wanted, since }| Drift {
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
    let kept = observed.standing.as_ref().and_then(|standing| standing.kept.as_ref());
    // Files of others know nothing of it.
    let lasts = if observed.is_outside() {
        ""
    } else {
        ", after a restart too,"
    };
    let state = kept.map(|Kept { state, wanted, since }| {
        format!(
            "somebody set State={state} in Slurm, where spec.state asks for {wanted}, which is known since {since}; it stays so{lasts} until `kubectl slurm partition resume {own}`, `scontrol update PartitionName={name} State={wanted}`, or another spec.state"
        )
    });
    let others = observed.found.drift.iter().filter(|drift| !is_reverted(drift));
    let others = others.map(|drift| {
        let Drift { key, wanted, live, .. } = drift;
        let stuck = observed.found.stuck.get(key);
        let was_reverted = |other: &&Drift| is_reverted(other) && other.key == *key && other.live == *live;
        let why = match (stuck, observed.found.drift.iter().find(was_reverted)) {
            (Some(why), _) => format!(" (it could not be put back: {why})"),
            (None, Some(_)) => " (it was put back once, and set again)".to_owned(),
            (None, None) => String::new(),
        };
        format!(
            "somebody set {key}={live} in Slurm, where it was {wanted}{why}; it is so until slurmctld reads its files again; write it into the spec, or put it back by `scontrol update PartitionName={name} {key}={wanted}`"
        )
    });
    let reason = if kept.is_some() {
        "ClosedByHand"
    } else {
        "ChangedByHand"
    };
    let lines: Vec<String> = state.into_iter().chain(others).collect();
    (!lines.is_empty()).then(|| DesiredCondition::true_(DRIFTED, reason, lines.join("\n")))
}

/// What is worth an event: what was put back just now, of what somebody changed in Slurm.
pub(super) fn new_reverts(observed: &Observed, status: &PartitionStatus) -> Option<String> {
    let before = observed.partition.status.as_ref();
    let known = before.map(|before| before.drift.as_slice()).unwrap_or_default();
    let new = status
        .drift
        .iter()
        .filter(|drift| is_reverted(drift) && !known.contains(drift));
    let words = new.map(|Drift { key, wanted, live, .. }| format!("{key}={live}, where it was {wanted}"));
    let words: Vec<String> = words.collect();
    (!words.is_empty()).then(|| {
        format!(
            "somebody set in Slurm: {}; it was put back (spec.driftPolicy)",
            words.join("; ")
        )
    })
}

/// What is worth an event: that somebody changed it in Slurm, when that is new.
pub(super) fn new_drift(observed: &Observed, status: &PartitionStatus) -> Option<DesiredCondition> {
    let before = observed.partition.status.as_ref();
    let known = before.map(|before| before.drift.as_slice()).unwrap_or_default();
    let new = status
        .drift
        .iter()
        .any(|drift| !is_reverted(drift) && !known.contains(drift));
    new.then(|| drifted(observed)).flatten()
}

/// How things stand, for the queue.
pub(super) fn state(plan: &Plan) -> State {
    match (plan.faults.first(), plan.progress.as_ref().or(plan.retained.as_ref())) {
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

/// What slurmctld has, with the change that brought it. A line that has not changed keeps the change it came with.
fn applied(observed: &Observed, before: &PartitionStatus, now: Timestamp) -> Option<AppliedPartition> {
    let standing = observed.standing.as_ref()?;
    let Some(line) = standing.line.as_ref().filter(|_| standing.runs) else {
        return before.applied.clone();
    };
    let is_same_line = before.line.as_deref() == Some(line.whole().as_str());
    // Who tells slurmctld itself knows when it last did.
    let is_told = standing.change.as_ref().is_some_and(|change| change.sequence.is_none());
    if let Some(known) = before.applied.as_ref().filter(|_| is_same_line && !is_told) {
        return Some(AppliedPartition {
            generation: line.generation,
            ..known.clone()
        });
    }
    let change = standing.change.as_ref();
    Some(AppliedPartition {
        generation: line.generation,
        sequence: change.and_then(|change| i64::try_from(change.sequence?).ok()),
        time: format!("{:.3}", change.map_or(now, |change| change.at)).into(),
        // What it started with came with slurmctld itself.
        way: change
            .and_then(|change| change.way.clone())
            .unwrap_or(api::partition::PartitionWay::Restart),
        milliseconds: change.and_then(|change| i64::try_from(change.milliseconds).ok()),
    })
}

fn conditions(observed: &Observed, plan: &Plan, failure: Option<&Failure>) -> Vec<DesiredCondition> {
    let messages: Vec<&str> = plan.faults.iter().map(|fault| fault.message.as_str()).collect();
    let messages = messages.join("\n");
    let waits = plan.progress.as_ref().or(plan.retained.as_ref());
    let ready = match (plan.faults.first(), waits) {
        (Some(fault), _) => DesiredCondition::false_(READY, fault.reason, messages.clone()),
        (None, Some(progress)) => DesiredCondition::false_(READY, progress.reason, progress.message.clone()),
        (None, None) => DesiredCondition::true_(READY, "Ready", "slurmctld has it as it is written here"),
    };
    let progressing = match waits {
        Some(progress) => DesiredCondition::true_(PROGRESSING, progress.reason, progress.message.clone()),
        None => DesiredCondition::false_(PROGRESSING, "Settled", ""),
    };
    let degraded = match (plan.faults.first(), failure) {
        (Some(fault), _) => DesiredCondition::true_(DEGRADED, fault.reason, messages),
        (None, Some(failure)) => DesiredCondition::true_(DEGRADED, "Retrying", failure.message.clone()),
        (None, None) => DesiredCondition::false_(DEGRADED, "Healthy", ""),
    };
    let mut wanted = vec![ready, progressing, degraded];
    wanted.extend(drifted(observed));
    let not_persistent = observed
        .standing
        .as_ref()
        .and_then(|standing| standing.not_persistent.as_ref());
    wanted.extend(not_persistent.map(|why| DesiredCondition::true_(NOT_PERSISTENT, "FileOfOthers", why.clone())));
    wanted.extend(
        plan.retained
            .as_ref()
            .map(|retained| DesiredCondition::true_(PARTITION_RETAINED, retained.reason, retained.message.clone())),
    );
    wanted
}
