//! The children of an Accounting. Pure: values in, objects out.

use std::collections::BTreeMap;

use api::{
    Accounting,
    keys::{annotations, apps, components},
    references::SecretKeyRef,
    wellknown::{JWKS_FILE, JWT_KEY_FILE, SLURM_ETC_DIR, SLURM_KEY_FILE, SLURM_UID, SLURMDBD_CONF_FILE, SLURMDBD_PORT},
};
use k8s_openapi::{
    ByteString,
    api::{apps::v1::StatefulSet, core::v1::Secret},
};
use kube::ResourceExt as _;
use serde_json::{Map, Value, json};
use slurm::revision::Digest;

use crate::template::{
    container::{container, default_pull_policy},
    fields,
    metadata::{Marks, Words, component_labels, owner, selector_labels},
    pod::PodTemplate,
    service::{PortClash, Service},
};

const ETC_VOLUME: &str = "slurm-etc";
const RUN_VOLUME: &str = "run";
/// Mode of projected files: nobody else reads the keys.
const PROJECTED_MODE: i32 = 0o600;

/// What a StatefulSet is built from besides the Accounting.
#[derive(Clone, Debug)]
pub(super) struct Ingredients<'a> {
    pub(super) slurm_key: (&'a SecretKeyRef, Digest),
    pub(super) jwt_key: (&'a SecretKeyRef, Digest),
    /// Digest of slurmdbd.conf: slurmdbd reads it when it starts.
    pub(super) config: Digest,
    pub(super) image: String,
}

fn selector(accounting: &Accounting) -> Words {
    selector_labels(apps::SLURMDBD, &accounting.name_any())
}

fn labels(accounting: &Accounting) -> Words {
    component_labels(apps::SLURMDBD, &accounting.name_any(), components::ACCOUNTING)
}

fn namespace(accounting: &Accounting) -> String {
    accounting.namespace().unwrap_or_default()
}

/// Leads slurmctld and `sacctmgr` to slurmdbd.
pub(super) fn build_service(accounting: &Accounting) -> Result<Value, PortClash> {
    let template = accounting.spec.service.as_ref();
    Service {
        meta: Marks::of(&accounting.metadata)
            .and(template.and_then(|template| template.metadata.as_ref()))
            .label(&labels(accounting))
            .into_meta(
                &namespace(accounting),
                accounting.child_names().service(),
                owner(accounting),
            ),
        selector: selector(accounting),
        port_name: apps::SLURMDBD,
        port: SLURMDBD_PORT,
        headless: false,
    }
    .with(template)
}

/// slurmdbd.conf holds the database's password, so it is a Secret.
pub(super) fn build_config(accounting: &Accounting, text: &str) -> Secret {
    let data = BTreeMap::from([(SLURMDBD_CONF_FILE.to_owned(), ByteString(text.as_bytes().to_vec()))]);
    Secret {
        metadata: Marks::of(&accounting.metadata).label(&labels(accounting)).into_meta(
            &namespace(accounting),
            accounting.child_names().config_secret(),
            owner(accounting),
        ),
        immutable: Some(false),
        type_: Some("Opaque".to_owned()),
        data: Some(data),
        ..Secret::default()
    }
}

pub(super) fn build_stateful_set(
    accounting: &Accounting,
    ingredients: &Ingredients,
) -> Result<StatefulSet, serde_json::Error> {
    let names = accounting.child_names();
    let template = accounting.spec.template.as_ref();
    let given = template.and_then(|template| template.metadata.as_ref());
    let marks = Marks::of(&accounting.metadata).and(given).label(&labels(accounting));
    let mut meta = Marks::of_for_pods(&accounting.metadata)
        .and(given)
        .label(&labels(accounting))
        .annotate(annotations::SLURM_KEY_HASH, ingredients.slurm_key.1.to_string())
        .annotate(annotations::JWT_KEY_HASH, ingredients.jwt_key.1.to_string())
        .annotate(annotations::SLURMDBD_CONF_HASH, ingredients.config.to_string())
        .annotate(annotations::DEFAULT_CONTAINER, apps::SLURMDBD)
        .into_template_meta();
    meta.name = Some(names.stateful_set());
    meta.namespace = accounting.namespace();
    let pod = PodTemplate {
        meta,
        spec: build_pod_spec(accounting, ingredients),
        init_containers: Vec::new(),
        containers: vec![build_slurmdbd(accounting, &ingredients.image)],
    };
    serde_json::from_value(json!({
        "apiVersion": "apps/v1",
        "kind": "StatefulSet",
        "metadata": marks.into_meta(&namespace(accounting), names.stateful_set(), owner(accounting)),
        "spec": {
            "replicas": 1,
            "podManagementPolicy": "Parallel",
            "revisionHistoryLimit": 0,
            "selector": { "matchLabels": selector(accounting) },
            "serviceName": names.service(),
            "template": pod.with(template.and_then(|template| template.spec.as_ref())),
            "updateStrategy": { "type": "RollingUpdate", "rollingUpdate": { "partition": 0 } },
        },
    }))
}

fn build_slurmdbd(accounting: &Accounting, image: &str) -> Map<String, Value> {
    let given = accounting.spec.slurmdbd.as_ref();
    let base = json!({
        "name": apps::SLURMDBD,
        "image": image,
        "imagePullPolicy": default_pull_policy(given),
        "ports": [{ "containerPort": SLURMDBD_PORT, "name": apps::SLURMDBD, "protocol": "TCP" }],
        "readinessProbe": { "tcpSocket": { "port": SLURMDBD_PORT } },
        "securityContext": { "runAsNonRoot": true, "runAsUser": SLURM_UID, "runAsGroup": SLURM_UID },
        "volumeMounts": [
            { "mountPath": SLURM_ETC_DIR, "name": ETC_VOLUME, "readOnly": true },
            { "mountPath": "/run", "name": RUN_VOLUME },
        ],
    });
    container(base, given)
}

fn build_pod_spec(accounting: &Accounting, ingredients: &Ingredients) -> Map<String, Value> {
    let secret = |name: &str, entry: &str, file: &str| json!({ "secret": { "name": name, "items": [{ "key": entry, "path": file }] } });
    let key = |reference: &SecretKeyRef, file: &str| secret(&reference.name, &reference.key, file);
    let config = accounting.child_names().config_secret();
    let mut sources = vec![
        secret(&config, SLURMDBD_CONF_FILE, SLURMDBD_CONF_FILE),
        key(ingredients.slurm_key.0, SLURM_KEY_FILE),
        key(ingredients.jwt_key.0, JWT_KEY_FILE),
    ];
    if let Some(jwks) = &accounting.spec.jwks_key_ref {
        sources.push(json!({ "configMap": { "name": jwks.name, "items": [{ "key": jwks.key, "path": JWKS_FILE }] } }));
    }
    fields(json!({
        "automountServiceAccountToken": false,
        "securityContext": {
            "runAsNonRoot": true, "runAsUser": SLURM_UID, "runAsGroup": SLURM_UID, "fsGroup": SLURM_UID,
        },
        "volumes": [
            { "name": ETC_VOLUME, "projected": { "defaultMode": PROJECTED_MODE, "sources": sources } },
            { "name": RUN_VOLUME, "emptyDir": { "medium": "Memory" } },
        ],
    }))
}
