//! The cluster's keys: existing, to be generated, or missing.

use std::sync::Arc;

use api::references::SecretKeyRef;
use k8s_openapi::api::core::v1::Secret;
use slurm::revision::Digest;

use crate::{
    controller::{build::keys::NewKey, observe::Observed},
    finding::{Blocks, Finding},
    reason,
    secret::entry,
};

/// Both keys of the cluster.
#[derive(Clone)]
pub(super) struct Keys {
    pub(super) slurm: Digest,
    pub(super) jwt: Digest,
    pub(super) jwt_bytes: Vec<u8>,
}

/// Returns both keys if they exist, the keys to generate, and what is missing.
pub(super) fn plan_keys(observed: &Observed) -> (Option<Keys>, Vec<NewKey>, Vec<Finding>) {
    let controller = observed.inputs.controller.as_ref();
    let mut new = Vec::new();
    let mut findings = Vec::new();
    let remedy = if controller.spec.is_external() {
        "create it from the key of the cluster"
    } else {
        "create it, or remove the reference to have a key generated"
    };
    let mut find = |field: &str, reference: Option<SecretKeyRef>, given: bool, secret: Option<&Arc<Secret>>| {
        let reference = reference?;
        match secret {
            Some(secret) => {
                let bytes = entry(Some(secret), &reference.key).map(<[u8]>::to_vec);
                if bytes.is_none() {
                    findings.push(Finding::new(
                        Blocks::Pods,
                        reason::SECRET_MISSING,
                        format!(
                            "spec.{field}.key names entry {:?}, which Secret {:?} does not have or has empty; add it, or name another one",
                            reference.key, reference.name
                        ),
                    ));
                }
                bytes
            }
            None if given => {
                findings.push(Finding::new(
                    Blocks::Pods,
                    reason::SECRET_MISSING,
                    format!(
                        "spec.{field}.name names Secret {:?}, which does not exist; {remedy}",
                        reference.name
                    ),
                ));
                None
            }
            None => {
                new.push(NewKey {
                    secret: reference.name,
                    entry: reference.key,
                });
                None
            }
        }
    };
    let spec = &controller.spec;
    let slurm = find(
        "slurmKeyRef",
        controller.slurm_key(),
        spec.slurm_key_ref.is_some(),
        observed.slurm_key.as_ref(),
    );
    let jwt_field = if spec.jwt_key_ref.is_none() && spec.jwt_hs256_key_ref.is_some() {
        "jwtHs256KeyRef"
    } else {
        "jwtKeyRef"
    };
    let jwt = find(
        jwt_field,
        controller.jwt_key(),
        spec.effective_jwt_key_ref().is_some(),
        observed.jwt_key.as_ref(),
    );
    let keys = match (slurm, jwt) {
        (Some(slurm), Some(jwt)) => Some(Keys {
            slurm: Digest::of(&slurm),
            jwt: Digest::of(&jwt),
            jwt_bytes: jwt,
        }),
        _ => None,
    };
    (keys, new, findings)
}
