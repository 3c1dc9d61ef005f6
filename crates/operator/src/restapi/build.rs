//! Builds the children of a RestApi. Pure.

use api::{
    Controller, RestApi,
    keys::{apps, components},
    wellknown::{SLURM_CONF_FILE, SLURM_ETC_DIR, SLURM_KEY_FILE, SLURMRESTD_PORT, SLURMRESTD_UID},
};
use k8s_openapi::api::apps::v1::Deployment;
use serde_json::{Map, Value, json};

use crate::template::{
    component::{Component, Pods},
    container::{container, default_pull_policy},
    fields,
    metadata::Marks,
    service::PortClash,
    set,
};

const ETC_VOLUME: &str = "slurm-etc";
/// Mode of projected files: only their owner reads the key.
const PROJECTED_MODE: i32 = 0o600;
/// The token that slurmrestd uses for requests without one.
const DAEMON_TOKEN: &str = "daemon";
/// Both need privileges that the container does not have.
const SECURITY: &str = "disable_unshare_files,disable_unshare_sysv";

fn component(rest_api: &RestApi) -> Component<'_, RestApi> {
    Component {
        object: rest_api,
        app: apps::SLURMRESTD,
        label: components::RESTAPI,
    }
}

/// The Service by which clients reach slurmrestd. As upstream does, it does not carry the RestApi's own labels and
/// annotations.
pub(super) fn build_service(rest_api: &RestApi) -> Result<Value, PortClash> {
    let name = rest_api.child_names().service();
    component(rest_api).service(Marks::default(), name, SLURMRESTD_PORT, rest_api.spec.service.as_ref())
}

pub(super) fn build_deployment(
    rest_api: &RestApi,
    controller: &Controller,
    image: &str,
) -> Result<Deployment, serde_json::Error> {
    let pods = Pods {
        annotations: Vec::new(),
        spec: build_pod_spec(controller),
        init_containers: Vec::new(),
        container: build_slurmrestd(rest_api, controller, image),
        given: rest_api.spec.template.as_ref(),
    };
    let spec = fields(json!({ "replicas": rest_api.spec.replicas() }));
    component(rest_api).workload(rest_api.child_names().deployment(), pods, spec)
}

fn build_slurmrestd(rest_api: &RestApi, controller: &Controller, image: &str) -> Map<String, Value> {
    let probe = || json!({ "tcpSocket": { "port": SLURMRESTD_PORT } });
    let slow = || json!({ "tcpSocket": { "port": SLURMRESTD_PORT }, "failureThreshold": 6, "periodSeconds": 10 });
    let mut base = fields(json!({
        "name": apps::SLURMRESTD,
        "image": image,
        "imagePullPolicy": default_pull_policy(rest_api.spec.slurmrestd.as_ref()),
        "env": [
            { "name": "SLURM_JWT", "value": DAEMON_TOKEN },
            { "name": "SLURMRESTD_SECURITY", "value": SECURITY },
        ],
        "ports": [{ "containerPort": SLURMRESTD_PORT, "name": apps::SLURMRESTD, "protocol": "TCP" }],
        "startupProbe": slow(),
        "livenessProbe": slow(),
        "readinessProbe": probe(),
        "securityContext": { "runAsNonRoot": true, "runAsUser": SLURMRESTD_UID, "runAsGroup": SLURMRESTD_UID },
        "volumeMounts": [{ "mountPath": SLURM_ETC_DIR, "name": ETC_VOLUME, "readOnly": true }],
    }));
    // Without slurmdbd, slurmrestd's endpoints for it only return errors.
    if controller.spec.accounting_name().is_none() {
        set(&mut base, "args", json!(["-s", "openapi/slurmctld"]));
    }
    let mut slurmrestd = container(base.into(), rest_api.spec.slurmrestd.as_ref());
    // The address to listen on is not an option and comes last.
    let address = Value::from(format!("0.0.0.0:{SLURMRESTD_PORT}"));
    match slurmrestd.get_mut("args") {
        Some(Value::Array(args)) => args.push(address),
        _ => {
            set(&mut slurmrestd, "args", json!([address]));
        }
    }
    slurmrestd
}

fn build_pod_spec(controller: &Controller) -> Map<String, Value> {
    let names = controller.child_names();
    let item = |file: &str| json!([{ "key": file, "path": file }]);
    let mut sources = vec![json!({ "configMap": { "name": names.config_map(), "items": item(SLURM_CONF_FILE) } })];
    if let Some(key) = controller.slurm_key() {
        sources.push(json!({ "secret": { "name": key.name, "items": [{ "key": key.key, "path": SLURM_KEY_FILE }] } }));
    }
    fields(json!({
        "automountServiceAccountToken": false,
        "securityContext": {
            "runAsNonRoot": true, "runAsUser": SLURMRESTD_UID, "runAsGroup": SLURMRESTD_UID, "fsGroup": SLURMRESTD_UID,
        },
        "volumes": [{ "name": ETC_VOLUME, "projected": { "defaultMode": PROJECTED_MODE, "sources": sources } }],
    }))
}
