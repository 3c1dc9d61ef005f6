//! Conditions of an object's status. Pure.

use api::{
    Condition, ConditionStatus, Problem,
    conditions::{CRDS_OUTDATED, UNKNOWN_FIELDS},
    validate::Reason,
};
use jiff::Timestamp;

use crate::reason;

/// A condition as a kind wants it now.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DesiredCondition {
    pub type_: &'static str,
    pub status: ConditionStatus,
    pub reason: &'static str,
    pub message: String,
}

impl DesiredCondition {
    pub fn true_(type_: &'static str, reason: &'static str, message: impl Into<String>) -> Self {
        Self::new(type_, ConditionStatus::True, reason, message)
    }

    pub fn false_(type_: &'static str, reason: &'static str, message: impl Into<String>) -> Self {
        Self::new(type_, ConditionStatus::False, reason, message)
    }

    pub fn unknown(type_: &'static str, reason: &'static str, message: impl Into<String>) -> Self {
        Self::new(type_, ConditionStatus::Unknown, reason, message)
    }

    fn new(type_: &'static str, status: ConditionStatus, reason: &'static str, message: impl Into<String>) -> Self {
        Self {
            type_,
            status,
            reason,
            message: message.into(),
        }
    }
}

/// The conditions that every kind reports: that CustomResourceDefinitions are older than this operator, and which fields
/// of the object are unknown.
pub fn remarks<'a>(outdated: &[String], problems: impl IntoIterator<Item = &'a Problem>) -> Vec<DesiredCondition> {
    let old = (!outdated.is_empty()).then(|| {
        let message = format!(
            "the definitions {} are older than this operator, whose newer fields are off; upgrade the chart slurm-operator-crds",
            outdated.join(", ")
        );
        DesiredCondition::true_(CRDS_OUTDATED, reason::OLD_DEFINITIONS, message)
    });
    let unknown: Vec<String> = problems
        .into_iter()
        .filter(|problem| problem.reason == Reason::UnknownField)
        .map(ToString::to_string)
        .collect();
    let unknown = (!unknown.is_empty())
        .then(|| DesiredCondition::true_(UNKNOWN_FIELDS, reason::UNKNOWN_FIELDS, unknown.join("\n")));
    old.into_iter().chain(unknown).collect()
}

/// The schema's limit. With a longer message the API server would reject the whole status.
const MAX_MESSAGE: usize = 32768;

/// The conditions to write: the wanted ones, in that order, each with the time at which its status last changed.
pub fn settle(previous: &[Condition], wanted: &[DesiredCondition], generation: i64, now: Timestamp) -> Vec<Condition> {
    wanted
        .iter()
        .map(|wanted| {
            let before = previous
                .iter()
                .find(|condition| condition.type_ == wanted.type_ && condition.status == wanted.status);
            Condition {
                type_: wanted.type_.to_owned(),
                status: wanted.status.clone(),
                reason: wanted.reason.to_owned(),
                message: shortened(&wanted.message),
                last_transition_time: before.map_or_else(
                    || format!("{now:.0}").into(),
                    |condition| condition.last_transition_time.clone(),
                ),
                observed_generation: Some(generation),
            }
        })
        .collect()
}

fn shortened(message: &str) -> String {
    message.chars().take(MAX_MESSAGE).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const EARLY: &str = "2026-01-01T00:00:00Z";
    const LATE: &str = "2026-01-02T03:04:05Z";

    fn at(time: &str) -> Timestamp {
        time.parse().unwrap()
    }

    #[test]
    fn the_transition_time_changes_only_with_the_status() {
        let first = settle(
            &[],
            &[DesiredCondition::false_("Ready", "Starting", "no pod yet")],
            1,
            at(EARLY),
        );
        assert_eq!(first[0].last_transition_time.as_str(), EARLY);

        let same = settle(
            &first,
            &[DesiredCondition::false_("Ready", "Waiting", "no node")],
            2,
            at(LATE),
        );
        assert_eq!(same[0].last_transition_time.as_str(), EARLY);
        assert_eq!(same[0].reason, "Waiting");
        assert_eq!(same[0].observed_generation, Some(2));

        let flipped = settle(&same, &[DesiredCondition::true_("Ready", "Ready", "")], 2, at(LATE));
        assert_eq!(flipped[0].last_transition_time.as_str(), LATE);
    }

    #[test]
    fn nothing_new_to_say_gives_the_same_conditions() {
        let wanted = [
            DesiredCondition::true_("Ready", "Ready", "fine"),
            DesiredCondition::false_("Degraded", "Healthy", ""),
        ];
        let first = settle(&[], &wanted, 1, at(EARLY));
        assert_eq!(settle(&first, &wanted, 1, at(LATE)), first);
    }

    #[test]
    fn an_unwanted_condition_is_removed() {
        let first = settle(&[], &[DesiredCondition::true_("CRDsOutdated", "Old", "")], 1, at(EARLY));
        assert!(settle(&first, &[], 1, at(LATE)).is_empty());
    }

    #[test]
    fn a_fraction_of_a_second_is_not_written() {
        let condition = settle(
            &[],
            &[DesiredCondition::true_("Ready", "Ready", "")],
            1,
            at("2026-01-01T00:00:00.987Z"),
        );
        assert_eq!(condition[0].last_transition_time.as_str(), EARLY);
    }

    #[test]
    fn a_message_longer_than_the_schema_allows_is_cut() {
        let condition = settle(
            &[],
            &[DesiredCondition::true_("Ready", "Ready", "ä".repeat(40_000))],
            1,
            at(EARLY),
        );
        assert_eq!(condition[0].message.chars().count(), MAX_MESSAGE);
    }
}
