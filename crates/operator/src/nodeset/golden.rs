//! Compares what the operator plans for NodeSets with what upstream created for them on a real API server, field by field.
//! Every difference is intended and listed once for all such tests.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use super::{
    fixture::{observed_of, unknown},
    plan::{Effect, plan},
};
use crate::testing::recorded::{MEANT, Objects, Recording, flatten_all, judge, matches, recordings};

/// What the API server and the scheduler add.
const ADDED_BY_KUBERNETES: &[(&str, &str)] = &[
    ("Pod", "spec dnsPolicy"),
    ("Pod", "spec preemptionPolicy"),
    ("Pod", "spec priority"),
    ("Pod", "spec restartPolicy"),
    ("Pod", "spec schedulerName"),
    ("Pod", "spec securityContext"),
    ("Pod", "spec serviceAccount"),
    ("Pod", "spec serviceAccountName"),
    ("Pod", "spec terminationGracePeriodSeconds"),
    ("Pod", "spec tolerations 1 *"),
    ("Pod", "spec tolerations 2 *"),
    ("Pod", "spec ** imagePullPolicy"),
    ("Pod", "spec ** terminationMessagePath"),
    ("Pod", "spec ** terminationMessagePolicy"),
    ("Pod", "spec ** resources"),
    ("Pod", "spec ** resources requests *"),
    ("Pod", "spec ** failureThreshold"),
    ("Pod", "spec ** periodSeconds"),
    ("Pod", "spec ** successThreshold"),
    ("Pod", "spec ** timeoutSeconds"),
    ("Pod", "spec ** httpGet scheme"),
    ("Pod", "spec ** fieldRef apiVersion"),
    ("Pod", "spec ** hostPort"),
    ("Service", "spec clusterIPs **"),
    ("Service", "spec internalTrafficPolicy"),
    ("Service", "spec ipFamilies **"),
    ("Service", "spec ipFamilyPolicy"),
    ("Service", "spec sessionAffinity"),
    ("Service", "spec type"),
    ("PersistentVolumeClaim", "metadata finalizers **"),
    ("PersistentVolumeClaim", "spec volumeMode"),
];

/// The recorded objects with UIDs and times, and the Kubernetes nodes.
fn inputs(recording: &Recording) -> Vec<Value> {
    let mut inputs = recording.inputs();
    for object in &mut inputs {
        object["metadata"]["uid"] = object["metadata"]["name"].clone();
        object["metadata"]["creationTimestamp"] = json!("2026-01-01T00:00:00Z");
        object.as_object_mut().unwrap().remove("status");
    }
    for node in ["kwok-3", "kwok-7"] {
        let labels = json!({ "kubernetes.io/hostname": node, "kubernetes.io/os": "linux" });
        inputs.push(json!({ "apiVersion": "v1", "kind": "Node", "metadata": { "name": node, "labels": labels } }));
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
        assert_eq!(plan.rejection, None);
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

/// Drops what differs in each run, or is recorded elsewhere.
fn comparable(objects: Vec<Value>) -> Objects {
    let mut objects = flatten_all(objects);
    for (title, fields) in &mut objects {
        // A revision's data was left out of the recording; its hash is the same.
        let left_out = |path: &str| title.starts_with("ControllerRevision") && path.starts_with("data");
        fields.retain(|path, value| {
            !matches("metadata ownerReferences * uid", path) && !left_out(path) && *value != json!({})
        });
    }
    objects
}

#[test]
fn children_equal_upstreams_except_for_intended_differences() {
    for recording in recordings() {
        let ours = comparable(made(&inputs(&recording)));
        let mut theirs = recording.children_of(&["NodeSet"]);
        theirs.extend(recording.claims_of_workers());
        let mut theirs = comparable(theirs);
        for (title, fields) in &mut theirs {
            let (kind, _) = title.split_once(' ').unwrap();
            let is_ours = |path: &String| ours.get(title).is_some_and(|fields| fields.contains_key(path));
            let is_added = |path: &String| {
                ADDED_BY_KUBERNETES
                    .iter()
                    .any(|(of, pattern)| *of == kind && matches(pattern, path))
            };
            fields.retain(|path, _| is_ours(path) || !is_added(path));
        }
        let (surprises, _) = judge(MEANT, &theirs, &ours);
        assert_eq!(surprises, Vec::<String>::new(), "{}", recording.cluster);
    }
}

/// After a takeover no pod is outdated.
#[test]
fn revisions_have_upstreams_hashes() {
    let mut compared = 0;
    for recording in recordings() {
        let inputs = inputs(&recording);
        for nodeset in recording.objects.iter().filter(|object| object["kind"] == "NodeSet") {
            let name = nodeset["metadata"]["name"].as_str().unwrap();
            let plan = plan(&observed_of(name, inputs.clone(), unknown()));
            assert_eq!(
                plan.revision.unwrap().hash,
                nodeset["status"]["nodeSetHash"].as_str().unwrap(),
                "{name}"
            );
            compared += 1;
        }
    }
    assert_eq!(compared, 7);
}

#[test]
fn a_worker_looks_like_this() {
    let inputs = inputs(recordings().last().unwrap());
    let made = made(&inputs);
    for name in ["pvc-000", "scratch-pvc-000", "slurm-workers-slurm", "pvc-ssh-config"] {
        let object = made.iter().find(|object| object["metadata"]["name"] == name).unwrap();
        insta::assert_yaml_snapshot!(name, object);
    }
}
