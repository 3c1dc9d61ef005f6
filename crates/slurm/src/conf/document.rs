use std::fmt;

use super::line::{Content, Line, Setting, parse_lines};
use super::record::{Record, RecordKind};

/// A file in the format of slurm.conf. It renders to the same bytes it was parsed from.
///
/// Parsing cannot fail. A line that Slurm would reject is kept as [`Content::Unreadable`], so that a checker can report all of them
/// and a diff covers the other lines.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Document {
    lines: Vec<Line>,
}

impl Document {
    pub fn parse(text: &str) -> Self {
        Self {
            lines: parse_lines(text),
        }
    }

    pub fn lines(&self) -> &[Line] {
        &self.lines
    }

    pub(super) fn into_lines(self) -> Vec<Line> {
        self.lines
    }

    /// Returns the value of a global key; the last one if the key is repeated, as in Slurm.
    pub fn value(&self, key: &str) -> Option<&str> {
        self.values(key).last()
    }

    /// Returns all values of a global key that may be repeated (`SlurmctldHost`), in the order of the file.
    pub fn values<'a>(&'a self, key: &str) -> impl Iterator<Item = &'a str> {
        self.globals()
            .filter(move |setting| setting.key == *key)
            .map(|setting| setting.value.as_str())
    }

    /// Returns the settings of the cluster: those that begin a line and do not name a node, node set or partition.
    pub fn globals(&self) -> impl Iterator<Item = &Setting> {
        self.lines
            .iter()
            .filter_map(|line| line.settings().first())
            .filter(|setting| RecordKind::of_key(&setting.key).is_none())
    }

    /// Returns the records of one kind, including `DEFAULT` lines.
    pub fn records(&self, kind: RecordKind) -> impl Iterator<Item = Record<'_>> {
        self.lines
            .iter()
            .filter_map(Record::of_line)
            .filter(move |record| record.kind == kind)
    }

    /// Returns the first record of a name; Slurm refuses a second one.
    pub fn record(&self, kind: RecordKind, name: &str) -> Option<Record<'_>> {
        self.records(kind).find(|record| record.name == name)
    }

    pub fn includes(&self) -> impl Iterator<Item = &str> {
        self.lines.iter().filter_map(|line| match line.content() {
            Content::Include(path) => Some(path.as_str()),
            Content::Blank | Content::Settings(_) | Content::Unreadable(_) => None,
        })
    }

    pub fn unreadable(&self) -> impl Iterator<Item = &Line> {
        self.lines
            .iter()
            .filter(|line| matches!(line.content(), Content::Unreadable(_)))
    }
}

impl FromIterator<Line> for Document {
    fn from_iter<T: IntoIterator<Item = Line>>(lines: T) -> Self {
        Self {
            lines: lines.into_iter().collect(),
        }
    }
}

impl fmt::Display for Document {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.lines.iter().try_for_each(|line| f.write_str(line.raw()))
    }
}
