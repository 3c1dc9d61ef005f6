//! 0 to 1,000 pods and back on simulated nodes: a NodeSet, then a StatefulSet.

use std::collections::BTreeSet;
use std::pin::pin;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use futures::{Stream, StreamExt};
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;
use kube::api::{Api, ApiResource, DynamicObject, Patch, PatchParams};
use kube::core::PartialObjectMeta;
use kube::runtime::watcher;
use kube::runtime::watcher::Event;
use serde_json::{Map, Value, json};
use testbed::cluster::Cluster;
use testbed::harness::{Namespace, eventually, expect};
use testbed::steps::long_step;
use tokio::runtime::Runtime;

use super::api;
use super::effort::Effort;
use super::memory;
use super::requests::{self, Writes};
use super::table::{Row, Table};

const TIMEOUT: Duration = Duration::from_mins(10);
/// Label of the pods of both templates.
const LABEL: (&str, &str) = ("bench", "scale");

/// Figures of a scaling.
#[derive(Debug)]
struct Scaled {
    created: Duration,
    removed: Duration,
    writes: Writes,
    /// MiB of the operator and of kube-controller-manager while all pods were there.
    memory: (f64, f64),
}

pub(crate) fn measure(cluster: &'static Cluster, slurm: &Namespace, effort: &Effort, table: &mut Table) -> Result<()> {
    let idle = (memory::operator(cluster)?, memory::controller_manager(cluster)?);
    let pods = effort.pods;
    let ours = long_step("a NodeSet to 1,000 and back", || {
        scale(cluster, slurm, &api::node_sets(), &node_set(), pods)
    })?;
    let plain = Namespace::create(cluster, "plain")?;
    let theirs = long_step("a StatefulSet to 1,000 and back", || {
        scale(cluster, &plain, &api::stateful_sets(), &stateful_set(), pods)
    })?;

    let per_second = |took: Duration| f64::from(pods) / took.as_secs_f64();
    table.add(Row {
        what: "pods created per second, 0 to 1,000",
        ours: per_second(ours.created),
        baseline: Some((
            "a StatefulSet with Service and budget, Parallel",
            per_second(theirs.created),
        )),
        upstream: Some(70.0),
    });
    table.add(Row {
        what: "pods removed per second, 1,000 to 0",
        ours: per_second(ours.removed),
        baseline: Some(("the same StatefulSet, which asks no Slurm", per_second(theirs.removed))),
        upstream: None,
    });
    let per_pod = |writes: &Writes| -> Result<f64> {
        let total = u32::try_from(writes.total())?;
        Ok(f64::from(total) / f64::from(pods))
    };
    table.add(Row {
        what: "API writes per pod, 0 to 1,000 to 0, everyone's",
        ours: per_pod(&ours.writes)?,
        baseline: Some(("the same StatefulSet", per_pod(&theirs.writes)?)),
        upstream: None,
    });
    table.add(Row {
        what: "operator's memory, idle, MiB",
        ours: idle.0,
        baseline: Some(("kube-controller-manager", idle.1)),
        upstream: Some(67.0),
    });
    table.add(Row {
        what: "operator's memory with 1,000 pods, MiB",
        ours: ours.memory.0,
        baseline: Some(("kube-controller-manager", ours.memory.1)),
        upstream: Some(157.0),
    });
    table.add_writes("NodeSet", ours.writes);
    table.add_writes("StatefulSet", theirs.writes);
    Ok(())
}

/// Only requests and the watch are awaited; the harness has its own runtime.
fn scale(
    cluster: &Cluster,
    namespace: &Namespace,
    kind: &ApiResource,
    manifest: &Value,
    wanted: u32,
) -> Result<Scaled> {
    let runtime = Runtime::new()?;
    let client = runtime.block_on(api::client(cluster))?;
    let sets: Api<DynamicObject> = Api::namespaced_with(client.clone(), &namespace.name, kind);
    let pods: Api<PartialObjectMeta<Pod>> = Api::namespaced(client, &namespace.name);
    namespace.apply(&manifest.to_string())?;
    let object = format!("{}/scaled", kind.plural);
    wait_replicas(namespace, &object, 0)?;

    let before = requests::writes(cluster)?;
    let selector = format!("{}={}", LABEL.0, LABEL.1);
    let mut events = pin!(watcher(pods, watcher::Config::default().labels(&selector)));
    let mut there = BTreeSet::new();
    runtime.block_on(wait_count(&mut events, &mut there, 0))?;
    let mut reach = |count: u32| {
        let start = Instant::now();
        runtime.block_on(async {
            let patch = Patch::Merge(json!({ "spec": { "replicas": count } }));
            sets.patch_scale("scaled", &PatchParams::default(), &patch).await?;
            wait_count(&mut events, &mut there, count).await
        })?;
        anyhow::Ok(start.elapsed())
    };
    let created = reach(wanted)?;
    wait_running(namespace, &selector, wanted)?;
    let memory = (memory::operator(cluster)?, memory::controller_manager(cluster)?);
    let removed = reach(0)?;
    wait_replicas(namespace, &object, 0)?;
    let writes = requests::writes(cluster)?.since(&before);
    Ok(Scaled {
        created,
        removed,
        writes,
        memory,
    })
}

/// Follows the pods until exactly these many are there.
async fn wait_count(
    events: &mut (impl Stream<Item = watcher::Result<Event<PartialObjectMeta<Pod>>>> + Unpin),
    there: &mut BTreeSet<String>,
    count: u32,
) -> Result<()> {
    let count = usize::try_from(count)?;
    loop {
        let next = tokio::time::timeout(TIMEOUT, events.next()).await;
        let event = next.with_context(|| format!("{} pods stay, not {count}", there.len()))?;
        match event.context("the watch ended")?? {
            Event::Init => {
                there.clear();
                continue;
            }
            Event::InitApply(pod) => {
                there.insert(pod.name_any());
                continue;
            }
            Event::Apply(pod) => drop(there.insert(pod.name_any())),
            Event::Delete(pod) => drop(there.remove(&pod.name_any())),
            Event::InitDone => {}
        }
        if there.len() == count {
            return Ok(());
        }
    }
}

/// Waits until the set knows of exactly these many pods.
fn wait_replicas(namespace: &Namespace, object: &str, count: u32) -> Result<()> {
    eventually(&format!("{count} pods of {object}"), TIMEOUT, || {
        let fields = "{.metadata.generation} {.status.observedGeneration} {.status.replicas}";
        let answer = namespace.ask(&["get", object, "-o", &format!("jsonpath={fields}")])?;
        let words: Vec<u32> = answer.split(' ').map(|word| word.parse().unwrap_or(0)).collect();
        let holds = matches!(words.as_slice(), [generation, observed, replicas]
            if generation == observed && *replicas == count);
        expect(holds, answer)
    })
}

/// Waits until all pods run, but not until they are ready: on a busy machine a simulated node can renew its lease late,
/// and kwok does not make its pods ready again.
fn wait_running(namespace: &Namespace, selector: &str, wanted: u32) -> Result<()> {
    eventually("all pods run", TIMEOUT, || {
        let running = ["get", "pods", "--field-selector=status.phase=Running", "-o", "name"];
        let names = namespace.ask(&[&running[..], &["--selector", selector]].concat())?;
        let count = names.lines().count();
        expect(count == usize::try_from(wanted)?, format!("{count} run"))
    })
}

/// Spec of pods on simulated nodes.
fn template(annotations: &Value, own: &Value) -> Value {
    let shared = json!({
        "nodeSelector": { "type": "kwok" },
        "tolerations": [{ "key": "kwok.x-k8s.io/node", "operator": "Exists" }],
    });
    let fields = [&shared, own].into_iter().filter_map(Value::as_object).flatten();
    let spec: Map<String, Value> = fields.map(|(key, value)| (key.clone(), value.clone())).collect();
    json!({ "metadata": { "labels": { LABEL.0: LABEL.1 }, "annotations": annotations }, "spec": spec })
}

fn node_set() -> Value {
    // Simulated workers never register. The operator waits for that, unless it has drained the node of a worker before.
    let drained = json!({ "nodeset.slinky.slurm.net/drained": "2026-01-01T00:00:00Z" });
    json!({
        "apiVersion": "slinky.slurm.net/v1beta1", "kind": "NodeSet", "metadata": { "name": "scaled" },
        "spec": {
            "controllerRef": { "name": "slurm" }, "replicas": 0,
            // Otherwise every worker needs its own node, unlike the pods of a plain StatefulSet.
            "oversubscribeNode": true,
            "template": template(&drained, &json!({})),
        },
    })
}

/// With the headless Service and the PodDisruptionBudget that workers have too, which kube-controller-manager updates
/// with each pod.
fn stateful_set() -> Value {
    let labels = json!({ LABEL.0: LABEL.1 });
    let service = json!({
        "apiVersion": "v1", "kind": "Service", "metadata": { "name": "scaled" },
        "spec": { "clusterIP": "None", "selector": labels, "publishNotReadyAddresses": true, "ports": [{ "port": 6818 }] },
    });
    let budget = json!({
        "apiVersion": "policy/v1", "kind": "PodDisruptionBudget", "metadata": { "name": "scaled" },
        "spec": { "maxUnavailable": 0, "selector": { "matchLabels": labels } },
    });
    let set = json!({
        "apiVersion": "apps/v1", "kind": "StatefulSet", "metadata": { "name": "scaled" },
        "spec": {
            "serviceName": "scaled", "replicas": 0, "podManagementPolicy": "Parallel",
            "selector": { "matchLabels": labels },
            "template": template(&json!({}), &json!({ "containers": [{ "name": "main", "image": "none" }] })),
        },
    });
    json!({ "apiVersion": "v1", "kind": "List", "items": [service, budget, set] })
}
