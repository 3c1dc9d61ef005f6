//! Builds the children of a LoginSet. Pure.

use std::collections::BTreeMap;

use api::{
    Controller, LoginSet,
    keys::{annotations, apps, components},
    references::SecretKeyRef,
    wellknown::{SLURM_ETC_DIR, SLURM_KEY_FILE, SLURM_USER, SSH_PORT, SSHD_CONFIG_FILE},
};
use k8s_openapi::{
    ByteString,
    api::{
        apps::v1::Deployment,
        core::v1::{ConfigMap, Secret},
    },
};
use kube::ResourceExt as _;
use serde_json::{Map, Value, json};
use slurm::revision::Digest;

use super::{
    files::WAIT_DIR,
    host_keys::{KINDS, private_file, public_file},
};
use crate::{
    conf_server::conf_server,
    template::{
        component::{Component, Pods},
        container::{container, default_pull_policy},
        fields,
        metadata::Marks,
        service::PortClash,
        set,
    },
};

/// The container that passes changed files to the running daemons.
pub(super) const RELOAD: &str = "reload";
pub(super) const INITCONF: &str = "initconf";

const ETC_VOLUME: &str = "slurm-etc";
const RUN_VOLUME: &str = "sackd-dir";
const CONFIG_VOLUME: &str = "slurm-config";
const KEYS_VOLUME: &str = "ssh-host-keys";
const SSH_VOLUME: &str = "ssh-config";
const SSSD_VOLUME: &str = "sssd-conf";
/// The files that the daemons read. The kubelet never updates a file that is mounted by itself, so they get copies.
const LIVE_VOLUME: &str = "login-files";

const AUTHORIZED_KEYS_FILE: &str = "authorized_keys";
const SSSD_CONF_FILE: &str = "sssd.conf";
const SACKD_OPTIONS: &str = "SACKD_OPTIONS";

const OWNER_ONLY: i32 = 0o600;
const EVERYBODY: i32 = 0o644;

/// The inputs of a Deployment besides the LoginSet.
#[derive(Clone, Debug)]
pub(super) struct Ingredients<'a> {
    pub(super) controller: &'a Controller,
    /// Digest of the auth/slurm key: sackd reads it when it starts.
    pub(super) slurm_key: Option<(SecretKeyRef, Digest)>,
    pub(super) host_keys: Digest,
    pub(super) cluster_domain: &'a str,
    pub(super) login_image: String,
    pub(super) initconf_image: String,
}

fn component(login_set: &LoginSet) -> Component<'_, LoginSet> {
    Component {
        object: login_set,
        app: apps::LOGIN,
        label: components::LOGIN,
    }
}

/// The port that sshd listens on: a port named `login` in the user's template replaces ours.
pub(super) fn ssh_port(login_set: &LoginSet) -> i64 {
    let ports = login_set.spec.login.as_ref().and_then(|login| login.get("ports"));
    let named = ports.and_then(Value::as_array).into_iter().flatten();
    let mut named = named.filter(|port| port.get("name").and_then(Value::as_str) == Some(apps::LOGIN));
    let port = named.find_map(|port| port.get("containerPort")?.as_i64());
    port.unwrap_or(i64::from(SSH_PORT))
}

/// The Service by which people reach the pods.
pub(super) fn build_service(login_set: &LoginSet) -> Result<Value, PortClash> {
    let (marks, name) = (Marks::of(&login_set.metadata), login_set.child_names().service());
    component(login_set).service(marks, name, SSH_PORT, login_set.spec.service.as_ref())
}

/// The host keys. The Secret is never changed, since SSH clients warn of changed host keys. It is not immutable, because
/// kubelets do not watch immutable Secrets, and the pods of a recreated LoginSet would get the old keys.
pub(super) fn build_host_keys(login_set: &LoginSet, files: Vec<(String, Vec<u8>)>) -> Secret {
    Secret {
        metadata: component(login_set).meta(login_set.child_names().ssh_host_keys_secret()),
        type_: Some("Opaque".to_owned()),
        data: Some(
            files
                .into_iter()
                .map(|(file, bytes)| (file, ByteString(bytes)))
                .collect(),
        ),
        ..Secret::default()
    }
}

/// sshd_config and root's authorized keys.
pub(super) fn build_ssh_config(login_set: &LoginSet, sshd_config: &str, authorized_keys: &str) -> ConfigMap {
    ConfigMap {
        metadata: component(login_set).meta(login_set.child_names().ssh_config_map()),
        immutable: Some(false),
        data: Some(BTreeMap::from([
            (SSHD_CONFIG_FILE.to_owned(), sshd_config.to_owned()),
            (AUTHORIZED_KEYS_FILE.to_owned(), authorized_keys.to_owned()),
        ])),
        ..ConfigMap::default()
    }
}

pub(super) fn build_deployment(
    login_set: &LoginSet,
    ingredients: &Ingredients,
) -> Result<Deployment, serde_json::Error> {
    let mut annotations = vec![(annotations::SSH_HOST_KEYS_HASH, ingredients.host_keys.to_string())];
    if let Some((_, digest)) = &ingredients.slurm_key {
        annotations.push((annotations::SLURM_KEY_HASH, digest.to_string()));
    }
    let pods = Pods {
        annotations,
        spec: build_pod_spec(login_set, ingredients),
        init_containers: vec![
            build_initconf(login_set, &ingredients.initconf_image),
            build_reload(login_set, &ingredients.login_image),
        ],
        container: build_login(login_set, ingredients),
        given: login_set.spec.template.as_ref(),
    };
    let mut spec = fields(json!({ "replicas": login_set.spec.replicas() }));
    if let Some(strategy) = &login_set.spec.strategy {
        set(&mut spec, "strategy", json!(strategy));
    }
    component(login_set).workload(login_set.child_names().deployment(), pods, spec)
}

fn build_login(login_set: &LoginSet, ingredients: &Ingredients) -> Map<String, Value> {
    let given = login_set.spec.login.as_ref();
    let conf_server = format!("--conf-server {}", conf_server(ingredients.controller));
    let mut mounts = vec![
        json!({ "mountPath": SLURM_ETC_DIR, "name": ETC_VOLUME, "readOnly": true }),
        json!({ "mountPath": "/run/slurm", "name": RUN_VOLUME }),
        json!({ "mountPath": WAIT_DIR, "name": LIVE_VOLUME, "subPath": "wait.d", "readOnly": true }),
    ];
    let file = |volume: &str, folder: &str, file: &str| json!({ "mountPath": format!("{folder}/{file}"), "name": volume, "subPath": file, "readOnly": true });
    for kind in KINDS {
        mounts.push(file(KEYS_VOLUME, "/etc/ssh", &private_file(kind)));
        mounts.push(file(KEYS_VOLUME, "/etc/ssh", &public_file(kind)));
    }
    mounts.push(file(LIVE_VOLUME, "/etc/ssh", SSHD_CONFIG_FILE));
    mounts.push(file(LIVE_VOLUME, "/root/.ssh", AUTHORIZED_KEYS_FILE));
    mounts.push(file(LIVE_VOLUME, "/etc/sssd", SSSD_CONF_FILE));
    let base = json!({
        "name": apps::LOGIN,
        "image": ingredients.login_image,
        "imagePullPolicy": default_pull_policy(given),
        "env": [{ "name": SACKD_OPTIONS, "value": conf_server }],
        "ports": [{ "containerPort": ssh_port(login_set), "name": apps::LOGIN, "protocol": "TCP" }],
        "readinessProbe": { "exec": { "command": ["test", "-S", "/run/slurm/sack.socket"] } },
        "volumeMounts": mounts,
    });
    let mut login = container(base, given);
    keep_conf_server(&mut login, &conf_server);
    login
}

/// Adds the user's options for sackd to ours: without `--conf-server` sackd has no cluster.
fn keep_conf_server(login: &mut Map<String, Value>, conf_server: &str) {
    let variables = login.get_mut("env").and_then(Value::as_array_mut);
    for variable in variables.into_iter().flatten() {
        let is_options = variable.get("name").and_then(Value::as_str) == Some(SACKD_OPTIONS);
        let Some(options) = variable.get("value").and_then(Value::as_str).filter(|_| is_options) else {
            continue;
        };
        if !options.contains("--conf-server") {
            let both = format!("{conf_server} {options}");
            if let Value::Object(variable) = variable {
                set(variable, "value", both);
            }
        }
    }
}

/// The mounts of containers that prepare files: the sources and the target.
fn file_mounts() -> Vec<Value> {
    vec![
        json!({ "mountPath": "/mnt/wanted/ssh", "name": SSH_VOLUME, "readOnly": true }),
        json!({ "mountPath": "/mnt/wanted/sssd", "name": SSSD_VOLUME, "readOnly": true }),
        json!({ "mountPath": "/mnt/live", "name": LIVE_VOLUME }),
    ]
}

fn build_initconf(login_set: &LoginSet, image: &str) -> Map<String, Value> {
    let given = login_set.spec.initconf.as_ref();
    let mut mounts = vec![
        json!({ "mountPath": "/mnt/etc/slurm", "name": ETC_VOLUME }),
        json!({ "mountPath": "/mnt/slurm", "name": CONFIG_VOLUME, "readOnly": true }),
        json!({ "mountPath": "/mnt/run/slurm", "name": RUN_VOLUME }),
    ];
    mounts.extend(file_mounts());
    let base = json!({
        "name": INITCONF,
        "image": image,
        "imagePullPolicy": default_pull_policy(given),
        "command": ["sh", "-c", include_str!("initconf.sh")],
        "env": [{ "name": "SLURM_USER", "value": SLURM_USER }],
        "volumeMounts": mounts,
    });
    container(base, given)
}

const RELOAD_SCRIPT: &str = concat!(
    include_str!("../template/sssd_readable.sh"),
    "\n",
    include_str!("reload.sh")
);

/// The container that reloads the daemons. It has the image of the login container, whose sshd validates sshd_config.
fn build_reload(login_set: &LoginSet, image: &str) -> Map<String, Value> {
    let mut mounts = file_mounts();
    mounts.push(json!({ "mountPath": "/mnt/keys", "name": KEYS_VOLUME, "readOnly": true }));
    mounts.push(json!({ "mountPath": "/mnt/run/slurm", "name": RUN_VOLUME, "readOnly": true }));
    let given = login_set.spec.login.as_ref();
    let own = |field: &str| given.and_then(|given| given.get(field)).cloned();
    let mut reload = fields(json!({
        "name": RELOAD,
        "image": own("image").unwrap_or_else(|| image.into()),
        "command": ["sh", "-c", RELOAD_SCRIPT],
        "restartPolicy": "Always",
        "volumeMounts": mounts,
    }));
    let policy = own("imagePullPolicy").or_else(|| default_pull_policy(given).map(Value::from));
    if let Some(policy) = policy {
        set(&mut reload, "imagePullPolicy", policy);
    }
    reload
}

fn build_pod_spec(login_set: &LoginSet, ingredients: &Ingredients) -> Map<String, Value> {
    let names = login_set.child_names();
    let service = ingredients.controller.child_names().workers_service();
    let search = format!(
        "{service}.{}.svc.{}",
        login_set.namespace().unwrap_or_default(),
        ingredients.cluster_domain
    );
    let memory = |name: &str| json!({ "name": name, "emptyDir": { "medium": "Memory" } });
    let projected = |name: &str, sources: Value| json!({ "name": name, "projected": { "defaultMode": OWNER_ONLY, "sources": sources } });
    let item = |file: &str, mode: i32| json!({ "key": file, "path": file, "mode": mode });
    let keys: Vec<Value> = KINDS
        .iter()
        .flat_map(|kind| {
            [
                item(&private_file(kind), OWNER_ONLY),
                item(&public_file(kind), EVERYBODY),
            ]
        })
        .collect();
    let slurm_key = ingredients.slurm_key.as_ref().map(
        |(key, _)| json!({ "secret": { "name": key.name, "items": [{ "key": key.key, "path": SLURM_KEY_FILE }] } }),
    );
    let sssd = &login_set.spec.sssd_conf_ref;
    let mut spec = fields(json!({
        "automountServiceAccountToken": false,
        "enableServiceLinks": false,
        "dnsConfig": { "searches": [search] },
        "volumes": [
            memory(ETC_VOLUME),
            memory(RUN_VOLUME),
            projected(CONFIG_VOLUME, slurm_key.into_iter().collect()),
            projected(KEYS_VOLUME, json!([{ "secret": { "name": names.ssh_host_keys_secret(), "items": keys } }])),
            projected(SSH_VOLUME, json!([{ "configMap": {
                "name": names.ssh_config_map(),
                "items": [item(SSHD_CONFIG_FILE, OWNER_ONLY), item(AUTHORIZED_KEYS_FILE, OWNER_ONLY)],
            } }])),
            projected(SSSD_VOLUME, json!([{ "secret": {
                "name": sssd.name,
                "items": [{ "key": sssd.key, "path": SSSD_CONF_FILE, "mode": OWNER_ONLY }],
            } }])),
            memory(LIVE_VOLUME),
        ],
    }));
    let template = login_set.spec.template.as_ref();
    let given = template.and_then(|template| template.spec.as_ref());
    // The container `reload` signals the daemons. In the host's PID namespace it sees them anyway.
    if !given.is_some_and(|given| given.is_set("hostPID")) {
        set(&mut spec, "shareProcessNamespace", true);
    }
    spec
}
