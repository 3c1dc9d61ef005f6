//! The last steps of each change, on the state volume: for people, and for an agent that starts in the middle of a change.
//!
//! One line of JSON per step. It is not synced: what decides over a start (the revisions, and which of them is
//! [verified](crate::store::Store::verified)) is synced by itself, and an agent that finds no journal, or an old one, goes by
//! the directories.

use host::Host;
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

/// Returns the entries in a journal, oldest first. Lines that cannot be read are left out.
pub(crate) fn parse(journal: &str) -> Vec<Entry> {
    let lines = journal.lines();
    lines.filter_map(|line| serde_json::from_str(line).ok()).collect()
}

/// Returns the journal with another entry, and without the oldest ones.
pub(crate) fn append(journal: &str, entry: Entry) -> String {
    let mut entries = parse(journal);
    entries.push(entry);
    let (_, kept) = entries.split_at(entries.len().saturating_sub(KEPT));
    let lines = kept.iter().filter_map(|entry| serde_json::to_string(entry).ok());
    lines.map(|line| line + "\n").collect()
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
        let mut journal = String::new();
        assert_eq!(parse(&journal), []);
        for sequence in 1..=50 {
            journal = append(&journal, entry(sequence));
        }
        let entries = parse(&journal);
        assert_eq!(entries.len(), KEPT);
        assert_eq!(entries.last().unwrap().sequence, 50);
    }

    #[test]
    fn a_torn_line_is_skipped() {
        let text = append("", entry(1));
        let journal = append(&format!("{text}{}", &text[..20]), entry(2));
        let sequences: Vec<u64> = parse(&journal).iter().map(|entry| entry.sequence).collect();
        assert_eq!(sequences, [1, 2]);
    }
}
