//! The table of rules: what the operator says about the examples of each rule.

use std::collections::BTreeSet;

use slurm_operator_api::{
    Severity,
    validate::{Entry, Moment, Reason, entries},
};

use crate::common::{KINDS, kind_of, schema};

#[test]
fn each_rule_accepts_its_good_examples_and_reports_its_bad_ones() {
    for entry in entries() {
        let name = format!("{} {}", entry.kind, entry.id);
        assert!(!entry.good.is_empty() && !entry.bad.is_empty(), "{name}");
        let old = &entry.good[0];
        let problems_of = |object: &serde_json::Value| {
            let kind = kind_of(object);
            let object = object.clone();
            match entry.moment {
                Moment::Change => (kind.check_update)(old.clone(), object),
                Moment::Always | Moment::Creation => (kind.check)(object),
            }
            .unwrap()
        };
        for good in &entry.good {
            let problems = problems_of(good);
            assert!(problems.is_ok(), "{name}: {good} has {problems}");
            let is_reported = problems.iter().any(|problem| problem.rule == Some(entry.id));
            assert!(!is_reported, "{name}: {good} has {problems}");
        }
        for bad in &entry.bad {
            let problems = problems_of(bad);
            let (severity, found) = if entry.is_error {
                (Severity::Error, problems.errors().collect::<Vec<_>>())
            } else {
                assert!(problems.is_ok(), "{name}: {bad} has {problems}");
                (Severity::Warning, problems.warnings().collect())
            };
            assert!(!found.is_empty(), "{name}: {bad} has no {severity:?}");
            for problem in found {
                assert_eq!(problem.rule, Some(entry.id), "{name}: {bad} has {problem}");
                let is_immutable = problem.reason == Reason::Immutable;
                assert_eq!(is_immutable, entry.moment == Moment::Change, "{name}: {bad}");
            }
        }
    }
}

#[test]
fn a_rule_has_a_name_of_its_own_and_reads_as_a_sentence() {
    let mut names = BTreeSet::new();
    for Entry {
        kind,
        id,
        holds,
        remedy,
        ..
    } in entries()
    {
        assert!(names.insert((kind.clone(), id)), "two rules {kind} {id}");
        for text in [holds, remedy] {
            assert!(!text.ends_with('.') && !text.contains("  "), "{kind} {id}: {text}");
        }
    }
}

#[test]
fn every_field_has_a_rule_or_needs_none() {
    for kind in &KINDS {
        let spec = schema(kind.name).properties.unwrap().remove("spec").unwrap();
        let fields: BTreeSet<String> = spec.properties.unwrap().into_keys().collect();
        let ruled: BTreeSet<String> = entries()
            .iter()
            .filter(|entry| entry.kind == kind.name)
            .flat_map(|entry| entry.field.split(", "))
            .filter_map(|field| field.strip_prefix("spec."))
            .map(|field| field.split(['.', '[']).next().unwrap().to_owned())
            .collect();
        let free: BTreeSet<String> = kind.free.iter().map(|field| (*field).to_owned()).collect();
        assert_eq!(
            ruled.intersection(&free).collect::<Vec<_>>(),
            Vec::<&String>::new(),
            "{}",
            kind.name
        );
        let decided: BTreeSet<String> = ruled.union(&free).cloned().collect();
        assert_eq!(decided, fields, "{}: add a rule, or the field to FREE", kind.name);
    }
}
