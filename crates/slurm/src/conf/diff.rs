//! The difference between two files: the settings of the cluster that changed, and the nodes, node sets and partitions. Comments,
//! order and spelling of keys are no differences, as in Slurm.

use std::collections::BTreeMap;

use super::document::Document;
use super::key::Key;
use super::line::{Content, Line};
use super::record::{RecordKind, Settings, written_value};

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Difference {
    pub globals: Vec<Change>,
    pub nodes: Vec<RecordChange>,
    pub node_sets: Vec<RecordChange>,
    pub partitions: Vec<RecordChange>,
    pub down_nodes: Vec<RecordChange>,
    /// Whether the includes differ.
    pub includes: bool,
    /// Whether unreadable lines differ, so that the other fields may be incomplete.
    pub unreadable: bool,
}

/// A key and its values before and after; several if the key is repeated.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Change {
    pub key: Key,
    pub old: Vec<String>,
    pub new: Vec<String>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RecordChange {
    Added { name: String, settings: Settings },
    Removed { name: String, settings: Settings },
    Changed { name: String, changes: Vec<Change> },
}

impl RecordChange {
    pub fn name(&self) -> &str {
        match self {
            Self::Added { name, .. } | Self::Removed { name, .. } | Self::Changed { name, .. } => name,
        }
    }
}

impl Difference {
    pub fn between(old: &Document, new: &Document) -> Self {
        Self {
            globals: diff_values(&global_values(old), &global_values(new)),
            nodes: diff_records(old, new, RecordKind::Node),
            node_sets: diff_records(old, new, RecordKind::NodeSet),
            partitions: diff_records(old, new, RecordKind::Partition),
            down_nodes: diff_records(old, new, RecordKind::DownNodes),
            includes: !old.includes().eq(new.includes()),
            unreadable: !unreadable_texts(old).eq(unreadable_texts(new)),
        }
    }
}

fn unreadable_texts(document: &Document) -> impl Iterator<Item = &Content> {
    document.unreadable().map(Line::content)
}

type Values = BTreeMap<Key, Vec<String>>;

/// Several settings on a global line are an error in slurm.conf but valid in gres.conf and topology.conf, so they count as part of the
/// first value.
fn global_values(document: &Document) -> Values {
    let mut values = Values::new();
    for line in document.lines() {
        let Some((first, rest)) = line.settings().split_first() else {
            continue;
        };
        if RecordKind::of_key(&first.key).is_some() {
            continue;
        }
        let rest = rest
            .iter()
            .map(|setting| format!("{}={}", setting.key, written_value(setting)));
        let value = std::iter::once(written_value(first))
            .chain(rest)
            .collect::<Vec<_>>()
            .join(" ");
        values.entry(first.key.clone()).or_default().push(value);
    }
    values
}

fn diff_values(old: &Values, new: &Values) -> Vec<Change> {
    let mut keys: Vec<&Key> = old.keys().chain(new.keys()).collect();
    keys.sort();
    keys.dedup();
    keys.into_iter()
        .map(|key| Change {
            key: key.clone(),
            old: old.get(key).cloned().unwrap_or_default(),
            new: new.get(key).cloned().unwrap_or_default(),
        })
        .filter(|change| change.old != change.new)
        .collect()
}

fn diff_records(old: &Document, new: &Document, kind: RecordKind) -> Vec<RecordChange> {
    let old = numbered(old.effective(kind));
    let new = numbered(new.effective(kind));
    let mut names: Vec<_> = old.keys().chain(new.keys()).copied().collect();
    names.sort_unstable();
    names.dedup();
    names
        .into_iter()
        .filter_map(|at @ (name, _)| {
            let name = name.to_owned();
            match (old.get(&at), new.get(&at)) {
                (Some(old), Some(new)) => {
                    let changes = diff_values(&single_values(old), &single_values(new));
                    (!changes.is_empty()).then_some(RecordChange::Changed { name, changes })
                }
                (None, Some(new)) => Some(RecordChange::Added {
                    name,
                    settings: new.clone(),
                }),
                (Some(old), None) => Some(RecordChange::Removed {
                    name,
                    settings: old.clone(),
                }),
                (None, None) => None,
            }
        })
        .collect()
}

/// Numbers records of the same name, which may occur by mistake.
fn numbered(records: Vec<(&str, Settings)>) -> BTreeMap<(&str, usize), Settings> {
    let mut seen: BTreeMap<&str, usize> = BTreeMap::new();
    records
        .into_iter()
        .map(|(name, settings)| {
            let count = seen.entry(name).or_default();
            let at = (name, *count);
            *count += 1;
            (at, settings)
        })
        .collect()
}

fn single_values(settings: &Settings) -> Values {
    settings
        .iter()
        .map(|(key, value)| (key.clone(), vec![value.clone()]))
        .collect()
}
