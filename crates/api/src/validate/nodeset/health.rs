//! Rules for the conditions that drain.

use super::super::{Cel, Check, Problems, Reason, Rule, cel::is_duration, fields::check_known};
use crate::{
    conditions::ConditionStatus,
    health::{DrainOn, MAX_CONDITION_TYPE, MAX_CONDITIONS},
    nodeset::NodeSet,
};

const DRAIN_ON: &str = "spec.health.drainOn";

fn entries(set: &NodeSet) -> &[DrainOn] {
    set.spec.drain_on()
}

pub(super) const fn count() -> Rule<NodeSet> {
    Rule {
        id: "drain-on-count",
        field: DRAIN_ON,
        holds: "must have at most 16 entries",
        remedy: "remove some",
        cel: Cel::Schema,
        check: Check::Fault(Reason::BadValue, |set| {
            let count = entries(set).len();
            (count > MAX_CONDITIONS).then(|| format!("has {count} entries"))
        }),
        good: &["spec: {health: {drainOn: [{condition: GpuMemWatch}, {condition: example.com/Disk_Broken}]}}"],
        bad: &[
            "spec: {health: {drainOn: [{condition: C1}, {condition: C2}, {condition: C3}, {condition: C4}, {condition: C5}, \
             {condition: C6}, {condition: C7}, {condition: C8}, {condition: C9}, {condition: C10}, {condition: C11}, \
             {condition: C12}, {condition: C13}, {condition: C14}, {condition: C15}, {condition: C16}, {condition: C17}]}}",
        ],
    }
}

pub(super) const fn condition() -> Rule<NodeSet> {
    Rule {
        id: "drain-on-condition",
        field: "spec.health.drainOn[].condition",
        holds: "must be the type of a node condition: letters, digits, dashes, underscores, dots and slashes, at most 316",
        remedy: "use the type that `kubectl describe node` shows",
        cel: Cel::Schema,
        check: Check::Problems(|set, problems| {
            for (index, entry) in entries(set).iter().enumerate() {
                if !is_condition_type(&entry.condition) {
                    problems.bad_value(
                        format!("{DRAIN_ON}[{index}].condition"),
                        format!("is {:?}, which is not the type of a condition", entry.condition),
                        "use the type that `kubectl describe node` shows",
                    );
                }
            }
        }),
        good: &["spec: {health: {drainOn: [{condition: nvidia.com/Gpu-Mem_Watch.2}]}}"],
        bad: &[
            "spec: {health: {drainOn: [{condition: ''}]}}",
            "spec: {health: {drainOn: [{condition: Gpu Mem}]}}",
            "spec: {health: {drainOn: [{condition: -GpuMem}]}}",
        ],
    }
}

pub(super) const fn status() -> Rule<NodeSet> {
    Rule {
        id: "drain-on-status",
        field: "spec.health.drainOn[].status",
        holds: "must be True, False or Unknown",
        remedy: "use one of them, in quotes",
        cel: Cel::Schema,
        check: Check::Problems(|set, problems| {
            for (index, entry) in entries(set).iter().enumerate() {
                let field = format!("{DRAIN_ON}[{index}].status");
                check_known(problems, &field, entry.status().as_str(), ConditionStatus::KNOWN);
            }
        }),
        good: &[
            "spec: {health: {drainOn: [{condition: Ready, status: 'False'}, {condition: Ready, status: Unknown}]}}",
        ],
        bad: &["spec: {health: {drainOn: [{condition: GpuMemWatch, status: Often}]}}"],
    }
}

pub(super) const fn duration() -> Rule<NodeSet> {
    Rule {
        id: "drain-on-for",
        field: "spec.health.drainOn[].for",
        holds: "must be a duration from 0s to 24h",
        remedy: "write it like 30s or 5m, or remove it to drain at once",
        cel: Cel::Object {
            reads: &["spec.health"],
            // CEL has its own word `for`.
            holds: concat!(
                "!has(self.spec.health) || !has(self.spec.health.drainOn) || ",
                "self.spec.health.drainOn.all(e, !has(e.__for__) || e.__for__ == '0' || (",
                is_duration!("e.__for__"),
                " && duration(e.__for__) <= duration('24h')))"
            ),
        },
        check: Check::Problems(|set, problems| {
            for (index, entry) in entries(set).iter().enumerate() {
                if let (Some(text), None) = (&entry.lasting, entry.lasting()) {
                    problems.bad_value(
                        format!("{DRAIN_ON}[{index}].for"),
                        format!("is {:?}, which is not a duration from 0s to 24h", text.as_str()),
                        "write it like 30s or 5m, or remove it to drain at once",
                    );
                }
            }
        }),
        good: &[
            "spec: {health: {drainOn: [{condition: A, for: 30s}, {condition: B, for: 24h}, {condition: C, for: '0'}]}}",
        ],
        bad: &[
            "spec: {health: {drainOn: [{condition: A, for: soon}]}}",
            "spec: {health: {drainOn: [{condition: A, for: -1s}]}}",
            "spec: {health: {drainOn: [{condition: A, for: 25h}]}}",
        ],
    }
}

pub(super) const fn unique() -> Rule<NodeSet> {
    Rule {
        id: "drain-on-unique",
        field: DRAIN_ON,
        holds: "must name each condition at most once with one status",
        remedy: "remove one of the entries",
        cel: Cel::Schema,
        check: Check::Problems(|set, problems| check_unique(problems, entries(set))),
        good: &["spec: {health: {drainOn: [{condition: A}, {condition: B}]}}"],
        bad: &[
            "spec: {health: {drainOn: [{condition: A, for: 30s}, {condition: A, for: 1m}]}}",
            "spec: {health: {drainOn: [{condition: A}, {condition: A, status: 'True'}]}}",
        ],
    }
}

fn check_unique(problems: &mut Problems, entries: &[DrainOn]) {
    for (index, entry) in entries.iter().enumerate() {
        let is_same = |other: &DrainOn| other.condition == entry.condition && other.status() == entry.status();
        if entries.iter().take(index).any(is_same) {
            problems.bad_value(
                format!("{DRAIN_ON}[{index}]"),
                format!("names {}={}, as another entry does", entry.condition, entry.status()),
                "remove one of the entries",
            );
        }
    }
}

fn is_condition_type(text: &str) -> bool {
    let inner = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.' | '/');
    let outer = |c: char| c.is_ascii_alphanumeric();
    text.len() <= MAX_CONDITION_TYPE && text.chars().all(inner) && text.starts_with(outer) && text.ends_with(outer)
}
