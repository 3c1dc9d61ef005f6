//! Chooses which workers to create, which leave and which stay.
//!
//! In a scale-in, workers are removed in upstream's order, rule by rule, with one addition: among workers of the same cost
//! those without a job in Slurm are first, as they need no wait.

use std::{
    cmp::Reverse,
    collections::{BTreeMap, BTreeSet},
};

use api::{NodeSet, keys::labels, nodeset::ScalingMode};
use jiff::Timestamp;
use kube::ResourceExt;

use super::{BURST, daemon::fit, elastic::scale_by_power, size};
use crate::{
    cluster::Seen,
    nodeset::{
        build::{Place, hostname_on},
        observe::Observed,
    },
    worker::{Cause, Worker},
};

/// The workers to create and the fate of the existing ones.
#[derive(Debug, Default)]
pub(super) struct ScalePlan<'a> {
    pub(super) desired: u32,
    /// The first missing workers, at most [`BURST`].
    pub(super) create: Vec<Place>,
    /// All missing ordinals are below this one; 0 if none is missing.
    pub(super) end_of_numbers: u32,
    pub(super) stay: Vec<Worker<'a>>,
    pub(super) leave: Vec<(Worker<'a>, Cause)>,
    /// Terminating workers whose names their successors wait for.
    pub(super) awaited: Vec<Worker<'a>>,
}

pub(super) fn plan_scale<'a>(observed: &'a Observed, workers: &[Worker<'a>]) -> ScalePlan<'a> {
    let mode = observed.nodeset.spec.scaling_mode();
    let (own, others): (Vec<_>, Vec<_>) = workers.iter().copied().partition(|worker| worker.mode() == mode);
    let mut choice = match mode {
        ScalingMode::DaemonSet => scale_by_node(observed, own),
        _ => match observed.nodeset.spec.autoscaling() {
            Some(autoscaling) => scale_by_power(observed, autoscaling, own, workers),
            None => scale_by_ordinal(observed, own, workers),
        },
    };
    let others = others.into_iter().filter(|worker| worker.is_active());
    // Workers of the other mode leave once their replacements exist.
    if choice.create.is_empty() {
        choice.leave.extend(others.map(|worker| (worker, Cause::OtherMode)));
    } else {
        choice.stay.extend(others);
    }
    choice
}

impl ScalePlan<'_> {
    /// Whether this is the name of a worker that is still to be created.
    pub(super) fn is_wanted(&self, nodeset: &NodeSet, hostname: &str) -> bool {
        let is_missing =
            |number: u32| number < self.end_of_numbers && Place::of_ordinal(nodeset, number, None).hostname == hostname;
        // The host name prefix may end in digits too.
        let start = hostname.trim_end_matches(|c: char| c.is_ascii_digit()).len();
        let mut numbers = (start..hostname.len()).filter_map(|from| hostname.get(from..)?.parse().ok());
        self.create.iter().any(|place| place.hostname == hostname) || numbers.any(is_missing)
    }
}

/// Chooses `replicas` workers on the lowest free ordinals.
fn scale_by_ordinal<'a>(observed: &'a Observed, own: Vec<Worker<'a>>, all: &[Worker<'a>]) -> ScalePlan<'a> {
    let nodeset = observed.nodeset.as_ref();
    let name = nodeset.name_any();
    let desired = nodeset.spec.replicas();
    let wanted = size(desired);
    let (mut active, leaving): (Vec<_>, Vec<_>) = own.into_iter().partition(|worker| worker.is_active());

    // A terminating worker keeps its name until its successor takes the same ordinal. It does not count as present, or a
    // second worker would leave in its place, nor as missing, or a higher ordinal would be created.
    let successors = wanted.saturating_sub(active.len());
    let missing = successors.saturating_sub(leaving.len());
    let used: BTreeSet<u32> = all.iter().filter_map(|worker| worker.ordinal(&name)).collect();
    let pins = observed.pins();
    let create = (0..=u32::MAX)
        .filter(|ordinal| !used.contains(ordinal))
        .take(missing.min(BURST))
        .map(|ordinal| Place::of_ordinal(nodeset, ordinal, pins.get(&ordinal).copied()))
        .collect();
    let after_used = |end: u32, number: &u32| if *number < end { end.saturating_add(1) } else { end };
    let end_of_numbers = used.iter().fold(u32::try_from(missing).unwrap_or(u32::MAX), after_used);

    let surplus = active.len().saturating_sub(wanted);
    if surplus > 0 {
        sort_for_deletion(&mut active, &name, observed.knowledge.known());
        // Workers that were chosen before stay chosen: another choice would drain one worker after the other. Workers that
        // leave for another cause are next, as they are drained already.
        active.sort_by_key(|worker| match worker.leaving() {
            Some(leaving) if leaving.cause == Cause::ScaleIn => 0,
            Some(_) => 1,
            None => 2,
        });
    }
    ScalePlan {
        desired,
        create,
        end_of_numbers,
        stay: active.split_off(surplus),
        leave: active.into_iter().map(|worker| (worker, Cause::ScaleIn)).collect(),
        awaited: leaving.into_iter().take(successors).collect(),
    }
}

/// Chooses one worker on every matching Kubernetes node.
fn scale_by_node<'a>(observed: &'a Observed, own: Vec<Worker<'a>>) -> ScalePlan<'a> {
    let nodeset = observed.nodeset.as_ref();
    let mut by_node: BTreeMap<&str, Vec<Worker<'a>>> = BTreeMap::new();
    let mut choice = ScalePlan::default();
    for worker in own {
        match node_of(observed, worker) {
            Some(node) => by_node.entry(node).or_default().push(worker),
            // It is unscheduled, and its node is gone.
            None if worker.kubernetes_node().is_none() && worker.is_active() => {
                choice.leave.push((worker, Cause::Unfit));
            }
            // The garbage collector of Kubernetes deletes the pods of deleted nodes.
            None => {}
        }
    }
    for (node_name, node) in &observed.nodes {
        let fit = fit(nodeset, node);
        let place = Place::of_node(nodeset, node);
        choice.desired += u32::from(fit.run);
        let Some(here) = by_node.remove(node_name.as_str()) else {
            choice.create.extend(fit.run.then_some(place));
            continue;
        };
        let (active, leaving): (Vec<_>, Vec<_>) = here.into_iter().partition(|worker| worker.is_active());
        if fit.run && active.is_empty() {
            choice.awaited.extend(leaving);
        }
        let is_right = |worker: &Worker<'_>| fit.stay && worker.label(labels::POD_HOSTNAME) == Some(&place.hostname);
        let (mut right, wrong): (Vec<_>, Vec<_>) = active.into_iter().partition(is_right);
        // Of several workers on one node, the last in the ranking stays.
        sort_for_deletion(&mut right, &nodeset.name_any(), observed.knowledge.known());
        choice.stay.extend(right.pop());
        let unfit = wrong.into_iter().chain(right);
        choice.leave.extend(unfit.map(|worker| (worker, Cause::Unfit)));
    }
    choice
}

/// Returns the Kubernetes node that a worker runs on, or is created for.
fn node_of<'a>(observed: &'a Observed, worker: Worker<'_>) -> Option<&'a str> {
    let mut nodes = observed.nodes.iter();
    let (name, _) = match worker.kubernetes_node() {
        Some(name) => observed.nodes.get_key_value(name),
        None => nodes.find(|(_, node)| worker.label(labels::POD_HOSTNAME) == Some(&hostname_on(node))),
    }?;
    Some(name)
}

/// Sorts the workers to remove first to the front.
pub(super) fn sort_for_deletion(workers: &mut [Worker<'_>], nodeset: &str, seen: Option<&Seen>) {
    let is_busy = |worker: Worker<'_>| {
        let node = seen.and_then(|seen| seen.nodes.get(worker.slurm_name()?));
        node.is_some_and(|node| node.state.is_busy())
    };
    // An unknown time is before all others.
    let latest_first = |at: Option<Timestamp>| Reverse(at.filter(|at| *at != Timestamp::MIN).unwrap_or(Timestamp::MAX));
    workers.sort_by_cached_key(|worker| {
        (
            worker.kubernetes_node().is_some(),
            worker.phase(),
            worker.is_ready(),
            worker.deletion_cost(),
            is_busy(*worker),
            // A worker without a deadline has no job with a time limit.
            worker.deadline().unwrap_or(Timestamp::MIN),
            Reverse(worker.is_cordoned()),
            Reverse(worker.ordinal(nodeset)),
            latest_first(worker.ready_since().filter(|_| worker.is_ready())),
            latest_first(worker.created()),
            // Upstream has no tie-breaker; the choice has to be the same in every reconcile.
            worker.name(),
        )
    });
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::Pod;
    use serde_json::{Value, json};

    use super::*;
    use crate::nodeset::{
        fixture::{controller, nodeset, observed_exactly, slurm_key, unknown, worker},
        plan::{Effect, plan},
    };

    fn observed(spec: &Value, workers: Vec<Value>) -> Observed {
        let objects = [vec![controller(), slurm_key(), nodeset(spec)], workers].concat();
        observed_exactly("compute", objects, unknown())
    }

    #[test]
    fn no_more_places_are_collected_than_are_filled_now() {
        let many = observed(&json!({ "replicas": 65_536 }), vec![worker(0), worker(3)]);
        let workers: Vec<Worker<'_>> = many.workers().collect();
        let choice = plan_scale(&many, &workers);
        assert_eq!((choice.desired, choice.create.len()), (65_536, BURST));
        let made = |effect: &&Effect| matches!(effect, Effect::CreatePod { .. });
        assert_eq!(plan(&many).effects.iter().filter(made).count(), BURST);
    }

    #[test]
    fn a_set_of_more_workers_than_slurm_has_nodes_is_refused() {
        let planned = plan(&observed(&json!({ "replicas": 20_000_000 }), vec![worker(0)]));
        let refused = format!("{:?}", planned.rejection);
        assert!(refused.contains("spec.replicas is 20000000"), "{refused}");
        assert_eq!((planned.effects, planned.desired), (vec![], 65_536));
    }

    #[test]
    fn names_of_workers_that_are_made_later_are_known() {
        for (spec, workers, hostname, expected) in [
            (json!({ "replicas": 4000 }), vec![], "compute-3999", true),
            (json!({ "replicas": 4000 }), vec![], "compute-4000", false),
            // The ordinals 0 and 9 are among the lowest 4,000, so the last one is 3999.
            (
                json!({ "replicas": 4000 }),
                vec![worker(0), worker(9)],
                "compute-3999",
                true,
            ),
            (json!({ "replicas": 4 }), vec![worker(0), worker(9)], "compute-4", false),
            (json!({ "replicas": 1 }), vec![worker(0)], "compute-0", false),
            (json!({ "replicas": 4000 }), vec![], "compute-0999", false),
            (
                json!({ "replicas": 4000, "ordinalPadding": 4 }),
                vec![],
                "compute-0999",
                true,
            ),
            (
                json!({ "replicas": 4000, "template": { "spec": { "hostname": "rack7" } } }),
                vec![],
                "rack71000",
                true,
            ),
            (json!({ "replicas": 4000 }), vec![], "other-7", false),
            (json!({ "replicas": 4000 }), vec![], "compute-", false),
        ] {
            let observed = observed(&spec, workers);
            let workers: Vec<Worker<'_>> = observed.workers().collect();
            let choice = plan_scale(&observed, &workers);
            assert_eq!(
                choice.is_wanted(&observed.nodeset, hostname),
                expected,
                "{spec} {hostname}"
            );
        }
    }

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
