//! Tests of the ConfigMap with the last revisions.

use std::collections::BTreeMap;

use api::configuration::RejectedBy;
use k8s_openapi::api::core::v1::ConfigMap;
use serde_json::{Value, json};

use super::{
    super::plan::plan,
    config_map, controller, keys, node_set, observed, planned,
    rules::{changed, live_as_bundled, running},
    visible::{edited, ended, pushed, refused, taken},
    written,
};
use crate::cluster::deliver::Report;

fn history(objects: &[Value], report: &Report) -> Option<ConfigMap> {
    let observed = observed(objects.to_vec(), report.clone());
    plan(&observed).configuration.history
}

fn entries(objects: &[Value], report: &Report) -> BTreeMap<String, String> {
    history(objects, report)
        .and_then(|history| history.data)
        .unwrap_or_default()
}

/// The objects with the history that would have been written.
fn noted(mut objects: Vec<Value>, report: &Report) -> Vec<Value> {
    let Some(history) = history(&objects, report) else {
        return objects;
    };
    objects.retain(|object| object["metadata"]["name"] != "slurm-history");
    objects.push(serde_json::to_value(history).unwrap());
    objects
}

fn without_digests(text: &str) -> String {
    let lines = text.lines().filter(|line| !line.starts_with("digest: "));
    lines.collect::<Vec<_>>().join("\n")
}

#[test]
fn the_first_revision_has_no_cause_and_is_shown_completely() {
    let mut objects = keys();
    objects.push(controller(&json!({})));
    let entries = entries(&objects, &Report::default());
    let keys: Vec<&String> = entries.keys().collect();
    assert_eq!(keys, ["accepted-00000001"]);
    let first = &entries["accepted-00000001"];
    assert!(first.contains("cause: the first revision\n"), "{first}");
    assert!(first.contains("+ClusterName=hpc_slurm\n"), "{first}");
}

#[test]
fn an_accepted_change_is_recorded_with_cause_time_and_difference() {
    let (objects, _, wanted) = edited("SchedulerParameters=defer");
    let report = taken(&wanted, 2);
    let entries = entries(&objects, &report);
    insta::assert_snapshot!(without_digests(&entries["accepted-00000002"]), @r"
    revision: 2
    time: 2026-01-01T12:00:00.123Z
    cause: spec.extraConf
    took: 143 ms, a reconfigure

    --- slurm.conf
    +++ slurm.conf
    @@ -27,2 +27,5 @@
     ### ACCOUNTING ###
     AccountingStorageType=accounting_storage/none
    +#
    +### EXTRA CONFIG ###
    +SchedulerParameters=defer
    ");
    // It is recorded once.
    assert_eq!(history(&noted(objects, &report), &report), None);
}

#[test]
fn a_rejected_change_is_recorded_with_who_rejected_it_and_why() {
    let (objects, before, wanted) = edited("SchedulerParameters=Nonsense");
    let report = refused(&before, &wanted, 2, RejectedBy::Slurmctld);
    let entries = entries(&objects, &report);
    insta::assert_snapshot!(without_digests(&entries["rejected-00000002"]), @r"
    revision: 2
    time: 2026-01-01T12:00:00.123Z
    cause: spec.extraConf
    took: 143 ms
    refused by: slurmctld, and rolled back
    reason: unrecognized key: Nonsense

    --- slurm.conf
    +++ slurm.conf
    @@ -27,2 +27,5 @@
     ### ACCOUNTING ###
     AccountingStorageType=accounting_storage/none
    +#
    +### EXTRA CONFIG ###
    +SchedulerParameters=Nonsense
    ");
    assert_eq!(history(&noted(objects, &report), &report), None);
}

#[test]
fn a_change_that_an_earlier_leader_pushed_is_recorded_when_it_is_written() {
    let (objects, _, wanted) = edited("SchedulerParameters=defer");
    let mut report = taken(&wanted, 2);
    report.finished.clear();
    let entries = entries(&objects, &report);
    let entry = &entries["accepted-00000002"];
    assert!(entry.contains("cause: spec.extraConf\n"), "{entry}");
    assert!(entry.contains("+SchedulerParameters=defer\n"), "{entry}");
}

#[test]
fn every_source_of_a_change_is_named() {
    let files = |text: &str| config_map("files", &json!({ "gres.conf": text }));
    let spec = json!({ "configFileRefs": [{ "name": "files" }] });
    let sets = |config: &str| {
        node_set(
            "gpu",
            "2026-01-01T00:00:00Z",
            json!({ "partition": { "config": config } }),
        )
    };
    let mut objects = keys();
    objects.extend([controller(&spec), files("Name=gpu"), sets("MaxTime=1")]);
    objects.push(node_set("old", "2026-01-01T00:00:00Z", json!({})));
    objects.extend(written(&planned(objects.clone())));
    objects.push(super::pod(0));
    let before = live_as_bundled(&objects);
    objects.retain(|object| !["files", "gpu", "old"].contains(&object["metadata"]["name"].as_str().unwrap()));
    objects.extend([files("Name=gpu Count=2"), sets("MaxTime=2")]);
    let spec = json!({ "configFileRefs": [{ "name": "files" }], "extraConf": "# hello" });
    let objects = changed(objects, &spec);
    let wanted = pushed(&objects, &before);
    let entries = entries(&objects, &taken(&wanted, 2));
    let entry = &entries["accepted-00000002"];
    let cause = entry.lines().find(|line| line.starts_with("cause: ")).unwrap();
    assert_eq!(
        cause,
        "cause: NodeSet gpu, NodeSet old (gone), spec.extraConf, ConfigMap files (gres.conf)"
    );
}

#[test]
fn ten_entries_of_each_kind_are_kept() {
    let mut objects = running(&json!({}));
    let before = live_as_bundled(&objects);
    for edit in 0..15 {
        objects = changed(objects, &json!({ "extraConf": format!("# {edit}") }));
        let wanted = pushed(&objects, &before);
        let mut report = taken(&wanted, 10 + 2 * edit);
        let refused = ended(&wanted, 11 + 2 * edit, Some(RejectedBy::DryRun));
        report.finished.insert(0, refused);
        objects = noted(objects, &report);
    }
    let history = objects
        .iter()
        .find(|object| object["metadata"]["name"] == "slurm-history");
    let data = history.unwrap()["data"].as_object().unwrap().clone();
    let kept = |kind: &str| data.keys().filter(|key| key.starts_with(kind)).count();
    assert_eq!((kept("accepted-"), kept("rejected-")), (10, 10));
    assert!(data.contains_key("accepted-00000038") && data.contains_key("rejected-00000039"));
    assert!(!data.contains_key("accepted-00000018"));
}

#[test]
fn the_same_files_with_another_sequence_are_no_change() {
    let objects = running(&json!({}));
    let before = live_as_bundled(&objects);
    let wanted = pushed(&objects, &before);
    assert_eq!(history(&objects, &taken(&wanted, 2)), None);
}
