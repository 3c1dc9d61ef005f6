//! An idle operator, and the takeover by another leader.

use std::time::Duration;

use testbed::cluster::Cluster;
use testbed::command::output;
use testbed::harness::{Namespace, alone, eventually, expect};
use testbed::paths;

use crate::common::clusters::{ONE_WORKER, chart_cluster, install_chart};
use crate::common::operator::{helm, install};
use crate::common::slurm::{SOON, slurm, wait_idle};

/// Long enough for several periods of every poll of the operator. TESTBED_AT_REST sets another number of seconds.
const AT_REST: Duration = Duration::from_mins(1);

fn at_rest() -> Duration {
    let asked = std::env::var("TESTBED_AT_REST");
    asked.map_or(AT_REST, |seconds| Duration::from_secs(seconds.parse().unwrap()))
}

/// The counters of writes in the API server's metrics, without leases, events and what Kubernetes writes for its nodes.
fn writes(cluster: &Cluster) -> Vec<String> {
    let metrics = cluster.ask(&["get", "--raw=/metrics"]).unwrap();
    let counted = |line: &&str| {
        let write = ["POST", "PUT", "PATCH", "APPLY", "DELETE"]
            .iter()
            .any(|verb| line.contains(&format!("verb=\"{verb}\"")));
        let own = [
            "leases",
            "events",
            "nodes",
            "tokenreviews",
            "subjectaccessreviews",
            "serviceaccounts",
        ];
        line.starts_with("apiserver_request_total{")
            && write
            && !own
                .iter()
                .any(|resource| line.contains(&format!("resource=\"{resource}\"")))
    };
    metrics.lines().filter(counted).map(str::to_owned).collect()
}

/// Waits until pending writes are done, and then expects no further writes.
pub(crate) fn expect_no_writes(cluster: &Cluster) {
    // Node counts are written at most every 15 s, so the last ones may still be pending.
    eventually("no writes are pending", SOON, || {
        let before = writes(cluster);
        std::thread::sleep(Duration::from_secs(16));
        expect(writes(cluster) == before, "still writing")
    })
    .unwrap();
    let before = writes(cluster);
    assert!(!before.is_empty());
    std::thread::sleep(at_rest());
    let after = writes(cluster);
    let new: Vec<&String> = after.iter().filter(|line| !before.contains(line)).collect();
    assert!(new.is_empty(), "{new:#?}");
}

#[test]
fn a_cluster_at_rest_causes_no_writes() {
    let alone = alone();
    let cluster = alone.cluster;
    let namespace = chart_cluster(cluster, "rest", ONE_WORKER, 1);
    namespace
        .wait("condition=Ready", "nodeset/slurm-worker-slinky")
        .unwrap();
    expect_no_writes(cluster);
}

#[test]
fn another_operator_takes_over_when_the_leader_dies() {
    let alone = alone();
    let cluster = alone.cluster;
    install(cluster);
    let replicas = |count: &str| {
        let chart = paths::repository().join("charts/slurm-operator");
        let set = format!("operator.replicas={count}");
        output(
            helm(cluster)
                .args([
                    "upgrade",
                    "--wait",
                    "--namespace",
                    "slinky",
                    "slurm-operator",
                    "--set",
                    &set,
                ])
                .arg(chart),
        )
    };
    replicas("2").unwrap();
    let holder = || {
        let path = "jsonpath={.items[0].spec.holderIdentity}";
        cluster
            .ask(&["get", "lease", "--namespace", "slinky", "-o", path])
            .unwrap()
    };
    let kill_leader = || {
        let leader = holder();
        let pod = leader.split('_').next().unwrap();
        let kill = [
            "delete",
            "pod",
            "--namespace",
            "slinky",
            pod,
            "--grace-period=0",
            "--force",
        ];
        cluster.ask(&kill).unwrap();
        leader
    };
    let namespace = Namespace::create(cluster, "leader").unwrap();
    install_chart(&namespace, ONE_WORKER).unwrap();
    namespace.wait("create", "service/slurm-controller").unwrap();
    let first = kill_leader();
    let keys = || {
        namespace
            .ask(&[
                "get",
                "secrets",
                "-o",
                "jsonpath={range .items[*]}{.metadata.uid}{.data}{end}",
            ])
            .unwrap()
    };
    let keys_then = keys();
    wait_idle(&namespace, 1).unwrap();
    assert_eq!(slurm(&namespace, "srun -p all hostname").unwrap(), "slinky-0\n");
    assert_eq!(keys(), keys_then);

    let second = kill_leader();
    namespace
        .ask(&["scale", "nodeset/slurm-worker-slinky", "--replicas=2"])
        .unwrap();
    wait_idle(&namespace, 2).unwrap();
    let third = holder();
    replicas("1").unwrap();
    assert!(first != second && second != third, "{first} {second} {third}");
}
