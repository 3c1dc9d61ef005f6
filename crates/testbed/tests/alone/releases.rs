//! Releases of the operator's chart beside each other, and in place of upstream's.

use serde_json::{Value, json};
use testbed::cluster::Cluster;
use testbed::command::{output, output_with_input};
use testbed::harness::{Namespace, alone};
use testbed::paths;

use super::webhook::wait_judged;
use crate::common::clusters::judged_namespace;
use crate::common::operator::{PutBack, helm, uninstall};

const GOOD: &str = "{apiVersion: slinky.slurm.net/v1beta1, kind: Controller, metadata: {name: good}, spec: {extraConf: MaxJobCount=5}}";

fn install(cluster: &Cluster, namespace: &str, release: &str, values: &[String]) {
    let mut upgrade = helm(cluster);
    upgrade.args([
        "upgrade",
        "--install",
        "--wait",
        "--create-namespace",
        "--namespace",
        namespace,
        release,
    ]);
    upgrade.arg(paths::repository().join("charts/slurm-operator"));
    output(upgrade.args(values.iter().flat_map(|value| ["--set", value.as_str()]))).unwrap();
}

fn scale(cluster: &Cluster, namespace: &str, webhook: &str, replicas: u8) {
    let deployment = format!("deployment/{webhook}");
    let replicas = format!("--replicas={replicas}");
    cluster
        .ask(&["--namespace", namespace, "scale", &deployment, &replicas])
        .unwrap();
    let rollout = [
        "--namespace",
        namespace,
        "rollout",
        "status",
        &deployment,
        "--timeout=60s",
    ];
    cluster.ask(&rollout).unwrap();
}

#[test]
fn two_operators_with_two_webhooks_judge_an_object_without_conflict() {
    let alone = alone();
    let cluster = alone.cluster;
    let own = judged_namespace(cluster, "first");
    let other = Namespace::create(cluster, "second").unwrap();
    let _put_back = PutBack(cluster);
    // As in namespaced.rs: helm takes the rights away before it replaces the pod.
    let deployment = [
        "--namespace=slinky",
        "delete",
        "deployment/slurm-operator",
        "--cascade=foreground",
    ];
    cluster.ask(&deployment).unwrap();
    let judged = format!("webhook.namespaces={}\\,{}", own.name, other.name);
    let first = [format!("operator.namespaces={}", own.name), judged.clone()];
    install(cluster, "slinky", "slurm-operator", &first);
    let mut second = vec![format!("operator.namespaces={}", other.name), judged];
    second.extend(
        [
            "nameOverride=second",
            "fullnameOverride=second",
            "certManager.secretName=second-ca",
        ]
        .map(str::to_owned),
    );
    install(cluster, "second-operator", "second", &second);

    // Either judges objects in both namespaces while the other is away, and both together agree.
    let webhooks = [
        ("slinky", "slurm-operator-webhook"),
        ("second-operator", "second-webhook"),
    ];
    for away in [None, Some(webhooks[0]), Some(webhooks[1])] {
        if let Some((namespace, webhook)) = away {
            scale(cluster, namespace, webhook, 0);
        }
        for namespace in [&own, &other] {
            wait_judged(namespace);
            let mut dry = namespace.kubectl(&["create", "--dry-run=server", "-f", "-"]);
            output_with_input(&mut dry, GOOD).unwrap();
        }
        if let Some((namespace, webhook)) = away {
            scale(cluster, namespace, webhook, 1);
        }
    }
    uninstall(cluster, "second-operator", "second").unwrap();
}

/// The default values of upstream's chart 1.3, as `--reuse-values` keeps them.
fn upstream_values() -> Value {
    let image =
        |name: &str| json!({ "repository": format!("ghcr.io/slinkyproject/{name}"), "tag": null, "digest": null });
    let with = |more: Value| {
        let mut pods = json!({
            "enabled": true, "replicas": 1, "imagePullPolicy": "IfNotPresent", "serviceAccount": { "create": true, "name": "" },
            "nodeSelector": {}, "affinity": {}, "tolerations": [], "topologySpreadConstraints": [], "podSecurityContext": {},
            "resources": {}, "securityContext": {}, "pdb": { "enabled": false, "minAvailable": 1, "maxUnavailable": null },
            "logLevel": "info", "healthPort": 8081, "metricsSecure": false, "leaderElection": true, "namespaces": "",
        });
        pods.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        pods
    };
    let webhook = with(json!({
        "image": image("slurm-operator-webhook"), "podsBinding": false, "timeoutSeconds": 10, "serverPort": 9443, "metricsPort": 0,
        "validating": { "failurePolicy": "Fail", "matchConditions": [], "matchPolicy": "Equivalent", "namespaceSelector": {} },
        "mutating": { "failurePolicy": "Ignore", "matchConditions": [], "matchPolicy": "Equivalent" },
    }));
    let operator = with(json!({
        "image": image("slurm-operator"), "metricsPort": 8080, "profile": false, "profileAddr": "localhost:6060",
        "accountingWorkers": 4, "controllerWorkers": 4, "loginsetWorkers": 4, "nodesetWorkers": 4, "restapiWorkers": 4,
        "tokenWorkers": 4, "slurmclientWorkers": 2,
    }));
    json!({
        "nameOverride": "", "fullnameOverride": "", "namespaceOverride": "", "imagePullSecrets": [],
        "imagePullPolicy": "IfNotPresent", "priorityClassName": "", "crds": { "enabled": false },
        "operator": operator, "webhook": webhook,
        "certManager": {
            "enabled": true, "secretName": "slurm-operator-webhook-ca", "duration": "43800h0m0s", "renewBefore": "8760h0m0s",
        },
        "propagatedNodeConditions": [], "extraObjects": [],
    })
}

/// A chart with upstream's values, whose release leaves them to `--reuse-values`.
#[test]
fn an_upgrade_with_the_values_of_upstreams_chart_serves_the_webhook() {
    let alone = alone();
    let cluster = alone.cluster;
    let namespace = judged_namespace(cluster, "reused");
    let _put_back = PutBack(cluster);
    uninstall(cluster, "slinky", "slurm-operator").unwrap();
    let chart = tempfile::tempdir().unwrap();
    std::fs::create_dir(chart.path().join("templates")).unwrap();
    let about = "apiVersion: v2\nname: slurm-operator\nversion: 1.3.0\n";
    std::fs::write(chart.path().join("Chart.yaml"), about).unwrap();
    std::fs::write(chart.path().join("values.yaml"), upstream_values().to_string()).unwrap();
    output(
        helm(cluster)
            .args(["install", "--namespace=slinky", "slurm-operator"])
            .arg(chart.path()),
    )
    .unwrap();

    // cert-manager is not on this cluster, so the webhook makes its certificate; the image is this operator's.
    let mut upgrade = helm(cluster);
    upgrade.args([
        "upgrade",
        "--wait",
        "--reuse-values",
        "--namespace=slinky",
        "slurm-operator",
    ]);
    upgrade.arg(paths::repository().join("charts/slurm-operator"));
    upgrade.args([
        "--set",
        "operator.image.repository=localhost/slurm-operator",
        "--set",
        "certManager.enabled=false",
    ]);
    output(&mut upgrade).unwrap();
    wait_judged(&namespace);
    let path = "jsonpath={.webhooks[*].failurePolicy}";
    let policies = cluster
        .ask(&[
            "get",
            "validatingwebhookconfiguration/slurm-operator-webhook",
            "-o",
            path,
        ])
        .unwrap();
    assert!(
        policies.split(' ').all(|policy| policy == "Fail"),
        "upstream's policy is kept: {policies}"
    );
    let path = "jsonpath={.items[*].spec.template.spec.containers[*].securityContext.readOnlyRootFilesystem}";
    let read_only = cluster.ask(&["--namespace=slinky", "get", "deployments", "-o", path]);
    assert_eq!(read_only.unwrap(), "true true", "the chart's own security context");
    cluster
        .ask(&[
            "--namespace=slinky",
            "rollout",
            "status",
            "deployment/slurm-operator",
            "--timeout=60s",
        ])
        .unwrap();
}
