//! Tests of status, history and events about changes of the configuration.

use std::sync::Arc;

use api::{
    ControllerStatus,
    configuration::{ConfigurationStatus, Delivery, RejectedBy},
};
use jiff::Timestamp;
use serde_json::{Value, json};
use slurm::agent::{Action, AgentKey, Candidate, Fence, Phase, StepTime, UpdateChannel};

use super::{
    super::{
        observe::Observed,
        plan::plan,
        status::{build_status, setback},
    },
    controller, keys, node_set, observed, planned, pod,
    rules::{NOW, changed, condition, live_as_bundled, report, running},
};
use crate::{
    cluster::deliver::{FinishedPush, LiveRevision, Refusals, Rejection, Report, Sent, Standby, State, Wanted},
    configuration::{DeliveryChange, report::held_before},
};

const LATER: &str = "2026-02-02T00:00:00Z";
const PUSHED: &str = "2026-01-01T12:00:00.123Z";

fn at(time: &str) -> Timestamp {
    time.parse().unwrap()
}

fn status_at(objects: Vec<Value>, report: Report, now: &str) -> ControllerStatus {
    let mut observed = observed(objects, report);
    observed.inputs.now = at(now);
    build_status(&observed, &plan(&observed), None, at(now))
}

fn configuration(objects: Vec<Value>, report: Report) -> ConfigurationStatus {
    status_at(objects, report, NOW).configuration.unwrap()
}

/// The same objects with this status on the Controller.
fn with_status(mut objects: Vec<Value>, status: &ControllerStatus) -> Vec<Value> {
    let mut controllers = objects.iter_mut().filter(|object| object["kind"] == "Controller");
    controllers.next().unwrap()["status"] = serde_json::to_value(status).unwrap();
    objects
}

/// The revision that is pushed for these objects.
pub(super) fn pushed(objects: &[Value], report: &Report) -> Wanted {
    let plan = plan(&observed(objects.to_vec(), report.clone()));
    match plan.configuration.delivery {
        DeliveryChange::Deliver(wanted) => *wanted,
        other => panic!("{other:?}"),
    }
}

/// A finished push of these files.
pub(super) fn ended(wanted: &Wanted, sequence: u64, refused: Option<RejectedBy>) -> Arc<FinishedPush> {
    Arc::new(FinishedPush {
        sequence,
        digest: wanted.digest,
        files: Arc::clone(&wanted.files),
        at: at(PUSHED),
        action: Action::Reconfigure,
        way: UpdateChannel::default(),
        milliseconds: 143,
        steps: vec![
            StepTime {
                step: Phase::Checked,
                milliseconds: 21,
            },
            StepTime {
                step: Phase::Verified,
                milliseconds: 97,
            },
        ],
        rejection: refused.map(|by| rejection(wanted, sequence, by)),
        by_candidate: false,
    })
}

fn rejection(wanted: &Wanted, sequence: u64, by: RejectedBy) -> Rejection {
    Rejection {
        sequence,
        digest: wanted.digest,
        by,
        why: "unrecognized key: Nonsense".to_owned(),
    }
}

#[tokio::test]
async fn a_revision_that_cannot_be_pushed_is_sent_in_a_config_map_and_the_status_shows_it() {
    let (objects, before, wanted) = edited("SchedulerParameters=defer");
    let away = || State::Away {
        why: "no route".to_owned(),
    };
    let status = configuration(objects.clone(), report(before.live, away()));
    assert_eq!(status.delivery, Some(Delivery::Agent), "it waits");
    let revision = LiveRevision {
        sequence: 2,
        digest: wanted.digest,
    };
    let sent = slurm::Revision {
        sequence: 2,
        controller: wanted.controller.clone(),
        files: (*wanted.files).clone(),
        closed_by_hand: (*wanted.closed_by_hand).clone(),
    };
    let (fence, key) = (
        Fence { term: 1, sequence: 1 },
        AgentKey::derive(&wanted.jwt_key.0).unwrap(),
    );
    let candidate = Candidate::new(&sent, fence, "pod-0", &key, at(PUSHED).into()).unwrap();
    let sent = Report {
        sent: Some(Arc::new(Sent::now("pod-0", revision, candidate.clone()))),
        ..report(before.live, away())
    };
    let planned = plan(&observed(objects.clone(), sent.clone()));
    let map = planned
        .configuration
        .config_maps
        .iter()
        .find(|map| map.metadata.name.as_deref() == Some("slurm-candidate"));
    let map = map.unwrap();
    assert_eq!(map.binary_data.as_ref().unwrap()["candidate"].0, candidate.bundle);
    let woken = planned.configuration.wake_kubelet.as_ref().unwrap();
    assert_eq!((woken.pod.as_str(), woken.sequence), ("slurm-controller-0", 2));
    assert!(planned.keep.as_ref().unwrap().config_maps.contains("slurm-candidate"));
    assert_eq!(
        configuration(objects.clone(), sent.clone()).delivery,
        Some(Delivery::ConfigMap)
    );
    let (_, reason, message) = condition(objects.clone(), sent, "ConfigurationApplied");
    assert!(
        reason == "AgentAway" && message.contains("revision 2 in a ConfigMap"),
        "{message}"
    );

    // Another leader uses higher sequences, and deletes the ConfigMap once the agent has reported.
    let mut objects = objects;
    objects.push(serde_json::to_value(map).unwrap());
    assert_eq!(pushed(&objects, &before).floor, 2);
    // Unless somebody else wrote it.
    let mut forged = objects.clone();
    forged.last_mut().unwrap()["binaryData"]["token"] = "dG9rZW4=".into();
    assert_eq!(pushed(&forged, &before).floor, 1);
    let mut by_map = taken(&wanted, 2);
    Arc::make_mut(&mut by_map.finished[0]).by_candidate = true;
    let planned = plan(&observed(objects.clone(), by_map.clone()));
    assert!(!planned.keep.unwrap().config_maps.contains("slurm-candidate"));
    assert_eq!(configuration(objects, by_map).delivery, Some(Delivery::ConfigMap));
}

/// A running cluster whose spec was changed, the report before, and the pushed revision.
pub(super) fn edited(extra_conf: &str) -> (Vec<Value>, Report, Wanted) {
    let objects = running(&json!({}));
    let before = live_as_bundled(&objects);
    let objects = changed(objects, &json!({ "extraConf": extra_conf }));
    let wanted = pushed(&objects, &before);
    (objects, before, wanted)
}

/// The report after the push was accepted.
pub(super) fn taken(wanted: &Wanted, sequence: u64) -> Report {
    let live = LiveRevision {
        sequence,
        digest: wanted.digest,
    };
    Report {
        finished: vec![ended(wanted, sequence, None)],
        ..report(Some(live), State::Done)
    }
}

/// The report after the push was rejected.
pub(super) fn refused(before: &Report, wanted: &Wanted, sequence: u64, by: RejectedBy) -> Report {
    Report {
        finished: vec![ended(wanted, sequence, Some(by.clone()))],
        ..report(before.live, State::Refused(rejection(wanted, sequence, by)))
    }
}

#[test]
fn an_accepted_change_is_shown_with_sequence_time_steps_and_action() {
    let (objects, _, wanted) = edited("SchedulerParameters=defer");
    let mut status = configuration(objects, taken(&wanted, 2));
    let digest = wanted.digest.to_string();
    assert_eq!(status.wanted.as_ref().unwrap().digest, digest);
    assert_eq!(status.applied.as_ref().unwrap().digest, digest);
    status.wanted.as_mut().unwrap().digest.clear();
    status.applied.as_mut().unwrap().digest.clear();
    insta::assert_yaml_snapshot!(status, @r#"
    wanted:
      sequence: 2
      digest: ""
    applied:
      sequence: 2
      digest: ""
      time: "2026-01-01T12:00:00.123Z"
    delivery: Agent
    lastChange:
      sequence: 2
      time: "2026-01-01T12:00:00.123Z"
      action: Reconfigure
      milliseconds: 143
      steps:
        - step: checked
          milliseconds: 21
        - step: verified
          milliseconds: 97
    "#);
}

#[test]
fn a_rejected_change_is_shown_together_with_the_live_revision() {
    let objects = running(&json!({}));
    let before = live_as_bundled(&objects);
    let objects = with_status(
        objects.clone(),
        &status_at(objects, before.clone(), "2026-01-01T00:00:00Z"),
    );
    let objects = changed(objects, &json!({ "extraConf": "SchedulerParameters=Nonsense" }));
    let wanted = pushed(&objects, &before);
    let status = configuration(objects, refused(&before, &wanted, 2, RejectedBy::DryRun));
    assert_eq!(status.wanted.unwrap().sequence, Some(2));
    let applied = status.applied.unwrap();
    assert_eq!(
        (applied.sequence, applied.time.as_str()),
        (1, "2026-01-01T00:00:00.000Z")
    );
    let rejected = status.rejected.unwrap();
    assert_eq!((rejected.sequence, rejected.time.as_str()), (2, PUSHED));
    assert_eq!(rejected.by, RejectedBy::DryRun);
    assert_eq!(rejected.reason, "unrecognized key: Nonsense");
    assert_eq!(rejected.digest, wanted.digest.to_string());
}

#[test]
fn a_rejection_is_dropped_once_another_revision_is_live() {
    let (objects, before, wanted) = edited("SchedulerParameters=Nonsense");
    let status = status_at(
        objects.clone(),
        refused(&before, &wanted, 2, RejectedBy::Slurmctld),
        NOW,
    );
    let objects = changed(
        with_status(objects, &status),
        &json!({ "extraConf": "SchedulerParameters=defer" }),
    );
    let corrected = pushed(&objects, &before);
    assert!(configuration(objects.clone(), before).rejected.is_some());
    assert_eq!(configuration(objects, taken(&corrected, 3)).rejected, None);
}

#[test]
fn the_message_says_who_rejected_the_revision() {
    let (objects, before, wanted) = edited("SchedulerParameters=Nonsense");
    for (by, part) in [
        (RejectedBy::DryRun, "a dry run in pod slurm-controller-0 rejected"),
        (RejectedBy::Slurmctld, "was rolled back to the former one"),
        (RejectedBy::Agent, "cannot read"),
    ] {
        let report = refused(&before, &wanted, 2, by);
        let (_, reason, message) = condition(objects.clone(), report, "ConfigurationApplied");
        assert_eq!(reason, "ConfigRejected");
        assert!(message.contains(part), "{message}");
        assert!(message.contains("unrecognized key: Nonsense"), "{message}");
    }
}

#[test]
fn a_failed_push_is_retried_and_reported() {
    let (objects, before, _) = edited("SchedulerParameters=defer");
    let why = "No space left on device".to_owned();
    let failed = report(before.live, State::Failed { why });
    for type_ in ["Ready", "ConfigurationApplied"] {
        let (_, reason, message) = condition(objects.clone(), failed.clone(), type_);
        assert_eq!(reason, "Retrying");
        assert!(message.contains("No space left on device"), "{message}");
    }
}

#[test]
fn key_mismatches_are_reported_also_those_of_slurmdbd() {
    let degraded = |own: &Observed| {
        let all = build_status(own, &plan(own), None, at(NOW)).conditions;
        let found = all.into_iter().find(|condition| condition.type_ == "Degraded").unwrap();
        (found.reason, found.message)
    };
    let objects = running(&json!({}));
    let mut own = observed(objects.clone(), Report::default());
    own.key_mismatch = Some("pod w-0".to_owned());
    assert_eq!(degraded(&own), ("KeyMismatch".to_owned(), "pod w-0".to_owned()));

    let accounting_with = |reason: &str| {
        let status = json!({ "conditions": [{
            "type": "Degraded", "status": "True", "reason": reason, "message": "pod slurm-accounting-0", "lastTransitionTime": NOW,
        }] });
        let accounting = json!({
            "apiVersion": "slinky.slurm.net/v1beta1", "kind": "Accounting",
            "metadata": { "name": "slurm", "namespace": "hpc" }, "spec": {}, "status": status,
        });
        Arc::new(serde_json::from_value(accounting).unwrap())
    };
    own.inputs.accounting = Some(accounting_with("KeyMismatch"));
    assert_eq!(degraded(&own).1, "pod w-0\npod slurm-accounting-0");
    own.key_mismatch = None;
    assert_eq!(degraded(&own).1, "pod slurm-accounting-0");
    own.inputs.accounting = Some(accounting_with("DatabaseAway"));
    assert_ne!(degraded(&own).0, "KeyMismatch");
}

#[test]
fn the_delivery_of_a_revision_is_remembered() {
    let objects = running(&json!({}));
    let mut without_pod = objects.clone();
    without_pod.retain(|object| object["kind"] != "Pod");
    let written = status_at(without_pod, Report::default(), NOW);
    let delivery = |status: &ControllerStatus| status.configuration.clone().unwrap().delivery.unwrap();
    assert_eq!(delivery(&written), Delivery::Written);

    let started = status_at(with_status(objects.clone(), &written), live_as_bundled(&objects), NOW);
    assert_eq!(delivery(&started), Delivery::Written);

    let restarts = json!({ "configUpdate": "Restart" });
    let objects = running(&restarts);
    let before = live_as_bundled(&objects);
    let changes = json!({ "configUpdate": "Restart", "extraConf": "SchedulerParameters=defer" });
    let objects = changed(objects, &changes);
    let tried = Report {
        checked: Some(pushed(&objects, &before).digest),
        ..before
    };
    assert_eq!(delivery(&status_at(objects, tried, NOW)), Delivery::Restart);
}

#[test]
fn the_status_does_not_change_without_an_event_or_for_a_new_leader() {
    let (objects, _, wanted) = edited("SchedulerParameters=defer");
    let report = taken(&wanted, 2);
    let status = status_at(objects.clone(), report.clone(), NOW);
    let objects = with_status(objects, &status);
    assert_eq!(status_at(objects.clone(), report.clone(), LATER), status);
    let of_new_leader = Report {
        finished: Vec::new(),
        ..report
    };
    assert_eq!(status_at(objects, of_new_leader, LATER), status);
}

#[test]
fn fields_that_older_definitions_would_drop_are_not_written() {
    let objects = running(&json!({}));
    let mut observed = observed(objects.clone(), live_as_bundled(&objects));
    observed.outdated = vec!["controllers".to_owned()];
    let status = build_status(&observed, &plan(&observed), None, at(NOW));
    assert_eq!(status.configuration, None);
}

#[test]
fn a_failure_to_apply_the_configuration_is_one_event() {
    let (objects, before, wanted) = edited("SchedulerParameters=Nonsense");
    let reconcile = |objects: &[Value], report: &Report| {
        let observed = observed(objects.to_vec(), report.clone());
        let plan = plan(&observed);
        let status = build_status(&observed, &plan, None, at(NOW));
        let event = setback(&observed, &plan, &status).map(|(reason, _)| reason);
        (event, with_status(objects.to_vec(), &status))
    };
    let report = refused(&before, &wanted, 2, RejectedBy::DryRun);
    let (first, objects) = reconcile(&objects, &report);
    assert_eq!(first, Some("ConfigRejected"));
    let (again, objects) = reconcile(&objects, &report);
    assert_eq!(again, None);
    let (another, objects) = reconcile(&objects, &refused(&before, &wanted, 3, RejectedBy::DryRun));
    assert_eq!(another, Some("ConfigRejected"));

    let away = |why: &str| super::rules::report(before.live, State::Away { why: why.to_owned() });
    let (first, objects) = reconcile(&objects, &away("no answer"));
    assert_eq!(first, Some("AgentAway"));
    let (again, objects) = reconcile(&objects, &away("connection refused"));
    assert_eq!(again, None);
    let (well, _) = reconcile(&objects, &taken(&wanted, 4));
    assert_eq!(well, None);
}

/// The events of a reconcile, and the objects after it.
fn reconcile(objects: &[Value], report: &Report) -> (Vec<String>, Vec<Value>) {
    let observed = observed(objects.to_vec(), report.clone());
    let plan = plan(&observed);
    let status = build_status(&observed, &plan, None, at(NOW));
    let held = plan
        .warnings(held_before(&observed.inputs))
        .map(|warning| warning.reason);
    let setback = setback(&observed, &plan, &status).map(|(reason, _)| reason);
    let events = held.chain(setback).map(str::to_owned).collect();
    (events, with_status(objects.to_vec(), &status))
}

#[test]
fn a_new_leader_sends_no_event_for_problems_in_the_status() {
    let (objects, before, wanted) = edited("SchedulerParameters=Nonsense");
    let refusals = Arc::new(Refusals::from([(
        wanted.digest,
        "unrecognized key: Nonsense".to_owned(),
    )]));
    let held = Report {
        refusals: Arc::clone(&refusals),
        ..refused(&before, &wanted, 2, RejectedBy::DryRun)
    };
    let of_next_leader = Report {
        finished: Vec::new(),
        ..held.clone()
    };
    // The input is held; or, without a record of the inputs, nothing goes live.
    let mut unrecorded = objects.clone();
    for object in &mut unrecorded {
        if object["metadata"]["name"] == "slurm-bundle" {
            object["data"] = Value::Null;
        }
    }
    for objects in [objects, unrecorded] {
        let (first, objects) = reconcile(&objects, &held);
        assert_eq!(first, ["ConfigRejected"]);
        let (unasked, objects) = reconcile(&objects, &Report::default());
        let away = State::Away {
            why: "no answer".to_owned(),
        };
        let (away, objects) = reconcile(&objects, &report(None, away));
        let (again, _) = reconcile(&objects, &of_next_leader);
        assert_eq!((unasked, away, again), (vec![], vec!["AgentAway".to_owned()], vec![]));
    }
}

#[test]
fn an_edit_that_is_rejected_for_the_same_reason_has_another_event() {
    let (objects, before, wanted) = edited("SchedulerParameters=Nonsense");
    let refusal = |wanted: &Wanted, sequence| Report {
        refusals: Arc::new(Refusals::from([(wanted.digest, "unrecognized key".to_owned())])),
        ..refused(&before, wanted, sequence, RejectedBy::DryRun)
    };
    let (_, objects) = reconcile(&objects, &refusal(&wanted, 2));
    let objects = changed(objects, &json!({ "extraConf": "SchedulerParameters=Nonsense,defer" }));
    let wanted = pushed(&objects, &before);
    let (_, objects) = reconcile(&objects, &before);
    assert_eq!(reconcile(&objects, &refusal(&wanted, 3)).0, ["ConfigRejected"]);
}

#[test]
fn standbys_without_the_active_revision_are_named() {
    let ha = json!({ "ha": { "enabled": true, "backups": 2 }, "persistence": { "existingClaim": "shared" } });
    let mut objects = running(&ha);
    objects.push(pod(1));
    let report = live_as_bundled(&objects);
    let live = report.live.unwrap();
    let lagging = |objects: &[Value], standby: Option<Standby>| -> Vec<(String, String)> {
        let report = Report {
            standbys: standby.into_iter().collect(),
            ..report.clone()
        };
        let lagging = configuration(objects.to_vec(), report).lagging_standbys;
        lagging
            .into_iter()
            .map(|standby| (standby.pod, standby.message))
            .collect()
    };
    let of = |live, why: Option<&str>| Standby {
        rejected: None,
        pod: "pod-1".to_owned(),
        live: Some(live),
        why: why.map(str::to_owned),
    };
    let missing = ("slurm-controller-2".to_owned(), "its pod does not run".to_owned());
    let behind = |message: &str| vec![("slurm-controller-1".to_owned(), message.to_owned()), missing.clone()];
    assert_eq!(lagging(&objects, Some(of(live, None))), std::slice::from_ref(&missing));
    let before = LiveRevision {
        sequence: 0,
        digest: slurm::revision::Digest::of(b"before"),
    };
    let has_another = format!("it has revision 0 and not {}", live.sequence);
    assert_eq!(lagging(&objects, Some(of(before, None))), behind(&has_another));
    assert_eq!(lagging(&objects, Some(of(live, Some("swapped")))), behind("swapped"));

    // A new leader has not polled yet.
    assert_eq!(lagging(&objects, None), std::slice::from_ref(&missing));
    let polled = Report {
        standbys: vec![of(live, Some("swapped"))],
        ..report.clone()
    };
    let status = status_at(objects.clone(), polled, NOW);
    let objects = with_status(objects, &status);
    assert_eq!(lagging(&objects, None), behind("swapped"));
}

#[test]
fn devices_of_a_node_set_that_no_job_can_get_are_reported() {
    let gpus = |extra_conf: &str| {
        let spec = json!({ "replicas": 1, "extraConf": extra_conf });
        node_set("gpus", "2026-01-01T00:00:00Z", spec)
    };
    let message = "NodeSet \"gpus\" has gpu,shard in Gres= of its spec.extraConf, which GresTypes does not name, so no job gets any; add gpu,shard to GresTypes in spec.extraConf of the Controller";
    for (conf, set, expected) in [
        ("", "Gres=gpu:a100:2,shard:8", vec![message]),
        ("GresTypes=gpu,shard", "Gres=gpu:a100:2,shard:8", vec![]),
        ("", "Weight=5", vec![]),
        // The included file may declare it.
        ("Include /etc/site/slurm.conf", "Gres=gpu:1", vec![]),
    ] {
        let mut objects = vec![controller(&json!({ "extraConf": conf })), gpus(set)];
        objects.extend(keys());
        assert_eq!(planned(objects).configuration.doubts, expected, "{conf} {set}");
    }
}
