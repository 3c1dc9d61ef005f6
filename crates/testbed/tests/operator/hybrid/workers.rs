//! Workers in Kubernetes, machines and clients of an external slurmctld.

use std::time::Duration;

use serde_json::json;
use testbed::harness::{eventually, expect};

use super::HOSTS;
use super::external_slurm::{Hybrid, boot};
use crate::common::clusters::install_as_written;
use crate::common::slurm::{SOON, slurmrestd_pod};

const OLDER_GUIDES: &str = include_str!("../../../../../examples/earlier-charts/hybrid.yaml");

/// The older guides' values and checks, with only the hosts filled in. Of five workers on three nodes, two are pending.
pub(super) fn the_older_guides_values_install_as_written(hybrid: &Hybrid) {
    let namespace = &hybrid.namespace;
    install_as_written(namespace, &hybrid.filled_in(OLDER_GUIDES)).unwrap();
    eventually("a worker on each node joins", SOON, || {
        let nodes = hybrid.slurm("scontrol --oneliner show nodes")?;
        let workers = nodes.lines().filter(|line| line.starts_with("NodeName=slinky-"));
        let idle = workers.filter(|line| line.contains("State=IDLE+DYNAMIC_NORM")).count();
        expect(idle == hybrid.cluster.nodes().len(), nodes)
    })
    .unwrap();
    // A slurmd can join before the kubelet reports its pod as running.
    eventually("a worker runs on each node", SOON, || {
        let pods = namespace.ask(&["get", "pods", "--no-headers"])?;
        let workers = |phase: &str| {
            let lines = pods.lines().filter(|line| line.starts_with("slurm-worker-slinky-"));
            lines.filter(|line| line.contains(phase)).count()
        };
        expect((workers("Running"), workers("Pending")) == (3, 2), &pods)
    })
    .unwrap();
    let login = ["exec", "deployment/slurm-login-slinky", "--", "sinfo"];
    let refused = namespace.ask(&login).unwrap_err().to_string();
    assert!(
        refused.contains("not found"),
        "those values make no LoginSet: {refused}"
    );
}

/// The workers with hostNetwork, by the names of their Kubernetes nodes; the third is pending, because no node is left.
pub(super) fn workers_on_the_nodes_networks(hybrid: &Hybrid) -> Vec<String> {
    let path =
        "jsonpath={range .items[*]}{.spec.nodeName}={.status.conditions[?(@.type==\"PodScheduled\")].reason}\n{end}";
    let ask = [
        "get",
        "pods",
        "--selector",
        "app.kubernetes.io/instance=slurm-worker-host",
        "-o",
        path,
    ];
    eventually("two on nodes of their own and a third that waits", SOON, || {
        let found = hybrid.namespace.ask(&ask)?;
        let mut places: Vec<&str> = found.lines().collect();
        places.sort_unstable();
        expect(places.len() == 3 && places.first() == Some(&"=Unschedulable"), &found)?;
        let named: Vec<String> = places
            .iter()
            .filter_map(|place| place.strip_suffix('='))
            .map(str::to_owned)
            .collect();
        expect(named.len() == 2 && named.first() != named.last(), &found)?;
        Ok(named)
    })
    .unwrap()
}

/// A login host, and a second slurmrestd.
pub(super) fn external_hosts_log_in_and_serve_rest(hybrid: &Hybrid, conf_server: &str, worker: &str) {
    let host = boot(hybrid.cluster, 4, "bare-login");
    host.start("sackd", &format!("sackd -D {conf_server}")).unwrap();
    eventually("an external login host works", SOON, || {
        let shown = host.run(&format!("srun -w {worker} hostname"))?;
        expect(shown.trim() == worker, shown)
    })
    .unwrap();
    let serve = "env SLURM_JWT=daemon setpriv --reuid=65534 --regid=65534 --clear-groups slurmrestd 0.0.0.0:6820";
    host.start("slurmrestd", serve).unwrap();
    let ask = "eval $(scontrol token username=slurm) && curl --silent --fail \
        -H X-SLURM-USER-NAME:slurm -H X-SLURM-USER-TOKEN:$SLURM_JWT ADDRESS:6820/slurm/v0.0.44/nodes/";
    eventually("an external slurmrestd responds", SOON, || {
        let nodes = hybrid.slurm(&ask.replace("ADDRESS", &host.address))?;
        expect(nodes.contains(worker), nodes)
    })
    .unwrap();
}

/// No agent runs outside Kubernetes, so orders go through slurmrestd.
pub(super) fn an_order_that_hung_in_slurmrestd_is_not_executed_later(hybrid: &Hybrid, worker: &str) {
    let namespace = &hybrid.namespace;
    let annotate = |word: &str| {
        let pod = format!("pod/slurm-worker-{worker}");
        namespace.ask(&["annotate", "--overwrite", &pod, word]).unwrap();
    };
    annotate("nodeset.slinky.slurm.net/pod-cordon=true");
    hybrid.wait_node(worker, &["DRAIN", "was cordoned"]);
    let restd = slurmrestd_pod(namespace).unwrap();
    let frozen = hybrid
        .cluster
        .pause_container(namespace.pod(&restd), "slurmrestd")
        .unwrap();
    annotate("nodeset.slinky.slurm.net/pod-cordon-");
    // The operator's order has timed out by then.
    std::thread::sleep(Duration::from_secs(12));
    let drain = format!("scontrol update nodename={worker} state=drain reason=RMA");
    hybrid.slurm(&drain).unwrap();
    frozen.heal().unwrap();
    std::thread::sleep(Duration::from_secs(8));
    let shown = hybrid
        .slurm(&format!("scontrol show node {worker} --oneliner"))
        .unwrap();
    assert!(shown.contains("DRAIN") && shown.contains("Reason=RMA "), "{shown}");
    hybrid
        .slurm(&format!("scontrol update nodename={worker} state=resume"))
        .unwrap();
    hybrid.wait_node(worker, &["State=IDLE"]);
}

/// The record of a worker that had the name of its Kubernetes node and was lost with it.
pub(super) fn a_record_named_by_a_lost_node_is_pruned(hybrid: &Hybrid, conf_server: &str) {
    let namespace = &hybrid.namespace;
    let comment = json!({
        "namespace": namespace.name, "podName": "slurm-worker-host-7", "node": "node77",
        "nodeSetName": "slurm-worker-host", "nodeSetUID": namespace.uid(HOSTS).unwrap(),
    });
    let lost = boot(hybrid.cluster, 4, "node77");
    lost.start("slurmd", &format!("slurmd -D -Z {conf_server}")).unwrap();
    hybrid.wait_node("node77", &["State=IDLE+DYNAMIC_NORM"]);
    drop(lost);
    let mark = format!("scontrol update NodeName=node77 Comment='{comment}'");
    hybrid.slurm(&mark).unwrap();
    eventually("the lost node's record goes", SOON, || {
        let nodes = hybrid.nodes()?;
        expect(!nodes.iter().any(|node| node == "node77"), nodes)
    })
    .unwrap();
}
