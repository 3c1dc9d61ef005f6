//! A ConfigMap edited, until the kubelet has put it into pods that mount it: how configuration travels without us.

use std::time::{Duration, SystemTime};

use anyhow::Result;
use serde_json::json;
use testbed::cluster::Cluster;
use testbed::harness::Namespace;

use crate::common::pods::shell_pod;
use crate::observer::Observer;

/// Each pod is looked after in a rhythm of its own, so several of them make one edit several samples.
const PODS: u32 = 8;
const EDITS: u32 = 2;
const PATIENCE: Duration = Duration::from_mins(5);

pub(crate) fn measure(cluster: &'static Cluster) -> Result<Vec<Duration>> {
    let namespace = Namespace::create(cluster, "propagation")?;
    namespace.ask(&["create", "configmap", "edited", "--from-literal=value=0"])?;
    let spec = json!({
        "container": { "volumeMounts": [{ "name": "edited", "mountPath": "/edited" }] },
        "volumes": [{ "name": "edited", "configMap": { "name": "edited" } }],
    });
    let names: Vec<String> = (0..PODS).map(|number| format!("reader-{number}")).collect();
    for name in &names {
        namespace.apply(&shell_pod(name, &spec))?;
    }
    let mut observers = Vec::new();
    for name in &names {
        namespace.wait("condition=Ready", &format!("pod/{name}"))?;
        observers.push(Observer::start(&namespace, name, "cat /edited/value", 0.2)?);
    }
    let mut took = Vec::new();
    for edit in 1..=EDITS {
        let value = edit.to_string();
        let sent = SystemTime::now();
        let patch = json!({ "data": { "value": value } }).to_string();
        namespace.ask(&["patch", "configmap", "edited", "-p", &patch])?;
        for observer in &observers {
            took.push(observer.wait_for(&value, PATIENCE)?.duration_since(sent)?);
        }
    }
    Ok(took)
}
