//! Workers that are dead, workers that may be alive though nobody sees them, and workers that are back.
//!
//! A node that does not answer may well run its jobs. So nothing is done about it: Slurm's own timeout rules, and its name is
//! not used again. Only what proves that it is dead lets its jobs start elsewhere.

use std::collections::{BTreeMap, BTreeSet};

use api::keys;
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::Node;
use slurm::node::Node as SlurmNode;

use super::{
    Down, Effect, Plan, Record, Standing, Wait, cordon,
    drains::{is_a_persons, is_ours, is_slurms_own},
    fates::Fates,
    inherited,
};
use crate::{
    nodeset::{build::TERMINATING, observe::Observed},
    worker::Worker,
};

/// Somebody has declared that nothing runs on a node any more.
const OUT_OF_SERVICE: &str = "node.kubernetes.io/out-of-service";
/// A kubelet that is back ends within this time what is no longer wanted on its node.
const SETTLED_AFTER: SignedDuration = SignedDuration::from_secs(10);
/// What Slurm and Kubernetes say about a node may differ for as long as Kubernetes takes to miss one.
const MISSED_WITHIN: SignedDuration = SignedDuration::from_mins(1);

/// How a worker is known to be dead.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Death {
    /// All its containers have ended, by the kubelet's word.
    Ended,
    /// Its Kubernetes node does not exist any more.
    NodeGone { node: String },
    /// Its Kubernetes node does not answer, and was declared to be out of service.
    OutOfService { node: String },
}

impl Death {
    /// The Kubernetes node whose state is the proof.
    pub fn node(&self) -> Option<&str> {
        match self {
            Self::Ended => None,
            Self::NodeGone { node } | Self::OutOfService { node } => Some(node),
        }
    }

    /// In words for people.
    pub fn message(&self) -> String {
        match self {
            Self::Ended => "all its containers have ended".to_owned(),
            Self::NodeGone { node } => format!("Kubernetes node {node} is gone"),
            Self::OutOfService { node } => format!("Kubernetes node {node} is out of service"),
        }
    }
}

/// Whether a worker is dead, given the Kubernetes node of its name, if there is one.
pub(super) fn death(worker: Worker<'_>, node: Option<&Node>) -> Option<Death> {
    if worker.is_finished() || worker.is_terminating() && worker.has_ended() {
        return Some(Death::Ended);
    }
    death_of_node(worker.kubernetes_node()?, node)
}

/// Whether everything on the Kubernetes node of this name is dead.
pub fn death_of_node(name: &str, node: Option<&Node>) -> Option<Death> {
    match node {
        None => Some(Death::NodeGone { node: name.to_owned() }),
        Some(node) if is_out_of_service(node) && ready_since(node).is_none() => {
            Some(Death::OutOfService { node: name.to_owned() })
        }
        Some(_) => None,
    }
}

/// Tells Slurm about workers that are dead, so that their jobs start elsewhere, and makes room for their successors. Returns
/// the UIDs of the dead.
pub(super) fn plan_losses<'a>(observed: &Observed, workers: &[Worker<'a>], plan: &mut Plan) -> BTreeSet<&'a str> {
    let mut dead = BTreeSet::new();
    for worker in workers {
        let node = worker.kubernetes_node().and_then(|name| observed.nodes.get(name));
        let Some(death) = death(*worker, node.map(AsRef::as_ref)) else {
            continue;
        };
        dead.insert(worker.uid());
        let node = worker
            .slurm_name()
            .and_then(|name| observed.knowledge.known()?.nodes.get(name));
        let by_plan = node.is_some_and(|node| left_by_plan(*worker, &death, node));
        let down = node.and_then(|node| down(node, &death, Some(*worker), by_plan));
        // The kubelet is about to remove it.
        let leaves_by_itself = death == Death::Ended && worker.is_terminating();
        if down.is_some() || !leaves_by_itself {
            plan.effects.push(Effect::LoseWorker {
                pod: Some(worker.id()),
                death,
                down,
                by_plan,
            });
        }
    }
    dead
}

/// Whether a dead worker left on purpose: its pod was deleted, and no job was lost with it. A machine that dies while its pods
/// are being deleted is a loss, unless the operator itself had chosen the worker to go.
fn left_by_plan(worker: Worker<'_>, death: &Death, node: &SlurmNode) -> bool {
    let ended_as_asked = *death == Death::Ended || worker.leaving().is_some();
    worker.is_terminating() && ended_as_asked && !node.state.is_busy()
}

/// What Slurm is told about a node that is dead, if it does not know. Records from slurm.conf are not ours. The reason for which
/// a worker left by plan stays: it says later whether the record may go.
pub(super) fn down(node: &SlurmNode, death: &Death, worker: Option<Worker<'_>>, by_plan: bool) -> Option<Down> {
    if node.state.is_down() || !node.state.is_dynamic() {
        return None;
    }
    let words = match (by_plan, node.reason.as_str()) {
        (true, "") => Some(TERMINATING.to_owned()),
        (true, _) => None,
        // What a person wrote there stays.
        (false, _) => (!is_a_persons(node, worker)).then(|| format!("lost: {}", death.message())),
    };
    Some(Down {
        node: node.name.clone(),
        reason: words.map(|words| format!("{}{words}", keys::NODE_REASON_PREFIX)),
        expect: node.admin_state(),
    })
}

/// Brings nodes back into service whose workers are there again. A resume also makes slurmd register, so that copies of jobs
/// that Slurm has given to others meanwhile end.
pub(super) fn plan_returns(observed: &Observed, fates: &Fates<'_>, plan: &mut Plan) {
    let Some(seen) = observed.knowledge.known() else { return };
    for worker in &fates.stay {
        let host = worker.kubernetes_node().and_then(|name| observed.nodes.get(name));
        let alive = host.is_some_and(|host| ready_since(host).is_some());
        let (Some(since), Some(node)) = (
            worker.ready_since().filter(|_| worker.is_ready() && alive),
            worker.slurm_name().and_then(|name| seen.nodes.get(name)),
        ) else {
            continue;
        };
        if node.state.is_down()
            && (is_ours(node, *worker) || is_slurms_own(&node.reason))
            && missed_address(*worker, node).is_none()
            && (inherited::is_down_for_them(node) || is_about_the_past(node, since, observed.now))
            && cordon::reason(observed, *worker).is_none()
        {
            plan.effects.push(Effect::ResumeNode {
                pod: worker.id(),
                node: node.name.clone(),
                expect: node.admin_state(),
            });
        }
    }
}

/// The address of a worker that Slurm looks for where the one before it was: slurmctld was killed before it had written down
/// that this one has registered, and slurmd does not register again by itself. Once Slurm knows the address, it finds it.
pub fn missed_address<'a>(worker: Worker<'a>, node: &SlurmNode) -> Option<&'a str> {
    let started = i64::try_from(node.slurmd_start_time.finite().unwrap_or_default()).ok()?;
    let is_of_another = worker.created().is_some_and(|created| started < created.as_second());
    let is_missed = node.state.is_down() || !node.state.is_responding();
    let is_missed = is_missed && node.state.is_dynamic() && is_of_another;
    worker.address_instead_of(&node.address).filter(|_| is_missed)
}

/// The worker was ready only after Slurm gave the node up, or has been ready for so long since that it is not about to be
/// missed by Kubernetes too.
fn is_about_the_past(node: &SlurmNode, ready_since: Timestamp, now: Timestamp) -> bool {
    let given_up = node
        .reason_changed_at
        .finite()
        .and_then(|seconds| Timestamp::from_second(i64::try_from(seconds).ok()?).ok());
    given_up.is_none_or(|given_up| given_up <= ready_since || now.duration_since(given_up) > MISSED_WITHIN)
}

/// The Kubernetes node where the last worker of this name may still run its jobs, though its pod is gone: it does not
/// answer, or has just come back.
pub(super) fn may_be_alive_on<'o>(observed: &'o Observed, hostname: &str) -> Option<&'o str> {
    let noted = observed
        .nodeset
        .status
        .as_ref()
        .and_then(|status| status.cut_off.as_ref());
    let noted = noted.and_then(|noted| noted.get(hostname)).map(String::as_str);
    let recorded = observed.records.get(hostname).map(|identity| identity.node.as_str());
    noted
        .into_iter()
        .chain(recorded)
        .find(|name| is_cut_off(observed.nodes.get(*name).map(AsRef::as_ref), observed.now))
}

/// Workers whose Kubernetes nodes do not answer, and those of which that was the last that was seen. It is written down, so
/// that their names are not used again when their pods are gone.
pub fn cut_off(observed: &Observed) -> BTreeMap<String, String> {
    let status = observed.nodeset.status.as_ref();
    let mut places: BTreeMap<&str, &str> = status
        .and_then(|status| status.cut_off.as_ref())
        .into_iter()
        .flatten()
        .map(|(name, node)| (name.as_str(), node.as_str()))
        .collect();
    for worker in observed.workers() {
        let Some(name) = worker.slurm_name() else { continue };
        // What is there is what counts; and what has ended is no longer anywhere.
        places.remove(name);
        if let Some(node) = worker.kubernetes_node().filter(|_| !worker.is_finished()) {
            places.insert(name, node);
        }
    }
    places
        .into_iter()
        .filter(|(_, node)| is_cut_off(observed.nodes.get(*node).map(AsRef::as_ref), observed.now))
        .map(|(name, node)| (name.to_owned(), node.to_owned()))
        .collect()
}

/// Whether something may run on a node that nobody can see.
fn is_cut_off(node: Option<&Node>, now: Timestamp) -> bool {
    let Some(node) = node else { return false };
    match ready_since(node) {
        Some(since) => now.duration_since(since) < SETTLED_AFTER,
        None => !is_out_of_service(node),
    }
}

/// Replaces a worker that is ready but that Slurm does not know. Slurm forgets a node that joined just before slurmctld was
/// killed, and slurmd does not register again by itself.
pub(super) fn plan_unregistered(observed: &Observed, fates: &Fates<'_>, desired: u32, plan: &mut Plan) {
    let Some(seen) = observed.knowledge.known() else { return };
    let long_ready = |worker: Worker<'_>| worker.is_available(MISSED_WITHIN, observed.now);
    let is_known = |worker: &Worker<'_>| worker.slurm_name().is_some_and(|name| seen.nodes.contains_key(name));
    let mut unknown: Vec<Worker<'_>> = fates
        .stay
        .iter()
        .copied()
        // The machine may call itself by another name.
        .filter(|worker| long_ready(*worker) && !is_known(worker) && !worker.is_named_by_machine())
        .collect();
    if unknown.is_empty() {
        return;
    }
    plan.needs_jobs = true;
    plan.waits.extend(unknown.iter().map(|worker| Wait::Unregistered {
        node: worker.slurm_name().unwrap_or_default().to_owned(),
    }));
    // Where no worker at all is known, their names may be others than ours; so one shows whether it helps.
    let limit = if fates.stay.iter().any(is_known) {
        observed.nodeset.spec.update_strategy().max_unavailable(desired).max(1)
    } else {
        1
    };
    let young = observed.workers().filter(|worker| !long_ready(*worker)).count();
    let free = usize::try_from(limit).unwrap_or(usize::MAX).saturating_sub(young);
    unknown.truncate(free);
    plan.effects
        .extend(unknown.into_iter().map(|worker| Effect::RemoveWorker {
            pod: worker.id(),
            node: worker.slurm_name().unwrap_or_default().to_owned(),
            standing: Standing::Absent,
            record: Record::Absent,
            claims: Vec::new(),
        }));
}

/// Since when the kubelet of this node has been answering.
fn ready_since(node: &Node) -> Option<Timestamp> {
    let conditions = node.status.as_ref()?.conditions.as_ref()?;
    let ready = conditions.iter().find(|condition| condition.type_ == "Ready")?;
    (ready.status == "True").then(|| {
        ready
            .last_transition_time
            .as_ref()
            .map_or(Timestamp::MIN, |time| time.0)
    })
}

fn is_out_of_service(node: &Node) -> bool {
    let taints = node.spec.as_ref().and_then(|spec| spec.taints.as_ref());
    taints.into_iter().flatten().any(|taint| taint.key == OUT_OF_SERVICE)
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::{super::tests::steps, *};
    use crate::{
        cluster::Knowledge,
        nodeset::{
            fixture::{
                DRAINED, DRAINING, IDLE, controller, finished, host, known, marked, nodeset, observed_exactly,
                slurm_key, terminating, unknown, with, worker,
            },
            plan::{Plan, plan},
        },
    };

    fn not_ready(host: Value) -> Value {
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

    /// What is planned for one worker among these objects and no others.
    fn planned(objects: Vec<Value>, status: Value, knowledge: Knowledge) -> Plan {
        let set = with(nodeset(&json!({ "replicas": 1 })), &[("/status", status)]);
        let all = [vec![controller(), slurm_key(), set], objects].concat();
        plan(&observed_exactly("compute", all, knowledge))
    }

    fn node(state: &[&str], reason: &str, reason_at: &str) -> Knowledge {
        let at: Timestamp = reason_at.parse().unwrap();
        let nodes = json!([{ "name": "compute-0", "state": state, "reason": reason,
            "reason_changed_at": { "set": true, "infinite": false, "number": at.as_second() } }]);
        let nodes = serde_json::from_value(nodes).unwrap();
        Knowledge::Known(crate::cluster::Seen::of_nodes(nodes, crate::nodeset::fixture::now()).into())
    }

    const DOWN: &[&str] = &["DOWN", "DYNAMIC_NORM"];

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

    #[test]
    fn slurm_is_told_once_and_a_persons_reason_stays() {
        let reason = |knowledge| {
            let plan = planned(vec![worker(0)], json!(null), knowledge);
            let [Effect::LoseWorker { down, death, .. }] = plan.effects.as_slice() else {
                panic!("{:?}", plan.effects)
            };
            assert_eq!(*death, Death::NodeGone { node: "k1".to_owned() });
            down.clone()
                .map(|down| down.reason.unwrap_or_else(|| "as it stands".to_owned()))
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
        // Others' nodes are left alone, and what is not known is not told.
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
        // Whether somebody is warned, and the reason that Slurm is given.
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
            let [Effect::LoseWorker { down, by_plan, .. }] = plan.effects.as_slice() else {
                panic!("{case}: {:?}", plan.effects)
            };
            let down = down.as_ref().unwrap();
            // Without a new one the reason stays that is there.
            let reason = down.reason.as_deref().unwrap_or(&down.expect.reason);
            assert_eq!((!by_plan, reason), expected, "{case}");
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
            let held = plan.waits.iter().any(|wait| matches!(wait, Wait::MayBeAlive { .. }));
            assert_eq!(held, expected.is_empty(), "{case}");
        }
        // Slurm remembers too where the last one was.
        let comment =
            r#"{"namespace":"slurm","podName":"compute-0","node":"k1","nodeSetName":"compute","nodeSetUID":"compute"}"#;
        let nodes = json!([{ "name": "compute-0", "state": IDLE, "comment": comment }]);
        let seen =
            crate::cluster::Seen::of_nodes(serde_json::from_value(nodes).unwrap(), crate::nodeset::fixture::now());
        let plan = planned(vec![not_ready(settled())], json!(null), Knowledge::Known(seen.into()));
        assert_eq!(steps(&plan), [""; 0]);
    }

    #[test]
    fn what_is_cut_off_is_written_down_until_it_is_known_to_be_dead_or_back() {
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

    #[test]
    fn a_node_whose_worker_is_back_is_resumed_unless_a_person_took_it_down() {
        // The worker has been ready since 00:01.
        let (before, just_now, while_ago) = ("2026-01-01T00:00:30Z", "2026-01-01T00:59:50Z", "2026-01-01T00:50:00Z");
        let ours = "slurm-operator: lost: Kubernetes node k9 is gone";
        for (state, reason, at, expected) in [
            (DOWN, ours, before, "resume compute-0"),
            (
                &["DOWN", "DRAIN", "DYNAMIC_NORM"],
                "slurm-operator: Pod is terminating",
                before,
                "resume compute-0",
            ),
            (DOWN, "Not responding", before, "resume compute-0"),
            (DOWN, "Node unexpectedly rebooted", before, "resume compute-0"),
            // Kubernetes may be about to miss it too.
            (DOWN, "Not responding", just_now, ""),
            (DOWN, "Not responding", while_ago, "resume compute-0"),
            (DOWN, "broken fan", before, ""),
            (DOWN, "", before, ""),
            (IDLE, "", before, ""),
        ] {
            let plan = planned(vec![worker(0), host("k1")], json!(null), node(state, reason, at));
            assert_eq!(steps(&plan).join("; "), expected, "{state:?} {reason} {at}");
        }
        let starting = with(worker(0), &[("/status/conditions/0/status", json!("False"))]);
        for objects in [vec![starting, host("k1")], vec![worker(0), not_ready(host("k1"))]] {
            assert_eq!(steps(&planned(objects, json!(null), node(DOWN, ours, before))), [""; 0]);
        }
    }

    #[test]
    fn a_node_is_resumed_only_where_its_worker_is() {
        // The worker was created at midnight.
        let (before, after) = ("2025-12-31T23:59:00Z", "2026-01-01T00:00:30Z");
        let lost = "slurm-operator: lost: Kubernetes node k9 is gone";
        for (case, address, started, expected) in [
            ("the one before it was there", "10.0.0.9", before, ""),
            ("it is there", "10.0.0.1", before, "resume compute-0"),
            (
                "it was there, on a network of its own",
                "10.0.0.9",
                after,
                "resume compute-0",
            ),
            ("Slurm looks the address up", "compute-0", before, "resume compute-0"),
        ] {
            let started: Timestamp = started.parse().unwrap();
            let pod = with(
                worker(0),
                &[
                    ("/metadata/creationTimestamp", json!("2026-01-01T00:00:00Z")),
                    ("/status/podIP", json!("10.0.0.1")),
                ],
            );
            let Knowledge::Known(seen) = node(DOWN, lost, before) else {
                panic!("it is known")
            };
            let mut seen = crate::cluster::Seen::clone(&seen);
            let record = seen.nodes.get_mut("compute-0").unwrap();
            record.address = address.to_owned();
            record.slurmd_start_time =
                serde_json::from_value(json!({ "set": true, "number": started.as_second() })).unwrap();
            let plan = planned(vec![pod, host("k1")], json!(null), Knowledge::Known(seen.into()));
            assert_eq!(steps(&plan).join("; "), expected, "{case}");
        }
    }

    #[test]
    fn workers_that_slurm_does_not_know_are_replaced_one_first_then_as_many_as_may_be_missing() {
        let replaced = |pods: Vec<Value>, nodes: &[(&str, &[&str])]| {
            let set =
                nodeset(&json!({ "replicas": 4, "updateStrategy": { "rollingUpdate": { "maxUnavailable": 2 } } }));
            let all = [vec![controller(), slurm_key(), host("k1"), set], pods].concat();
            steps(&plan(&observed_exactly("compute", all, known(nodes, &[])))).len()
        };
        let four = || (0..4).map(worker).collect::<Vec<Value>>();
        assert_eq!(replaced(four(), &[]), 1);
        let one_known: &[(&str, &[&str])] = &[("compute-0", IDLE)];
        assert_eq!(replaced(four(), one_known), 2);
        // One that is coming counts.
        let young = with(
            worker(0),
            &[("/status/conditions/0/lastTransitionTime", json!("2026-01-01T00:59:50Z"))],
        );
        assert_eq!(replaced([vec![young], four().split_off(1)].concat(), one_known), 1);
        let on_host = |pod| with(pod, &[("/spec/hostNetwork", json!(true))]);
        assert_eq!(replaced(four().into_iter().map(on_host).collect(), &[]), 0);
    }
}
