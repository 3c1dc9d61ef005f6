//! plugstack.conf: the SPANK plugins that nodes and login hosts load. Its lines have words, not settings.

use std::fmt;

use super::line::is_space;

/// The file, which renders to the same bytes it was parsed from.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Plugstack {
    lines: Vec<PlugstackLine>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PlugstackLine {
    /// From 1.
    pub number: usize,
    raw: String,
    pub entry: PlugstackEntry,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PlugstackEntry {
    /// Nothing, or a comment.
    Blank,
    /// A pattern for files on the host that loads the plugins.
    Include(String),
    Plugin {
        /// A host ignores an optional plugin that it cannot load.
        required: bool,
        path: String,
        arguments: String,
    },
    Unreadable(String),
}

impl Plugstack {
    pub fn parse(text: &str) -> Self {
        let lines = (1..)
            .zip(text.split_inclusive('\n'))
            .map(|(number, raw)| PlugstackLine {
                number,
                raw: raw.to_owned(),
                entry: parse_entry(raw),
            })
            .collect();
        Self { lines }
    }

    pub fn lines(&self) -> &[PlugstackLine] {
        &self.lines
    }

    /// Returns all lines but blank ones; plugins are called in this order.
    pub fn entries(&self) -> impl Iterator<Item = &PlugstackEntry> {
        self.lines
            .iter()
            .map(|line| &line.entry)
            .filter(|entry| **entry != PlugstackEntry::Blank)
    }
}

impl fmt::Display for Plugstack {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.lines.iter().try_for_each(|line| f.write_str(&line.raw))
    }
}

fn parse_entry(raw: &str) -> PlugstackEntry {
    let text = raw
        .split_once('#')
        .map_or(raw, |(before, _)| before)
        .trim_matches(is_space);
    if text.is_empty() {
        return PlugstackEntry::Blank;
    }
    let (word, rest) = first_word(text);
    let (path, arguments) = first_word(rest);
    match word.to_ascii_lowercase().as_str() {
        "include" if !path.is_empty() && arguments.is_empty() => PlugstackEntry::Include(path.to_owned()),
        kind @ ("required" | "optional") if !path.is_empty() => PlugstackEntry::Plugin {
            required: kind == "required",
            path: path.to_owned(),
            arguments: arguments.to_owned(),
        },
        _ => PlugstackEntry::Unreadable(text.to_owned()),
    }
}

fn first_word(text: &str) -> (&str, &str) {
    text.split_once(is_space)
        .map_or((text, ""), |(word, rest)| (word, rest.trim_start_matches(is_space)))
}
