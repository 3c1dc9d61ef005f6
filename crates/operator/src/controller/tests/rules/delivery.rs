//! When a change goes live, and how.

use super::*;

#[test]
fn a_change_is_written_once_slurmctld_runs_with_it() {
    let objects = running(&json!({}));
    let before = live_as_bundled(&objects);
    let old = slurm_conf(&planned(objects.clone()));
    let objects = changed(objects, &json!({ "extraConf": "SchedulerParameters=defer" }));

    let pushing = plan(&observed(objects.clone(), before));
    let [wanted] = pushes(&pushing).try_into().unwrap();
    assert_eq!(
        slurm_conf(&pushing),
        old,
        "the bundle and -config are kept until the agent has accepted"
    );
    assert_eq!(
        pushing.configuration.state,
        ConfigState::Pushing {
            digest: wanted,
            pod: "slurm-controller-0".to_owned()
        }
    );

    let accepted = plan(&observed(
        objects,
        report(
            Some(LiveRevision {
                sequence: 2,
                digest: wanted,
            }),
            State::Done,
        ),
    ));
    assert!(slurm_conf(&accepted).contains("SchedulerParameters=defer"));
    let revision = accepted.configuration.config_maps.iter().find_map(read_bundle).unwrap();
    assert_eq!((revision.sequence, revision.digest()), (2, wanted));
    assert_eq!(
        pushing.stateful_set, accepted.stateful_set,
        "a change of the configuration does not change the pod"
    );
}

#[test]
fn before_any_pod_has_started_a_change_is_written_at_once() {
    let mut objects = with_keys(&json!({}));
    objects.extend(written(&planned(objects.clone())));
    let plan = planned(changed(objects, &json!({ "extraConf": "SchedulerParameters=defer" })));
    assert!(matches!(
        plan.configuration.state,
        ConfigState::Written { sequence: 2, .. }
    ));
    assert!(slurm_conf(&plan).contains("defer"));
}

#[test]
fn while_slurmctld_has_no_pod_a_change_waits_for_the_agent_of_the_next() {
    let mut objects = running(&json!({}));
    objects.retain(|object| object["kind"] != "Pod");
    let unchanged = planned(objects.clone());
    assert!(matches!(
        unchanged.configuration.state,
        ConfigState::Written { sequence: 1, .. }
    ));
    let plan = planned(changed(objects, &json!({ "extraConf": "SchedulerParameters=defer" })));
    assert!(matches!(plan.configuration.state, ConfigState::Away { .. }));
    assert!(!slurm_conf(&plan).contains("defer"));
}

#[test]
fn a_change_waits_while_the_agent_is_unreachable() {
    let mut objects = changed(
        running(&json!({})),
        &json!({ "extraConf": "SchedulerParameters=defer" }),
    );
    let pod = objects.iter_mut().find(|object| object["kind"] == "Pod").unwrap();
    pod["status"]["initContainerStatuses"][0]["state"] = json!({ "waiting": { "reason": "CrashLoopBackOff" } });
    let plan = planned(objects.clone());
    assert!(!slurm_conf(&plan).contains("defer"));
    assert_eq!(plan.configuration.delivery, DeliveryChange::Pause);
    let (status, reason, _) = condition(objects, Report::default(), "ConfigurationApplied");
    assert_eq!((status, reason.as_str()), (ConditionStatus::False, "AgentAway"));
}

#[test]
fn a_rejection_is_reported_with_slurmctlds_message() {
    let objects = running(&json!({}));
    let live = live_as_bundled(&objects).live;
    let objects = changed(objects, &json!({ "extraConf": "SchedulerParameters=nonsense" }));
    let [digest] = pushes(&planned(objects.clone())).try_into().unwrap();
    let mut refused = report(live, State::Done);
    refused.refusals = Arc::new([(digest, "unrecognized word: nonsense".to_owned())].into());
    let plan = plan(&observed(objects.clone(), refused.clone()));
    assert!(!slurm_conf(&plan).contains("nonsense"));
    assert_eq!(pushes(&plan), [live.unwrap().digest]);
    for type_ in ["Ready", "ConfigurationApplied"] {
        let (status, reason, message) = condition(objects.clone(), refused.clone(), type_);
        assert_eq!((status, reason.as_str()), (ConditionStatus::False, "ConfigRejected"));
        assert!(message.contains("unrecognized word: nonsense"), "{message}");
    }
}

#[test]
fn a_corrupt_bundle_is_written_again_from_the_live_revision() {
    let mut objects = running(&json!({}));
    let report = live_as_bundled(&objects);
    let expected = bundled(&objects);
    let bundle = objects
        .iter_mut()
        .find(|object| object["metadata"]["name"] == "slurm-bundle")
        .unwrap();
    bundle["binaryData"]["bundle"] = "AAAA".into();
    let plan = plan(&observed(objects, report));
    assert_eq!(bundled(&written(&plan)), expected);
}

#[test]
fn a_new_leader_repeats_the_status_until_it_has_polled() {
    let mut objects = running(&json!({}));
    let observed_now = observed(objects.clone(), live_as_bundled(&objects));
    let status = build_status(&observed_now, &plan(&observed_now), None, NOW.parse().unwrap());
    objects
        .iter_mut()
        .find(|object| object["kind"] == "Controller")
        .unwrap()["status"] = serde_json::to_value(&status).unwrap();
    let observed_later = observed(objects, Report::default());
    let later = build_status(
        &observed_later,
        &plan(&observed_later),
        None,
        "2026-02-02T00:00:00Z".parse().unwrap(),
    );
    assert_eq!(later, status);
}

#[test]
fn with_config_update_restart_a_change_restarts_slurmctld() {
    let spec = |extra: &str| json!({ "configUpdate": "Restart", "extraConf": extra });
    let objects = running(&spec("SchedulerTimeSlice=10"));
    let report = live_as_bundled(&objects);
    let before = template(&plan(&observed(objects.clone(), report.clone())));
    let hash = |template: &Value| template["metadata"]["annotations"]["slinky.slurm.net/slurm-config-hash"].clone();
    assert!(hash(&before).is_string());
    let objects = changed(objects, &spec("SchedulerTimeSlice=20"));

    // A dry run comes first; while no agent can make one, nothing is changed.
    for state in [State::Done, State::Away { why: "x".to_owned() }] {
        let report = Report {
            state,
            ..report.clone()
        };
        let untried = plan(&observed(objects.clone(), report));
        assert_eq!(hash(&template(&untried)), hash(&before));
        assert!(slurm_conf(&untried).contains("SchedulerTimeSlice=10"));
        assert_eq!(goals(&untried), [Goal::Checked]);
        assert!(!matches!(untried.configuration.state, ConfigState::Restarting { .. }));
    }
    let wanted = pushes(&plan(&observed(objects.clone(), report.clone())));
    let tried = Report {
        checked: wanted.first().copied(),
        ..report.clone()
    };
    let after = plan(&observed(objects.clone(), tried));
    assert_ne!(hash(&template(&after)), hash(&before));
    assert!(slurm_conf(&after).contains("SchedulerTimeSlice=20"));
    assert_eq!(goals(&after), [Goal::Checked], "the check is remembered");
    assert!(matches!(after.configuration.state, ConfigState::Restarting { .. }));

    // While no agent runs, as in a starting pod, no dry run is possible.
    let mut agentless = objects;
    for object in &mut agentless {
        if object["kind"] == "Pod" {
            object["status"]["initContainerStatuses"][0]["state"] = json!({ "waiting": {} });
        }
    }
    let waiting = plan(&observed(agentless, Report::default()));
    assert_eq!(hash(&template(&waiting)), hash(&before));
    assert!(matches!(waiting.configuration.state, ConfigState::Away { .. }));
}

fn goals(plan: &Plan) -> Vec<Goal> {
    match &plan.configuration.delivery {
        DeliveryChange::Deliver(wanted) => vec![wanted.goal],
        _ => Vec::new(),
    }
}
