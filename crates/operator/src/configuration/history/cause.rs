//! Finds the objects that caused a change, from the files: nothing else is known of the former revision.

use std::collections::{BTreeMap, BTreeSet};

use api::wellknown::SLURM_CONF_FILE;
use kube::ResourceExt as _;
use slurm::revision::FileName;

use crate::{cluster::deliver::Files, configuration::Inputs, partition::rules::mark::partition_of};

/// The sections of slurm.conf as the operator writes them, in this order.
const SECTIONS: [&str; 9] = [
    GENERAL,
    "LOGGING",
    "PLUGINS & PARAMETERS",
    "ACCOUNTING",
    "SLURMCTLD PROLOG & EPILOG",
    "PROLOG & EPILOG",
    "NODESET & PARTITION",
    "PARTITION",
    EXTRA,
];
const GENERAL: &str = "GENERAL";
const EXTRA: &str = "EXTRA CONFIG";

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
    let mut causes = Vec::new();
    for section in SECTIONS {
        let (before, after) = (before.get(section), after.get(section));
        if before == after {
            continue;
        }
        match section {
            "ACCOUNTING" => causes.push(match inputs.controller.spec.accounting_name() {
                Some(name) => format!("Accounting {name}"),
                None => "spec.accountingRef".to_owned(),
            }),
            "SLURMCTLD PROLOG & EPILOG" | "PROLOG & EPILOG" => causes.push("script references".to_owned()),
            "NODESET & PARTITION" => {
                let (before, after) = (without_marks(before), without_marks(after));
                if before == after {
                    continue;
                }
                let objects = inputs.node_sets.iter();
                let objects = objects.map(|node_set| (node_set.slurm_name(), node_set.name_any()));
                match changed_objects("NodeSet", before.as_ref(), after.as_ref(), objects) {
                    none if none.is_empty() => causes.push("NodeSets".to_owned()),
                    changed => causes.extend(changed),
                }
            }
            "PARTITION" => {
                let objects = inputs.partitions.iter();
                let objects = objects.map(|partition| (partition.slurm_name(), partition.name_any()));
                causes.extend(changed_objects("Partition", before, after, objects));
            }
            EXTRA => causes.push("spec.extraConf".to_owned()),
            _ => causes.push("spec".to_owned()),
        }
    }
    // Several sections may have one cause.
    causes.dedup();
    causes
}

/// Returns the lines of each section. Lines after the user's own are derived from those.
fn sections(conf: &str) -> BTreeMap<&'static str, Vec<&str>> {
    let mut sections: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    let mut current = GENERAL;
    for line in conf.lines() {
        let title = line
            .strip_prefix("### ")
            .and_then(|title| title.strip_suffix(" ###"))
            .filter(|_| current != EXTRA);
        if let Some(section) = SECTIONS.iter().find(|known| Some(**known) == title) {
            current = section;
        } else if line != "#" {
            sections.entry(current).or_default().push(line);
        }
    }
    sections
}

/// Returns the objects whose lines differ. `objects` are those that still exist: the name in Slurm, and their own.
fn changed_objects(
    kind: &str,
    before: Option<&Vec<&str>>,
    after: Option<&Vec<&str>>,
    objects: impl Iterator<Item = (String, String)>,
) -> Vec<String> {
    let (before, after) = (lines_by_name(before), lines_by_name(after));
    let objects: Vec<(String, String)> = objects.collect();
    let names: BTreeSet<&str> = before.keys().chain(after.keys()).copied().collect();
    let changed = names.into_iter().filter(|name| before.get(name) != after.get(name));
    let label = |name: &str| match objects.iter().find(|(slurm_name, _)| slurm_name == name) {
        Some((_, object)) => format!("{kind} {object}"),
        None => format!("{kind} {name} (gone)"),
    };
    changed.map(label).collect()
}

/// Returns the lines without those of marks, which are in the section of NodeSets and change with the line of their Partition.
fn without_marks<'a>(lines: Option<&Vec<&'a str>>) -> Option<Vec<&'a str>> {
    let is_mark = |line: &str| {
        line.split_whitespace()
            .any(|item| item.strip_prefix("NodeSet=").and_then(partition_of).is_some())
    };
    lines.map(|lines| lines.iter().copied().filter(|line| !is_mark(line)).collect())
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mark_is_no_node_set_that_a_user_knows() {
        let before = vec!["NodeSet=gpu Feature=gpu"];
        let after = vec![
            "NodeSet=gpu Feature=gpu",
            "NodeSet=both.members-ndpclmjl Feature=both.members-ndpclmjl",
        ];
        assert_eq!(without_marks(Some(&after)), Some(before.clone()));
        assert_eq!(without_marks(Some(&before)), Some(before));
    }
}
