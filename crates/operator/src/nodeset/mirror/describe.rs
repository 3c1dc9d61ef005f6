//! What a Slurm node shows of Kubernetes: its owner, features and topology.

use std::collections::BTreeSet;

use api::keys::{NODE_FEATURE_PREFIX, annotations};
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::Node;
use kube::ResourceExt;
use slurm::{NodeDescription, NodeFeatures, SingleLine, describe::InvalidLine};

use super::{Mirror, NodeUpdate, WorkerView};
use crate::{
    nodeset::{
        build,
        identity::Identity,
        observe::Observed,
        plan::{MetadataPatch, missed_address},
    },
    partition::rules::mark::Marks,
    worker::{Phase, Worker},
};

/// How long until a topology is requested again that Slurm refused or stored differently. topology.yaml may have changed
/// meanwhile.
const RETRY_AFTER: SignedDuration = SignedDuration::from_mins(5);

/// How long after it became ready a worker may be missing in Slurm.
const REGISTERED_WITHIN: SignedDuration = SignedDuration::from_secs(5);

/// Plans the update of a registered node, down or not. Until the pod runs, the record is that of its predecessor.
pub(super) fn plan(view: WorkerView<'_>, mirror: &mut Mirror) {
    if view.worker.phase() != Phase::Running {
        return;
    }
    if view.worker.is_terminating() {
        plan_terminating(view, mirror);
        return;
    }
    plan_topology(view, mirror);
    let (Some(node), Some(seen)) = (view.node, view.seen) else {
        return;
    };
    if is_outdated(view, seen.at) {
        return;
    }
    plan_address(view, node, seen.at, mirror);
    let mut description = NodeDescription {
        comment: missing_comment(view, node),
        ..NodeDescription::default()
    };
    match wanted_features(view, node) {
        Ok(features) => description.features = features,
        Err(InvalidLine(name)) => push_problem(
            view,
            mirror,
            annotations::FEATURES,
            &format!("{name:?} is no feature; a feature is one word without control characters"),
        ),
    }
    if description != NodeDescription::default() {
        push_update(view, node, description, mirror);
    }
}

/// Adds the missing comment of a terminating worker: one that is deleted right after it registered may have none, and later
/// nothing would show who owned its record. The record may already be the successor's, which has another address.
fn plan_terminating(view: WorkerView<'_>, mirror: &mut Mirror) {
    let (Some(node), Some(seen)) = (view.node, view.seen) else {
        return;
    };
    let is_its_own = view.worker.has_address(&node.address);
    if !is_its_own || Identity::parse(&node.comment).is_some() || is_outdated(view, seen.at) {
        return;
    }
    let comment = missing_comment(view, node);
    let description = NodeDescription {
        comment,
        ..NodeDescription::default()
    };
    push_update(view, node, description, mirror);
}

fn missing_comment(view: WorkerView<'_>, node: &slurm::Node) -> Option<SingleLine> {
    let comment = identity(view).to_comment();
    (node.comment != comment)
        .then(|| SingleLine::new(comment).ok())
        .flatten()
}

/// Plans the address in an update of its own, so that nothing else waits for it. A worker that has just become ready may be
/// about to register.
fn plan_address(view: WorkerView<'_>, node: &slurm::Node, seen: Timestamp, mirror: &mut Mirror) {
    let is_settled = view.worker.is_available(REGISTERED_WITHIN, seen);
    let missed = missed_address(view.worker, node).filter(|_| is_settled);
    if let Some(address) = missed.and_then(|address| SingleLine::new(address).ok()) {
        let description = NodeDescription {
            address: Some(address),
            ..NodeDescription::default()
        };
        push_update(view, node, description, mirror);
    }
}

fn push_update(view: WorkerView<'_>, node: &slurm::Node, description: NodeDescription, mirror: &mut Mirror) {
    mirror.node_updates.push(NodeUpdate {
        pod: view.worker.id(),
        node: node.name.clone(),
        description,
    });
}

/// Whether the snapshot is older than the last update, and does not show its result.
fn is_outdated(view: WorkerView<'_>, seen: Timestamp) -> bool {
    let updated = view.memory.and_then(|memory| memory.updated);
    updated.is_some_and(|updated| seen <= updated)
}

fn identity(view: WorkerView<'_>) -> Identity {
    let nodeset = view.observed.nodeset.as_ref();
    Identity {
        namespace: nodeset.namespace().unwrap_or_default(),
        pod_name: view.worker.name().to_owned(),
        node: view.worker.kubernetes_node().unwrap_or_default().to_owned(),
        node_set_name: nodeset.name_any(),
        node_set_uid: nodeset.uid().unwrap_or_default(),
    }
}

/// Returns the wanted features. `None` if they are set. Foreign features are kept.
fn wanted_features(view: WorkerView<'_>, node: &slurm::Node) -> Result<Option<NodeFeatures>, InvalidLine> {
    let Observed {
        nodeset,
        partitions,
        siblings,
        ..
    } = view.observed;
    let marks = Marks::of(nodeset, &node.name, partitions, siblings);
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
fn wanted_topology(view: WorkerView<'_>) -> Option<String> {
    let on_pod = view
        .worker
        .annotation(annotations::TOPOLOGY)
        .filter(|place| !place.is_empty())?;
    match build::topology_of(view.host?) {
        Some(place) => (place == on_pod).then(|| place.to_owned()),
        None => Some(
            extra_topology(view)
                .or_else(|| template_topology(view))
                .unwrap_or_default(),
        ),
    }
}

fn extra_topology(view: WorkerView<'_>) -> Option<String> {
    let extra_conf = view.observed.nodeset.spec.extra_conf.as_deref()?;
    build::topology_in(extra_conf)
}

fn template_topology(view: WorkerView<'_>) -> Option<String> {
    let annotations = view.observed.nodeset.spec.pod_metadata()?.annotations.as_ref()?;
    annotations.get(annotations::TOPOLOGY).cloned()
}

/// Adds the annotation of the pod, from which `SLINKY_TOPOLOGY` is set and which shows that the operator set the topology.
pub(super) fn mark_topology(view: WorkerView<'_>, wanted: &mut MetadataPatch) {
    let Some(host) = view.host else { return };
    let place = match build::topology_of(host) {
        Some(place) => Some(place.to_owned()),
        None if is_reverted(view) => template_topology(view),
        // It stays while it is needed to know that the topology has to be reverted.
        None => return,
    };
    wanted.insert(annotations::TOPOLOGY.to_owned(), place);
}

/// Whether Slurm no longer has the topology that the pod shows.
fn is_reverted(view: WorkerView<'_>) -> bool {
    let (Some(node), Some(seen)) = (view.node, view.seen) else {
        return view.seen.is_some();
    };
    let Some(wanted) = wanted_topology(view) else {
        return false;
    };
    let asked = view.memory.and_then(|memory| memory.topology.as_ref());
    let was_asked = asked.is_some_and(|asked| asked.place == wanted && asked.refused.is_none() && asked.at < seen.at);
    node.topology == wanted || was_asked
}

fn plan_topology(view: WorkerView<'_>, mirror: &mut Mirror) {
    let (Some(node), Some(seen), Some(wanted)) = (view.node, view.seen, wanted_topology(view)) else {
        return;
    };
    if node.topology == wanted {
        return;
    }
    let asked = view.memory.and_then(|memory| memory.topology.as_ref());
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
            push_update(view, node, description, mirror);
        }
        Err(InvalidLine(place)) => push_problem(
            view,
            mirror,
            annotations::TOPOLOGY,
            &format!("{place:?} is not one line"),
        ),
    }
}

/// Explains that Slurm refused a topology.
pub fn topology_refused(worker: Worker<'_>, place: &str, words: &str) -> String {
    let remedy = "correct the annotation, or add the place to the Controller's topology.yaml";
    let words = format!("Slurm refused {place:?}: {words}; {remedy}");
    problem(worker, annotations::TOPOLOGY, &words)
}

fn push_problem(view: WorkerView<'_>, mirror: &mut Mirror, annotation: &str, words: &str) {
    mirror.complaints.push(problem(view.worker, annotation, words));
}

fn problem(worker: Worker<'_>, annotation: &str, words: &str) -> String {
    let host = worker.kubernetes_node().unwrap_or_default();
    let node = worker.slurm_name().unwrap_or_default();
    format!("annotation {annotation} of Kubernetes node {host:?}, for Slurm node {node:?}: {words}")
}
