//! Checks of single lines: syntax, keys and values.

use std::collections::BTreeSet;

use super::problem::{At, Problems, Severity, shortened};
use super::suggestion::nearest;
use super::{Known, SLURM_CONF};
use crate::conf::configuration::Configuration;
use crate::conf::key::Key;
use crate::conf::keys::{KeySpec, KeyStatus, Place, ValueKind};
use crate::conf::line::{Content, Line, Setting, is_space};
use crate::conf::record::RecordKind;

pub(super) fn check_lines(configuration: &Configuration, known: &Known<'_>, problems: &mut Problems) {
    for located in configuration.slurm_conf() {
        if problems.is_full() {
            return;
        }
        let at = At::of(located);
        check_characters(Severity::Refuse, at, &located.line, problems);
        match located.line.content() {
            Content::Blank | Content::Include(_) => {}
            Content::Unreadable(text) => unreadable(Severity::Refuse, at, text, problems),
            Content::Settings(settings) => check_slurm_conf_line(settings, at, known, problems),
        }
    }
}

/// Checks a line of another file, where any key may begin a line.
pub(super) fn check_other_line(
    place: Place,
    severity: Severity,
    at: At<'_>,
    line: &Line,
    known: &Known<'_>,
    problems: &mut Problems,
) {
    check_characters(severity, at, line, problems);
    match line.content() {
        Content::Blank | Content::Include(_) => {}
        Content::Unreadable(text) => unreadable(severity, at, text, problems),
        Content::Settings(settings) => {
            for setting in settings {
                check_setting(place, severity, at, setting, known, problems);
            }
        }
    }
}

/// Slurm reads lines as C strings, which end at a NUL. Other control characters are mistakes.
fn check_characters(severity: Severity, at: At<'_>, line: &Line, problems: &mut Problems) {
    let mut harmful = line.raw().chars().filter(|c| c.is_ascii_control() && !is_space(*c));
    let is_read = matches!(line.content(), Content::Settings(_) | Content::Include(_));
    if let Some(character) = harmful.next().filter(|_| is_read) {
        let reason = format!("has the control character {character:?}");
        problems.add(severity, at, None, reason, "remove it");
    }
}

fn unreadable(severity: Severity, at: At<'_>, text: &str, problems: &mut Problems) {
    let text = shortened(text);
    let key = text
        .split_once('=')
        .map(|(key, _)| key.trim())
        .filter(|key| !key.is_empty());
    let empty = key.is_some() && text.trim_end().ends_with('=');
    let (reason, remedy) = if empty {
        ("has no value".to_owned(), "give it one, or take the line out")
    } else {
        (
            "is no line Slurm can read".to_owned(),
            "write settings as Key=value, and comments after #",
        )
    };
    problems.add(severity, at, key, format!("{text:?} {reason}"), remedy);
}

fn check_slurm_conf_line(settings: &[Setting], at: At<'_>, known: &Known<'_>, problems: &mut Problems) {
    let Some((first, rest)) = settings.split_first() else {
        return;
    };
    let record = RecordKind::of_key(&first.key).map(Place::Record);
    let power_action = (first.key == *"PowerAction").then_some(Place::PowerAction);
    let Some(place) = record.or(power_action) else {
        check_setting(Place::Global, Severity::Refuse, at, first, known, problems);
        if let Some(second) = rest.first().filter(|_| is_checked(Place::Global, &first.key, known)) {
            problems.refuse(
                at,
                Some(second.key.as_str()),
                format!(
                    "{} follows {} on the same line, where Slurm takes one setting",
                    second.key, first.key
                ),
                "write it on a line of its own, or put quotes around a value with blanks",
            );
        }
        return;
    };
    let mut seen = BTreeSet::new();
    for setting in rest {
        check_setting(place, Severity::Refuse, at, setting, known, problems);
        if !seen.insert(&setting.key) {
            problems.warn(
                at,
                Some(setting.key.as_str()),
                format!("{} is twice on the line, and only the last is effective", setting.key),
                "keep one of them",
            );
        }
    }
}

/// The syntax of a line with an unknown key is checked only if all keys are known.
fn is_checked(place: Place, key: &Key, known: &Known<'_>) -> bool {
    known.knows_all_keys() || place.find(key).is_some()
}

fn check_setting(
    place: Place,
    severity: Severity,
    at: At<'_>,
    setting: &Setting,
    known: &Known<'_>,
    problems: &mut Problems,
) {
    let Setting { key, value, .. } = setting;
    let Some(spec) = place.find(key) else {
        if known.knows_all_keys() {
            let key = shortened(key.as_str());
            let remedy = remedy_for_unknown(place, &key);
            problems.add(
                severity,
                at,
                Some(&key),
                format!("{key} is no key that Slurm knows here"),
                remedy,
            );
        }
        return;
    };
    match spec.status {
        KeyStatus::Removed { remedy } => {
            problems.add(
                severity,
                at,
                Some(spec.name),
                format!("{} is gone from Slurm", spec.name),
                remedy,
            );
        }
        KeyStatus::Defunct => {
            let reason = format!("{} has no effect any more", spec.name);
            problems.warn(at, Some(spec.name), reason, "take it out");
            check_value(spec, severity, at, value, known, problems);
        }
        KeyStatus::Current | KeyStatus::Legacy { .. } => check_value(spec, severity, at, value, known, problems),
    }
}

fn check_value(
    spec: &KeySpec,
    severity: Severity,
    at: At<'_>,
    value: &str,
    known: &Known<'_>,
    problems: &mut Problems,
) {
    let (judged, severity) = match spec.kind {
        ValueKind::IgnoredWords(_) => (known.knows_all_keys(), Severity::Warn),
        // Nothing runs yet, or slurmctld runs with this value. A new value could stop every slurmd, with its jobs.
        ValueKind::NodePlugin(_) if !known.is_new(spec.name, value) => (known.knows_all_keys(), Severity::Warn),
        ValueKind::Word(_) | ValueKind::Words(_) | ValueKind::NodePlugin(_) => (known.knows_all_keys(), severity),
        _ => (true, severity),
    };
    if !judged || spec.kind.accepts(value) {
        return;
    }
    let name = spec.name;
    let value = shortened(value);
    let (reason, remedy) = match spec.kind {
        ValueKind::NodePlugin(_) => (
            format!(
                "{name}={value} names a plugin that is not Slurm's own; a slurmd that cannot load it does not start"
            ),
            format!(
                "write {}; if your slurmd image brings it, make a new cluster with it",
                spec.kind.expected()
            ),
        ),
        ValueKind::IgnoredWords(_) => (
            format!("{name} cannot be {value:?}, and slurmctld passes over it"),
            format!("write {}", spec.kind.expected()),
        ),
        kind => (
            format!("{name} cannot be {value:?}"),
            format!("write {}", kind.expected()),
        ),
    };
    problems.add(severity, at, Some(name), reason, remedy);
}

fn remedy_for_unknown(place: Place, key: &str) -> String {
    let key = Key::new(key);
    let elsewhere = [
        (Place::Global, "it has a line of its own in slurm.conf"),
        (
            Place::Record(RecordKind::Partition),
            "it belongs on a PartitionName line",
        ),
        (Place::Record(RecordKind::Node), "it belongs on a NodeName line"),
    ];
    let names = place.keys().into_iter().flatten().map(|spec| spec.name);
    let records = RecordKind::ALL.into_iter().map(RecordKind::key);
    let beginnings = records.filter(|_| place == Place::Global);
    if let Some(name) = nearest(key.as_str(), names.chain(beginnings)) {
        return format!("did you mean {name}?");
    }
    elsewhere
        .into_iter()
        .find(|(other, _)| *other != place && other.find(&key).is_some())
        .map_or("take it out", |(_, remedy)| remedy)
        .to_owned()
}

/// Returns the last line that sets a global key, which is the effective one.
pub(super) fn last_setting<'a>(configuration: &'a Configuration, key: &str) -> Option<(At<'a>, &'a Setting)> {
    global_settings(configuration, key).last()
}

pub(super) fn global_settings<'a>(
    configuration: &'a Configuration,
    key: &str,
) -> impl Iterator<Item = (At<'a>, &'a Setting)> {
    configuration.slurm_conf().iter().filter_map(move |located| {
        let setting = located.line.settings().first()?;
        let at = At::of(located);
        (setting.key == *key).then_some((at, setting))
    })
}

/// slurm.conf as a whole.
pub(super) const WHOLE: At<'static> = At {
    file: SLURM_CONF,
    line: None,
};
