//! The places where people write what goes into a configuration, each of which can be taken anew or left as it was.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
};

use slurm::revision::FileName;

use super::content::{Content, NodeSetInput};

/// In the order in which they are taken: a partition needs its node set.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Source {
    ExtraConf,
    Accounting,
    /// By the NodeSet's own name: that it is there, and what it is called in Slurm.
    NodeSet(String),
    /// Of the NodeSet of this name.
    Partition(String),
    /// By the Partition's own name.
    PartitionObject(String),
    /// The state that somebody set in Slurm on the partition of this name.
    ManualState(String),
    /// The partition of this name, which somebody made in Slurm.
    Adopted(String),
    /// That the partition of this name, which stayed for its jobs, goes.
    Retained(String),
    File(FileName),
}

impl Source {
    /// For people. A file is known by the ConfigMap it is from, or was.
    pub(crate) fn label(&self, before: &Content, wanted: &Content) -> String {
        match self {
            Self::ExtraConf => "spec.extraConf".to_owned(),
            Self::Accounting => "spec.accountingRef".to_owned(),
            Self::NodeSet(name) => format!("NodeSet {name:?}"),
            Self::Partition(name) => format!("NodeSet {name:?} spec.partition"),
            Self::PartitionObject(name) => format!("Partition {name:?}"),
            Self::ManualState(name) => format!("the state of partition {name:?} in Slurm"),
            Self::Adopted(name) => format!("partition {name:?}, made in Slurm by hand"),
            Self::Retained(name) => format!("partition {name:?}, whose line was taken away"),
            Self::File(name) => match wanted.files.get(name).or_else(|| before.files.get(name)) {
                Some(file) => entry_label(&file.origin.config_map, &file.origin.entry),
                None => name.to_string(),
            },
        }
    }
}

pub(crate) fn entry_label(config_map: impl fmt::Debug, entry: impl fmt::Debug) -> String {
    format!("ConfigMap {config_map:?} entry {entry:?}")
}

/// Where the two differ.
pub(crate) fn differing(before: &Content, wanted: &Content) -> BTreeSet<Source> {
    let Content {
        extra_conf,
        accounting,
        node_sets,
        partitions,
        manual_states,
        adopted,
        retained,
        files,
    } = before;
    let mut sources = BTreeSet::new();
    if *extra_conf != wanted.extra_conf {
        sources.insert(Source::ExtraConf);
    }
    if *accounting != wanted.accounting {
        sources.insert(Source::Accounting);
    }
    for own in node_sets.keys().chain(wanted.node_sets.keys()) {
        let old = node_sets.get(own);
        let new = wanted.node_sets.get(own);
        let name = |node_set: &NodeSetInput| node_set.name.clone();
        let partition = |node_set: Option<&NodeSetInput>| node_set.and_then(|node_set| node_set.partition.clone());
        if old.map(name) != new.map(name) {
            sources.insert(Source::NodeSet(own.clone()));
        }
        // A NodeSet that goes takes its partition along.
        if new.is_some() && partition(old) != partition(new) {
            sources.insert(Source::Partition(own.clone()));
        }
    }
    sources.extend(changed(partitions, &wanted.partitions).map(Source::PartitionObject));
    sources.extend(changed(manual_states, &wanted.manual_states).map(Source::ManualState));
    sources.extend(changed(adopted, &wanted.adopted).map(Source::Adopted));
    // That one stays is no wish of anybody's.
    let let_go = retained.keys().filter(|name| !wanted.retained.contains_key(*name));
    sources.extend(let_go.cloned().map(Source::Retained));
    sources.extend(changed(files, &wanted.files).map(Source::File));
    sources
}

/// As before, but for these, which are as wanted.
pub(crate) fn compose(before: &Content, wanted: &Content, taken: &BTreeSet<Source>) -> Content {
    let mut content = before.clone();
    content.retained.extend(wanted.retained.clone());
    for source in taken {
        match source {
            Source::ExtraConf => content.extra_conf.clone_from(&wanted.extra_conf),
            Source::Accounting => content.accounting.clone_from(&wanted.accounting),
            Source::NodeSet(own) => match wanted.node_sets.get(own) {
                Some(NodeSetInput { name, .. }) => {
                    let node_set = content.node_sets.entry(own.clone()).or_insert_with(|| NodeSetInput {
                        name: name.clone(),
                        partition: None,
                    });
                    node_set.name.clone_from(name);
                }
                None => {
                    content.node_sets.remove(own);
                }
            },
            Source::Partition(own) => {
                let partition = wanted
                    .node_sets
                    .get(own)
                    .and_then(|node_set| node_set.partition.clone());
                if let Some(node_set) = content.node_sets.get_mut(own) {
                    node_set.partition = partition;
                }
            }
            Source::PartitionObject(own) => take_over(&mut content.partitions, &wanted.partitions, own),
            Source::ManualState(name) => take_over(&mut content.manual_states, &wanted.manual_states, name),
            Source::Adopted(name) => take_over(&mut content.adopted, &wanted.adopted, name),
            Source::Retained(name) => drop(content.retained.remove(name)),
            Source::File(name) => take_over(&mut content.files, &wanted.files, name),
        }
    }
    if !content.retained.is_empty() {
        // Whose line is there needs no other.
        let there = content.partition_names();
        content.retained.retain(|name, _| !there.contains(name));
    }
    content
}

/// What is in one of them alone, or otherwise in the other.
fn changed<'a, K: Ord + Clone, V: PartialEq>(
    before: &'a BTreeMap<K, V>,
    wanted: &'a BTreeMap<K, V>,
) -> impl Iterator<Item = K> + 'a {
    let keys = before.keys().chain(wanted.keys());
    keys.filter(|key| before.get(key) != wanted.get(key)).cloned()
}

fn take_over<K: Ord + Clone, V: Clone>(content: &mut BTreeMap<K, V>, wanted: &BTreeMap<K, V>, key: &K) {
    match wanted.get(key) {
        Some(value) => drop(content.insert(key.clone(), value.clone())),
        None => drop(content.remove(key)),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use slurm::{conf::AccountingStorage, revision::File};

    use super::*;
    use crate::{
        configuration::content::{Origin, UserFile},
        partition::rules::{line::Line, manual_state::ManualStates},
    };

    fn any_inputs() -> impl Strategy<Value = Content> {
        let name = || prop::sample::select(vec!["a", "b", "c"]).prop_map(str::to_owned);
        let node_set =
            (name(), prop::option::of(name())).prop_map(|(name, partition)| NodeSetInput { name, partition });
        let file = name().prop_map(|content| UserFile {
            file: File::config(content),
            origin: Origin {
                config_map: "files".to_owned(),
                entry: "x".to_owned(),
                runs_as: BTreeSet::new(),
            },
        });
        let line = name().prop_map(|name| Line {
            nodes: name.clone(),
            state: "UP".to_owned(),
            settings: String::new(),
            generation: 1,
            mark: None,
            name,
        });
        let file_name = name().prop_map(|name| FileName::new(name).unwrap());
        (
            name(),
            prop::option::of(name()),
            prop::collection::btree_map(name(), node_set, 0..4),
            prop::collection::btree_map(name(), line, 0..4),
            prop::collection::btree_map(file_name, file, 0..4),
        )
            .prop_map(
                |(extra_conf, host, node_sets, partitions, files): (_, _, BTreeMap<_, _>, _, _)| Content {
                    extra_conf,
                    accounting: host.map(|host| AccountingStorage { host, port: 1 }),
                    node_sets,
                    partitions,
                    manual_states: ManualStates::new(),
                    adopted: BTreeMap::new(),
                    retained: BTreeMap::new(),
                    files,
                },
            )
    }

    proptest! {
        #[test]
        fn all_that_differs_makes_the_one_the_other(before in any_inputs(), wanted in any_inputs()) {
            let all = differing(&before, &wanted);
            prop_assert_eq!(compose(&before, &wanted, &all), wanted.clone());
            prop_assert_eq!(compose(&before, &wanted, &BTreeSet::new()), before.clone());
            prop_assert!(differing(&before, &before).is_empty());
        }

        #[test]
        fn what_is_taken_differs_no_more(before in any_inputs(), wanted in any_inputs(), keep in any::<u8>()) {
            let all = differing(&before, &wanted);
            let some: BTreeSet<Source> = all
                .iter()
                .enumerate()
                .filter(|(index, _)| keep & (1 << (index % 8)) != 0)
                .map(|(_, source)| source.clone())
                .collect();
            let left = differing(&compose(&before, &wanted, &some), &wanted);
            prop_assert!(left.is_subset(&all), "{left:?}");
            let came_back = |source: &Source| match source {
                // It needs its node set, which was not taken.
                Source::Partition(own) => some.contains(&Source::NodeSet(own.clone())),
                source => some.contains(source),
            };
            prop_assert!(!left.iter().any(|source| some.contains(source) && came_back(source)), "{left:?}");
        }
    }
}
