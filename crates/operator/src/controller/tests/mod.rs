//! Tests of the rules of a Controller.

mod end_to_end;
mod golden;
mod held;
mod history;
mod partitions;
mod properties;
mod rules;
mod snapshots;
mod trust;
mod visible;

use std::sync::Arc;

use api::Controller;
use serde_json::{Value, json};

use super::{
    observe::{Observed, observe_objects},
    plan::{Plan, plan},
};
use crate::{
    cluster::{Knowledge, Snapshot, deliver::Report},
    defaults::Images,
    runtime::Caches,
};

pub(super) const UID: &str = "c0000000-0000-0000-0000-000000000001";

/// A Controller `slurm` in namespace `hpc` with this spec.
fn controller(spec: &Value) -> Value {
    json!({
        "apiVersion": "slinky.slurm.net/v1beta1", "kind": "Controller",
        "metadata": {
            "name": "slurm", "namespace": "hpc", "uid": UID, "generation": 1,
            "creationTimestamp": "2026-01-01T00:00:00Z",
        },
        "spec": spec,
    })
}

fn secret(name: &str, entry: &str, base64: &str) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Secret", "metadata": { "name": name, "namespace": "hpc" },
        "data": { entry: base64 },
    })
}

/// The keys that the operator generates.
fn keys() -> Vec<Value> {
    vec![
        secret("slurm-auth-slurm", "slurm.key", "c2x1cm0="),
        secret("slurm-auth-jwt", "jwt.key", "and0"),
    ]
}

fn node_set(name: &str, created: &str, spec: Value) -> Value {
    let mut spec = spec;
    spec["controllerRef"] = json!({ "name": "slurm" });
    json!({
        "apiVersion": "slinky.slurm.net/v1beta1", "kind": "NodeSet",
        "metadata": { "name": name, "namespace": "hpc", "uid": name, "creationTimestamp": created },
        "spec": spec,
    })
}

fn config_map(name: &str, data: &Value) -> Value {
    json!({
        "apiVersion": "v1", "kind": "ConfigMap", "metadata": { "name": name, "namespace": "hpc" }, "data": data,
    })
}

fn images() -> Images {
    Images {
        operator: "operator:1".to_owned(),
        slurmctld: "slurmctld:default".to_owned(),
        logfile: "alpine:default".to_owned(),
        ..Images::default()
    }
}

/// The observed state of the Controller among these objects.
fn observed(objects: Vec<Value>, report: Report) -> Observed {
    let caches = Caches::of(objects);
    let controllers: Vec<Arc<Controller>> = caches.controllers.all();
    let controller = controllers
        .iter()
        .find(|controller| controller.metadata.uid.as_deref() == Some(UID))
        .unwrap();
    let snapshot = Snapshot {
        report,
        ..Snapshot::default()
    };
    Observed {
        images: images(),
        has_service_monitors: true,
        ..observe_objects(Arc::clone(controller), &caches, snapshot, rules::NOW.parse().unwrap())
    }
}

fn planned(objects: Vec<Value>) -> Plan {
    plan(&observed(objects, Report::default()))
}

/// The objects in the API server after the plan was carried out.
fn written(plan: &Plan) -> Vec<Value> {
    let mut objects: Vec<Value> = Vec::new();
    objects.extend(plan.services.iter().map(|object| serde_json::to_value(object).unwrap()));
    objects.extend(
        plan.configuration
            .config_maps
            .iter()
            .map(|object| serde_json::to_value(object).unwrap()),
    );
    objects.extend(
        plan.stateful_set
            .iter()
            .map(|object| serde_json::to_value(object).unwrap()),
    );
    for object in &mut objects {
        if object["kind"] == "StatefulSet" {
            object["metadata"]["uid"] = "set".into();
        }
    }
    objects
}

fn slurm_conf(plan: &Plan) -> String {
    let data = plan
        .configuration
        .config_maps
        .iter()
        .find_map(|config_map| config_map.data.as_ref()?.get("slurm.conf"));
    data.cloned().unwrap_or_default()
}

/// The pod of slurmctld, with a running agent and a ready slurmctld.
fn pod(ordinal: u32) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {
            "name": format!("slurm-controller-{ordinal}"), "namespace": "hpc", "uid": format!("pod-{ordinal}"),
            "labels": { "app.kubernetes.io/name": "slurmctld", "app.kubernetes.io/instance": "slurm" },
            "ownerReferences": [{ "apiVersion": "apps/v1", "kind": "StatefulSet", "name": "slurm-controller", "uid": "set", "controller": true }],
        },
        "spec": {
            "containers": [{ "name": "slurmctld" }],
            "initContainers": [{ "name": "reconfigure", "ports": [{ "name": "agent", "containerPort": 6822 }] }],
        },
        "status": {
            "podIP": format!("10.0.0.{}", ordinal + 1),
            "conditions": [{ "type": "Ready", "status": "True" }],
            "initContainerStatuses": [container_status("reconfigure")],
            "containerStatuses": [container_status("slurmctld")],
        },
    })
}

fn container_status(name: &str) -> Value {
    json!({ "name": name, "image": "", "imageID": "", "ready": true, "restartCount": 0, "state": { "running": {} } })
}
