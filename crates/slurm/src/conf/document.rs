use std::fmt;

use super::line::{Content, Line, Setting, parse_lines};
use super::record::{Record, RecordKind};

/// A file in Slurm's manner, kept whole: what was parsed is what is rendered, byte for byte.
///
/// Parsing cannot fail. A line Slurm would stop at is kept as [`Content::Unreadable`], so that a checker can point at
/// every one of them and a diff still says what changed around it.
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

    /// What a global key is set to. Slurm takes the last one when a key is repeated.
    pub fn value(&self, key: &str) -> Option<&str> {
        self.values(key).last()
    }

    /// All values of a global key in the order of the file, for those that may be repeated (`SlurmctldHost`).
    pub fn values<'a>(&'a self, key: &str) -> impl Iterator<Item = &'a str> {
        self.globals()
            .filter(move |setting| setting.key == *key)
            .map(|setting| setting.value.as_str())
    }

    /// The settings of the cluster as a whole: those that begin a line and do not name a node, node set or partition.
    pub fn globals(&self) -> impl Iterator<Item = &Setting> {
        self.lines
            .iter()
            .filter_map(|line| line.settings().first())
            .filter(|setting| RecordKind::of_key(&setting.key).is_none())
    }

    /// The lines that define one kind of thing, `DEFAULT` lines included.
    pub fn records(&self, kind: RecordKind) -> impl Iterator<Item = Record<'_>> {
        self.lines
            .iter()
            .filter_map(Record::of_line)
            .filter(move |record| record.kind == kind)
    }

    /// The definition that counts for a name: Slurm refuses a second one.
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
