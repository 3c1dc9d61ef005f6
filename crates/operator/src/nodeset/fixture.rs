//! Objects for tests, through the real deserializers.

use std::collections::BTreeMap;

use jiff::{SignedDuration, Timestamp};
use serde_json::{Value, json};
use slurm::rest::{Observation, Process};

use super::{
    observe::{Environment, Observed, observe},
    plan::{LastSeen, Plan},
};
use crate::{
    cluster::{Knowledge, Seen},
    defaults::Images,
    runtime::Caches,
};

pub(super) const NAMESPACE: &str = "slurm";
pub(super) const NOW: &str = "2026-01-01T01:00:00Z";

pub(super) fn now() -> Timestamp {
    NOW.parse().unwrap()
}

/// Lays fields over a manifest, by JSON pointer.
pub(super) fn with(mut manifest: Value, changes: &[(&str, Value)]) -> Value {
    for (pointer, value) in changes {
        let (parent, field) = pointer.rsplit_once('/').unwrap();
        manifest.pointer_mut(parent).unwrap()[field.replace("~1", "/")] = value.clone();
    }
    manifest
}

/// The pod of a worker whose slurmd has been running since then.
pub(super) fn running_since(pod: Value, at: &str) -> Value {
    let status = json!([{ "name": "slurmd", "state": { "running": { "startedAt": at } } }]);
    with(pod, &[("/status/containerStatuses", status)])
}

pub(super) fn controller() -> Value {
    json!({
        "apiVersion": "slinky.slurm.net/v1beta1", "kind": "Controller",
        "metadata": { "namespace": NAMESPACE, "name": "slurm", "uid": "controller", "creationTimestamp": "2026-01-01T00:00:00Z" },
        "spec": {},
    })
}

pub(super) fn slurm_key() -> Value {
    json!({
        "apiVersion": "v1", "kind": "Secret",
        "metadata": { "namespace": NAMESPACE, "name": "slurm-auth-slurm" },
        "data": { "slurm.key": "a2V5" },
    })
}

/// A NodeSet `compute` that has its finalizer already.
pub(super) fn nodeset(spec: &Value) -> Value {
    let mut manifest = json!({
        "apiVersion": "slinky.slurm.net/v1beta1", "kind": "NodeSet",
        "metadata": {
            "namespace": NAMESPACE, "name": "compute", "uid": "compute", "generation": 1, "resourceVersion": "1",
            "creationTimestamp": "2026-01-01T00:00:00Z", "finalizers": ["nodeset.slinky.slurm.net/reservation"],
        },
        "spec": { "controllerRef": { "name": "slurm" } },
    });
    for (field, value) in spec.as_object().unwrap() {
        manifest["spec"][field] = value.clone();
    }
    manifest
}

/// A running and ready worker of `compute`.
pub(super) fn worker(ordinal: u32) -> Value {
    let name = format!("compute-{ordinal}");
    json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {
            "namespace": NAMESPACE, "name": name, "uid": format!("uid-{name}"), "creationTimestamp": "2026-01-01T00:00:00Z",
            "labels": {
                "app.kubernetes.io/name": "slurmd", "app.kubernetes.io/instance": "compute",
                "app.kubernetes.io/component": "worker", "slinky.slurm.net/component": "slurmd",
                "nodeset.slinky.slurm.net/pod-name": name, "nodeset.slinky.slurm.net/pod-protect": "true",
                "slinky.slurm.net/cluster": "slurm", "nodeset.slinky.slurm.net/pod-index": ordinal.to_string(),
                "nodeset.slinky.slurm.net/pod-hostname": name, "nodeset.slinky.slurm.net/scaling-mode": "StatefulSet",
            },
            "annotations": {},
            "ownerReferences": [{
                "apiVersion": "slinky.slurm.net/v1beta1", "kind": "NodeSet", "name": "compute", "uid": "compute", "controller": true,
            }],
        },
        "spec": { "hostname": name, "nodeName": "k1", "containers": [] },
        "status": {
            "phase": "Running",
            "conditions": [{ "type": "Ready", "status": "True", "lastTransitionTime": "2026-01-01T00:01:00Z" }],
        },
    })
}

/// A ready Kubernetes node.
pub(super) fn host(name: &str) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Node", "metadata": { "name": name },
        "status": { "conditions": [{ "type": "Ready", "status": "True", "lastTransitionTime": "2026-01-01T00:00:00Z" }] },
    })
}

pub(super) fn marked(pod: Value) -> Value {
    with(
        pod,
        &[(
            "/metadata/annotations/nodeset.slinky.slurm.net~1leaving",
            json!("scale-in 2026-01-01T00:59:00Z"),
        )],
    )
}

pub(super) fn finished(pod: Value) -> Value {
    with(pod, &[("/status/phase", json!("Failed"))])
}

pub(super) fn terminating(object: Value) -> Value {
    with(
        object,
        &[("/metadata/deletionTimestamp", json!("2026-01-01T00:59:30Z"))],
    )
}

pub(super) fn unknown() -> Knowledge {
    Knowledge::unknown("nobody answers")
}

/// A snapshot of nodes with their states, and jobs with their states and nodes.
pub(super) fn known(nodes: &[(&str, &[&str])], jobs: &[(u64, &[&str], &str)]) -> Knowledge {
    let nodes = nodes
        .iter()
        .map(|(name, state)| json!({ "name": name, "state": state }));
    let jobs = jobs
        .iter()
        .map(|(id, state, nodes)| json!({ "job_id": id, "job_state": state, "nodes": nodes }));
    let observation = Observation {
        nodes: nodes.map(|node| serde_json::from_value(node).unwrap()).collect(),
        jobs: jobs.map(|job| serde_json::from_value(job).unwrap()).collect(),
        process: Some(Process { boot_time: 1000 }),
    };
    Knowledge::Known(std::sync::Arc::new(Seen::new(
        observation,
        now(),
        crate::cluster::Source::Agent,
    )))
}

/// The same snapshot, from a slurmctld that started then.
pub(super) fn begun(knowledge: Knowledge, at: &str) -> Knowledge {
    let Knowledge::Known(seen) = knowledge else {
        panic!("it is known")
    };
    let at: jiff::Timestamp = at.parse().unwrap();
    let boot_time = u64::try_from(at.as_second()).unwrap();
    let seen = Seen {
        process: Some(Process { boot_time }),
        ..Seen::clone(&seen)
    };
    Knowledge::Known(seen.into())
}

pub(super) const IDLE: &[&str] = &["IDLE", "DYNAMIC_NORM"];
pub(super) const DRAINED: &[&str] = &["IDLE", "DRAIN", "DYNAMIC_NORM"];
pub(super) const DRAINING: &[&str] = &["ALLOCATED", "DRAIN", "DYNAMIC_NORM"];

/// NodeSet `compute` among these objects.
pub(super) fn observed(objects: Vec<Value>, knowledge: Knowledge) -> Observed {
    observed_of("compute", objects, knowledge)
}

/// NodeSet `name` among these objects. The Kubernetes node of [`worker`]s is added unless it is given.
pub(super) fn observed_of(name: &str, mut objects: Vec<Value>, knowledge: Knowledge) -> Observed {
    let is_k1 = |object: &Value| object["kind"] == "Node" && object["metadata"]["name"] == "k1";
    if objects.iter().any(|object| object["spec"]["nodeName"] == "k1") && !objects.iter().any(is_k1) {
        objects.push(host("k1"));
    }
    observed_exactly(name, objects, knowledge)
}

/// NodeSet `name` among these objects and no others.
pub(super) fn observed_exactly(name: &str, objects: Vec<Value>, knowledge: Knowledge) -> Observed {
    observed_after(&BTreeMap::new(), name, objects, knowledge)
}

/// By a process that saw the workers before.
pub(super) fn observed_after(
    last_seen: &BTreeMap<String, LastSeen>,
    name: &str,
    objects: Vec<Value>,
    knowledge: Knowledge,
) -> Observed {
    let namespace = objects
        .iter()
        .find_map(|object| object["metadata"]["namespace"].as_str())
        .unwrap_or(NAMESPACE)
        .to_owned();
    let environment = Environment {
        images: Images::default(),
        cluster_domain: "cluster.local".to_owned(),
        propagated_conditions: vec!["DiskBroken".to_owned()],
        crds_outdated: false,
        empty_since: Some(now() - SignedDuration::from_mins(1)),
        last_seen: last_seen.clone(),
    };
    let caches = Caches::of(objects);
    let nodeset = caches.node_sets.get(&namespace, name).unwrap();
    observe(&caches, nodeset, knowledge, environment, now())
}

/// The plan for `compute`, with its Controller and key.
pub(super) fn planned(spec: &Value, pods: Vec<Value>, knowledge: Knowledge) -> Plan {
    let mut objects = vec![controller(), slurm_key(), nodeset(spec)];
    objects.extend(pods);
    super::plan::plan(&observed(objects, knowledge))
}
