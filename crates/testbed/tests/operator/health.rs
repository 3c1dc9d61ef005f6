//! Nodes that leave service by themselves: for a condition of their Kubernetes node, and for a check on the worker.

use std::time::{Duration, Instant};

use anyhow::Result;
use serde_json::json;
use testbed::cluster::Cluster;
use testbed::harness::{Namespace, cluster, eventually, expect};

use crate::common::clusters::{CONTROLLER, install_chart, operator_namespace, workers};
use crate::common::slurm::{SOON, slurm, start_job, submit_job, wait_done, wait_idle, wait_job, wait_node};

const CHECK: &str = include_str!("../../../../examples/health/check.yaml");
const VALUES: &str = include_str!("../../../../examples/health/values.yaml");

/// Long enough for the operator's reaction to a change in Slurm, which it polls every five seconds.
const SETTLED: Duration = Duration::from_secs(8);
/// Conditions that no other test uses, of the Kubernetes node that the workers of this test share with others.
const CONDITIONS: [&str; 3] = ["TestbedSick", "TestbedSuspect", "TestbedByHand"];

/// The Kubernetes node of all workers of the first test.
const HOST: &str = "node2";
const HEALTH: &str = "  template:
    spec:
      nodeSelector: {kubernetes.io/hostname: node2}
  health:
    drainOn:
    - {condition: TestbedSick}
    - {condition: TestbedSuspect, for: 5s}
    - {condition: TestbedByHand, undrain: false}
";

/// Removes the conditions when it is dropped, also when a test fails halfway.
struct Conditions {
    cluster: &'static Cluster,
    host: &'static str,
}

impl Conditions {
    /// Writes one condition, as a health monitor does.
    fn patch(&self, condition: &serde_json::Value) -> Result<()> {
        let patch = json!({ "status": { "conditions": [condition] } }).to_string();
        let words = [
            "patch",
            "node",
            self.host,
            "--subresource=status",
            "--type=strategic",
            "--patch",
            &patch,
        ];
        self.cluster.ask(&words).map(drop)
    }

    /// Sets a status that begins now, and returns when that was.
    fn set(&self, type_: &str, status: &str) -> jiff::Timestamp {
        let now = jiff::Timestamp::now();
        let time = now.strftime("%Y-%m-%dT%H:%M:%SZ").to_string();
        let condition = json!({ "type": type_, "status": status, "reason": "Testbed", "message": "a test",
            "lastTransitionTime": time, "lastHeartbeatTime": time });
        self.patch(&condition).unwrap();
        now
    }

    fn remove(&self, type_: &str) -> Result<()> {
        self.patch(&json!({ "type": type_, "$patch": "delete" }))
    }
}

impl Drop for Conditions {
    fn drop(&mut self) {
        for type_ in CONDITIONS {
            let removed = self.remove(type_);
            assert!(
                std::thread::panicking() || removed.is_ok(),
                "{type_} stays on {}",
                self.host
            );
        }
    }
}

fn reason(host: &str, condition: &str) -> String {
    format!("Reason=slurm-operator: Node ({host}) has condition {condition}=True")
}

fn open(namespace: &Namespace, node: &str) {
    wait_node(namespace, node, &[" State="], &["DRAIN"]).unwrap();
}

#[test]
fn a_condition_of_the_kubernetes_node_drains_beside_jobs_and_people_and_undrains() {
    let cluster = cluster();
    let namespace = operator_namespace(cluster, "health");
    namespace.apply(CONTROLLER).unwrap();
    namespace.apply(&format!("{}{HEALTH}", workers(3))).unwrap();
    wait_idle(&namespace, 3).unwrap();
    let host = HOST;
    let conditions = Conditions { cluster, host };
    let job = start_job(&namespace, "-w compute-0", "sleep 600").unwrap();
    slurm(&namespace, "scontrol update nodename=compute-1 state=drain reason=fan").unwrap();

    let sick = reason(host, "TestbedSick");
    let since = Instant::now();
    conditions.set("TestbedSick", "True");
    wait_node(&namespace, "compute-0", &["DRAIN", &sick], &[]).unwrap();
    println!(
        "drained {:.1} s after the condition was written",
        since.elapsed().as_secs_f64()
    );
    wait_node(&namespace, "compute-2", &["DRAIN", &sick], &[]).unwrap();
    wait_job(&namespace, &job, "RUNNING").unwrap();
    wait_node(&namespace, "compute-1", &["DRAIN", "Reason=fan"], &[]).unwrap();
    eventually("the pod shows the reason", SOON, || {
        let path = ".status.conditions[?(@.type==\"SlurmNodeStateDrain\")].message";
        let said = namespace.field("pod/compute-0", path)?;
        expect(format!("Reason={said}") == sick, said)
    })
    .unwrap();

    // An administrator resumes a node, and is respected while the condition lasts.
    let recorded = |node: &str, key: &str| {
        let path = format!(".metadata.annotations.nodeset\\.slinky\\.slurm\\.net/{key}");
        eventually(&format!("annotation {key} of {node}"), SOON, || {
            let value = namespace.field(&format!("pod/{node}"), &path)?;
            expect(!value.is_empty(), value)
        })
        .unwrap();
    };
    recorded("compute-2", "drained");
    slurm(&namespace, "scontrol update nodename=compute-2 state=resume").unwrap();
    recorded("compute-2", "resumed-conditions");
    std::thread::sleep(SETTLED);
    open(&namespace, "compute-2");

    let since = Instant::now();
    conditions.set("TestbedSick", "False");
    open(&namespace, "compute-0");
    println!(
        "undrained {:.1} s after the condition was over",
        since.elapsed().as_secs_f64()
    );
    wait_node(&namespace, "compute-1", &["DRAIN", "Reason=fan"], &[]).unwrap();
    wait_job(&namespace, &job, "RUNNING").unwrap();

    // The next time it is a new cause. A condition that is removed is over too.
    conditions.set("TestbedSick", "True");
    wait_node(&namespace, "compute-2", &["DRAIN", &sick], &[]).unwrap();
    conditions.remove("TestbedSick").unwrap();
    open(&namespace, "compute-2");

    // One that has to last.
    let since = conditions.set("TestbedSuspect", "True");
    wait_node(
        &namespace,
        "compute-2",
        &["DRAIN", &reason(host, "TestbedSuspect")],
        &[],
    )
    .unwrap();
    // The condition has whole seconds, rounded down.
    let after = jiff::Timestamp::now().duration_since(since).as_secs_f64();
    println!("drained {after:.1} s after a condition that has to last 5 s");
    assert!(after > 3.9, "{after}");
    conditions.remove("TestbedSuspect").unwrap();
    open(&namespace, "compute-2");

    // One whose drain an administrator has to end.
    conditions.set("TestbedByHand", "True");
    let by_hand = reason(host, "TestbedByHand") + "; resume it by hand";
    wait_node(&namespace, "compute-2", &["DRAIN", &by_hand], &[]).unwrap();
    conditions.remove("TestbedByHand").unwrap();
    std::thread::sleep(SETTLED);
    wait_node(&namespace, "compute-2", &["DRAIN", &by_hand], &[]).unwrap();
    slurm(&namespace, "scontrol update nodename=compute-2 state=resume").unwrap();
    open(&namespace, "compute-2");
    wait_job(&namespace, &job, "RUNNING").unwrap();
    wait_node(&namespace, "compute-1", &["DRAIN", "Reason=fan"], &[]).unwrap();
}

/// The files `examples/health/check.yaml` and `examples/health/values.yaml`.
#[test]
fn a_check_on_the_worker_drains_and_undrains_and_hurts_no_job_when_it_hangs() {
    let namespace = operator_namespace(cluster(), "checks");
    namespace.apply(CHECK).unwrap();
    install_chart(
        &namespace,
        &VALUES.replace("HealthCheckInterval=60", "HealthCheckInterval=2"),
    )
    .unwrap();
    wait_idle(&namespace, 2).unwrap();
    let worker = |number: usize, line: &str| {
        let pod = format!("slurm-worker-slinky-{number}");
        namespace.inside(&pod, "slurmd", line).unwrap()
    };
    let job = start_job(&namespace, "-w slinky-0", "until [ -e /tmp/end ]; do sleep 1; done").unwrap();
    slurm(&namespace, "scontrol update nodename=slinky-1 state=drain reason=fan").unwrap();

    for number in [0, 1] {
        worker(number, "echo 'fan 3 is slow' >/run/unfit");
    }
    wait_node(&namespace, "slinky-0", &["DRAIN", "Reason=check: fan 3 is slow"], &[]).unwrap();
    std::thread::sleep(SETTLED);
    wait_node(&namespace, "slinky-0", &["DRAIN", "Reason=check: fan 3 is slow"], &[]).unwrap();
    for number in [0, 1] {
        worker(number, "rm /run/unfit");
    }
    open(&namespace, "slinky-0");
    wait_node(&namespace, "slinky-1", &["DRAIN", "Reason=fan"], &[]).unwrap();
    slurm(&namespace, "scontrol update nodename=slinky-1 state=resume").unwrap();
    open(&namespace, "slinky-1");

    // A changed script reaches running workers. This one never ends.
    let line = "    #!/bin/sh\n";
    assert!(CHECK.contains(line));
    let hangs = CHECK.replace(line, "    #!/bin/sh\n    touch /run/hangs\n    sleep 3600\n");
    namespace.apply(&hangs).unwrap();
    for number in [0, 1] {
        eventually("the check hangs", SOON * 2, || {
            let pod = format!("slurm-worker-slinky-{number}");
            namespace.inside(&pod, "slurmd", "cat /run/hangs")
        })
        .unwrap();
    }
    let uids = || {
        namespace.ask(&[
            "get",
            "pods",
            "-l",
            "app.kubernetes.io/name=slurmd",
            "-o",
            "jsonpath={.items[*].metadata.uid}",
        ])
    };
    let before = uids().unwrap();
    // Jobs start and end beside it.
    let short = submit_job(&namespace, "-w slinky-1", "srun sleep 3").unwrap();
    wait_done(&namespace, &short).unwrap();
    wait_job(&namespace, &job, "RUNNING").unwrap();
    worker(0, "touch /tmp/end");
    wait_done(&namespace, &job).unwrap();
    for node in ["slinky-0", "slinky-1"] {
        open(&namespace, node);
    }
    let shown = slurm(&namespace, "scontrol show nodes --oneliner").unwrap();
    assert!(!shown.contains("NOT_RESPONDING") && !shown.contains("DOWN"), "{shown}");
    assert_eq!(uids().unwrap(), before, "no worker was replaced");
}
