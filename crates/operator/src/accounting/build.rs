//! Builds the children of an Accounting. Pure.

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
use serde_json::{Map, Value, json};
use slurm::revision::Digest;

use crate::template::{
    component::{Component, Pods},
    container::{container, default_pull_policy},
    fields,
    metadata::Marks,
    service::PortClash,
};

const ETC_VOLUME: &str = "slurm-etc";
const RUN_VOLUME: &str = "run";
/// Mode of projected files: only their owner reads the keys.
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

fn component(accounting: &Accounting) -> Component<'_, Accounting> {
    Component {
        object: accounting,
        app: apps::SLURMDBD,
        label: components::ACCOUNTING,
    }
}

/// The Service by which slurmctld and `sacctmgr` reach slurmdbd.
pub(super) fn build_service(accounting: &Accounting) -> Result<Value, PortClash> {
    let (marks, name) = (Marks::of(&accounting.metadata), accounting.child_names().service());
    component(accounting).service(marks, name, SLURMDBD_PORT, accounting.spec.service.as_ref())
}

/// slurmdbd.conf, which is a Secret because it holds the database's password.
pub(super) fn build_config(accounting: &Accounting, text: &str) -> Secret {
    let data = BTreeMap::from([(SLURMDBD_CONF_FILE.to_owned(), ByteString(text.as_bytes().to_vec()))]);
    Secret {
        metadata: component(accounting).meta(accounting.child_names().config_secret()),
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
    let pods = Pods {
        annotations: vec![
            (annotations::SLURM_KEY_HASH, ingredients.slurm_key.1.to_string()),
            (annotations::JWT_KEY_HASH, ingredients.jwt_key.1.to_string()),
            (annotations::SLURMDBD_CONF_HASH, ingredients.config.to_string()),
        ],
        spec: build_pod_spec(accounting, ingredients),
        init_containers: Vec::new(),
        container: build_slurmdbd(accounting, &ingredients.image),
        given: accounting.spec.template.as_ref(),
    };
    let spec = fields(json!({
        "replicas": 1,
        "podManagementPolicy": "Parallel",
        "serviceName": names.service(),
        "updateStrategy": { "type": "RollingUpdate", "rollingUpdate": { "partition": 0 } },
    }));
    component(accounting).workload(names.stateful_set(), pods, spec)
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
