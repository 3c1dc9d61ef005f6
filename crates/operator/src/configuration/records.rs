//! Checks that Slurm reads every object as intended: each object has exactly one record in slurm.conf.
//!
//! Objects are validated before their lines are rendered. This is the safety net: it parses the rendered file as Slurm
//! does, so a line that joins, hides or repeats another is found in any case.

use std::collections::{BTreeMap, BTreeSet};

use slurm::conf::{Configuration, Document, Record, RecordKind};

use super::{content::Content, explain::Places};

/// A problem with the record of an object.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum RecordProblem {
    /// Another line continues into its line.
    Joined(String),
    /// The record is missing.
    Lost(String),
    /// The record exists more than once.
    Twice(String),
}

impl RecordProblem {
    pub(crate) fn message(&self) -> &str {
        match self {
            Self::Joined(message) | Self::Lost(message) | Self::Twice(message) => message,
        }
    }
}

/// Checks the slurm.conf that was rendered from these inputs.
pub(crate) fn check_records(conf: &Configuration, places: &Places, content: &Content) -> Vec<RecordProblem> {
    let slurm_conf = api::wellknown::SLURM_CONF_FILE;
    let rendered = || conf.slurm_conf().iter().filter(|located| &*located.file == slurm_conf);
    let mut at_line: BTreeMap<usize, Record<'_>> = BTreeMap::new();
    let mut has_backslash: BTreeSet<usize> = BTreeSet::new();
    let mut counts: BTreeMap<(RecordKind, &str), usize> = BTreeMap::new();
    for located in conf.slurm_conf() {
        let Some(record) = Record::of_line(&located.line) else {
            continue;
        };
        *counts.entry((record.kind, record.name)).or_default() += 1;
        if &*located.file == slurm_conf {
            at_line.insert(located.line.number, record);
            has_backslash.extend(located.line.raw().contains('\\').then_some(located.line.number));
        }
    }
    let mut findings = Vec::new();
    for (line, object) in &places.objects {
        let Some((kind, name)) = object.record(content) else {
            continue;
        };
        let key = kind.key();
        let is_there = at_line
            .get(line)
            .is_some_and(|record| record.kind == kind && record.name == name);
        if !is_there {
            // The line that it was parsed as a part of, if any.
            let joined = rendered().take_while(|located| located.line.number < *line).last();
            let joined = joined.filter(|located| {
                let number = located.line.number;
                number + located.line.raw().lines().count() > *line
            });
            let by = joined.and_then(|located| places.field_at(located.line.number));
            findings.push(match by {
                Some(by) => RecordProblem::Joined(format!(
                    "{by} continues into the next line, so Slurm would not have {key}={name} of {object}; remove the backslash at the end"
                )),
                None => RecordProblem::Lost(format!(
                    "{object} would have no {key}={name} in slurm.conf; write its settings as Key=Value items on one line"
                )),
            });
        } else if has_backslash.contains(line) {
            // It may be the last line now, and be followed by another one later.
            let field = places.field_at(*line).unwrap_or_else(|| object.to_string());
            findings.push(RecordProblem::Joined(format!(
                "{field} has a backslash, which continues it into the next line; remove the backslash"
            )));
        } else if counts.get(&(kind, name)).is_some_and(|count| *count > 1) {
            findings.push(RecordProblem::Twice(format!(
                "{object}: {key}={name} is in slurm.conf more than once; keep one of the lines, or give one of the two another name"
            )));
        }
    }
    findings.extend(check_extra(&at_line, places, content));
    findings
}

/// Checks that `extraConf` has the same records in slurm.conf as alone.
fn check_extra(at_line: &BTreeMap<usize, Record<'_>>, places: &Places, content: &Content) -> Option<RecordProblem> {
    let range = places.extra.clone()?;
    let alone = Document::parse(&content.extra_conf);
    let alone = alone.lines().iter().filter_map(Record::of_line);
    let alone = alone.map(|record| (record.line, record.kind, record.name));
    let first = *range.start();
    let rendered = at_line
        .range(range)
        .map(|(line, record)| (line + 1 - first, record.kind, record.name));
    let lost = alone.collect::<Vec<_>>() != rendered.collect::<Vec<_>>();
    lost.then(|| {
        let message = "spec.extraConf would be parsed with other records than it has; remove the continuation that joins its first or last line to others";
        RecordProblem::Joined(message.to_owned())
    })
}

#[cfg(test)]
mod tests {
    use std::{collections::BTreeMap, sync::Arc};

    use api::Controller;
    use jiff::Timestamp;
    use serde_json::json;
    use slurm::conf::{Configuration, NodeSetLines};

    use super::*;
    use crate::{
        cluster::Snapshot,
        configuration::{Facts, Inputs, accepted::Former, delivery::Method, render::build_files, revise::revise},
        parent::Parent,
        partition::rules::line::PartitionLine,
    };

    fn controller() -> Controller {
        serde_json::from_value(json!({
            "apiVersion": "slinky.slurm.net/v1beta1", "kind": "Controller",
            "metadata": { "name": "slurm", "namespace": "hpc" }, "spec": {},
        }))
        .unwrap()
    }

    fn line(name: &str, settings: &str) -> (String, PartitionLine) {
        let line = PartitionLine {
            name: name.to_owned(),
            nodes: "cpu".to_owned(),
            state: "UP".to_owned(),
            settings: settings.to_owned(),
            generation: 1,
            mark: None,
        };
        (name.to_owned(), line)
    }

    fn node_set(name: &str, partition: Option<&str>) -> (String, NodeSetLines) {
        let input = NodeSetLines {
            name: name.to_owned(),
            partition: partition.map(str::to_owned),
        };
        (name.to_owned(), input)
    }

    /// Content as if the objects had not been validated.
    fn content(
        node_sets: Vec<(String, NodeSetLines)>,
        partitions: Vec<(String, PartitionLine)>,
        extra_conf: &str,
    ) -> Content {
        Content {
            extra_conf: extra_conf.to_owned(),
            node_sets: node_sets.into_iter().collect(),
            partitions: partitions.into_iter().collect::<BTreeMap<_, _>>(),
            ..Content::default()
        }
    }

    fn findings(content: &Content) -> Vec<String> {
        let controller = controller();
        let built = build_files(&Parent::new(&controller), content, 1024);
        let files = built.files.iter();
        let conf = Configuration::parse(files.map(|(name, file)| (name.as_str(), file.content.as_slice())));
        let findings = check_records(&conf, &built.places, content);
        findings.iter().map(|finding| finding.message().to_owned()).collect()
    }

    #[test]
    fn each_object_has_exactly_one_record() {
        let all = content(
            vec![node_set("cpu", Some("Default=YES")), node_set("gpu", None)],
            vec![line("long", "Topology=\"a b\""), line("short", "")],
            "PartitionName=DEFAULT MaxTime=5\nPartitionName=mine \\\n  Nodes=ALL\n# \\\nNodeName=ext[1-3] CPUs=4\nFoo=1 \\",
        );
        assert_eq!(findings(&all), Vec::<String>::new());
        assert_eq!(findings(&content(vec![], vec![], "")), Vec::<String>::new());
    }

    #[test]
    fn a_line_that_joins_hides_or_repeats_another_is_found_and_named() {
        let cpu = || vec![node_set("cpu", None)];
        for (content, parts) in [
            (
                content(cpu(), vec![line("gpt", "AllowGroups=x,\\"), line("gpu", "")], ""),
                [
                    "Partition \"gpt\" continues into the next line",
                    "PartitionName=gpu of Partition \"gpu\"",
                ],
            ),
            (
                content(
                    vec![node_set("cpu", Some("State=UP \\ #")), node_set("gpu", None)],
                    vec![],
                    "",
                ),
                [
                    "NodeSet \"cpu\" spec.partition.config continues",
                    "NodeSet=gpu of NodeSet \"gpu\"",
                ],
            ),
            (
                content(vec![node_set("cpu\\", None), node_set("gpu", None)], vec![], ""),
                ["NodeSet \"cpu\\\\\" would have no", "Key=Value"],
            ),
            (
                content(
                    cpu(),
                    vec![line("gpt", "MaxTime=5\nPartitionName=gpu"), line("gpu", "")],
                    "",
                ),
                ["Partition \"gpu\"", "more than once"],
            ),
            (
                content(cpu(), vec![line("gpt", "x"), line("gpu", "")], ""),
                ["Partition \"gpt\" would have no PartitionName=gpt", "Key=Value"],
            ),
            (
                content(cpu(), vec![line("gpu", "")], "PartitionName=gpu Nodes=ALL"),
                ["Partition \"gpu\"", "more than once"],
            ),
        ] {
            let found = findings(&content).join("\n");
            assert!(parts.iter().all(|part| found.contains(part)), "{parts:?}: {found}");
        }
    }

    #[test]
    fn a_line_that_continues_into_another_is_held_and_the_rest_goes_live() {
        let wanted = content(
            vec![node_set("cpu", None)],
            vec![line("gpt", "AllowGroups=x,\\"), line("gpu", "")],
            "",
        );
        let inputs = Inputs {
            controller: Arc::new(controller()),
            accounting: None,
            node_sets: Vec::new(),
            partitions: Vec::new(),
            joining: Vec::new(),
            config_maps: BTreeMap::new(),
            config: None,
            bundle: None,
            history: None,
            candidate: None,
            pods: Vec::new(),
            now: Timestamp::UNIX_EPOCH,
        };
        let snapshot = Snapshot::default();
        let facts = |is_new: bool| Facts {
            inputs: &inputs,
            snapshot: &snapshot,
            parent: Parent::new(&inputs.controller),
            former: Former {
                is_new,
                ..Former::default()
            },
            method: Method::InPlace,
            max_node_count: 1024,
            jwt_key: None,
        };
        let revised = revise(&facts(true), &wanted).unwrap();
        assert!(revised.newest.content.partitions.contains_key("gpu"));
        assert!(!revised.newest.content.partitions.contains_key("gpt"));
        let held: Vec<_> = revised.held.iter().map(|held| held.partition.as_deref()).collect();
        assert_eq!(held, [Some("gpt")]);
        assert!(
            revised.held[0].why.contains("remove the backslash"),
            "{:?}",
            revised.held
        );
        // If nothing can be left out, nothing goes live.
        let fault = revise(&facts(false), &wanted).err().unwrap();
        assert!(fault.message.contains("Partition \"gpt\""), "{}", fault.message);
    }
}
