//! Plans slurmctld's StatefulSet, and when it is not changed.

use api::wellknown::STATE_VOLUME;
use k8s_openapi::api::{apps::v1::StatefulSet, core::v1::Pod};
use kube::ResourceExt as _;

use super::{Effect, keys::Keys};
use crate::{
    cluster::pods,
    configuration::Outcome,
    controller::{
        build::{
            containers::Images,
            stateful_set::{Ingredients, build_stateful_set},
        },
        observe::Observed,
    },
    finding::{Blocks, Finding, is_blocked},
    parent::Parent,
    reason,
    template::metadata::Marks,
};

/// slurmctld's StatefulSet, or the effect that must come first.
#[derive(Debug, Default)]
pub(super) struct Workload {
    pub(super) stateful_set: Option<StatefulSet>,
    pub(super) replace: Option<Effect>,
    pub(super) findings: Vec<Finding>,
}

/// Plans the StatefulSet. `findings` are the earlier findings.
pub(super) fn plan_pods(
    observed: &Observed,
    parent: &Parent,
    keys: Option<&Keys>,
    configuration: &Outcome,
    findings: &[Finding],
) -> Workload {
    let mut workload = Workload {
        findings: check_storage_change(observed, parent).into_iter().collect(),
        ..Workload::default()
    };
    // A pod without any configuration would only fail; it is created once there is one.
    let has_config = observed.inputs.bundle.is_some() || !configuration.config_maps.is_empty();
    let (Some(keys), true) = (keys, has_config) else {
        return workload;
    };
    if is_blocked(findings, Blocks::Pods) || is_blocked(&workload.findings, Blocks::Pods) {
        return workload;
    }
    let service = parent.names.internal_service();
    if let Some(set) = &observed.stateful_set
        && let Some(before) = set
            .spec
            .as_ref()
            .and_then(|spec| spec.service_name.clone())
            .filter(|before| *before != service)
        && set.metadata.deletion_timestamp.is_none()
    {
        workload.replace = Some(Effect::DeleteStatefulSet {
            name: set.name_any(),
            uid: set.uid().unwrap_or_default(),
            why: format!("its Service is {before:?} and must be {service:?}, which cannot be changed in place"),
        });
        return workload;
    }
    let images = Images {
        operator: observed.images.operator.clone(),
        slurmctld: observed.images.slurmctld.clone(),
        logfile: observed.images.logfile.clone(),
    };
    let ingredients = Ingredients {
        slurm_key: keys.slurm,
        jwt_key: keys.jwt,
        config: configuration.restart,
        images: &images,
        observed: observed.stateful_set.as_deref(),
        hold: is_held(observed),
    };
    match build_stateful_set(parent, &ingredients) {
        Ok(set) => workload.stateful_set = Some(set),
        Err(error) => workload.findings.push(Finding::new(
            Blocks::Pods,
            reason::INVALID_SPEC,
            format!("spec.template.spec, or an override of a container, does not fit the PodSpec schema: {error}; correct it"),
        )),
    }
    workload
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
fn check_storage_change(observed: &Observed, parent: &Parent) -> Option<Finding> {
    let spec = observed.stateful_set.as_ref()?.spec.as_ref()?;
    let claims = spec
        .volume_claim_templates
        .iter()
        .flatten()
        .any(|claim| claim.name_any() == STATE_VOLUME);
    let volume = spec
        .template
        .spec
        .iter()
        .flat_map(|pod| pod.volumes.iter().flatten())
        .find(|volume| volume.name == STATE_VOLUME);
    let claim = volume.and_then(|volume| Some(volume.persistent_volume_claim.as_ref()?.claim_name.clone()));
    let before = if claims {
        "a claim of its own".to_owned()
    } else {
        claim.map_or_else(|| "no volume".to_owned(), |claim| format!("claim {claim:?}"))
    };
    let wanted = &parent.controller.spec;
    let now = match wanted.existing_claim() {
        Some(claim) => format!("claim {claim:?}"),
        None if wanted.is_persistent() => "a claim of its own".to_owned(),
        None => "no volume".to_owned(),
    };
    (before != now).then(|| {
        Finding::new(
            Blocks::Pods,
            reason::INVALID_SPEC,
            format!("spec.persistence cannot be changed, because the cluster's state would be lost: it is on {before}, and the spec now requires {now}; set it back, or create another Controller"),
        )
    })
}
