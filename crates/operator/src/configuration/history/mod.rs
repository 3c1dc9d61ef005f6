//! The last revisions that were accepted and refused, as a ConfigMap for people: when, for what cause, and what changed. Pure.
//!
//! It is written together with the revision it is about, and by what is found rather than remembered where that is possible:
//! an accepted revision is one that takes the bundle's place, whoever pushed it.

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

/// Of each kind.
const KEPT: usize = 10;

/// The history with what has come to its end since it was written. `None` if that is nothing.
pub(crate) fn build_history(
    inputs: &Inputs,
    snapshot: &Snapshot,
    parent: &Parent,
    config_maps: &[ConfigMap],
) -> Option<ConfigMap> {
    let noted = inputs.history.as_ref().and_then(|history| history.data.clone());
    let noted = noted.unwrap_or_default();
    let replacement = replacement(inputs, config_maps, parent);
    let is_noted = |ended: &Arc<FinishedPush>| noted.contains_key(&Happened::pushed(ended).key());
    if replacement.is_none() && snapshot.report.finished.iter().all(is_noted) {
        return None;
    }
    let accepted = inputs.bundle.as_ref().and_then(|bundle| read_bundle(bundle));
    let mut files = accepted.map(|revision| Arc::new(revision.files));
    let mut entries = noted.clone();
    for ended in &snapshot.report.finished {
        add(&mut entries, inputs, files.as_deref(), &Happened::pushed(ended));
        if ended.rejection.is_none() {
            files = Some(Arc::clone(&ended.files));
        }
    }
    if let Some(revision) = &replacement {
        let happened = Happened {
            sequence: revision.sequence,
            digest: revision.digest().to_string(),
            files: &revision.files,
            at: inputs.now,
            push: None,
        };
        add(&mut entries, inputs, files.as_deref(), &happened);
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

/// The revision that is about to take the bundle's place.
fn replacement(inputs: &Inputs, config_maps: &[ConfigMap], parent: &Parent) -> Option<Revision> {
    let name = parent.names.bundle_config_map();
    let next = config_maps.iter().find(|config_map| config_map.name_any() == name)?;
    let same = inputs
        .bundle
        .as_ref()
        .is_some_and(|bundle| bundle.binary_data == next.binary_data);
    if same { None } else { read_bundle(next) }
}

/// Something that may be worth an entry.
struct Happened<'a> {
    sequence: u64,
    digest: String,
    files: &'a Files,
    at: Timestamp,
    push: Option<&'a FinishedPush>,
}

impl<'a> Happened<'a> {
    fn pushed(ended: &'a FinishedPush) -> Self {
        Self {
            sequence: ended.sequence,
            digest: ended.digest.to_string(),
            files: &ended.files,
            at: ended.at,
            push: Some(ended),
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

fn add(entries: &mut BTreeMap<String, String>, inputs: &Inputs, before: Option<&Files>, happened: &Happened) {
    let key = happened.key();
    // The same bytes under another number are no change.
    if entries.contains_key(&key) || before == Some(happened.files) {
        return;
    }
    let nothing = Files::default();
    let entry = Entry {
        sequence: happened.sequence,
        digest: &happened.digest,
        at: happened.at,
        causes: before.map(|before| find_causes(inputs, before, happened.files)),
        took: happened.push.map(|push| (push.milliseconds, push.action)),
        refused: happened.rejection().map(|rejection| {
            let by = match rejection.by {
                RejectedBy::Slurmctld => "slurmctld, and rolled back",
                RejectedBy::Agent => "the agent",
                RejectedBy::DryRun | RejectedBy::Other(_) => "the dry run",
            };
            (by, rejection.why.as_str())
        }),
        difference: render_difference(before.unwrap_or(&nothing), happened.files),
    };
    entries.insert(key, render_entry(&entry));
}

/// Keys sort by the sequence, so the oldest come first. What somebody else put there goes.
fn forget_oldest(entries: &mut BTreeMap<String, String>) {
    entries.retain(|key, _| Kind::of(key).is_some());
    for kind in [Kind::Accepted, Kind::Rejected] {
        let keys: Vec<String> = entries
            .keys()
            .filter(|key| Kind::of(key) == Some(kind))
            .cloned()
            .collect();
        let surplus = keys.len().saturating_sub(KEPT);
        for key in keys.iter().take(surplus) {
            entries.remove(key);
        }
    }
}
