//! What the admission webhook rejects, and what people read then.

use serde_json::json;
use testbed::harness::{Namespace, cluster, eventually, expect};

use crate::common::clusters::{ONE_WORKER, change_spec, install_chart, judged_namespace, set_extra_conf};
use crate::common::slurm::{SOON, wait_idle};

const CONTROLLER: &str = "{apiVersion: slinky.slurm.net/v1beta1, kind: Controller, metadata: {name: slurm}, spec: ";

fn rejected(namespace: &Namespace, manifest: &str) -> String {
    let said = namespace.apply(manifest).unwrap_err().to_string();
    assert!(said.contains("denied the request"), "{said}");
    said
}

/// Waits until the API server asks the webhook.
fn wait_judged(namespace: &Namespace) {
    let bad = format!("{CONTROLLER} {{extraConf: MaxJobCuont=5}}}}");
    eventually("the webhook is asked", SOON, || {
        let mut dry = namespace.kubectl(&["create", "--dry-run=server", "-f", "-"]);
        let said = testbed::command::output_with_input(&mut dry, &bad);
        expect(said.is_err(), said)
    })
    .unwrap();
}

#[test]
fn objects_that_slurm_would_refuse_are_rejected_with_line_and_remedy() {
    let namespace = judged_namespace(cluster(), "judged");
    wait_judged(&namespace);
    let said = rejected(
        &namespace,
        &format!("{CONTROLLER} {{extraConf: \"MaxJobCount=5\\nMaxJobCuont=6\"}}}}"),
    );
    assert!(
        said.contains("spec.extraConf line 2") && said.contains("MaxJobCount?"),
        "{said}"
    );
    let said = rejected(
        &namespace,
        &format!("{CONTROLLER} {{configFileRefs: [{{name: files}}]}}}}"),
    );
    assert!(
        said.contains("spec.configFileRefs[0].name names ConfigMap \"files\""),
        "{said}"
    );
    // Nothing was made of it.
    assert!(namespace.ask(&["get", "controllers", "-o", "name"]).unwrap().is_empty());

    install_chart(&namespace, ONE_WORKER).unwrap();
    let partition = |config: &str| {
        let object = json!({
            "apiVersion": "slinky.slurm.net/v1alpha1", "kind": "Partition", "metadata": {"name": "long"},
            "spec": {"controllerRef": {"name": "slurm"}, "nodeSetSelector": {}, "config": config},
        });
        object.to_string()
    };
    let said = rejected(&namespace, &partition("MaxTiem=5"));
    assert!(said.contains("MaxTime"), "{said}");
    namespace.apply(&partition("MaxTime=5")).unwrap();
    // A running cluster goes on with its configuration.
    wait_idle(&namespace, 1).unwrap();
    let said = set_extra_conf(&namespace, "SchedulerTyp=sched/backfill")
        .unwrap_err()
        .to_string();
    assert!(
        said.contains("spec.extraConf line 1") && said.contains("SchedulerType"),
        "{said}"
    );
    set_extra_conf(&namespace, "MaxJobCount=5000").unwrap();
    let said = change_spec(&namespace, "controller/slurm", &json!({"clusterName": "other"}));
    let said = said.unwrap_err().to_string();
    assert!(
        said.contains("spec.clusterName") && said.contains("cannot be changed"),
        "{said}"
    );
}

#[test]
fn objects_that_a_controller_refers_to_are_read() {
    let namespace = judged_namespace(cluster(), "referred");
    wait_judged(&namespace);
    let claim = json!({
        "apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": "state"},
        "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}},
    });
    namespace.apply(&claim.to_string()).unwrap();
    let shared = "ha: {enabled: true}, persistence: {enabled: true, existingClaim: state}";
    let said = rejected(&namespace, &format!("{CONTROLLER} {{{shared}}}}}"));
    assert!(said.contains("ReadWriteMany"), "{said}");
    // An Accounting may come later.
    let mut dry = namespace.kubectl(&["create", "--dry-run=server", "-f", "-"]);
    let late = format!("{CONTROLLER} {{accountingRef: {{name: records}}}}}}");
    testbed::command::output_with_input(&mut dry, &late).unwrap();
}
