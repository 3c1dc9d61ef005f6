//! Whoever can write ConfigMaps or a RestApi does not get into slurmctld, as the review of the code's security found it.

use std::process::Command;

use serde_json::json;
use testbed::command::output;
use testbed::harness::{Namespace, cluster, eventually, expect};

use crate::common::clusters::{REST_API, change_spec, manifest_cluster, set_extra_conf, wait_said};
use crate::common::slurm::{SOON, slurm};

const BUNDLE: &str = "configmap/slurm-bundle";

/// Runs a shell pipeline on the bundle's text.
fn edited(bundle: &str, edit: &str) -> String {
    let edit = format!("printf %s \"$0\" | base64 -d | {edit}");
    output(Command::new("sh").args(["-c", &edit, bundle]))
        .unwrap()
        .trim()
        .to_owned()
}

fn bundle(namespace: &Namespace) -> anyhow::Result<String> {
    namespace.field(BUNDLE, ".binaryData.bundle")
}

fn sequence(bundle: &str) -> u64 {
    let found = edited(bundle, r#"zcat | grep -o '^{"sequence":[0-9]*' | grep -o '[0-9]*$'"#);
    found.parse().unwrap()
}

fn a_forged_bundle_is_not_used(namespace: &Namespace) {
    let before = bundle(namespace).unwrap();
    let highest = r#"zcat | sed 's/^{"sequence":[0-9]*/{"sequence":18446744073709551615/' | gzip | base64 -w0"#;
    let forged = edited(&before, highest);
    assert_eq!(sequence(&forged), u64::MAX);
    let patch = json!({ "binaryData": { "bundle": forged } }).to_string();
    namespace
        .ask(&["patch", BUNDLE, "--type=merge", "--patch", &patch])
        .unwrap();
    eventually("the operator writes the accepted revision again", SOON, || {
        expect(bundle(namespace)? == before, "not yet")
    })
    .unwrap();
    // Without its signature it is no bundle of an older operator: slurmctld does not run with it.
    let patch = json!({ "binaryData": { "bundle": forged, "bundle.sig": null } }).to_string();
    namespace
        .ask(&["patch", BUNDLE, "--type=merge", "--patch", &patch])
        .unwrap();
    set_extra_conf(namespace, "SchedulerParameters=defer").unwrap();
    eventually("the next change goes live", SOON, || {
        let shown = slurm(namespace, "scontrol show config | grep SchedulerParameters")?;
        expect(shown.contains("defer"), shown)
    })
    .unwrap();
    eventually("with the next sequence", SOON, || {
        let now = sequence(&bundle(namespace)?);
        expect(now > sequence(&before) && now < 1000, now)
    })
    .unwrap();
}

fn slurmrestd_is_not_sent_elsewhere(namespace: &Namespace) {
    namespace.apply(REST_API).unwrap();
    let elsewhere = json!({ "service": { "spec": { "type": "ExternalName", "externalName": "attacker.example" } } });
    change_spec(namespace, "restapi/slurm", &elsewhere).unwrap();
    wait_said(namespace, "restapi/slurm", "Ready", &["False", "ExternalName"]);
    let service = namespace
        .field("service/slurm-restapi", ".spec.type},{.spec.externalName")
        .unwrap();
    assert_eq!(service, "ClusterIP,");
}

#[test]
fn config_maps_and_services_give_no_access_to_slurmctld() {
    let namespace = manifest_cluster(cluster(), "trust", 1);
    a_forged_bundle_is_not_used(&namespace);
    slurmrestd_is_not_sent_elsewhere(&namespace);
}
