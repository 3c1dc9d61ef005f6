//! What of Kubernetes' view stands on a Slurm node: whose it is, features and the place in the topology.

use std::collections::BTreeSet;

use api::keys::{NODE_FEATURE_PREFIX, annotations};
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::Node;
use kube::ResourceExt;
use slurm::{Line, NodeDescription, NodeFeatures, describe::InvalidLine};

use super::{Look, Mirror, Telling};
use crate::{
    nodeset::{
        build,
        identity::Identity,
        observe::Observed,
        plan::{Marks as PodMarks, missed_address},
    },
    partition::rules::mark::Marks,
    worker::{Phase, Worker},
};

/// How long a place is not asked for again that Slurm refused or made something else of. Its topology.yaml may have become
/// another meanwhile.
const ASK_AGAIN: SignedDuration = SignedDuration::from_mins(5);

/// How long after it is ready a worker may not be seen by Slurm yet.
const REGISTERED_WITHIN: SignedDuration = SignedDuration::from_secs(5);

/// Only nodes that are registered are told something; also those that are down. As long as the pod does not run, the record
/// is that of the one before it.
pub(super) fn plan(look: Look<'_>, mirror: &mut Mirror) {
    if look.worker.phase() != Phase::Running {
        return;
    }
    if look.worker.is_terminating() {
        plan_last_words(look, mirror);
        return;
    }
    plan_topology(look, mirror);
    let (Some(node), Some(seen)) = (look.node, look.seen) else {
        return;
    };
    if is_older_than_our_word(look, seen.at) {
        return;
    }
    plan_address(look, node, seen.at, mirror);
    let mut description = NodeDescription {
        comment: missing_comment(look, node),
        ..NodeDescription::default()
    };
    match wanted_features(look, node) {
        Ok(features) => description.features = features,
        Err(InvalidLine(name)) => complain(
            look,
            mirror,
            annotations::FEATURES,
            &format!("{name:?} is no feature; a feature is one word without control characters"),
        ),
    }
    if description != NodeDescription::default() {
        tell(look, node, description, mirror);
    }
}

/// One that is deleted as soon as it has registered may not have been described yet, and nobody would know later whose its
/// record was. By then it may be that of a successor, told apart by its address.
fn plan_last_words(look: Look<'_>, mirror: &mut Mirror) {
    let (Some(node), Some(seen)) = (look.node, look.seen) else {
        return;
    };
    let is_its_own = look.worker.has_address(&node.address);
    if !is_its_own || Identity::parse(&node.comment).is_some() || is_older_than_our_word(look, seen.at) {
        return;
    }
    let comment = missing_comment(look, node);
    let description = NodeDescription {
        comment,
        ..NodeDescription::default()
    };
    tell(look, node, description, mirror);
}

fn missing_comment(look: Look<'_>, node: &slurm::Node) -> Option<Line> {
    let comment = identity(look).to_comment();
    (node.comment != comment).then(|| Line::new(comment).ok()).flatten()
}

/// Alone, since nothing else is to wait for it. One that has just become ready may be about to be seen by Slurm.
fn plan_address(look: Look<'_>, node: &slurm::Node, seen: Timestamp, mirror: &mut Mirror) {
    let is_settled = look.worker.is_available(REGISTERED_WITHIN, seen);
    let missed = missed_address(look.worker, node).filter(|_| is_settled);
    if let Some(address) = missed.and_then(|address| Line::new(address).ok()) {
        let description = NodeDescription {
            address: Some(address),
            ..NodeDescription::default()
        };
        tell(look, node, description, mirror);
    }
}

fn tell(look: Look<'_>, node: &slurm::Node, description: NodeDescription, mirror: &mut Mirror) {
    mirror.tellings.push(Telling {
        pod: look.worker.id(),
        node: node.name.clone(),
        description,
    });
}

/// What was seen before we said something says nothing about what became of it.
fn is_older_than_our_word(look: Look<'_>, seen: Timestamp) -> bool {
    let told = look.memory.and_then(|memory| memory.told);
    told.is_some_and(|told| seen <= told)
}

fn identity(look: Look<'_>) -> Identity {
    let nodeset = look.observed.nodeset.as_ref();
    Identity {
        namespace: nodeset.namespace().unwrap_or_default(),
        pod_name: look.worker.name().to_owned(),
        node: look.worker.kubernetes_node().unwrap_or_default().to_owned(),
        node_set_name: nodeset.name_any(),
        node_set_uid: nodeset.uid().unwrap_or_default(),
    }
}

/// `None` if they are as they should be. Those that are not ours stay.
fn wanted_features(look: Look<'_>, node: &slurm::Node) -> Result<Option<NodeFeatures>, InvalidLine> {
    let Observed {
        nodeset,
        partitions,
        siblings,
        ..
    } = look.observed;
    let marks = Marks::of(nodeset, &node.name, partitions, siblings);
    // Without its Kubernetes node nobody knows what that wants, and it stays.
    let given = look.host.map(features_of);
    let is_others = |feature: &&String| {
        let is_the_hosts = given.is_some() && feature.starts_with(NODE_FEATURE_PREFIX);
        !is_the_hosts && !marks.is_stale(feature)
    };
    let with_ours = |current: &[String]| -> BTreeSet<String> {
        let others = current.iter().filter(is_others);
        let ours = given.iter().flatten().chain(marks.wanted());
        others.chain(ours).cloned().collect()
    };
    let as_set = |current: &[String]| -> BTreeSet<String> { current.iter().cloned().collect() };
    let (available, active) = (with_ours(&node.features), with_ours(&node.active_features));
    if available == as_set(&node.features) && active == as_set(&node.active_features) {
        return Ok(None);
    }
    let lines = |features: BTreeSet<String>| features.into_iter().map(Line::new).collect::<Result<_, _>>();
    Ok(Some(NodeFeatures {
        available: lines(available)?,
        active: lines(active)?,
    }))
}

/// Those that the annotation of a Kubernetes node asks for.
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

/// Where the annotation of the Kubernetes node puts it, once that is written on the pod too. Without one: where the user put
/// it who wrote `extraConf` or the pod template, but only to take back what stands on the pod.
fn wanted_topology(look: Look<'_>) -> Option<String> {
    let on_pod = look
        .worker
        .annotation(annotations::TOPOLOGY)
        .filter(|place| !place.is_empty())?;
    match place_of(look.host?) {
        Some(place) => (place == on_pod).then(|| place.to_owned()),
        None => Some(
            extra_topology(look)
                .or_else(|| template_topology(look))
                .unwrap_or_default(),
        ),
    }
}

fn place_of(host: &Node) -> Option<&str> {
    let place = host.annotations().get(annotations::TOPOLOGY)?;
    Some(place.as_str()).filter(|place| !place.is_empty())
}

fn extra_topology(look: Look<'_>) -> Option<String> {
    let extra_conf = look.observed.nodeset.spec.extra_conf.as_deref()?;
    build::topology_in(extra_conf)
}

fn template_topology(look: Look<'_>) -> Option<String> {
    let annotations = look.observed.nodeset.spec.pod_metadata()?.annotations.as_ref()?;
    annotations.get(annotations::TOPOLOGY).cloned()
}

/// The annotation of the pod, which is where `SLINKY_TOPOLOGY` comes from and what tells that a place was given by us.
pub(super) fn mark_topology(look: Look<'_>, wanted: &mut PodMarks) {
    let Some(host) = look.host else { return };
    let place = match place_of(host) {
        Some(place) => Some(place.to_owned()),
        None if is_taken_back(look) => template_topology(look),
        // It stays until it is no longer needed to know that the place has to be taken back.
        None => return,
    };
    wanted.insert(annotations::TOPOLOGY.to_owned(), place);
}

/// Slurm does not have the place any more that stands on the pod.
fn is_taken_back(look: Look<'_>) -> bool {
    let (Some(node), Some(seen)) = (look.node, look.seen) else {
        return look.seen.is_some();
    };
    let Some(wanted) = wanted_topology(look) else {
        return false;
    };
    let asked = look.memory.and_then(|memory| memory.topology.as_ref());
    let was_asked = asked.is_some_and(|asked| asked.place == wanted && asked.refused.is_none() && asked.at < seen.at);
    node.topology == wanted || was_asked
}

fn plan_topology(look: Look<'_>, mirror: &mut Mirror) {
    let (Some(node), Some(seen), Some(wanted)) = (look.node, look.seen, wanted_topology(look)) else {
        return;
    };
    if node.topology == wanted {
        return;
    }
    let asked = look.memory.and_then(|memory| memory.topology.as_ref());
    if let Some(asked) = asked.filter(|asked| asked.place == wanted) {
        if let Some(refused) = &asked.refused {
            mirror.complaints.push(refused_place(look.worker, &wanted, refused));
        }
        // A place that Slurm writes otherwise than it was asked for would be asked for again and again; one that it
        // forgot is asked for at once.
        let forgotten = asked.refused.is_none() && node.topology.is_empty() && asked.at < seen.at;
        let left = ASK_AGAIN - look.observed.now.duration_since(asked.at);
        if !forgotten && left.is_positive() {
            mirror.look_again_in(left);
            return;
        }
    }
    match Line::new(wanted) {
        Ok(place) => {
            let description = NodeDescription {
                topology: Some(place),
                ..NodeDescription::default()
            };
            tell(look, node, description, mirror);
        }
        Err(InvalidLine(place)) => complain(
            look,
            mirror,
            annotations::TOPOLOGY,
            &format!("{place:?} is not one line"),
        ),
    }
}

/// What a person is told about a place that Slurm does not have.
pub fn refused_place(worker: Worker<'_>, place: &str, words: &str) -> String {
    let remedy = "correct the annotation, or add the place to the Controller's topology.yaml";
    let words = format!("Slurm refused {place:?}: {words}; {remedy}");
    complaint(worker, annotations::TOPOLOGY, &words)
}

fn complain(look: Look<'_>, mirror: &mut Mirror, annotation: &str, words: &str) {
    mirror.complaints.push(complaint(look.worker, annotation, words));
}

fn complaint(worker: Worker<'_>, annotation: &str, words: &str) -> String {
    let host = worker.kubernetes_node().unwrap_or_default();
    let node = worker.slurm_name().unwrap_or_default();
    format!("annotation {annotation} of Kubernetes node {host:?}, for Slurm node {node:?}: {words}")
}
