//! Tests of what the operator takes from a bundle's ConfigMap that somebody else may have written.

use k8s_openapi::{ByteString, api::core::v1::ConfigMap};
use serde_json::{Value, json};
use slurm::{Revision, agent::BundleKey};

use super::{
    super::plan::{Plan, plan},
    observed,
    rules::{bundled, live_as_bundled, running},
    written,
};
use crate::{
    cluster::deliver::Report,
    configuration::render::{read_bundle, read_signature},
};

const CONF: &str = "SchedulerParameters=defer";

fn find(objects: &mut [Value]) -> &mut Value {
    let mut found = objects.iter_mut();
    found
        .find(|object| object["metadata"]["name"] == "slurm-bundle")
        .unwrap()
}

fn strip_signature(objects: &mut [Value]) {
    find(objects)["binaryData"]
        .as_object_mut()
        .unwrap()
        .remove("bundle.sig")
        .unwrap();
}

/// Writes other files under the highest sequence.
fn forge(objects: &mut [Value]) {
    let bundle = find(objects);
    let mut revision = read_bundle(&serde_json::from_value(bundle.clone()).unwrap()).unwrap();
    revision.sequence = u64::MAX;
    for file in revision.files.values_mut() {
        file.content.extend(b"# forged\n");
    }
    bundle["binaryData"]["bundle"] = serde_json::to_value(ByteString(revision.to_bundle().unwrap())).unwrap();
}

fn planned(objects: &[Value], report: Report) -> Plan {
    plan(&observed(objects.to_vec(), report))
}

/// The bundle that a plan writes, if its signature is that of this key.
fn signed(plan: &Plan, key: &[u8]) -> Option<(Revision, ConfigMap)> {
    let bundle = written(plan)
        .into_iter()
        .find(|object| object["metadata"]["name"] == "slurm-bundle")?;
    let bundle: ConfigMap = serde_json::from_value(bundle).unwrap();
    read_signature(&bundle, &BundleKey::derive(key).unwrap()).unwrap();
    Some((read_bundle(&bundle).unwrap(), bundle))
}

fn distrusts(plan: &Plan) -> bool {
    plan.findings.iter().any(|finding| finding.reason == "BundleUntrusted")
}

#[test]
fn an_unsigned_bundle_is_signed_once_the_agent_proves_its_files() {
    let mut objects = running(&json!({ "extraConf": CONF }));
    let live = live_as_bundled(&objects);
    strip_signature(&mut objects);
    let before = planned(&objects, Report::default());
    assert!(signed(&before, b"jwt").is_none() && !distrusts(&before));
    let after = planned(&objects, live.clone());
    let (revision, bundle) = signed(&after, b"jwt").unwrap();
    assert_eq!((revision.sequence, revision.digest()), bundled(&objects).unwrap());
    assert!(bundle.data.unwrap()["inputs"].contains(CONF));
    assert!(!distrusts(&after));
    // A record that does not lead to the same files is not used.
    let record = find(&mut objects)["data"]["inputs"]
        .as_str()
        .unwrap()
        .replace(CONF, "Prolog=/tmp/x");
    find(&mut objects)["data"]["inputs"] = record.into();
    let (_, bundle) = signed(&planned(&objects, live), b"jwt").unwrap();
    assert!(!bundle.data.unwrap()["inputs"].contains("/tmp/x"));
}

#[test]
fn a_forged_bundle_is_ignored_reported_and_overwritten() {
    for has_signature in [true, false] {
        let mut objects = running(&json!({ "extraConf": CONF }));
        let (before, live) = (bundled(&objects).unwrap(), live_as_bundled(&objects));
        forge(&mut objects);
        if !has_signature {
            strip_signature(&mut objects);
        }
        let plan = planned(&objects, live);
        assert!(distrusts(&plan));
        let (revision, _) = signed(&plan, b"jwt").unwrap();
        assert_eq!((revision.sequence, revision.digest()), before);
    }
}

#[test]
fn a_forged_record_is_not_used() {
    let mut objects = running(&json!({ "extraConf": CONF }));
    let live = live_as_bundled(&objects);
    let record = find(&mut objects)["data"]["inputs"]
        .as_str()
        .unwrap()
        .replace(CONF, "Prolog=/tmp/x");
    find(&mut objects)["data"]["inputs"] = record.into();
    let plan = planned(&objects, live);
    assert!(distrusts(&plan));
    let (_, bundle) = signed(&plan, b"jwt").unwrap();
    assert!(!bundle.data.unwrap()["inputs"].contains("/tmp/x"));
}

#[test]
fn a_replaced_jwt_key_signs_again_before_a_pod_is_made_with_it() {
    let mut objects = running(&json!({ "extraConf": CONF }));
    for object in &mut objects {
        if object["metadata"]["name"] == "slurm-auth-jwt" {
            object["data"]["jwt.key"] = "b3RoZXI=".into();
        }
    }
    let is_there = |object: &&Value| !matches!(object["kind"].as_str(), Some("StatefulSet" | "Pod"));
    let objects: Vec<Value> = objects.iter().filter(is_there).cloned().collect();
    let plan = planned(&objects, Report::default());
    let (revision, _) = signed(&plan, b"other").unwrap();
    assert_eq!(revision.digest(), bundled(&objects).unwrap().1);
    assert!(plan.stateful_set.is_some());
}

#[test]
fn without_the_key_nothing_is_written() {
    let mut objects = running(&json!({ "extraConf": CONF }));
    objects.retain(|object| object["metadata"]["name"] != "slurm-auth-jwt");
    forge(&mut objects);
    let plan = planned(&objects, Report::default());
    assert!(plan.configuration.config_maps.is_empty());
}
