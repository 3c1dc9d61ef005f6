//! Decides what to do about an Accounting, and builds its children. Pure.

use std::collections::BTreeMap;

use api::{
    Accounting,
    keys::{annotations, apps, components},
    references::SecretKeyRef,
    wellknown::{JWKS_FILE, JWT_KEY_FILE, SLURM_ETC_DIR, SLURM_KEY_FILE, SLURM_UID, SLURMDBD_CONF_FILE, SLURMDBD_PORT},
};
use k8s_openapi::{
    ByteString,
    api::{
        apps::v1::StatefulSet,
        core::v1::{Secret, Service},
    },
};
use serde_json::{Map, Value, json};
use slurm::{
    conf::{SlurmdbdConf, Storage, render_slurmdbd_conf},
    revision::Digest,
};

use super::observe::{Found, Observed};
use crate::{
    finding::Finding,
    reason,
    secret::{entry, missing},
    slurm_release,
    template::{
        component::{Component, Pods},
        container::{container, default_pull_policy, image_to_run, user_image},
        fields,
        metadata::Marks,
        service::{PortClash, plan_service},
    },
};

const ETC_VOLUME: &str = "slurm-etc";
const RUN_VOLUME: &str = "run";
/// For a slurmdbd that needs copies of the projected files.
const PRIVATE_ETC_VOLUME: &str = "slurm-etc-private";
const PROJECTED_DIR: &str = "/mnt/slurm";
const INITCONF: &str = "initconf";
/// Mode of projected files: only their owner reads the keys.
const PROJECTED_MODE: i32 = 0o600;

/// The children to apply.
#[derive(Clone, Debug, Default)]
pub(crate) struct Plan {
    pub(super) service: Option<Service>,
    /// slurmdbd.conf, which has the password in it.
    pub(super) config: Option<Secret>,
    pub(super) stateful_set: Option<StatefulSet>,
    /// slurmdbd is external: children of ours are deleted.
    pub(super) external: bool,
}

pub(super) fn plan(observed: &Observed, findings: &mut Vec<Finding>) -> Plan {
    let accounting = observed.accounting.as_ref();
    if accounting.spec.is_external() {
        return Plan {
            external: true,
            ..Plan::default()
        };
    }
    let service = plan_service(accounting.spec.service.as_ref(), build_service(accounting), findings);
    let (config, stateful_set) = plan_slurmdbd(observed, findings).unzip();
    Plan {
        service,
        config,
        stateful_set,
        external: false,
    }
}

/// slurmdbd.conf and the pod that reads it. They are not changed while something that they need is missing.
fn plan_slurmdbd(observed: &Observed, findings: &mut Vec<Finding>) -> Option<(Secret, StatefulSet)> {
    let accounting = observed.accounting.as_ref();
    let spec = &accounting.spec;
    let slurm_key = find(&observed.slurm_key, "spec.slurmKeyRef", findings);
    let jwt_key = find(&observed.jwt_key, "spec.jwtKeyRef", findings);
    let password = find(&observed.password, "spec.storageConfig.passwordKeyRef", findings);
    let other_key = observed.other_key.as_ref();
    findings.extend(other_key.map(|other| Finding::blocking(reason::KEY_MISMATCH, other)));
    if let Some(jwks) = &spec.jwks_key_ref {
        let data = observed.jwks.as_ref().and_then(|config_map| config_map.data.as_ref());
        if data.and_then(|data| data.get(&jwks.key)).is_none() {
            findings.push(Finding::blocking(
                reason::CONFIG_MAP_MISSING,
                format!(
                    "spec.jwksKeyRef names entry {:?} of ConfigMap {:?}, which does not exist; create it, or remove the reference",
                    jwks.key, jwks.name
                ),
            ));
        }
    }
    let (slurm_key, jwt_key, password) = (slurm_key?, jwt_key?, password?);
    let text = render(observed, password.1)
        .map_err(|finding| findings.push(finding))
        .ok()?;
    if !findings.is_empty() {
        return None;
    }
    let config = build_config(accounting, &text);
    let set = observed.stateful_set.as_ref();
    let running = set.and_then(|set| set.spec.as_ref()?.template.spec.as_ref());
    let ingredients = Ingredients {
        slurm_key: (slurm_key.0, Digest::of(slurm_key.1)),
        jwt_key: (jwt_key.0, Digest::of(jwt_key.1)),
        config: Digest::of(text.as_bytes()),
        image: image_to_run(
            spec.slurmdbd.as_ref(),
            running,
            apps::SLURMDBD,
            &observed.images.slurmdbd,
        ),
    };
    match build_stateful_set(accounting, &ingredients) {
        Ok(stateful_set) => Some((config, stateful_set)),
        Err(error) => {
            findings.push(Finding::invalid(format!(
                "spec.template.spec or spec.slurmdbd does not fit the PodSpec schema: {error}; correct it"
            )));
            None
        }
    }
}

/// slurmdbd.conf.
fn render(observed: &Observed, password: &[u8]) -> Result<String, Finding> {
    let field = "spec.storageConfig.passwordKeyRef";
    let accounting = observed.accounting.as_ref();
    let storage = accounting.spec.storage_config.clone().unwrap_or_default();
    let password = std::str::from_utf8(password).map_err(|_| {
        Finding::invalid(format!(
            "{field} names a password that is not text; give the database's user another one"
        ))
    })?;
    let conf = SlurmdbdConf {
        host: accounting.child_names().pod(),
        jwks: accounting.spec.jwks_key_ref.is_some(),
        storage: Storage {
            port: u16::try_from(storage.port()).unwrap_or_default(),
            user: storage.username.clone().filter(|user| !user.is_empty()),
            database: storage.database().to_owned(),
            // `kubectl create secret --from-file` keeps the end of the line.
            password: password.trim_end_matches(['\r', '\n']).to_owned(),
            host: storage.host,
        },
        extra: accounting.spec.extra_conf.clone().unwrap_or_default(),
    };
    render_slurmdbd_conf(&conf).map_err(|error| {
        Finding::invalid(format!(
            "{field} names a password that {error}, which slurmdbd.conf cannot hold; give the database's user another one"
        ))
    })
}

/// The reference to a Secret's entry, and its bytes.
fn find<'a>(found: &'a Found, field: &str, findings: &mut Vec<Finding>) -> Option<(&'a SecretKeyRef, &'a [u8])> {
    let Some(reference) = &found.reference else {
        findings.push(Finding::blocking(
            reason::CONTROLLER_MISSING,
            format!("{field} is absent, and no Controller whose key could be used refers to this object; set it, or name this object in a Controller's spec.accountingRef"),
        ));
        return None;
    };
    let secret = found.secret.as_deref();
    let bytes = entry(secret, &reference.key);
    if bytes.is_none() {
        let (names, remedy) = (format!("{field} names"), "create it, or name another");
        findings.push(missing(&names, reference, secret, remedy));
    }
    Some((reference, bytes?))
}

/// What a StatefulSet is built from besides the Accounting.
#[derive(Clone, Debug)]
struct Ingredients<'a> {
    slurm_key: (&'a SecretKeyRef, Digest),
    jwt_key: (&'a SecretKeyRef, Digest),
    /// Digest of slurmdbd.conf: slurmdbd reads it when it starts.
    config: Digest,
    image: String,
}

fn component(accounting: &Accounting) -> Component<'_, Accounting> {
    Component {
        object: accounting,
        app: apps::SLURMDBD,
        label: components::ACCOUNTING,
    }
}

/// The Service by which slurmctld and `sacctmgr` reach slurmdbd.
fn build_service(accounting: &Accounting) -> Result<Value, PortClash> {
    let (marks, name) = (Marks::of(&accounting.metadata), accounting.child_names().service());
    component(accounting).service(marks, name, SLURMDBD_PORT, accounting.spec.service.as_ref())
}

/// slurmdbd.conf, which is a Secret because it holds the database's password.
fn build_config(accounting: &Accounting, text: &str) -> Secret {
    let data = BTreeMap::from([(SLURMDBD_CONF_FILE.to_owned(), ByteString(text.as_bytes().to_vec()))]);
    Secret {
        metadata: component(accounting).meta(accounting.child_names().config_secret()),
        immutable: Some(false),
        type_: Some("Opaque".to_owned()),
        data: Some(data),
        ..Secret::default()
    }
}

fn build_stateful_set(accounting: &Accounting, ingredients: &Ingredients) -> Result<StatefulSet, serde_json::Error> {
    let names = accounting.child_names();
    let pods = Pods {
        annotations: vec![
            (annotations::SLURM_KEY_HASH, ingredients.slurm_key.1.to_string()),
            (annotations::JWT_KEY_HASH, ingredients.jwt_key.1.to_string()),
            (annotations::SLURMDBD_CONF_HASH, ingredients.config.to_string()),
        ],
        spec: build_pod_spec(accounting, ingredients),
        init_containers: private_etc(accounting, ingredients)
            .then(|| build_initconf(accounting, ingredients))
            .into_iter()
            .collect(),
        container: build_slurmdbd(accounting, ingredients),
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

/// Whether slurmdbd needs files that only their owner can read. A projected file is owned by root and readable for the group.
fn private_etc(accounting: &Accounting, ingredients: &Ingredients) -> bool {
    let image = user_image(accounting.spec.slurmdbd.as_ref()).unwrap_or(&ingredients.image);
    slurm_release::wants_private_slurmdbd_conf(image)
}

/// Copies the files for such a slurmdbd. Another configuration replaces the pod, so they need no update.
fn build_initconf(accounting: &Accounting, ingredients: &Ingredients) -> Map<String, Value> {
    let given = accounting.spec.slurmdbd.as_ref();
    let base = json!({
        "name": INITCONF,
        "image": user_image(given).unwrap_or(&ingredients.image),
        "imagePullPolicy": default_pull_policy(given),
        "command": ["sh", "-c", format!("umask 077 && cp -L {PROJECTED_DIR}/* {SLURM_ETC_DIR}/")],
        "volumeMounts": [
            { "mountPath": PROJECTED_DIR, "name": ETC_VOLUME, "readOnly": true },
            { "mountPath": SLURM_ETC_DIR, "name": PRIVATE_ETC_VOLUME },
        ],
    });
    container(base, None)
}

fn build_slurmdbd(accounting: &Accounting, ingredients: &Ingredients) -> Map<String, Value> {
    let given = accounting.spec.slurmdbd.as_ref();
    let etc = if private_etc(accounting, ingredients) {
        PRIVATE_ETC_VOLUME
    } else {
        ETC_VOLUME
    };
    let base = json!({
        "name": apps::SLURMDBD,
        "image": ingredients.image,
        "imagePullPolicy": default_pull_policy(given),
        "ports": [{ "containerPort": SLURMDBD_PORT, "name": apps::SLURMDBD, "protocol": "TCP" }],
        "readinessProbe": { "tcpSocket": { "port": SLURMDBD_PORT } },
        "securityContext": { "runAsNonRoot": true, "runAsUser": SLURM_UID, "runAsGroup": SLURM_UID },
        "volumeMounts": [
            { "mountPath": SLURM_ETC_DIR, "name": etc, "readOnly": true },
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
    let mut volumes = vec![
        json!({ "name": ETC_VOLUME, "projected": { "defaultMode": PROJECTED_MODE, "sources": sources } }),
        json!({ "name": RUN_VOLUME, "emptyDir": { "medium": "Memory" } }),
    ];
    if private_etc(accounting, ingredients) {
        volumes.push(json!({ "name": PRIVATE_ETC_VOLUME, "emptyDir": { "medium": "Memory" } }));
    }
    fields(json!({
        "automountServiceAccountToken": false,
        "securityContext": {
            "runAsNonRoot": true, "runAsUser": SLURM_UID, "runAsGroup": SLURM_UID, "fsGroup": SLURM_UID,
        },
        "volumes": volumes,
    }))
}
