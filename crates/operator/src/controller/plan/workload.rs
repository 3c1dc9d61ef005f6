//! Plans the cluster's keys and slurmctld's StatefulSet, and when it is not changed.

use std::sync::Arc;

use api::{references::SecretKeyRef, wellknown::STATE_VOLUME};
use k8s_openapi::api::{
    apps::v1::StatefulSet,
    core::v1::{Pod, Secret},
};
use kube::ResourceExt as _;
use slurm::revision::Digest;

use super::Effect;
use crate::{
    cluster::{deliver::JwtKey, pods},
    configuration::Outcome,
    controller::{
        build::stateful_set::{Ingredients, build_stateful_set},
        observe::Observed,
    },
    finding::{Blocks, Finding, is_blocked},
    parent::Parent,
    reason,
    secret::entry,
    template::metadata::Marks,
};

/// Both keys of the cluster.
#[derive(Clone)]
pub(super) struct Keys {
    slurm: Digest,
    jwt: Digest,
    pub(super) jwt_key: JwtKey,
}

/// Returns both keys if they exist, and the keys to generate. Reports those that are missing.
pub(super) fn plan_keys(observed: &Observed, findings: &mut Vec<Finding>) -> (Option<Keys>, Vec<SecretKeyRef>) {
    let controller = observed.inputs.controller.as_ref();
    let spec = &controller.spec;
    let mut new = Vec::new();
    let remedy = if spec.is_external() {
        "create it from the key of the cluster"
    } else {
        "create it, or remove the reference to have a key generated"
    };
    let mut find = |field: &str, reference: Option<SecretKeyRef>, given: bool, secret: Option<&Arc<Secret>>| {
        let reference = reference?;
        let SecretKeyRef { name, key, .. } = &reference;
        let missing = match secret.map(|secret| entry(Some(secret), key)) {
            Some(Some(bytes)) => return Some(bytes.to_vec()),
            Some(None) => format!(
                "spec.{field}.key names entry {key:?}, which Secret {name:?} does not have or has empty; add it, or name another one"
            ),
            None if given => format!("spec.{field}.name names Secret {name:?}, which does not exist; {remedy}"),
            None => {
                new.push(reference);
                return None;
            }
        };
        findings.push(Finding::new(Blocks::Pods, reason::SECRET_MISSING, missing));
        None
    };
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
    let keys = slurm.zip(jwt).map(|(slurm, jwt)| Keys {
        slurm: Digest::of(&slurm),
        jwt: Digest::of(&jwt),
        jwt_key: JwtKey(jwt),
    });
    (keys, new)
}

/// Plans slurmctld's StatefulSet, or the effect that must come first. `findings` are the earlier findings.
pub(super) fn plan_pods(
    observed: &Observed,
    parent: &Parent,
    keys: Option<&Keys>,
    configuration: &Outcome,
    findings: &[Finding],
) -> Result<(Option<StatefulSet>, Option<Effect>), Finding> {
    check_storage_change(observed, parent)?;
    // A pod without any configuration would only fail; it is created once there is one.
    let has_config = observed.inputs.bundle.is_some() || !configuration.config_maps.is_empty();
    let (Some(keys), true, false) = (keys, has_config, is_blocked(findings, Blocks::Pods)) else {
        return Ok((None, None));
    };
    let service = parent.names.internal_service();
    if let Some(set) = &observed.stateful_set
        && let Some(before) = set.spec.as_ref().and_then(|spec| spec.service_name.as_ref())
        && *before != service
        && set.metadata.deletion_timestamp.is_none()
    {
        let replace = Effect::DeleteStatefulSet {
            name: set.name_any(),
            uid: set.uid().unwrap_or_default(),
            why: format!("its Service is {before:?} and must be {service:?}, which cannot be changed in place"),
        };
        return Ok((None, Some(replace)));
    }
    let ingredients = Ingredients {
        slurm_key: keys.slurm,
        jwt_key: keys.jwt,
        config: configuration.restart,
        images: &observed.images,
        observed: observed.stateful_set.as_deref(),
        hold: is_held(observed),
    };
    let set = build_stateful_set(parent, &ingredients).map_err(|error| {
        Finding::new(
            Blocks::Pods,
            reason::INVALID_SPEC,
            format!("spec.template.spec, or an override of a container, does not fit the PodSpec schema: {error}; correct it"),
        )
    })?;
    Ok((Some(set), None))
}

/// Whether pods of another operator run, which must not be restarted just because this one took over. A new annotation
/// on the Controller, such as `restart-trigger`, requests a restart.
fn is_held(observed: &Observed) -> bool {
    let wanted = Marks::of_for_pods(&observed.inputs.controller.metadata).annotations;
    let untouched = |pod: &Pod| {
        wanted
            .iter()
            .all(|(key, value)| pod.annotations().get(key) == Some(value))
    };
    observed
        .inputs
        .pods
        .iter()
        .any(|pod| pods::is_ready(pod) && !pods::has_agent(pod) && untouched(pod))
}

/// Kubernetes does not allow a StatefulSet to change its claims, and the cluster's state would be lost.
fn check_storage_change(observed: &Observed, parent: &Parent) -> Result<(), Finding> {
    let set = observed.stateful_set.as_ref();
    let Some(spec) = set.and_then(|set| set.spec.as_ref()) else {
        return Ok(());
    };
    let describe = |has_own: bool, claim: Option<&str>| match claim {
        _ if has_own => "a claim of its own".to_owned(),
        Some(claim) => format!("claim {claim:?}"),
        None => "no volume".to_owned(),
    };
    let mut claims = spec.volume_claim_templates.iter().flatten();
    let mut volumes = spec.template.spec.iter().flat_map(|pod| pod.volumes.iter().flatten());
    let volume = volumes.find(|volume| volume.name == STATE_VOLUME);
    let claim = volume.and_then(|volume| Some(volume.persistent_volume_claim.as_ref()?.claim_name.as_str()));
    let before = describe(claims.any(|claim| claim.name_any() == STATE_VOLUME), claim);
    let wanted = &parent.controller.spec;
    let claim = wanted.existing_claim();
    let now = describe(claim.is_none() && wanted.is_persistent(), claim);
    if before == now {
        return Ok(());
    }
    Err(Finding::new(
        Blocks::Pods,
        reason::INVALID_SPEC,
        format!(
            "spec.persistence cannot be changed, because the cluster's state would be lost: it is on {before}, and the spec now requires {now}; set it back, or create another Controller"
        ),
    ))
}
