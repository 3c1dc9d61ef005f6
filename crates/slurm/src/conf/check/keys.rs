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
        let mut line = LineCheck {
            at: At::of(located),
            severity: Severity::Refuse,
            known,
            problems,
        };
        line.check(&located.line, LineCheck::check_slurm_conf_line);
    }
}

/// Checks of one line.
pub(super) struct LineCheck<'a> {
    pub(super) at: At<'a>,
    /// That of a problem by which Slurm would refuse its files.
    pub(super) severity: Severity,
    pub(super) known: &'a Known<'a>,
    pub(super) problems: &'a mut Problems,
}

impl LineCheck<'_> {
    /// Checks a line of another file, where any key may begin a line.
    pub(super) fn check_other_line(&mut self, place: Place, line: &Line) {
        self.check(line, |line, settings| {
            for setting in settings {
                line.check_setting(place, setting);
            }
        });
    }

    fn check(&mut self, line: &Line, check_settings: impl FnOnce(&mut Self, &[Setting])) {
        self.check_characters(line);
        match line.content() {
            Content::Blank | Content::Include(_) => {}
            Content::Unreadable(text) => self.unreadable(text),
            Content::Settings(settings) => check_settings(self, settings),
        }
    }

    fn report(&mut self, key: Option<&str>, reason: impl Into<String>, remedy: impl Into<String>) {
        self.problems.add(self.severity, self.at, key, reason, remedy);
    }

    /// Slurm reads lines as C strings, which end at a NUL. Other control characters are mistakes.
    fn check_characters(&mut self, line: &Line) {
        let mut harmful = line.raw().chars().filter(|c| c.is_ascii_control() && !is_space(*c));
        let is_read = matches!(line.content(), Content::Settings(_) | Content::Include(_));
        if let Some(character) = harmful.next().filter(|_| is_read) {
            self.report(None, format!("has the control character {character:?}"), "remove it");
        }
    }

    fn unreadable(&mut self, text: &str) {
        let text = shortened(text);
        let key = text
            .split_once('=')
            .map(|(key, _)| key.trim())
            .filter(|key| !key.is_empty());
        let empty = key.is_some() && text.trim_end().ends_with('=');
        let (reason, remedy) = if empty {
            ("has no value", "give it one, or take the line out")
        } else {
            (
                "is no line Slurm can read",
                "write settings as Key=value, and comments after #",
            )
        };
        self.report(key, format!("{text:?} {reason}"), remedy);
    }

    fn check_slurm_conf_line(&mut self, settings: &[Setting]) {
        let Some((first, rest)) = settings.split_first() else {
            return;
        };
        let record = RecordKind::of_key(&first.key).map(Place::Record);
        let power_action = (first.key == *"PowerAction").then_some(Place::PowerAction);
        let Some(place) = record.or(power_action) else {
            self.check_setting(Place::Global, first);
            // The syntax of a line with an unknown key is checked only if all keys are known.
            let is_checked = self.known.knows_all_keys() || Place::Global.find(&first.key).is_some();
            if let Some(second) = rest.first().filter(|_| is_checked) {
                let reason = format!(
                    "{} follows {} on the same line, where Slurm takes one setting",
                    second.key, first.key
                );
                let remedy = "write it on a line of its own, or put quotes around a value with blanks";
                self.report(Some(second.key.as_str()), reason, remedy);
            }
            return;
        };
        let mut seen = BTreeSet::new();
        for setting in rest {
            self.check_setting(place, setting);
            if !seen.insert(&setting.key) {
                let reason = format!("{} is twice on the line, and only the last is effective", setting.key);
                let key = Some(setting.key.as_str());
                self.problems.warn(self.at, key, reason, "keep one of them");
            }
        }
    }

    fn check_setting(&mut self, place: Place, Setting { key, value, .. }: &Setting) {
        let Some(spec) = place.find(key) else {
            if self.known.knows_all_keys() {
                let key = shortened(key.as_str());
                let reason = format!("{key} is no key that Slurm knows here");
                self.report(Some(&key), reason, remedy_for_unknown(place, &key));
            }
            return;
        };
        match spec.status {
            KeyStatus::Removed { remedy } => {
                let reason = format!("{} is gone from Slurm", spec.name);
                self.report(Some(spec.name), reason, remedy);
            }
            KeyStatus::Defunct => {
                let reason = format!("{} has no effect any more", spec.name);
                self.problems.warn(self.at, Some(spec.name), reason, "take it out");
                self.check_value(spec, value);
            }
            KeyStatus::Current | KeyStatus::Legacy { .. } => self.check_value(spec, value),
        }
    }

    fn check_value(&mut self, spec: &KeySpec, value: &str) {
        let known = self.known;
        let (judged, severity) = match spec.kind {
            ValueKind::IgnoredWords(_) => (known.knows_all_keys(), Severity::Warn),
            // Nothing runs yet, or slurmctld runs with this value. A new value could stop every slurmd, with its jobs.
            ValueKind::NodePlugin(_) if !known.is_new(spec.name, value) => (known.knows_all_keys(), Severity::Warn),
            ValueKind::Word(_) | ValueKind::Words(_) | ValueKind::NodePlugin(_) => {
                (known.knows_all_keys(), self.severity)
            }
            _ => (true, self.severity),
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
        self.problems.add(severity, self.at, Some(name), reason, remedy);
    }
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
