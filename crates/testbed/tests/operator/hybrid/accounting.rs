//! A slurmdbd outside Kubernetes.

use std::time::{Duration, Instant};

use anyhow::Result;
use serde_json::{Value, json};
use testbed::harness::{Namespace, eventually, expect};
use testbed::network;

use super::LOGIN;
use super::external_slurm::{EXTRA_CONF, Hybrid, NO_CGROUPS, create_keys, machine_with_cluster_dns};
use crate::common::clusters::{change_spec, install_as_written, install_chart, wait_said};
use crate::common::slurm::{SOON, slurm, wait_node};

const RECORDS: &str = include_str!("../../../../../examples/hybrid/records.yaml");
const MIXED: &str = include_str!("../../../../../examples/hybrid/mixed.yaml");

/// It is noticed whatever slurmdbd address slurmrestd started with.
pub(super) fn an_address_without_slurmdbd_is_noticed(hybrid: &Hybrid) {
    let namespace = &hybrid.namespace;
    let accounting = "accounting/slurm";
    let no_slurmdbd = "what listens there is not slurmdbd";
    let at = |host: &str, port: u16| json!({ "externalConfig": { "host": host, "port": port } });
    let slurmrestd = format!("slurm-restapi.{}", namespace.name);
    let theirs = "--from-literal=jwt.key=a key of other clusters";
    namespace
        .ask(&["create", "secret", "generic", "theirs", theirs])
        .unwrap();
    wait_said(namespace, accounting, "Degraded", &["False"]);
    for (spec, words) in [
        (at(&hybrid.ctl.address, 6999), "SlurmdbdAway"),
        // slurmctld, an HTTP server and a TLS server.
        (at(&hybrid.ctl.address, 6817), no_slurmdbd),
        (at(&slurmrestd, 6820), no_slurmdbd),
        (at(network::CONTROL_PLANE, network::API_PORT), no_slurmdbd),
        (at(&hybrid.ctl.address, 6819), "False"),
    ] {
        change_spec(namespace, accounting, &spec).unwrap();
        let since = Instant::now();
        wait_said(namespace, accounting, "Degraded", &[words]);
        let noticed = since.elapsed();
        assert!(noticed < Duration::from_mins(1), "{spec} was noticed after {noticed:?}");
    }
    // The reference to the key is immutable, so another Accounting of the same slurmdbd has the wrong one.
    let mut spec: Value = serde_json::from_str(&namespace.field(accounting, ".spec").unwrap()).unwrap();
    spec["jwtKeyRef"] = json!({ "name": "theirs", "key": "jwt.key" });
    let other = json!({
        "apiVersion": "slinky.slurm.net/v1beta1", "kind": "Accounting", "metadata": { "name": "other" }, "spec": spec,
    });
    namespace.apply(&other.to_string()).unwrap();
    wait_said(
        namespace,
        "accounting/other",
        "Degraded",
        &["it rejects the operator's token"],
    );
    namespace.ask(&["delete", "accounting/other"]).unwrap();
}

/// Waits until a job of this cluster is recorded as completed.
pub(super) fn wait_recorded(cluster: &str, job: &str, ask: impl Fn(&str) -> Result<String>) {
    let line = format!("sacct -X --noheader --parsable2 --format=Cluster,State --jobs={job}");
    eventually("sacct shows it", SOON, || {
        let said = ask(&line)?;
        expect(said.trim() == format!("{cluster}|COMPLETED"), said)
    })
    .unwrap();
}

/// Two more clusters with the same slurmdbd and slurmctld in Kubernetes; an external machine is a node of the second.
pub(super) fn clusters_in_kubernetes_use_the_external_slurmdbd(hybrid: &Hybrid) {
    let mixed = format!(
        "{}{NO_CGROUPS}",
        MIXED.replace("controller:\n", &format!("controller:\n{EXTRA_CONF}"))
    );
    let records = Namespace::create(hybrid.cluster, "records").unwrap();
    create_keys(&records);
    install_chart(&records, &hybrid.filled_in(RECORDS)).unwrap();
    let second = Namespace::create(hybrid.cluster, "mixed").unwrap();
    create_keys(&second);
    install_as_written(&second, &hybrid.filled_in(&mixed)).unwrap();
    second.wait_new("condition=Ready", "pod/slurm-controller-0").unwrap();
    let joined = machine_with_cluster_dns(&second, 4, "bare-4");
    joined
        .start(
            "slurmd",
            &format!("slurmd -D -Z --conf-server slurm-controller.{}:6817", second.name),
        )
        .unwrap();

    for (namespace, cluster, nodes) in [
        (&records, "inside", &["slinky-0"][..]),
        (&second, "mixed", &["bare-4", "slinky-0"]),
    ] {
        for node in nodes {
            wait_node(namespace, node, &["State=IDLE"], &[]).unwrap();
        }
        let submit = format!(
            "sbatch --parsable --wait --chdir=/tmp -o /dev/null -N{} --wrap 'srun true'",
            nodes.len()
        );
        let job = slurm(namespace, &submit).unwrap();
        wait_recorded(cluster, job.trim(), |line| slurm(namespace, line));
    }
    eventually(
        "users log in with an external slurmdbd and an external node",
        SOON,
        || {
            let shown = second.exec(LOGIN, "srun -w bare-4 hostname")?;
            expect(shown == "bare-4\n", shown)
        },
    )
    .unwrap();
}
