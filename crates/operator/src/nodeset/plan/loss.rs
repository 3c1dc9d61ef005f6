//! Dead workers, and workers that may be alive although nobody sees them.
//!
//! An unreachable Kubernetes node may still run its jobs, so the operator does nothing about it: Slurm's own timeout
//! applies, and the name of the worker is not reused. Its jobs start elsewhere only on proof that it is dead.

use std::collections::{BTreeMap, BTreeSet};

use api::keys;
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::Node;
use slurm::{agent::Reason, node::Node as SlurmNode};

use super::{Effect, Plan, PlannedOrder, WorkerLoss, drains::has_manual_reason};
use crate::{
    cluster::NodeOrder,
    nodeset::{build::TERMINATING, observe::Observed},
    worker::Worker,
};

/// An administrator declares with this taint that nothing runs on a node.
const OUT_OF_SERVICE: &str = "node.kubernetes.io/out-of-service";
/// A kubelet that reconnects ends unwanted pods within this time.
const SETTLED_AFTER: SignedDuration = SignedDuration::from_secs(10);

/// Why a worker is known to be dead.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Death {
    /// The Kubernetes node whose state is the proof. `None` if its kubelet reports that all containers have ended.
    pub node: Option<String>,
    pub message: String,
}

/// Returns whether everything on the Kubernetes node of this name is dead: it is gone, or it is unreachable and has the
/// out-of-service taint.
pub fn death_of_node(name: &str, node: Option<&Node>) -> Option<Death> {
    let state = match node {
        None => "gone",
        Some(node) if is_out_of_service(node) && ready_since(node).is_none() => "out of service",
        Some(_) => return None,
    };
    Some(Death {
        node: Some(name.to_owned()),
        message: format!("Kubernetes node {name} is {state}"),
    })
}

/// Sets the nodes of dead workers down, so that their jobs start elsewhere, and deletes their pods. Returns their UIDs.
pub(super) fn plan_losses<'a>(observed: &Observed, workers: &[Worker<'a>], plan: &mut Plan) -> BTreeSet<&'a str> {
    let mut dead = BTreeSet::new();
    for worker in workers {
        let has_ended = worker.is_finished() || worker.is_terminating() && worker.has_ended();
        let of_node = || death_of_node(worker.kubernetes_node()?, observed.host(*worker));
        let ended = || Death {
            node: None,
            message: "all its containers have ended".to_owned(),
        };
        let Some(death) = has_ended.then(ended).or_else(of_node) else {
            continue;
        };
        dead.insert(worker.uid());
        let node = observed.slurm_node(*worker);
        // Its pod was deleted, and no job was lost with it. A machine that dies while its pods are being deleted is a loss,
        // unless the operator itself had chosen the worker to leave.
        let ended_as_asked = worker.is_terminating() && (has_ended || worker.leaving().is_some());
        let is_planned = ended_as_asked && node.is_some_and(|node| !node.state.is_busy());
        let down = node.and_then(|node| down(node, &death, Some(*worker), is_planned));
        // The kubelet is about to remove a terminating pod that has ended.
        if down.is_some() || !has_ended || !worker.is_terminating() {
            plan.effects.push(Effect::LoseWorker(WorkerLoss {
                pod: Some(worker.id()),
                death,
                down,
                is_planned,
            }));
        }
    }
    dead
}

/// Returns the order that sets a dead node down, unless it is down already or comes from slurm.conf. The reason of a worker
/// that left on purpose stays: it decides later whether the record may be deleted.
pub(super) fn down(
    node: &SlurmNode,
    death: &Death,
    worker: Option<Worker<'_>>,
    is_planned: bool,
) -> Option<PlannedOrder> {
    if node.state.is_down() || !node.state.is_dynamic() {
        return None;
    }
    let words = match (is_planned, node.reason.as_str()) {
        (true, "") => Some(TERMINATING.to_owned()),
        (true, _) => None,
        // An administrator's reason is kept.
        (false, _) => (!has_manual_reason(node, worker)).then(|| format!("lost: {}", death.message)),
    };
    let reason = words.map(|words| Reason::of(&format!("{}{words}", keys::NODE_REASON_PREFIX)));
    Some(PlannedOrder::new(node, NodeOrder::Down { reason }))
}

/// Returns the unreachable or just reconnected Kubernetes node where the last worker of this name may run unseen.
pub(super) fn may_be_alive_on<'o>(observed: &'o Observed, hostname: &str) -> Option<&'o str> {
    let noted = noted(observed).and_then(|noted| noted.get(hostname));
    let recorded = observed.records.get(hostname).map(|identity| &identity.node);
    let mut nodes = noted.into_iter().chain(recorded).map(String::as_str);
    nodes.find(|node| is_cut_off(observed, node))
}

/// Returns the workers whose Kubernetes nodes are unreachable, or were when they were last seen. The status keeps them, so
/// that their names are not reused when their pods are gone.
pub fn cut_off(observed: &Observed) -> BTreeMap<String, String> {
    let mut places = noted(observed).cloned().unwrap_or_default();
    for worker in observed.workers() {
        let Some(name) = worker.slurm_name() else { continue };
        // Existing pods replace what the status says; finished ones run nowhere.
        places.remove(name);
        if let Some(node) = worker.kubernetes_node().filter(|_| !worker.is_finished()) {
            places.insert(name.to_owned(), node.to_owned());
        }
    }
    places.retain(|_, node| is_cut_off(observed, node));
    places
}

fn noted(observed: &Observed) -> Option<&BTreeMap<String, String>> {
    observed.nodeset.status.as_ref()?.cut_off.as_ref()
}

/// Whether something may run unseen on a node.
fn is_cut_off(observed: &Observed, node: &str) -> bool {
    observed.nodes.get(node).is_some_and(|node| match ready_since(node) {
        Some(since) => observed.now.duration_since(since) < SETTLED_AFTER,
        None => !is_out_of_service(node),
    })
}

/// Returns since when the kubelet of this node has been reporting.
pub(super) fn ready_since(node: &Node) -> Option<Timestamp> {
    let conditions = node.status.as_ref()?.conditions.as_ref()?;
    let ready = conditions.iter().find(|condition| condition.type_ == "Ready")?;
    let since = ready.last_transition_time.as_ref();
    (ready.status == "True").then(|| since.map_or(Timestamp::MIN, |time| time.0))
}

fn is_out_of_service(node: &Node) -> bool {
    let taints = node.spec.as_ref().and_then(|spec| spec.taints.as_ref());
    taints.into_iter().flatten().any(|taint| taint.key == OUT_OF_SERVICE)
}

#[cfg(test)]
pub(super) mod tests {
    use serde_json::{Value, json};

    use super::{super::tests::steps, *};
    use crate::{
        cluster::Knowledge,
        nodeset::{
            fixture::{
                DRAINED, DRAINING, IDLE, controller, finished, host, known, marked, nodeset, observed_exactly,
                slurm_key, terminating, unknown, with, worker,
            },
            plan::{Plan, Wait, plan},
        },
    };

    pub(in crate::nodeset::plan) fn not_ready(host: Value) -> Value {
        with(host, &[("/status/conditions/0/status", json!("Unknown"))])
    }

    fn tainted(host: Value) -> Value {
        with(
            host,
            &[(
                "/spec",
                json!({ "taints": [{ "key": OUT_OF_SERVICE, "effect": "NoExecute" }] }),
            )],
        )
    }

    fn ended(pod: Value) -> Value {
        let state = json!({ "terminated": { "exitCode": 0 } });
        let status = json!([{ "name": "slurmd", "image": "x", "imageID": "", "ready": false, "restartCount": 0, "state": state }]);
        with(pod, &[("/status/containerStatuses", status)])
    }

    /// The plan for one worker among these objects only.
    pub(in crate::nodeset::plan) fn planned(objects: Vec<Value>, status: Value, knowledge: Knowledge) -> Plan {
        let set = with(nodeset(&json!({ "replicas": 1 })), &[("/status", status)]);
        let all = [vec![controller(), slurm_key(), set], objects].concat();
        plan(&observed_exactly("compute", all, knowledge))
    }

    pub(in crate::nodeset::plan) fn node(state: &[&str], reason: &str, reason_at: &str) -> Knowledge {
        let at: Timestamp = reason_at.parse().unwrap();
        let nodes = json!([{ "name": "compute-0", "state": state, "reason": reason,
            "reason_changed_at": { "set": true, "infinite": false, "number": at.as_second() } }]);
        let nodes = serde_json::from_value(nodes).unwrap();
        Knowledge::Known(crate::cluster::Seen::of_nodes(nodes, crate::nodeset::fixture::now()).into())
    }

    pub(in crate::nodeset::plan) const DOWN: &[&str] = &["DOWN", "DYNAMIC_NORM"];

    #[test]
    fn only_proof_of_death_has_consequences() {
        let k1 = || host("k1");
        for (case, pod, node, expected) in [
            ("it runs", worker(0), Some(k1()), ""),
            ("its node does not answer", worker(0), Some(not_ready(k1())), ""),
            (
                "and somebody has deleted it",
                terminating(worker(0)),
                Some(not_ready(k1())),
                "",
            ),
            ("a node that answers is in service", worker(0), Some(tainted(k1())), ""),
            ("containers that will start again", ended(worker(0)), Some(k1()), ""),
            (
                "the kubelet says so",
                finished(worker(0)),
                Some(k1()),
                "down compute-0, replace compute-0",
            ),
            (
                "its last container ended",
                terminating(ended(worker(0))),
                Some(k1()),
                "down compute-0, replace compute-0",
            ),
            ("its node is gone", worker(0), None, "down compute-0, replace compute-0"),
            (
                "its node is gone while it ended",
                terminating(worker(0)),
                None,
                "down compute-0, replace compute-0",
            ),
            (
                "its node is declared dead",
                worker(0),
                Some(tainted(not_ready(k1()))),
                "down compute-0, replace compute-0",
            ),
        ] {
            let plan = planned(
                [Some(pod), node].into_iter().flatten().collect(),
                json!(null),
                known(&[("compute-0", IDLE)], &[]),
            );
            assert_eq!(steps(&plan).join("; "), expected, "{case}");
        }
    }

    pub(in crate::nodeset::plan) fn given_reason(down: &PlannedOrder) -> Option<&str> {
        let NodeOrder::Down { reason } = &down.order else {
            panic!("{down:?}")
        };
        reason.as_ref().map(Reason::as_str)
    }

    #[test]
    fn a_node_is_set_down_once_and_a_manual_reason_is_kept() {
        let reason = |knowledge| {
            let plan = planned(vec![worker(0)], json!(null), knowledge);
            let [Effect::LoseWorker(WorkerLoss { down, death, .. })] = plan.effects.as_slice() else {
                panic!("{:?}", plan.effects)
            };
            assert_eq!(*death, death_of_node("k1", None).unwrap());
            down.as_ref()
                .map(|down| given_reason(down).unwrap_or("as it stands").to_owned())
        };
        let at = "2026-01-01T00:00:00Z";
        assert_eq!(
            reason(node(IDLE, "", at)).unwrap(),
            "slurm-operator: lost: Kubernetes node k1 is gone"
        );
        assert_eq!(reason(node(DRAINED, "broken fan", at)).unwrap(), "as it stands");
        let imitated = "slurm-operator: broken fan";
        assert_eq!(reason(node(DRAINED, imitated, at)).unwrap(), "as it stands");
        assert_eq!(reason(node(DOWN, "", at)), None);
        // Nodes from slurm.conf are left alone, and nothing is ordered without a snapshot.
        assert_eq!(reason(node(&["IDLE"], "", at)), None);
        assert_eq!(reason(unknown()), None);
    }

    #[test]
    fn only_a_worker_that_leaves_without_a_plan_is_warned_about() {
        let at = "2026-01-01T00:00:00Z";
        let leaves = "slurm-operator: Pod (slurm/compute-0) is pending termination for scale-in";
        let deleted = || terminating(ended(worker(0)));
        let (ended, gone) = (
            "slurm-operator: lost: all its containers have ended",
            "slurm-operator: lost: Kubernetes node k1 is gone",
        );
        // Whether there is a warning, and the reason in Slurm.
        for (case, pod, host, slurm, expected) in [
            (
                "the operator removed it, and Slurm keeps its record",
                marked(deleted()),
                Some(host("k1")),
                node(DRAINED, leaves, at),
                (false, leaves),
            ),
            (
                "somebody deleted it while it was idle",
                deleted(),
                Some(host("k1")),
                node(IDLE, "", at),
                (false, "slurm-operator: Pod is terminating"),
            ),
            (
                "somebody deleted it, and jobs ended with it",
                deleted(),
                Some(host("k1")),
                node(DRAINING, leaves, at),
                (true, ended),
            ),
            (
                "its containers ended by themselves",
                finished(worker(0)),
                Some(host("k1")),
                node(IDLE, "", at),
                (true, ended),
            ),
            (
                "the operator removed it, and its machine went before its pod",
                marked(terminating(worker(0))),
                None,
                node(DRAINED, leaves, at),
                (false, leaves),
            ),
            (
                "its machine died while the operator waited for its jobs",
                marked(worker(0)),
                None,
                node(DRAINING, leaves, at),
                (true, gone),
            ),
            (
                "Kubernetes deletes the pods of a machine that does not answer",
                terminating(worker(0)),
                None,
                node(IDLE, "", at),
                (true, gone),
            ),
        ] {
            let plan = planned([Some(pod), host].into_iter().flatten().collect(), json!(null), slurm);
            let [Effect::LoseWorker(WorkerLoss { down, is_planned, .. })] = plan.effects.as_slice() else {
                panic!("{case}: {:?}", plan.effects)
            };
            let down = down.as_ref().unwrap();
            // Without a new reason the old one stays.
            let reason = given_reason(down).unwrap_or(&down.expect.reason);
            assert_eq!((!is_planned, reason), expected, "{case}");
        }
    }

    #[test]
    fn a_name_is_not_used_while_its_last_worker_may_be_alive() {
        let noted = json!({ "nodeSetHash": "", "cutOff": { "compute-0": "k1" } });
        let settled = || host("k1");
        let just_back = with(
            settled(),
            &[("/status/conditions/0/lastTransitionTime", json!("2026-01-01T00:59:55Z"))],
        );
        for (case, node, expected) in [
            ("it does not answer", Some(not_ready(settled())), ""),
            ("it has just come back", Some(just_back), ""),
            ("it is back", Some(settled()), "create compute-0"),
            ("it is gone", None, "create compute-0"),
            (
                "it is declared dead",
                Some(tainted(not_ready(settled()))),
                "create compute-0",
            ),
        ] {
            let plan = planned(node.into_iter().collect(), noted.clone(), unknown());
            assert_eq!(steps(&plan).join("; "), expected, "{case}");
            let is_about_it = |wait: &Wait| {
                wait.message()
                    .contains("its last worker may run jobs on Kubernetes node k1")
            };
            let held = plan.waits.iter().any(is_about_it);
            assert_eq!(held, expected.is_empty(), "{case}");
        }
        // The comment in Slurm names the last node too.
        let comment =
            r#"{"namespace":"slurm","podName":"compute-0","node":"k1","nodeSetName":"compute","nodeSetUID":"compute"}"#;
        let nodes = json!([{ "name": "compute-0", "state": IDLE, "comment": comment }]);
        let seen =
            crate::cluster::Seen::of_nodes(serde_json::from_value(nodes).unwrap(), crate::nodeset::fixture::now());
        let plan = planned(vec![not_ready(settled())], json!(null), Knowledge::Known(seen.into()));
        assert_eq!(steps(&plan), [""; 0]);
    }

    #[test]
    fn an_unreachable_worker_is_recorded_until_it_is_dead_or_back() {
        let noted = |objects: Vec<Value>, status: Value| {
            let set = with(nodeset(&json!({ "replicas": 1 })), &[("/status", status)]);
            let all = [vec![controller(), slurm_key(), set], objects].concat();
            let noted = cut_off(&observed_exactly("compute", all, unknown()));
            noted
                .into_iter()
                .map(|(name, node)| format!("{name} on {node}"))
                .collect::<Vec<String>>()
                .join("; ")
        };
        let before = json!({ "nodeSetHash": "", "cutOff": { "compute-0": "k1" } });
        let away = || not_ready(host("k1"));
        assert_eq!(noted(vec![worker(0), host("k1")], json!(null)), "");
        assert_eq!(noted(vec![worker(0), away()], json!(null)), "compute-0 on k1");
        assert_eq!(noted(vec![away()], before.clone()), "compute-0 on k1");
        assert_eq!(noted(vec![host("k1")], before.clone()), "");
        assert_eq!(noted(vec![], before.clone()), "");
        assert_eq!(noted(vec![finished(worker(0)), away()], before.clone()), "");
        let moved = with(worker(0), &[("/spec/nodeName", json!("k2"))]);
        assert_eq!(noted(vec![moved, away(), host("k2")], before), "");
    }
}
