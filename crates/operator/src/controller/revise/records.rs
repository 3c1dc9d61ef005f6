//! Whether everything that was written is read as it was meant: each object has its own record in slurm.conf, and one only.
//!
//! Objects are checked before their lines are rendered. This is the net below: it reads the rendered file as Slurm does, so a line that
//! joins, hides or repeats another is found whatever let it through.

use std::collections::BTreeMap;

use slurm::conf::{Configuration, Document, Record, RecordKind};

use super::words::field_at;
use crate::controller::{build::config::Places, inputs::Inputs};

/// What is wrong with the record of an object.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Finding {
    /// Another line takes its line along.
    Joined(String),
    /// There is none where it should be.
    Lost(String),
    /// There is another one.
    Twice(String),
}

impl Finding {
    pub(super) fn words(&self) -> &str {
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
pub(super) fn check_records(conf: &Configuration, places: &Places, inputs: &Inputs) -> Vec<Finding> {
    let slurm_conf = api::wellknown::SLURM_CONF_FILE;
    let rendered = || conf.slurm_conf().iter().filter(|located| &*located.file == slurm_conf);
    let mut at_line: BTreeMap<usize, Record<'_>> = BTreeMap::new();
    let mut counts: BTreeMap<(RecordKind, &str), usize> = BTreeMap::new();
    for located in conf.slurm_conf() {
        let Some(record) = Record::of_line(&located.line) else {
            continue;
        };
        *counts.entry((record.kind, record.name)).or_default() += 1;
        if &*located.file == slurm_conf {
            at_line.insert(located.line.number, record);
        }
    }
    let mut findings = Vec::new();
    for Expected {
        object,
        kind,
        name,
        line,
    } in expected(places, inputs)
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
                Some(by) => Finding::Joined(format!(
                    "{by} makes the line after it part of its own, so Slurm would not have {key}={name} of {object}; remove the backslash at the end"
                )),
                None => Finding::Lost(format!(
                    "{object} would have no {key}={name} in slurm.conf; write its settings as Key=Value items on one line"
                )),
            });
        } else if counts.get(&(kind, name.as_str())).is_some_and(|count| *count > 1) {
            findings.push(Finding::Twice(format!(
                "{object}: {key}={name} stands in slurm.conf more than once; keep one of the lines, or give one of the two another name"
            )));
        }
    }
    findings.extend(check_extra(&at_line, places, inputs));
    findings
}

/// The records of `extraConf` are those it has alone.
fn check_extra(at_line: &BTreeMap<usize, Record<'_>>, places: &Places, inputs: &Inputs) -> Option<Finding> {
    let range = places.extra.clone()?;
    let alone = Document::parse(&inputs.extra_conf);
    let alone = alone.lines().iter().filter_map(Record::of_line);
    let alone = alone.map(|record| (record.line, record.kind, record.name));
    let first = *range.start();
    let rendered = at_line
        .range(range)
        .map(|(line, record)| (line + 1 - first, record.kind, record.name));
    let lost = alone.collect::<Vec<_>>() != rendered.collect::<Vec<_>>();
    lost.then(|| {
        let words = "spec.extraConf would be read with other records than it has; remove what joins its first or last line to others";
        Finding::Joined(words.to_owned())
    })
}

fn expected(places: &Places, inputs: &Inputs) -> Vec<Expected> {
    let mut all = Vec::new();
    for (own, line, partition) in &places.node_sets {
        let Some(node_set) = inputs.node_sets.get(own) else {
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
        all.extend(inputs.partitions.get(own).map(|partition| Expected {
            object: format!("Partition {own:?}"),
            kind: RecordKind::Partition,
            name: partition.name.clone(),
            line: *line,
        }));
    }
    all
}
