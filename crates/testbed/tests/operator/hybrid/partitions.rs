//! Partitions of an external slurmctld.

use std::time::Duration;

use nix::sys::signal::Signal;
use serde_json::json;
use testbed::faults::{Fault, Pod};
use testbed::process::Process;

use super::external_slurm::Hybrid;
use crate::common::clusters::{change_spec, wait_said};
use crate::common::kills::operator_pods;
use crate::kubectl_slurm::done;

/// Partitions of the external Slurm: one that its slurm.conf has, and one that it does not have.
const PARTITIONS: &str = "
apiVersion: slinky.slurm.net/v1alpha1
kind: Partition
metadata:
  name: bare
spec:
  controllerRef: {name: slurm}
  nodes: [bare-1]
  maxTime: 30
---
apiVersion: slinky.slurm.net/v1alpha1
kind: Partition
metadata:
  name: fresh
spec:
  controllerRef: {name: slurm}
  nodes: [\"bare-[1-2]\"]
";

/// Partitions are changed in the running slurmctld, and sent again when it has lost them. None is created that would be
/// lost, and none that others created is deleted.
pub(super) fn external_partitions_are_changed_live(hybrid: &Hybrid, slurmctld: Process) {
    let namespace = &hybrid.namespace;
    let (bare, fresh) = ("partition.slinky.slurm.net/bare", "partition.slinky.slurm.net/fresh");
    let job = hybrid.start_job("-p bare -w bare-1", "sleep 20");
    namespace.apply(PARTITIONS).unwrap();
    hybrid.wait_partition("bare", &["MaxTime=00:30:00", "State=UP"]);
    wait_said(namespace, bare, "Ready", &["True"]);
    wait_said(
        namespace,
        bare,
        "NotPersistent",
        &["True", "write PartitionName=bare Nodes=bare-1 State=UP MaxTime=30 into"],
    );
    assert_eq!(namespace.field(bare, ".status.applied.way").unwrap(), "Rpc");
    let refused = "add the line PartitionName=fresh Nodes=bare-[1-2] State=UP to the slurm.conf there";
    wait_said(namespace, fresh, "Ready", &["False CannotCreate", refused]);
    done(namespace, &["partition", "drain", "bare"]);
    hybrid.wait_partition("bare", &["MaxTime=00:30:00", "State=DRAIN"]);
    done(namespace, &["partition", "set", "bare", "PriorityTier=7"]);

    let all = ["MaxTime=00:30:00", "State=DRAIN", "PriorityTier=7"];
    slurmctld.end(Signal::SIGTERM, Duration::from_secs(20)).unwrap();
    hybrid.start_slurmctld("nothing");
    hybrid.wait_partition("bare", &all);
    for _ in 0..2 {
        hybrid.slurm("scontrol reconfigure").unwrap();
        hybrid.wait_partition("bare", &all);
    }
    hybrid.slurm("scontrol update PartitionName=bare MaxTime=5").unwrap();
    hybrid.wait_partition("bare", &all);
    done(namespace, &["partition", "resume", "bare"]);
    hybrid.wait_partition("bare", &["State=UP"]);
    // A manual state is kept until the partition is resumed.
    hybrid.slurm("scontrol update PartitionName=bare State=DRAIN").unwrap();
    wait_said(namespace, bare, "Drifted", &["True ClosedByHand"]);
    done(namespace, &["partition", "resume", "bare"]);
    hybrid.wait_partition("bare", &["State=UP"]);
    hybrid.wait_job(&job, "COMPLETED");

    // If slurmctld keeps changed partitions, one can be created, and is deleted after its jobs.
    hybrid.write_conf("ReturnToService", "ReconfigFlags=KeepPartInfo\nReturnToService");
    hybrid.slurm("scontrol reconfigure").unwrap();
    wait_said(namespace, fresh, "Ready", &["True"]);
    hybrid.wait_partition("fresh", &["State=UP", "Nodes=bare-[1-2]"]);
    let job = hybrid.start_job("-p fresh -w bare-2", "sleep 10");
    namespace.ask(&["delete", fresh, "--wait=false"]).unwrap();
    wait_said(namespace, fresh, "PartitionRetained", &["True WaitsForJobs"]);
    hybrid.wait_partition("fresh", &["State=DRAIN"]);
    namespace.wait("delete", fresh).unwrap();
    hybrid.wait_job(&job, "COMPLETED");
    let gone = hybrid.slurm("scontrol --oneliner show partition").unwrap();
    assert!(!gone.contains("PartitionName=fresh"), "{gone}");

    impossible_external_partitions_are_reported_and_rolled_back(hybrid);
    external_partitions_are_changed_by_slurmrestd(hybrid);
    namespace.ask(&["delete", bare]).unwrap();
    hybrid.wait_partition("bare", &["MaxTime=00:45:00", "State=UP"]);
}

/// Unknown nodes, a second default, and NodeSets that are not in its slurm.conf are reported; each heals.
fn impossible_external_partitions_are_reported_and_rolled_back(hybrid: &Hybrid) {
    let namespace = &hybrid.namespace;
    let (bare, fresh) = ("partition.slinky.slurm.net/bare", "partition.slinky.slurm.net/fresh");
    change_spec(namespace, bare, &json!({ "maxTime": 20, "nodes": ["nowhere"] })).unwrap();
    wait_said(
        namespace,
        bare,
        "Ready",
        &["False ConfigRejected", "ESLURM_INVALID_NODE_NAME"],
    );
    hybrid.wait_partition("bare", &["MaxTime=00:30:00", "Nodes=bare-1"]);
    change_spec(
        namespace,
        bare,
        &json!({ "maxTime": 30, "nodes": ["bare-1"], "default": true }),
    )
    .unwrap();
    wait_said(namespace, bare, "Ready", &["True"]);
    hybrid.wait_partition("all", &["Default=NO"]);
    let second = PARTITIONS.rsplit_once("---").unwrap().1;
    namespace.apply(&format!("{second}  default: true\n")).unwrap();
    wait_said(namespace, fresh, "Ready", &["False TwoDefaults", "Partition \"bare\""]);
    namespace.ask(&["delete", fresh]).unwrap();
    change_spec(namespace, bare, &json!({ "default": null })).unwrap();
    hybrid.wait_partition("all", &["Default=YES"]);

    namespace
        .apply(&second.replace("nodes: [\"bare-[1-2]\"]", "nodeSets: [slurm-worker-slinky]"))
        .unwrap();
    wait_said(
        namespace,
        fresh,
        "Ready",
        &["False BadMembers", "NodeSet=slinky Feature=slinky"],
    );
    hybrid.write_conf(
        "ReturnToService",
        "ReconfigFlags=KeepPartInfo\nNodeSet=slinky Feature=slinky\nReturnToService",
    );
    hybrid.slurm("scontrol reconfigure").unwrap();
    wait_said(namespace, fresh, "Ready", &["True"]);
    hybrid.wait_partition("fresh", &["NodeSets=slinky"]);
    namespace.ask(&["delete", fresh]).unwrap();
}

/// If the operator cannot reach slurmctld, it uses slurmrestd, also to create and delete partitions.
fn external_partitions_are_changed_by_slurmrestd(hybrid: &Hybrid) {
    let namespace = &hybrid.namespace;
    let (bare, fresh) = ("partition.slinky.slurm.net/bare", "partition.slinky.slurm.net/fresh");
    let cut = cut_operator_from(hybrid);
    wait_said(namespace, "controller/slurm", "Ready", &["False SlurmctldAway"]);
    change_spec(namespace, bare, &json!({ "maxTime": 45 })).unwrap();
    hybrid.wait_partition("bare", &["MaxTime=00:45:00", "State=UP", "PriorityTier=7"]);
    wait_said(namespace, bare, "Ready", &["True"]);
    assert_eq!(namespace.field(bare, ".status.applied.way").unwrap(), "Rest");
    // A rejected change is rolled back and reported with slurmctld's error.
    change_spec(namespace, bare, &json!({ "maxTime": 20, "nodes": ["nowhere"] })).unwrap();
    wait_said(
        namespace,
        bare,
        "Ready",
        &["False ConfigRejected", "does not know all of its nodes"],
    );
    hybrid.wait_partition("bare", &["MaxTime=00:45:00", "Nodes=bare-1"]);
    change_spec(namespace, bare, &json!({ "maxTime": 45, "nodes": ["bare-1"] })).unwrap();
    wait_said(namespace, bare, "Ready", &["True"]);

    namespace.apply(PARTITIONS.rsplit_once("---").unwrap().1).unwrap();
    wait_said(namespace, fresh, "Ready", &["True"]);
    assert_eq!(namespace.field(fresh, ".status.applied.way").unwrap(), "Rest");
    hybrid.wait_partition("fresh", &["State=UP", "Nodes=bare-[1-2]"]);
    let job = hybrid.start_job("-p fresh -w bare-2", "sleep 10");
    namespace.ask(&["delete", fresh, "--wait=false"]).unwrap();
    wait_said(namespace, fresh, "PartitionRetained", &["True WaitsForJobs"]);
    namespace.wait("delete", fresh).unwrap();
    hybrid.wait_job(&job, "COMPLETED");
    let gone = hybrid.slurm("scontrol --oneliner show partition").unwrap();
    assert!(!gone.contains("PartitionName=fresh"), "{gone}");
    drop(cut);
    wait_said(namespace, "controller/slurm", "Ready", &["True External"]);
}

/// Drops every packet between the operator and that slurmctld.
fn cut_operator_from(hybrid: &Hybrid) -> Vec<Fault> {
    let pods = operator_pods(hybrid.cluster).unwrap();
    let cut = |name: &String| {
        let namespace = "slinky";
        hybrid
            .cluster
            .cut_from(Pod { namespace, name }, &hybrid.ctl.address)
            .unwrap()
    };
    pods.iter().map(cut).collect()
}
