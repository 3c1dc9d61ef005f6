//! Which NodeSets a change concerns.

use std::{collections::BTreeSet, sync::Arc};

use api::{
    Controller, NodeSet, Partition,
    keys::{apps, labels},
    nodeset::ScalingMode,
};
use k8s_openapi::api::core::v1::{Namespace, Node, Pod, Secret};
use kube::{Resource, ResourceExt};

use crate::{
    partition::rules::mark::has_mark,
    runtime::{Caches, Change, Delta, Key},
    worker::Worker,
};

pub(super) fn interested(change: &Change, caches: &Caches) -> Vec<Key> {
    let keys: BTreeSet<Key> = match change {
        Change::NodeSet(delta) => of_node_set(delta, caches),
        Change::Controller(delta) => of_controller(delta, caches),
        Change::Pod(delta) => of_pod(delta).into_iter().collect(),
        Change::Secret(delta) => of_secret(delta, caches),
        Change::Node(delta) => of_node(delta, caches),
        Change::Namespace(delta) => of_namespace(delta, caches),
        Change::Service(_) | Change::ConfigMap(_) | Change::Revision(_) | Change::Claim(_) | Change::Budget(_) => {
            change.owners::<NodeSet>().into_iter().collect()
        }
        Change::LoginSet(_)
        | Change::RestApi(_)
        | Change::Accounting(_)
        | Change::Token(_)
        | Change::StatefulSet(_)
        | Change::Deployment(_)
        | Change::ServiceMonitor(_) => BTreeSet::new(),
        Change::Partition(delta) => of_partition(delta, caches),
    };
    keys.into_iter().collect()
}

/// Itself; and its siblings, who share names and a Service with it, when what they share may be another.
fn of_node_set(delta: &Delta<NodeSet>, caches: &Caches) -> BTreeSet<Key> {
    let mut keys: BTreeSet<Key> = delta.key().into_iter().collect();
    let shared = |set: &Arc<NodeSet>| (set.slurm_name(), set.spec.controller_ref.name.clone(), set.uid());
    if delta.before.as_ref().map(shared) != delta.after.as_ref().map(shared) {
        for set in delta.sides() {
            let namespace = set.namespace().unwrap_or_default();
            keys.extend(of_cluster(caches, &namespace, &set.spec.controller_ref.name));
        }
    }
    keys
}

fn of_controller(delta: &Delta<Controller>, caches: &Caches) -> BTreeSet<Key> {
    let asked = |controller: &Arc<Controller>| {
        (
            controller.uid(),
            controller.meta().generation,
            is_deleted(controller.as_ref()),
        )
    };
    if delta.before.as_ref().map(asked) == delta.after.as_ref().map(asked) {
        return BTreeSet::new();
    }
    delta
        .key()
        .map(|key| of_cluster(caches, &key.namespace, &key.name))
        .unwrap_or_default()
}

/// All of its cluster, where nodes have to be marked for its sake.
fn of_partition(delta: &Delta<Partition>, caches: &Caches) -> BTreeSet<Key> {
    let marked = delta.sides().filter(|partition| has_mark(partition));
    marked
        .flat_map(|partition| {
            let namespace = partition.namespace().unwrap_or_default();
            of_cluster(caches, &namespace, &partition.spec.controller_ref.name)
        })
        .collect()
}

fn of_pod(delta: &Delta<Pod>) -> Vec<Key> {
    let mut keys = delta.owners::<NodeSet>();
    // One without an owner may be taken in.
    keys.extend(delta.sides().filter_map(|pod| {
        let labels = pod.labels();
        let is_worker = labels.get(labels::NAME).map(String::as_str) == Some(apps::SLURMD);
        let instance = labels.get(labels::INSTANCE).filter(|_| is_worker)?;
        Some(Key::new(pod.namespace()?, instance.clone()))
    }));
    keys
}

/// All in it, when it begins to end: nothing waits for jobs any more.
fn of_namespace(delta: &Delta<Namespace>, caches: &Caches) -> BTreeSet<Key> {
    let ends = |namespace: &Arc<Namespace>| is_deleted(namespace.as_ref());
    let begins = delta.after.as_ref().is_some_and(ends) && !delta.before.as_ref().is_some_and(ends);
    let name = delta.key().filter(|_| begins).map(|key| key.name);
    let sets = name.map(|name| caches.node_sets.list(&name)).unwrap_or_default();
    sets.iter().map(|set| Key::of(set.as_ref())).collect()
}

fn of_secret(delta: &Delta<Secret>, caches: &Caches) -> BTreeSet<Key> {
    let Some(secret) = delta.key() else {
        return BTreeSet::new();
    };
    let sets = caches.node_sets.list(&secret.namespace);
    let uses = |set: &&Arc<NodeSet>| {
        let sssd = set.spec.wanted_sssd();
        let controller = caches.controllers.get(&secret.namespace, &set.spec.controller_ref.name);
        let key = controller.and_then(|controller| controller.slurm_key());
        sssd.is_some_and(|reference| reference.name == secret.name) || key.is_some_and(|key| key.name == secret.name)
    };
    sets.iter().filter(uses).map(|set| Key::of(set.as_ref())).collect()
}

/// Sets with a worker on the node, or where nodes decide how many there are, when something changed that means something
/// to workers.
fn of_node(delta: &Delta<Node>, caches: &Caches) -> BTreeSet<Key> {
    let decides = |node: &Arc<Node>| {
        let spec = node.spec.clone().unwrap_or_default();
        let conditions = node.status.as_ref().and_then(|status| status.conditions.clone());
        let told: Vec<_> = conditions
            .into_iter()
            .flatten()
            .map(|condition| (condition.type_, condition.status, condition.reason))
            .collect();
        (
            node.uid(),
            node.labels().clone(),
            node.annotations().clone(),
            (spec.taints, spec.unschedulable),
            told,
        )
    };
    if delta.before.as_ref().map(decides) == delta.after.as_ref().map(decides) {
        return BTreeSet::new();
    }
    let sets = caches.node_sets.all();
    let by_node = |set: &&Arc<NodeSet>| set.spec.scaling_mode() == ScalingMode::DaemonSet || set.spec.pins_to_node();
    let mut keys: BTreeSet<Key> = sets.iter().filter(by_node).map(|set| Key::of(set.as_ref())).collect();
    let name = delta.key().map(|key| key.name);
    let pods = caches.pods.all();
    let here = pods
        .iter()
        .filter(|pod| Worker(pod).kubernetes_node() == name.as_deref());
    let holds_name_for = |set: &&Arc<NodeSet>| {
        let status = set.status.as_ref();
        let cut_off = status.and_then(|status| status.cut_off.as_ref());
        cut_off.is_some_and(|cut_off| cut_off.values().any(|node| Some(node) == name.as_ref()))
    };
    keys.extend(sets.iter().filter(holds_name_for).map(|set| Key::of(set.as_ref())));
    keys.extend(here.filter_map(|pod| {
        let owner = pod.owner_references().iter().find(|owner| owner.kind == "NodeSet")?;
        Some(Key::new(pod.namespace()?, owner.name.clone()))
    }));
    keys
}

fn of_cluster(caches: &Caches, namespace: &str, controller: &str) -> BTreeSet<Key> {
    let sets = caches.node_sets.list(namespace);
    sets.iter()
        .filter(|set| set.spec.controller_ref.name == controller)
        .map(|set| Key::of(set.as_ref()))
        .collect()
}

fn is_deleted(object: &impl Resource) -> bool {
    object.meta().deletion_timestamp.is_some()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_namespace_that_begins_to_end_wakes_its_sets_once() {
        let set = |namespace: &str| {
            json!({"apiVersion": "slinky.slurm.net/v1beta1", "kind": "NodeSet",
                "metadata": {"namespace": namespace, "name": "s"}, "spec": {"controllerRef": {"name": "c"}}})
        };
        let caches = Caches::of(vec![set("mine"), set("other")]);
        let namespace = |deleted: Option<&str>| -> Option<Arc<Namespace>> {
            let meta = json!({"name": "mine", "deletionTimestamp": deleted});
            Some(Arc::new(serde_json::from_value(json!({ "metadata": meta })).unwrap()))
        };
        let (lives, ends) = (namespace(None), namespace(Some("2026-01-01T00:00:00Z")));
        let mine = vec![Key::new("mine", "s")];
        for (before, after, expected) in [
            (None, lives.clone(), vec![]),
            (lives.clone(), lives.clone(), vec![]),
            (lives.clone(), ends.clone(), mine.clone()),
            (None, ends.clone(), mine),
            (ends.clone(), ends.clone(), vec![]),
            (ends, None, vec![]),
        ] {
            let change = Change::Namespace(Delta { before, after });
            assert_eq!(interested(&change, &caches), expected, "{change:?}");
        }
    }
}
