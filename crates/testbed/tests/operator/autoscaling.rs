//! Workers that follow Slurm's queue to zero and back.

use std::time::Duration;

use testbed::harness::{Namespace, cluster, eventually, expect};

use crate::common::clusters::{CONTROLLER, operator_namespace};
use crate::common::kills::kill_operator;
use crate::common::slurm::{slurm, submit_job, wait_done, wait_job};

/// Slurm looks for idle nodes and for nodes that have started from time to time, and the machine may be busy.
const PATIENCE: Duration = Duration::from_mins(4);

fn elastic(least: u32, most: u32) -> String {
    format!(
        "
apiVersion: slinky.slurm.net/v1beta1
kind: NodeSet
metadata:
  name: compute
spec:
  controllerRef:
    name: slurm
  autoscaling:
    enabled: true
    minReplicas: {least}
    maxReplicas: {most}
    idleTime: 10s
    bootTimeout: 5m
    shape: CPUs=1 RealMemory=100
  oversubscribeNode: true
  partition:
    config: Default=YES
"
    )
}

fn pods(namespace: &Namespace) -> anyhow::Result<Vec<String>> {
    let pods = namespace.ask(&["get", "pods", "-l", "app.kubernetes.io/name=slurmd", "-o", "name"])?;
    Ok(pods.lines().map(str::to_owned).collect())
}

fn wait_pods(namespace: &Namespace, names: &[&str]) {
    let expected: Vec<String> = names.iter().map(|name| format!("pod/{name}")).collect();
    let what = format!("the pods are {expected:?}");
    eventually(&what, PATIENCE, || {
        let pods = pods(namespace)?;
        let nodes = slurm(namespace, "sinfo --noheader --Node --format='%N %T'").unwrap_or_default();
        expect(pods == expected, format!("{pods:?}\n{nodes}"))
    })
    .unwrap();
}

fn wait_states(namespace: &Namespace, states: &str) {
    eventually(&format!("the states are {states}"), PATIENCE, || {
        let shown = slurm(namespace, "sinfo --noheader --Node --partition=compute --format=%N=%t")?;
        let shown = shown.split_whitespace().collect::<Vec<_>>().join(" ");
        expect(shown == states, shown)
    })
    .unwrap();
}

#[test]
fn workers_follow_the_queue_from_zero_and_back() {
    let cluster = cluster();
    let namespace = operator_namespace(cluster, "elastic");
    namespace.apply(CONTROLLER).unwrap();
    namespace.apply(&elastic(0, 3)).unwrap();
    // The capacity is there without a worker.
    wait_states(&namespace, "compute-0=idle~ compute-1=idle~ compute-2=idle~");
    assert_eq!(pods(&namespace).unwrap(), Vec::<String>::new());

    // Slurm chooses the ordinals.
    let first = submit_job(&namespace, "-w compute-1", "sleep 20").unwrap();
    let both = submit_job(&namespace, "-w compute-1,compute-2 -N2", "srun hostname; sleep 5").unwrap();
    eventually("the job runs", PATIENCE, || wait_job(&namespace, &first, "RUNNING")).unwrap();
    kill_operator(cluster).unwrap();
    for job in [first, both] {
        eventually("the job ends", PATIENCE, || wait_done(&namespace, &job)).unwrap();
    }
    // Idle workers go, and their records stay.
    wait_pods(&namespace, &[]);
    wait_states(&namespace, "compute-0=idle~ compute-1=idle~ compute-2=idle~");

    // One worker is kept, and fewer records are wanted.
    namespace.apply(&elastic(1, 2)).unwrap();
    wait_pods(&namespace, &["compute-0"]);
    wait_states(&namespace, "compute-0=idle compute-1=idle~");
    namespace.ask(&["delete", "nodeset/compute", "--timeout=4m"]).unwrap();
    let left = slurm(&namespace, "sinfo --noheader --Node --format=%N").unwrap();
    assert_eq!(left.trim(), "");
}
