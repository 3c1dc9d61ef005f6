//! Compares the children with upstream's, field by field. Every difference is intended, and on one list for all such
//! tests.

use serde_json::{Value, json};

use super::{Caches, Images, observe_objects, plan, rules::NOW};
use crate::cluster::Snapshot;
use crate::testing::recorded::{MEANT, Objects, Recording, flatten_all, judge, recordings};

#[test]
fn children_equal_upstreams_except_for_intended_differences() {
    for recording in recordings() {
        let theirs = recording.children_of(&["Controller", "RestApi", "Accounting", "LoginSet"]);
        let (surprises, _) = judge(
            MEANT,
            &without_defaults(theirs),
            &without_defaults(children(&recording)),
        );
        assert_eq!(surprises, Vec::<String>::new(), "{}", recording.cluster);
    }
}

/// The children of the objects that upstream's operator had.
fn children(recording: &Recording) -> Vec<Value> {
    let mut inputs = recording.inputs();
    for object in &mut inputs {
        object["metadata"]["uid"] = object["kind"].clone();
    }
    let caches = Caches::of(inputs.clone());
    let images = Images {
        operator: "operator:1".to_owned(),
        ..Images::default()
    };
    let controller = caches.controllers.all().remove(0);
    let plan = plan(&super::Observed {
        images: images.clone(),
        has_service_monitors: true,
        ..observe_objects(controller, &caches, Snapshot::default(), NOW.parse().unwrap())
    });
    assert_eq!(plan.findings, []);
    let mut ours = super::written(&plan);
    inputs.extend(ours.iter().filter(|object| object["kind"] == "ConfigMap").cloned());
    inputs.extend(host_keys(recording));
    let caches = Caches::of(inputs);
    ours.extend(crate::restapi::children_of(&caches, &images));
    ours.extend(crate::accounting::children_of(&caches, &images));
    ours.extend(crate::loginset::children_of(&caches, &images));
    ours
}

/// The host keys of upstream's LoginSets, which are not generated again. The recording has their lengths only.
fn host_keys(recording: &Recording) -> Vec<Value> {
    let mut found = recording.children_of(&["LoginSet"]);
    found.retain(|object| object["kind"] == "Secret");
    for secret in &mut found {
        for (_, value) in secret["data"].as_object_mut().unwrap() {
            *value = json!("YQ==");
        }
    }
    found
}

fn without_defaults(objects: Vec<Value>) -> Objects {
    let mut objects = flatten_all(objects);
    for fields in objects.values_mut() {
        fields.retain(|path, value| !is_default(path, value));
    }
    objects
}

/// Whether a field is set by the API server, or differs between runs.
fn is_default(path: &str, value: &Value) -> bool {
    let (parent, field) = path.rsplit_once(' ').unwrap_or(("", path));
    let text = value.as_str().unwrap_or_default();
    match field {
        "resources" | "securityContext" => *value == json!({}),
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
        | "allocateLoadBalancerNodePorts"
        | "externalTrafficPolicy"
        | "nodePort"
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
                || path.ends_with("-keys-hash")
                || path == "data"
                || path.starts_with("data ssh_host_")
                || path.ends_with("deployment.kubernetes.io/revision")
        }
    }
}
