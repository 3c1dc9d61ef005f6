//! The history that the operator stores in a ConfigMap. Pure.

use std::collections::BTreeMap;

use serde::Serialize;

use crate::output::{Cell, Listed, Table, Tone};

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct Entry {
    pub(crate) revision: u64,
    pub(crate) accepted: bool,
    pub(crate) time: String,
    pub(crate) cause: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub(crate) took: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub(crate) refused_by: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub(crate) reason: String,
    /// The whole entry, with the diff.
    pub(crate) text: String,
}

impl Listed for Entry {
    fn object(&self) -> String {
        self.revision.to_string()
    }
}

/// Parses the history, newest last.
pub(super) fn read_history(entries: BTreeMap<String, String>) -> Vec<Entry> {
    let mut revisions: Vec<Entry> = entries
        .into_iter()
        .filter_map(|(key, text)| read_entry(&key, text))
        .collect();
    revisions.sort_by(|a, b| (a.revision, &a.time).cmp(&(b.revision, &b.time)));
    revisions
}

fn read_entry(key: &str, text: String) -> Option<Entry> {
    let (kind, number) = key.split_once('-')?;
    let head = text.split_once("\n\n").map_or(text.as_str(), |(head, _)| head);
    let field = |name: &str| {
        let mut lines = head.lines();
        let value = lines.find_map(|line| line.strip_prefix(name)?.strip_prefix(": "));
        value.unwrap_or_default().to_owned()
    };
    Some(Entry {
        revision: number.parse().ok()?,
        accepted: kind == "accepted",
        time: field("time"),
        cause: field("cause"),
        took: field("took"),
        refused_by: field("refused by"),
        reason: field("reason"),
        text,
    })
}

/// Returns all entries of a revision: one can be refused first and accepted later.
pub(super) fn find_revision(revisions: &[Entry], number: u64) -> Vec<&Entry> {
    revisions
        .iter()
        .filter(|revision| revision.revision == number)
        .collect()
}

pub(super) fn history_table(revisions: &[Entry]) -> Table {
    let mut table = Table::new(
        &["REVISION", "RESULT", "TIME", "CAUSE", "TOOK", "REASON"],
        &["REFUSED-BY"],
    );
    for revision in revisions {
        let result = if revision.accepted {
            Cell::toned("accepted", Tone::Good)
        } else {
            Cell::toned("refused", Tone::Bad)
        };
        table.row(vec![
            revision.revision.to_string().into(),
            result,
            revision.time.as_str().into(),
            revision.cause.as_str().into(),
            revision.took.as_str().into(),
            revision.reason.as_str().into(),
            revision.refused_by.as_str().into(),
        ]);
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn accepted_and_refused_revisions_are_in_one_list() {
        let accepted = "revision: 2\ndigest: ab\ntime: 2026-11-15T10:00:00.000Z\ncause: spec.extraConf\ntook: 84 ms, a reconfigure\n\n--- slurm.conf\n+time: none\n";
        let refused = "revision: 3\ndigest: cd\ntime: 2026-11-15T10:01:00.000Z\ncause: spec.extraConf\nrefused by: the dry run\nreason: no such node\n\n--- slurm.conf\n";
        let history = BTreeMap::from([
            ("rejected-00000003".to_owned(), refused.to_owned()),
            ("accepted-00000002".to_owned(), accepted.to_owned()),
            ("mine".to_owned(), "x".to_owned()),
        ]);
        let revisions = read_history(history);
        assert_eq!(
            history_table(&revisions).render(false, false),
            "REVISION   RESULT     TIME                       CAUSE            TOOK                   REASON\n\
             2          accepted   2026-11-15T10:00:00.000Z   spec.extraConf   84 ms, a reconfigure   -\n\
             3          refused    2026-11-15T10:01:00.000Z   spec.extraConf   -                      no such node\n"
        );
        assert_eq!(find_revision(&revisions, 3)[0].text, refused);
        assert!(find_revision(&revisions, 9).is_empty());
    }
}
