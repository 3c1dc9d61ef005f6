//! Lost workers: those that are dead, unreachable ones that may be alive, and Slurm's records of both; then
//! the workers that are back, and ready workers that Slurm has lost.
//!
//! An unreachable Kubernetes node may still run its jobs, so the operator does nothing about it: Slurm's own timeout
//! applies, and the name of the worker is not reused. Its jobs start elsewhere only on proof that it is dead.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use api::{
    keys,
    node_reason::{LEAVING, LOST, TERMINATING, is_of_operator, is_unreachable},
    nodeset::{PruneNodeRecords, ScalingMode},
};
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::{Node, Pod};
use slurm::{agent::Reason, node::Node as SlurmNode};

use super::{
    Effect, Occupancy, Plan, PlannedOrder, Situation, Wait, WorkerLoss, WorkerRemoval,
    departure::{REGISTERS_WITHIN, delete_unregistered},
    drains::{self, has_manual_reason, has_operator_reason},
    max_unavailable,
    scale::ScalePlan,
    stale_jobs,
};
use crate::{
    cluster::{NodeOrder, Seen},
    nodeset::{build::hostname_on, identity::Identity, mirror::ASKED_AFTER, observe::Observed},
    unix_time::timestamp,
    worker::Worker,
};

/// An administrator declares with this taint that nothing runs on a node.
const OUT_OF_SERVICE: &str = "node.kubernetes.io/out-of-service";
/// A kubelet that reconnects ends unwanted pods within 10 s. Its clock may be a minute behind the operator's.
const SETTLED_AFTER: SignedDuration = SignedDuration::from_secs(70);
/// Nothing waits for the deletion of a record, and the list of jobs may be long.
const RECORD_REQUEUE: Duration = Duration::from_mins(1);
/// Slurm and Kubernetes may disagree about a node until Kubernetes has noticed that it is unreachable (40 or 50 s by default).
const MISSED_WITHIN: SignedDuration = SignedDuration::from_mins(1);

/// How long a slurmctld that was killed before it had saved a deletion may take to be back.
const REMEMBERED: SignedDuration = SignedDuration::from_mins(10);

/// Why a worker is known to be dead.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Death {
    /// The Kubernetes node whose state is the proof. `None` if its kubelet reports that all containers have ended.
    pub node: Option<String>,
    pub message: String,
}

/// What this process last saw of the worker of a name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LastSeen {
    /// Its pod was on this Kubernetes node.
    On(String),
    /// The kubelet reported that its pod had ended for good.
    Ended { pod: String, at: Timestamp },
}

impl LastSeen {
    /// The Kubernetes node where it may still run.
    pub fn node(&self) -> Option<&str> {
        match self {
            Self::On(node) => Some(node),
            Self::Ended { .. } => None,
        }
    }

    /// The name of its pod, if that has ended.
    pub fn ended_pod(&self) -> Option<&str> {
        match self {
            Self::On(_) => None,
            Self::Ended { pod, .. } => Some(pod),
        }
    }

    /// Whether it ended so long ago that no slurmctld remembers its record any more, unless that is in use.
    pub fn is_past(&self, now: Timestamp) -> bool {
        match self {
            Self::On(_) => true,
            Self::Ended { at, .. } => now.duration_since(*at) > REMEMBERED,
        }
    }
}

/// Returns whether everything on the Kubernetes node of this name is dead: it is gone, or it is unreachable and has the
/// out-of-service taint.
pub fn death_of_node(name: &str, node: Option<&Node>) -> Option<Death> {
    let state = match node {
        None => "gone",
        Some(node) if is_out_of_service(node) && ready_since(node).is_none() => "out of service",
        Some(_) => return None,
    };
    Some(Death {
        node: Some(name.to_owned()),
        message: format!("Kubernetes node {name} is {state}"),
    })
}

/// Sets the nodes of dead workers down, so that their jobs start elsewhere, and deletes their pods. Returns their UIDs.
pub(super) fn plan_losses<'a>(observed: &Observed, workers: &[Worker<'a>], plan: &mut Plan) -> BTreeSet<&'a str> {
    let mut dead = BTreeSet::new();
    for worker in workers {
        let has_ended = has_ended_for_good(*worker);
        let of_node = || death_of_node(worker.kubernetes_node()?, observed.host(*worker));
        let ended = || Death {
            node: None,
            message: "all its containers have ended".to_owned(),
        };
        let Some(death) = has_ended.then(ended).or_else(of_node) else {
            continue;
        };
        dead.insert(worker.uid());
        let node = observed.slurm_node(*worker);
        // Its pod was deleted, and no job was lost with it. A machine that dies while its pods are being deleted is a loss,
        // unless the operator itself had chosen the worker to leave.
        let ended_as_asked = worker.is_terminating() && (has_ended || worker.leaving().is_some());
        let is_planned = ended_as_asked && node.is_some_and(|node| !node.state.is_busy());
        let down = node.and_then(|node| down(node, &death, Some(*worker), is_planned));
        // The kubelet is about to remove a terminating pod that has ended.
        if down.is_some() || !has_ended || !worker.is_terminating() {
            plan.effects.push(Effect::LoseWorker(WorkerLoss {
                pod: Some(worker.id()),
                death,
                down,
                is_planned,
            }));
        }
    }
    dead
}

/// Whether the kubelet reports that a worker has ended, and does not start it again.
fn has_ended_for_good(worker: Worker<'_>) -> bool {
    worker.is_finished() || worker.is_terminating() && worker.has_ended()
}

/// Returns the order that sets a dead node down, unless it is down already or comes from slurm.conf. The reason of a worker
/// that left on purpose stays: it decides later whether the record may be deleted.
fn down(node: &SlurmNode, death: &Death, worker: Option<Worker<'_>>, is_planned: bool) -> Option<PlannedOrder> {
    // A node that power saving has stopped, or that has not registered since it was started, has lost nothing.
    let is_idle_cloud = node.state.is_cloud() && (node.state.is_off() || node.state.is_starting());
    if node.state.is_down() || !node.state.is_dynamic() || is_idle_cloud {
        return None;
    }
    let words = match (is_planned, node.reason.as_str()) {
        (true, "") => Some(TERMINATING.to_owned()),
        (true, _) => None,
        // An administrator's reason is kept.
        (false, _) => (!has_manual_reason(node, worker)).then(|| format!("{LOST}{}", death.message)),
    };
    let reason = words.map(|words| Reason::of(&format!("{}{words}", keys::NODE_REASON_PREFIX)));
    Some(PlannedOrder::new(node, NodeOrder::Down { reason }))
}

/// Returns the unreachable or just reconnected Kubernetes node where the last worker of this name may run unseen.
pub(super) fn may_be_alive_on<'o>(observed: &'o Observed, hostname: &str) -> Option<&'o str> {
    places_of(observed, hostname).find(|node| is_cut_off(observed, node))
}

/// Returns the Kubernetes nodes where the last worker of this name may run, unless it is known to have ended. The cache may
/// be too old to show that one of them is unreachable.
pub fn last_places<'o>(observed: &'o Observed, hostname: &str) -> impl Iterator<Item = &'o str> {
    let has_ended = has_ended(observed, hostname);
    places_of(observed, hostname).filter(move |_| !has_ended)
}

fn places_of<'o>(observed: &'o Observed, hostname: &str) -> impl Iterator<Item = &'o str> {
    let noted = noted(observed).and_then(|noted| noted.get(hostname));
    let recorded = observed.records.get(hostname).map(|identity| &identity.node);
    let seen = observed.last_seen.get(hostname).and_then(LastSeen::node);
    noted.into_iter().chain(recorded).map(String::as_str).chain(seen)
}

/// Returns until when the last worker of this name may run although its Kubernetes node is ready: its pod is gone, nothing
/// shows that it has ended, and Kubernetes may not have noticed yet that the Kubernetes node is unreachable.
pub(super) fn may_be_alive_until(observed: &Observed, hostname: &str) -> Option<Timestamp> {
    let gone = observed.without_pod.get(hostname).max(observed.vanished_since.as_ref());
    let end = gone?.checked_add(MISSED_WITHIN).ok()?;
    (!has_ended(observed, hostname) && observed.now < end).then_some(end)
}

/// Whether the kubelet reported, or Slurm shows, that the last worker of this name has ended.
fn has_ended(observed: &Observed, hostname: &str) -> bool {
    let is_shown = |seen: &Seen| {
        let record = observed.records.get(hostname).zip(seen.nodes.get(hostname));
        record.is_none_or(|(Identity { node: host, .. }, node)| {
            // The preStop hook sets the node of a worker that ends down, unless a person drained it. A drain, of a cordoned worker
            // or by a person, does not show that the worker has ended.
            let has_ended = node.state.is_down() && node.reason.starts_with(keys::NODE_REASON_PREFIX);
            has_ended || death_of_node(host, observed.nodes.get(host).map(AsRef::as_ref)).is_some()
        })
    };
    let ended = observed.last_seen.get(hostname).and_then(LastSeen::ended_pod);
    ended.is_some() || observed.knowledge.known().is_some_and(is_shown)
}

/// Notes what this process sees of workers. Without Slurm nothing else has the place of a pod that is gone, and Slurm does not
/// show that the worker of a node that a person drained has ended.
pub fn note_workers(last_seen: &mut BTreeMap<String, LastSeen>, pods: &[Arc<Pod>], now: Timestamp) {
    for worker in pods.iter().map(|pod| Worker(pod)) {
        let Some(name) = worker.slurm_name() else { continue };
        let last = match worker.kubernetes_node() {
            _ if has_ended_for_good(worker) => Some(LastSeen::Ended {
                pod: worker.name().to_owned(),
                at: now,
            }),
            node => node.map(|node| LastSeen::On(node.to_owned())),
        };
        match last {
            Some(last) => drop(last_seen.insert(name.to_owned(), last)),
            None => drop(last_seen.remove(name)),
        }
    }
}

/// Returns since when pods that the status counts have been gone, while Slurm does not respond. This process did not see where they
/// ran, so every missing name may be one of theirs.
pub fn vanished_since(observed: &Observed, before: Option<Timestamp>) -> Option<Timestamp> {
    if observed.knowledge.known().is_some() {
        return None;
    }
    let counted = observed.nodeset.status.as_ref().map_or(0, |status| status.replicas);
    let there = observed.workers().filter(|worker| worker.has_phase()).count();
    let is_fewer = i32::try_from(there).is_ok_and(|there| there < counted);
    is_fewer.then_some(observed.now).or(before)
}

/// Returns since when each record has had no pod, as far as that was seen. While Slurm does not respond, what was seen before
/// counts, by this process or, with the status, by the leader before it.
pub fn without_pod(observed: &Observed, before: &BTreeMap<String, Timestamp>) -> BTreeMap<String, Timestamp> {
    let names: BTreeSet<&String> = if observed.knowledge.known().is_some() {
        observed.records.keys().collect()
    } else {
        let mut names: BTreeSet<_> = before
            .keys()
            .chain(noted(observed).into_iter().flat_map(BTreeMap::keys))
            .collect();
        let with_pod: BTreeSet<&str> = observed.workers().filter_map(Worker::slurm_name).collect();
        names.retain(|name| !with_pod.contains(name.as_str()));
        names
    };
    let since = |name: &String| before.get(name).copied().unwrap_or(observed.now);
    names.into_iter().map(|name| (name.clone(), since(name))).collect()
}

/// Returns the workers whose Kubernetes nodes are unreachable, were when they were last seen, or may be without Kubernetes
/// having noticed it. The status keeps them, so that their names are not reused when their pods are gone and Slurm does not
/// respond.
pub fn cut_off(observed: &Observed) -> BTreeMap<String, String> {
    let mut places = noted(observed).cloned().unwrap_or_default();
    // A pod may be gone before Kubernetes misses its node. Slurm may not respond later.
    for (name, identity) in &observed.records {
        places.entry(name.clone()).or_insert_with(|| identity.node.clone());
    }
    for (name, last) in &observed.last_seen {
        if let Some(node) = last.node() {
            places.insert(name.clone(), node.to_owned());
        }
    }
    for worker in observed.workers() {
        let Some(name) = worker.slurm_name() else { continue };
        // Existing pods replace what the status says; finished ones run nowhere.
        places.remove(name);
        if let Some(node) = worker.kubernetes_node().filter(|_| !worker.is_finished()) {
            places.insert(name.to_owned(), node.to_owned());
        }
    }
    let with_pod: BTreeSet<&str> = observed.workers().filter_map(Worker::slurm_name).collect();
    places.retain(|name, node| {
        // While Slurm does not respond, nothing else has the place of a pod that is gone.
        let is_all_there_is = observed.knowledge.known().is_none() && !with_pod.contains(name.as_str());
        is_all_there_is && observed.nodes.contains_key(node)
            || is_cut_off(observed, node)
            || may_be_alive_until(observed, name).is_some()
    });
    places
}

/// Returns how long until the next of the [`cut_off`] workers counts as back; no event reports that.
pub(super) fn until_back(observed: &Observed) -> Option<Duration> {
    let left = cut_off(observed).into_values().filter_map(|node| {
        let since = ready_since(observed.nodes.get(&node)?)?;
        Duration::try_from(SETTLED_AFTER - observed.now.duration_since(since)).ok()
    });
    left.min()
}

fn noted(observed: &Observed) -> Option<&BTreeMap<String, String>> {
    observed.nodeset.status.as_ref()?.cut_off.as_ref()
}

/// Whether something may run unseen on a node.
fn is_cut_off(observed: &Observed, node: &str) -> bool {
    let node = observed.nodes.get(node);
    node.is_some_and(|node| may_run_unseen(node, observed.now))
}

/// Whether something may run unseen on a node that exists: it is unreachable, or its kubelet has just reconnected.
pub fn may_run_unseen(node: &Node, now: Timestamp) -> bool {
    match ready_since(node) {
        Some(since) => now.duration_since(since) < SETTLED_AFTER,
        None => !is_out_of_service(node),
    }
}

/// Returns since when the kubelet of this node has been reporting.
fn ready_since(node: &Node) -> Option<Timestamp> {
    let conditions = node.status.as_ref()?.conditions.as_ref()?;
    let ready = conditions.iter().find(|condition| condition.type_ == "Ready")?;
    let since = ready.last_transition_time.as_ref();
    (ready.status == "True").then(|| since.map_or(Timestamp::MIN, |time| time.0))
}

fn is_out_of_service(node: &Node) -> bool {
    let taints = node.spec.as_ref().and_then(|spec| spec.taints.as_ref());
    taints.into_iter().flatten().any(|taint| taint.key == OUT_OF_SERVICE)
}

/// Sets the nodes of dead workers down, and deletes the records that nothing needs. New workers use those of their names.
///
/// A worker that is removed as planned takes its record along. These are the others: records of lost workers, and records
/// that had to stay because a job requested the node by name.
pub(super) fn plan_records(observed: &Observed, scale: &ScalePlan<'_>, plan: &mut Plan) {
    let Some(seen) = observed.knowledge.known() else { return };
    let spec = &observed.nodeset.spec;
    for (name, identity) in &observed.records {
        let Some(node) = seen.nodes.get(name) else { continue };
        // A worker of another NodeSet has taken the record over, or the record exists without a worker.
        let is_elastic = node.state.is_cloud() && !identity.settings.is_empty();
        if observed.foreign_hostnames.contains_key(name) || is_elastic && node.state.is_off() {
            continue;
        }
        let host = observed.nodes.get(&identity.node).map(AsRef::as_ref);
        // The record may be older than the status's note about the last worker of that name.
        let may_be_alive = identity.node.is_empty() || may_be_alive_on(observed, name).is_some();
        let death = death_of_node(&identity.node, host).filter(|_| !may_be_alive);
        // Without a comment, slurmctld has forgotten that the record was described or deleted.
        let was_planned = node.comment.is_empty() || is_orderly_end(&node.reason);
        let is_planned = was_planned && !node.state.is_busy();
        if let Some(death) = &death
            && let Some(down) = down(node, death, None, is_planned)
        {
            plan.effects.push(Effect::LoseWorker(WorkerLoss {
                pod: None,
                death: death.clone(),
                down: Some(down),
                is_planned,
            }));
            continue;
        }
        let moved = spec.scaling_mode() == ScalingMode::DaemonSet && host.is_none_or(|host| hostname_on(host) != *name);
        let lost = spec.prune_node_records() == PruneNodeRecords::NodeNotFound && (death.is_some() || moved);
        // The worker was seen to end. Slurm itself notices that minutes later.
        let has_ended = observed.last_seen.get(name).and_then(LastSeen::ended_pod).is_some();
        let is_out = node.state.is_down() || node.state.is_drained() || has_ended;
        if (lost || was_planned) && is_out && !scale.is_wanted(&observed.nodeset, name) {
            let order = PlannedOrder::new(node, NodeOrder::Delete);
            plan.effects.push(Effect::DeleteRecord(order));
            // The record stays while a job requests it, and no event reports the end of that.
            plan.requeue = plan.requeue.map(|requeue| requeue.min(RECORD_REQUEUE));
        }
    }
}

/// Whether the operator drained the worker to remove it, or its preStop hook set the node down.
fn is_orderly_end(reason: &str) -> bool {
    is_of_operator(reason) && (reason.contains(LEAVING) || reason.contains(TERMINATING))
}

/// Resumes nodes whose workers are back. A resume also makes slurmd register, which ends copies of jobs that Slurm has
/// started elsewhere meanwhile.
pub(super) fn plan_returns(situation: &Situation<'_>, plan: &mut Plan) {
    let observed = situation.observed;
    for worker in &situation.stay {
        let Some(node) = observed.slurm_node(*worker).filter(|node| node.state.is_down()) else {
            continue;
        };
        let alive = observed.host(*worker).is_some_and(|host| ready_since(host).is_some());
        let Some(since) = worker.ready_since().filter(|_| worker.is_ready() && alive) else {
            continue;
        };
        // Slurm set it down before the worker became ready, or so long ago that Kubernetes would have noticed an outage.
        let given_up = node.reason_changed_at.finite().and_then(timestamp);
        let is_past = given_up.is_none_or(|at| at <= since || observed.now.duration_since(at) > MISSED_WITHIN);
        if (has_operator_reason(node, Some(*worker)) || is_unreachable(&node.reason))
            && missed_address(*worker, node).is_none()
            && (stale_jobs::is_down_for_stale_jobs(node) || is_past)
            && !drains::is_wanted(observed, *worker)
        {
            plan.effects.push(Effect::OrderNode {
                order: PlannedOrder::new(node, NodeOrder::Resume),
                note_on: None,
            });
        }
    }
}

/// Returns the address of a worker for which Slurm has the address of another slurmd: slurmctld was killed before it saved
/// the registration, and slurmd does not register again by itself. Once slurmctld has the address, it reaches the worker.
///
/// The start of the container counts, not the creation of the pod: after etcd was restored from a backup, the kubelet starts
/// an old pod again, under another address.
pub fn missed_address<'a>(worker: Worker<'a>, node: &SlurmNode) -> Option<&'a str> {
    let started = i64::try_from(node.slurmd_start_time.finite().unwrap_or_default()).ok()?;
    let is_of_another = worker.last_start().is_some_and(|start| started < start.as_second());
    let is_missed = node.state.is_down() || !node.state.is_responding();
    let is_missed = is_missed && node.state.is_dynamic() && is_of_another;
    worker.address_instead_of(&node.address).filter(|_| is_missed)
}

/// Replaces ready workers that are not registered in Slurm. slurmctld loses a node that joined just before it was killed,
/// and slurmd does not register again by itself.
pub(super) fn plan_unregistered(situation: &Situation<'_>, plan: &mut Plan) {
    let observed = situation.observed;
    let Some(seen) = observed.knowledge.known() else {
        return;
    };
    // The agent and the mirror first make those register that a restarted slurmctld has forgotten.
    let missed_since = |worker: Worker<'_>| Some(worker.ready_since()?.max(seen.boot()?));
    let replaced_at = |worker: Worker<'_>| missed_since(worker)?.checked_add(REGISTERS_WITHIN).ok();
    let long_ready = |worker: Worker<'_>| replaced_at(worker).is_some_and(|at| at <= observed.now) && worker.is_ready();
    let is_known = |worker: &Worker<'_>| observed.slurm_node(*worker).is_some();
    // slurmd may have registered under the machine's own host name.
    let is_unknown = |worker: &&Worker<'_>| !is_known(worker) && !worker.is_named_by_machine();
    let unknown = situation.stay.iter().filter(is_unknown);
    let (missing, starting): (Vec<&Worker<'_>>, Vec<_>) = unknown.partition(|worker| long_ready(**worker));
    // With the jobs Slurm is asked when slurmctld started, and the mirror makes a worker register that it has forgotten.
    let is_missed = |worker: &&Worker<'_>| worker.is_available(ASKED_AFTER, observed.now);
    plan.needs_jobs |= starting.iter().any(is_missed);
    // No event reports the end of the wait.
    let end = starting.iter().filter_map(|worker| replaced_at(**worker)).min();
    let wait = end.and_then(|end| Duration::try_from(end.duration_since(observed.now)).ok());
    plan.requeue = [plan.requeue, wait].into_iter().flatten().min();
    if missing.is_empty() {
        return;
    }
    // If none is registered, they may all have other names in Slurm, so one worker shows first whether replacing helps.
    let limit = if situation.stay.iter().any(is_known) {
        max_unavailable(observed, plan.desired)
    } else {
        1
    };
    let young = observed.workers().filter(|worker| !long_ready(*worker)).count();
    let mut free = limit.saturating_sub(young);
    for worker in missing {
        let node = worker.slurm_name().unwrap_or_default().to_owned();
        plan.needs_jobs = true;
        plan.waits.push(Wait::Other(format!(
            "the pod of node {node} is ready but not registered in Slurm; it is replaced, so that it registers"
        )));
        if free > 0 {
            free -= 1;
            plan.effects.push(Effect::RemoveWorker(WorkerRemoval {
                pod: worker.id(),
                occupancy: Occupancy::Absent,
                order: delete_unregistered(&node),
                node,
                keep_record: None,
                claims: Vec::new(),
            }));
        }
    }
}

#[cfg(test)]
mod tests;
