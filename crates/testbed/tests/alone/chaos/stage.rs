//! The cluster of a run: slurmctld with slurmdbd and MariaDB on node1, two NodeSets on the other nodes, and a Partition.

use std::sync::Mutex;

use anyhow::{Context, Result, bail};
use serde_json::{Value, json};
use testbed::cluster::Cluster;
use testbed::command;
use testbed::harness::{Namespace, expect};

use crate::common::clusters::{configuration_applied, install_chart, operator_namespace};
use crate::common::slurm::{slurm, wait_idle, wait_saved};

const MARIADB: &str = include_str!("../../../../../examples/accounting/mariadb.yaml");
const ON_NODE1: &str = "{kubernetes.io/hostname: node1}";

/// Jobs write to this claim what they do. It is a directory of the machine, so it outlives every pod and node.
const MARKS: &str = "
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: marks}
spec:
  accessModes: [ReadWriteMany]
  resources: {requests: {storage: 1Gi}}
";

const PARTITION: &str = "
apiVersion: slinky.slurm.net/v1alpha1
kind: Partition
metadata: {name: NAME}
spec:
  controllerRef: {name: slurm}
  nodeSetSelector: {}
  maxTime: 60
";

/// What people want at last.
#[derive(Clone, Debug)]
pub(super) struct Wanted {
    pub replicas: u32,
    pub resv_over_run: u32,
    pub minutes: u32,
}

#[derive(Debug)]
pub(super) struct Stage {
    pub namespace: Namespace,
    pub wanted: Mutex<Wanted>,
    extra_conf: String,
}

pub(super) fn partition(name: &str) -> String {
    PARTITION.replace("NAME", name)
}

pub(super) fn node_set(name: &str, replicas: u32) -> String {
    let nodes = json!({ "key": "kubernetes.io/hostname", "operator": "In", "values": ["node2", "node3"] });
    json!({
        "apiVersion": "slinky.slurm.net/v1beta1", "kind": "NodeSet", "metadata": { "name": name },
        "spec": {
            "controllerRef": { "name": "slurm" },
            "replicas": replicas,
            "oversubscribeNode": true,
            // Records of lost workers that are scaled in would stay.
            "pruneSlurmNodeRecords": "NodeNotFound",
            "slurmd": { "volumeMounts": [{ "name": "marks", "mountPath": "/marks" }] },
            "template": { "spec": {
                "terminationGracePeriodSeconds": 5,
                "affinity": { "nodeAffinity": { "requiredDuringSchedulingIgnoredDuringExecution": {
                    "nodeSelectorTerms": [{ "matchExpressions": [nodes] }],
                } } },
                "volumes": [{ "name": "marks", "persistentVolumeClaim": { "claimName": "marks" } }],
            } },
        },
    })
    .to_string()
}

impl Stage {
    pub(super) fn set(cluster: &'static Cluster) -> Self {
        let namespace = operator_namespace(cluster, "chaos");
        let secret = json!({
            "apiVersion": "v1", "kind": "Secret", "metadata": { "name": "mariadb-password" },
            "stringData": { "password": "password" },
        });
        namespace.apply(&secret.to_string()).unwrap();
        let spec = "    spec:\n      containers:";
        assert!(MARIADB.contains(spec));
        let pinned = spec.replace("containers", &format!("nodeSelector: {ON_NODE1}\n      containers"));
        namespace.apply(&MARIADB.replace(spec, &pinned)).unwrap();
        namespace.apply(MARKS).unwrap();
        let values = format!(
            "
accounting:
  enabled: true
  storageConfig: {{host: mariadb, passwordKeyRef: {{name: mariadb-password, key: password}}}}
  podSpec: {{nodeSelector: {ON_NODE1}}}
controller:
  podSpec: {{nodeSelector: {ON_NODE1}}}
  persistence: {{storageClassName: limited, resources: {{requests: {{storage: 128Mi}}}}}}
restapi:
  podSpec: {{nodeSelector: {ON_NODE1}}}
partitions:
  all: {{enabled: true}}
"
        );
        install_chart(&namespace, &values).unwrap();
        namespace
            .wait_new("jsonpath={.status.phase}=Bound", "pvc/marks")
            .unwrap();
        for set in ["compute", "batch"] {
            namespace.apply(&node_set(set, 2)).unwrap();
        }
        namespace.apply(&partition("side")).unwrap();
        let extra_conf = namespace.field("controller/slurm", ".spec.extraConf").unwrap();
        let stage = Self {
            namespace,
            wanted: Mutex::new(Wanted {
                replicas: 2,
                resv_over_run: 0,
                minutes: 60,
            }),
            extra_conf,
        };
        // Jobs run as user slurm.
        stage.on_marks("chmod 777 .").unwrap();
        wait_idle(&stage.namespace, 4).unwrap();
        for object in ["accounting/slurm", "controller/slurm"] {
            stage.namespace.wait("condition=Ready", object).unwrap();
        }
        // slurmctld must not forget its workers.
        wait_saved(&stage.namespace).unwrap();
        stage
    }

    /// Runs a shell command in the directory of the jobs' marks.
    pub(super) fn on_marks(&self, line: &str) -> Result<String> {
        let cluster = self.namespace.cluster;
        let volume = self.namespace.field("pvc/marks", ".spec.volumeName")?;
        let folder = cluster.layout.volumes().join(volume);
        let line = format!("cd {} && {line}", folder.display());
        command::output(cluster.machine()?.command("sh").args(["-c", &line]))
    }

    /// Runs a command of a person or a user. It fails when slurmctld does not respond.
    pub(super) fn ask(&self, line: &str) -> Result<String> {
        slurm(&self.namespace, &format!("timeout --kill-after=1 15 {line}"))
    }

    /// The Controller's extraConf, with a line.
    pub(super) fn extra_conf(&self, line: &str) -> String {
        let over_run = self.wanted.lock().unwrap().resv_over_run;
        format!("{}\nResvOverRun={over_run}\n{line}\n", self.extra_conf)
    }

    pub(super) fn nodes(&self) -> Vec<String> {
        let compute = (0..self.wanted.lock().unwrap().replicas).map(|number| format!("compute-{number}"));
        let mut nodes: Vec<String> = ["batch-0", "batch-1"].into_iter().map(str::to_owned).collect();
        nodes.extend(compute);
        nodes
    }

    /// Expects that everything is as people want it: Slurm's nodes, the configuration, conditions and pods.
    pub(super) fn expect_settled(&self) -> Result<()> {
        let shown = self.ask("scontrol --oneliner show nodes")?;
        let idle = |node: &String| {
            let name = format!("NodeName={node} ");
            shown
                .lines()
                .any(|line| line.starts_with(&name) && line.contains(" State=IDLE+DYNAMIC_NORM "))
        };
        let nodes = self.nodes();
        expect(shown.lines().count() == nodes.len() && nodes.iter().all(idle), &shown)?;
        let wanted = self.wanted.lock().unwrap().clone();
        let config = self.ask("scontrol show config")?;
        let over_run = config.lines().find(|line| line.starts_with("ResvOverRun "));
        let expected = format!("= {} min", wanted.resv_over_run);
        expect(
            over_run.is_some_and(|line| line.ends_with(&expected)),
            (over_run, &expected),
        )?;
        let partitions = self.ask("scontrol --oneliner show partitions")?;
        let side = partitions
            .lines()
            .find(|line| line.starts_with("PartitionName=side "))
            .context("no partition side")?;
        let limit = format!(" MaxTime={:02}:{:02}:00 ", wanted.minutes / 60, wanted.minutes % 60);
        expect(side.contains(&limit) && side.contains(" State=UP "), side)?;
        expect(partitions.lines().count() == 2, &partitions)?;
        self.expect_objects(nodes.len())
    }

    /// Conditions of all objects, and pods, for the log.
    pub(super) fn conditions(&self) -> String {
        let path = "{range .items[*]}{.kind} {.metadata.name} {range .status.conditions[*]}{.type}={.status} {.message}; {end}{'\\n'}{end}";
        let kinds = "controllers,accountings,restapis,nodesets,partitions.slinky.slurm.net,pods";
        let shown = self.namespace.ask(&["get", kinds, "-o", &format!("jsonpath={path}")]);
        shown.unwrap_or_else(|error| format!("{error:#}"))
    }

    fn expect_objects(&self, workers: usize) -> Result<()> {
        let kinds = "controllers,accountings,restapis,nodesets,partitions.slinky.slurm.net";
        let objects: Value = serde_json::from_str(&self.namespace.ask(&["get", kinds, "-o", "json"])?)?;
        let items = objects["items"].as_array().context("no items")?;
        for object in items {
            let (kind, name) = (&object["kind"], &object["metadata"]["name"]);
            let conditions = object["status"]["conditions"].as_array().context("no conditions")?;
            let ready = conditions.iter().find(|condition| condition["type"] == "Ready");
            if ready.is_none_or(|ready| ready["status"] != "True") {
                bail!("{kind} {name} is not ready: {ready:?}");
            }
            let observed = ready.map(|ready| &ready["observedGeneration"]);
            if observed != Some(&object["metadata"]["generation"]) {
                bail!("{kind} {name} has a status of an older generation: {ready:?}");
            }
        }
        expect(items.len() == 6, items.len())?;
        let applied = configuration_applied(&self.namespace, "status")?;
        expect(applied == "True", applied)?;
        let pods: Value = serde_json::from_str(&self.namespace.ask(&["get", "pods", "-o", "json"])?)?;
        let pods = pods["items"].as_array().context("no items")?;
        for pod in pods {
            let conditions = pod["status"]["conditions"].as_array().context("no conditions")?;
            let is_ready = |condition: &Value| condition["type"] == "Ready" && condition["status"] == "True";
            let leaves = !pod["metadata"]["deletionTimestamp"].is_null();
            if leaves || !conditions.iter().any(is_ready) {
                bail!("pod {} is not ready, or is leaving", pod["metadata"]["name"]);
            }
        }
        // slurmctld, slurmrestd, slurmdbd, MariaDB and the workers.
        expect(pods.len() == 4 + workers, pods.len())
    }
}
