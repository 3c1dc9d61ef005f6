//! Chooses which workers of an older revision are replaced now.
//!
//! Unusable workers are replaced first: that takes nothing away, and a broken template that was fixed recovers by itself.
//! At most `maxUnavailable` workers are replaced at a time, and a usable one only while fewer than that are missing for any
//! reason. Slurm can use a worker that is ready in Kubernetes, and registered and open for jobs in Slurm.

use std::collections::BTreeSet;

use api::update_strategy::UpdateStrategyType;
use kube::ResourceExt;
use slurm::node::{Node, NodeFlag};

use super::{Plan, Situation, Wait, max_unavailable, reservation, scale::sort_for_deletion, size};
use crate::{
    cluster::Seen,
    nodeset::observe::Observed,
    startup::startup_problem,
    worker::{Cause, Worker},
};

/// Flags that keep jobs away from a node, whatever its base state.
const CLOSED: &[NodeFlag] = &[
    NodeFlag::Drain,
    NodeFlag::Fail,
    NodeFlag::InvalidReg,
    NodeFlag::NotResponding,
    NodeFlag::PoweredDown,
];

/// Lets workers of an older revision leave; `hash` is the newest one.
pub(super) fn plan_rollout(situation: &mut Situation<'_>, hash: &str, plan: &mut Plan) {
    let replaced = choose(situation, hash, plan);
    let uids: BTreeSet<&str> = replaced.iter().map(|worker| worker.uid()).collect();
    situation.stay.retain(|worker| !uids.contains(worker.uid()));
    let leave = replaced.iter().map(|worker| (*worker, Cause::Update));
    situation.leave.extend(leave);
}

/// Chooses among the workers that stay.
fn choose<'a>(situation: &Situation<'a>, hash: &str, plan: &mut Plan) -> Vec<Worker<'a>> {
    let (observed, stay) = (situation.observed, &situation.stay);
    // A worker without a revision is not replaced.
    let is_old = |worker: &Worker<'_>| worker.revision().is_some_and(|revision| revision != hash);
    let mut old: Vec<Worker<'a>> = stay.iter().copied().filter(is_old).collect();
    let strategy = observed.nodeset.spec.update_strategy();
    let is_scheduled = strategy.kind() == UpdateStrategyType::ScheduledUpdate;
    let is_rolling = strategy.kind() == UpdateStrategyType::RollingUpdate;
    if old.is_empty() || strategy.is_paused() || !(is_scheduled || is_rolling) {
        return Vec::new();
    }
    let is_chosen = |worker: &Worker<'_>| worker.leaving().is_some_and(|leaving| leaving.cause == Cause::Update);
    let Some(seen) = observed.knowledge.known() else {
        let why = "no worker is replaced for the update meanwhile".to_owned();
        plan.waits.push(Wait::SlurmUnknown { why });
        old.retain(is_chosen);
        return old;
    };
    let of_old = format!("{} workers of an older revision", old.len());
    if is_scheduled {
        old.retain(|worker| reservation::replaces(observed, seen, *worker, is_chosen(worker)));
        if !old.is_empty() {
            plan.waits.push(Wait::Other(format!("{of_old} are being replaced")));
        }
        return old;
    }
    let limit = max_unavailable(observed, plan.desired);
    sort_for_deletion(&mut old, &observed.nodeset.name_any(), Some(seen));
    let (mut replace, rest): (Vec<_>, Vec<_>) = old.into_iter().partition(is_chosen);
    let obstacle = |worker: &Worker<'_>| unusable(observed, seen, *worker);
    let (usable, broken): (Vec<_>, Vec<_>) = rest.into_iter().partition(|worker| obstacle(worker).is_none());

    // The new revision replaces at most `maxUnavailable` workers until its own workers are usable.
    let wanted = size(plan.desired);
    let new = stay.iter().filter(|worker| !is_old(worker));
    let new_obstacles: Vec<String> = new.filter_map(obstacle).collect();
    let unproven = new_obstacles.len().saturating_add(wanted.saturating_sub(stay.len()));
    let free = limit.saturating_sub(unproven.saturating_add(replace.len()));
    replace.extend(broken.into_iter().take(free));

    let is_in_use = |worker: &&Worker<'_>| !is_chosen(worker) && obstacle(worker).is_none();
    let missing = wanted.saturating_sub(stay.iter().filter(is_in_use).count());
    let free = limit.saturating_sub(missing.max(replace.len()));
    replace.extend(usable.into_iter().take(free));
    plan.waits.push(Wait::Other(match new_obstacles.first() {
        None => format!("{of_old} are being replaced"),
        Some(why) => format!("{of_old} wait for replacement; first fix the workers of the new one: {why}"),
    }));
    replace
}

/// Returns why Slurm cannot use a worker. `None` if it can.
fn unusable(observed: &Observed, seen: &Seen, worker: Worker<'_>) -> Option<String> {
    let pod = worker.name();
    if !worker.is_available(observed.min_ready(), observed.now) {
        return Some(match startup_problem(worker.0) {
            Some(startup_problem) => format!("pod {pod} does not start: {startup_problem}"),
            None => format!("pod {pod} is not ready"),
        });
    }
    let name = worker.slurm_name().unwrap_or(pod);
    match seen.nodes.get(name) {
        None => Some(format!("node {name} has not registered with Slurm")),
        Some(node) if !takes_jobs(node) => {
            let reason = match node.reason.as_str() {
                "" => String::new(),
                reason => format!(" ({reason})"),
            };
            Some(format!("node {name} is {} in Slurm{reason}", node.state))
        }
        // A snapshot from before the pod was created shows its predecessor.
        Some(_) if worker.created().is_some_and(|created| seen.at < created) => {
            Some(format!("node {name} has not been seen in Slurm yet"))
        }
        Some(_) => None,
    }
}

fn takes_jobs(node: &Node) -> bool {
    let state = &node.state;
    (state.is_idle() || state.is_allocated()) && !CLOSED.iter().any(|flag| state.has(*flag))
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::super::{Plan, tests::steps};
    use crate::nodeset::fixture::{DRAINED, IDLE, known, planned, unknown, with, worker};

    fn of(revision: &str, pod: Value) -> Value {
        with(
            pod,
            &[("/metadata/labels/controller.kubernetes.io~1hash", json!(revision))],
        )
    }

    fn leaving(pod: Value) -> Value {
        let mark = json!("update 2026-01-01T00:59:00Z");
        with(
            pod,
            &[("/metadata/annotations/nodeset.slinky.slurm.net~1leaving", mark)],
        )
    }

    fn unready(pod: Value) -> Value {
        with(pod, &[("/status/conditions/0/status", json!("False"))])
    }

    fn spec(strategy: &Value) -> Value {
        json!({ "replicas": 4, "updateStrategy": strategy })
    }

    fn rolling(limit: &Value) -> Value {
        spec(&json!({ "rollingUpdate": { "maxUnavailable": limit } }))
    }

    /// The revision of the spec.
    fn hash() -> String {
        let plan = planned(&rolling(&json!(1)), vec![], unknown());
        plan.revision.unwrap().hash
    }

    fn idle() -> crate::cluster::Knowledge {
        let nodes: Vec<String> = (0..4).map(|n| format!("compute-{n}")).collect();
        let nodes: Vec<(&str, &[&str])> = nodes.iter().map(|name| (name.as_str(), IDLE)).collect();
        known(&nodes, &[])
    }

    /// The number of workers to replace, and whether something has to be fixed first.
    fn old(plan: &Plan) -> Option<(usize, bool)> {
        plan.waits.iter().find_map(|wait| {
            let message = wait.message();
            let (count, rest) = message.split_once(" workers of an older revision ")?;
            Some((count.parse().unwrap(), rest != "are being replaced"))
        })
    }

    #[test]
    fn as_many_go_at_a_time_as_may_be_missing() {
        let all_old = || (0..4).map(|n| of("old", worker(n))).collect::<Vec<Value>>();
        for (limit, marked) in [
            (json!(1), &["mark compute-3 for update"][..]),
            (json!("25%"), &["mark compute-3 for update"]),
            (
                json!("50%"),
                &["mark compute-3 for update", "mark compute-2 for update"],
            ),
            (
                json!("30%"),
                &["mark compute-3 for update", "mark compute-2 for update"],
            ),
        ] {
            let plan = planned(&rolling(&limit), all_old(), idle());
            assert_eq!(steps(&plan), marked, "{limit}");
            assert_eq!(old(&plan), Some((4, false)));
        }
    }

    #[test]
    fn workers_that_are_missing_for_any_reason_count() {
        let hash = hash();
        let drained = || {
            known(
                &[
                    ("compute-0", DRAINED),
                    ("compute-1", IDLE),
                    ("compute-2", IDLE),
                    ("compute-3", IDLE),
                ],
                &[],
            )
        };
        let no_node = || known(&[("compute-1", IDLE), ("compute-2", IDLE), ("compute-3", IDLE)], &[]);
        let rest = || (1..4).map(|n| of("old", worker(n)));
        for (why, first, knowledge) in [
            ("not ready", Some(unready(of(&hash, worker(0)))), idle()),
            ("drained in Slurm", Some(of(&hash, worker(0))), drained()),
            ("not registered", Some(of(&hash, worker(0))), no_node()),
            ("not there", None, idle()),
        ] {
            let plan = planned(
                &rolling(&json!(1)),
                first.into_iter().chain(rest()).collect(),
                knowledge,
            );
            let marked = steps(&plan).iter().any(|step| step.starts_with("mark"));
            assert!(!marked, "{why}: {:?}", steps(&plan));
        }
    }

    #[test]
    fn an_unusable_worker_is_replaced_first_and_costs_no_budget() {
        // As after a broken template that was reverted.
        let pods = vec![
            unready(of("broken", worker(0))),
            of("old", worker(1)),
            of("old", worker(2)),
            of("old", worker(3)),
        ];
        let plan = planned(&rolling(&json!(1)), pods, idle());
        assert_eq!(steps(&plan), ["mark compute-0 for update"]);
        // No more than `maxUnavailable`, or a short outage would replace them all.
        let pods = (0..4).map(|n| unready(of("old", worker(n)))).collect();
        let plan = planned(&rolling(&json!(2)), pods, idle());
        assert_eq!(steps(&plan).len(), 2);
    }

    #[test]
    fn a_template_that_has_not_shown_that_it_works_gets_no_more_workers() {
        let hash = hash();
        let old_ones = |first: u32| (first..4).map(|n| unready(of("old", worker(n))));
        let successor = unready(of(&hash, worker(0)));
        for (what, pods) in [
            ("one is to be made", old_ones(1).collect::<Vec<Value>>()),
            ("one is not ready", [successor].into_iter().chain(old_ones(1)).collect()),
        ] {
            let plan = planned(&rolling(&json!(1)), pods, idle());
            let marked = steps(&plan).iter().any(|step| step.starts_with("mark"));
            assert!(!marked, "{what}: {:?}", steps(&plan));
        }
    }

    #[test]
    fn a_broken_template_stops_the_update_and_is_reported() {
        let hash = hash();
        let broken = with(
            unready(of(&hash, worker(3))),
            &[(
                "/status/containerStatuses",
                json!([{ "name": "slurmd", "image": "x", "imageID": "", "ready": false, "restartCount": 0,
                    "state": { "waiting": { "reason": "ImagePullBackOff", "message": "no such image" } } }]),
            )],
        );
        let pods = (0..3).map(|n| of("old", worker(n))).chain([broken]).collect();
        let plan = planned(&rolling(&json!(1)), pods, idle());
        assert_eq!(steps(&plan), [""; 0]);
        assert_eq!(old(&plan), Some((3, true)));
        let why = plan.waits[0].message();
        assert!(why.contains("compute-3") && why.contains("no such image"), "{why}");
    }

    #[test]
    fn a_choice_lasts_until_the_template_is_reverted_or_the_update_paused() {
        let hash = hash();
        let pods = |revision: &str| {
            vec![
                of(&hash, worker(0)),
                of(&hash, worker(1)),
                of(&hash, worker(2)),
                leaving(of(revision, worker(3))),
            ]
        };
        assert_eq!(
            steps(&planned(&rolling(&json!(1)), pods("old"), idle())),
            ["drain compute-3"]
        );
        assert_eq!(
            steps(&planned(&rolling(&json!(1)), pods(&hash), idle())),
            ["spare compute-3"]
        );
        let paused = spec(&json!({ "paused": true }));
        assert_eq!(steps(&planned(&paused, pods("old"), idle())), ["spare compute-3"]);
        // Without a snapshot nothing is chosen and nothing reverted.
        assert_eq!(steps(&planned(&rolling(&json!(2)), pods("old"), unknown())), [""; 0]);
    }

    #[test]
    fn on_delete_replaces_nothing() {
        let pods = (0..4).map(|n| of("old", worker(n))).collect();
        let plan = planned(&spec(&json!({ "type": "OnDelete" })), pods, idle());
        assert_eq!(steps(&plan), [""; 0]);
    }

    #[test]
    fn a_manually_drained_node_keeps_its_record() {
        let hash = hash();
        let pods = vec![
            of(&hash, worker(0)),
            of(&hash, worker(1)),
            of(&hash, worker(2)),
            leaving(of("old", worker(3))),
        ];
        let nodes = json!([
            { "name": "compute-0", "state": IDLE }, { "name": "compute-1", "state": IDLE }, { "name": "compute-2", "state": IDLE },
            { "name": "compute-3", "state": DRAINED, "reason": "broken fan" },
        ]);
        let observation = slurm::rest::Observation {
            nodes: serde_json::from_value(nodes).unwrap(),
            jobs: Vec::new(),
            process: Some(slurm::rest::Process { boot_time: 1 }),
        };
        let seen = crate::cluster::Seen::new(
            observation,
            crate::nodeset::fixture::now(),
            crate::cluster::Source::Agent,
        );
        let plan = planned(&rolling(&json!(1)), pods, crate::cluster::Knowledge::Known(seen.into()));
        let [super::super::Effect::RemoveWorker(removal)] = plan.effects.as_slice() else {
            panic!("{:?}", plan.effects)
        };
        let order = removal.order.as_ref().map(|order| &order.order);
        assert_eq!(order, Some(&crate::cluster::NodeOrder::Drain { reason: None }));
        let why = removal.keep_record.as_deref().unwrap_or_default();
        assert!(why.contains("broken fan"), "{why:?}");
    }
}
