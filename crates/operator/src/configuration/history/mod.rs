//! The last accepted and rejected revisions, as a ConfigMap for people: time, cause and difference. Pure.
//!
//! It is written together with the revision, and derived from facts rather than memory where possible: an accepted
//! revision is one that replaces the bundle, whichever leader pushed it.

mod cause;
mod difference;
mod entry;

use std::{collections::BTreeMap, sync::Arc};

use api::configuration::RejectedBy;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::ResourceExt as _;
use slurm::Revision;

use self::{
    cause::find_causes,
    difference::render_difference,
    entry::{Entry, Kind, render_entry},
};
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

/// Returns the history with the pushes that finished since it was written. `None` if there are none.
pub(crate) fn build_history(
    inputs: &Inputs,
    snapshot: &Snapshot,
    parent: &Parent,
    config_maps: &[ConfigMap],
) -> Option<ConfigMap> {
    let noted = inputs.history.as_ref().and_then(|history| history.data.clone());
    let noted = noted.unwrap_or_default();
    let replacement = replacement(inputs, config_maps, parent);
    let is_noted = |push: &Arc<FinishedPush>| noted.contains_key(&HistoryEvent::pushed(push).key());
    if replacement.is_none() && snapshot.report.finished.iter().all(is_noted) {
        return None;
    }
    let accepted = inputs.bundle.as_ref().and_then(|bundle| read_bundle(bundle));
    let mut files = accepted.map(|revision| Arc::new(revision.files));
    let mut entries = noted.clone();
    for push in &snapshot.report.finished {
        add(&mut entries, inputs, files.as_deref(), &HistoryEvent::pushed(push));
        if push.rejection.is_none() {
            files = Some(Arc::clone(&push.files));
        }
    }
    if let Some(revision) = &replacement {
        let event = HistoryEvent {
            sequence: revision.sequence,
            digest: revision.digest().to_string(),
            files: &revision.files,
            at: inputs.now,
            push: None,
        };
        add(&mut entries, inputs, files.as_deref(), &event);
    }
    forget_oldest(&mut entries);
    (entries != noted).then(|| ConfigMap {
        metadata: parent
            .marks()
            .into_meta(&parent.namespace, parent.names.history_config_map(), parent.owner()),
        data: Some(entries),
        ..ConfigMap::default()
    })
}

/// The revision that is about to replace the bundle.
fn replacement(inputs: &Inputs, config_maps: &[ConfigMap], parent: &Parent) -> Option<Revision> {
    let name = parent.names.bundle_config_map();
    let next = config_maps.iter().find(|config_map| config_map.name_any() == name)?;
    let same = inputs
        .bundle
        .as_ref()
        .is_some_and(|bundle| bundle.binary_data == next.binary_data);
    if same { None } else { read_bundle(next) }
}

/// A candidate for an entry.
struct HistoryEvent<'a> {
    sequence: u64,
    digest: String,
    files: &'a Files,
    at: Timestamp,
    push: Option<&'a FinishedPush>,
}

impl<'a> HistoryEvent<'a> {
    fn pushed(push: &'a FinishedPush) -> Self {
        Self {
            sequence: push.sequence,
            digest: push.digest.to_string(),
            files: &push.files,
            at: push.at,
            push: Some(push),
        }
    }

    fn rejection(&self) -> Option<&Rejection> {
        self.push?.rejection.as_ref()
    }

    fn key(&self) -> String {
        let kind = match self.rejection() {
            Some(_) => Kind::Rejected,
            None => Kind::Accepted,
        };
        kind.key(self.sequence)
    }
}

fn add(entries: &mut BTreeMap<String, String>, inputs: &Inputs, before: Option<&Files>, event: &HistoryEvent) {
    let key = event.key();
    // The same files under another sequence are no change.
    if entries.contains_key(&key) || before == Some(event.files) {
        return;
    }
    let nothing = Files::default();
    let entry = Entry {
        sequence: event.sequence,
        digest: &event.digest,
        at: event.at,
        causes: before.map(|before| find_causes(inputs, before, event.files)),
        took: event.push.map(|push| (push.milliseconds, push.action)),
        refused: event.rejection().map(|rejection| {
            let by = match rejection.by {
                RejectedBy::Slurmctld => "slurmctld, and rolled back",
                RejectedBy::Agent => "the agent",
                RejectedBy::DryRun | RejectedBy::Other(_) => "the dry run",
            };
            (by, rejection.why.as_str())
        }),
        difference: render_difference(before.unwrap_or(&nothing), event.files),
    };
    entries.insert(key, render_entry(&entry));
}

/// Removes the oldest entries (keys sort by sequence) and foreign ones.
fn forget_oldest(entries: &mut BTreeMap<String, String>) {
    entries.retain(|key, _| Kind::of(key).is_some());
    for kind in [Kind::Accepted, Kind::Rejected] {
        let keys: Vec<String> = entries
            .keys()
            .filter(|key| Kind::of(key) == Some(kind))
            .cloned()
            .collect();
        let surplus = keys.len().saturating_sub(KEPT_ENTRIES);
        for key in keys.iter().take(surplus) {
            entries.remove(key);
        }
    }
}
