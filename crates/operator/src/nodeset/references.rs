//! Which NodeSets a change affects.

use std::sync::{Arc, LazyLock};

use api::{Controller, NodeSet, Partition, keys::apps, nodeset::ScalingMode};
use k8s_openapi::api::{
    apps::v1::ControllerRevision,
    core::v1::{ConfigMap, Namespace, Node, PersistentVolumeClaim, Pod, Secret, Service},
    policy::v1::PodDisruptionBudget,
};
use kube::{Resource, ResourceExt};

use crate::{
    partition::rules::mark::has_mark,
    references::{References, key_secrets, keys_of, select},
    runtime::{Caches, Delta, Key},
    worker::Worker,
};

pub(super) static REFERENCES: LazyLock<References<NodeSet>> = LazyLock::new(|| {
    References::<NodeSet>::new()
        .owns::<Service>()
        .owns::<ConfigMap>()
        .owns::<ControllerRevision>()
        .owns::<PersistentVolumeClaim>()
        .owns::<PodDisruptionBudget>()
        .owns::<Pod>()
        // A worker without an owner may be adopted.
        .runs(apps::SLURMD)
        .names::<Secret>(|set, caches| {
            let namespace = set.namespace().unwrap_or_default();
            let sssd = set.spec.wanted_sssd().map(|reference| reference.name.clone());
            let key = key_secrets(caches, &namespace, &set.spec.controller_ref.name);
            sssd.into_iter().chain(key).collect()
        })
        .on(of_siblings)
        .on(of_controller)
        .on(of_partition)
        .on(of_namespace)
        .on(of_node)
});

/// The NodeSets of the same cluster, with which it shares names and a Service, when one of these may have changed.
fn of_siblings(delta: &Delta<NodeSet>, caches: &Caches) -> Vec<Key> {
    let shared = |set: &Arc<NodeSet>| (set.slurm_name(), set.spec.controller_ref.name.clone(), set.uid());
    if !differs(delta, shared) {
        return Vec::new();
    }
    of_clusters(caches, keys_of(delta, |set| Some(&set.spec.controller_ref.name)))
}

fn of_controller(delta: &Delta<Controller>, caches: &Caches) -> Vec<Key> {
    let relevant = |controller: &Arc<Controller>| {
        let meta = controller.meta();
        (meta.uid.clone(), meta.generation, is_deleted(controller.as_ref()))
    };
    of_clusters(caches, delta.key().filter(|_| differs(delta, relevant)))
}

/// All NodeSets of the cluster, if the Partition needs marks on nodes.
fn of_partition(delta: &Delta<Partition>, caches: &Caches) -> Vec<Key> {
    let controllers = keys_of(delta, |partition| {
        has_mark(partition).then_some(&*partition.spec.controller_ref.name)
    });
    of_clusters(caches, controllers)
}

/// All NodeSets of a namespace when its deletion begins: from then on nothing waits for jobs.
fn of_namespace(delta: &Delta<Namespace>, caches: &Caches) -> Vec<Key> {
    let ends = |namespace: &Arc<Namespace>| is_deleted(namespace.as_ref());
    let ended = delta.before.as_ref().is_some_and(ends);
    let ending = delta.after.iter().filter(|namespace| !ended && ends(namespace));
    ending
        .flat_map(|namespace| select(caches, &namespace.name_any(), |_: &NodeSet| true))
        .collect()
}

/// NodeSets with a worker on the node, or whose size depends on the nodes, when something relevant to workers changed.
fn of_node(delta: &Delta<Node>, caches: &Caches) -> Vec<Key> {
    let relevant = |node: &Arc<Node>| {
        let spec = node.spec.clone().unwrap_or_default();
        let conditions = node.status.as_ref().and_then(|status| status.conditions.clone());
        let conditions = conditions.into_iter().flatten();
        let conditions = conditions.map(|condition| (condition.type_, condition.status, condition.reason));
        let metadata = (node.uid(), node.labels().clone(), node.annotations().clone());
        (
            metadata,
            spec.taints,
            spec.unschedulable,
            conditions.collect::<Vec<_>>(),
        )
    };
    if !differs(delta, relevant) {
        return Vec::new();
    }
    let name = delta.key().map(|key| key.name);
    let by_node = |set: &NodeSet| set.spec.scaling_mode() == ScalingMode::DaemonSet || set.spec.pins_to_node();
    let holds_name_for = |set: &NodeSet| {
        let cut_off = set.status.iter().flat_map(|status| &status.cut_off).flatten();
        cut_off.into_iter().any(|(_, node)| Some(node) == name.as_ref())
    };
    let sets = caches.node_sets.all().into_iter();
    let sets = sets.filter(|set| by_node(set) || holds_name_for(set));
    let pods = caches.pods.all().into_iter();
    let here = pods.filter(|pod| Worker(pod).kubernetes_node() == name.as_deref());
    let owners = here.filter_map(|pod| {
        let owner = pod.owner_references().iter().find(|owner| owner.kind == "NodeSet")?;
        Some(Key::new(pod.namespace()?, owner.name.clone()))
    });
    sets.map(|set| Key::of(set.as_ref())).chain(owners).collect()
}

/// The NodeSets of these Controllers.
fn of_clusters(caches: &Caches, controllers: impl IntoIterator<Item = Key>) -> Vec<Key> {
    let of_cluster =
        |Key { namespace, name }: Key| select(caches, &namespace, |set: &NodeSet| set.spec.controller_ref.name == name);
    controllers.into_iter().flat_map(of_cluster).collect()
}

/// Whether a part of the object differs between the sides of a change.
fn differs<K, T: PartialEq>(delta: &Delta<K>, part: impl Fn(&Arc<K>) -> T) -> bool {
    delta.before.as_ref().map(&part) != delta.after.as_ref().map(&part)
}

fn is_deleted(object: &impl Resource) -> bool {
    object.meta().deletion_timestamp.is_some()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::runtime::Change;

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
            let change = Change::from(Delta { before, after });
            assert_eq!(REFERENCES.affected(&change, &caches), expected, "{change:?}");
        }
    }

    #[test]
    fn a_condition_of_a_node_wakes_the_sets_with_a_worker_there_and_a_heartbeat_does_not() {
        let pod = json!({"apiVersion": "v1", "kind": "Pod",
            "metadata": {"namespace": "mine", "name": "s-0", "labels": {"app.kubernetes.io/name": "slurmd"},
                "ownerReferences": [{"apiVersion": "slinky.slurm.net/v1beta1", "kind": "NodeSet", "name": "s", "uid": "u"}]},
            "spec": {"nodeName": "k1", "containers": []}});
        let caches = Caches::of(vec![pod]);
        let node = |status: &str, heartbeat: &str, since: &str| -> Option<Arc<Node>> {
            let condition = json!({"type": "GpuMemWatch", "status": status, "lastHeartbeatTime": heartbeat, "lastTransitionTime": since});
            let node = json!({"metadata": {"name": "k1"}, "status": {"conditions": [condition]}});
            Some(Arc::new(serde_json::from_value(node).unwrap()))
        };
        let (first, second) = ("2026-01-01T00:00:00Z", "2026-01-01T00:00:10Z");
        for (after, wakes) in [
            (node("True", second, first), false),
            (node("True", second, second), false),
            (node("False", first, first), true),
        ] {
            let change = Change::from(Delta {
                before: node("True", first, first),
                after,
            });
            assert_eq!(!REFERENCES.affected(&change, &caches).is_empty(), wakes, "{change:?}");
        }
    }
}
