//! A partition edited on its NodeSet, until slurmctld serves it.

use std::thread;
use std::time::{Duration, SystemTime};

use anyhow::Result;
use kube::api::{Api, DynamicObject, Patch, PatchParams};
use serde_json::json;
use testbed::cluster::Cluster;
use testbed::harness::Namespace;

use crate::api;
use crate::observer::Observer;
use crate::table::{Row, Table, percentile};

const EDITS: u32 = 20;
/// Between reconfigures the operator leaves a second; an edit is measured that does not have to wait for the one before.
const APART: Duration = Duration::from_millis(1500);
const PATIENCE: Duration = Duration::from_mins(2);

/// From before the request is sent until slurmctld was seen to serve it, so the time of the write is in it.
pub(crate) fn measure(cluster: &Cluster, namespace: &Namespace) -> Result<Vec<Duration>> {
    let line = "scontrol --oneliner show partition slinky | grep -o 'MaxTime=[^ ]*'";
    let observer = Observer::start(namespace, "slurm-controller-0 -c slurmctld", line, 0.01)?;
    observer.wait_for("MaxTime=UNLIMITED", PATIENCE)?;
    let runtime = tokio::runtime::Runtime::new()?;
    let client = runtime.block_on(api::client(cluster))?;
    let sets: Api<DynamicObject> = Api::namespaced_with(client, &namespace.name, &api::node_sets());
    let mut took = Vec::new();
    for minutes in 1..=EDITS {
        thread::sleep(APART);
        let patch = Patch::Merge(json!({ "spec": { "partition": { "config": format!("MaxTime={minutes}") } } }));
        let sent = SystemTime::now();
        runtime.block_on(sets.patch("slurm-worker-slinky", &PatchParams::default(), &patch))?;
        let served = observer.wait_for(&format!("MaxTime=00:{minutes:02}:00"), PATIENCE)?;
        took.push(served.duration_since(sent)?);
    }
    Ok(took)
}

pub(crate) fn report(edits: &[Duration], alone: &[Duration], table: &mut Table) {
    for (what, percent) in [
        ("partition edit to live, p50, s", 50),
        ("partition edit to live, p90, s", 90),
    ] {
        table.add(Row {
            what,
            ours: percentile(edits, percent),
            baseline: Some((
                "a ConfigMap into a pod, by the kubelet alone",
                percentile(alone, percent),
            )),
            upstream: None,
        });
    }
}
