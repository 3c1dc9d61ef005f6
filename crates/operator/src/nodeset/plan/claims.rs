//! Owners of the workers' claims: with `whenDeleted: Delete` the NodeSet, so that they are deleted with it; else nothing.

use std::{collections::BTreeSet, sync::Arc};

use api::{keys::labels, nodeset::ClaimRetention};
use k8s_openapi::api::core::v1::PersistentVolumeClaim;
use kube::ResourceExt;

use super::{Effect, Plan};
use crate::{
    nodeset::{build, observe::Observed},
    worker::Worker,
};

pub(super) fn plan_owners(observed: &Observed, plan: &mut Plan) {
    let nodeset = observed.nodeset.as_ref();
    if nodeset.spec.claim_templates().is_empty() {
        return;
    }
    let owned = nodeset.spec.claims_when_deleted() == ClaimRetention::Delete;
    let ours: BTreeSet<String> = observed
        .workers()
        .filter_map(suffix_of)
        .flat_map(|suffix| build::claims_of(nodeset, suffix))
        .collect();
    // A claim that a user created beforehand is used, and stays theirs.
    let is_ours = |claim: &&Arc<PersistentVolumeClaim>| {
        ours.contains(&claim.name_any()) && build::is_made_for(nodeset, claim.as_ref())
    };
    for claim in observed.claims.iter().filter(is_ours) {
        let mut owners = claim.owner_references().iter();
        let is_owned = owners.any(|owner| Some(&owner.uid) == nodeset.metadata.uid.as_ref());
        // A claim with another controller is deleted with its pod, or is somebody else's.
        let is_others = claim
            .owner_references()
            .iter()
            .any(|owner| owner.controller == Some(true))
            && !is_owned;
        if is_owned != owned && !is_others {
            plan.effects.push(Effect::OwnClaim {
                name: claim.name_any(),
                uid: claim.uid().unwrap_or_default(),
                owned,
            });
        }
    }
}

/// Returns the suffix of the names of this worker's claims.
pub(super) fn suffix_of(worker: Worker<'_>) -> Option<&str> {
    worker
        .label(labels::POD_INDEX)
        .or_else(|| worker.label(labels::POD_HOSTNAME))
}
