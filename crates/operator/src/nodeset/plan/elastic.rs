//! Autoscaling: Slurm's power saving decides which nodes run, and a pod exists while Slurm has its node powered up.
//!
//! Slurm has a record of the state `CLOUD` for every ordinal below `maxReplicas`, so that jobs can be submitted before there
//! are workers. Level-triggered: what is to be done follows from the states of the records alone. While they are unknown,
//! nothing changes.

use std::{collections::BTreeMap, time::Duration};

use api::autoscaling::Autoscaling;
use jiff::SignedDuration;
use kube::ResourceExt;
use slurm::{Node, SingleLine, node::NodeFlag};

use super::{BURST, Effect, Plan, PlannedOrder, Wait, scale::ScalePlan, taken_by};
use crate::{
    cluster::NodeOrder,
    nodeset::{
        build::{Place, render_record},
        identity::Identity,
        observe::Observed,
    },
    partition::rules::mark::Marks,
    startup::startup_problem,
    unix_time::timestamp,
    worker::{Cause, Worker},
};

/// A record to create in Slurm.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RecordCreation {
    pub node: String,
    /// `None` if the record exists and is only described.
    pub settings: Option<SingleLine>,
    /// Names the owner, and the settings that the record has.
    pub comment: SingleLine,
}

/// Chooses the workers whose nodes Slurm has powered up.
pub(super) fn scale_by_power<'a>(
    observed: &'a Observed,
    autoscaling: &Autoscaling,
    own: Vec<Worker<'a>>,
    all: &[Worker<'a>],
) -> ScalePlan<'a> {
    let nodeset = observed.nodeset.as_ref();
    let most = autoscaling.max_replicas();
    let mut plan = ScalePlan {
        end_of_numbers: most,
        ..ScalePlan::default()
    };
    let (active, leaving): (Vec<_>, Vec<_>) = own.into_iter().partition(|worker| worker.is_active());
    let Some(seen) = observed.knowledge.known() else {
        for worker in active {
            match worker.leaving().map(|leaving| leaving.cause) {
                // Whether an update goes on is decided later.
                None | Some(Cause::Update) => plan.stay.push(worker),
                Some(cause) => plan.leave.push((worker, cause)),
            }
        }
        plan.desired = u32::try_from(plan.stay.len()).unwrap_or(u32::MAX);
        return plan;
    };
    let name = nodeset.name_any();
    let used: BTreeMap<u32, &Worker<'a>> = all
        .iter()
        .filter_map(|worker| Some((worker.ordinal(&name)?, worker)))
        .collect();
    for ordinal in 0..most {
        let place = Place::of_ordinal(nodeset, ordinal, None);
        let node = seen.nodes.get(&place.hostname);
        if let Some(node) = node.filter(|node| node.state.is_cloud() && !node.state.is_off()) {
            plan.desired += 1;
            // A node that is about to be stopped needs no new worker.
            let is_wanted = !node.state.has(NodeFlag::PowerDown);
            if is_wanted && plan.create.len() < BURST && !used.contains_key(&ordinal) {
                plan.create.push(place);
            }
        }
    }
    let is_powered_up = |worker: &Worker<'_>| {
        let node = observed.slurm_node(*worker);
        node.is_some_and(|node| node.state.is_cloud() && !node.state.is_off())
    };
    plan.awaited = leaving.into_iter().filter(is_powered_up).collect();
    for worker in active {
        let is_surplus = worker.ordinal(&name).is_none_or(|ordinal| ordinal >= most);
        match observed.slurm_node(worker) {
            _ if is_surplus => plan.leave.push((worker, Cause::ScaleIn)),
            // It registered before autoscaling was enabled, or slurmctld has lost its record. Slurm could not stop it.
            Some(node) if !node.state.is_cloud() => plan.leave.push((worker, Cause::OtherMode)),
            Some(node) if is_stopped(node, worker) => plan.leave.push((worker, Cause::PowerDown)),
            _ => plan.stay.push(worker),
        }
    }
    plan
}

/// Whether Slurm has stopped the node of a worker. Slurm ignores a worker from before the last start of its node, so that one
/// leaves also if its node was started again meanwhile.
fn is_stopped(node: &Node, worker: Worker<'_>) -> bool {
    let is_former = worker
        .leaving()
        .is_some_and(|leaving| leaving.cause == Cause::PowerDown);
    node.state.is_off() || node.state.is_starting() && is_former
}

/// Slurm's reason for a node that did not register in time.
const NOT_BOOTED: &str = "ResumeTimeout reached";
/// How long Slurm does not try a node again that did not start.
const BACK_OFF: SignedDuration = SignedDuration::from_mins(1);
/// The first release whose records have a `SuspendTime` of their own.
const NEEDED_RELEASE: (u16, u16) = (26, 5);

/// Gives up on workers that do not start in time: Slurm requeues their jobs and may choose other nodes.
pub(super) fn plan_boot_failures(observed: &Observed, plan: &mut Plan) {
    let Some(autoscaling) = observed.nodeset.spec.autoscaling() else {
        return;
    };
    let limit = autoscaling.boot_timeout();
    // A worker that leaves is from before the start of its node.
    let active = observed
        .workers()
        .filter(|worker| worker.is_active() && !worker.is_marked());
    for worker in active {
        let node = observed.slurm_node(worker);
        let Some(node) = node.filter(|node| node.state.is_cloud() && node.state.is_starting()) else {
            continue;
        };
        let age = worker.created().map(|created| observed.now.duration_since(created));
        let left = limit - age.unwrap_or_default();
        if let Ok(left) = Duration::try_from(left).map(|left| left.max(Duration::from_millis(1)))
            && left > Duration::from_millis(1)
        {
            plan.requeue = Some(plan.requeue.map_or(left, |requeue| requeue.min(left)));
            continue;
        }
        let (pod, limit) = (worker.name(), limit.as_secs());
        let why = startup_problem(worker.0).map_or_else(String::new, |why| format!(": {why}"));
        plan.waits.push(Wait::Other(format!(
            "pod {pod} has not registered in Slurm within {limit} s (spec.autoscaling.bootTimeout), so its jobs are requeued{why}"
        )));
        plan.effects.push(Effect::OrderNode {
            order: PlannedOrder::new(node, NodeOrder::PowerDown),
            note_on: None,
        });
    }
}

/// Creates missing records, describes those without a pod, and deletes those that are not wanted or have other settings.
/// Starts the nodes that are kept without jobs.
pub(super) fn plan_elastic_records(observed: &Observed, plan: &mut Plan) {
    let Some(seen) = observed.knowledge.known() else { return };
    let nodeset = observed.nodeset.as_ref();
    let autoscaling = nodeset.spec.autoscaling();
    let most = autoscaling.map_or(0, Autoscaling::max_replicas);
    let with_pod: BTreeMap<&str, Worker<'_>> = observed
        .workers()
        .filter_map(|worker| Some((worker.slurm_name()?, worker)))
        .collect();
    if let Some((year, month)) = seen
        .release
        .filter(|release| autoscaling.is_some() && *release < NEEDED_RELEASE)
    {
        plan.waits.push(Wait::Other(format!(
            "spec.autoscaling needs Slurm 26.05, and slurmctld is {year}.{month:02}; upgrade its image, or disable autoscaling"
        )));
        return;
    }
    let mut wanted = BTreeMap::new();
    for ordinal in 0..most {
        let Some(autoscaling) = autoscaling else { break };
        let place = Place::of_ordinal(nodeset, ordinal, None);
        let is_kept = ordinal < autoscaling.min_replicas();
        let Some(creation) = wanted_record(observed, autoscaling, &place, is_kept) else {
            continue;
        };
        match seen.nodes.get(&place.hostname) {
            _ if with_pod.contains_key(place.hostname.as_str()) => {}
            None if taken_by(observed, &place.hostname).is_none() => {
                plan.effects.push(Effect::CreateRecord(creation.clone()));
            }
            Some(node) if is_outdated(node, &creation) => plan.effects.push(Effect::CreateRecord(RecordCreation {
                settings: None,
                ..creation.clone()
            })),
            // Slurm sets a node down that did not start, and should be in service again without an administrator.
            Some(node) if has_failed(node) => plan_retry(observed, node, plan),
            Some(node) if is_kept && node.state.is_cloud() && can_be_started(node) => {
                plan.effects.push(Effect::OrderNode {
                    order: PlannedOrder::new(node, NodeOrder::PowerUp),
                    note_on: None,
                });
            }
            _ => {}
        }
        wanted.insert(place.hostname, creation);
    }
    for (name, identity) in &observed.records {
        let Some(node) = seen.nodes.get(name).filter(|node| node.state.is_cloud()) else {
            continue;
        };
        // Records that people created are theirs.
        if identity.settings.is_empty() || !node.state.is_off() {
            continue;
        }
        let is_current = wanted.get(name).is_some_and(|creation| {
            let current = Identity::parse(creation.comment.as_str());
            current.is_some_and(|current| current.settings == identity.settings)
        });
        if !is_current {
            let order = PlannedOrder::new(node, NodeOrder::Delete);
            plan.effects.push(Effect::DeleteRecord(order));
        }
    }
}

fn has_failed(node: &Node) -> bool {
    let is_stopped = node.state.is_cloud() && node.state.is_off();
    is_stopped && node.state.is_down() && node.reason.starts_with(NOT_BOOTED)
}

/// Returns a node that did not start to service, after a while.
fn plan_retry(observed: &Observed, node: &Node, plan: &mut Plan) {
    let since = node.reason_changed_at.finite().and_then(timestamp);
    let left = since.map(|since| BACK_OFF - observed.now.duration_since(since));
    match left
        .and_then(|left| Duration::try_from(left).ok())
        .filter(|left| !left.is_zero())
    {
        Some(left) => {
            plan.requeue = Some(plan.requeue.map_or(left, |requeue| requeue.min(left)));
            let name = &node.name;
            plan.waits.push(Wait::Other(format!(
                "node {name} did not start in time; Slurm may use it again in {} s",
                left.as_secs() + 1
            )));
        }
        None => plan.effects.push(Effect::OrderNode {
            order: PlannedOrder::new(node, NodeOrder::Resume),
            note_on: None,
        }),
    }
}

/// Whether the comment of a stopped record is missing, or names the Kubernetes node of a worker that is gone.
fn is_outdated(node: &Node, creation: &RecordCreation) -> bool {
    let settings = |comment: &str| Identity::parse(comment).map(|identity| identity.settings);
    let is_stopped = node.state.is_cloud() && node.state.is_off();
    let is_other = node.comment != creation.comment.as_str();
    let has_settings = settings(&node.comment) == settings(creation.comment.as_str());
    is_stopped && is_other && (node.comment.is_empty() || has_settings)
}

/// Whether Slurm would start this node: it is not closed to jobs, and it is not being stopped.
fn can_be_started(node: &Node) -> bool {
    let state = &node.state;
    let is_busy = state.has(NodeFlag::PoweringDown) || state.has(NodeFlag::PowerUp);
    state.is_off() && !is_busy && !state.is_drain() && !state.is_down()
}

fn wanted_record(
    observed: &Observed,
    autoscaling: &Autoscaling,
    place: &Place,
    is_kept: bool,
) -> Option<RecordCreation> {
    let nodeset = observed.nodeset.as_ref();
    let marks = Marks::of(nodeset, &place.hostname, &observed.partitions, &observed.siblings);
    let settings = render_record(nodeset, autoscaling, &marks.wanted, is_kept);
    let identity = Identity {
        namespace: nodeset.namespace().unwrap_or_default(),
        pod_name: place.pod.clone(),
        node: String::new(),
        node_set_name: nodeset.name_any(),
        node_set_uid: nodeset.uid().unwrap_or_default(),
        settings: Identity::digest_of(&settings),
    };
    Some(RecordCreation {
        node: place.hostname.clone(),
        settings: Some(SingleLine::new(settings).ok()?),
        comment: SingleLine::new(identity.to_comment()).ok()?,
    })
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::super::{Plan, tests::steps};
    use crate::{
        cluster::{Knowledge, Seen, Source},
        nodeset::fixture::{known, now, planned, terminating, unknown, with, worker},
    };

    const OFF: &[&str] = &["IDLE", "CLOUD", "DYNAMIC_NORM", "POWERED_DOWN"];
    const STOPPING: &[&str] = &["IDLE", "CLOUD", "DYNAMIC_NORM", "POWERING_DOWN"];
    const STARTING: &[&str] = &["MIXED", "CLOUD", "DYNAMIC_NORM", "NOT_RESPONDING", "POWERING_UP"];
    const UP: &[&str] = &["IDLE", "CLOUD", "DYNAMIC_NORM"];
    const BUSY: &[&str] = &["MIXED", "CLOUD", "DYNAMIC_NORM"];

    fn elastic(min: u32, max: u32) -> Value {
        let shape = "CPUs=2 RealMemory=1000";
        json!({ "autoscaling": { "enabled": true, "minReplicas": min, "maxReplicas": max, "idleTime": "30s", "bootTimeout": "2h",
            "shape": shape } })
    }

    /// The comment of a record that this operator created.
    fn comment(spec: &Value, ordinal: usize, node: &str) -> String {
        let plan = planned(spec, vec![], known(&[], &[]));
        let mut records = plan.effects.iter().filter_map(|effect| match effect {
            super::Effect::CreateRecord(creation) => Some(creation.comment.to_string()),
            _ => None,
        });
        records
            .nth(ordinal)
            .unwrap()
            .replace(r#""node":"""#, &format!(r#""node":"{node}""#))
    }

    /// Nodes of the records that this operator created, by ordinal, and jobs on them.
    fn records(spec: &Value, states: &[&[&str]], jobs: &[(u64, &[&str], &str)]) -> Knowledge {
        let nodes = states.iter().enumerate().map(|(ordinal, state)| {
            json!({ "name": format!("compute-{ordinal}"), "state": state, "comment": comment(spec, ordinal, "") })
        });
        let Knowledge::Known(seen) = known(&[], jobs) else {
            unreachable!()
        };
        let nodes = nodes.map(|node| serde_json::from_value::<slurm::Node>(node).unwrap());
        let nodes = nodes.map(|node| (node.name.clone(), node)).collect();
        Knowledge::Known(std::sync::Arc::new(Seen {
            nodes,
            ..Seen::clone(&seen)
        }))
    }

    fn stopped(pod: Value) -> Value {
        let mark = json!("power-down 2026-01-01T00:59:00Z");
        with(
            pod,
            &[("/metadata/annotations/nodeset.slinky.slurm.net~1leaving", mark)],
        )
    }

    #[test]
    fn every_ordinal_has_a_record_and_only_nodes_that_slurm_has_started_have_pods() {
        let spec = elastic(0, 3);
        let plan = planned(&spec, vec![], known(&[], &[]));
        assert_eq!(
            steps(&plan),
            ["record compute-0", "record compute-1", "record compute-2"]
        );
        assert_eq!(plan.desired, 0);
        let super::Effect::CreateRecord(creation) = &plan.effects[0] else {
            panic!()
        };
        assert_eq!(
            creation.settings.as_ref().unwrap().as_str(),
            "Cpus=2 Features=compute Realmemory=1000 State=CLOUD Suspendtime=30"
        );
        let plan = planned(
            &spec,
            vec![],
            records(&spec, &[OFF, STARTING, OFF], &[(1, &["RUNNING"], "compute-1")]),
        );
        assert_eq!(
            (steps(&plan).join("; "), plan.desired),
            ("create compute-1".to_owned(), 1)
        );
        let plan = planned(
            &spec,
            vec![worker(1)],
            records(&spec, &[OFF, BUSY, OFF], &[(1, &["RUNNING"], "compute-1")]),
        );
        assert_eq!((steps(&plan).join("; "), plan.desired), (String::new(), 1));
    }

    #[test]
    fn without_knowledge_nothing_changes() {
        let plan = planned(&elastic(1, 3), vec![worker(2), stopped(worker(1))], unknown());
        assert_eq!((steps(&plan).join("; "), plan.desired), (String::new(), 1));
    }

    #[test]
    fn a_worker_leaves_when_slurm_has_stopped_its_node_and_no_job_is_there() {
        let spec = elastic(0, 1);
        let after = |pod: Value, state: &[&str], jobs: &[(u64, &[&str], &str)]| -> Plan {
            planned(&spec, vec![pod], records(&spec, &[state], jobs))
        };
        for state in [STOPPING, OFF] {
            assert_eq!(steps(&after(worker(0), state, &[])), ["mark compute-0 for power-down"]);
            assert_eq!(steps(&after(stopped(worker(0)), state, &[])), ["remove compute-0"]);
            // The record stays with its settings.
            assert_eq!(steps(&after(terminating(worker(0)), state, &[])), [""; 0]);
        }
        let late = after(
            stopped(worker(0)),
            STOPPING,
            &[(7, &["RUNNING", "COMPLETING"], "compute-0")],
        );
        assert_eq!(steps(&late), [""; 0]);
        assert!(late.waits[0].message().contains("job 7"), "{:?}", late.waits);
        // Slurm started it again, and ignores the old worker.
        let again = after(
            stopped(worker(0)),
            STARTING,
            &[(8, &["RUNNING", "CONFIGURING"], "compute-0")],
        );
        assert_eq!(steps(&again), ["remove compute-0"]);
        let new = after(worker(0), STARTING, &[(8, &["RUNNING", "CONFIGURING"], "compute-0")]);
        assert_eq!(steps(&new), [""; 0]);
        assert_eq!(steps(&after(stopped(worker(0)), UP, &[])), ["spare compute-0"]);
    }

    #[test]
    fn a_worker_that_does_not_register_in_time_is_given_up_and_its_node_tried_again_later() {
        let mut spec = elastic(0, 1);
        let job: &[(u64, &[&str], &str)] = &[(8, &["RUNNING", "CONFIGURING"], "compute-0")];
        // The worker is an hour old.
        for (limit, expected) in [("59m", "power down compute-0"), ("61m", "")] {
            spec["autoscaling"]["bootTimeout"] = json!(limit);
            let plan = planned(&spec, vec![worker(0)], records(&spec, &[STARTING], job));
            assert_eq!(steps(&plan).join("; "), expected);
        }
        let failed = |reason: &str, since: &str| {
            let since: jiff::Timestamp = since.parse().unwrap();
            let nodes = json!([{
                "name": "compute-0", "state": ["DOWN", "CLOUD", "DYNAMIC_NORM", "POWERED_DOWN"], "comment": comment(&spec, 0, ""),
                "reason": reason, "reason_changed_at": { "set": true, "infinite": false, "number": since.as_second() },
            }]);
            let seen = Seen::of_nodes(serde_json::from_value(nodes).unwrap(), now());
            steps(&planned(&spec, vec![], Knowledge::Known(seen.into()))).join("; ")
        };
        assert_eq!(failed("ResumeTimeout reached", "2026-01-01T00:59:30Z"), "");
        assert_eq!(
            failed("ResumeTimeout reached", "2026-01-01T00:58:30Z"),
            "resume compute-0"
        );
        assert_eq!(failed("broken fan", "2026-01-01T00:58:30Z"), "");
    }

    #[test]
    fn the_kept_nodes_are_started_unless_a_person_keeps_them_from_jobs() {
        let spec = elastic(2, 3);
        let drained: &[&str] = &["IDLE", "DRAIN", "CLOUD", "DYNAMIC_NORM", "POWERED_DOWN"];
        for (states, expected) in [
            ([OFF, OFF, OFF], "power up compute-0; power up compute-1"),
            ([UP, drained, OFF], "create compute-0"),
            ([STARTING, STOPPING, OFF], "create compute-0"),
        ] {
            assert_eq!(
                steps(&planned(&spec, vec![], records(&spec, &states, &[]))).join("; "),
                expected
            );
        }
    }

    #[test]
    fn records_with_other_settings_or_without_an_ordinal_are_deleted_while_they_are_stopped() {
        let spec = elastic(0, 3);
        let states: [&[&str]; 3] = [OFF, OFF, OFF];
        let plan = planned(&elastic(0, 2), vec![], records(&spec, &states, &[]));
        assert_eq!(steps(&plan), ["forget compute-2"]);
        let plan = planned(&json!({ "replicas": 0 }), vec![], records(&spec, &states, &[]));
        assert_eq!(
            steps(&plan),
            ["forget compute-0", "forget compute-1", "forget compute-2"]
        );
        let mut other = elastic(0, 2);
        other["autoscaling"]["idleTime"] = json!("1h");
        let plan = planned(&other, vec![], records(&spec, &[OFF, STARTING], &[]));
        assert_eq!(steps(&plan), ["create compute-1", "forget compute-0"]);
    }

    #[test]
    fn a_record_without_a_pod_names_no_kubernetes_node() {
        let spec = elastic(0, 1);
        for comment in [String::new(), comment(&spec, 0, "k1")] {
            let nodes = json!([{ "name": "compute-0", "state": OFF, "comment": comment }]);
            let seen = Seen::of_nodes(serde_json::from_value(nodes).unwrap(), now());
            let seen = Seen {
                source: Source::Agent,
                ..seen
            };
            let plan = planned(&spec, vec![], Knowledge::Known(seen.into()));
            assert_eq!(steps(&plan), ["describe compute-0"]);
        }
    }

    #[test]
    fn workers_that_slurm_cannot_stop_are_replaced_and_surplus_ones_leave() {
        let spec = elastic(0, 1);
        let plan = planned(
            &spec,
            vec![worker(0), worker(4)],
            known(&[("compute-0", &["IDLE", "DYNAMIC_NORM"]), ("compute-4", UP)], &[]),
        );
        assert_eq!(steps(&plan), ["mark compute-0 for other-mode", "mark compute-4"]);
    }
}
