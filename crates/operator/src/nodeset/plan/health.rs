//! Conditions of Kubernetes nodes that drain: while a Kubernetes node has a condition that `spec.health.drainOn` names, the Slurm
//! nodes of the workers on it take no new job.
//!
//! An administrator who resumes such a node is respected until the condition is over ([`RESUMED_CONDITIONS`]). A drain of an
//! entry with `undrain: false` counts as an administrator's: its reason says that one has to resume the node.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use api::{
    ConditionStatus,
    health::DrainOn,
    keys,
    node_reason::{BY_HAND, HAS_CONDITION, as_given},
};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Node, NodeCondition};
use kube::ResourceExt;

use super::MetadataPatch;
use crate::{
    nodeset::observe::Observed,
    worker::{RESUMED_CONDITIONS, Worker},
};

/// Since when this process has seen a Kubernetes node with a condition in a status.
pub type ConditionsSeen = BTreeMap<(String, String, String), Timestamp>;

/// Notes the conditions that drain sooner or later, for those whose lastTransitionTime is missing or ahead of the clock.
pub fn conditions_seen(observed: &Observed, previous: &ConditionsSeen) -> ConditionsSeen {
    let hosts = observed.workers().filter_map(|worker| observed.host(worker));
    let entries = observed.nodeset.spec.drain_on();
    let keys = hosts.flat_map(|host| {
        entries
            .iter()
            .filter_map(|entry| Some(key(host, matching(host, entry)?)))
    });
    let since = |key: &_| previous.get(key).copied().unwrap_or(observed.now);
    keys.map(|key| (key.clone(), since(&key))).collect()
}

fn key(host: &Node, condition: &NodeCondition) -> (String, String, String) {
    (host.name_any(), condition.type_.clone(), condition.status.clone())
}

/// Returns the drain reasons of a worker for conditions that are due and that no administrator has overruled, in the order of
/// the spec.
pub(super) fn reasons(observed: &Observed, worker: Worker<'_>) -> Vec<String> {
    let host = observed.host(worker);
    let Some(host) = host.filter(|_| !observed.nodeset.spec.drain_on().is_empty()) else {
        return Vec::new();
    };
    let overruled = worker.resumed_conditions();
    let due = due(observed, worker, host);
    let due = due.filter(|entry| !overruled.contains(&name(entry).as_str()));
    due.map(|entry| reason(host, entry)).collect()
}

/// Returns the annotation of a worker whose drain an administrator reverted: all conditions that were due then.
pub(super) fn overrule(observed: &Observed, worker: Worker<'_>) -> MetadataPatch {
    let due = observed
        .host(worker)
        .into_iter()
        .flat_map(|host| due(observed, worker, host));
    let mut names: BTreeSet<String> = due.map(name).collect();
    names.extend(still_overruled(observed, worker));
    annotation(worker, &names)
}

/// Returns the annotation of a worker without the conditions that are over.
pub(super) fn forget(observed: &Observed, worker: Worker<'_>) -> MetadataPatch {
    if worker.annotation(RESUMED_CONDITIONS).is_none() {
        return MetadataPatch::new();
    }
    annotation(worker, &still_overruled(observed, worker))
}

fn still_overruled(observed: &Observed, worker: Worker<'_>) -> BTreeSet<String> {
    let overruled = worker.resumed_conditions();
    let Some(host) = observed.host(worker) else {
        return overruled.into_iter().map(str::to_owned).collect();
    };
    let entries = observed.nodeset.spec.drain_on().iter();
    let lasting = entries.filter(|entry| matching(host, entry).is_some() || is_unknown(host, entry));
    lasting
        .map(name)
        .filter(|name| overruled.contains(&name.as_str()))
        .collect()
}

fn annotation(worker: Worker<'_>, names: &BTreeSet<String>) -> MetadataPatch {
    let list: Vec<&str> = names.iter().map(String::as_str).collect();
    let value = (!list.is_empty()).then(|| list.join(","));
    let is_same = worker.annotation(RESUMED_CONDITIONS) == value.as_deref();
    let change = (!is_same).then(|| (RESUMED_CONDITIONS.to_owned(), value));
    change.into_iter().collect()
}

/// Returns when the next condition is due.
pub(super) fn until_due(observed: &Observed) -> Option<Duration> {
    let hosts = observed.workers().filter_map(|worker| observed.host(worker));
    let entries = observed.nodeset.spec.drain_on();
    let times = hosts.flat_map(|host| entries.iter().filter_map(|entry| due_at(observed, host, entry)));
    let next = times.filter(|at| *at > observed.now).min()?;
    Duration::try_from(next.duration_since(observed.now)).ok()
}

/// Returns the entries that drain a worker now. A drain in force outlasts a status that is not known.
fn due<'o>(observed: &'o Observed, worker: Worker<'o>, host: &'o Node) -> impl Iterator<Item = &'o DrainOn> {
    let is_held = move |entry: &DrainOn| {
        let node = observed.slurm_node(worker).filter(|node| node.state.is_drain());
        node.is_some_and(|node| as_given(&node.reason) == reason(host, entry)) && is_unknown(host, entry)
    };
    let entries = observed.nodeset.spec.drain_on().iter();
    entries.filter(move |entry| due_at(observed, host, entry).is_some_and(|at| at <= observed.now) || is_held(entry))
}

/// Returns when a condition drains, if it lasts until then.
fn due_at(observed: &Observed, host: &Node, entry: &DrainOn) -> Option<Timestamp> {
    let condition = matching(host, entry)?;
    let seen = observed.conditions_seen.get(&key(host, condition));
    let seen = seen.copied().unwrap_or(observed.now);
    // The clock of the program that sets the condition may be ahead.
    let since = condition
        .last_transition_time
        .as_ref()
        .map_or(seen, |time| time.0.min(seen));
    since.checked_add(entry.lasting()?).ok()
}

fn matching<'n>(host: &'n Node, entry: &DrainOn) -> Option<&'n NodeCondition> {
    condition(host, entry).filter(|condition| condition.status == entry.status().as_str())
}

fn is_unknown(host: &Node, entry: &DrainOn) -> bool {
    condition(host, entry).is_some_and(|condition| condition.status == ConditionStatus::Unknown.as_str())
}

fn condition<'n>(host: &'n Node, entry: &DrainOn) -> Option<&'n NodeCondition> {
    let conditions = host.status.as_ref()?.conditions.as_ref()?;
    conditions.iter().find(|condition| condition.type_ == entry.condition)
}

fn name(entry: &DrainOn) -> String {
    format!("{}={}", entry.condition, entry.status())
}

fn reason(host: &Node, entry: &DrainOn) -> String {
    let (prefix, node, condition) = (keys::NODE_REASON_PREFIX, host.name_any(), name(entry));
    let end = if entry.undrains() { "" } else { BY_HAND };
    format!("{prefix}Node ({node}{HAS_CONDITION}{condition}{end}")
}

#[cfg(test)]
mod tests;
