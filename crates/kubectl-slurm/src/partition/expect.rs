//! Decides whether a change is live. Pure.

use std::time::Duration;

use api::{
    Condition, ConditionStatus, Controller, Partition,
    conditions::{CONFIG_APPLIED, DEGRADED, PARTITION_RETAINED, PROGRESSING, READY},
    configuration::{ConfigurationStatus, HeldInput},
};
use slurm::conf::Settings;

use super::place::{is_same_but_for_state, settings_of_line};
use crate::cluster::action_word;
use crate::wait::Progress;

/// The reason of a held input that becomes live without action.
const WAITS_FOR_JOBS: &str = "WaitsForJobs";
/// After this time, an unchanged status is about the change. The operator takes well under a second to handle a change.
const STALE: Duration = Duration::from_secs(5);

/// A line that is expected in slurm.conf, or its removal.
#[derive(Clone, Debug)]
pub(super) struct ExpectedLine {
    pub(super) name: String,
    /// `None` means that the line is to be removed.
    pub(super) settings: Option<Settings>,
    /// The name of the changed field in the Controller's status.
    pub(super) source: String,
    /// The generation of the Controller with the change, if the Controller was changed.
    pub(super) generation: Option<i64>,
    /// The Controller before the change.
    pub(super) before: Box<Controller>,
    /// Whether the change had an effect.
    pub(super) changed: bool,
}

pub(super) fn judge_line(
    expected: &ExpectedLine,
    controller: &Controller,
    slurm_conf: Option<&str>,
    waited: Duration,
) -> Progress<String> {
    let status = controller.status.clone().unwrap_or_default();
    let configuration = status.configuration.clone().unwrap_or_default();
    let applied = find(&status.conditions, CONFIG_APPLIED);
    let unseen = expected
        .generation
        .is_some_and(|generation| status.observed_generation.is_some_and(|seen| seen < generation));
    let accepted = settings_of_line(slurm_conf.unwrap_or_default(), &expected.name);
    let is_accepted = match (&accepted, &expected.settings) {
        (Some(accepted), Some(settings)) => is_same_but_for_state(accepted, settings),
        (None, None) => true,
        _ => false,
    };
    if is_accepted && !unseen && is_live(expected, &configuration) {
        return Progress::Done(how(&configuration));
    }
    if unseen {
        return Progress::Waits("the operator has not handled it yet".to_owned());
    }
    let held = |configuration: &ConfigurationStatus| {
        let inputs = configuration.held_inputs.clone();
        inputs.into_iter().find(|held| held.source == expected.source)
    };
    let before = expected.before.configuration().cloned().unwrap_or_default();
    if let Some(now) = held(&configuration).filter(|_| !is_accepted) {
        if now.reason == WAITS_FOR_JOBS {
            return Progress::Waits(now.message);
        }
        // The same message as before may be about the previous change.
        if held(&before).as_ref() != Some(&now) || waited > STALE {
            return Progress::Refused(now.message);
        }
        return Progress::Waits(now.message);
    }
    let retained = find_true(&status.conditions, PARTITION_RETAINED);
    if let Some(retained) = retained.filter(|_| expected.settings.is_none() && accepted.is_some()) {
        return Progress::Waits(retained.message.clone());
    }
    // If no input is held, the configuration as a whole may be refused.
    let broken = find_true(&status.conditions, DEGRADED).filter(|_| !is_accepted);
    let refusals = ["ConfigRejected", "InvalidSpec", "BadPartition"];
    match (broken, applied) {
        (Some(broken), _) if refusals.contains(&broken.reason.as_str()) && waited > STALE => {
            Progress::Refused(broken.message.clone())
        }
        (_, Some(applied)) if applied.status != ConditionStatus::True => Progress::Waits(applied.message.clone()),
        (_, Some(_)) => Progress::Waits("the operator has not started to apply it".to_owned()),
        (_, None) => Progress::Waits("the operator has not reported on the cluster yet; does it run?".to_owned()),
    }
}

/// Whether slurmctld runs with the wanted revision, and the status is about the change.
fn is_live(expected: &ExpectedLine, configuration: &ConfigurationStatus) -> bool {
    let before = expected.before.configuration();
    let wanted = configuration.wanted.as_ref().map(|wanted| &wanted.digest);
    let applied = configuration.applied.as_ref().map(|applied| &applied.digest);
    let is_news = before
        .and_then(|before| before.wanted.as_ref())
        .map(|wanted| &wanted.digest)
        != wanted;
    // Reverting a held input results in the revision that is live already.
    let is_held = |held: &[HeldInput]| held.iter().any(|held| held.source == expected.source);
    let was_held = before.is_some_and(|before| is_held(&before.held_inputs));
    let is_answered = is_news || !expected.changed || was_held;
    wanted.is_some() && wanted == applied && is_answered && !is_held(&configuration.held_inputs)
}

fn how(configuration: &ConfigurationStatus) -> String {
    let sequence = configuration
        .applied
        .as_ref()
        .map(|applied| applied.sequence)
        .unwrap_or_default();
    match &configuration.last_change {
        Some(change) if change.sequence == sequence => {
            let action = action_word(change.action.as_ref());
            format!("revision {sequence}, {action}, {} ms", change.milliseconds)
        }
        _ => format!("revision {sequence}"),
    }
}

/// Judges a Partition object of this generation.
pub(super) fn judge_object(partition: &Partition) -> Progress<String> {
    let generation = partition.metadata.generation.unwrap_or_default();
    let Some(status) = &partition.status else {
        return Progress::Waits(
            "the operator has not handled it yet; does it run, and does it support Partitions?".to_owned(),
        );
    };
    if status.observed_generation.unwrap_or_default() < generation {
        return Progress::Waits("the operator has not handled it yet".to_owned());
    }
    let condition = |type_: &str| find(&status.conditions, type_);
    let is_true = |type_: &str| find_true(&status.conditions, type_).is_some();
    let applied = status
        .applied
        .as_ref()
        .filter(|applied| applied.generation >= generation);
    if let (true, Some(applied)) = (is_true(READY), applied) {
        let took = applied
            .milliseconds
            .map_or_else(String::new, |time| format!(", {time} ms"));
        return Progress::Done(format!("by {}{took}", applied.way));
    }
    let message = condition(READY).map(|ready| ready.message.clone()).unwrap_or_default();
    let refused = condition(READY).is_some_and(|ready| ready.status == ConditionStatus::False) && !is_true(PROGRESSING);
    if refused {
        return Progress::Refused(message);
    }
    Progress::Waits(condition(PROGRESSING).map_or(message, |progressing| progressing.message.clone()))
}

/// Returns why an object that is being deleted still exists.
pub(super) fn why_retained(partition: &Partition) -> String {
    let status = partition.status.as_ref();
    let retained = status.and_then(|status| find_true(&status.conditions, PARTITION_RETAINED));
    retained.map_or_else(
        || "Slurm has not deleted it yet".to_owned(),
        |condition| condition.message.clone(),
    )
}

fn find<'a>(conditions: &'a [Condition], type_: &str) -> Option<&'a Condition> {
    conditions.iter().find(|condition| condition.type_ == type_)
}

fn find_true<'a>(conditions: &'a [Condition], type_: &str) -> Option<&'a Condition> {
    find(conditions, type_).filter(|condition| condition.status == ConditionStatus::True)
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn controller(status: Value) -> Controller {
        let mut controller = Controller::new("slurm", serde_json::from_value(json!({})).unwrap());
        controller.status = Some(serde_json::from_value(status).unwrap());
        controller
    }

    fn revision(wanted: &str, applied: &str, held: &Value) -> Value {
        json!({
            "observedGeneration": 2,
            "configuration": {
                "wanted": { "digest": wanted }, "applied": { "sequence": 7, "digest": applied, "time": "" }, "heldInputs": held,
            },
        })
    }

    const LINE: &str = "PartitionName=a Nodes=a State=DRAIN\n";

    fn expected(before: Value) -> ExpectedLine {
        ExpectedLine {
            name: "a".into(),
            settings: settings_of_line(LINE, "a"),
            source: "spec.extraConf".into(),
            generation: Some(2),
            before: Box::new(controller(before)),
            changed: true,
        }
    }

    #[test]
    fn a_line_is_live_when_slurmctld_runs_with_a_revision_that_has_it() {
        let before = revision("old", "old", &json!([]));
        let held = json!([{ "source": "spec.extraConf", "reason": "ConfigRejected", "message": "bad" }]);
        let jobs = json!([{ "source": "spec.extraConf", "reason": "WaitsForJobs", "message": "jobs" }]);
        let unseen = json!({ "observedGeneration": 1 });
        let soon = Duration::from_secs(1);
        let late = Duration::from_secs(10);
        for (what, status, conf, waited, verdict) in [
            (
                "done",
                revision("new", "new", &json!([])),
                LINE,
                soon,
                "done revision 7",
            ),
            ("status of before", before.clone(), LINE, soon, "waits"),
            ("on its way", revision("new", "old", &json!([])), "", soon, "waits"),
            ("not looked at", unseen, LINE, soon, "waits"),
            ("refused", revision("old", "old", &held), "", soon, "refused bad"),
            ("waits for jobs", revision("old", "old", &jobs), "", late, "waits jobs"),
        ] {
            let judged = judge_line(&expected(before.clone()), &controller(status), Some(conf), waited);
            let said = match judged {
                Progress::Done(how) => format!("done {how}"),
                Progress::Waits(why) => format!("waits {why}"),
                Progress::Refused(why) => format!("refused {why}"),
            };
            assert!(said.starts_with(verdict), "{what}: {said}");
        }
        // An earlier refusal counts only after the operator had time to handle the change.
        let expected = expected(revision("old", "old", &held));
        let still = controller(revision("old", "old", &held));
        assert!(matches!(
            judge_line(&expected, &still, Some(""), soon),
            Progress::Waits(_)
        ));
        assert!(matches!(
            judge_line(&expected, &still, Some(""), late),
            Progress::Refused(_)
        ));
    }

    #[test]
    fn a_reverted_change_is_live_although_the_revision_is_the_same() {
        let held = json!([{ "source": "spec.extraConf", "reason": "ConfigRejected", "message": "bad" }]);
        let expected = expected(revision("same", "same", &held));
        let judge = |held: &Value| {
            let now = controller(revision("same", "same", held));
            judge_line(&expected, &now, Some(LINE), Duration::ZERO)
        };
        assert!(matches!(judge(&json!([])), Progress::Done(_)));
        assert!(matches!(judge(&held), Progress::Waits(_)));
    }

    #[test]
    fn a_removed_line_is_done_when_slurm_conf_lacks_it() {
        let mut gone = expected(revision("old", "old", &json!([])));
        gone.settings = None;
        let now = controller(revision("new", "new", &json!([])));
        assert!(matches!(
            judge_line(&gone, &now, Some(LINE), Duration::ZERO),
            Progress::Waits(_)
        ));
        assert!(matches!(
            judge_line(&gone, &now, Some("A=1\n"), Duration::ZERO),
            Progress::Done(_)
        ));
    }

    #[test]
    fn an_object_is_live_when_slurmctld_has_its_generation() {
        let judge = |status: Value| {
            let mut partition = Partition::new(
                "a",
                serde_json::from_value(json!({ "controllerRef": { "name": "s" } })).unwrap(),
            );
            partition.metadata.generation = Some(3);
            partition.status = Some(serde_json::from_value(status).unwrap());
            judge_object(&partition)
        };
        let condition = |type_: &str, status: &str| json!({ "type": type_, "status": status, "reason": "R", "message": "why", "lastTransitionTime": "" });
        let applied = json!({ "generation": 3, "time": "", "way": "Rpc", "milliseconds": 4 });
        assert_eq!(
            judge(json!({ "observedGeneration": 3, "applied": applied, "conditions": [condition("Ready", "True")] })),
            Progress::Done("by Rpc, 4 ms".into())
        );
        for waits in [
            json!({}),
            json!({ "observedGeneration": 2, "applied": applied, "conditions": [condition("Ready", "True")] }),
            json!({ "observedGeneration": 3, "conditions": [condition("Ready", "True")] }),
            json!({ "observedGeneration": 3, "conditions": [condition("Ready", "False"), condition("Progressing", "True")] }),
        ] {
            assert!(matches!(judge(waits.clone()), Progress::Waits(_)), "{waits}");
        }
        assert_eq!(
            judge(
                json!({ "observedGeneration": 3, "conditions": [condition("Ready", "False"), condition("Progressing", "False")] })
            ),
            Progress::Refused("why".into())
        );
    }
}
