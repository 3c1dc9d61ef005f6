//! The time from the edit of a ConfigMap to its update in pods by the kubelet: the delivery of configuration without
//! the operator.

use std::time::{Duration, SystemTime};

use anyhow::Result;
use serde_json::json;
use testbed::cluster::Cluster;
use testbed::harness::{Namespace, eventually};

use super::effort::Effort;
use super::observer::Observer;
use crate::common::pods::shell_pod;

const TIMEOUT: Duration = Duration::from_mins(5);
/// For a triggered sync of the kubelet.
const SOON: Duration = Duration::from_secs(2);

pub(crate) fn measure(cluster: &'static Cluster, effort: &Effort) -> Result<Vec<Duration>> {
    let namespace = Namespace::create(cluster, "propagation")?;
    namespace.ask(&["create", "configmap", "edited", "--from-literal=value=0"])?;
    let spec = json!({
        "container": { "volumeMounts": [{ "name": "edited", "mountPath": "/edited" }] },
        "volumes": [{ "name": "edited", "configMap": { "name": "edited" } }],
    });
    let names: Vec<String> = (0..effort.readers).map(|number| format!("reader-{number}")).collect();
    for name in &names {
        namespace.apply(&shell_pod(name, &spec))?;
    }
    let mut observers = Vec::new();
    for name in &names {
        namespace.wait("condition=Ready", &format!("pod/{name}"))?;
        observers.push(Observer::start(&namespace, name, "cat /edited/value", 0.2)?);
    }
    let mut took = Vec::new();
    for edit in 1..=effort.mounted_edits {
        let value = edit.to_string();
        let sent = SystemTime::now();
        let patch = json!({ "data": { "value": value } }).to_string();
        namespace.ask(&["patch", "configmap", "edited", "-p", &patch])?;
        for (name, observer) in names.iter().zip(&observers) {
            let seen = if effort.hurries_kubelet {
                let mut tries = 0;
                eventually("the edit is in the pod", TIMEOUT, || {
                    tries += 1;
                    namespace.ask(&[
                        "annotate",
                        "--overwrite",
                        "pod",
                        name,
                        &format!("looked={edit}-{tries}"),
                    ])?;
                    observer.wait_for(&value, SOON)
                })?
            } else {
                observer.wait_for(&value, TIMEOUT)?
            };
            took.push(seen.duration_since(sent)?);
        }
    }
    Ok(took)
}
