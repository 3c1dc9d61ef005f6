//! Owners of the workers' claims: with `whenDeleted: Delete` the NodeSet, so that they are deleted with it; else nothing.

use api::nodeset::ClaimRetention;
use kube::ResourceExt;

use super::{Effect, Plan};
use crate::nodeset::{build, observe::Observed};

pub(super) fn plan_owners(observed: &Observed, plan: &mut Plan) {
    let nodeset = observed.nodeset.as_ref();
    if nodeset.spec.claim_templates().is_empty() {
        return;
    }
    let owned = nodeset.spec.claims_when_deleted() == ClaimRetention::Delete;
    // A claim that a user created beforehand is used, and stays theirs.
    let ours = observed
        .claims
        .iter()
        .filter(|claim| build::is_made_for(nodeset, claim.as_ref()));
    for claim in ours {
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
