//! Charts and operator compared with upstream's: the same values, then every object field by field.
//!
//! They run on a control plane without nodes, because no pod has to run, with the operator as a process.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;
use std::time::Duration;

use anyhow::anyhow;
use base64::Engine;
use serde_json::{Value, json};
use testbed::cluster::{Cluster, Size};
use testbed::command::{output, output_with_input};
use testbed::harness::eventually;
use testbed::paths::{self, Layout};

use crate::common::operator::helm;
use crate::common::slurm::SOON;
use crate::recorded::{MEANT, Objects, Recording, flatten_all, judge, recordings};

/// Every kind that is recorded.
const KINDS: &str = "controllers,restapis,nodesets,loginsets,accountings,tokens,statefulsets,deployments,services,configmaps,secrets,\
     poddisruptionbudgets,controllerrevisions,pods,persistentvolumeclaims";

/// An operator that has logged nothing for this long is idle.
const AT_REST: Duration = Duration::from_secs(10);

/// The recorded nodes. They have no kubelet.
const NODES: [&str; 2] = ["kwok-3", "kwok-7"];

/// The release that was recorded.
const UPSTREAM: &str = "1.3.0-rc1";

/// Metadata that differ between two objects with the same content.
const OF_THIS_LIFE: [&str; 5] = [
    "uid",
    "resourceVersion",
    "creationTimestamp",
    "generation",
    "managedFields",
];

#[test]
fn charts_and_operator_create_upstreams_objects_except_for_listed_differences() {
    let place = Place::create("golden");
    let recordings = recordings();
    for recording in &recordings {
        place.install(recording);
    }
    let _operator = place.start_operator();
    place.wait_for_what_upstream_made(&recordings);
}

/// The operator logs each action before it takes it, so a kill at the n-th log line happens between two writes or
/// during one, and every start gets one line further.
#[test]
fn an_operator_killed_at_any_moment_of_an_install_reaches_the_same_state() {
    let place = Place::create("killed");
    let recordings = recordings();
    for recording in &recordings {
        place.install(recording);
    }
    // A cluster whose keys the operator generates.
    create(
        &place.cluster,
        &json!({ "apiVersion": "v1", "kind": "Namespace", "metadata": { "name": "plain" } }),
    );
    let metadata = json!({ "name": "slurm", "namespace": "plain" });
    create(
        &place.cluster,
        &json!({ "apiVersion": "slinky.slurm.net/v1beta1", "kind": "Controller", "metadata": metadata, "spec": {} }),
    );

    let mut kills = 0;
    let mut keys = BTreeMap::new();
    while place.start_operator().dies_after(kills + 1) {
        kills += 1;
        place.beat_for_nodes().unwrap();
        place.check_keys(&mut keys);
    }
    assert!(kills > 5, "killed {kills} times only");
    let _operator = place.start_operator();
    place.wait_for_what_upstream_made(&recordings);
    place.check_keys(&mut keys);
    assert_eq!(keys.len(), 2);
}

/// What the chart of upstream makes is written as a chart of the same name, from the recordings. Helm applies on the server,
/// or as Helm 3 did.
#[test]
fn helm_upgrade_alone_leads_from_upstreams_chart_to_ours_and_back() {
    let place = Place::create("back");
    for (mode, recording) in ["true", "false"]
        .iter()
        .flat_map(|mode| recordings().into_iter().map(move |recording| (mode, recording)))
    {
        let namespace = format!("{}-{mode}", recording.cluster);
        place.cluster.ask(&["create", "namespace", &namespace]).unwrap();
        let theirs = write_upstreams_chart(&recording);
        let release = |verb: &str, chart: &Path, values: &str| {
            let mut command = helm(&place.cluster);
            command.args([verb, "slurm", "--namespace", &namespace, "--values", "-"]);
            command.arg(format!("--server-side={mode}")).arg(chart);
            output_with_input(&mut command, values).unwrap_or_else(|error| panic!("{namespace}: {error:#}"));
        };
        let objects = || -> Objects {
            let mut objects = place.objects(&namespace).unwrap();
            objects.retain(|object| !is_of_others(object));
            for object in &mut objects {
                remove(object, "/metadata", &OF_THIS_LIFE);
            }
            flatten_all(objects)
        };
        release("install", theirs.path(), "");
        let before = objects();
        release("upgrade", &place.packed(), &recording.values);
        let between = objects();
        release("upgrade", theirs.path(), "");
        assert_eq!(before, objects(), "{namespace}: the way back leaves something");
        assert!(
            !before.is_empty() && before != between,
            "{namespace}: our chart changed nothing"
        );
    }
}

fn write_upstreams_chart(recording: &Recording) -> tempfile::TempDir {
    let chart = tempfile::tempdir().unwrap();
    let write = |file: &str, text: &str| std::fs::write(chart.path().join(file), text).unwrap();
    write(
        "Chart.yaml",
        &format!("{{apiVersion: v2, name: slurm, version: {UPSTREAM}}}"),
    );
    write("objects.json", &json!(recording.made_by_helm()).to_string());
    std::fs::create_dir(chart.path().join("templates")).unwrap();
    let each = "{{ range .Files.Get \"objects.json\" | fromJsonArray }}\n---\n{{ toJson . }}\n{{ end }}";
    write("templates/objects.yaml", each);
    chart
}

/// A control plane, and the chart to install.
struct Place {
    cluster: Cluster,
    chart: tempfile::TempDir,
}

impl Place {
    fn create(name: &str) -> Self {
        let name = format!("{}-{name}", Layout::test_cluster());
        // Remains of a killed run.
        Cluster::down(&name).unwrap();
        let cluster = Cluster::up(
            &name,
            Size {
                nodes: 0,
                fake_nodes: 0,
            },
        )
        .unwrap();
        let chart = paths::repository().join("charts/slurm-operator-crds");
        output(helm(&cluster).args(["install", "crds"]).arg(chart)).unwrap();
        // With upstream's version, which is a label of every pod: another version would change the hashes of revisions.
        let chart = tempfile::tempdir().unwrap();
        let slurm = paths::repository().join("charts/slurm");
        output(
            helm(&cluster)
                .args(["package", "--version", UPSTREAM, "--destination"])
                .arg(chart.path())
                .arg(slurm),
        )
        .unwrap();
        let place = Self { cluster, chart };
        place.create_nodes();
        place
    }

    fn packed(&self) -> PathBuf {
        self.chart.path().join(format!("slurm-{UPSTREAM}.tgz"))
    }

    fn create_nodes(&self) {
        for node in NODES {
            let labels = json!({ "kubernetes.io/hostname": node, "kubernetes.io/os": "linux" });
            let metadata = json!({ "name": node, "labels": labels });
            create(
                &self.cluster,
                &json!({ "apiVersion": "v1", "kind": "Node", "metadata": metadata }),
            );
        }
    }

    /// A node without a new heartbeat is dead after a minute, and no worker is created there.
    fn beat_for_nodes(&self) -> anyhow::Result<()> {
        let now = output(Command::new("date").args(["--utc", "+%FT%TZ"]))?;
        let ready = json!({ "type": "Ready", "status": "True", "lastHeartbeatTime": now.trim() });
        let status = json!({ "status": { "conditions": [ready] } }).to_string();
        for node in NODES {
            let patch = [
                "patch",
                "node",
                node,
                "--subresource=status",
                "--type=merge",
                "-p",
                &status,
            ];
            self.cluster.ask(&patch)?;
        }
        Ok(())
    }

    fn start_operator(&self) -> Operator {
        let process = Command::new(testbed::sibling("slurm-operator").unwrap())
            .args([
                "run",
                "--leader-elect=false",
                "--metrics-address=0",
                "--health-address=0",
            ])
            .env("KUBECONFIG", self.cluster.layout.kubeconfig())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        Operator { process }
    }

    fn wait_for_what_upstream_made(&self, recordings: &[Recording]) {
        let theirs: Vec<Objects> = recordings
            .iter()
            .map(|recording| flatten_all(comparable(recording.objects.clone())))
            .collect();
        eventually("the same objects", SOON, || {
            self.beat_for_nodes()?;
            let mut surprises = Vec::new();
            let mut unused: BTreeSet<usize> = (0..MEANT.len()).collect();
            for (recording, theirs) in recordings.iter().zip(&theirs) {
                let ours = flatten_all(comparable(self.objects(recording.namespace())?));
                let (unlisted, used) = judge(MEANT, theirs, &ours);
                surprises.extend(
                    unlisted
                        .into_iter()
                        .map(|difference| format!("{}: {difference}", recording.cluster)),
                );
                unused.retain(|entry| !used.contains(entry));
            }
            let unused: Vec<_> = unused.iter().map(|entry| MEANT[*entry]).collect();
            if surprises.is_empty() && unused.is_empty() {
                return Ok(());
            }
            Err(anyhow!("not meant: {surprises:#?}\nmeant, but not seen: {unused:#?}"))
        })
        .unwrap_or_else(|error| panic!("{error:#}"));
    }

    fn install(&self, recording: &Recording) {
        let namespace = recording.namespace();
        self.cluster.ask(&["create", "namespace", namespace]).unwrap();
        self.cluster
            .ask(&[
                "wait",
                "--for=create",
                "serviceaccount/default",
                "--namespace",
                namespace,
                "--timeout=30s",
            ])
            .unwrap();
        let mut install = helm(&self.cluster);
        install.args(["install", "--namespace", namespace, "slurm"]);
        install.arg(self.packed()).args(["--values", "-"]);
        // Upstream's: others would change the hashes of revisions.
        for container in [
            "controller.logfile",
            "nodesetDefaults.logfile",
            "loginsetDefaults.initconf",
        ] {
            install.args(["--set", &format!("{container}.image=docker.io/library/alpine:latest")]);
        }
        output_with_input(&mut install, &recording.values).unwrap();
        for mut object in recording.made_by_hand() {
            if object["kind"] == "Secret" {
                object["stringData"] = object["data"].take();
            }
            create(&self.cluster, &object);
        }
    }

    /// No key in namespace `plain` has changed since it was first seen.
    fn check_keys(&self, seen: &mut BTreeMap<String, Value>) {
        for object in self.objects("plain").unwrap() {
            if object["kind"] == "Secret" {
                let name = object["metadata"]["name"].to_string();
                let first = seen.entry(name).or_insert_with(|| object["data"].clone());
                assert_eq!(*first, object["data"], "a key was made twice");
            }
        }
    }

    fn objects(&self, namespace: &str) -> anyhow::Result<Vec<Value>> {
        let list: Value =
            serde_json::from_str(
                &self
                    .cluster
                    .ask(&["get", KINDS, "--namespace", namespace, "-o", "json"])?,
            )?;
        Ok(list["items"].as_array().cloned().unwrap_or_default())
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        if std::env::var_os("TESTBED_KEEP").is_none() {
            Cluster::down(&self.cluster.layout.cluster).unwrap();
        }
    }
}

/// The operator as a process.
struct Operator {
    process: Child,
}

impl Operator {
    /// Kills the operator at its n-th action. Returns false if there is none for a while.
    fn dies_after(mut self, words: usize) -> bool {
        let lines = BufReader::new(self.process.stdout.take().unwrap()).lines();
        let (said, heard) = mpsc::channel();
        let reader = std::thread::spawn(move || {
            let is_act = |line: &String| {
                ["creating", "changed", "patching", "deleting"]
                    .iter()
                    .any(|word| line.contains(&format!("\"message\":\"{word}\"")))
            };
            for line in lines.map_while(Result::ok).filter(is_act) {
                let _ = said.send(line);
            }
        });
        let died = (0..words).all(|_| heard.recv_timeout(AT_REST).is_ok());
        drop(self);
        reader.join().unwrap();
        died
    }
}

impl Drop for Operator {
    fn drop(&mut self) {
        // SIGKILL, as when a node dies.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

fn create(cluster: &Cluster, object: &Value) {
    output_with_input(&mut cluster.kubectl(&["create", "-f", "-"]), &object.to_string()).unwrap();
}

/// Without the objects of Kubernetes and Helm, and without values that change in each run.
fn comparable(objects: Vec<Value>) -> Vec<Value> {
    objects
        .into_iter()
        .filter(|object| !is_of_others(object))
        .map(without_chance)
        .collect()
}

fn is_of_others(object: &Value) -> bool {
    let owner = &object["metadata"]["ownerReferences"][0]["kind"];
    object["metadata"]["name"] == "kube-root-ca.crt"
        || object["type"] == "helm.sh/release.v1"
        // The revisions and pods of a StatefulSet belong to Kubernetes.
        || owner == "StatefulSet"
        || owner == "ReplicaSet"
}

fn without_chance(mut object: Value) -> Value {
    remove(&mut object, "", &["status"]);
    remove(&mut object, "/metadata", &OF_THIS_LIFE);
    if object["spec"]["clusterIP"] != "None" {
        remove(&mut object, "/spec", &["clusterIP", "clusterIPs"]);
    }
    match object["kind"].as_str() {
        Some("ControllerRevision") => object["data"] = json!("left out of the recording; its hash is in its name"),
        Some("Secret") => for_each(&mut object, "/data", readable),
        Some("Service") => {
            let ports = object.pointer_mut("/spec/ports").and_then(Value::as_array_mut);
            for port in ports.into_iter().flatten() {
                remove(port, "", &["nodePort"]);
            }
        }
        Some("PersistentVolumeClaim") => {
            // They depend on the storage of the cluster.
            remove(&mut object, "/metadata", &["annotations"]);
            remove(&mut object, "/spec", &["storageClassName", "volumeName"]);
        }
        _ => {}
    }
    for annotations in ["/metadata/annotations", "/spec/template/metadata/annotations"] {
        for_each(&mut object, annotations, |name, value| {
            if name.ends_with("-key-hash") || name.ends_with("-keys-hash") {
                "of a key"
            } else {
                value
            }
            .to_owned()
        });
    }
    // The recording has placeholders for removed values.
    if object.pointer("/metadata/annotations") == Some(&json!({})) {
        remove(&mut object, "/metadata", &["annotations"]);
    }
    let owners = object
        .pointer_mut("/metadata/ownerReferences")
        .and_then(Value::as_array_mut);
    for owner in owners.into_iter().flatten() {
        owner["uid"] = json!("its owner's");
    }
    object
}

fn remove(object: &mut Value, parent: &str, fields: &[&str]) {
    if let Some(parent) = object.pointer_mut(parent).and_then(Value::as_object_mut) {
        parent.retain(|field, _| !fields.contains(&field.as_str()));
    }
}

/// Changes the values of a map.
fn for_each(object: &mut Value, map: &str, change: impl Fn(&str, &str) -> String) {
    let words = object.pointer_mut(map).and_then(Value::as_object_mut);
    for (name, value) in words.into_iter().flatten() {
        *value = change(name, value.as_str().unwrap()).into();
    }
}

/// A Secret as in the recording: as text, with the lengths of keys only.
fn readable(name: &str, value: &str) -> String {
    match base64::engine::general_purpose::STANDARD.decode(value) {
        _ if name.starts_with("ssh_host_") => "of no two lengths".to_owned(),
        Ok(bytes) if name.contains(".key") => format!("<{} bytes>", bytes.len()),
        Ok(bytes) => String::from_utf8(bytes).unwrap(),
        Err(_) => value.to_owned(),
    }
}
