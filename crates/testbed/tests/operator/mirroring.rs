//! Slurm's states on pods, and annotations of Kubernetes nodes on Slurm nodes.

use testbed::harness::{Namespace, cluster, eventually, expect};

use crate::common::clusters::operator_namespace;
use crate::common::slurm::{self, SOON, slurm, wait_idle};

const FEATURES: &str = "features.slinky.slurm.net/spec";
const TOPOLOGY: &str = "topology.slinky.slurm.net/spec";

/// One worker, and a topology tree with two switches.
const CLUSTER: &str = r"
apiVersion: v1
kind: ConfigMap
metadata:
  name: files
data:
  cgroup.conf: CgroupPlugin=cgroup/v1
  topology.yaml: |
    - topology: default
      cluster_default: true
      tree:
        switches:
        - switch: root
          children: s[1-2]
        - switch: s1
        - switch: s2
---
apiVersion: slinky.slurm.net/v1beta1
kind: Controller
metadata:
  name: slurm
spec:
  configFileRefs:
  - name: files
  extraConf: |
    TopologyPlugin=topology/tree
---
apiVersion: slinky.slurm.net/v1beta1
kind: NodeSet
metadata:
  name: compute
spec:
  controllerRef:
    name: slurm
  replicas: 1
  oversubscribeNode: true
  partition:
    config: Default=YES MaxTime=7-00:00:00 State=UP
";

/// The pod's conditions that mirror Slurm's state, each with its message.
fn conditions(namespace: &Namespace) -> anyhow::Result<Vec<String>> {
    let path = r#"jsonpath={range .status.conditions[?(@.status=="True")]}{.type}={.message}{"\n"}{end}"#;
    let shown = namespace.ask(&["get", "pod", "compute-0", "-o", path])?;
    let mut slurms: Vec<String> = shown
        .lines()
        .filter_map(|line| line.strip_prefix("SlurmNodeState"))
        .map(str::to_owned)
        .collect();
    slurms.sort();
    Ok(slurms)
}

fn wait_conditions(namespace: &Namespace, expected: &[&str]) {
    eventually(&format!("conditions {expected:?}"), SOON, || {
        let shown = conditions(namespace)?;
        expect(shown == expected, shown)
    })
    .unwrap();
}

fn wait_node(namespace: &Namespace, words: &[&str], absent: &[&str]) {
    slurm::wait_node(namespace, "compute-0", words, absent).unwrap();
}

#[test]
fn slurms_state_is_mirrored_to_pods_and_annotations_to_slurm() {
    let namespace = operator_namespace(cluster(), "view");
    namespace.apply(CLUSTER).unwrap();
    wait_idle(&namespace, 1).unwrap();
    wait_conditions(&namespace, &["Idle="]);

    // The comment of the node identifies its pod.
    let host = namespace.field("pod/compute-0", ".spec.nodeName").unwrap();
    let uid = namespace.uid("nodeset/compute").unwrap();
    let comment = format!(
        r#"Comment={{"namespace":"{}","podName":"compute-0","node":"{host}","nodeSetName":"compute","nodeSetUID":"{uid}"}}"#,
        namespace.name
    );
    wait_node(&namespace, &[&comment], &[]);

    // A manual drain, which the operator does not change.
    let drain = "scontrol update nodename=compute-0 state=drain reason='broken fan'";
    slurm(&namespace, drain).unwrap();
    wait_conditions(&namespace, &["Drain=broken fan", "Idle=broken fan"]);
    slurm(&namespace, "scontrol update nodename=compute-0 state=undrain").unwrap();
    wait_conditions(&namespace, &["Idle="]);

    // In a tree topology, only a node with a place gets jobs.
    annotate(&namespace, &host, &[&format!("{TOPOLOGY}=default:s1")]);
    wait_node(&namespace, &["Topology=default:s1"], &[]);

    // A job and its deadline.
    let deadline = || {
        let path = r"jsonpath={.metadata.annotations.nodeset\.slinky\.slurm\.net/pod-deadline}";
        namespace.ask(&["get", "pod", "compute-0", "-o", path])
    };
    assert_eq!(deadline().unwrap(), "");
    let job = slurm(
        &namespace,
        "sbatch --parsable --time=60 --chdir=/tmp -o /dev/null --wrap 'sleep 600'",
    )
    .unwrap();
    let job = job.trim();
    let end = eventually("a deadline", SOON, || {
        let shown = deadline()?;
        expect(!shown.is_empty(), &shown)?;
        Ok(shown)
    })
    .unwrap();
    let shown = slurm(
        &namespace,
        &format!("date -u -d $(scontrol show job {job} | grep -o 'EndTime=[^ ]*' | cut -d= -f2) +%FT%TZ"),
    )
    .unwrap();
    assert_eq!(end, shown.trim());
    eventually("a condition of a busy node", SOON, || {
        let shown = conditions(&namespace)?;
        let busy = ["Mixed=", "Allocated="];
        expect(shown.iter().any(|shown| busy.contains(&shown.as_str())), shown)
    })
    .unwrap();
    slurm(&namespace, &format!("scancel {job}")).unwrap();
    eventually("no deadline", SOON, || {
        let shown = deadline()?;
        expect(shown.is_empty(), shown)
    })
    .unwrap();
    wait_conditions(&namespace, &["Idle="]);
    places_and_features(&namespace, &host);
}

fn annotate(namespace: &Namespace, host: &str, annotations: &[&str]) {
    let mut arguments = vec!["annotate", "--overwrite", "node", host];
    arguments.extend(annotations);
    namespace.ask(&arguments).unwrap();
}

/// Effects of the annotations of the Kubernetes node.
fn places_and_features(namespace: &Namespace, host: &str) {
    let annotate = |annotations: &[&str]| annotate(namespace, host, annotations);
    let set = |key: &str, value: &str| format!("{key}={value}");
    annotate(&[&set(FEATURES, "fast,big"), &set(TOPOLOGY, "default:s1")]);
    wait_node(
        namespace,
        &[
            "AvailableFeatures=compute,k8s/big,k8s/fast ActiveFeatures=compute,k8s/big,k8s/fast",
            "Topology=default:s1",
        ],
        &[],
    );
    annotate(&[&set(FEATURES, "slow"), &set(TOPOLOGY, "default:s2")]);
    wait_node(
        namespace,
        &["ActiveFeatures=compute,k8s/slow ", "Topology=default:s2"],
        &["k8s/fast"],
    );

    // A place that does not exist is reported and does not block anything else.
    annotate(&[&set(FEATURES, "odd"), &set(TOPOLOGY, "default:nowhere")]);
    wait_node(
        namespace,
        &["ActiveFeatures=compute,k8s/odd ", "Topology=default:s2"],
        &[],
    );
    eventually("the condition names the annotation", SOON, || {
        let path = r#"jsonpath={.status.conditions[?(@.type=="Degraded")].message}"#;
        let shown = namespace.ask(&["get", "nodeset", "compute", "-o", path])?;
        let holds = [TOPOLOGY, host, "default:nowhere"]
            .iter()
            .all(|word| shown.contains(word));
        expect(holds, shown)
    })
    .unwrap();

    annotate(&[&format!("{FEATURES}-"), &format!("{TOPOLOGY}-")]);
    wait_node(namespace, &["ActiveFeatures=compute "], &["k8s/", "Topology="]);
    eventually("a healthy set", SOON, || {
        let path = r#"jsonpath={.status.conditions[?(@.type=="Degraded")].status}"#;
        let shown = namespace.ask(&["get", "nodeset", "compute", "-o", path])?;
        expect(shown == "False", shown)
    })
    .unwrap();
}
