//! The order in which workers are removed in a scale-in. It is upstream's, rule by rule, with one addition: among workers
//! of the same cost those without a job in Slurm are first, as they need no wait.

use std::cmp::Reverse;

use jiff::Timestamp;

use crate::{
    cluster::Seen,
    worker::{Phase, Worker},
};

/// Sorts the workers to remove first to the front.
pub(super) fn sort_for_deletion(workers: &mut [Worker<'_>], nodeset: &str, seen: Option<&Seen>) {
    // A later ready time and a later creation are first, and an unknown time is before all of them. Readiness itself is
    // part of the rank.
    workers.sort_by_cached_key(|worker| {
        (
            rank(*worker, nodeset, seen),
            Reverse(unset_is_latest(worker.ready_since().filter(|_| worker.is_ready()))),
            Reverse(unset_is_latest(worker.created())),
            // Upstream has no tie-breaker; the choice has to be the same in every reconcile.
            worker.name(),
        )
    });
}

type Rank = (
    bool,
    Phase,
    bool,
    i32,
    bool,
    Timestamp,
    Reverse<bool>,
    Reverse<Option<u32>>,
);

fn rank(worker: Worker<'_>, nodeset: &str, seen: Option<&Seen>) -> Rank {
    (
        worker.kubernetes_node().is_some(),
        worker.phase(),
        worker.is_ready(),
        worker.deletion_cost(),
        seen.is_some_and(|seen| is_busy(worker, seen)),
        // A worker without a deadline has no job with a time limit.
        worker.deadline().unwrap_or(Timestamp::MIN),
        Reverse(worker.is_cordoned()),
        Reverse(worker.ordinal(nodeset)),
    )
}

fn is_busy(worker: Worker<'_>, seen: &Seen) -> bool {
    let node = worker.slurm_name().and_then(|name| seen.nodes.get(name));
    node.is_some_and(|node| node.state.is_busy())
}

fn unset_is_latest(at: Option<Timestamp>) -> Timestamp {
    at.filter(|at| *at != Timestamp::MIN).unwrap_or(Timestamp::MAX)
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::Pod;
    use serde_json::{Value, json};

    use super::*;

    fn pod(name: &str, change: impl FnOnce(&mut Value)) -> Pod {
        let mut pod = json!({
            "metadata": { "name": name, "creationTimestamp": "2026-01-01T00:00:00Z", "annotations": {} },
            "spec": { "nodeName": "k1", "containers": [] },
            "status": {
                "phase": "Running",
                "conditions": [{ "type": "Ready", "status": "True", "lastTransitionTime": "2026-01-01T00:01:00Z" }],
            },
        });
        change(&mut pod);
        serde_json::from_value(pod).unwrap()
    }

    fn annotated(name: &str, key: &str, value: &str) -> Pod {
        pod(name, |pod| {
            pod["metadata"]["annotations"][format!("nodeset.slinky.slurm.net/{key}")] = json!(value);
        })
    }

    /// In each pair, the first is removed before the second, although its lower ordinal alone would keep it.
    #[test]
    fn rules_in_their_order() {
        let pairs = vec![
            (
                "unscheduled",
                pod("n-0", |pod| pod["spec"]["nodeName"] = Value::Null),
                pod("n-1", |_| {}),
            ),
            (
                "pending",
                pod("n-0", |pod| pod["status"]["phase"] = json!("Pending")),
                pod("n-1", |_| {}),
            ),
            (
                "unknown phase",
                pod("n-0", |pod| pod["status"]["phase"] = json!("Unknown")),
                pod("n-1", |_| {}),
            ),
            (
                "not ready",
                pod("n-0", |pod| pod["status"]["conditions"][0]["status"] = json!("False")),
                pod("n-1", |_| {}),
            ),
            (
                "lower cost",
                annotated("n-0", "pod-deletion-cost", "-5"),
                pod("n-1", |_| {}),
            ),
            (
                "no deadline",
                pod("n-0", |_| {}),
                annotated("n-1", "pod-deadline", "2026-01-02T00:00:00Z"),
            ),
            (
                "earlier deadline",
                annotated("n-0", "pod-deadline", "2026-01-01T12:00:00Z"),
                annotated("n-1", "pod-deadline", "2026-01-02T00:00:00Z"),
            ),
            ("cordoned", annotated("n-0", "pod-cordon", "True"), pod("n-1", |_| {})),
            ("higher number", pod("n-10", |_| {}), pod("n-9", |_| {})),
        ];
        for (rule, first, second) in &pairs {
            let mut workers = [Worker(second), Worker(first)];
            sort_for_deletion(&mut workers, "n", None);
            assert_eq!(
                workers.map(Worker::name),
                [Worker(first).name(), Worker(second).name()],
                "{rule}"
            );
        }
    }

    #[test]
    fn an_idle_worker_is_before_a_busy_one() {
        let nodes = serde_json::from_value(json!([
            { "name": "n-0", "state": ["IDLE"] },
            { "name": "n-1", "state": ["MIXED"] },
        ]));
        let seen = Seen::of_nodes(nodes.unwrap(), Timestamp::UNIX_EPOCH);
        let pods = [pod("n-0", |_| {}), pod("n-1", |_| {})];
        let mut workers = [Worker(&pods[1]), Worker(&pods[0])];
        sort_for_deletion(&mut workers, "n", Some(&seen));
        assert_eq!(workers.map(Worker::name), ["n-0", "n-1"]);
        // The cost, which a user sets, takes precedence.
        let cheap = annotated("n-1", "pod-deletion-cost", "-5");
        let mut workers = [Worker(&pods[0]), Worker(&cheap)];
        sort_for_deletion(&mut workers, "n", Some(&seen));
        assert_eq!(workers.map(Worker::name), ["n-1", "n-0"]);
    }

    #[test]
    fn without_ordinals_the_youngest_is_first() {
        let old = pod("n-abcde", |_| {});
        let ready_later = pod("n-fghij", |pod| {
            pod["status"]["conditions"][0]["lastTransitionTime"] = json!("2026-01-01T00:02:00Z");
        });
        let younger = pod("n-klmno", |pod| {
            pod["metadata"]["creationTimestamp"] = json!("2026-01-01T00:00:30Z");
        });
        let mut workers = [Worker(&old), Worker(&younger), Worker(&ready_later)];
        sort_for_deletion(&mut workers, "n", None);
        assert_eq!(workers.map(Worker::name), ["n-fghij", "n-klmno", "n-abcde"]);
    }

    #[test]
    fn a_cost_that_is_no_plain_number_is_none() {
        for (text, cost) in [
            ("7", 7),
            ("-7", -7),
            ("0", 0),
            ("+7", 0),
            ("07", 0),
            ("x", 0),
            ("", 0),
            ("9999999999", 0),
        ] {
            assert_eq!(
                Worker(&annotated("n-0", "pod-deletion-cost", text)).deletion_cost(),
                cost,
                "{text:?}"
            );
        }
    }
}
