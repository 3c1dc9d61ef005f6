//! The operator on the tests' cluster, installed from its charts as anyone would, and clusters made with it.

use std::path::PathBuf;
use std::process::Command;
use std::sync::OnceLock;
use std::time::Duration;

use anyhow::Result;
use serde_json::{Value, json};
use testbed::cluster::Cluster;
use testbed::command::{output, output_with_input};
use testbed::harness::{Namespace, cluster, eventually, expect, once_for};
use testbed::{images, paths};

pub const SOON: Duration = Duration::from_mins(2);

/// The one overlay a values file needs here: the machine has cgroup v1, the default cgroup.conf asks for v2.
const CGROUP_VALUE: &str = r"configFiles.cgroup\.conf=CgroupPlugin=cgroup/v1";

/// One worker, and a partition to use it by.
pub const ONE_WORKER: &str = "nodesets:\n  slinky:\n    replicas: 1\npartitions:\n  all:\n    enabled: true\n";

/// A Controller as the guides write it. Images and keys are left to the operator; cgroup.conf is what this machine needs.
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

/// Its slurmrestd.
pub const REST_API: &str = "
apiVersion: slinky.slurm.net/v1beta1
kind: RestApi
metadata:
  name: slurm
spec:
  controllerRef:
    name: slurm
";

/// Workers of it, several on one machine.
pub fn workers(replicas: u32) -> String {
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

/// A cluster of two NodeSets with one worker each.
pub fn two_node_sets(name: &str) -> Namespace {
    let cluster = cluster();
    install(cluster);
    let namespace = Namespace::create(cluster, name).unwrap();
    namespace.apply(CONTROLLER).unwrap();
    namespace.apply(&workers(1)).unwrap();
    namespace.apply(SECOND).unwrap();
    wait_idle(&namespace, 2).unwrap();
    namespace
}

/// Installs the operator in namespace `slinky`, once.
pub fn install(cluster: &Cluster) {
    static ARCHIVE: OnceLock<PathBuf> = OnceLock::new();
    once_for(cluster, "operator", || {
        let archive = ARCHIVE.get_or_init(|| images::operator().unwrap());
        cluster.load(archive).unwrap();
        install_charts(cluster).unwrap();
    });
}

/// Brings the operator's charts to how all tests want them, whatever became of them.
pub fn install_charts(cluster: &Cluster) -> Result<()> {
    for chart in ["slurm-operator-crds", "slurm-operator"] {
        let arguments = [
            "upgrade",
            "--install",
            "--wait",
            "--reset-values",
            "--namespace",
            "slinky",
            "--create-namespace",
            chart,
        ];
        output(
            helm(cluster)
                .args(arguments)
                .arg(paths::repository().join("charts").join(chart)),
        )?;
    }
    Ok(())
}

/// The operator and its kinds are back when this goes, also when a test fails halfway: the other tests count on it.
pub struct PutBack(pub &'static Cluster);

impl Drop for PutBack {
    fn drop(&mut self) {
        let put_back = install_charts(self.0);
        assert!(std::thread::panicking() || put_back.is_ok(), "{put_back:?}");
    }
}

/// `helm uninstall`, which is to come to its end by itself.
pub fn uninstall(cluster: &Cluster, namespace: &str, release: &str) -> Result<()> {
    output(helm(cluster).args(["uninstall", "--timeout=2m", "--namespace", namespace, release])).map(drop)
}

pub fn helm(cluster: &Cluster) -> Command {
    let mut command = Command::new(cluster.binaries.path("helm"));
    command.env("KUBECONFIG", cluster.layout.kubeconfig());
    command
}

/// `helm upgrade --install` of release `slurm` in the namespace, with values given as text.
pub fn install_chart(cluster: &Cluster, namespace: &Namespace, values: &str) -> Result<()> {
    output_with_input(upgrade(cluster, namespace).args(["--set", CGROUP_VALUE]), values).map(drop)
}

/// The same without the overlay, where slurmctld's files are not the chart's.
pub fn install_as_written(cluster: &Cluster, namespace: &Namespace, values: &str) -> Result<()> {
    output_with_input(&mut upgrade(cluster, namespace), values).map(drop)
}

fn upgrade(cluster: &Cluster, namespace: &Namespace) -> Command {
    let mut command = helm(cluster);
    command.args(["upgrade", "--install", "--namespace", &namespace.name, "slurm"]);
    command
        .arg(paths::repository().join("charts/slurm"))
        .args(["--values", "-"]);
    command
}

/// Writes `spec.extraConf` of Controller `slurm` anew.
pub fn set_extra_conf(namespace: &Namespace, text: &str) -> Result<()> {
    change_spec(namespace, "controller/slurm", &json!({ "extraConf": text }))
}

/// A field of Controller `slurm`'s condition `ConfigurationApplied`.
pub fn configuration_applied(namespace: &Namespace, field: &str) -> Result<String> {
    let path = format!(".status.conditions[?(@.type==\"ConfigurationApplied\")].{field}");
    namespace.field("controller/slurm", &path)
}

/// Waits until status, reason and message of a condition have all these words in them, about the spec as it is now: what was
/// said before a change says nothing about it.
pub fn wait_said(namespace: &Namespace, object: &str, type_: &str, words: &[&str]) {
    // Host keys take a busy machine a while.
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

/// Changes an object's spec.
pub fn change_spec(namespace: &Namespace, object: &str, spec: &Value) -> Result<()> {
    let patch = json!({ "spec": spec }).to_string();
    namespace
        .ask(&["patch", object, "--type=merge", "--patch", &patch])
        .map(drop)
}

/// Runs a shell line in slurmctld's container of Controller `slurm`.
pub fn slurm(namespace: &Namespace, line: &str) -> Result<String> {
    namespace.inside("slurm-controller-0", "slurmctld", line)
}

/// The name of slurmrestd's pod.
pub fn slurmrestd_pod(namespace: &Namespace) -> Result<String> {
    let path = "jsonpath={.items[0].metadata.name}";
    namespace.ask(&["get", "pods", "-l", "app.kubernetes.io/name=slurmrestd", "-o", path])
}

/// Waits until exactly these many nodes are idle.
pub fn wait_idle(namespace: &Namespace, count: usize) -> Result<()> {
    eventually(&format!("{count} idle nodes"), SOON, || {
        // Not sinfo: it does not show nodes that are in no partition.
        let nodes = slurm(namespace, "scontrol show nodes --oneliner")?;
        let idle = nodes
            .lines()
            .filter(|node| node.contains(" State=IDLE+DYNAMIC_NORM "))
            .count();
        expect(idle == count && nodes.lines().count() == count, nodes)
    })
}

/// Submits a job and waits until it runs.
pub fn start_job(namespace: &Namespace, options: &str, line: &str) -> Result<String> {
    let submit = format!("sbatch --parsable --chdir=/tmp -o /dev/null {options} --wrap '{line}'");
    let job = slurm(namespace, &submit)?.trim().to_owned();
    wait_job(namespace, &job, "RUNNING")?;
    Ok(job)
}

/// Waits until a job has ended well, and sees that it was never begun anew.
pub fn wait_done(namespace: &Namespace, job: &str) -> Result<()> {
    wait_job(namespace, job, "COMPLETED")?;
    let shown = slurm(namespace, &format!("scontrol show job {job}"))?;
    expect(shown.contains("Restarts=0") && shown.contains("ExitCode=0:0"), shown)
}

/// Waits until what `scontrol show node` says of a node has all these words in it, and none of those.
pub fn wait_node(namespace: &Namespace, node: &str, words: &[&str], absent: &[&str]) -> Result<()> {
    eventually(&format!("node {node} with {words:?}, without {absent:?}"), SOON, || {
        let shown = slurm(namespace, &format!("scontrol show node {node} --oneliner"))?;
        let holds = words.iter().all(|word| shown.contains(word)) && !absent.iter().any(|word| shown.contains(word));
        expect(holds, shown)
    })
}

/// Waits until what has happened so far is on disk. Slurm writes its state every five seconds; what is younger than that is
/// lost by any kill.
pub fn wait_saved(namespace: &Namespace) -> Result<()> {
    // Something new, or there might be no further write to wait for.
    let submit = "date +%s.%N; scancel $(sbatch --parsable --hold --wrap true)";
    // A slurmctld that has just begun may not let everybody in yet.
    let now = eventually("a job is taken", SOON, || slurm(namespace, submit))?;
    let newer = format!(
        "find /var/spool/slurmctld -name job_state -newermt @{} | grep .",
        now.trim()
    );
    eventually("Slurm's state is on disk", SOON, || slurm(namespace, &newer)).map(drop)
}

/// Has the operator's pods of these nodes made anew, on nodes that take pods now.
pub fn move_operator(cluster: &Cluster, nodes: &str) -> Result<()> {
    let operator = ["--namespace", "slinky"];
    let moved = ["delete", "pods", &format!("--field-selector=spec.nodeName{nodes}")];
    cluster.ask(&[&operator[..], &moved].concat())?;
    let rollout = ["rollout", "status", "deployment/slurm-operator", "--timeout=120s"];
    cluster.ask(&[&operator[..], &rollout].concat()).map(drop)
}

/// Ends the operator as a crash would, and waits for the next one to be there.
pub fn kill_operator(cluster: &Cluster) -> Result<()> {
    kill_pods(cluster, "slinky", "app.kubernetes.io/name=slurm-operator")?;
    let rollout = ["rollout", "status", "deployment/slurm-operator", "--timeout=120s"];
    cluster
        .ask(&[&["--namespace", "slinky"][..], &rollout].concat())
        .map(drop)
}

/// Ends the operator, slurmrestd and slurmctld together, as crashes would. They come back by themselves.
pub fn kill_everyone(cluster: &Cluster, namespace: &Namespace) -> Result<()> {
    kill_pods(cluster, "slinky", "app.kubernetes.io/name=slurm-operator")?;
    kill_pods(cluster, &namespace.name, "app.kubernetes.io/name=slurmrestd")?;
    kill_container(cluster, namespace, "slurmctld")
}

/// Kills a container of Controller `slurm`'s pod. Right after another kill there may be nobody yet.
pub fn kill_container(cluster: &Cluster, namespace: &Namespace, container: &str) -> Result<()> {
    eventually(&format!("{container} is killed"), SOON, || {
        cluster.kill_container(namespace.pod("slurm-controller-0"), container)
    })
}

fn kill_pods(cluster: &Cluster, namespace: &str, selector: &str) -> Result<()> {
    let at_once = ["delete", "pods", "--force", "--grace-period=0"];
    let which = ["--namespace", namespace, "--selector", selector];
    cluster.ask(&[&at_once[..], &which].concat()).map(drop)
}

/// Where slurmctld keeps its state, to be said in a shell.
pub const STATE: &str = "$(sed -n s/^StateSaveLocation=//p /etc/slurm/slurm.conf)";

/// Keeps slurmctld from writing down what it knows of its nodes, or of its jobs: it writes a new file first, under the name of this
/// folder.
pub fn hold_state(namespace: &Namespace, of: &[&str]) -> Result<()> {
    wait_saved(namespace)?;
    let folders: Vec<String> = of.iter().map(|of| format!("{of}_state.new")).collect();
    // While it writes, there is a file of that name.
    eventually("slurmctld's state is held", SOON, || {
        slurm(namespace, &format!("cd {STATE} && mkdir -p {}", folders.join(" ")))
    })
    .map(drop)
}

pub fn release_state(namespace: &Namespace) -> Result<()> {
    eventually("slurmctld's container is there", SOON, || {
        slurm(namespace, &format!("cd {STATE} && rm -rf *_state.new"))
    })
    .map(drop)
}

/// Waits until a job is in a state; the whole record is shown when it is not.
pub fn wait_job(namespace: &Namespace, job: &str, state: &str) -> Result<()> {
    eventually(&format!("job {job} {state}"), SOON, || {
        let shown = slurm(namespace, &format!("scontrol show job {job}"))?;
        expect(shown.contains(&format!("JobState={state}")), shown)
    })
}
