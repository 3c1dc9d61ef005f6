//! Conditions that drain, by what the plan does with one worker on Kubernetes node `k1`.

use serde_json::{Value, json};

use super::{super::plan, *};
use crate::{
    cluster::{Knowledge, Seen},
    nodeset::{
        fixture::{begun, controller, host, nodeset, now, observed, slurm_key, unknown, worker},
        plan::{
            Effect, Plan, Wait,
            tests::{only_drain, steps},
        },
    },
    worker::{DRAIN_REASON, DRAINED, RESUMED},
};

const OPEN: &[&str] = &["MIXED", "DYNAMIC_NORM"];
const DRAIN: &[&str] = &["MIXED", "DRAIN", "DYNAMIC_NORM"];
const DOWN: &[&str] = &["DOWN", "DYNAMIC_NORM"];
const OURS: &str = "slurm-operator: Node (k1) has condition GpuMemWatch=True";
const LEFT: &str = "slurm-operator: Node (k1) has condition GpuMemWatch=True; resume it by hand";
const CORDON: &str = "slurm-operator: Pod (slurm/compute-0) was cordoned";

/// What the plan is made from: the worker is ready, its node is as Slurm's agent reads it.
#[derive(Clone)]
struct Case {
    drain_on: Value,
    /// Status and lastTransitionTime of condition GpuMemWatch.
    condition: Option<(&'static str, &'static str)>,
    annotations: Vec<(&'static str, &'static str)>,
    knowledge: Knowledge,
    seen: ConditionsSeen,
}

impl Case {
    fn new(condition: &'static str, state: &[&str], reason: &str) -> Self {
        let nodes = json!([{ "name": "compute-0", "state": state, "reason": reason }]);
        let seen = Seen::of_nodes(serde_json::from_value(nodes).unwrap(), now());
        Self {
            drain_on: json!([{ "condition": "GpuMemWatch" }]),
            condition: Some((condition, "2026-01-01T00:50:00Z")),
            annotations: Vec::new(),
            knowledge: begun(Knowledge::Known(seen.into()), "2026-01-01T00:10:00Z"),
            seen: ConditionsSeen::new(),
        }
    }

    fn drain_on(mut self, entry: &Value) -> Self {
        self.drain_on = json!([entry]);
        self
    }

    fn since(mut self, time: &'static str) -> Self {
        self.condition = self.condition.map(|(status, _)| (status, time));
        self
    }

    fn annotated(mut self, key: &'static str, value: &'static str) -> Self {
        self.annotations.push((key, value));
        self
    }

    /// The worker has the drain for the condition noted.
    fn noted(self, reason: &'static str) -> Self {
        self.annotated(DRAIN_REASON, reason)
            .annotated(DRAINED, "2026-01-01T00:50:01Z")
    }

    fn cordoned(self) -> Self {
        self.annotated("nodeset.slinky.slurm.net/pod-cordon", "true")
    }

    fn observed(&self) -> Observed {
        let mut node = host("k1");
        if let Some((status, since)) = self.condition {
            let condition = json!({ "type": "GpuMemWatch", "status": status, "lastTransitionTime": since });
            node["status"]["conditions"].as_array_mut().unwrap().push(condition);
        }
        let mut pod = worker(0);
        for (key, value) in &self.annotations {
            pod["metadata"]["annotations"][*key] = json!(value);
        }
        let spec = json!({ "replicas": 1, "health": { "drainOn": self.drain_on } });
        let objects = vec![controller(), slurm_key(), nodeset(&spec), node, pod];
        let mut observed = observed(objects, self.knowledge.clone());
        observed.conditions_seen = self.seen.clone();
        observed
    }

    fn plan(&self) -> Plan {
        plan(&self.observed())
    }

    fn steps(&self) -> String {
        steps(&self.plan()).join("; ")
    }

    /// The annotations that the plan sets.
    fn marks(&self) -> BTreeMap<String, Option<String>> {
        let plan = self.plan();
        let [Effect::MarkPod { annotations, .. }] = plan.effects.as_slice() else {
            panic!("{:?}", plan.effects)
        };
        annotations.clone()
    }
}

fn patch(entries: &[(&str, Option<&str>)]) -> BTreeMap<String, Option<String>> {
    let entries = entries.iter();
    entries
        .map(|(key, value)| ((*key).to_owned(), value.map(str::to_owned)))
        .collect()
}

#[test]
fn a_condition_drains_with_a_reason_that_names_it_and_its_node() {
    assert_eq!(only_drain(&Case::new("True", OPEN, "").plan()).1, Some(OURS));
    let by_hand = json!({ "condition": "GpuMemWatch", "undrain": false });
    let plan = Case::new("True", OPEN, "").drain_on(&by_hand).plan();
    assert_eq!(only_drain(&plan).1, Some(LEFT));
    let unknown = json!({ "condition": "GpuMemWatch", "status": "Unknown" });
    let plan = Case::new("Unknown", OPEN, "").drain_on(&unknown).plan();
    let reason = "slurm-operator: Node (k1) has condition GpuMemWatch=Unknown";
    assert_eq!(only_drain(&plan).1, Some(reason));
}

#[test]
fn the_status_decides_and_nothing_else_is_touched() {
    for (status, state, reason, expected) in [
        ("True", OPEN, "", "drain compute-0"),
        ("False", OPEN, "", ""),
        ("Unknown", OPEN, "", ""),
        // A person's drain or down stays as it is, whatever the condition is.
        ("True", DRAIN, "broken fan", ""),
        ("False", DRAIN, "broken fan", ""),
        ("True", DRAIN, "slurm-operator: broken fan", ""),
        ("False", DRAIN, "slurm-operator: broken fan", ""),
        ("True", DOWN, "broken fan", ""),
        ("False", DOWN, "broken fan", ""),
        ("True", DRAIN, "", ""),
        ("False", DRAIN, "", ""),
        ("True", DOWN, "Not responding", "drain compute-0"),
        // Ours is reverted when the condition is over, and only then.
        ("False", DRAIN, OURS, "undrain compute-0"),
        ("Unknown", DRAIN, OURS, "label compute-0"),
        (
            "False",
            DRAIN,
            "slurm-operator: Node (k1) has condition GpuMemWatch=True : Not responding",
            "undrain compute-0",
        ),
        ("False", DRAIN, LEFT, ""),
        ("True", DRAIN, CORDON, "drain compute-0"),
    ] {
        assert_eq!(
            Case::new(status, state, reason).steps(),
            expected,
            "{status} {reason:?}"
        );
    }
    let mut gone = Case::new("True", DRAIN, OURS);
    gone.condition = None;
    assert_eq!(gone.steps(), "undrain compute-0");
    let mut removed = Case::new("True", DRAIN, OURS);
    removed.drain_on = json!([]);
    assert_eq!(removed.steps(), "undrain compute-0");
    let mut silent = Case::new("True", OPEN, "");
    silent.knowledge = unknown();
    assert_eq!(silent.steps(), "");
    assert!(matches!(silent.plan().waits.as_slice(), [Wait::SlurmUnknown { .. }]));
}

#[test]
fn a_condition_is_due_when_it_has_lasted_by_its_own_time_or_by_ours() {
    let key = || ("k1".to_owned(), "GpuMemWatch".to_owned(), "True".to_owned());
    let entry = || json!({ "condition": "GpuMemWatch", "for": "30s" });
    for (since, first_seen, wait) in [
        ("2026-01-01T00:59:30Z", None, None),
        ("2026-01-01T00:59:31Z", None, Some(1)),
        ("2026-01-01T01:00:00Z", None, Some(30)),
        // The clock of the program that set it is ahead.
        ("2026-01-01T02:00:00Z", None, Some(30)),
        ("2026-01-01T02:00:00Z", Some("2026-01-01T00:59:40Z"), Some(10)),
        ("2026-01-01T02:00:00Z", Some("2026-01-01T00:59:30Z"), None),
        // That program writes the time again with every look.
        ("2026-01-01T00:59:55Z", Some("2026-01-01T00:59:30Z"), None),
    ] {
        let mut case = Case::new("True", OPEN, "").drain_on(&entry()).since(since);
        case.seen = first_seen
            .map(|time| (key(), time.parse().unwrap()))
            .into_iter()
            .collect();
        let (steps, requeue) = (case.steps(), case.plan().requeue.unwrap());
        match wait {
            None => assert_eq!(steps, "drain compute-0", "{since} {first_seen:?}"),
            Some(seconds) => {
                assert_eq!(
                    (steps.as_str(), requeue),
                    ("", Duration::from_secs(seconds)),
                    "{since} {first_seen:?}"
                );
            }
        }
    }
}

#[test]
fn the_time_at_which_a_condition_was_first_seen_is_kept_while_it_lasts() {
    let lasting = Case::new("True", OPEN, "").observed();
    let first = conditions_seen(&lasting, &ConditionsSeen::new());
    assert_eq!(first.values().copied().collect::<Vec<_>>(), [now()]);
    let earlier: ConditionsSeen = first
        .keys()
        .map(|key| (key.clone(), "2026-01-01T00:59:00Z".parse().unwrap()))
        .collect();
    assert_eq!(conditions_seen(&lasting, &earlier), earlier);
    let over = Case::new("False", OPEN, "").observed();
    assert_eq!(conditions_seen(&over, &earlier), ConditionsSeen::new());
}

#[test]
fn a_drain_in_force_is_noted_once_for_each_slurmctld() {
    let case = Case::new("True", DRAIN, OURS);
    assert_eq!(
        case.marks(),
        patch(&[(DRAIN_REASON, Some(OURS)), (DRAINED, Some("2026-01-01T01:00:00.000Z"))])
    );
    assert_eq!(case.noted(OURS).steps(), "");
    let entry = json!({ "condition": "GpuMemWatch", "undrain": false });
    let left = Case::new("True", DRAIN, LEFT).drain_on(&entry);
    assert_eq!(left.steps(), "label compute-0");
    let mut left = left.noted(LEFT);
    assert_eq!(left.steps(), "");
    left.knowledge = begun(left.knowledge, "2026-01-01T00:59:00Z");
    assert_eq!(left.steps(), "label compute-0");
}

#[test]
fn who_resumes_a_node_is_respected_until_the_condition_is_over() {
    let resumed = Case::new("True", OPEN, "").noted(OURS);
    let recorded = patch(&[
        (RESUMED_CONDITIONS, Some("GpuMemWatch=True")),
        (DRAINED, None),
        (DRAIN_REASON, None),
    ]);
    assert_eq!(resumed.marks(), recorded);
    // slurmctld was killed right after the drain, or its start is not known yet.
    let mut killed = resumed.clone();
    killed.knowledge = begun(killed.knowledge, "2026-01-01T00:50:20Z");
    assert_eq!(killed.steps(), "drain compute-0");
    let older = Case::new("True", OPEN, "")
        .annotated(DRAIN_REASON, OURS)
        .annotated(DRAINED, "2026-01-01T01:00:01Z");
    assert_eq!(older.steps(), "");

    let respected = Case::new("True", OPEN, "").annotated(RESUMED_CONDITIONS, "GpuMemWatch=True");
    assert_eq!((respected.steps().as_str(), respected.plan().waits), ("", vec![]));
    // Another condition, or the same one another time, is a new cause.
    let other = Case::new("True", OPEN, "").annotated(RESUMED_CONDITIONS, "DiskBroken=True");
    assert_eq!(other.steps(), "drain compute-0; label compute-0");
    let unknown = Case::new("Unknown", OPEN, "").annotated(RESUMED_CONDITIONS, "GpuMemWatch=True");
    assert_eq!(unknown.steps(), "");
    let over = Case::new("False", OPEN, "").annotated(RESUMED_CONDITIONS, "GpuMemWatch=True");
    assert_eq!(over.marks(), patch(&[(RESUMED_CONDITIONS, None)]));
    // A drain that was left to an administrator ends the same way.
    let entry = json!({ "condition": "GpuMemWatch", "undrain": false });
    assert_eq!(
        Case::new("True", OPEN, "").drain_on(&entry).noted(LEFT).marks(),
        recorded
    );
}

#[test]
fn a_cordon_goes_first_and_a_resume_overrules_what_lasts() {
    let plan = Case::new("True", OPEN, "").cordoned().plan();
    assert_eq!(only_drain(&plan).1, Some(CORDON));
    // The cordon is over, the condition lasts.
    let plan = Case::new("True", DRAIN, CORDON).annotated(DRAIN_REASON, CORDON).plan();
    assert_eq!(only_drain(&plan).1, Some(OURS));
    // An administrator resumed the node while both lasted.
    let noted = |reason| Case::new("True", OPEN, "").cordoned().noted(reason);
    let marks = noted(CORDON).marks();
    assert_eq!(
        marks.get(RESUMED_CONDITIONS),
        Some(&Some("GpuMemWatch=True".to_owned()))
    );
    assert!(marks.contains_key(RESUMED));
    // The condition came after that, and drains.
    let later = noted(CORDON).annotated(RESUMED, "2026-01-01T00:55:00Z");
    assert_eq!(only_drain(&later.plan()).1, Some(OURS));
    // It is over, and the resume of the cordoned node stands.
    let over = Case::new("False", DRAIN, OURS)
        .cordoned()
        .noted(OURS)
        .annotated(RESUMED, "2026-01-01T00:55:00Z");
    assert_eq!(over.steps(), "undrain compute-0");
    let open = Case::new("False", OPEN, "")
        .cordoned()
        .annotated(DRAIN_REASON, OURS)
        .annotated(RESUMED, "2026-01-01T00:55:00Z");
    assert_eq!((open.steps().as_str(), open.plan().waits.len()), ("", 1));
    // An administrator resumed a node that was drained for a condition; its cordon is a new cause.
    assert_eq!(noted(OURS).steps(), "label compute-0");
    let cordoned = Case::new("True", OPEN, "")
        .cordoned()
        .annotated(RESUMED_CONDITIONS, "GpuMemWatch=True");
    assert_eq!(only_drain(&cordoned.plan()).1, Some(CORDON));
}

#[test]
fn a_drain_that_is_left_to_an_administrator_is_no_longer_ours() {
    // Neither a cordon that ends nor one that begins changes it.
    for case in [
        Case::new("False", DRAIN, LEFT),
        Case::new("False", DRAIN, LEFT).cordoned(),
    ] {
        assert_eq!(case.steps(), "");
    }
    assert_eq!(Case::new("False", DRAIN, LEFT).noted(LEFT).steps(), "label compute-0");
    // A node that is down with it does not return by itself.
    let down = &["DOWN", "DRAIN", "DYNAMIC_NORM"];
    assert_eq!(Case::new("False", down, LEFT).steps(), "");
    assert_eq!(Case::new("False", down, OURS).steps(), "resume compute-0");
    assert_eq!(Case::new("True", down, OURS).noted(OURS).steps(), "");
}
