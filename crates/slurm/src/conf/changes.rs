//! The difference between two configurations: each part that differs with the action it needs, and the smallest action that covers
//! all of them.

use std::collections::BTreeMap;
use std::fmt;

use super::configuration::{ConfFile, Configuration};
use super::diff::{Change, Difference, RecordChange};
use super::document::Document;
use super::file::FileKind;
use super::keys::{Needs, Place};
use super::line::{Content, Setting};
use super::record::RecordKind;

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Changes {
    pub parts: Vec<Part>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Part {
    pub subject: Subject,
    pub needs: Needs,
    /// Whether it can terminate running jobs.
    pub can_abort_jobs: bool,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Subject {
    Global {
        key: String,
    },
    /// A node, node set or partition.
    Record {
        kind: RecordKind,
        name: String,
        event: Event,
    },
    File {
        name: String,
    },
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event {
    Added,
    Removed,
    Changed { key: String },
}

impl Changes {
    pub fn between(old: &Configuration, new: &Configuration) -> Self {
        let difference = Difference::between(&old.slurm_conf_document(), &new.slurm_conf_document());
        let global = |change: &Change| {
            let key = change.key.to_string();
            changed_part(Subject::Global { key }, Place::Global, change)
        };
        let mut parts: Vec<Part> = difference.globals.iter().map(global).collect();
        for (kind, changes) in [
            (RecordKind::Partition, &difference.partitions),
            (RecordKind::NodeSet, &difference.node_sets),
            (RecordKind::Node, &difference.nodes),
            (RecordKind::DownNodes, &difference.down_nodes),
        ] {
            parts.extend(changes.iter().flat_map(|change| record_parts(kind, change)));
        }
        if difference.includes || difference.unreadable {
            parts.push(file_part("slurm.conf", &[]));
        }
        let mut names: Vec<&str> = old.files().chain(new.files()).map(|(name, _)| name).collect();
        names.sort_unstable();
        names.dedup();
        parts.extend(
            names
                .into_iter()
                .filter_map(|name| diff_file(name, old.file(name), new.file(name))),
        );
        Self { parts }
    }

    /// Returns the smallest action that makes everything live.
    pub fn needs(&self) -> Needs {
        self.parts.iter().map(|part| part.needs).max().unwrap_or(Needs::Nothing)
    }

    /// Returns the parts that must wait while jobs run.
    pub fn job_sensitive(&self) -> impl Iterator<Item = &Part> {
        self.parts.iter().filter(|part| part.can_abort_jobs)
    }
}

impl fmt::Display for Subject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Global { key } => write!(f, "{key} changed"),
            Self::Record { kind, name, event } => {
                write!(f, "{}={name} ", kind.key())?;
                match event {
                    Event::Added => f.write_str("added"),
                    Event::Removed => f.write_str("removed"),
                    Event::Changed { key } => write!(f, "{key} changed"),
                }
            }
            Self::File { name } => write!(f, "{name} changed"),
        }
    }
}

fn changed_part(subject: Subject, place: Place, change: &Change) -> Part {
    let spec = place.find(&change.key);
    let last = |values: &[String]| values.last().cloned();
    let (old, new) = (last(&change.old), last(&change.new));
    Part {
        subject,
        // A reconfigure makes all of slurm.conf live, unknown keys too.
        needs: spec.map_or(Needs::Reconfigure, |spec| spec.needs_for(new.as_deref())),
        can_abort_jobs: spec.is_some_and(|spec| spec.can_abort_jobs(old.as_deref(), new.as_deref())),
    }
}

fn record_parts(kind: RecordKind, change: &RecordChange) -> Vec<Part> {
    let subject = |event| Subject::Record {
        kind,
        name: change.name().to_owned(),
        event,
    };
    let place = Place::Record(kind);
    match change {
        RecordChange::Changed { changes, .. } => changes
            .iter()
            .map(|change| {
                let key = change.key.to_string();
                changed_part(subject(Event::Changed { key }), place, change)
            })
            .collect(),
        RecordChange::Added { settings, .. } => {
            // A key that an RPC cannot change, it cannot set on a new partition either.
            let needs = settings
                .keys()
                .map(|key| place.find(key).map_or(Needs::Reconfigure, |spec| spec.needs));
            vec![Part {
                subject: subject(Event::Added),
                needs: needs.fold(whole_record(kind), Needs::max),
                can_abort_jobs: false,
            }]
        }
        RecordChange::Removed { .. } => vec![Part {
            subject: subject(Event::Removed),
            needs: whole_record(kind),
            can_abort_jobs: matches!(kind, RecordKind::Partition | RecordKind::Node),
        }],
    }
}

/// Returns the need of adding or removing a whole record.
const fn whole_record(kind: RecordKind) -> Needs {
    match kind {
        // Measured: CREATE_PARTITION and DELETE_PARTITION; a reconfigure would end the jobs of one that is gone.
        RecordKind::Partition => Needs::PartitionRpc,
        // Measured: no RPC creates or changes a node set.
        RecordKind::NodeSet | RecordKind::Node | RecordKind::DownNodes => Needs::Reconfigure,
    }
}

fn diff_file(name: &str, old: Option<&ConfFile>, new: Option<&ConfFile>) -> Option<Part> {
    let empty = Document::default();
    match (old, new) {
        (Some(ConfFile::Lines(old)), Some(ConfFile::Lines(new))) => diff_lines(name, old, new),
        (Some(ConfFile::Lines(old)), None) => diff_lines(name, old, &empty),
        (None, Some(ConfFile::Lines(new))) => diff_lines(name, &empty, new),
        (Some(ConfFile::Plugstack(old)), Some(ConfFile::Plugstack(new))) => {
            (!old.entries().eq(new.entries())).then(|| file_part(name, &[]))
        }
        (Some(ConfFile::Topology(old)), Some(ConfFile::Topology(new)))
            if old.content().is_ok() && old.content() == new.content() =>
        {
            None
        }
        _ => (old != new).then(|| file_part(name, &[])),
    }
}

fn diff_lines(name: &str, old: &Document, new: &Document) -> Option<Part> {
    let contents = |document: &Document| -> Vec<Content> {
        let counts = document.lines().iter().map(|line| line.content().clone());
        counts.filter(|content| *content != Content::Blank).collect()
    };
    let (old, new) = (contents(old), contents(new));
    (old != new).then(|| file_part(name, &uncommon(&old, &new)))
}

/// Returns the settings on lines that only one of both has.
fn uncommon(old: &[Content], new: &[Content]) -> Vec<Setting> {
    let mut counts: BTreeMap<String, (i64, &Content)> = BTreeMap::new();
    let signed = old
        .iter()
        .map(|content| (content, -1))
        .chain(new.iter().map(|content| (content, 1)));
    for (content, sign) in signed {
        counts.entry(format!("{content:?}")).or_insert((0, content)).0 += sign;
    }
    let changed = counts.into_values().filter(|(count, _)| *count != 0);
    changed
        .flat_map(|(_, content)| match content {
            Content::Settings(settings) => settings.clone(),
            Content::Blank | Content::Include(_) | Content::Unreadable(_) => Vec::new(),
        })
        .collect()
}

/// Returns the need of a changed file, by its kind and by the settings that differ.
fn file_part(name: &str, settings: &[Setting]) -> Part {
    let kind = FileKind::of_name(name);
    let (least, can_abort_jobs) = match kind {
        FileKind::GresConf => (Needs::Reconfigure, true),
        // job_container.conf(5), NOTES: a reconfigure is not enough, and running jobs suffer.
        FileKind::JobContainerConf => (Needs::NodeRestart, true),
        // Measured: a reconfigure hands all files to the nodes.
        _ => (Needs::Reconfigure, false),
    };
    let known = settings
        .iter()
        .filter_map(|setting| Place::File(kind).find(&setting.key));
    Part {
        subject: Subject::File { name: name.to_owned() },
        needs: known.map(|spec| spec.needs).fold(least, Needs::max),
        can_abort_jobs,
    }
}
