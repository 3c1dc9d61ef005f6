//! Finds the objects that caused a change, from the files: nothing else is known of the former revision.

use std::collections::{BTreeMap, BTreeSet};

use api::wellknown::SLURM_CONF_FILE;
use kube::ResourceExt as _;
use slurm::revision::FileName;

use crate::{cluster::deliver::Files, configuration::Inputs};

/// Sections of slurm.conf as the operator writes them, and their sources.
const SECTIONS: [(&str, Section); 9] = [
    ("GENERAL", Section::Spec),
    ("LOGGING", Section::Spec),
    ("PLUGINS & PARAMETERS", Section::Spec),
    ("ACCOUNTING", Section::Accounting),
    ("SLURMCTLD PROLOG & EPILOG", Section::Scripts),
    ("PROLOG & EPILOG", Section::Scripts),
    ("NODESET & PARTITION", Section::NodeSets),
    ("PARTITION", Section::Partitions),
    ("EXTRA CONFIG", Section::Extra),
];

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Section {
    Spec,
    Accounting,
    Scripts,
    NodeSets,
    Partitions,
    Extra,
}

/// Returns the causes of a change: objects, or fields of the Controller.
pub(crate) fn find_causes(inputs: &Inputs, old: &Files, new: &Files) -> Vec<String> {
    let mut causes = Vec::new();
    let names: BTreeSet<&FileName> = old.keys().chain(new.keys()).collect();
    for name in names.into_iter().filter(|name| old.get(name) != new.get(name)) {
        if name.as_str() == SLURM_CONF_FILE {
            let text = |files: &Files| {
                let content = files.get(name).map(|file| file.content.as_slice()).unwrap_or_default();
                String::from_utf8_lossy(content).into_owned()
            };
            causes.splice(0..0, causes_in_slurm_conf(inputs, &text(old), &text(new)));
        } else {
            causes.push(cause_of_file(inputs, name));
        }
    }
    causes
}

fn cause_of_file(inputs: &Inputs, name: &FileName) -> String {
    let mut holders = inputs.config_maps.iter().filter(|(_, config_map)| {
        let text = config_map.data.iter().flat_map(BTreeMap::keys);
        let binary = config_map.binary_data.iter().flat_map(BTreeMap::keys);
        text.chain(binary).any(|entry| entry == name.as_str())
    });
    match holders.next() {
        Some((holder, _)) => format!("ConfigMap {holder} ({name})"),
        None => format!("{name}"),
    }
}

fn causes_in_slurm_conf(inputs: &Inputs, old: &str, new: &str) -> Vec<String> {
    let (before, after) = (sections(old), sections(new));
    let sections: BTreeSet<Section> = before.keys().chain(after.keys()).copied().collect();
    let mut causes = Vec::new();
    for section in sections {
        let (before, after) = (before.get(&section), after.get(&section));
        if before == after {
            continue;
        }
        match section {
            Section::Spec => causes.push("spec".to_owned()),
            Section::Accounting => causes.push(match inputs.controller.spec.accounting_name() {
                Some(name) => format!("Accounting {name}"),
                None => "spec.accountingRef".to_owned(),
            }),
            Section::Scripts => causes.push("script references".to_owned()),
            Section::NodeSets => {
                let object = |name: &str| {
                    let found = inputs.node_sets.iter().find(|node_set| node_set.slurm_name() == name);
                    found.map(|node_set| node_set.name_any())
                };
                match changed_objects("NodeSet", before, after, object) {
                    none if none.is_empty() => causes.push("NodeSets".to_owned()),
                    changed => causes.extend(changed),
                }
            }
            Section::Partitions => {
                let object = |name: &str| {
                    let found = inputs
                        .partitions
                        .iter()
                        .find(|partition| partition.slurm_name() == name);
                    found.map(|partition| partition.name_any())
                };
                causes.extend(changed_objects("Partition", before, after, object));
            }
            Section::Extra => causes.push("spec.extraConf".to_owned()),
        }
    }
    causes
}

/// Returns the lines of each section. Lines after the user's own are derived from those.
fn sections(conf: &str) -> BTreeMap<Section, Vec<&str>> {
    let mut sections: BTreeMap<Section, Vec<&str>> = BTreeMap::new();
    let mut current = Section::Spec;
    for line in conf.lines() {
        let title = line
            .strip_prefix("### ")
            .and_then(|title| title.strip_suffix(" ###"))
            .filter(|_| current != Section::Extra);
        if let Some((_, section)) = SECTIONS.iter().find(|(known, _)| Some(*known) == title) {
            current = *section;
        } else if line != "#" {
            sections.entry(current).or_default().push(line);
        }
    }
    sections
}

/// Returns the objects whose lines differ. `object` returns the object of a name in Slurm if it still exists.
fn changed_objects(
    kind: &str,
    before: Option<&Vec<&str>>,
    after: Option<&Vec<&str>>,
    object: impl Fn(&str) -> Option<String>,
) -> Vec<String> {
    let (before, after) = (lines_by_name(before), lines_by_name(after));
    let names: BTreeSet<&str> = before.keys().chain(after.keys()).copied().collect();
    let changed = names.into_iter().filter(|name| before.get(name) != after.get(name));
    let label = |name: &str| match object(name) {
        Some(object) => format!("{kind} {object}"),
        None => format!("{kind} {name} (gone)"),
    };
    changed.map(label).collect()
}

fn lines_by_name<'a>(lines: Option<&Vec<&'a str>>) -> BTreeMap<&'a str, Vec<&'a str>> {
    let mut by_name: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for line in lines.into_iter().flatten() {
        let name = ["NodeSet=", "PartitionName="]
            .iter()
            .find_map(|key| line.strip_prefix(key))
            .and_then(|rest| rest.split_whitespace().next());
        by_name.entry(name.unwrap_or_default()).or_default().push(line);
    }
    by_name
}
