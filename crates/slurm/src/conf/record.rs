//! Lines that define a named record: `NodeName=`, `NodeSet=`, `PartitionName=`, `DownNodes=`.

use std::collections::BTreeMap;

use super::document::Document;
use super::key::Key;
use super::line::{Line, Setting};

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum RecordKind {
    Node,
    NodeSet,
    Partition,
    DownNodes,
}

impl RecordKind {
    pub const ALL: [Self; 4] = [Self::Node, Self::NodeSet, Self::Partition, Self::DownNodes];

    /// The key that begins such a line.
    pub const fn key(self) -> &'static str {
        match self {
            Self::Node => "NodeName",
            Self::NodeSet => "NodeSet",
            Self::Partition => "PartitionName",
            Self::DownNodes => "DownNodes",
        }
    }

    pub fn of_key(key: &Key) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| *key == *kind.key())
    }
}

/// The settings of a record. A repeated key has its last value, as in Slurm.
pub type Settings = BTreeMap<Key, String>;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Record<'a> {
    pub kind: RecordKind,
    /// A single name, a hostlist (`n[1-3]`), or `DEFAULT`.
    pub name: &'a str,
    /// The settings behind the name.
    pub settings: &'a [Setting],
    pub line: usize,
}

impl<'a> Record<'a> {
    /// Returns the record of a line, if it defines one.
    pub fn of_line(line: &'a Line) -> Option<Self> {
        let (first, settings) = line.settings().split_first()?;
        let kind = RecordKind::of_key(&first.key)?;
        Some(Self {
            kind,
            name: &first.value,
            settings,
            line: line.number,
        })
    }

    pub fn get(&self, key: &str) -> Option<&'a str> {
        self.settings
            .iter()
            .rev()
            .find(|setting| setting.key == *key)
            .map(|setting| setting.value.as_str())
    }

    /// Whether the line defines no record but sets the defaults of later ones.
    pub fn is_default(&self) -> bool {
        matches!(self.kind, RecordKind::Node | RecordKind::Partition) && self.name.eq_ignore_ascii_case("DEFAULT")
    }

    fn to_settings(self) -> Settings {
        self.settings
            .iter()
            .map(|setting| (setting.key.clone(), written_value(setting)))
            .collect()
    }
}

impl Document {
    /// Returns the records of one kind with their effective settings, `DEFAULT` lines applied, in the order of the file.
    pub fn effective(&self, kind: RecordKind) -> Vec<(&str, Settings)> {
        let mut defaults = Settings::new();
        let mut effective = Vec::new();
        for record in self.records(kind) {
            // A later DEFAULT line adds to the earlier ones.
            if record.is_default() {
                defaults.extend(record.to_settings());
            } else {
                let mut settings = defaults.clone();
                settings.extend(record.to_settings());
                effective.push((record.name, settings));
            }
        }
        effective
    }
}

/// Returns the value with its operator in front, so that `Nodes=+a` and `Nodes+=a` differ.
pub(super) fn written_value(setting: &Setting) -> String {
    match setting.operator {
        Some(operator) => format!("{operator}={}", setting.value),
        None => setting.value.clone(),
    }
}
