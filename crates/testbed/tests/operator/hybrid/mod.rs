//! A Slurm outside Kubernetes, with workers, slurmrestd and login pods inside, and machines that are neither.

mod accounting;
mod external_slurm;
mod machines;
mod partitions;
mod requirements;
mod workers;

use serde_json::json;
use testbed::harness::{eventually, expect};

use self::accounting::{an_address_without_slurmdbd_is_noticed, clusters_in_kubernetes_use_the_external_slurmdbd};
use self::external_slurm::{Hybrid, boot};
use self::partitions::external_partitions_are_changed_live;
use self::requirements::missing_requirements_are_named;
use self::workers::{
    a_record_named_by_a_lost_node_is_pruned, an_order_that_hung_in_slurmrestd_is_not_executed_later,
    external_hosts_log_in_and_serve_rest, the_older_guides_values_install_as_written, workers_on_the_nodes_networks,
};
use crate::common::clusters::{change_spec, install_as_written, wait_said};
use crate::common::slurm::SOON;

const VALUES: &str = include_str!("../../../../../examples/hybrid/values.yaml");
const HOST_NETWORK: &str = include_str!("../../../../../examples/hybrid/host-network.yaml");
const SET: &str = "nodeset/slurm-worker-slinky";
const LOGIN: &str = "deploy/slurm-login-slinky -c login";
const HOSTS: &str = "nodeset/slurm-worker-host";

/// One worker without hostNetwork beside the three with it, for which two nodes are left.
const SLINKY: &str = "nodesets:
  slinky:
    replicas: 1
  host:
    oversubscribeNode: true";

#[test]
fn an_external_slurm_has_workers_in_kubernetes_and_keeps_its_own() {
    let hybrid = Hybrid::begin();
    let namespace = &hybrid.namespace;
    let slurmctld = missing_requirements_are_named(&hybrid);
    the_older_guides_values_install_as_written(&hybrid);

    install_as_written(namespace, &hybrid.filled_in(VALUES)).unwrap();
    eventually("fewer workers", SOON, || {
        let nodes = hybrid.nodes()?;
        expect(
            nodes.iter().filter(|node| node.starts_with("slinky-")).count() == 2,
            nodes,
        )
    })
    .unwrap();
    let values = HOST_NETWORK
        .replace("nodesets:\n  host:", SLINKY)
        .replace("dnsPolicy", "dNSPolicy");
    install_as_written(namespace, &hybrid.filled_in(&values)).unwrap();
    let bare_1 = boot(hybrid.cluster, 2, "bare-1");
    let conf_server = format!("--conf-server {}:6817", hybrid.ctl.address);
    bare_1.start("slurmd", &format!("slurmd -D {conf_server}")).unwrap();
    let bare_2 = boot(hybrid.cluster, 3, "bare-2");
    bare_2.start("slurmd", &format!("slurmd -D -Z {conf_server}")).unwrap();
    let on_nodes = workers_on_the_nodes_networks(&hybrid);
    let worker = eventually("one of the first workers stays", SOON, || {
        let nodes = hybrid.nodes()?;
        let left: Vec<&String> = nodes.iter().filter(|node| node.starts_with("slinky-")).collect();
        let [one] = left.as_slice() else {
            anyhow::bail!("{nodes:?}")
        };
        Ok((*one).clone())
    })
    .unwrap();
    let workers = [on_nodes, vec![worker.clone()]].concat();
    let bare = ["bare-1", "bare-2"];
    let all: Vec<&str> = bare.into_iter().chain(workers.iter().map(String::as_str)).collect();
    for node in &all {
        hybrid.wait_node(node, &["State=IDLE"]);
    }
    let hosts = hybrid.slurm("srun -N5 hostname | sort").unwrap();
    assert_eq!(hosts.lines().collect::<Vec<_>>(), all);
    wait_said(
        &hybrid.namespace,
        HOSTS,
        "UnknownFields",
        &["dNSPolicy is read as dnsPolicy"],
    );

    // Through slurmrestd, and from a login pod.
    eventually("the NodeSet counts its nodes", SOON, || {
        let idle = namespace.field(SET, ".status.slurmIdle")?;
        expect(idle == "1", idle)
    })
    .unwrap();
    eventually(
        "people can log in, and the older guides' last check answers",
        SOON,
        || {
            let shown = namespace.ask(&["exec", "deployment/slurm-login-slinky", "--", "sinfo"])?;
            expect(shown.contains("idle"), shown)?;
            let shown = namespace.exec(LOGIN, "srun -w bare-1 hostname")?;
            expect(shown == "bare-1\n", shown)
        },
    )
    .unwrap();
    external_hosts_log_in_and_serve_rest(&hybrid, &conf_server, &worker);
    an_order_that_hung_in_slurmrestd_is_not_executed_later(&hybrid, &worker);

    // A scale-in waits for jobs and removes the records; the records of others are kept.
    for set in [SET, HOSTS] {
        change_spec(
            &hybrid.namespace,
            set,
            &json!({ "pruneSlurmNodeRecords": "NodeNotFound" }),
        )
        .unwrap();
    }
    a_record_named_by_a_lost_node_is_pruned(&hybrid, &conf_server);
    let jobs: Vec<String> = workers
        .iter()
        .map(|node| hybrid.start_job(&format!("-w {node}"), "sleep 10"))
        .collect();
    for set in [SET, HOSTS] {
        namespace.ask(&["scale", set, "--replicas=0"]).unwrap();
    }
    for node in &workers {
        hybrid.wait_node(node, &["DRAIN", "scale-in"]);
    }
    for job in &jobs {
        hybrid.wait_job(job, "COMPLETED");
    }
    hybrid.wait_nodes(&bare);
    for node in bare {
        hybrid.wait_node(node, &["State=IDLE"]);
    }

    // The external slurmdbd has the records.
    eventually("the jobs are in the accounts", SOON, || {
        let line = format!("sacct -X --noheader --format=State -j {}", jobs.join(","));
        let states = namespace.exec(LOGIN, &line)?;
        let states: Vec<&str> = states.split_whitespace().collect();
        expect(states == ["COMPLETED"; 3], states)
    })
    .unwrap();
    external_partitions_are_changed_live(&hybrid, slurmctld);
    an_address_without_slurmdbd_is_noticed(&hybrid);
    clusters_in_kubernetes_use_the_external_slurmdbd(&hybrid);
}
