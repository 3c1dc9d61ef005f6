//! Slurm clusters of the operator, from the chart or from manifests, and changes of their objects.

use std::process::Command;

use anyhow::Result;
use serde_json::{Value, json};
use testbed::cluster::Cluster;
use testbed::command::output_with_input;
use testbed::harness::{Namespace, cluster, eventually, expect};
use testbed::paths;
use testbed::slurm_release::Release;

use super::operator::{helm, install};
use super::slurm::{SOON, wait_idle};

/// The one setting that a values file needs here: the machine has cgroup v1, but the default cgroup.conf requires v2.
const CGROUP_VALUE: &str = r"configFiles.cgroup\.conf=CgroupPlugin=cgroup/v1";

/// Where the chart's values have an image of Slurm.
const IMAGES_OF_CHART: [&str; 6] = [
    "controller.slurmctld",
    "controller.reconfigure",
    "restapi.slurmrestd",
    "accounting.slurmdbd",
    "loginsetDefaults.login",
    "nodesetDefaults.slurmd",
];

/// Values of the chart: one worker in a partition.
pub const ONE_WORKER: &str = "nodesets:\n  slinky:\n    replicas: 1\npartitions:\n  all:\n    enabled: true\n";

/// Values of the chart: that many workers in a partition.
pub fn chart_workers(replicas: usize) -> String {
    ONE_WORKER.replace("replicas: 1", &format!("replicas: {replicas}"))
}

/// Values of the chart: a NodeSet of each scaling mode with one worker, each on its own node, since workers do not share one.
pub fn both_modes(stateful_node: &str, daemon_node: &str) -> String {
    format!(
        "nodesets:
  slinky:
    replicas: 1
    podSpec: {{nodeSelector: {{kubernetes.io/hostname: {stateful_node}}}}}
  daemon:
    scalingMode: DaemonSet
    podSpec: {{nodeSelector: {{kubernetes.io/hostname: {daemon_node}}}}}
partitions:
  all:
    enabled: true
"
    )
}

/// A Controller as in the guides. Images and keys come from the operator; cgroup.conf is for this machine.
pub const CONTROLLER: &str = r"
apiVersion: v1
kind: ConfigMap
metadata:
  name: cgroup
data:
  cgroup.conf: CgroupPlugin=cgroup/v1
---
apiVersion: slinky.slurm.net/v1beta1
kind: Controller
metadata:
  name: slurm
spec:
  configFileRefs:
  - name: cgroup
  extraConf: |
    PartitionName=all Nodes=ALL Default=NO
    PartitionName=highprio Nodes=compute MaxTime=1-00:00:00 PriorityTier=100
";

/// The slurmrestd of [`CONTROLLER`].
pub const REST_API: &str = "
apiVersion: slinky.slurm.net/v1beta1
kind: RestApi
metadata:
  name: slurm
spec:
  controllerRef:
    name: slurm
";

/// Workers of [`CONTROLLER`], several on one node.
pub fn workers(replicas: usize) -> String {
    format!(
        "
apiVersion: slinky.slurm.net/v1beta1
kind: NodeSet
metadata:
  name: compute
spec:
  controllerRef:
    name: slurm
  replicas: {replicas}
  oversubscribeNode: true
  partition:
    config: Default=YES
"
    )
}

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

/// A namespace for a test, on a cluster with the operator. The webhook does not judge its objects: tests write bad ones
/// to see what the operator does about them.
pub fn operator_namespace(cluster: &'static Cluster, name: &str) -> Namespace {
    let namespace = judged_namespace(cluster, name);
    let label = [
        "label",
        "namespace",
        &namespace.name,
        "slinky.slurm.net/admission=disabled",
    ];
    cluster.ask(&label).unwrap();
    namespace
}

/// A namespace for a test, on a cluster with the operator, whose objects the webhook judges.
pub fn judged_namespace(cluster: &'static Cluster, name: &str) -> Namespace {
    install(cluster);
    Namespace::create(cluster, name).unwrap()
}

/// A Slurm cluster of the chart with these values, once that many workers are idle.
pub fn chart_cluster(cluster: &'static Cluster, name: &str, values: &str, idle: usize) -> Namespace {
    let namespace = operator_namespace(cluster, name);
    install_chart(&namespace, values).unwrap();
    wait_idle(&namespace, idle).unwrap();
    namespace
}

/// A Slurm cluster of [`CONTROLLER`] and NodeSet `compute`, once its workers are idle.
pub fn manifest_cluster(cluster: &'static Cluster, name: &str, replicas: usize) -> Namespace {
    let namespace = operator_namespace(cluster, name);
    namespace.apply(CONTROLLER).unwrap();
    namespace.apply(&workers(replicas)).unwrap();
    wait_idle(&namespace, replicas).unwrap();
    namespace
}

/// A cluster of two NodeSets with one worker each.
pub fn two_node_sets(name: &str) -> Namespace {
    let namespace = operator_namespace(cluster(), name);
    namespace.apply(CONTROLLER).unwrap();
    namespace.apply(&workers(1)).unwrap();
    namespace.apply(SECOND).unwrap();
    wait_idle(&namespace, 2).unwrap();
    namespace
}

/// `helm upgrade --install` of release `slurm` in the namespace, with values given as text.
pub fn install_chart(namespace: &Namespace, values: &str) -> Result<()> {
    output_with_input(upgrade(namespace).args(["--set", CGROUP_VALUE]), values).map(drop)
}

/// The same without that setting, for values whose slurmctld has other files.
pub fn install_as_written(namespace: &Namespace, values: &str) -> Result<()> {
    output_with_input(&mut upgrade(namespace), values).map(drop)
}

fn upgrade(namespace: &Namespace) -> Command {
    let mut command = helm(namespace.cluster);
    command.args(["upgrade", "--install", "--namespace", &namespace.name, "slurm"]);
    command
        .arg(paths::repository().join("charts/slurm"))
        .args(["--values", "-"]);
    if let Some(tag) = Release::chosen().unwrap().tag() {
        command.args(IMAGES_OF_CHART.map(|image| format!("--set={image}.image.tag={tag}")));
    }
    command
}

/// Replaces `spec.extraConf` of Controller `slurm`.
pub fn set_extra_conf(namespace: &Namespace, text: &str) -> Result<()> {
    change_spec(namespace, "controller/slurm", &json!({ "extraConf": text }))
}

/// Changes an object's spec.
pub fn change_spec(namespace: &Namespace, object: &str, spec: &Value) -> Result<()> {
    let patch = json!({ "spec": spec }).to_string();
    namespace
        .ask(&["patch", object, "--type=merge", "--patch", &patch])
        .map(drop)
}

/// A field of Controller `slurm`'s condition `ConfigurationApplied`.
pub fn configuration_applied(namespace: &Namespace, field: &str) -> Result<String> {
    let path = format!(".status.conditions[?(@.type==\"ConfigurationApplied\")].{field}");
    namespace.field("controller/slurm", &path)
}

/// Waits until status, reason and message of a condition contain all these words and describe the current generation.
pub fn wait_said(namespace: &Namespace, object: &str, type_: &str, words: &[&str]) {
    // The generation of host keys takes a while on a busy machine.
    eventually(&format!("{type_} of {object} says {words:?}"), SOON * 2, || {
        let path = format!(".status.conditions[?(@.type==\"{type_}\")].");
        let generations = format!(".metadata.generation}} {{{path}observedGeneration");
        let fields = format!("{generations}}} {{{path}status}} {{{path}reason}} {{{path}message");
        let said = namespace.field(object, &fields)?;
        let (generation, rest) = said.split_once(' ').unwrap_or_default();
        let about = rest.split_once(' ').filter(|(observed, _)| *observed == generation);
        let holds = about.is_some_and(|(_, said)| words.iter().all(|word| said.contains(word)));
        expect(holds, said)
    })
    .unwrap();
}
