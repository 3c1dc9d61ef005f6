//! Manual drains by annotation and in Slurm. Cordons of Kubernetes nodes are tested in `alone`, because they disturb
//! other tests.

use std::time::Duration;

use testbed::harness::{cluster, eventually, expect};

use crate::common::clusters::{CONTROLLER, REST_API, operator_namespace, workers};
use crate::common::kills::kill_operator;
use crate::common::slurm::{SOON, slurm, wait_idle, wait_node};

#[test]
fn drains_by_annotation_by_scontrol_and_by_rest_do_not_interfere() {
    let cluster = cluster();
    let namespace = operator_namespace(cluster, "drain");
    namespace.apply(CONTROLLER).unwrap();
    namespace.apply(REST_API).unwrap();
    namespace.apply(&workers(2)).unwrap();
    wait_idle(&namespace, 2).unwrap();
    let annotate = |words: &[&str]| {
        let mut all = vec!["annotate", "--overwrite", "pod/compute-1"];
        all.extend(words);
        namespace.ask(&all).unwrap();
    };
    let open = |node: &str| wait_node(&namespace, node, &["State=IDLE"], &["DRAIN"]).unwrap();

    // With the annotation of the guides, and with that of the reference and a reason.
    annotate(&["slinky.slurm.net/pod-cordon=true"]);
    let default = "Reason=slurm-operator: Pod";
    wait_node(&namespace, "compute-1", &["DRAIN", default, "was cordoned"], &[]).unwrap();
    annotate(&["slinky.slurm.net/pod-cordon-"]);
    open("compute-1");
    annotate(&[
        "nodeset.slinky.slurm.net/pod-cordon=true",
        "nodeset.slinky.slurm.net/pod-cordon-reason=ticket 7",
    ]);
    wait_node(
        &namespace,
        "compute-1",
        &["DRAIN", "Reason=slurm-operator: ticket 7"],
        &[],
    )
    .unwrap();

    // A manual drain in Slurm is kept, also by an operator that has just started.
    slurm(&namespace, "scontrol update nodename=compute-0 state=drain reason=fan").unwrap();
    kill_operator(cluster).unwrap();
    eventually("both drains are counted", SOON, || {
        let drained = namespace.field("nodeset/compute", ".status.slurmDrain")?;
        expect(drained == "2", drained)
    })
    .unwrap();
    annotate(&["nodeset.slinky.slurm.net/pod-cordon-"]);
    open("compute-1");
    wait_node(&namespace, "compute-0", &["DRAIN", "Reason=fan"], &[]).unwrap();
    slurm(&namespace, "scontrol update nodename=compute-0 state=resume").unwrap();
    open("compute-0");

    // The same by REST, with the command of the guide and the one header that slurmrestd requires.
    let token = slurm(&namespace, "scontrol token username=slurm lifespan=600").unwrap();
    let token = token.trim().strip_prefix("SLURM_JWT=").unwrap();
    let rest = |body: &str| {
        let line = format!(
            r#"SLURMRESTD=http://slurm-restapi:6820 TOKEN={token}; curl -sS -X POST "$SLURMRESTD/slurm/v0.0.44/node/compute-0" \
     -H "X-SLURM-USER-TOKEN: $TOKEN" -H 'Content-Type: application/json' \
     -d '{body}'"#
        );
        slurm(&namespace, &line).unwrap()
    };
    let said = rest(r#"{"state": ["DRAIN"], "reason": "Manual maintenance"}"#);
    wait_node(&namespace, "compute-0", &["DRAIN", "Reason=Manual maintenance"], &[])
        .unwrap_or_else(|error| panic!("{error:#}: {said}"));
    annotate(&["nodeset.slinky.slurm.net/pod-cordon=true"]);
    wait_node(&namespace, "compute-1", &["DRAIN", "Reason=slurm-operator"], &[]).unwrap();
    annotate(&["nodeset.slinky.slurm.net/pod-cordon-"]);
    open("compute-1");
    wait_node(&namespace, "compute-0", &["DRAIN", "Reason=Manual maintenance"], &[]).unwrap();
    rest(r#"{"state": ["RESUME"]}"#);
    open("compute-0");

    // A manual resume of a node whose pod is cordoned is kept too.
    annotate(&["nodeset.slinky.slurm.net/pod-cordon=true"]);
    wait_node(&namespace, "compute-1", &["DRAIN", "Reason=slurm-operator"], &[]).unwrap();
    eventually("the drain is recorded", SOON, || {
        let since = namespace.field(
            "pod/compute-1",
            ".metadata.annotations.nodeset\\.slinky\\.slurm\\.net/drained",
        )?;
        expect(!since.is_empty(), since)
    })
    .unwrap();
    // Before that, Slurm could have lost the drain by itself.
    std::thread::sleep(Duration::from_secs(17));
    slurm(&namespace, "scontrol update nodename=compute-1 state=resume").unwrap();
    eventually("the manual resume is reported", SOON, || {
        let said = namespace.field(
            "nodeset/compute",
            ".status.conditions[?(@.type==\"Progressing\")].message",
        )?;
        expect(said.contains("an administrator resumed it in Slurm"), said)
    })
    .unwrap();
    open("compute-1");
}
