//! Whether everything that was written is read as it was meant: each object has its own record in slurm.conf, and one only.
//!
//! Objects are checked before their lines are rendered. This is the net below: it reads the rendered file as Slurm does, so a line that
//! joins, hides or repeats another is found whatever let it through.

use std::collections::{BTreeMap, BTreeSet};

use slurm::conf::{Configuration, Document, Record, RecordKind};

use super::{content::Content, explain::field_at, render::Places};

/// What is wrong with the record of an object.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum RecordProblem {
    /// Another line takes its line along.
    Joined(String),
    /// There is none where it should be.
    Lost(String),
    /// There is another one.
    Twice(String),
}

impl RecordProblem {
    pub(crate) fn words(&self) -> &str {
        match self {
            Self::Joined(words) | Self::Lost(words) | Self::Twice(words) => words,
        }
    }
}

/// A record that has to be there.
struct Expected {
    /// For people.
    object: String,
    kind: RecordKind,
    name: String,
    line: usize,
}

/// The findings about these inputs in the slurm.conf that was rendered from them.
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
    for Expected {
        object,
        kind,
        name,
        line,
    } in expected(places, content)
    {
        let key = kind.key();
        let is_there = at_line
            .get(&line)
            .is_some_and(|record| record.kind == kind && record.name == name);
        if !is_there {
            // The line that it is read as a part of, if it is part of one.
            let joined = rendered().take_while(|located| located.line.number < line).last();
            let joined = joined.filter(|located| {
                let number = located.line.number;
                number + located.line.raw().lines().count() > line
            });
            let by = joined.and_then(|located| field_at(located.line.number, places));
            findings.push(match by {
                Some(by) => RecordProblem::Joined(format!(
                    "{by} makes the line after it part of its own, so Slurm would not have {key}={name} of {object}; remove the backslash at the end"
                )),
                None => RecordProblem::Lost(format!(
                    "{object} would have no {key}={name} in slurm.conf; write its settings as Key=Value items on one line"
                )),
            });
        } else if has_backslash.contains(&line) {
            // It may be the last line today, and have one after it tomorrow.
            let field = field_at(line, places).unwrap_or(object);
            findings.push(RecordProblem::Joined(format!(
                "{field} has a backslash, which makes the line after it part of its own; remove the backslash"
            )));
        } else if counts.get(&(kind, name.as_str())).is_some_and(|count| *count > 1) {
            findings.push(RecordProblem::Twice(format!(
                "{object}: {key}={name} stands in slurm.conf more than once; keep one of the lines, or give one of the two another name"
            )));
        }
    }
    findings.extend(check_extra(&at_line, places, content));
    findings
}

/// The records of `extraConf` are those it has alone.
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
        let words = "spec.extraConf would be read with other records than it has; remove what joins its first or last line to others";
        RecordProblem::Joined(words.to_owned())
    })
}

fn expected(places: &Places, content: &Content) -> Vec<Expected> {
    let mut all = Vec::new();
    for (own, line, partition) in &places.node_sets {
        let Some(node_set) = content.node_sets.get(own) else {
            continue;
        };
        let of_set = |kind, line: usize, object: String| Expected {
            object,
            kind,
            name: node_set.name.clone(),
            line,
        };
        all.push(of_set(RecordKind::NodeSet, *line, format!("NodeSet {own:?}")));
        let partition = partition.map(|line| {
            let object = format!("NodeSet {own:?} spec.partition");
            of_set(RecordKind::Partition, line, object)
        });
        all.extend(partition);
    }
    for (own, line) in &places.partitions {
        all.extend(content.partitions.get(own).map(|partition| Expected {
            object: format!("Partition {own:?}"),
            kind: RecordKind::Partition,
            name: partition.name.clone(),
            line: *line,
        }));
    }
    all
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use api::Controller;
    use serde_json::json;
    use slurm::conf::Configuration;

    use super::*;
    use crate::{
        cluster::Knowledge,
        cluster::deliver::Refusals,
        configuration::{
            content::NodeSetInput,
            render::build_files,
            revise::{Before, Surroundings, revise},
        },
        parent::Parent,
        partition::rules::line::Line,
    };

    fn controller() -> Controller {
        serde_json::from_value(json!({
            "apiVersion": "slinky.slurm.net/v1beta1", "kind": "Controller",
            "metadata": { "name": "slurm", "namespace": "hpc" }, "spec": {},
        }))
        .unwrap()
    }

    fn line(name: &str, settings: &str) -> (String, Line) {
        let line = Line {
            name: name.to_owned(),
            nodes: "cpu".to_owned(),
            state: "UP".to_owned(),
            settings: settings.to_owned(),
            generation: 1,
            mark: None,
        };
        (name.to_owned(), line)
    }

    fn node_set(name: &str, partition: Option<&str>) -> (String, NodeSetInput) {
        let input = NodeSetInput {
            name: name.to_owned(),
            partition: partition.map(str::to_owned),
        };
        (name.to_owned(), input)
    }

    /// As if nobody had checked the objects.
    fn content(node_sets: Vec<(String, NodeSetInput)>, partitions: Vec<(String, Line)>, extra_conf: &str) -> Content {
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
        findings.iter().map(|finding| finding.words().to_owned()).collect()
    }

    #[test]
    fn each_object_has_its_own_record() {
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
        for (content, words) in [
            (
                content(cpu(), vec![line("gpt", "AllowGroups=x,\\"), line("gpu", "")], ""),
                [
                    "Partition \"gpt\" makes the line after it",
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
                    "NodeSet \"cpu\" spec.partition.config makes",
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
            assert!(words.iter().all(|word| found.contains(word)), "{words:?}: {found}");
        }
    }

    #[test]
    fn what_takes_another_line_along_does_not_go_live_and_the_rest_does() {
        let controller = controller();
        let parent = Parent::new(&controller);
        let wanted = content(
            vec![node_set("cpu", None)],
            vec![line("gpt", "AllowGroups=x,\\"), line("gpu", "")],
            "",
        );
        let surroundings = Surroundings {
            parent: &parent,
            before: Before::Nothing,
            knowledge: &Knowledge::unknown("not polled"),
            refusals: &Refusals::new(),
            in_use: &[],
            max_node_count: 1024,
        };
        let revised = revise(&surroundings, &wanted).unwrap();
        assert!(revised.content.partitions.contains_key("gpu"));
        assert!(!revised.content.partitions.contains_key("gpt"));
        let held: Vec<_> = revised.held.iter().map(|held| held.partition.as_deref()).collect();
        assert_eq!(held, [Some("gpt")]);
        assert!(
            revised.held[0].why.contains("remove the backslash"),
            "{:?}",
            revised.held
        );
        // Where nothing can be left out, nothing goes live.
        let unrecorded = Surroundings {
            before: Before::Unrecorded(None),
            ..surroundings
        };
        let fault = revise(&unrecorded, &wanted).unwrap_err();
        assert!(fault.message.contains("Partition \"gpt\""), "{}", fault.message);
    }
}
