//! How far each change came, on the state volume: for the agent that starts in the middle of one, and for people.
//!
//! One line of JSON per step, the last few. It is written on the way and never waited for: whatever decides over a start
//! (the revisions, and which of them is [verified](crate::store::Store::verified)) is on the disk by itself, and an agent
//! that finds no journal, or an older one, goes by what it finds in the directories.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use slurm::agent::{Phase, Refused};
use slurm::revision::{Digest, Summary};

use crate::durable;

/// Four or five changes: the one that matters, and how it came there.
const KEPT: usize = 20;

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Entry {
    /// As RFC 3339 has it.
    pub when: String,
    pub sequence: u64,
    pub digest: Digest,
    pub step: Phase,
    /// What a dry run refused (`staged`), or what was rolled back to come here, and why.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub refused: Option<Refused>,
}

impl Entry {
    pub fn new(revision: &Summary, step: Phase, refused: Option<Refused>) -> Self {
        Self {
            when: Timestamp::now().to_string(),
            sequence: revision.sequence,
            digest: revision.digest,
            step,
            refused,
        }
    }
}

#[derive(Debug, Clone)]
pub struct Journal {
    pub(crate) path: PathBuf,
}

impl Journal {
    pub fn new(directory: &Path) -> Self {
        Self {
            path: directory.join("journal"),
        }
    }

    /// Oldest first. What cannot be read is left out.
    pub fn entries(&self) -> Vec<Entry> {
        let text = fs::read_to_string(&self.path).unwrap_or_default();
        text.lines()
            .filter_map(|line| serde_json::from_str(line).ok())
            .collect()
    }

    /// See [`Store::note`](crate::store::Store::note).
    pub(crate) fn note(&self, entry: Entry) -> io::Result<()> {
        let mut entries = self.entries();
        entries.push(entry);
        let (_, kept) = entries.split_at(entries.len().saturating_sub(KEPT));
        let mut text = String::new();
        for entry in kept {
            text.push_str(&serde_json::to_string(entry)?);
            text.push('\n');
        }
        durable::replace_unsynced(&self.path, text.as_bytes(), 0o640)
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
        Entry::new(&revision, Phase::Swapped, None)
    }

    #[test]
    fn the_last_steps_are_kept() {
        let directory = tempfile::tempdir().unwrap();
        let journal = Journal::new(directory.path());
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
        let journal = Journal::new(directory.path());
        journal.note(entry(1)).unwrap();
        let text = fs::read_to_string(&journal.path).unwrap();
        fs::write(&journal.path, format!("{text}{}", &text[..20])).unwrap();
        journal.note(entry(2)).unwrap();
        let sequences: Vec<u64> = journal.entries().iter().map(|entry| entry.sequence).collect();
        assert_eq!(sequences, [1, 2]);
    }
}
