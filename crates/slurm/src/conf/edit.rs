//! Edits of single settings in a text; everything else keeps its bytes.

use thiserror::Error;

use super::document::Document;
use super::key::Key;
use super::line::{Content, Line, Setting, is_space, parse_setting, quoted, without_comment};
use super::record::{Record, RecordKind};

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SettingChange {
    Set { key: Key, value: String },
    Remove { key: Key },
}

#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum EditError {
    #[error("{0:?} is not Key=Value")]
    Unreadable(String),
    #[error("{0:?} is no value for slurm.conf: it has a quote, a backslash, a number sign or a line end")]
    Value(String),
}

impl SettingChange {
    pub fn key(&self) -> &Key {
        match self {
            Self::Set { key, .. } | Self::Remove { key } => key,
        }
    }
}

/// Changes settings of one line, or of a NodeSet's `partition.config`, which is a part of one. An existing key keeps its place and
/// spelling; a new one comes last. A line that continues behind a backslash is joined.
pub fn edit_settings(text: &str, changes: &[SettingChange]) -> Result<String, EditError> {
    let joined = if text.contains('\\') {
        Some(in_one_line(text)?)
    } else {
        None
    };
    let text = joined.as_deref().unwrap_or(text);
    let body = without_comment(text).trim_end_matches(is_space);
    let tail = text.get(body.len()..).unwrap_or_default();
    let mut items = split(body)?;
    let indent = items.first().map(|item| item.gap.clone()).unwrap_or_default();
    for change in changes {
        match change {
            SettingChange::Remove { key } => items.retain(|item| item.setting.key != *key),
            SettingChange::Set { key, value } => {
                // The last one is effective.
                match items.iter_mut().rev().find(|item| item.setting.key == *key) {
                    Some(item) => {
                        item.text = render(&item.setting.key, value)?;
                        item.setting.operator = None;
                        item.setting.value.clone_from(value);
                    }
                    None => items.push(Item {
                        gap: " ".to_owned(),
                        text: render(key, value)?,
                        setting: Setting {
                            key: key.clone(),
                            operator: None,
                            value: value.clone(),
                        },
                    }),
                }
            }
        }
    }
    if let Some(first) = items.first_mut() {
        first.gap = indent;
    }
    let edited: String = items.iter().flat_map(|item| [item.gap.as_str(), &item.text]).collect();
    // A stray quote may combine with one of a new value.
    let reads_back = split(&edited)?
        .iter()
        .map(|item| &item.setting)
        .eq(items.iter().map(|item| &item.setting));
    if reads_back {
        Ok(edited + tail)
    } else {
        Err(EditError::Unreadable(body.to_owned()))
    }
}

/// Changes settings of a partition's line in a text of many lines. Returns `None` if there is no such line.
pub fn edit_partition(text: &str, name: &str, changes: &[SettingChange]) -> Result<Option<String>, EditError> {
    map_partition(text, name, |line| edit_settings(line.raw(), changes))
}

/// Removes a partition's line from a text of many lines. Returns `None` if there is no such line.
pub fn remove_partition(text: &str, name: &str) -> Option<String> {
    map_partition(text, name, |_| Ok(String::new())).ok().flatten()
}

fn map_partition(
    text: &str,
    name: &str,
    edit: impl Fn(&Line) -> Result<String, EditError>,
) -> Result<Option<String>, EditError> {
    let document = Document::parse(text);
    let is_it = |line: &Line| {
        Record::of_line(line).is_some_and(|record| record.kind == RecordKind::Partition && record.name == name)
    };
    if !document.lines().iter().any(is_it) {
        return Ok(None);
    }
    let lines = document.lines().iter();
    let lines = lines.map(|line| {
        if is_it(line) {
            edit(line)
        } else {
            Ok(line.raw().to_owned())
        }
    });
    lines.collect::<Result<String, EditError>>().map(Some)
}

/// A setting with its spelling and the spaces before it.
struct Item {
    gap: String,
    text: String,
    setting: Setting,
}

fn split(body: &str) -> Result<Vec<Item>, EditError> {
    let mut items = Vec::new();
    let mut rest = body;
    while !rest.is_empty() {
        let begin = rest.trim_start_matches(is_space);
        let gap = rest.get(..rest.len() - begin.len()).unwrap_or_default();
        if begin.is_empty() {
            break;
        }
        let (setting, after) = parse_setting(begin).ok_or_else(|| EditError::Unreadable(begin.to_owned()))?;
        items.push(Item {
            gap: gap.to_owned(),
            text: begin.get(..begin.len() - after.len()).unwrap_or_default().to_owned(),
            setting,
        });
        rest = after;
    }
    Ok(items)
}

/// Joins the parts of a line that continues behind backslashes.
fn in_one_line(text: &str) -> Result<String, EditError> {
    let document = Document::parse(text);
    let mut line = String::new();
    for part in document.lines() {
        match part.content() {
            Content::Blank => {}
            Content::Settings(settings) => {
                for setting in settings {
                    if !line.is_empty() {
                        line.push(' ');
                    }
                    line.push_str(&render(&setting.key, &setting.value)?);
                }
            }
            Content::Include(_) | Content::Unreadable(_) => {
                return Err(EditError::Unreadable(part.raw().trim_end().to_owned()));
            }
        }
    }
    if text.ends_with('\n') {
        line.push('\n');
    }
    Ok(line)
}

fn render(key: &Key, value: &str) -> Result<String, EditError> {
    if value.contains(|c: char| matches!(c, '"' | '\\' | '#') || (c.is_control() && c != '\t')) {
        return Err(EditError::Value(value.to_owned()));
    }
    Ok(format!("{key}={}", quoted(value)))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn set(key: &str, value: &str) -> SettingChange {
        SettingChange::Set {
            key: Key::new(key),
            value: value.to_owned(),
        }
    }

    fn remove(key: &str) -> SettingChange {
        SettingChange::Remove { key: Key::new(key) }
    }

    #[test]
    fn a_setting_is_changed_in_place() {
        for (text, changes, expected) in [
            (
                "Default=YES MaxTime=60",
                vec![set("maxtime", "90")],
                "Default=YES MaxTime=90",
            ),
            ("Default=YES", vec![set("State", "DRAIN")], "Default=YES State=DRAIN"),
            ("", vec![set("State", "DRAIN")], "State=DRAIN"),
            ("  A=1  B=2\tC=3 ", vec![remove("B")], "  A=1\tC=3 "),
            ("A=1 B=2", vec![remove("a")], "B=2"),
            (
                "A=1 # why A=1\n",
                vec![set("A", "2"), set("B", "3")],
                "A=2 B=3 # why A=1\n",
            ),
            ("A=1 a=2 A=3", vec![set("A", "4")], "A=1 a=2 A=4"),
            ("A=1 a=2 B=3", vec![remove("A")], "B=3"),
            ("A = 1", vec![set("A", "x y")], "A=\"x y\""),
            ("A=\"x y\" B=1", vec![remove("B")], "A=\"x y\""),
            ("Nodes+=a B=1", vec![set("Nodes", "b")], "Nodes=b B=1"),
            ("A=1 \\\n  B=2 # c\n", vec![set("B", "3")], "A=1 B=3\n"),
            ("A=1", vec![remove("X")], "A=1"),
        ] {
            assert_eq!(
                edit_settings(text, &changes).as_deref(),
                Ok(expected),
                "{text:?} {changes:?}"
            );
        }
    }

    #[test]
    fn a_change_that_could_not_be_read_back_is_rejected() {
        for value in ["a\"b", "a#b", "a\\b", "a\nb"] {
            assert!(
                matches!(edit_settings("", &[set("A", value)]), Err(EditError::Value(_))),
                "{value:?}"
            );
        }
        assert!(edit_settings("C=\"", &[set("B", " ")]).is_err());
        assert!(matches!(
            edit_settings("A=1 nonsense", &[set("A", "2")]),
            Err(EditError::Unreadable(_))
        ));
    }

    const EXTRA: &str = "# mine\nPartitionName=a Nodes=x\n\nPartitionName=b  Nodes=y State=UP # keep\nFoo=1";

    #[test]
    fn only_the_line_of_the_partition_is_changed() {
        let edited = edit_partition(EXTRA, "b", &[set("State", "DRAIN")]).unwrap().unwrap();
        assert_eq!(edited, EXTRA.replace("State=UP", "State=DRAIN"));
        assert_eq!(edit_partition(EXTRA, "c", &[]), Ok(None));
        assert_eq!(
            remove_partition(EXTRA, "a").unwrap(),
            "# mine\n\nPartitionName=b  Nodes=y State=UP # keep\nFoo=1"
        );
        assert_eq!(remove_partition(EXTRA, "c"), None);
    }

    proptest! {
        #[test]
        fn nothing_but_the_key_changes(
            lines in prop::collection::vec("(PartitionName=[a-c]( [A-C]=[a-z\"]{1,3}){0,3}|#?.{0,20})", 0..6),
            value in "[a-z0-9 ,-]{0,6}",
        ) {
            let text = lines.join("\n");
            let Ok(Some(edited)) = edit_partition(&text, "a", &[set("B", &value)]) else { return Ok(()) };
            let (old, new) = (Document::parse(&text), Document::parse(&edited));
            prop_assert_eq!(old.lines().len(), new.lines().len());
            for (old, new) in old.lines().iter().zip(new.lines()) {
                match Record::of_line(old).filter(|record| record.kind == RecordKind::Partition && record.name == "a") {
                    None => prop_assert_eq!(old.raw(), new.raw()),
                    Some(record) => {
                        let now = Record::of_line(new).unwrap();
                        prop_assert_eq!(now.get("B"), Some(value.as_str()));
                        for key in ["A", "C"] {
                            prop_assert_eq!(now.get(key), record.get(key));
                        }
                    }
                }
            }
        }

        #[test]
        fn no_text_panics(text in "\\PC*", value in "\\PC*") {
            let _ = edit_settings(&text, &[set("A", &value), remove("B")]);
        }
    }
}
