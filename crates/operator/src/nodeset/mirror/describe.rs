//! What a Slurm node shows of Kubernetes: its owner, features and topology.

use std::collections::BTreeSet;

use api::keys::{NODE_FEATURE_PREFIX, annotations};
use jiff::SignedDuration;
use k8s_openapi::api::core::v1::Node;
use kube::ResourceExt;
use slurm::{NodeDescription, NodeFeatures, SingleLine, describe::InvalidLine};

use super::{Mirror, TopologyRequest, WorkerView};
use crate::{
    cluster::Seen,
    nodeset::{
        build,
        identity::Identity,
        plan::{MetadataPatch, missed_address},
    },
    partition::rules::mark::Marks,
    worker::{Phase, Worker},
};

/// When a topology that Slurm refused or stored differently is requested again; topology.yaml may have changed by then.
const RETRY_AFTER: SignedDuration = SignedDuration::from_mins(5);

/// How long after it became ready a worker may be missing in Slurm.
const REGISTERED_WITHIN: SignedDuration = SignedDuration::from_secs(5);

/// Plans the update of a registered node, down or not. Until the pod runs, the record is that of its predecessor.
pub(super) fn plan<'a>(view: &WorkerView<'a>, mirror: &mut Mirror<'a>) {
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
    let missed = missed_address(worker, node).filter(|_| worker.is_available(REGISTERED_WITHIN, seen.at));
    if let Some(address) = missed.and_then(|address| SingleLine::new(address).ok()) {
        let description = NodeDescription {
            address: Some(address),
            ..NodeDescription::default()
        };
        mirror.node_updates.push((worker, description));
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
    if let Some(place) = build::topology_of(view.host?) {
        return (place == on_pod).then(|| place.to_owned());
    }
    let extra_conf = view.observed.nodeset.spec.extra_conf.as_deref();
    let extra = extra_conf.and_then(build::topology_in);
    Some(extra.or_else(|| template_topology(view)).unwrap_or_default())
}

fn template_topology(view: &WorkerView<'_>) -> Option<String> {
    let annotations = view.observed.nodeset.spec.pod_metadata()?.annotations.as_ref()?;
    annotations.get(annotations::TOPOLOGY).cloned()
}

/// Adds the annotation of the pod, from which `SLINKY_TOPOLOGY` is set and which shows that the operator set the topology.
pub(super) fn mark_topology(view: &WorkerView<'_>, wanted: &mut MetadataPatch) {
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
