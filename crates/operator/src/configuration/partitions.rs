//! Adds Partition objects to the configuration, and reports their state.
//!
//! A Partition that is rejected keeps its last good line, and nothing else waits for it.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use api::{NodeSet, Partition, Validate, partition::PartitionWay};
use kube::ResourceExt as _;
use slurm::{
    agent::{Action, UpdateChannel},
    conf::Document,
};

use super::{ConfigState, Held, Inputs, content::Content};
use crate::{
    cluster::{
        Knowledge, Seen, Snapshot,
        deliver::FinishedPush,
        partition_reports::{Change, PartitionReport, PartitionReports},
    },
    finding::Finding,
    partition::rules::{
        closing::{closing_state, is_closed},
        default::LAST_DEFAULT,
        line::{PartitionLine, is_self_contained, render_settings},
        members::resolve_members,
        names::{Taken, age},
    },
    reason,
};

/// Returns the lines of the Partitions by their own names, and those that are kept as they were. `content` has the other
/// inputs, and `taken` their names. `is_fresh`: Slurm was polled while slurmctld ran with the accepted revision.
pub(crate) fn gather_partitions(
    inputs: &Inputs,
    snapshot: &Snapshot,
    content: &Content,
    before: &Content,
    mut taken: Taken,
    is_fresh: bool,
) -> (BTreeMap<String, PartitionLine>, Vec<Held>) {
    let mut lines = BTreeMap::new();
    let mut refused = Vec::new();
    // An older operator may have accepted a line that continues into the next one; such a line is not kept.
    let accepted = |own: &str| {
        before
            .partitions
            .get(own)
            .filter(|line| is_self_contained(&line.whole()))
    };
    let leaving = find_leaving(inputs, before, &taken);
    // A deleted Partition keeps its name until the end, but it is no longer the default.
    for own in &leaving {
        if let Some(line) = accepted(own) {
            taken.add(own, &line.without_default());
        }
    }
    // A NodeSet that is left out of slurm.conf has no name there.
    let known: Vec<Arc<NodeSet>> = inputs
        .node_sets
        .iter()
        .filter(|node_set| content.node_sets.contains_key(&node_set.name_any()))
        .cloned()
        .collect();
    for partition in in_order(&inputs.partitions, before) {
        let own = partition.name_any();
        let line = build_line(snapshot, &known, &taken, partition)
            .and_then(|line| wait_for_marks(inputs, snapshot, line, before.partitions.get(&own)));
        let line = match line {
            Ok(line) => Some(line),
            Err(Finding { reason, message, .. }) => {
                refused.push(Held::partition(&own, reason, message));
                accepted(&own).cloned()
            }
        };
        if let Some(line) = line {
            taken.add(&own, &line);
            lines.insert(own, line);
        }
    }
    for own in leaving {
        let Some(line) = accepted(own) else {
            continue;
        };
        if line.is_default() && !taken.has_default() {
            refused.push(Held::partition(own, reason::LAST_DEFAULT, LAST_DEFAULT.to_owned()));
            lines.insert(own.clone(), line.clone());
        } else if let Some(line) = close(before, line, is_fresh) {
            lines.insert(own.clone(), line);
        }
    }
    (lines, refused)
}

fn is_deleted(partition: &Partition) -> bool {
    partition.metadata.deletion_timestamp.is_some()
}

/// The own names of the accepted lines whose Partition is deleted, or whose Partition and name in Slurm have no object
/// any more. `taken` are the names of NodeSets and extraConf.
pub(super) fn find_leaving<'a>(inputs: &Inputs, before: &'a Content, taken: &Taken) -> Vec<&'a String> {
    let (mut objects, mut names) = (BTreeMap::new(), BTreeSet::new());
    for partition in &inputs.partitions {
        objects.insert(partition.name_any(), is_deleted(partition));
        names.insert(partition.slurm_name());
    }
    let is_leaving = |(own, line): &(&String, &PartitionLine)| {
        let is_orphaned = || !names.contains(&line.name) && !taken.has(&line.name);
        objects.get(*own).copied().unwrap_or_else(is_orphaned)
    };
    let lines = before.partitions.iter().filter(is_leaving);
    lines.map(|(own, _)| own).collect()
}

/// Orders the Partitions that stay: those that slurmctld has already, then by age. A later one loses a conflict.
fn in_order<'a>(partitions: &'a [Arc<Partition>], before: &Content) -> Vec<&'a Partition> {
    let staying = partitions.iter().map(AsRef::as_ref);
    let mut ordered: Vec<&Partition> = staying.filter(|partition| !is_deleted(partition)).collect();
    ordered.sort_by_key(|partition| (!before.partitions.contains_key(&partition.name_any()), age(*partition)));
    ordered
}

/// The names used by NodeSets and extraConf.
pub(crate) fn taken_by(content: &Content) -> Taken {
    let mut taken = Taken::of_extra_conf(&Document::parse(&content.extra_conf));
    for (own, node_set) in &content.node_sets {
        taken.add_node_set(own, &node_set.name, node_set.partition.as_deref());
    }
    taken
}

/// The line of a deleted Partition: it is first closed, then removed. Its jobs delay the removal as with any other
/// partition's line; they must have been read after it was closed.
fn close(before: &Content, line: &PartitionLine, is_fresh: bool) -> Option<PartitionLine> {
    let manual = before.manual_states.get(&line.name);
    let closed = line.without_default();
    if is_closed(&line.state) && manual.is_none() {
        return Some(closed).filter(|_| !is_fresh);
    }
    let state = manual.map_or(&line.state, |manual| &manual.state);
    Some(closed.with_state(closing_state(state)))
}

fn build_line(
    snapshot: &Snapshot,
    known: &[Arc<NodeSet>],
    taken: &Taken,
    partition: &Partition,
) -> Result<PartitionLine, Finding> {
    let problems: Vec<String> = partition.check().errors().map(ToString::to_string).collect();
    if !problems.is_empty() {
        return Err(Finding::blocking(reason::INVALID_SPEC, problems.join("\n")));
    }
    let seen = snapshot.knowledge.known();
    taken.check(partition, known, |name| {
        seen.is_some_and(|seen| seen.nodes.contains_key(name))
    })?;
    let members = resolve_members(partition, known)?;
    Ok(PartitionLine {
        name: partition.slurm_name(),
        nodes: members.nodes,
        state: partition.spec.state().slurm_word(),
        settings: render_settings(&partition.spec),
        generation: partition.metadata.generation.unwrap_or_default(),
        mark: members.mark,
    })
}

/// A partition whose members have a mark has no members until they have it.
fn wait_for_marks(
    inputs: &Inputs,
    snapshot: &Snapshot,
    line: PartitionLine,
    before: Option<&PartitionLine>,
) -> Result<PartitionLine, Finding> {
    let Some(mark) = &line.mark else { return Ok(line) };
    if before.is_some_and(|before| before.mark.as_ref() == Some(mark)) {
        return Ok(line);
    }
    let why = match &snapshot.knowledge {
        Knowledge::Unknown { why } => Some(format!("its nodes are not known: {why}")),
        Knowledge::Known(seen) => mark
            .first_without(&seen.nodes, seen.at, &inputs.joining)
            .map(|node| format!("node {node} does not have feature {:?} yet", mark.name)),
    };
    why.map_or(Ok(line), |why| Err(Finding::blocking(reason::WAITS_FOR_NODES, why)))
}

/// Manually created partitions with jobs. They are kept until they are deleted in Slurm, or get another owner.
pub(super) fn find_adopted(
    snapshot: &Snapshot,
    before: &BTreeMap<String, String>,
    wanted: &Content,
    taken: &Taken,
    fresh: Option<&Seen>,
) -> BTreeMap<String, String> {
    let is_taken = |name: &str| {
        let mut objects = wanted.partitions.values();
        taken.has(name) || objects.any(|line| line.name == name)
    };
    let listed = fresh.and_then(|seen| seen.partitions.as_ref());
    let is_deleted = |name: &str| listed.is_some_and(|listed| !listed.contains_key(name));
    let kept = before.iter().filter(|(name, _)| !is_deleted(name));
    let kept = kept.map(|(name, line)| (name.clone(), line.clone()));
    let made = snapshot.report.in_use.iter().filter(|partition| partition.made_by_hand);
    let made = made.filter_map(|partition| {
        let line = partition.line.strip_prefix("PartitionName=")?;
        Some((partition.name.clone(), line.to_owned()))
    });
    let all = kept.chain(made);
    all.filter(|(name, _)| !is_taken(name)).collect()
}

/// Reports the state of all Partitions of the Controller. `accepted` is the content of the accepted revision.
pub(crate) fn report_partitions(
    inputs: &Inputs,
    snapshot: &Snapshot,
    accepted: Option<&Content>,
    held: &[Held],
    state: &ConfigState,
) -> PartitionReports {
    let runs = !matches!(
        state,
        ConfigState::Written { .. } | ConfigState::Restarting { .. } | ConfigState::Unknown | ConfigState::External
    );
    let mut newest = snapshot.report.finished.iter().rev();
    let change = newest.find(|push| push.rejection.is_none());
    let report = |partition: &Arc<Partition>| {
        let own = partition.name_any();
        let line = accepted.and_then(|content| content.partitions.get(&own)).cloned();
        let is_newest = line
            .as_ref()
            .is_some_and(|line| Some(line.generation) == partition.metadata.generation);
        let of_it = held.iter().find(|held| held.partition.as_deref() == Some(&own));
        let (waits_for_nodes, trouble) = match of_it {
            Some(held) if held.reason == reason::WAITS_FOR_NODES => (Some(held), None),
            other => (None, other),
        };
        let live_since = snapshot.lives.last().map(|(_, at)| *at);
        let report = PartitionReport {
            runs,
            live_since: live_since.filter(|_| runs && line.is_some()),
            trouble: trouble.map(|held| Finding::blocking(held.reason, held.why.clone())),
            waits: waits_for_nodes
                .map(|held| held.why.clone())
                .or_else(|| waits(state).filter(|_| !(runs && is_newest))),
            change: change.filter(|_| line.is_some()).map(|push| change_of(push)),
            manual_state: line
                .as_ref()
                .and_then(|line| accepted?.manual_states.get(&line.name))
                .cloned(),
            line,
            may_have_line: accepted.is_none(),
            not_persistent: None,
        };
        (own, report)
    };
    inputs.partitions.iter().map(report).collect()
}

/// What the newest configuration waits for. A push in progress waits for nothing.
fn waits(state: &ConfigState) -> Option<String> {
    match state {
        ConfigState::Applied { .. } | ConfigState::Pushing { .. } | ConfigState::Restarting { .. } => None,
        ConfigState::Written { .. } => Some("slurmctld has not started yet".to_owned()),
        ConfigState::Waiting { why, .. } => Some(format!(
            "slurmctld does not run with the newest configuration yet: {why}"
        )),
        ConfigState::Away { why, .. } => Some(format!("slurmctld's agent cannot be reached: {why}")),
        ConfigState::Retrying { why, .. } => Some(format!("the configuration is retried: {why}")),
        ConfigState::Rejected { rejection, .. } => Some(format!("the configuration was rejected: {}", rejection.why)),
        ConfigState::Unknown => Some("the configuration cannot be built; see the Controller's conditions".to_owned()),
        ConfigState::External => Some("the Controller is external".to_owned()),
    }
}

fn change_of(push: &FinishedPush) -> Change {
    Change {
        sequence: Some(push.sequence),
        at: push.at,
        way: match push.action {
            Action::PartitionRpc if push.way == UpdateChannel::Scontrol => Some(PartitionWay::Scontrol),
            // Older agents do not report the channel; this is the only one they support.
            Action::PartitionRpc => Some(PartitionWay::Rpc),
            Action::Reconfigure => Some(PartitionWay::Reconfigure),
            Action::Restart => Some(PartitionWay::Restart),
            Action::Nothing | Action::Unknown => None,
        },
        milliseconds: push.milliseconds,
    }
}
