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
    let status = nodeset.status.as_ref();
    let collisions = status.and_then(|status| status.collision_count).unwrap_or(0);
    let same = history.iter().rev().find_map(|revision| {
        let stored = revision.data.as_ref().map(|data| &data.0)?;
        let hash = build::hash_of(revision)?;
        build::makes_same_pods(stored, &data, &observed.environment.images).then_some((revision, hash.to_owned()))
    });
    let next = newest.saturating_add(1);
    let mut renumber = None;
    let (collisions, hash) = if let Some((revision, hash)) = &same {
        renumber = (revision.revision < newest).then(|| (revision.name_any(), next));
        (collisions, hash.clone())
    } else {
        // Another revision may have the name; the next collision count gives another hash.
        let is_free = |name: String| !history.iter().any(|revision| revision.name_any() == name);
        (collisions..=collisions.saturating_add(1000))
            .map(|count| (count, build::hash(&data, count)))
            .find(|(_, hash)| is_free(build::revision_name(nodeset, hash)))
            .unwrap_or_else(|| (collisions, build::hash(&data, collisions)))
    };
    let create = same
        .is_none()
        .then(|| build::build_revision(nodeset, &data, &hash, next));
    RevisionPlan {
        delete: surplus(observed, &history, &hash),
        hash,
        collisions,
        create,
        renumber,
    }
}

/// Returns the oldest unused revisions beyond the history limit.
fn surplus(observed: &Observed, history: &[&ControllerRevision], newest: &str) -> Vec<ObjectId> {
    let on_pods = observed.workers().filter_map(Worker::revision);
    let used: BTreeSet<&str> = on_pods.chain([newest]).collect();
    let is_unused = |revision: &&&ControllerRevision| build::hash_of(revision).is_none_or(|hash| !used.contains(hash));
    let unused: Vec<&&ControllerRevision> = history.iter().filter(is_unused).collect();
    let limit = observed.nodeset.spec.revision_history_limit();
    let too_many = unused.len().saturating_sub(limit);
    let ids = unused.into_iter().take(too_many).map(|revision| ObjectId {
        name: revision.name_any(),
        uid: revision.uid().unwrap_or_default(),
    });
    ids.collect()
}
