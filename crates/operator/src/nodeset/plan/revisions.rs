//! The revision history of a NodeSet.

use std::collections::BTreeSet;

use k8s_openapi::api::apps::v1::ControllerRevision;
use kube::ResourceExt;
use serde_json::Value;

use crate::{
    nodeset::{build, observe::Observed},
    worker::{ObjectId, Worker},
};

#[derive(Clone, Debug, PartialEq)]
pub struct RevisionPlan {
    /// Hash of the newest revision, which is on the pods.
    pub hash: String,
    /// How many hash collisions there were.
    pub collisions: i32,
    /// The newest revision, if it does not exist.
    pub create: Option<Value>,
    /// Name and new number of an older revision that is the newest again.
    pub renumber: Option<(String, i64)>,
    /// Unused revisions beyond the history limit.
    pub delete: Vec<ObjectId>,
}

pub(super) fn plan_revision(observed: &Observed) -> RevisionPlan {
    let nodeset = observed.nodeset.as_ref();
    let data = build::build_revision_data(nodeset);
    let mut history: Vec<&ControllerRevision> = observed.revisions.iter().map(AsRef::as_ref).collect();
    history.sort_by_key(|revision| (revision.revision, revision.name_any()));
    let newest = history.last().map_or(0, |revision| revision.revision);
    let collisions = nodeset
        .status
        .as_ref()
        .and_then(|status| status.collision_count)
        .unwrap_or(0);

    let same = history.iter().rev().find(|revision| {
        let stored = revision.data.as_ref().map(|data| &data.0);
        stored.is_some_and(|stored| build::makes_same_pods(stored, &data, &observed.environment.images))
            && build::hash_of(revision).is_some()
    });
    if let Some(revision) = same {
        let hash = build::hash_of(revision).unwrap_or_default().to_owned();
        let renumber = (revision.revision < newest).then(|| (revision.name_any(), newest.saturating_add(1)));
        return RevisionPlan {
            delete: surplus(observed, &history, &hash),
            hash,
            collisions,
            create: None,
            renumber,
        };
    }
    // Another revision may have the name; the next collision count gives another hash.
    let (collisions, hash) = (collisions..=collisions.saturating_add(1000))
        .map(|count| (count, build::hash(&data, count)))
        .find(|(_, hash)| {
            let name = build::revision_name(nodeset, hash);
            !observed.revisions.iter().any(|revision| revision.name_any() == name)
        })
        .unwrap_or_else(|| (collisions, build::hash(&data, collisions)));
    RevisionPlan {
        create: Some(build::build_revision(nodeset, &data, &hash, newest.saturating_add(1))),
        delete: surplus(observed, &history, &hash),
        hash,
        collisions,
        renumber: None,
    }
}

/// Returns the oldest unused revisions beyond the history limit.
fn surplus(observed: &Observed, history: &[&ControllerRevision], newest: &str) -> Vec<ObjectId> {
    let used: BTreeSet<&str> = observed
        .workers()
        .filter_map(Worker::revision)
        .chain([newest])
        .collect();
    let unused: Vec<&&ControllerRevision> = history
        .iter()
        .filter(|revision| build::hash_of(revision).is_none_or(|hash| !used.contains(hash)))
        .collect();
    let too_many = unused
        .len()
        .saturating_sub(observed.nodeset.spec.revision_history_limit());
    unused
        .into_iter()
        .take(too_many)
        .map(|revision| ObjectId {
            name: revision.name_any(),
            uid: revision.uid().unwrap_or_default(),
        })
        .collect()
}
