//! The bundle that an operator from before signatures left is taken when slurmctld runs with it, and signed.

use anyhow::Result;
use serde_json::json;
use testbed::cluster::Cluster;
use testbed::harness::{Namespace, alone, eventually, expect};

use crate::common::clusters::{ONE_WORKER, install_chart, operator_namespace, set_extra_conf};
use crate::common::operator::PutBack;
use crate::common::pods::lives;
use crate::common::slurm::{SOON, slurm, start_job, wait_done, wait_idle, wait_job};

const BUNDLE: &str = "configmap/slurm-bundle";

fn scale_operator(cluster: &Cluster, replicas: u32) {
    let scale = ["scale", "deployment/slurm-operator", &format!("--replicas={replicas}")];
    cluster.ask_in("slinky", &scale).unwrap();
    let ended = [
        "wait",
        "--for=delete",
        "pod",
        "--selector=app.kubernetes.io/name=slurm-operator",
        "--timeout=120s",
    ];
    if replicas == 0 {
        cluster.ask_in("slinky", &ended).unwrap();
    }
}

/// Bundle and signature.
fn bundle(namespace: &Namespace) -> Result<(String, String)> {
    let part = |key: &str| namespace.field(BUNDLE, &format!(".binaryData.{key}"));
    Ok((part("bundle")?, part("bundle\\.sig")?))
}

#[test]
fn an_unsigned_bundle_of_an_older_operator_is_signed_and_jobs_go_on() {
    let alone = alone();
    let cluster = alone.cluster;
    let namespace = operator_namespace(cluster, "unsigned");
    let _put_back = PutBack(cluster);
    install_chart(&namespace, ONE_WORKER).unwrap();
    wait_idle(&namespace, 1).unwrap();
    let job = start_job(&namespace, "-p all", "until test -e /tmp/enough; do sleep 1; done").unwrap();
    let (signed, signature) = bundle(&namespace).unwrap();
    assert!(!signature.is_empty());
    let before = lives(&namespace).unwrap();

    scale_operator(cluster, 0);
    let unsigned = json!({ "binaryData": { "bundle.sig": null } }).to_string();
    namespace
        .ask(&["patch", BUNDLE, "--type=merge", "--patch", &unsigned])
        .unwrap();
    assert_eq!(bundle(&namespace).unwrap(), (signed.clone(), String::new()));
    scale_operator(cluster, 1);
    eventually("the bundle is signed again", SOON, || {
        let (now, signature) = bundle(&namespace)?;
        expect(now == signed && !signature.is_empty(), signature)
    })
    .unwrap();

    set_extra_conf(&namespace, "MaxJobCount=4321").unwrap();
    eventually("the next change goes live", SOON, || {
        let shown = slurm(&namespace, "scontrol show config")?;
        expect(shown.contains("MaxJobCount             = 4321"), shown)
    })
    .unwrap();
    assert_eq!(
        lives(&namespace).unwrap(),
        before,
        "no pod and no container was restarted"
    );
    wait_job(&namespace, &job, "RUNNING").unwrap();
    namespace
        .exec("slurm-worker-slinky-0 -c slurmd", "touch /tmp/enough")
        .unwrap();
    wait_done(&namespace, &job).unwrap();
}
