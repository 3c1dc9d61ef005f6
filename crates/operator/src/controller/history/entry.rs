//! One revision in the history, as text for people: a head of a few lines, and the difference.

use std::fmt::Write as _;

use jiff::Timestamp;
use slurm::agent::Action;

/// The most of Slurm's words.
const LONGEST_REASON: usize = 2000;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Accepted,
    Rejected,
}

impl Kind {
    /// The key of a revision's entry. Keys of a kind sort as their revisions do.
    pub(super) fn key(self, sequence: u64) -> String {
        format!("{}{sequence:08}", self.prefix())
    }

    pub(super) fn of(key: &str) -> Option<Self> {
        [Self::Accepted, Self::Rejected].into_iter().find(|kind| {
            key.strip_prefix(kind.prefix())
                .is_some_and(|number| number.parse::<u64>().is_ok())
        })
    }

    fn prefix(self) -> &'static str {
        match self {
            Self::Accepted => "accepted-",
            Self::Rejected => "rejected-",
        }
    }
}

pub(super) struct Entry<'a> {
    pub(super) sequence: u64,
    pub(super) digest: &'a str,
    pub(super) at: Timestamp,
    /// `None` for the first revision.
    pub(super) causes: Option<Vec<String>>,
    pub(super) took: Option<(u64, Action)>,
    /// By whom, and why.
    pub(super) refused: Option<(&'a str, &'a str)>,
    pub(super) difference: String,
}

pub(super) fn render_entry(entry: &Entry) -> String {
    let Entry {
        sequence,
        digest,
        at,
        causes,
        took,
        refused,
        difference,
    } = entry;
    let cause = match causes.as_deref() {
        None => "the first revision".to_owned(),
        Some([]) => "not known".to_owned(),
        Some(causes) => causes.join(", "),
    };
    let mut text = format!("revision: {sequence}\ndigest: {digest}\ntime: {at:.3}\ncause: {cause}\n");
    if let Some((milliseconds, action)) = took {
        let action = match action {
            Action::Nothing => "nothing to do",
            Action::PartitionRpc => "partitions by RPC",
            Action::Reconfigure => "a reconfigure",
            Action::Restart => "a restart",
            Action::Unknown => "an unknown action",
        };
        let action = if refused.is_some() { "" } else { &format!(", {action}") };
        let _ = writeln!(text, "took: {milliseconds} ms{action}");
    }
    if let Some((by, why)) = refused {
        let why: String = why.chars().take(LONGEST_REASON).collect();
        let _ = writeln!(text, "refused by: {by}\nreason: {why}");
    }
    text.push('\n');
    text.push_str(difference);
    text
}
