//! Charts and operator beside upstream's: the same values, then every object of theirs and ours, field by field.
//!
//! On a control plane without nodes, as no pod has to run for that, with the operator as a process beside it.

use std::collections::BTreeSet;
use std::process::{Child, Command, Stdio};

use base64::Engine;
use serde_json::{Value, json};
use testbed::cluster::{Cluster, Size};
use testbed::command::{output, output_with_input};
use testbed::harness::{eventually, expect};
use testbed::paths::{self, Layout};

use crate::common::operator::{SOON, helm};
use crate::recorded::{MEANT, Objects, Recording, flatten_all, judge, recordings};

/// Every kind that is recorded.
const KINDS: &str = "controllers,restapis,nodesets,loginsets,accountings,tokens,statefulsets,deployments,services,configmaps,secrets,\
     poddisruptionbudgets,controllerrevisions,pods,persistentvolumeclaims";

/// The release that was recorded.
const UPSTREAM: &str = "1.3.0-rc1";

#[test]
fn charts_and_operator_make_what_upstream_made_but_for_what_is_meant() {
    let place = Place::create();
    let recordings = recordings();
    for recording in &recordings {
        place.install(recording);
    }
    let theirs: Vec<Objects> = recordings
        .iter()
        .map(|recording| flatten_all(comparable(recording.objects.clone())))
        .collect();
    eventually("the same objects", SOON, || {
        let mut surprises = Vec::new();
        let mut unused: BTreeSet<usize> = (0..MEANT.len()).collect();
        for (recording, theirs) in recordings.iter().zip(&theirs) {
            let ours = flatten_all(comparable(place.objects(recording.namespace())?));
            let (unlisted, used) = judge(MEANT, theirs, &ours);
            surprises.extend(
                unlisted
                    .into_iter()
                    .map(|difference| format!("{}: {difference}", recording.cluster)),
            );
            unused.retain(|entry| !used.contains(entry));
        }
        let unused: Vec<_> = unused.iter().map(|entry| MEANT[*entry]).collect();
        expect(
            surprises.is_empty() && unused.is_empty(),
            format!("not meant: {surprises:#?}\nmeant, but not seen: {unused:#?}"),
        )
    })
    .unwrap_or_else(|error| panic!("{}", format!("{error:#}").replace("\\n", "\n").replace("\\\"", "\"")));
}

/// A control plane and the operator.
struct Place {
    cluster: Cluster,
    operator: Child,
    chart: tempfile::TempDir,
}

impl Place {
    fn create() -> Self {
        let name = format!("{}-golden", Layout::test_cluster());
        // The rest of a run that was killed.
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
        for node in ["kwok-3", "kwok-7"] {
            let labels = json!({ "kubernetes.io/hostname": node, "kubernetes.io/os": "linux" });
            create(
                &cluster,
                &json!({ "apiVersion": "v1", "kind": "Node", "metadata": { "name": node, "labels": labels } }),
            );
        }
        let operator = Command::new(testbed::sibling("slurm-operator").unwrap())
            .args([
                "run",
                "--leader-elect=false",
                "--metrics-address=0",
                "--health-address=0",
            ])
            .env("KUBECONFIG", cluster.layout.kubeconfig())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        // Under the version of upstream's: it is a label of every pod, so that revisions would have other hashes.
        let chart = tempfile::tempdir().unwrap();
        let slurm = paths::repository().join("charts/slurm");
        output(
            helm(&cluster)
                .args(["package", "--version", UPSTREAM, "--destination"])
                .arg(chart.path())
                .arg(slurm),
        )
        .unwrap();
        Self {
            cluster,
            operator,
            chart,
        }
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
        install
            .arg(self.chart.path().join(format!("slurm-{UPSTREAM}.tgz")))
            .args(["--values", "-"]);
        output_with_input(&mut install, &recording.values).unwrap();
        for mut object in recording.made_by_hand() {
            if object["kind"] == "Secret" {
                object["stringData"] = object["data"].take();
            }
            create(&self.cluster, &object);
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
        let _ = self.operator.kill();
        let _ = self.operator.wait();
        if std::env::var_os("TESTBED_KEEP").is_none() {
            Cluster::down(&self.cluster.layout.cluster).unwrap();
        }
    }
}

fn create(cluster: &Cluster, object: &Value) {
    output_with_input(&mut cluster.kubectl(&["create", "-f", "-"]), &object.to_string()).unwrap();
}

/// Without what Kubernetes and Helm make for themselves, and without what is new in each run.
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
        // A StatefulSet's revisions are Kubernetes' own, and so are its pods.
        || owner == "StatefulSet"
        || owner == "ReplicaSet"
}

fn without_chance(mut object: Value) -> Value {
    remove(&mut object, "", &["status"]);
    let of_this_life = [
        "uid",
        "resourceVersion",
        "creationTimestamp",
        "generation",
        "managedFields",
    ];
    remove(&mut object, "/metadata", &of_this_life);
    if object["spec"]["clusterIP"] != "None" {
        remove(&mut object, "/spec", &["clusterIP", "clusterIPs"]);
    }
    match object["kind"].as_str() {
        Some("ControllerRevision") => object["data"] = json!("left out of the recording; its hash is in its name"),
        Some("Secret") => for_each(&mut object, "/data", readable),
        Some("PersistentVolumeClaim") => {
            // By which storage the cluster has.
            remove(&mut object, "/metadata", &["annotations"]);
            remove(&mut object, "/spec", &["storageClassName", "volumeName"]);
        }
        _ => {}
    }
    for annotations in ["/metadata/annotations", "/spec/template/metadata/annotations"] {
        for_each(&mut object, annotations, |name, value| {
            if name.ends_with("-key-hash") { "of a key" } else { value }.to_owned()
        });
    }
    // The recording keeps the place of what was taken out of it.
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

/// Changes the words of a map.
fn for_each(object: &mut Value, map: &str, change: impl Fn(&str, &str) -> String) {
    let words = object.pointer_mut(map).and_then(Value::as_object_mut);
    for (name, value) in words.into_iter().flatten() {
        *value = change(name, value.as_str().unwrap()).into();
    }
}

/// As the recording has a Secret: as text, and of keys only how long they are.
fn readable(name: &str, value: &str) -> String {
    match base64::engine::general_purpose::STANDARD.decode(value) {
        Ok(bytes) if name.ends_with(".key") => format!("<{} bytes>", bytes.len()),
        Ok(bytes) => String::from_utf8(bytes).unwrap(),
        Err(_) => value.to_owned(),
    }
}
