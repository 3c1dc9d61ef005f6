//! Chooses which workers to create, which leave and which stay.

use std::collections::{BTreeMap, BTreeSet};

use api::{NodeSet, nodeset::ScalingMode};
use k8s_openapi::api::core::v1::Node;
use kube::ResourceExt;

use super::{
    BURST,
    daemon::{self, fit},
    rank::sort_for_deletion,
    selection::Selection,
};
use crate::{
    nodeset::{build::Place, observe::Observed},
    worker::{Cause, Worker},
};

/// The workers to create and the fate of the existing ones.
#[derive(Debug, Default)]
pub(super) struct ScalePlan<'a> {
    pub(super) desired: u32,
    /// The first missing workers, at most [`BURST`].
    pub(super) create: Vec<Place>,
    /// All missing ordinals are below this one; 0 if none is missing.
    end_of_numbers: u32,
    pub(super) selection: Selection<'a>,
    /// Terminating workers whose names their successors wait for.
    pub(super) awaited: Vec<Worker<'a>>,
}

pub(super) fn plan_scale<'a>(observed: &'a Observed, workers: &[Worker<'a>]) -> ScalePlan<'a> {
    let mode = observed.nodeset.spec.scaling_mode();
    let (own, others): (Vec<Worker<'a>>, Vec<Worker<'a>>) = workers.iter().partition(|worker| worker.mode() == mode);
    let mut choice = match mode {
        ScalingMode::DaemonSet => scale_by_node(observed, &own),
        _ => scale_by_ordinal(observed, &own, workers),
    };
    let others = others.into_iter().filter(|worker| worker.is_active());
    // Workers of the other mode leave once their replacements exist.
    if choice.create.is_empty() {
        choice
            .selection
            .leave
            .extend(others.map(|worker| (worker, Cause::OtherMode)));
    } else {
        choice.selection.stay.extend(others);
    }
    choice
}

impl ScalePlan<'_> {
    /// Whether this is the name of a worker that is still to be created.
    pub(super) fn is_made_later(&self, nodeset: &NodeSet, hostname: &str) -> bool {
        let is_missing =
            |number: u32| number < self.end_of_numbers && Place::of_ordinal(nodeset, number, None).hostname == hostname;
        // The host name prefix may end in digits too.
        let start = hostname.trim_end_matches(|c: char| c.is_ascii_digit()).len();
        let mut numbers = (start..hostname.len()).filter_map(|from| hostname.get(from..)?.parse().ok());
        numbers.any(is_missing)
    }
}

/// Chooses `replicas` workers on the lowest free ordinals.
fn scale_by_ordinal<'a>(observed: &'a Observed, own: &[Worker<'a>], all: &[Worker<'a>]) -> ScalePlan<'a> {
    let nodeset = observed.nodeset.as_ref();
    let name = nodeset.name_any();
    let desired = nodeset.spec.replicas();
    let wanted = usize::try_from(desired).unwrap_or(usize::MAX);
    let (mut active, leaving): (Vec<Worker<'a>>, Vec<Worker<'a>>) = own.iter().partition(|worker| worker.is_active());

    // A terminating worker keeps its name until its successor takes the same ordinal. It does not count as present, or a
    // second worker would leave in its place, nor as missing, or a higher ordinal would be created.
    let missing = wanted.saturating_sub(active.len().saturating_add(leaving.len()));
    let used: BTreeSet<u32> = all.iter().filter_map(|worker| worker.ordinal(&name)).collect();
    let pins = observed.pins();
    let create = (0..=u32::MAX)
        .filter(|ordinal| !used.contains(ordinal))
        .take(missing.min(BURST))
        .map(|ordinal| Place::of_ordinal(nodeset, ordinal, pins.get(&ordinal).copied()))
        .collect();

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
    let stay = active.split_off(surplus);
    let successors = wanted.saturating_sub(own.len().saturating_sub(leaving.len()));
    ScalePlan {
        desired,
        create,
        end_of_numbers: end_of_missing(missing, &used),
        selection: Selection {
            stay,
            leave: active.into_iter().map(|worker| (worker, Cause::ScaleIn)).collect(),
        },
        awaited: leaving.into_iter().take(successors).collect(),
    }
}

/// Returns the ordinal after the highest of the lowest `missing` free ones.
fn end_of_missing(missing: usize, used: &BTreeSet<u32>) -> u32 {
    let missing = u32::try_from(missing).unwrap_or(u32::MAX);
    let in_between = |end: u32, number: &u32| if *number < end { end.saturating_add(1) } else { end };
    used.iter().fold(missing, in_between)
}

/// Chooses one worker on every matching Kubernetes node.
fn scale_by_node<'a>(observed: &'a Observed, own: &[Worker<'a>]) -> ScalePlan<'a> {
    let nodeset = observed.nodeset.as_ref();
    let name = nodeset.name_any();
    let nodes: BTreeMap<&str, &Node> = observed
        .nodes
        .iter()
        .map(|(name, node)| (name.as_str(), node.as_ref()))
        .collect();
    let mut by_node: BTreeMap<&str, Vec<Worker<'a>>> = BTreeMap::new();
    let mut choice = ScalePlan::default();
    for worker in own {
        match daemon::node_of(*worker, &nodes) {
            Some(node) => by_node.entry(node).or_default().push(*worker),
            // It is unscheduled, and its node is gone.
            None if worker.kubernetes_node().is_none() && worker.is_active() => {
                choice.selection.leave.push((*worker, Cause::Unfit));
            }
            // The garbage collector of Kubernetes deletes the pods of deleted nodes.
            None => {}
        }
    }
    for (node_name, node) in &nodes {
        let fit = fit(nodeset, node);
        let place = Place::of_node(nodeset, node);
        let here = by_node.remove(node_name).unwrap_or_default();
        choice.desired += u32::from(fit.run);
        if here.is_empty() {
            if fit.run {
                choice.create.push(place);
            }
            continue;
        }
        let (active, leaving): (Vec<Worker<'a>>, Vec<Worker<'a>>) =
            here.into_iter().partition(|worker| worker.is_active());
        if fit.run && active.is_empty() {
            choice.awaited.extend(leaving);
        }
        let (mut right, wrong): (Vec<Worker<'a>>, Vec<Worker<'a>>) = active
            .into_iter()
            .partition(|worker| fit.stay && daemon::has_hostname(*worker, &place.hostname));
        let mut unfit = wrong;
        // Of several workers on one node, the last in the ranking stays.
        sort_for_deletion(&mut right, &name, observed.knowledge.known());
        choice.selection.stay.extend(right.pop());
        unfit.extend(right);
        choice
            .selection
            .leave
            .extend(unfit.into_iter().map(|worker| (worker, Cause::Unfit)));
    }
    choice
}

#[cfg(test)]
mod tests {
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
                choice.is_made_later(&observed.nodeset, hostname),
                expected,
                "{spec} {hostname}"
            );
        }
    }
}
