//! The last accepted and rejected revisions, as a ConfigMap for people: time, cause and difference. Pure.
//!
//! It is written together with the revision, and derived from facts rather than memory where possible: an accepted
//! revision is one that replaces the bundle, whichever leader pushed it.

mod cause;
mod difference;

use std::{collections::BTreeMap, fmt::Write as _, sync::Arc};

use api::configuration::RejectedBy;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::ConfigMap;
use slurm::{Revision, agent::Action, revision::Digest};

use self::{cause::find_causes, difference::render_difference};
use super::{Inputs, render::read_bundle};
use crate::{
    cluster::{
        Snapshot,
        deliver::{Files, FinishedPush, Rejection},
    },
    parent::Parent,
};

/// The number of entries of each kind.
const KEPT_ENTRIES: usize = 10;
/// The maximum length of Slurm's message.
const MAX_REASON: usize = 2000;

/// The keys of entries begin with one of these, and sort by sequence.
const ACCEPTED: &str = "accepted-";
const REJECTED: &str = "rejected-";

/// Returns the history with the pushes that finished since it was written. `None` if there are none. `replacement` is the
/// revision that is about to replace the bundle.
pub(crate) fn build_history(
    inputs: &Inputs,
    snapshot: &Snapshot,
    parent: &Parent,
    replacement: Option<&Revision>,
) -> Option<ConfigMap> {
    let noted = inputs.history.as_ref().and_then(|history| history.data.clone());
    let noted = noted.unwrap_or_default();
    let is_noted = |push: &Arc<FinishedPush>| noted.contains_key(&Entry::pushed(push).key());
    if replacement.is_none() && snapshot.report.finished.iter().all(is_noted) {
        return None;
    }
    let bundled = inputs.bundle.as_ref().and_then(|bundle| read_bundle(bundle));
    let mut before = bundled.as_ref().map(|revision| &revision.files);
    let mut entries = noted.clone();
    let pushed = snapshot.report.finished.iter().map(|push| Entry::pushed(push));
    let replaced = replacement.map(|revision| Entry {
        sequence: revision.sequence,
        digest: revision.digest(),
        files: &revision.files,
        at: inputs.now,
        push: None,
    });
    for entry in pushed.chain(replaced) {
        // The same files under another sequence are no change.
        if before != Some(entry.files) {
            entries
                .entry(entry.key())
                .or_insert_with(|| entry.render(inputs, before));
        }
        if entry.rejection().is_none() {
            before = Some(entry.files);
        }
    }
    let entries = newest(&entries);
    (entries != noted).then(|| ConfigMap {
        metadata: parent
            .marks()
            .into_meta(&parent.namespace, parent.names.history_config_map(), parent.owner()),
        data: Some(entries),
        ..ConfigMap::default()
    })
}

/// Returns the newest entries of both kinds, and no foreign ones.
fn newest(entries: &BTreeMap<String, String>) -> BTreeMap<String, String> {
    let of_kind = |kind: &'static str| {
        let is_number = |text: &str| text.parse::<u64>().is_ok();
        let newest_first = entries.iter().rev();
        newest_first
            .filter(move |(key, _)| key.strip_prefix(kind).is_some_and(is_number))
            .take(KEPT_ENTRIES)
    };
    let kept = [ACCEPTED, REJECTED].into_iter().flat_map(of_kind);
    kept.map(|(key, text)| (key.clone(), text.clone())).collect()
}

/// One revision in the history.
struct Entry<'a> {
    sequence: u64,
    digest: Digest,
    files: &'a Files,
    at: Timestamp,
    push: Option<&'a FinishedPush>,
}

impl<'a> Entry<'a> {
    fn pushed(push: &'a FinishedPush) -> Self {
        Self {
            sequence: push.sequence,
            digest: push.digest,
            files: &push.files,
            at: push.at,
            push: Some(push),
        }
    }

    fn rejection(&self) -> Option<&'a Rejection> {
        self.push?.rejection.as_ref()
    }

    fn key(&self) -> String {
        let kind = if self.rejection().is_some() { REJECTED } else { ACCEPTED };
        format!("{kind}{:08}", self.sequence)
    }

    /// The text for people: a header of a few lines, and the difference to the files before, if there were any.
    fn render(&self, inputs: &Inputs, before: Option<&Files>) -> String {
        let Self {
            sequence, digest, at, ..
        } = self;
        let cause = match before.map(|before| find_causes(inputs, before, self.files)).as_deref() {
            None => "the first revision".to_owned(),
            Some([]) => "not known".to_owned(),
            Some(causes) => causes.join(", "),
        };
        let mut text = format!("revision: {sequence}\ndigest: {digest}\ntime: {at:.3}\ncause: {cause}\n");
        if let Some(FinishedPush {
            milliseconds,
            action,
            rejection,
            ..
        }) = self.push
        {
            let action = match action {
                _ if rejection.is_some() => "",
                Action::Nothing => ", nothing to do",
                Action::PartitionRpc => ", partitions by RPC",
                Action::Reconfigure => ", a reconfigure",
                Action::Restart => ", a restart",
                Action::Unknown => ", an unknown action",
            };
            let _ = writeln!(text, "took: {milliseconds} ms{action}");
        }
        if let Some(rejection) = self.rejection() {
            let by = match rejection.by {
                RejectedBy::Slurmctld => "slurmctld, and rolled back",
                RejectedBy::Agent => "the agent",
                RejectedBy::DryRun | RejectedBy::Other(_) => "the dry run",
            };
            let why: String = rejection.why.chars().take(MAX_REASON).collect();
            let _ = writeln!(text, "refused by: {by}\nreason: {why}");
        }
        let difference = render_difference(before.unwrap_or(&Files::new()), self.files);
        format!("{text}\n{difference}")
    }
}
