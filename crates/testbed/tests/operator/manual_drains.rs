//! Manual changes in Slurm are kept, whatever is changed in Kubernetes at the same time.

use std::thread::{scope, sleep};
use std::time::Duration;

use anyhow::Result;
use serde_json::json;
use testbed::harness::{Namespace, cluster, eventually, expect, rounds};

use crate::common::clusters::{CONTROLLER, REST_API, change_spec, operator_namespace, workers};
use crate::common::manual_drains::{SPREAD, drain_by_hand, expect_drained_by_hand, resume_by_hand};
use crate::common::pods::{self, uids};
use crate::common::slurm::{SOON, slurm, slurmrestd_pod, start_job, wait_idle, wait_node};

const WORKERS: usize = 6;
/// The operator polls Slurm every five seconds; this is long enough for its reaction.
const SETTLED: Duration = Duration::from_secs(8);

fn set_up(name: &str) -> Namespace {
    let namespace = operator_namespace(cluster(), name);
    namespace.apply(CONTROLLER).unwrap();
    namespace.apply(REST_API).unwrap();
    namespace.apply(&workers(WORKERS)).unwrap();
    wait_idle(&namespace, 6).unwrap();
    namespace
}

fn nodes() -> Vec<String> {
    (0..WORKERS).map(|number| format!("compute-{number}")).collect()
}

/// Runs a command in Kubernetes while all nodes are drained manually, some before and some after it.
fn beside(namespace: &Namespace, order: impl FnOnce() -> Result<()> + Send) {
    scope(|scope| {
        let ordered = scope.spawn(move || {
            sleep(SPREAD);
            order()
        });
        drain_by_hand(namespace, &nodes()).unwrap();
        ordered.join().unwrap().unwrap();
    });
    sleep(SETTLED);
}

fn put_back(namespace: &Namespace) {
    resume_by_hand(namespace, &nodes()).unwrap();
    wait_idle(namespace, 6).unwrap();
}

#[test]
fn a_manual_drain_survives_a_cordon_of_the_pod() {
    let namespace = set_up("people-cordon");
    let annotate = |word: &str| {
        let annotate = [
            "annotate",
            "--overwrite",
            "pods",
            "-l",
            "app.kubernetes.io/name=slurmd",
            word,
        ];
        namespace.ask(&annotate).map(drop)
    };
    for _ in 0..rounds(1) {
        beside(&namespace, || annotate("nodeset.slinky.slurm.net/pod-cordon=true"));
        expect_drained_by_hand(&namespace, &nodes()).unwrap();
        annotate("nodeset.slinky.slurm.net/pod-cordon-").unwrap();
        sleep(SETTLED);
        expect_drained_by_hand(&namespace, &nodes()).unwrap();
        put_back(&namespace);
    }
    // A manual resume of a cordoned node is kept too, at once.
    annotate("nodeset.slinky.slurm.net/pod-cordon=true").unwrap();
    for node in nodes() {
        wait_node(&namespace, &node, &["DRAIN", "was cordoned"], &[]).unwrap();
        slurm(&namespace, &format!("scontrol update nodename={node} state=resume")).unwrap();
    }
    sleep(SETTLED);
    wait_idle(&namespace, 6).unwrap();
}

#[test]
fn a_manual_drain_survives_a_rolling_update() {
    let namespace = set_up("people-update");
    // A drained worker counts as unavailable, and all are drained manually.
    let all_at_once = json!({ "updateStrategy": { "rollingUpdate": { "maxUnavailable": "100%" } } });
    change_spec(&namespace, "nodeset/compute", &all_at_once).unwrap();
    for round in 0..rounds(1) {
        beside(&namespace, || {
            let heavier = json!({ "extraConf": format!("Weight={}", round + 2) });
            change_spec(&namespace, "nodeset/compute", &heavier)
        });
        eventually("all workers are of the new revision", SOON * 2, || {
            let generation = namespace.field("nodeset/compute", ".metadata.generation")?;
            let path = ".status.observedGeneration}/{.status.updatedReplicas}/{.status.readyReplicas";
            let status = namespace.field("nodeset/compute", path)?;
            expect(status == format!("{generation}/6/6"), status)
        })
        .unwrap();
        sleep(SETTLED);
        expect_drained_by_hand(&namespace, &nodes()).unwrap();
        put_back(&namespace);
    }
}

#[test]
fn a_manual_drain_survives_a_reverted_scale_in() {
    let namespace = set_up("people-scale");
    let scale = |replicas: usize| {
        let scale = ["scale", "nodeset/compute", &format!("--replicas={replicas}")];
        namespace.ask(&scale).map(drop)
    };
    let before = uids(&namespace, pods::WORKERS).unwrap();
    for _ in 0..rounds(1) {
        // A worker with a job is not removed at once.
        for node in nodes() {
            start_job(&namespace, &format!("-p all -w {node}"), "sleep 300").unwrap();
        }
        beside(&namespace, || scale(0));
        scale(WORKERS).unwrap();
        sleep(SETTLED);
        expect_drained_by_hand(&namespace, &nodes()).unwrap();
        slurm(&namespace, "scancel --partition=all").unwrap();
        put_back(&namespace);
        assert_eq!(
            uids(&namespace, pods::WORKERS).unwrap(),
            before,
            "no worker was deleted"
        );
    }
}

#[test]
fn an_order_that_hung_in_slurmrestd_is_not_executed_late() {
    let namespace = set_up("people-frozen");
    namespace.rollout("deployment/slurm-restapi").unwrap();
    let pod = slurmrestd_pod(&namespace).unwrap();
    let annotate = |word: &str| {
        namespace
            .ask(&["annotate", "--overwrite", "pod/compute-0", word])
            .unwrap()
    };
    for _ in 0..rounds(1) {
        annotate("nodeset.slinky.slurm.net/pod-cordon=true");
        wait_node(&namespace, "compute-0", &["DRAIN", "was cordoned"], &[]).unwrap();
        let frozen = cluster().pause_container(namespace.pod(&pod), "slurmrestd").unwrap();
        annotate("nodeset.slinky.slurm.net/pod-cordon-");
        wait_node(&namespace, "compute-0", &["State=IDLE"], &["DRAIN"]).unwrap();
        slurm(&namespace, "scontrol update nodename=compute-0 state=drain reason=RMA").unwrap();
        frozen.heal().unwrap();
        sleep(SETTLED);
        expect_drained_by_hand(&namespace, &["compute-0".to_owned()]).unwrap();
        slurm(&namespace, "scontrol update nodename=compute-0 state=resume").unwrap();
        wait_idle(&namespace, 6).unwrap();
    }
}
