//! slurmctld's pod is deleted by force while its kubelet does not notice, so its slurmctld runs on beside the next one.

use std::collections::BTreeSet;
use std::fs::read_dir;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use testbed::harness::{Namespace, alone, eventually, expect};

use crate::common::clusters::{ONE_WORKER, chart_cluster};
use crate::common::jobs::{start_job, wait_undisturbed};
use crate::common::nodes::RestoreNodes;
use crate::common::slurm::{SOON, wait_idle, wait_saved};

const POD: &str = "slurm-controller-0";

/// The pods, of those with these UIDs, that have a slurmctld.
fn with_slurmctld(pods: &[String]) -> BTreeSet<&str> {
    let processes = read_dir("/proc").unwrap().filter_map(|process| {
        let process = process.ok()?.path();
        let is_slurmctld = std::fs::read_to_string(process.join("comm")).ok()? == "slurmctld\n";
        let environment = is_slurmctld.then(|| std::fs::read(process.join("environ")).ok())??;
        let environment = String::from_utf8_lossy(&environment).into_owned();
        pods.iter().find(|pod| environment.contains(pod.as_str()))
    });
    processes.map(String::as_str).collect()
}

fn uid(namespace: &Namespace) -> anyhow::Result<String> {
    namespace.uid(&format!("pod/{POD}"))
}

#[test]
fn a_slurmctld_whose_kubelet_is_frozen_stops_before_the_next_one_starts() {
    let alone = alone();
    let cluster = alone.cluster;
    let _restored = RestoreNodes(cluster);
    let namespace = chart_cluster(cluster, "fence", ONE_WORKER, 1);
    let job = start_job(&namespace, 60);
    wait_saved(&namespace).unwrap();
    let old = uid(&namespace).unwrap();
    assert_eq!(
        with_slurmctld(std::slice::from_ref(&old)).len(),
        1,
        "the process is not recognised"
    );

    let node = namespace.field(&format!("pod/{POD}"), ".spec.nodeName").unwrap();
    cluster.ask(&["cordon", &node]).unwrap();
    let frozen = cluster.pause_kubelet(&node).unwrap();
    namespace
        .ask(&["delete", "pod", POD, "--force", "--grace-period=0"])
        .unwrap();
    let new = eventually("there is a new pod", SOON, || {
        let new = uid(&namespace)?;
        expect(!new.is_empty() && new != old, &new)?;
        Ok(new)
    })
    .unwrap();
    let (pods, is_over) = ([old.clone(), new.clone()], AtomicBool::new(false));
    std::thread::scope(|scope| {
        let observer = scope.spawn(|| {
            let mut seen = Vec::new();
            while !is_over.load(Ordering::Relaxed) {
                let now = with_slurmctld(&pods);
                if seen.last() != Some(&now) {
                    seen.push(now);
                }
                std::thread::sleep(Duration::from_millis(5));
            }
            seen
        });
        let responds = eventually("the new slurmctld responds", SOON, || {
            expect(uid(&namespace)? == new, "the pod has been replaced")?;
            let ready = namespace.field(&format!("pod/{POD}"), ".status.conditions[?(@.type==\"Ready\")].status")?;
            expect(ready == "True", ready)
        });
        is_over.store(true, Ordering::Relaxed);
        let seen = observer.join().unwrap();
        responds.unwrap();
        let expected: [&[&str]; 3] = [&[&old], &[], &[&new]];
        assert_eq!(
            seen,
            expected.map(|pods| pods.iter().copied().collect()),
            "old {old}, new {new}"
        );
    });
    frozen.heal().unwrap();
    cluster.ask(&["uncordon", &node]).unwrap();
    wait_undisturbed(&namespace, &job, 0);
    wait_idle(&namespace, 1).unwrap();
    assert_eq!(with_slurmctld(&pods), BTreeSet::from([new.as_str()]));
}
