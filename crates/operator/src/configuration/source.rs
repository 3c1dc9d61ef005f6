//! The places where people write content of a configuration. Each can be updated or kept as it was.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
};

use slurm::{
    conf::{NodeSetLines, RecordKind},
    revision::FileName,
};

use super::content::{Content, UserFile};

/// In the order in which they are taken: a partition requires its node set.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Source {
    ExtraConf,
    Accounting,
    /// Power saving, for NodeSets with autoscaling.
    PowerSaving,
    /// The NodeSet of this name: that it exists, and its name in Slurm.
    NodeSet(String),
    /// The partition of the NodeSet of this name.
    Partition(String),
    /// The Partition of this name.
    PartitionObject(String),
    /// The end of the manual state of the partition of this name.
    ManualState(String),
    /// The manually created partition of this name.
    Adopted(String),
    /// The removal of the partition of this name, which was retained for its jobs.
    Retained(String),
    File(FileName),
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::ExtraConf => write!(f, "spec.extraConf"),
            Self::Accounting => write!(f, "spec.accountingRef"),
            Self::PowerSaving => write!(f, "spec.autoscaling of the NodeSets"),
            Self::NodeSet(name) => write!(f, "NodeSet {name:?}"),
            Self::Partition(name) => write!(f, "NodeSet {name:?} spec.partition"),
            Self::PartitionObject(name) => write!(f, "Partition {name:?}"),
            Self::ManualState(name) => write!(f, "the state of partition {name:?} in Slurm"),
            Self::Adopted(name) => write!(f, "partition {name:?}, created manually in Slurm"),
            Self::Retained(name) => write!(f, "partition {name:?}, whose line was removed"),
            Self::File(name) => write!(f, "{name}"),
        }
    }
}

impl Source {
    /// A label for people. A file is identified by its present or former ConfigMap.
    pub(crate) fn label(&self, before: &Content, wanted: &Content) -> String {
        let file = match self {
            Self::File(name) => wanted.files.get(name).or_else(|| before.files.get(name)),
            _ => None,
        };
        file.map_or_else(|| self.to_string(), UserFile::label)
    }

    /// The record that the object has in slurm.conf, and its name there.
    pub(crate) fn record<'a>(&self, content: &'a Content) -> Option<(RecordKind, &'a str)> {
        let node_set = |own| content.node_sets.get(own).map(|node_set| node_set.name.as_str());
        match self {
            Self::NodeSet(own) => Some((RecordKind::NodeSet, node_set(own)?)),
            Self::Partition(own) => Some((RecordKind::Partition, node_set(own)?)),
            Self::PartitionObject(own) => Some((RecordKind::Partition, &content.partitions.get(own)?.name)),
            _ => None,
        }
    }
}

/// Returns the sources in which the two differ.
pub(crate) fn differing(before: &Content, wanted: &Content) -> BTreeSet<Source> {
    let Content {
        extra_conf,
        accounting,
        power_saving,
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
    if *power_saving != wanted.power_saving {
        sources.insert(Source::PowerSaving);
    }
    for own in node_sets.keys().chain(wanted.node_sets.keys()) {
        let (old, new) = (node_sets.get(own), wanted.node_sets.get(own));
        if old.map(|old| &old.name) != new.map(|new| &new.name) {
            sources.insert(Source::NodeSet(own.clone()));
        }
        // A removed NodeSet takes its partition with it.
        if new.is_some_and(|new| old.and_then(|old| old.partition.as_ref()) != new.partition.as_ref()) {
            sources.insert(Source::Partition(own.clone()));
        }
    }
    sources.extend(changed(partitions, &wanted.partitions).map(Source::PartitionObject));
    // A manual state is kept whatever other changes are held. Lifting one is a change.
    let lifted = manual_states
        .keys()
        .filter(|name| !wanted.manual_states.contains_key(*name));
    sources.extend(lifted.cloned().map(Source::ManualState));
    sources.extend(changed(adopted, &wanted.adopted).map(Source::Adopted));
    // Retaining a line is not a change that a user requested.
    let released = retained.keys().filter(|name| !wanted.retained.contains_key(*name));
    sources.extend(released.cloned().map(Source::Retained));
    sources.extend(changed(files, &wanted.files).map(Source::File));
    sources
}

/// Returns the former content with the wanted version of these sources.
pub(crate) fn compose(before: &Content, wanted: &Content, taken: &BTreeSet<Source>) -> Content {
    let mut content = before.clone();
    content.retained.extend(wanted.retained.clone());
    content.manual_states.extend(wanted.manual_states.clone());
    for source in taken {
        match source {
            Source::ExtraConf => content.extra_conf.clone_from(&wanted.extra_conf),
            Source::Accounting => content.accounting.clone_from(&wanted.accounting),
            Source::PowerSaving => content.power_saving = wanted.power_saving,
            Source::NodeSet(own) => {
                let partition = content.node_sets.remove(own).and_then(|before| before.partition);
                if let Some(NodeSetLines { name, .. }) = wanted.node_sets.get(own) {
                    let name = name.clone();
                    content.node_sets.insert(own.clone(), NodeSetLines { name, partition });
                }
            }
            Source::Partition(own) => {
                if let Some(node_set) = content.node_sets.get_mut(own) {
                    let wanted = wanted.node_sets.get(own);
                    node_set.partition = wanted.and_then(|wanted| wanted.partition.clone());
                }
            }
            Source::PartitionObject(own) => take_over(&mut content.partitions, &wanted.partitions, own),
            Source::ManualState(name) => drop(content.manual_states.remove(name)),
            Source::Adopted(name) => take_over(&mut content.adopted, &wanted.adopted, name),
            Source::Retained(name) => drop(content.retained.remove(name)),
            Source::File(name) => take_over(&mut content.files, &wanted.files, name),
        }
    }
    if !content.retained.is_empty() {
        // A partition that has a line again needs no retained one.
        let there = content.partition_names();
        content.retained.retain(|name, _| !there.contains(name));
    }
    content
}

/// Returns the keys whose values differ.
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
    use slurm::{conf::PowerSaving, revision::File};

    use super::*;
    use crate::partition::rules::{
        line::PartitionLine,
        manual_state::{ManualState, ManualStates},
    };

    fn any_inputs() -> impl Strategy<Value = Content> {
        let name = || prop::sample::select(vec!["a", "b", "c"]).prop_map(str::to_owned);
        let node_set =
            (name(), prop::option::of(name())).prop_map(|(name, partition)| NodeSetLines { name, partition });
        let file = name().prop_map(|content| UserFile {
            file: File::config(content),
            config_map: "files".to_owned(),
            entry: "x".to_owned(),
            runs_as: BTreeSet::new(),
        });
        let line = name().prop_map(|name| PartitionLine {
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
                    power_saving: host.as_ref().map(|_| PowerSaving { resume_timeout: 60 }),
                    extra_conf,
                    accounting: host.map(|host| (host, 1)),
                    node_sets,
                    partitions,
                    manual_states: ManualStates::new(),
                    adopted: BTreeMap::new(),
                    retained: BTreeMap::new(),
                    files,
                },
            )
    }

    #[test]
    fn a_manual_state_is_kept_although_other_changes_are_held() {
        let closed = |name: &str| {
            let state = ManualState {
                state: "DRAIN".to_owned(),
                wanted: "UP".to_owned(),
                since: String::new(),
            };
            (name.to_owned(), state)
        };
        let before = Content {
            manual_states: ManualStates::from([closed("lifted")]),
            ..Content::default()
        };
        let wanted = Content {
            extra_conf: "a".to_owned(),
            manual_states: ManualStates::from([closed("new")]),
            ..Content::default()
        };
        let lifted = Source::ManualState("lifted".to_owned());
        let all = differing(&before, &wanted);
        assert_eq!(all, BTreeSet::from([Source::ExtraConf, lifted.clone()]));
        assert_eq!(compose(&before, &wanted, &all), wanted);
        let states = |taken| compose(&before, &wanted, &taken).manual_states;
        assert_eq!(
            states(BTreeSet::new()),
            ManualStates::from([closed("lifted"), closed("new")])
        );
        assert_eq!(states(BTreeSet::from([lifted])), ManualStates::from([closed("new")]));
    }

    proptest! {
        #[test]
        fn taking_all_differences_yields_the_wanted_content(before in any_inputs(), wanted in any_inputs()) {
            let all = differing(&before, &wanted);
            prop_assert_eq!(compose(&before, &wanted, &all), wanted.clone());
            prop_assert_eq!(compose(&before, &wanted, &BTreeSet::new()), before.clone());
            prop_assert!(differing(&before, &before).is_empty());
        }

        #[test]
        fn a_taken_source_no_longer_differs(before in any_inputs(), wanted in any_inputs(), keep in any::<u8>()) {
            let all = differing(&before, &wanted);
            let some: BTreeSet<Source> = all
                .iter()
                .enumerate()
                .filter(|(index, _)| keep & (1 << (index % 8)) != 0)
                .map(|(_, source)| source.clone())
                .collect();
            let left = differing(&compose(&before, &wanted, &some), &wanted);
            prop_assert!(left.is_subset(&all), "{left:?}");
            let must_be_equal = |source: &Source| match source {
                // It requires its node set, which was not taken.
                Source::Partition(own) => some.contains(&Source::NodeSet(own.clone())),
                source => some.contains(source),
            };
            prop_assert!(!left.iter().any(|source| some.contains(source) && must_be_equal(source)), "{left:?}");
        }
    }
}
