//! One logical line and how Slurm parses it.
//!
//! The order of the steps is that of Slurm (`parse_config.c`). A comment is removed first, so `#` ends a quoted value too, and a
//! backslash inside a comment continues nothing. Backslashes are removed before quotes are handled, so a quote cannot be escaped.

use super::key::Key;

/// `key=value`, with the operator that some keys allow before the equals sign (`+=`, `-=`).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Setting {
    pub key: Key,
    pub operator: Option<char>,
    /// Without the quotes around it.
    pub value: String,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Content {
    /// Nothing, or a comment.
    Blank,
    /// `Include file`.
    Include(String),
    Settings(Vec<Setting>),
    /// Slurm rejects such a line. The text is the part that could not be read.
    Unreadable(String),
}

/// A logical line: several lines of the file if they end in a backslash.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Line {
    /// Number of its first line in the file, from 1.
    pub number: usize,
    raw: String,
    content: Content,
}

impl Line {
    /// Returns the bytes of the file, including line ends.
    pub fn raw(&self) -> &str {
        &self.raw
    }

    pub fn content(&self) -> &Content {
        &self.content
    }

    /// Empty unless the line holds settings.
    pub fn settings(&self) -> &[Setting] {
        match &self.content {
            Content::Settings(settings) => settings,
            Content::Blank | Content::Include(_) | Content::Unreadable(_) => &[],
        }
    }
}

pub(super) fn parse_lines(text: &str) -> Vec<Line> {
    let mut lines = Vec::new();
    let mut physical = (1_usize..).zip(text.split_inclusive('\n'));
    while let Some((number, first)) = physical.next() {
        let mut raw = first.to_owned();
        let mut joined = String::new();
        let mut open = append_physical(&mut joined, first);
        while open {
            let Some((_, next)) = physical.next() else { break };
            raw.push_str(next);
            open = append_physical(&mut joined, next);
        }
        let content = parse_content(&without_escapes(&joined));
        lines.push(Line { number, raw, content });
    }
    lines
}

/// Adds one line of the file without its comment, and returns whether the next one continues it.
fn append_physical(joined: &mut String, physical: &str) -> bool {
    let text = without_comment(physical);
    let body = text.trim_end_matches(is_space);
    let backslashes = body.len() - body.trim_end_matches('\\').len();
    if backslashes % 2 == 1 {
        joined.push_str(body.strip_suffix('\\').unwrap_or(body));
        true
    } else {
        joined.push_str(text);
        false
    }
}

pub(super) fn without_comment(physical: &str) -> &str {
    let mut escaped = false;
    for (at, c) in physical.char_indices() {
        match c {
            '#' if !escaped => return physical.get(..at).unwrap_or(physical),
            '\\' => escaped = !escaped,
            _ => escaped = false,
        }
    }
    physical
}

fn without_escapes(text: &str) -> String {
    let mut plain = String::with_capacity(text.len());
    let mut chars = text.chars();
    while let Some(c) = chars.next() {
        plain.extend(if c == '\\' { chars.next() } else { Some(c) });
    }
    plain
}

fn parse_content(text: &str) -> Content {
    if let Some(path) = parse_include(text) {
        return if path.is_empty() || path.contains(is_space) {
            Content::Unreadable(text.trim_end_matches(is_space).to_owned())
        } else {
            Content::Include(path.to_owned())
        };
    }
    let mut settings = Vec::new();
    let mut rest = text.trim_matches(is_space);
    if rest.is_empty() {
        return Content::Blank;
    }
    while !rest.is_empty() {
        match parse_setting(rest) {
            Some((setting, after)) => {
                settings.push(setting);
                rest = after.trim_start_matches(is_space);
            }
            None => return Content::Unreadable(rest.to_owned()),
        }
    }
    Content::Settings(settings)
}

/// Slurm recognises the word only at the beginning of the line, and takes quotes for part of the name.
fn parse_include(text: &str) -> Option<&str> {
    let (word, path) = text.split_once(is_space)?;
    word.eq_ignore_ascii_case("include")
        .then(|| path.trim_matches(is_space))
}

/// Parses `key [op]= value` at the front, and returns the rest.
pub(super) fn parse_setting(text: &str) -> Option<(Setting, &str)> {
    let end_of_key = text
        .find(|c: char| !(c.is_ascii_alphanumeric() || c == '_' || c == '.'))
        .unwrap_or(text.len());
    let (key, rest) = text.split_at_checked(end_of_key)?;
    if key.is_empty() {
        return None;
    }
    let rest = rest.trim_start_matches(is_space);
    let operator = rest.chars().next().filter(|c| "-*+/".contains(*c));
    let rest = operator.and_then(|op| rest.strip_prefix(op)).unwrap_or(rest);
    let rest = rest.strip_prefix('=')?.trim_start_matches(is_space);
    let (value, after) = parse_value(rest)?;
    let setting = Setting {
        key: Key::new(key),
        operator,
        value: value.to_owned(),
    };
    Some((setting, after))
}

/// A value in quotes may have spaces and may be empty; one without may not. Quotes that end inside a word are part of that word.
fn parse_value(text: &str) -> Option<(&str, &str)> {
    let quoted = text
        .strip_prefix('"')
        .and_then(|inside| inside.split_once('"'))
        .filter(|(_, after)| after.is_empty() || after.starts_with(is_space));
    if quoted.is_some() {
        return quoted;
    }
    let end = text.find(is_space).unwrap_or(text.len());
    let (value, after) = text.split_at_checked(end)?;
    (!value.is_empty()).then_some((value, after))
}

/// A value as a line has it: in quotes if it is empty or has spaces.
pub(super) fn quoted(value: &str) -> String {
    if value.is_empty() || value.contains(is_space) {
        format!("\"{value}\"")
    } else {
        value.to_owned()
    }
}

/// C's `isspace`, not Unicode's notion of it.
pub(super) fn is_space(c: char) -> bool {
    matches!(c, ' ' | '\t' | '\n' | '\r' | '\x0b' | '\x0c')
}
