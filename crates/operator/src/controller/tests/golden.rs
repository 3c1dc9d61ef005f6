//! Our children beside upstream's, field by field, for the clusters in `tests/golden/`.
//!
//! Every difference is meant and on [`MEANT`] with its reason; `docs/compat.md` has the same list. A difference that is not
//! on it fails the test, and so does an entry that nothing matches.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Value, json};

use super::{Caches, Images, Report, observe, plan};

/// What differs on purpose: kind (and name), path (a `*` ends a step of any sort) and why.
const MEANT: &[(&str, &str, &str)] = &[
    (
        "StatefulSet",
        "metadata annotations slinky.slurm.net/restart-reasons",
        "why slurmctld was last restarted: an upgrade of the operator is no reason",
    ),
    (
        "StatefulSet",
        "metadata annotations slinky.slurm.net/template-version",
        "which release's idea of the pod it is, for the same",
    ),
    (
        "StatefulSet",
        "spec template metadata annotations slinky.slurm.net/slurm-config-hash",
        "a change of the configuration is taken over in place and recreates no pod",
    ),
    (
        "StatefulSet",
        "spec template metadata annotations meta.helm.sh/*",
        "Helm's own notes: adopting an object restarts nothing",
    ),
    (
        "Deployment",
        "spec template metadata annotations meta.helm.sh/*",
        "Helm's own notes: adopting an object restarts nothing",
    ),
    (
        "StatefulSet",
        "spec template spec containers slurmctld command",
        "slurmctld runs under slurm-agent: a bad configuration or a crash ends no container",
    ),
    (
        "StatefulSet",
        "spec template spec containers slurmctld env",
        "the socket the agent's two halves talk by",
    ),
    (
        "StatefulSet",
        "spec template spec containers slurmctld volumeMounts /etc/slurm name",
        "the agent writes /etc/slurm: all files change at once, in milliseconds",
    ),
    (
        "StatefulSet",
        "spec template spec containers slurmctld volumeMounts /etc/slurm-keys",
        "/etc/slurm links to the keys there",
    ),
    (
        "StatefulSet",
        "spec template spec containers slurmctld volumeMounts /opt/slurm-agent",
        "the agent, so that it runs in any image",
    ),
    (
        "StatefulSet",
        "spec template spec initContainers install-agent",
        "puts the agent into the pod",
    ),
    (
        "StatefulSet",
        "spec template spec initContainers prepare",
        "fills /etc/slurm before anything starts",
    ),
    (
        "StatefulSet",
        "spec template spec initContainers reconfigure",
        "always there: it is the agent that takes changes over in place",
    ),
    (
        "StatefulSet",
        "spec template spec initContainers reconfigure *",
        "the agent instead of a script that polls, with slurmctld's environment and mounts",
    ),
    (
        "StatefulSet",
        "spec template spec initContainers reconfigure command *",
        "the agent instead of a script that polls",
    ),
    (
        "StatefulSet",
        "spec template spec initContainers reconfigure volumeMounts *",
        "the agent instead of a script that polls, with slurmctld's environment and mounts",
    ),
    (
        "StatefulSet",
        "spec template spec initContainers reconfigure volumeMounts * *",
        "the agent writes /etc/slurm",
    ),
    (
        "StatefulSet",
        "spec template spec initContainers logfile command 2",
        "our own script: it holds the pipe open, where upstream's loses a second at every restart of slurmctld",
    ),
    (
        "StatefulSet",
        "spec template spec initContainers logfile lifecycle",
        "slurmctld starts when the pipe is there; before, it would make a file of it and fill the memory",
    ),
    (
        "StatefulSet",
        "spec template spec volumes slurm-conf",
        "what the agent makes /etc/slurm of",
    ),
    (
        "StatefulSet",
        "spec template spec volumes slurm-keys",
        "the keys alone, for /etc/slurm to link to",
    ),
    (
        "StatefulSet",
        "spec template spec volumes slurm-bundle",
        "the last accepted configuration, for a pod without state",
    ),
    (
        "StatefulSet",
        "spec template spec volumes slurm-agent",
        "where the agent is put",
    ),
    (
        "StatefulSet",
        "spec template spec volumes slurm-etc projected sources *",
        "users' ConfigMaps are not mounted: their files are part of the revision that is checked and pushed as one",
    ),
    (
        "ConfigMap",
        "data slurm.conf",
        "an external Accounting's externalConfig is honoured; upstream names a Service that nobody makes",
    ),
    ("ConfigMap slurm-bundle", "", "the last accepted revision of all files"),
];

#[test]
fn children_equal_upstreams_but_for_what_is_meant() {
    let mut used = BTreeSet::new();
    let mut surprises = Vec::new();
    for (cluster, text) in [
        ("a-default", include_str!("../../../tests/golden/a-default.yaml")),
        ("b-full", include_str!("../../../tests/golden/b-full.yaml")),
        ("c-ha", include_str!("../../../tests/golden/c-ha.yaml")),
        ("d-hybrid", include_str!("../../../tests/golden/d-hybrid.yaml")),
        ("e-nodes", include_str!("../../../tests/golden/e-nodes.yaml")),
    ] {
        let (inputs, theirs) = split(text);
        let ours = children(inputs);
        for (name, path) in differences(&theirs, &ours) {
            let (kind, _) = name.split_once(' ').unwrap();
            let meant = MEANT
                .iter()
                .position(|(of, pattern, _)| (*of == kind || *of == name) && matches(pattern, &path));
            match meant {
                Some(index) => {
                    used.insert(index);
                }
                None => surprises.push(format!(
                    "{cluster}: {name} {path}: {:?} {:?}",
                    at(&theirs, &name, &path),
                    at(&ours, &name, &path)
                )),
            }
        }
    }
    assert_eq!(surprises, Vec::<String>::new());
    let unused: Vec<_> = (0..MEANT.len())
        .filter(|index| !used.contains(index))
        .map(|index| MEANT[index])
        .collect();
    assert_eq!(unused, []);
}

/// By kind and name, then by path.
type Children = BTreeMap<String, BTreeMap<String, Value>>;

/// What the children are made from, and upstream's children.
fn split(text: &str) -> (Vec<Value>, Children) {
    let objects: Vec<Value> = serde_saphyr::from_multiple(text).unwrap();
    let (theirs, inputs): (Vec<Value>, Vec<Value>) = objects
        .into_iter()
        .partition(|object| object["metadata"].get("ownerReferences").is_some());
    (inputs, flatten_all(theirs))
}

fn children(mut inputs: Vec<Value>) -> Children {
    let namespace = inputs[0]["metadata"]["namespace"].clone();
    if !inputs.iter().any(|object| object["kind"] == "Secret") {
        // The keys of an external cluster, which its owner brings.
        for (name, entry) in [
            ("external-auth-slurm", "slurm.key"),
            ("external-auth-jwths256", "jwt_hs256.key"),
        ] {
            inputs.push(json!({
                "apiVersion": "v1", "kind": "Secret", "metadata": { "name": name, "namespace": namespace }, "data": { entry: "a2V5" },
            }));
        }
    }
    let caches = Caches::of(inputs.clone());
    let images = Images {
        operator: "operator:1".to_owned(),
        ..Images::default()
    };
    let controller = caches.controllers.all().remove(0);
    let plan = plan(&observe(
        controller,
        &caches,
        Report::default(),
        images.clone(),
        Vec::new(),
    ));
    assert_eq!(plan.faults, []);
    let mut ours = super::written(&plan);
    inputs.extend(ours.iter().filter(|object| object["kind"] == "ConfigMap").cloned());
    ours.extend(crate::restapi::children_of(&Caches::of(inputs), &images));
    flatten_all(ours)
}

fn flatten_all(objects: Vec<Value>) -> Children {
    objects
        .into_iter()
        .map(|object| {
            let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
            let name = format!("{} {}", text(&object["kind"]), text(&object["metadata"]["name"]));
            let mut fields = BTreeMap::new();
            flatten("", &object, &mut fields);
            fields.retain(|path, value| !is_default(path, value));
            (name, fields)
        })
        .collect()
}

/// Items of a list are told apart by what Kubernetes tells them apart by.
fn flatten(path: &str, value: &Value, fields: &mut BTreeMap<String, Value>) {
    let below = |step: &str| {
        if path.is_empty() {
            step.to_owned()
        } else {
            format!("{path} {step}")
        }
    };
    match value {
        Value::Object(inner) if !inner.is_empty() => {
            for (step, value) in inner {
                flatten(&below(step), value, fields);
            }
        }
        Value::Array(items) if !items.is_empty() => {
            for (index, item) in items.iter().enumerate() {
                let key = ["mountPath", "name"].iter().find_map(|key| item.get(*key)?.as_str());
                flatten(&below(&key.map_or(index.to_string(), str::to_owned)), item, fields);
            }
        }
        value => {
            fields.insert(path.to_owned(), value.clone());
        }
    }
}

/// What the API server fills in by itself, and what differs from run to run.
fn is_default(path: &str, value: &Value) -> bool {
    let (parent, field) = path.rsplit_once(' ').unwrap_or(("", path));
    let text = value.as_str().unwrap_or_default();
    match field {
        "resources" => *value == json!({}),
        "terminationMessagePath"
        | "terminationMessagePolicy"
        | "schedulerName"
        | "internalTrafficPolicy"
        | "sessionAffinity"
        | "ipFamilyPolicy"
        | "volumeMode"
        | "phase"
        | "whenDeleted"
        | "whenScaled"
        | "maxSurge"
        | "maxUnavailable"
        | "progressDeadlineSeconds"
        | "podManagementPolicy"
        | "uid" => true,
        "dnsPolicy" => text == "ClusterFirst",
        "restartPolicy" => parent == "spec template spec",
        "terminationGracePeriodSeconds" => *value == 30,
        "successThreshold" | "timeoutSeconds" => *value == 1,
        "failureThreshold" => *value == 3,
        "periodSeconds" => *value == 10,
        "scheme" => text == "HTTP",
        "type" => matches!(text, "ClusterIP" | "RollingUpdate"),
        _ => {
            path.starts_with("spec ipFamilies")
                || path.starts_with("spec clusterIPs")
                || path.ends_with("-key-hash")
                || path.ends_with("deployment.kubernetes.io/revision")
        }
    }
}

/// Paths at which two sets of children differ; of something that one of them has not at all only the outermost.
fn differences(theirs: &Children, ours: &Children) -> BTreeSet<(String, String)> {
    let empty = BTreeMap::new();
    let names: BTreeSet<&String> = theirs.keys().chain(ours.keys()).collect();
    let mut found = BTreeSet::new();
    for name in names {
        let (their, our) = (theirs.get(name).unwrap_or(&empty), ours.get(name).unwrap_or(&empty));
        let paths: BTreeSet<&String> = their.keys().chain(our.keys()).collect();
        for path in paths {
            if their.get(path) != our.get(path) {
                found.insert((name.clone(), outermost(path, their, our)));
            }
        }
    }
    found
}

fn outermost(path: &str, one: &BTreeMap<String, Value>, other: &BTreeMap<String, Value>) -> String {
    let has = |fields: &BTreeMap<String, Value>, prefix: &str| {
        fields.keys().any(|key| {
            key == prefix
                || key
                    .strip_prefix(prefix)
                    .is_some_and(|rest| rest.starts_with(' ') || prefix.is_empty())
        })
    };
    let mut cuts: Vec<usize> = vec![0];
    cuts.extend(path.match_indices(' ').map(|(at, _)| at));
    let cut = cuts
        .into_iter()
        .find(|at| has(one, &path[..*at]) != has(other, &path[..*at]));
    path[..cut.unwrap_or(path.len())].to_owned()
}

fn at<'a>(children: &'a Children, name: &str, path: &str) -> Option<&'a Value> {
    children.get(name)?.get(path)
}

fn matches(pattern: &str, path: &str) -> bool {
    let (patterns, steps): (Vec<&str>, Vec<&str>) = (pattern.split(' ').collect(), path.split(' ').collect());
    let same = |(pattern, step): (&&str, &&str)| match pattern.strip_suffix('*') {
        Some(start) => step.starts_with(start),
        None => pattern == step,
    };
    patterns.len() == steps.len() && patterns.iter().zip(&steps).all(same)
}
