//! The StatefulSet of slurmctld.

use api::{
    IntOrString,
    claims::{ClaimSpec, Quantity},
    keys::annotations,
    wellknown::{JWT_KEY_FILE, SLURM_KEY_FILE, SLURM_UID, STATE_VOLUME},
};
use k8s_openapi::api::apps::v1::StatefulSet;
use kube::ResourceExt as _;
use serde_json::{Map, Value, json};
use slurm::revision::Digest;

use super::{
    component,
    containers::{build_containers, images_to_run, is_probed_by_http},
};
use crate::{
    cluster::deliver::JwtKey,
    defaults::{FORMER_LOGFILE_IMAGE, Images},
    layout::{
        AGENT_VOLUME, AUTH_SOCKET_VOLUME, BUNDLE_VOLUME, CANDIDATE_VOLUME, ETC_VOLUME, KEYS_MODE, KEYS_VOLUME,
        LIVE_VOLUME, LOG_VOLUME, PROJECTED_MODE, RUN_VOLUME,
    },
    parent::Parent,
    slurm_release::Release,
    template::{component::Pods, fields, metadata::Marks, tidy::tidy},
};

/// On the StatefulSet: digest of everything that is a reason to restart slurmctld.
pub(crate) const REASONS_ANNOTATION: &str = "slinky.slurm.net/restart-reasons";
/// On the StatefulSet: the version of the pod template it was built with.
pub(crate) const TEMPLATE_ANNOTATION: &str = "slinky.slurm.net/template-version";
/// Incremented with every change of the operator (not of a user) to the pod template. A pod with an older template is
/// kept until there is another reason to restart it: an upgrade of the operator restarts no slurmctld.
const TEMPLATE_VERSION: &str = "6";

/// The claim of the charts for slurmctld's state, and the default of a Controller without storage settings.
const DEFAULT_ACCESS_MODE: &str = "ReadWriteOnce";
const DEFAULT_STORAGE: &str = "4Gi";

/// Both keys of the cluster.
#[derive(Clone)]
pub(crate) struct Keys {
    pub(crate) slurm: Vec<u8>,
    pub(crate) jwt: JwtKey,
}

/// `config` is the digest of the configuration, if a change of it must restart slurmctld. `release` is that of the running slurmctld, if
/// it responded. `hold` keeps the running pods
/// although the template is new: another operator created them.
pub(crate) fn build_stateful_set(
    parent: &Parent,
    keys: &Keys,
    config: Option<Digest>,
    images: &Images,
    observed: Option<&StatefulSet>,
    release: Option<Release>,
    hold: bool,
) -> Result<StatefulSet, serde_json::Error> {
    let spec = &parent.controller.spec;
    let (component, given) = (component(parent), spec.template.as_ref());
    let mut digests = vec![
        (annotations::SLURM_KEY_HASH, Digest::of(&keys.slurm).to_string()),
        (annotations::JWT_KEY_HASH, Digest::of(&keys.jwt.0).to_string()),
    ];
    digests.extend(config.map(|config| (annotations::SLURM_CONFIG_HASH, config.to_string())));
    let reasons = digest_reasons(parent, component.pod_marks(&digests, given));

    let noted = |key: &str| observed?.annotations().get(key).map(String::as_str);
    let observed = observed.and_then(|set| set.spec.as_ref());
    let kept = observed.filter(|_| noted(REASONS_ANNOTATION) == Some(reasons.as_str()));
    let kept = kept.map(|spec| &spec.template);
    let running = kept.and_then(|template| template.spec.as_ref());
    let images = images_to_run(parent, running, images);
    let by_http = is_probed_by_http(parent, &images, running, release);
    let (init_containers, container) = build_containers(parent, &images, by_http);
    let pods = Pods {
        annotations: digests,
        spec: build_pod_spec(parent),
        init_containers,
        container,
        given,
    };
    let replicas = spec.replicas();
    let fields = fields(json!({
        "replicas": replicas,
        "serviceName": parent.names.internal_service(),
        "updateStrategy": {
            "type": "RollingUpdate",
            "rollingUpdate": { "partition": if hold { replicas } else { 0 } },
        },
        "volumeClaimTemplates": build_claims(parent),
    }));
    let mut set: StatefulSet = component.workload(parent.names.stateful_set(), pods, fields)?;

    let mut version = TEMPLATE_VERSION;
    if let (Some(observed), Some(spec)) = (observed, &mut set.spec) {
        // Kubernetes does not allow to change these; a cluster keeps the claim it was created with.
        let mut claims = observed.volume_claim_templates.clone().unwrap_or_default();
        for claim in &mut claims {
            claim.status = None;
        }
        spec.volume_claim_templates = Some(claims).filter(|claims| !claims.is_empty());
        let observed_version = noted(TEMPLATE_ANNOTATION).unwrap_or_default();
        if let Some(template) = kept.filter(|_| observed_version != TEMPLATE_VERSION) {
            spec.template.clone_from(template);
            version = observed_version;
        }
    }
    let noted = [(REASONS_ANNOTATION, reasons.as_str()), (TEMPLATE_ANNOTATION, version)];
    let noted = noted.map(|(key, value)| (key.to_owned(), value.to_owned()));
    set.metadata.annotations.get_or_insert_default().extend(noted);
    Ok(set)
}

fn build_pod_spec(parent: &Parent) -> Map<String, Value> {
    fields(json!({
        "automountServiceAccountToken": false,
        "securityContext": {
            "runAsNonRoot": true, "runAsUser": SLURM_UID, "runAsGroup": SLURM_UID, "fsGroup": SLURM_UID,
        },
        "affinity": { "podAntiAffinity": { "requiredDuringSchedulingIgnoredDuringExecution": [{
            "labelSelector": { "matchLabels": parent.selector() },
            "topologyKey": "kubernetes.io/hostname",
        }] } },
        "volumes": build_volumes(parent),
    }))
}

fn build_volumes(parent: &Parent) -> Vec<Value> {
    let Parent { controller, names, .. } = parent;
    let key = |reference: Option<api::references::SecretKeyRef>, file: &str| {
        reference.map(|reference| json!({ "secret": { "name": reference.name, "items": [{ "key": reference.key, "path": file }] } }))
    };
    let slurm_key = key(controller.slurm_key(), SLURM_KEY_FILE);
    let keys: Vec<Value> = slurm_key
        .into_iter()
        .chain(key(controller.jwt_key(), JWT_KEY_FILE))
        .collect();
    let config = json!({ "configMap": { "name": names.config_map() } });
    let etc: Vec<Value> = std::iter::once(config).chain(keys.clone()).collect();
    let mut volumes = vec![
        json!({ "name": ETC_VOLUME, "projected": { "defaultMode": PROJECTED_MODE, "sources": etc } }),
        json!({ "name": LOG_VOLUME, "emptyDir": { "medium": "Memory" } }),
        json!({ "name": RUN_VOLUME, "emptyDir": { "medium": "Memory" } }),
        json!({ "name": AUTH_SOCKET_VOLUME, "emptyDir": {} }),
        json!({ "name": LIVE_VOLUME, "emptyDir": { "medium": "Memory" } }),
        json!({ "name": KEYS_VOLUME, "projected": { "defaultMode": KEYS_MODE, "sources": keys } }),
        // Optional: a pod with state starts without it.
        json!({ "name": BUNDLE_VOLUME, "configMap": { "name": names.bundle_config_map(), "optional": true } }),
        json!({ "name": CANDIDATE_VOLUME, "configMap": { "name": names.candidate_config_map(), "optional": true } }),
        json!({ "name": AGENT_VOLUME, "emptyDir": {} }),
    ];
    if let Some(claim) = controller.spec.existing_claim() {
        volumes.push(json!({ "name": STATE_VOLUME, "persistentVolumeClaim": { "claimName": claim } }));
    } else if !controller.spec.is_persistent() {
        volumes.push(json!({ "name": STATE_VOLUME, "emptyDir": {} }));
    }
    volumes
}

/// The claim to create for slurmctld's state, if any.
fn build_claims(parent: &Parent) -> Option<Value> {
    let spec = &parent.controller.spec;
    if !spec.is_persistent() || spec.existing_claim().is_some() {
        return None;
    }
    let mut claim: ClaimSpec = spec
        .persistence
        .as_ref()
        .map(|persistence| persistence.claim.clone())
        .unwrap_or_default();
    if claim.access_modes.as_ref().is_none_or(Vec::is_empty) {
        claim.access_modes = Some(vec![DEFAULT_ACCESS_MODE.to_owned()]);
    }
    let requests = claim.resources.get_or_insert_default().requests.get_or_insert_default();
    let default = || Quantity(IntOrString::String(DEFAULT_STORAGE.to_owned()));
    requests.entry("storage".to_owned()).or_insert_with(default);
    let mut claim = fields(serde_json::to_value(claim).ok()?);
    tidy(&mut claim);
    Some(json!([{
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": { "name": STATE_VOLUME, "namespace": parent.namespace },
        "spec": claim,
    }]))
}

/// The container `logfile` as the charts had it before they left its image out: leaving it out restarts no slurmctld.
fn logfile_reasons(spec: &api::ControllerSpec) -> Option<Value> {
    let mut given = serde_json::to_value(spec.logfile.as_ref()?).ok()?;
    if let Some(given) = given.as_object_mut().filter(|given| !given.is_empty()) {
        given.entry("image").or_insert_with(|| FORMER_LOGFILE_IMAGE.into());
    }
    Some(given)
}

/// Digest of everything a user can change that requires another pod, without the operator's own changes.
fn digest_reasons(parent: &Parent, pod_marks: Marks) -> String {
    let spec = &parent.controller.spec;
    let Marks { labels, annotations } = pod_marks;
    let mut reasons = json!({
        "annotations": annotations,
        "clusterName": parent.controller.cluster_name(),
        "existingClaim": spec.existing_claim(),
        "keys": [spec.slurm_key_ref, spec.effective_jwt_key_ref()],
        "labels": labels,
        "logfile": logfile_reasons(spec),
        "persistent": spec.is_persistent(),
        "reconfigure": spec.reconfigure,
        "slurmctld": spec.slurmctld,
        "standbys": spec.replicas() > 1,
        "template": spec.template.as_ref().and_then(|template| template.spec.as_ref()),
    });
    reasons.sort_all_objects();
    Digest::of(reasons.to_string().as_bytes()).to_string()
}
