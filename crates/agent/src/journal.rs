//! The last steps of each change, on the state volume: for people, and for an agent that starts in the middle of a change.
//!
//! One line of JSON per step. It is not synced: what decides over a start (the revisions, and which of them is
//! [verified](crate::store::Store::verified)) is synced by itself, and an agent that finds no journal, or an old one, goes by
//! the directories.

use std::path::{Path, PathBuf};

use host::{Durability, FileError, Host};
use serde::{Deserialize, Serialize};
use slurm::agent::{Phase, Refused};
use slurm::revision::{Digest, Summary};

/// Four or five changes: the last one, and those that led to it.
const KEPT: usize = 20;

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Entry {
    /// RFC 3339.
    pub when: String,
    pub sequence: u64,
    pub digest: Digest,
    pub step: Phase,
    /// The revision that a dry run rejected (`staged`) or that was rolled back, with the reason.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub refused: Option<Refused>,
}

impl Entry {
    pub fn new(host: &Host, revision: &Summary, step: Phase, refused: Option<Refused>) -> Self {
        Self {
            when: host.timestamp().to_string(),
            sequence: revision.sequence,
            digest: revision.digest,
            step,
            refused,
        }
    }
}

#[derive(Debug, Clone)]
pub struct Journal {
    host: Host,
    path: PathBuf,
}

impl Journal {
    pub fn new(host: &Host, directory: &Path) -> Self {
        Self {
            host: host.clone(),
            path: directory.join("journal"),
        }
    }

    /// The steps, oldest first. Lines that cannot be read are left out.
    pub fn entries(&self) -> Vec<Entry> {
        let text = self.host.files().read_text(&self.path).unwrap_or_default();
        text.lines()
            .filter_map(|line| serde_json::from_str(line).ok())
            .collect()
    }

    /// See [`Store::note`](crate::store::Store::note).
    pub(crate) fn note(&self, entry: Entry) -> Result<(), FileError> {
        let mut entries = self.entries();
        entries.push(entry);
        let (_, kept) = entries.split_at(entries.len().saturating_sub(KEPT));
        let lines = kept.iter().filter_map(|entry| serde_json::to_string(entry).ok());
        let text: String = lines.map(|line| line + "\n").collect();
        let files = self.host.files();
        files.replace(&self.path, text.as_bytes(), 0o640, Durability::Unsynced)
    }
}

#[cfg(test)]
mod tests {
    use slurm::revision::ControllerUid;

    use super::*;

    fn entry(sequence: u64) -> Entry {
        let revision = Summary {
            sequence,
            controller: ControllerUid::new("a").unwrap(),
            digest: Digest::of(b""),
            files: std::collections::BTreeMap::new(),
        };
        Entry::new(&Host::real(), &revision, Phase::Swapped, None)
    }

    #[test]
    fn the_last_steps_are_kept() {
        let directory = tempfile::tempdir().unwrap();
        let journal = Journal::new(&Host::real(), directory.path());
        assert_eq!(journal.entries(), []);
        for sequence in 1..=50 {
            journal.note(entry(sequence)).unwrap();
        }
        let entries = journal.entries();
        assert_eq!(entries.len(), KEPT);
        assert_eq!(entries.last().unwrap().sequence, 50);
    }

    #[test]
    fn a_torn_line_is_passed_over() {
        let directory = tempfile::tempdir().unwrap();
        let journal = Journal::new(&Host::real(), directory.path());
        journal.note(entry(1)).unwrap();
        let text = std::fs::read_to_string(&journal.path).unwrap();
        std::fs::write(&journal.path, format!("{text}{}", &text[..20])).unwrap();
        journal.note(entry(2)).unwrap();
        let sequences: Vec<u64> = journal.entries().iter().map(|entry| entry.sequence).collect();
        assert_eq!(sequences, [1, 2]);
    }
}
