//! Labels and annotations of running workers, and the owners of their claims. They are no reason to replace a worker, but
//! patched: after a takeover, after a change of the template's metadata, or when a label was removed that selects the pod.

use std::collections::BTreeMap;

use api::{
    keys::{annotations, apps, labels},
    nodeset::ClaimRetention,
};
use kube::ResourceExt;
use slurm::revision::Digest;

use super::{Effect, MetadataPatch, Plan, Situation};
use crate::nodeset::{build, observe::Observed};

pub(super) fn plan_marks(situation: &Situation<'_>, plan: &mut Plan) {
    let observed = situation.observed;
    let nodeset = observed.nodeset.as_ref();
    let given = nodeset.spec.pod_metadata().cloned().unwrap_or_default();
    let mut wanted_labels = given.labels.unwrap_or_default();
    wanted_labels.extend(build::worker_labels(nodeset));
    // [`super::cordon`] decides about this label.
    wanted_labels.remove(labels::POD_PROTECT);
    wanted_labels.insert(labels::SLINKY_COMPONENT.to_owned(), apps::SLURMD.to_owned());
    let mut wanted_annotations = given.annotations.unwrap_or_default();
    // The Kubernetes node decides about the topology.
    wanted_annotations.remove(annotations::TOPOLOGY);
    let sssd_conf = observed.sssd_conf.as_ref().map(|bytes| Digest::of(bytes).to_string());
    for worker in situation.workers() {
        wanted_labels.insert(labels::POD_NAME.to_owned(), worker.name().to_owned());
        let labels = changed(&wanted_labels, worker.0.labels());
        let mut annotations = changed(&wanted_annotations, worker.0.annotations());
        // The annotation makes the kubelet update the file at once; otherwise that takes a minute or more.
        if let Some(hash) = &sssd_conf
            && worker.annotation(annotations::SSSD_CONF_HASH) != Some(hash)
            && build::takes_changed_sssd_conf(worker.0)
        {
            annotations.insert(annotations::SSSD_CONF_HASH.to_owned(), Some(hash.clone()));
        }
        plan.mark(worker, labels, annotations);
    }
}

/// Returns the wanted entries that differ.
fn changed(wanted: &BTreeMap<String, String>, found: &BTreeMap<String, String>) -> MetadataPatch {
    let different = wanted.iter().filter(|(key, value)| found.get(*key) != Some(value));
    different
        .map(|(key, value)| (key.clone(), Some(value.clone())))
        .collect()
}

/// Plans the owner of the claims: with `whenDeleted: Delete` the NodeSet, so that they are deleted with it; else nothing.
pub(super) fn plan_claims(observed: &Observed, plan: &mut Plan) {
    let nodeset = observed.nodeset.as_ref();
    let owned = nodeset.spec.claims_when_deleted() == ClaimRetention::Delete;
    // A claim that a user created beforehand is used, and stays theirs.
    let claims = observed.claims.iter();
    for claim in claims.filter(|claim| build::is_made_for(nodeset, claim.as_ref())) {
        let owners = claim.owner_references();
        let is_owned = owners
            .iter()
            .any(|owner| Some(&owner.uid) == nodeset.metadata.uid.as_ref());
        // A claim with another controller is deleted with its pod, or is somebody else's.
        let is_others = owners.iter().any(|owner| owner.controller == Some(true)) && !is_owned;
        if is_owned != owned && !is_others {
            plan.effects.push(Effect::OwnClaim {
                name: claim.name_any(),
                uid: claim.uid().unwrap_or_default(),
                owned,
            });
        }
    }
}
