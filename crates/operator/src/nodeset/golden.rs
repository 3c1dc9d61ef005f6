//! What upstream made of the same NodeSets on a real API server, field by field. Each difference is meant and stands in
//! [`MEANT`] with its reason; `docs/compat.md` has the same list.

use std::collections::BTreeMap;

use base64::Engine;
use serde_json::{Value, json};

use super::{
    fixture::{observed_of, unknown},
    plan::{Effect, plan},
};

/// Kind, field (`*` for anything in between), reason.
const MEANT: &[(&str, &str, &str)] = &[
    (
        "Pod",
        "/metadata/labels/slinky.slurm.net~component",
        "added: the older documents select workers by it",
    ),
    (
        "Pod",
        "/metadata/labels/nodeset.slinky.slurm.net~pod-protect",
        "from the beginning, not only after a job was seen",
    ),
    (
        "Pod",
        "/metadata/annotations/meta.helm.sh~*",
        "Helm's notes are about the NodeSet; they are not copied",
    ),
    (
        "Pod",
        "/metadata/annotations/topology.slinky.slurm.net~spec",
        "an empty topology is not written",
    ),
    (
        "Pod",
        "/metadata/name",
        "DaemonSet mode: the same name for the same node, so that none is made twice",
    ),
    (
        "Pod",
        "/metadata/labels/nodeset.slinky.slurm.net~pod-name",
        "follows the name",
    ),
    (
        "Pod",
        "/spec/containers/slurmd/args/4",
        "an empty Topology= swallows the setting after it, so it is left out",
    ),
    (
        "Pod",
        "/spec/containers/slurmd/livenessProbe*",
        "a slow slurmd is no reason to end its jobs",
    ),
    (
        "Pod",
        "/spec/initContainers/logfile/command/2",
        "our own script for the same thing",
    ),
    (
        "ControllerRevision",
        "/data*",
        "left out of the recording; its hash is the same",
    ),
    (
        "ControllerRevision",
        "/metadata/annotations*",
        "the NodeSet's annotations are not part of its history",
    ),
    (
        "ControllerRevision",
        "/metadata/labels/app.kubernetes.io~name",
        "added: by it revisions are found again",
    ),
    (
        "ControllerRevision",
        "/metadata/labels/app.kubernetes.io~instance",
        "added: by it revisions are found again",
    ),
    ("ConfigMap", "/metadata/annotations", "an empty object is not written"),
];

/// What the API server and the scheduler add.
const ADDED_BY_KUBERNETES: &[(&str, &str)] = &[
    ("Pod", "/spec/dnsPolicy"),
    ("Pod", "/spec/preemptionPolicy"),
    ("Pod", "/spec/priority"),
    ("Pod", "/spec/restartPolicy"),
    ("Pod", "/spec/schedulerName"),
    ("Pod", "/spec/securityContext"),
    ("Pod", "/spec/serviceAccount"),
    ("Pod", "/spec/serviceAccountName"),
    ("Pod", "/spec/terminationGracePeriodSeconds"),
    ("Pod", "/spec/tolerations/1/*"),
    ("Pod", "/spec/tolerations/2/*"),
    ("Pod", "/spec/*/imagePullPolicy"),
    ("Pod", "/spec/*/terminationMessagePath"),
    ("Pod", "/spec/*/terminationMessagePolicy"),
    ("Pod", "/spec/*/resources"),
    ("Pod", "/spec/*/resources/requests/*"),
    ("Pod", "/spec/*Probe/failureThreshold"),
    ("Pod", "/spec/*Probe/periodSeconds"),
    ("Pod", "/spec/*Probe/successThreshold"),
    ("Pod", "/spec/*Probe/timeoutSeconds"),
    ("Pod", "/spec/*Probe/httpGet/scheme"),
    ("Pod", "/spec/*/fieldRef/apiVersion"),
    ("Pod", "/spec/*/hostPort"),
    ("Service", "/spec/clusterIPs*"),
    ("Service", "/spec/internalTrafficPolicy"),
    ("Service", "/spec/ipFamilies*"),
    ("Service", "/spec/ipFamilyPolicy"),
    ("Service", "/spec/sessionAffinity"),
    ("Service", "/spec/type"),
    ("PersistentVolumeClaim", "/metadata/finalizers*"),
    ("PersistentVolumeClaim", "/spec/volumeMode"),
];

fn recorded(text: &str) -> Vec<Value> {
    let objects: Vec<Value> = serde_saphyr::from_multiple(text).unwrap();
    objects.into_iter().filter(|object| !object.is_null()).collect()
}

/// As they come from a cluster: with UIDs, keys in base64, and the Secrets that the recording left out.
fn inputs(recorded: &[Value]) -> Vec<Value> {
    let mut inputs: Vec<Value> = recorded
        .iter()
        .filter(|object| ["Controller", "NodeSet", "Secret"].contains(&object["kind"].as_str().unwrap()))
        .cloned()
        .collect();
    for object in &mut inputs {
        object["metadata"]["uid"] = json!("<uid>");
        object["metadata"]["creationTimestamp"] = json!("2026-01-01T00:00:00Z");
        if object["kind"] == "NodeSet" {
            object["metadata"]["uid"] = object["metadata"]["name"].clone();
            object.as_object_mut().unwrap().remove("status");
        }
        if let Some(data) = object.get_mut("data") {
            for (_, value) in data.as_object_mut().unwrap() {
                *value = json!(base64::engine::general_purpose::STANDARD.encode(value.as_str().unwrap()));
            }
        }
    }
    let namespace = inputs[0]["metadata"]["namespace"].clone();
    for node in ["kwok-3", "kwok-7"] {
        inputs.push(
            json!({ "apiVersion": "v1", "kind": "Node", "metadata": { "name": node, "labels": {
            "kubernetes.io/hostname": node, "kubernetes.io/os": "linux",
        } } }),
        );
    }
    if !inputs
        .iter()
        .any(|object| object["kind"] == "Secret" && object["metadata"]["name"] == "external-auth-slurm")
    {
        inputs.push(json!({ "apiVersion": "v1", "kind": "Secret",
            "metadata": { "namespace": namespace, "name": "external-auth-slurm" }, "data": { "slurm.key": "a2V5" } }));
    }
    inputs
}

/// Everything planned for these NodeSets.
fn made(inputs: &[Value]) -> Vec<Value> {
    let mut made: BTreeMap<(String, String), Value> = BTreeMap::new();
    for nodeset in inputs.iter().filter(|object| object["kind"] == "NodeSet") {
        let observed = observed_of(
            nodeset["metadata"]["name"].as_str().unwrap(),
            inputs.to_vec(),
            unknown(),
        );
        let plan = plan(&observed);
        assert_eq!(plan.refused, None);
        let revision = plan.revision.unwrap().create;
        let children = [plan.service, plan.budget, plan.ssh_config, revision]
            .into_iter()
            .flatten();
        let workers = plan.effects.into_iter().flat_map(|effect| match effect {
            Effect::CreatePod { pod, claims } => [vec![*pod], claims].concat(),
            _ => vec![],
        });
        for object in children.chain(workers) {
            let word = |field: &str| object["metadata"][field].as_str().unwrap_or_default().to_owned();
            made.insert((object["kind"].as_str().unwrap().to_owned(), word("name")), object);
        }
    }
    made.into_values().collect()
}

/// The field names of a list's items by which they are told apart.
const ITEM_NAMES: &[&str] = &["mountPath", "name", "uid"];

fn flatten(path: &str, value: &Value, fields: &mut BTreeMap<String, Value>) {
    match value {
        Value::Object(object) if !object.is_empty() => {
            for (field, value) in object {
                flatten(&format!("{path}/{}", field.replace('/', "~")), value, fields);
            }
        }
        Value::Array(items) if !items.is_empty() => {
            for (index, item) in items.iter().enumerate() {
                let name = ITEM_NAMES.iter().find_map(|field| item.get(field)?.as_str());
                let name = name.map_or_else(|| index.to_string(), |name| name.replace('/', "~"));
                flatten(&format!("{path}/{name}"), item, fields);
            }
        }
        value => {
            fields.insert(path.to_owned(), value.clone());
        }
    }
}

fn matches(pattern: &str, path: &str) -> bool {
    match pattern.split_once('*') {
        None => pattern == path,
        Some((head, "")) => path.starts_with(head),
        Some((head, tail)) => path.strip_prefix(head).is_some_and(|rest| {
            rest.match_indices(tail.split('*').next().unwrap_or_default())
                .any(|(at, _)| matches(tail, &rest[at..]))
        }),
    }
}

/// Where two objects differ, with both values.
fn differences(kind: &str, ours: &Value, theirs: &Value) -> Vec<String> {
    let (mut our_fields, mut their_fields) = (BTreeMap::new(), BTreeMap::new());
    flatten("", ours, &mut our_fields);
    flatten("", theirs, &mut their_fields);
    let paths: std::collections::BTreeSet<&String> = our_fields.keys().chain(their_fields.keys()).collect();
    paths
        .into_iter()
        .filter(|path| our_fields.get(*path) != their_fields.get(*path))
        .filter(|path| {
            our_fields.contains_key(*path)
                || !ADDED_BY_KUBERNETES
                    .iter()
                    .any(|(of, pattern)| *of == kind && matches(pattern, path))
        })
        .map(|path| {
            format!(
                "{path}: ours {:?}, upstream's {:?}",
                our_fields.get(path),
                their_fields.get(path)
            )
        })
        .collect()
}

/// The object of the recording that one of ours stands for.
fn counterpart<'a>(ours: &Value, theirs: &[&'a Value]) -> Option<&'a Value> {
    let same_name =
        |object: &&&Value| object["kind"] == ours["kind"] && object["metadata"]["name"] == ours["metadata"]["name"];
    // Upstream's daemon pods have random names; their nodes tell them apart.
    let same_host = |object: &&&Value| {
        ours["kind"] == "Pod"
            && object["kind"] == "Pod"
            && object["spec"]["hostname"] == ours["spec"]["hostname"]
            && object["metadata"]["generateName"] == ours["metadata"]["generateName"]
    };
    theirs
        .iter()
        .find(same_name)
        .or_else(|| theirs.iter().find(same_host))
        .copied()
}

fn compare(text: &str) {
    let recorded = recorded(text);
    let ours = made(&inputs(&recorded));
    let theirs: Vec<&Value> = recorded
        .iter()
        .filter(|object| !["Controller", "NodeSet", "Secret"].contains(&object["kind"].as_str().unwrap()))
        .collect();
    let mut unmeant = Vec::new();
    for object in &ours {
        let kind = object["kind"].as_str().unwrap();
        let name = object["metadata"]["name"].as_str().unwrap();
        let Some(other) = counterpart(object, &theirs) else {
            unmeant.push(format!("{kind} {name} is made by us alone"));
            continue;
        };
        let object = with_placeholder_uids(object.clone());
        for difference in differences(kind, &object, other) {
            let meant = MEANT
                .iter()
                .any(|(of, pattern, _)| *of == kind && matches(pattern, difference.split(": ours").next().unwrap()));
            if !meant {
                unmeant.push(format!("{kind} {name}{difference}"));
            }
        }
    }
    assert_eq!(ours.len(), theirs.len(), "every recorded object has one of ours");
    assert!(unmeant.is_empty(), "{}", unmeant.join("\n"));
}

/// The recording has no UIDs, so owners are told apart by name.
fn with_placeholder_uids(mut object: Value) -> Value {
    let owners = object
        .pointer_mut("/metadata/ownerReferences")
        .and_then(Value::as_array_mut);
    for owner in owners.into_iter().flatten() {
        owner["uid"] = json!("<uid>");
    }
    object
}

#[test]
fn children_of_the_full_cluster_are_upstreams() {
    compare(include_str!("../../tests/golden/nodeset-b-full.yaml"));
}

#[test]
fn children_of_the_highly_available_cluster_are_upstreams() {
    compare(include_str!("../../tests/golden/nodeset-c-ha.yaml"));
}

#[test]
fn children_of_the_hybrid_cluster_are_upstreams() {
    compare(include_str!("../../tests/golden/nodeset-d-hybrid.yaml"));
}

#[test]
fn children_of_the_clusters_nodes_are_upstreams() {
    compare(include_str!("../../tests/golden/nodeset-e-nodes.yaml"));
}

/// So that after a takeover no pod is out of date.
#[test]
fn revisions_have_upstreams_hashes() {
    for text in [
        include_str!("../../tests/golden/nodeset-b-full.yaml"),
        include_str!("../../tests/golden/nodeset-c-ha.yaml"),
        include_str!("../../tests/golden/nodeset-d-hybrid.yaml"),
        include_str!("../../tests/golden/nodeset-e-nodes.yaml"),
    ] {
        let recorded = recorded(text);
        let inputs = inputs(&recorded);
        for nodeset in recorded.iter().filter(|object| object["kind"] == "NodeSet") {
            let name = nodeset["metadata"]["name"].as_str().unwrap();
            let plan = plan(&observed_of(name, inputs.clone(), unknown()));
            assert_eq!(
                plan.revision.unwrap().hash,
                nodeset["status"]["nodeSetHash"].as_str().unwrap(),
                "{name}"
            );
        }
    }
}

#[test]
fn a_worker_looks_like_this() {
    let inputs = inputs(&recorded(include_str!("../../tests/golden/nodeset-e-nodes.yaml")));
    let made = made(&inputs);
    for name in ["pvc-000", "scratch-pvc-000", "slurm-workers-slurm", "pvc-ssh-config"] {
        let object = made.iter().find(|object| object["metadata"]["name"] == name).unwrap();
        insta::assert_yaml_snapshot!(name, object);
    }
}
