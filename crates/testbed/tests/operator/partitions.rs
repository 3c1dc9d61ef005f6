//! Partitions as objects: in slurm.conf and in the running slurmctld, from their creation to their end.

use anyhow::Result;
use serde_json::json;
use testbed::harness::{Namespace, cluster, eventually, expect};

use crate::common::operator::{CONTROLLER, SOON, install, slurm, start_job, wait_done, wait_idle, workers};

/// A second NodeSet beside `compute`, with one worker.
const SECOND: &str = "
apiVersion: slinky.slurm.net/v1beta1
kind: NodeSet
metadata:
  name: slurm-second
  labels:
    zone: b
spec:
  controllerRef:
    name: slurm
  replicas: 1
  oversubscribeNode: true
  template:
    spec:
      hostname: second-
";

/// A cluster of two NodeSets with one worker each.
fn start(name: &str) -> Namespace {
    let cluster = cluster();
    install(cluster);
    let namespace = Namespace::create(cluster, name).unwrap();
    namespace.apply(CONTROLLER).unwrap();
    namespace.apply(&workers(1)).unwrap();
    namespace.apply(SECOND).unwrap();
    wait_idle(&namespace, 2).unwrap();
    namespace
}

/// Makes a Partition with this spec, or writes it anew.
fn make(namespace: &Namespace, name: &str, spec: &str) {
    let manifest = format!(
        "apiVersion: slinky.slurm.net/v1alpha1\nkind: Partition\nmetadata:\n  name: {name}\nspec:\n  controllerRef:\n    name: slurm\n{spec}"
    );
    namespace.apply(&manifest).unwrap();
}

fn patch(namespace: &Namespace, name: &str, spec: &serde_json::Value) {
    let patch = json!({ "spec": spec }).to_string();
    let object = format!("partition.slinky.slurm.net/{name}");
    namespace
        .ask(&["patch", &object, "--type=merge", "-p", &patch])
        .unwrap();
}

fn field(namespace: &Namespace, name: &str, path: &str) -> Result<String> {
    namespace.field(&format!("partition.slinky.slurm.net/{name}"), path)
}

fn condition(namespace: &Namespace, name: &str, condition: &str, of_it: &str) -> Result<String> {
    field(
        namespace,
        name,
        &format!(".status.conditions[?(@.type==\"{condition}\")].{of_it}"),
    )
}

/// Waits until the condition has this status and reason, and these words in its message.
fn told(namespace: &Namespace, name: &str, of: &str, status: &str, reason: &str, words: &[&str]) {
    eventually(&format!("{name} {of}={status} {reason}"), SOON, || {
        let now =
            ["status", "reason", "message"].map(|of_it| condition(namespace, name, of, of_it).unwrap_or_default());
        let says = words.iter().all(|word| now[2].contains(word));
        expect(now[0] == status && now[1] == reason && says, &now)
    })
    .unwrap();
}

fn ready(namespace: &Namespace, name: &str) {
    eventually(&format!("Partition {name} is ready"), SOON, || {
        let shown = namespace.ask(&["get", "partition.slinky.slurm.net", name, "-o", "yaml"])?;
        let generation = field(namespace, name, ".metadata.generation")?;
        let applied = field(namespace, name, ".status.applied.generation")?;
        let ready = condition(namespace, name, "Ready", "status")?;
        expect(ready == "True" && generation == applied, shown)
    })
    .unwrap();
}

/// Waits until Slurm says all of these words of the partition.
fn live(namespace: &Namespace, name: &str, words: &[&str]) {
    eventually(&format!("partition {name} with {words:?}"), SOON, || {
        let shown = slurm(namespace, &format!("scontrol --oneliner show partition {name}"))?;
        expect(words.iter().all(|word| shown.contains(word)), shown)
    })
    .unwrap();
}

/// Its line in the slurm.conf that slurmctld has.
fn line(namespace: &Namespace, name: &str) -> String {
    slurm(
        namespace,
        &format!("grep '^PartitionName={name} ' /etc/slurm/slurm.conf || true"),
    )
    .unwrap()
}

fn gone(namespace: &Namespace, name: &str) {
    eventually(&format!("Partition {name} is gone"), SOON, || {
        let left = namespace.ask(&[
            "get",
            "partition.slinky.slurm.net",
            "--ignore-not-found",
            name,
            "-o",
            "yaml",
        ])?;
        expect(left.is_empty(), left)
    })
    .unwrap();
    assert_eq!(line(namespace, name), "");
    let shown = slurm(namespace, "scontrol --oneliner show partitions").unwrap();
    assert!(!shown.contains(&format!("PartitionName={name} ")), "{shown}");
}

#[test]
fn a_partition_across_nodesets_is_live_takes_changes_and_goes_after_its_last_job() {
    let namespace = start("partitions");
    make(
        &namespace,
        "both",
        "  nodeSets: [compute, slurm-second]\n  maxTime: 60\n",
    );
    ready(&namespace, "both");
    let hosts = slurm(&namespace, "srun -p both -N 2 hostname | sort").unwrap();
    assert_eq!(hosts, "compute-0\nsecond-0\n");
    assert_eq!(
        line(&namespace, "both"),
        "PartitionName=both Nodes=compute,second State=UP MaxTime=60\n"
    );

    // A change is live, and a key that is taken out goes back to Slurm's default.
    patch(&namespace, "both", &json!({ "maxTime": 90, "priorityTier": 7 }));
    live(&namespace, "both", &["MaxTime=01:30:00", "PriorityTier=7"]);
    patch(&namespace, "both", &json!({ "maxTime": null, "priorityTier": null }));
    live(&namespace, "both", &["MaxTime=UNLIMITED", "PriorityTier=1 "]);
    ready(&namespace, "both");

    // Deleted under a job: closed, waited for, gone.
    let job = start_job(&namespace, "-p both -N 2", "sleep 15").unwrap();
    namespace
        .ask(&["delete", "partition.slinky.slurm.net", "both", "--wait=false"])
        .unwrap();
    live(&namespace, "both", &["State=DRAIN"]);
    assert!(line(&namespace, "both").contains("State=DRAIN"));
    told(
        &namespace,
        "both",
        "PartitionRetained",
        "True",
        "WaitsForJobs",
        &[&format!("job {job}")],
    );
    let refused = slurm(&namespace, "sbatch -p both --wrap true 2>&1 || true").unwrap();
    assert!(
        refused.contains("not available") || refused.contains("unavailable") || refused.contains("drain"),
        "{refused}"
    );
    wait_done(&namespace, &job).unwrap();
    gone(&namespace, "both");
}
