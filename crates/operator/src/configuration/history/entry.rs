//! One revision in the history, as text for people: a header of a few lines, and the difference.

use std::fmt::Write as _;

use jiff::Timestamp;
use slurm::agent::Action;

/// The maximum length of Slurm's message.
const MAX_REASON: usize = 2000;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Accepted,
    Rejected,
}

impl Kind {
    /// The key of a revision's entry. Keys of the same kind sort by sequence.
    pub(crate) fn key(self, sequence: u64) -> String {
        format!("{}{sequence:08}", self.prefix())
    }

    pub(crate) fn of(key: &str) -> Option<Self> {
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

pub(crate) struct Entry<'a> {
    pub(crate) sequence: u64,
    pub(crate) digest: &'a str,
    pub(crate) at: Timestamp,
    /// `None` for the first revision.
    pub(crate) causes: Option<Vec<String>>,
    pub(crate) took: Option<(u64, Action)>,
    /// Who rejected it, and why.
    pub(crate) refused: Option<(&'a str, &'a str)>,
    pub(crate) difference: String,
}

pub(crate) fn render_entry(entry: &Entry) -> String {
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
        let why: String = why.chars().take(MAX_REASON).collect();
        let _ = writeln!(text, "refused by: {by}\nreason: {why}");
    }
    text.push('\n');
    text.push_str(difference);
    text
}
