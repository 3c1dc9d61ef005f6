//! Shows each side's view on the other side: the state of a Slurm node on its pod, and facts from Kubernetes on the Slurm
//! node. Pure; `apply/mirror.rs` executes it.
//!
//! Nothing here decides about a worker, and nothing waits for it. Equal values are not written again.

#[cfg(test)]
mod model;
#[cfg(test)]
mod tests;

use std::{
    collections::{BTreeSet, HashMap},
    time::Duration,
};

use api::{
    conditions::{ConditionStatus, SLURM_REACHABLE},
    keys::{NODE_FEATURE_PREFIX, POD_CONDITION_PREFIX, annotations},
};
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::{Node, PodCondition};
use kube::ResourceExt;
use slurm::{
    NodeDescription, NodeFeatures, SingleLine,
    describe::InvalidLine,
    node::{BaseState, NodeFlag},
};

use super::{
    build::{topology_in, topology_of},
    identity::Identity,
    observe::Observed,
    plan::{MetadataPatch, is_cordoned, missed_address},
};
use crate::{
    cluster::Seen,
    partition::rules::mark::Marks,
    worker::{Phase, Worker},
};

/// The least time between two writes to a pod. Short jobs change the state of a node several times a second.
const WRITE_INTERVAL: SignedDuration = SignedDuration::from_secs(5);

/// How long conditions stay while Slurm is unreachable. A restart of slurmrestd takes seconds, and writing all pods twice
/// for that would cost more than stale conditions; after this time they mislead more than they help.
const STALE_AFTER: SignedDuration = SignedDuration::from_mins(2);

/// When a topology that Slurm refused or stored differently is requested again; topology.yaml may have changed by then.
const RETRY_AFTER: SignedDuration = SignedDuration::from_mins(5);

/// How long after it became ready a worker that Slurm misses is looked after. Usually it registers before.
pub const ASKED_AFTER: SignedDuration = SignedDuration::from_secs(5);

/// Upstream has conditions for these flags only.
const FLAGS: &[(NodeFlag, &str)] = &[
    (NodeFlag::Completing, "Completing"),
    (NodeFlag::Drain, "Drain"),
    (NodeFlag::Fail, "Fail"),
    (NodeFlag::Invalid, "Invalid"),
    (NodeFlag::InvalidReg, "InvalidReg"),
    (NodeFlag::Maintenance, "Maintenance"),
    (NodeFlag::NotResponding, "NotResponding"),
    (NodeFlag::Undrain, "Undrain"),
];

/// The writes to pods and to Slurm nodes.
#[derive(Debug, Default)]
pub struct Mirror<'a> {
    pub pod_writes: Vec<(Worker<'a>, PodChange)>,
    pub node_updates: Vec<(Worker<'a>, NodeDescription)>,
    /// Problems that a user has to fix. They block nothing else.
    pub complaints: Vec<String>,
    /// When a write that is too early now becomes due.
    pub requeue: Option<Duration>,
}

#[derive(Clone, Debug, PartialEq)]
pub enum PodChange {
    /// All conditions with Slurm's prefix; others of that prefix are removed.
    Conditions(Vec<PodCondition>),
    Annotations(MetadataPatch),
}

/// What was written for each pod, by its UID, so that nothing is repeated too early. It is lost with the process; then a
/// value may be written once more, which changes nothing.
pub type MirrorMemory = HashMap<String, PodMemory>;

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PodMemory {
    pub written: Option<Timestamp>,
    /// When its Slurm node was last updated; older snapshots do not show the result.
    pub updated: Option<Timestamp>,
    pub topology: Option<TopologyRequest>,
}

/// A topology that Slurm was asked to set.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TopologyRequest {
    pub place: String,
    pub at: Timestamp,
    /// Slurm's message, if it refused.
    pub refused: Option<String>,
}

/// The facts about one worker.
#[derive(Clone, Debug)]
struct WorkerView<'a> {
    observed: &'a Observed,
    worker: Worker<'a>,
    /// Its Kubernetes node.
    host: Option<&'a Node>,
    seen: Option<&'a Seen>,
    /// Its Slurm node.
    node: Option<&'a slurm::Node>,
    memory: PodMemory,
}

pub fn mirror<'a>(observed: &'a Observed, memory: &MirrorMemory) -> Mirror<'a> {
    let mut mirror = Mirror::default();
    for worker in observed.workers().filter(|worker| !worker.is_finished()) {
        let view = WorkerView {
            observed,
            worker,
            host: observed.host(worker),
            seen: observed.knowledge.known(),
            node: observed.slurm_node(worker),
            memory: memory.get(worker.uid()).cloned().unwrap_or_default(),
        };
        plan_pod_write(&view, &mut mirror);
        plan_registration(&view, &mut mirror);
        plan_node_updates(&view, &mut mirror);
    }
    mirror
}

impl<'a> Mirror<'a> {
    fn give_address(&mut self, worker: Worker<'a>, address: Option<&str>) {
        if let Some(address) = address.and_then(|address| SingleLine::new(address).ok()) {
            let description = NodeDescription {
                address: Some(address),
                ..NodeDescription::default()
            };
            self.node_updates.push((worker, description));
        }
    }

    fn requeue_within(&mut self, left: SignedDuration) {
        // Rounded up, or the next reconcile would be a moment too early.
        let left = Duration::try_from(left).unwrap_or_default() + Duration::from_millis(1);
        self.requeue = Some(self.requeue.map_or(left, |requeue| requeue.min(left)));
    }
}

/// Plans the conditions first, and the annotations when the pod may be written again.
fn plan_pod_write<'a>(view: &WorkerView<'a>, mirror: &mut Mirror<'a>) {
    let status = view.worker.0.status.as_ref();
    let observed = status.and_then(|status| status.conditions.as_deref());
    let conditions = wanted_conditions(view, mirror);
    let conditions = conditions.filter(|wanted| !are_equal(observed.unwrap_or_default(), wanted));
    let annotations = wanted_annotations(view);
    let change = match conditions {
        Some(wanted) => PodChange::Conditions(wanted),
        None if annotations.is_empty() => return,
        None => PodChange::Annotations(annotations.clone()),
    };
    let written = view.memory.written;
    let left = written.map(|at| WRITE_INTERVAL - view.observed.now.duration_since(at));
    if let Some(left) = left.filter(SignedDuration::is_positive) {
        mirror.requeue_within(left);
        return;
    }
    if matches!(change, PodChange::Conditions(_)) && !annotations.is_empty() {
        mirror.requeue_within(WRITE_INTERVAL);
    }
    mirror.pod_writes.push((view.worker, change));
}

/// Returns the wanted conditions. `None` if they stay as they are.
fn wanted_conditions(view: &WorkerView<'_>, mirror: &mut Mirror<'_>) -> Option<Vec<PodCondition>> {
    if view.seen.is_some() {
        return Some(view.node.map(conditions_of).unwrap_or_default());
    }
    let status = view.observed.nodeset.status.as_ref()?;
    let unreachable = status
        .conditions
        .iter()
        .find(|condition| condition.type_ == SLURM_REACHABLE && condition.status == ConditionStatus::False)?;
    let since = unreachable.last_transition_time.instant()?;
    let left = STALE_AFTER - view.observed.now.duration_since(since);
    if left.is_positive() {
        mirror.requeue_within(left);
        return None;
    }
    Some(Vec::new())
}

/// Returns the annotations to change.
fn wanted_annotations(view: &WorkerView<'_>) -> MetadataPatch {
    let mut wanted = MetadataPatch::new();
    if view.worker.is_terminating() {
        return wanted;
    }
    mark_deadline(view, &mut wanted);
    mark_topology(view, &mut wanted);
    wanted.retain(|key, value| view.worker.annotation(key) != value.as_deref());
    wanted
}

/// Adds the end of the time limit of the last job, if it is known.
fn mark_deadline(view: &WorkerView<'_>, wanted: &mut MetadataPatch) {
    let Some(seen) = view.seen else { return };
    let deadline = match (view.node.filter(|node| node.state.is_busy()), &seen.job_summary) {
        (None, _) => None,
        (Some(node), Some(jobs)) => jobs.deadlines.get(&node.name),
        (Some(_), None) => return,
    };
    wanted.insert(
        annotations::POD_DEADLINE.to_owned(),
        deadline.map(|at| format!("{at:.0}")),
    );
}

/// Returns conditions for the base state of the node and for each flag, as upstream names them, with Slurm's reason.
fn conditions_of(node: &slurm::Node) -> Vec<PodCondition> {
    let base = node.state.base.map(|base| match base {
        BaseState::Unknown => "Unknown",
        BaseState::Down => "Down",
        BaseState::Idle => "Idle",
        BaseState::Allocated => "Allocated",
        BaseState::Error => "Error",
        BaseState::Mixed => "Mixed",
        BaseState::Future => "Future",
    });
    let flags = FLAGS.iter().filter(|(flag, _)| node.state.has(*flag));
    let names = base.into_iter().chain(flags.map(|(_, name)| *name));
    names
        .map(|name| PodCondition {
            type_: format!("{POD_CONDITION_PREFIX}{name}"),
            status: "True".to_owned(),
            message: Some(node.reason.clone()),
            ..PodCondition::default()
        })
        .collect()
}

/// Whether the pod has exactly these conditions of Slurm's prefix.
fn are_equal(observed: &[PodCondition], wanted: &[PodCondition]) -> bool {
    fn fields(condition: &PodCondition) -> (&str, &str, &str) {
        let message = condition.message.as_deref().unwrap_or_default();
        (&condition.type_, &condition.status, message)
    }
    let ours = observed.iter().map(fields);
    let ours: Vec<_> = ours
        .filter(|(type_, ..)| type_.starts_with(POD_CONDITION_PREFIX))
        .collect();
    ours.len() == wanted.len() && wanted.iter().all(|wanted| ours.contains(&fields(wanted)))
}

/// Gives Slurm the address of a ready worker that its slurmctld, started after slurmd, does not have: it was killed before it
/// saved the registration, and slurmd does not register again by itself. The agent makes it register.
fn plan_registration<'a>(view: &WorkerView<'a>, mirror: &mut Mirror<'a>) {
    let (worker, Some(seen), None) = (view.worker, view.seen, view.node) else {
        return;
    };
    // Its record is deleted before the pod, and a drain for a cordon is lost with the record.
    let is_leaving = worker.is_terminating() || worker.is_marked();
    if !worker.is_ready() || is_leaving || is_cordoned(view.observed, worker) || worker.is_named_by_machine() {
        return;
    }
    // No event reports the end of the wait, nor that slurmd did not take the request.
    mirror.requeue_within(ASKED_AFTER);
    let is_forgotten = worker.is_available(ASKED_AFTER, seen.at) && worker.last_start() < seen.boot();
    let is_asked = view.memory.updated.is_some_and(|updated| seen.at <= updated);
    if is_forgotten && !is_asked {
        mirror.give_address(worker, worker.addresses().next());
    }
}

/// Plans the update of a registered node, down or not. Until the pod runs, the record is that of its predecessor.
fn plan_node_updates<'a>(view: &WorkerView<'a>, mirror: &mut Mirror<'a>) {
    let Some((seen, node)) = view.seen.zip(view.node) else {
        return;
    };
    let worker = view.worker;
    if worker.phase() != Phase::Running {
        return;
    }
    let is_terminating = worker.is_terminating();
    if !is_terminating {
        plan_topology(view, seen, node, mirror);
    }
    // The snapshot does not show the result of the last update.
    if view.memory.updated.is_some_and(|updated| seen.at <= updated) {
        return;
    }
    let mut description = NodeDescription {
        comment: missing_comment(view, node),
        ..NodeDescription::default()
    };
    if is_terminating {
        // A worker that is deleted right after it registered may have no comment, and later nothing would show who owned
        // its record. The record may already be the successor's, which has another address.
        if worker.has_address(&node.address) && Identity::parse(&node.comment).is_none() {
            mirror.node_updates.push((worker, description));
        }
        return;
    }
    // An update of its own, so that nothing waits for it. A worker that has just become ready may be about to register.
    if worker.is_available(ASKED_AFTER, seen.at) {
        mirror.give_address(worker, missed_address(worker, node));
    }
    match wanted_features(view, node) {
        Ok(features) => description.features = features,
        Err(InvalidLine(name)) => {
            let words = format!("{name:?} is no feature; a feature is one word without control characters");
            mirror.complaints.push(problem(worker, annotations::FEATURES, &words));
        }
    }
    if description != NodeDescription::default() {
        mirror.node_updates.push((worker, description));
    }
}

fn missing_comment(view: &WorkerView<'_>, node: &slurm::Node) -> Option<SingleLine> {
    let nodeset = view.observed.nodeset.as_ref();
    let identity = Identity {
        namespace: nodeset.namespace().unwrap_or_default(),
        pod_name: view.worker.name().to_owned(),
        node: view.worker.kubernetes_node().unwrap_or_default().to_owned(),
        node_set_name: nodeset.name_any(),
        node_set_uid: nodeset.uid().unwrap_or_default(),
        settings: Identity::parse(&node.comment).unwrap_or_default().settings,
    };
    let comment = SingleLine::new(identity.to_comment()).ok()?;
    (comment.as_str() != node.comment).then_some(comment)
}

/// Returns the wanted features. `None` if they are set. Foreign features are kept.
fn wanted_features(view: &WorkerView<'_>, node: &slurm::Node) -> Result<Option<NodeFeatures>, InvalidLine> {
    let observed = view.observed;
    let marks = Marks::of(&observed.nodeset, &node.name, &observed.partitions, &observed.siblings);
    // Without the Kubernetes node its annotation is unknown, and its features stay.
    let given = view.host.map(features_of);
    let is_others = |feature: &&String| {
        let is_the_hosts = given.is_some() && feature.starts_with(NODE_FEATURE_PREFIX);
        !is_the_hosts && !marks.is_stale(feature)
    };
    let with_ours = |current: &[String]| -> BTreeSet<String> {
        let others = current.iter().filter(is_others);
        let ours = given.iter().flatten().chain(&marks.wanted);
        others.chain(ours).cloned().collect()
    };
    let as_set = |current: &[String]| -> BTreeSet<String> { current.iter().cloned().collect() };
    let (available, active) = (with_ours(&node.features), with_ours(&node.active_features));
    if available == as_set(&node.features) && active == as_set(&node.active_features) {
        return Ok(None);
    }
    let lines = |features: BTreeSet<String>| features.into_iter().map(SingleLine::new).collect::<Result<_, _>>();
    Ok(Some(NodeFeatures {
        available: lines(available)?,
        active: lines(active)?,
    }))
}

/// Returns the features that the annotation of a Kubernetes node requests.
fn features_of(host: &Node) -> BTreeSet<String> {
    let given = host.annotations().get(annotations::FEATURES);
    given
        .into_iter()
        .flat_map(|features| features.split(','))
        .map(str::trim)
        .filter(|feature| !feature.is_empty())
        .map(|feature| format!("{NODE_FEATURE_PREFIX}{feature}"))
        .collect()
}

/// Returns the topology that the Kubernetes node requests, once it is on the pod too. Without an annotation on the node:
/// the topology of `extraConf` or the pod template, but only to replace the one on the pod.
fn wanted_topology(view: &WorkerView<'_>) -> Option<String> {
    let on_pod = view.worker.annotation(annotations::TOPOLOGY);
    let on_pod = on_pod.filter(|place| !place.is_empty())?;
    if let Some(place) = topology_of(view.host?) {
        return (place == on_pod).then(|| place.to_owned());
    }
    let extra_conf = view.observed.nodeset.spec.extra_conf.as_deref();
    let extra = extra_conf.and_then(topology_in);
    Some(extra.or_else(|| template_topology(view)).unwrap_or_default())
}

fn template_topology(view: &WorkerView<'_>) -> Option<String> {
    let annotations = view.observed.nodeset.spec.pod_metadata()?.annotations.as_ref()?;
    annotations.get(annotations::TOPOLOGY).cloned()
}

/// Adds the annotation of the pod, from which `SLINKY_TOPOLOGY` is set and which shows that the operator set the topology.
fn mark_topology(view: &WorkerView<'_>, wanted: &mut MetadataPatch) {
    let Some(host) = view.host else { return };
    let place = match topology_of(host) {
        Some(place) => Some(place.to_owned()),
        None if is_reverted(view) => template_topology(view),
        // It stays while it is needed to know that the topology has to be reverted.
        None => return,
    };
    wanted.insert(annotations::TOPOLOGY.to_owned(), place);
}

/// Whether Slurm no longer has the topology that the pod shows.
fn is_reverted(view: &WorkerView<'_>) -> bool {
    let Some((seen, node)) = view.seen.zip(view.node) else {
        return view.seen.is_some();
    };
    let is_done = |asked: &TopologyRequest| asked.refused.is_none() && asked.at < seen.at;
    wanted_topology(view).is_some_and(|wanted| {
        let asked = view.memory.topology.as_ref().filter(|asked| asked.place == wanted);
        node.topology == wanted || asked.is_some_and(is_done)
    })
}

fn plan_topology<'a>(view: &WorkerView<'a>, seen: &Seen, node: &slurm::Node, mirror: &mut Mirror<'a>) {
    let Some(wanted) = wanted_topology(view).filter(|wanted| *wanted != node.topology) else {
        return;
    };
    let asked = view.memory.topology.as_ref();
    if let Some(asked) = asked.filter(|asked| asked.place == wanted) {
        if let Some(refused) = &asked.refused {
            mirror.complaints.push(topology_refused(view.worker, &wanted, refused));
        }
        // A topology that Slurm stores differently would be requested on and on; one that it lost is requested at once.
        let forgotten = asked.refused.is_none() && node.topology.is_empty() && asked.at < seen.at;
        let left = RETRY_AFTER - view.observed.now.duration_since(asked.at);
        if !forgotten && left.is_positive() {
            mirror.requeue_within(left);
            return;
        }
    }
    match SingleLine::new(wanted) {
        Ok(place) => {
            let description = NodeDescription {
                topology: Some(place),
                ..NodeDescription::default()
            };
            mirror.node_updates.push((view.worker, description));
        }
        Err(InvalidLine(place)) => {
            let words = format!("{place:?} is not one line");
            mirror
                .complaints
                .push(problem(view.worker, annotations::TOPOLOGY, &words));
        }
    }
}

/// Explains that Slurm refused a topology.
pub fn topology_refused(worker: Worker<'_>, place: &str, words: &str) -> String {
    let remedy = "correct the annotation, or add the place to the Controller's topology.yaml";
    let words = format!("Slurm refused {place:?}: {words}; {remedy}");
    problem(worker, annotations::TOPOLOGY, &words)
}

fn problem(worker: Worker<'_>, annotation: &str, words: &str) -> String {
    let host = worker.kubernetes_node().unwrap_or_default();
    let node = worker.slurm_name().unwrap_or_default();
    format!("annotation {annotation} of Kubernetes node {host:?}, for Slurm node {node:?}: {words}")
}
