//! The children of a RestApi. Pure: values in, objects out.

use api::{
    Controller, RestApi,
    keys::{annotations, apps, components},
    wellknown::{SLURM_CONF_FILE, SLURM_ETC_DIR, SLURM_KEY_FILE, SLURMRESTD_PORT, SLURMRESTD_UID},
};
use k8s_openapi::api::apps::v1::Deployment;
use kube::ResourceExt as _;
use serde_json::{Map, Value, json};

use crate::template::{
    container::{container, default_pull_policy},
    fields,
    metadata::{Marks, Words, component_labels, owner, selector_labels},
    pod::PodTemplate,
    service::{PortClash, Service},
    set,
};

const ETC_VOLUME: &str = "slurm-etc";
/// Mode of projected files: nobody else reads the key.
const PROJECTED_MODE: i32 = 0o600;
/// What slurmrestd calls itself towards slurmctld when a request brings no token.
const DAEMON_TOKEN: &str = "daemon";
/// Neither works in a container without privileges.
const SECURITY: &str = "disable_unshare_files,disable_unshare_sysv";

fn selector(rest_api: &RestApi) -> Words {
    selector_labels(apps::SLURMRESTD, &rest_api.name_any())
}

fn labels(rest_api: &RestApi) -> Words {
    component_labels(apps::SLURMRESTD, &rest_api.name_any(), components::RESTAPI)
}

fn namespace(rest_api: &RestApi) -> String {
    rest_api.namespace().unwrap_or_default()
}

/// Leads clients to slurmrestd.
pub(super) fn build_service(rest_api: &RestApi) -> Result<Value, PortClash> {
    let template = rest_api.spec.service.as_ref();
    Service {
        // The RestApi's own marks are left out, as upstream does.
        meta: Marks::default()
            .and(template.and_then(|template| template.metadata.as_ref()))
            .label(&labels(rest_api))
            .into_meta(&namespace(rest_api), rest_api.child_names().service(), owner(rest_api)),
        selector: selector(rest_api),
        port_name: apps::SLURMRESTD,
        port: SLURMRESTD_PORT,
        headless: false,
    }
    .with(template)
}

pub(super) fn build_deployment(
    rest_api: &RestApi,
    controller: &Controller,
    image: &str,
) -> Result<Deployment, serde_json::Error> {
    let names = rest_api.child_names();
    let template = rest_api.spec.template.as_ref();
    let given = template.and_then(|template| template.metadata.as_ref());
    let marks = Marks::of(&rest_api.metadata).and(given).label(&labels(rest_api));
    let mut meta = Marks::of_for_pods(&rest_api.metadata)
        .and(given)
        .label(&labels(rest_api))
        .annotate(annotations::DEFAULT_CONTAINER, apps::SLURMRESTD)
        .into_template_meta();
    meta.name = Some(names.deployment());
    meta.namespace = rest_api.namespace();
    let pod = PodTemplate {
        meta,
        spec: build_pod_spec(controller),
        init_containers: Vec::new(),
        containers: vec![build_slurmrestd(rest_api, controller, image)],
    };
    serde_json::from_value(json!({
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": marks.into_meta(&namespace(rest_api), names.deployment(), owner(rest_api)),
        "spec": {
            "replicas": rest_api.spec.replicas(),
            "revisionHistoryLimit": 0,
            "selector": { "matchLabels": selector(rest_api) },
            "template": pod.with(template.and_then(|template| template.spec.as_ref())),
        },
    }))
}

fn build_slurmrestd(rest_api: &RestApi, controller: &Controller, image: &str) -> Map<String, Value> {
    let probe = || json!({ "tcpSocket": { "port": SLURMRESTD_PORT } });
    let patient = || json!({ "tcpSocket": { "port": SLURMRESTD_PORT }, "failureThreshold": 6, "periodSeconds": 10 });
    let mut base = fields(json!({
        "name": apps::SLURMRESTD,
        "image": image,
        "imagePullPolicy": default_pull_policy(rest_api.spec.slurmrestd.as_ref()),
        "env": [
            { "name": "SLURM_JWT", "value": DAEMON_TOKEN },
            { "name": "SLURMRESTD_SECURITY", "value": SECURITY },
        ],
        "ports": [{ "containerPort": SLURMRESTD_PORT, "name": apps::SLURMRESTD, "protocol": "TCP" }],
        "startupProbe": patient(),
        "livenessProbe": patient(),
        "readinessProbe": probe(),
        "securityContext": { "runAsNonRoot": true, "runAsUser": SLURMRESTD_UID, "runAsGroup": SLURMRESTD_UID },
        "volumeMounts": [{ "mountPath": SLURM_ETC_DIR, "name": ETC_VOLUME, "readOnly": true }],
    }));
    // Without slurmdbd its part of the API only gives errors.
    if controller.spec.accounting_name().is_none() {
        set(&mut base, "args", json!(["-s", "openapi/slurmctld"]));
    }
    let mut slurmrestd = container(base.into(), rest_api.spec.slurmrestd.as_ref());
    // The address to listen on has no option and comes last.
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
