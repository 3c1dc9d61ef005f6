//! The API server keeps all fields and rejects misspelt ones.

use serde_json::Value;
use testbed::command::output_with_input;
use testbed::harness::cluster;

use crate::common::clusters::operator_namespace;

#[test]
fn every_field_of_every_kind_is_kept() {
    let namespace = operator_namespace(cluster(), "fields");
    let folder = testbed::paths::repository().join("crates/api/tests/manifests");
    let mut kinds = 0;
    // Fields of a Partition that exclude each other.
    let pairs = [
        ["allowAccounts:", "allowQos:", "defMemPerCPU:", "maxMemPerCPU:"],
        ["denyAccounts:", "denyQos:", "defMemPerNode:", "maxMemPerNode:"],
    ];
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let manifest = std::fs::read_to_string(&path).unwrap();
        let manifest = manifest.replace("namespace: slurm", &format!("namespace: {}", namespace.name));
        for left_out in pairs {
            let is_kept = |line: &&str| !left_out.iter().any(|field| line.trim_start().starts_with(field));
            let manifest = manifest.lines().filter(is_kept).collect::<Vec<_>>().join("\n");
            // Nothing is created, because the operator would act on this mixture of all fields.
            let create = |how: &str| -> Value {
                let mut command = namespace.kubectl(&["create", how, "-o", "json", "-f", "-"]);
                serde_json::from_str(&output_with_input(&mut command, &manifest).unwrap()).unwrap()
            };
            let (kept, written) = (create("--dry-run=server"), create("--dry-run=client"));
            assert_eq!(kept["spec"], written["spec"], "{}", path.display());
        }
        kinds += 1;
    }
    assert_eq!(kinds, 7);
}

#[test]
fn more_pods_than_slurms_limit_are_rejected() {
    let namespace = operator_namespace(cluster(), "bounds");
    // Without a Controller no pod is made.
    let set = |kind: &str, more: &str| {
        let object = format!("apiVersion: slinky.slurm.net/v1beta1, kind: {kind}, metadata: {{name: big}}");
        namespace.apply(&format!(
            "{{{object}, spec: {{replicas: 1, controllerRef: {{name: nobody}}{more}}}}}"
        ))
    };
    set("NodeSet", "").unwrap();
    set("LoginSet", ", sssdConfRef: {name: a, key: b}").unwrap();
    for object in ["nodeset/big", "loginset/big"] {
        let scale = |replicas: u32| namespace.ask(&["scale", object, &format!("--replicas={replicas}")]);
        for replicas in [20_000_000, 65_537] {
            let said = scale(replicas).unwrap_err().to_string();
            assert!(
                said.contains("spec.replicas") && said.contains("65536"),
                "{object}: {said}"
            );
        }
        assert_eq!(namespace.field(object, ".spec.replicas").unwrap(), "1");
        scale(65_536).unwrap();
    }
    let backups =
        "{apiVersion: slinky.slurm.net/v1beta1, kind: Controller, metadata: {name: x}, spec: {ha: {backups: 9}}}";
    let said = namespace.apply(backups).unwrap_err().to_string();
    assert!(said.contains("spec.ha.backups") && said.contains('8'), "{said}");
}

#[test]
fn a_misspelt_field_is_rejected() {
    let namespace = operator_namespace(cluster(), "typo");
    let said = namespace
        .apply("{apiVersion: slinky.slurm.net/v1beta1, kind: NodeSet, metadata: {name: x}, spec: {replicass: 1, controllerRef: {name: slurm}}}")
        .unwrap_err()
        .to_string();
    assert!(said.contains("replicass"), "{said}");
}
