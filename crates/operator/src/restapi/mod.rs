//! RestApi: slurmrestd, by which programs reach a cluster.

#[cfg(test)]
mod tests;

use std::sync::Arc;

use api::{
    Condition, Controller, RestApi, RestApiStatus,
    keys::{apps, components},
    wellknown::{SLURM_CONF_FILE, SLURM_ETC_DIR, SLURM_KEY_FILE, SLURMRESTD_PORT, SLURMRESTD_UID},
};
use k8s_openapi::api::{
    apps::v1::Deployment,
    core::v1::{ConfigMap, Pod, Secret, Service},
};
use kube::ResourceExt as _;
use serde_json::{Map, Value, json};

use crate::{
    defaults::Images,
    finding::Finding,
    kind::{Kind, KindReconciler, Progress, Report},
    reason,
    references::{References, daemon_pods, key_secrets, select},
    runtime::{Applied, Caches, Context, Key, Writer},
    secret::{entry, missing, missing_controller, unreadable_controller},
    template::{
        component::{Component, Pods},
        container::{container, default_pull_policy, image_to_run},
        fields,
        metadata::Marks,
        service::{PortClash, plan_service},
        set,
    },
};

const ETC_VOLUME: &str = "slurm-etc";
/// Mode of projected files: only their owner reads the key.
const PROJECTED_MODE: i32 = 0o600;
/// The token that slurmrestd uses for requests without one.
const DAEMON_TOKEN: &str = "daemon";
/// Both need privileges that the container does not have.
const SECURITY: &str = "disable_unshare_files,disable_unshare_sysv";

pub(crate) type RestApiReconciler = KindReconciler<RestApi>;

/// Everything that a plan is made from.
#[derive(Clone, Debug)]
pub(crate) struct Observed {
    rest_api: Arc<RestApi>,
    /// The Controller that it names.
    controller: Option<Arc<Controller>>,
    /// Why the Controller is not known although it exists.
    unreadable_controller: Option<String>,
    /// The slurm.conf that slurmrestd reads.
    config: Option<Arc<ConfigMap>>,
    slurm_key: Option<Arc<Secret>>,
    deployment: Option<Arc<Deployment>>,
    pods: Vec<Arc<Pod>>,
    images: Images,
}

/// The children to apply.
#[derive(Clone, Debug, Default)]
pub(crate) struct Plan {
    service: Option<Service>,
    deployment: Option<Deployment>,
}

impl Kind for RestApi {
    const NAME: &'static str = "restapi";
    type Observed = Observed;
    type Plan = Plan;
    type Status = RestApiStatus;

    fn references() -> References<Self> {
        References::<Self>::new()
            .owns::<Deployment>()
            .owns::<Service>()
            .runs(apps::SLURMRESTD)
            .names::<Controller>(|rest_api, _| vec![rest_api.spec.controller_ref.name.clone()])
            .names::<Secret>(|rest_api, caches| {
                let namespace = rest_api.namespace().unwrap_or_default();
                let key = key_secrets(caches, &namespace, &rest_api.spec.controller_ref.name);
                key.into_iter().collect()
            })
            // slurmrestd is started when its Controller has a slurm.conf.
            .on::<ConfigMap>(|delta, caches| {
                let controllers = delta.owners::<Controller>();
                let of_controller = |controller: &Key| {
                    select(caches, &controller.namespace, |rest_api: &Self| {
                        rest_api.spec.controller_ref.name == controller.name
                    })
                };
                controllers.iter().flat_map(of_controller).collect()
            })
    }

    async fn observe(rest_api: Arc<Self>, context: &Context) -> Observed {
        observe(rest_api, &context.caches, context.defaults.images.clone())
    }

    fn object(observed: &Observed) -> &Arc<Self> {
        &observed.rest_api
    }

    fn plan(observed: &Observed, findings: &mut Vec<Finding>) -> Plan {
        let given = observed.rest_api.spec.service.as_ref();
        Plan {
            service: plan_service(given, build_service(&observed.rest_api), findings),
            deployment: plan_deployment(observed, findings),
        }
    }

    async fn apply(_: &Context, writer: &Writer, _: &Observed, plan: &Plan) -> Applied {
        let mut applied = Applied::default();
        applied.apply(writer, plan.service.as_ref()).await;
        applied.apply(writer, plan.deployment.as_ref()).await;
        applied
    }

    fn progress(observed: &Observed, _: &Plan) -> Progress {
        let wanted = observed.rest_api.spec.replicas();
        Progress::of_deployment("slurmrestd", observed.deployment.as_deref(), wanted).with_pods(&observed.pods)
    }

    fn conditions(&self) -> &[Condition] {
        self.status.as_ref().map_or(&[], |status| &status.conditions)
    }

    fn status(_: &Observed, _: &Plan, report: Report) -> RestApiStatus {
        RestApiStatus {
            conditions: report.conditions,
            observed_generation: report.observed_generation,
        }
    }
}

/// Reads what concerns this RestApi from the caches.
fn observe(rest_api: Arc<RestApi>, caches: &Caches, images: Images) -> Observed {
    let namespace = rest_api.namespace().unwrap_or_default();
    let controller = caches.controllers.get(&namespace, &rest_api.spec.controller_ref.name);
    let names = controller.as_ref().map(|controller| controller.child_names());
    let key = controller.as_ref().and_then(|controller| controller.slurm_key());
    Observed {
        unreadable_controller: unreadable_controller(caches, &namespace, &rest_api.spec.controller_ref.name),
        config: names.and_then(|names| caches.config_maps.get(&namespace, &names.config_map())),
        slurm_key: key.and_then(|key| caches.secrets.get(&namespace, &key.name)),
        deployment: caches
            .deployments
            .child_of(rest_api.as_ref(), &rest_api.child_names().deployment()),
        pods: daemon_pods(rest_api.as_ref(), caches, apps::SLURMRESTD),
        controller,
        rest_api,
        images,
    }
}

/// Pods without slurm.conf or a key would only wait, so the Deployment is not changed until both exist.
fn plan_deployment(observed: &Observed, findings: &mut Vec<Finding>) -> Option<Deployment> {
    let rest_api = observed.rest_api.as_ref();
    let name = &rest_api.spec.controller_ref.name;
    let Some(controller) = observed.controller.as_deref() else {
        findings.push(missing_controller(name, observed.unreadable_controller.as_deref()));
        return None;
    };
    let secret = observed.slurm_key.as_deref();
    if let Some(key) = controller.slurm_key().filter(|key| entry(secret, &key.key).is_none()) {
        let names = format!("Controller {name:?} has its key in");
        findings.push(missing(
            &names,
            &key,
            secret,
            "create it, or check the Controller's conditions",
        ));
    }
    if observed.config.is_none() {
        findings.push(Finding::blocking(
            reason::CONFIG_MISSING,
            format!("Controller {name:?} has no slurm.conf yet; check its conditions"),
        ));
    }
    if !findings.is_empty() {
        return None;
    }
    let deployed = observed.deployment.as_ref();
    let running = deployed.and_then(|deployment| deployment.spec.as_ref()?.template.spec.as_ref());
    let given = rest_api.spec.slurmrestd.as_ref();
    let image = image_to_run(given, running, apps::SLURMRESTD, &observed.images.slurmrestd);
    let built = build_deployment(rest_api, controller, &image);
    let invalid =
        |error| format!("spec.template.spec or spec.slurmrestd does not fit the PodSpec schema: {error}; correct it");
    built
        .map_err(|error| findings.push(Finding::invalid(invalid(error))))
        .ok()
}

fn component(rest_api: &RestApi) -> Component<'_, RestApi> {
    Component {
        object: rest_api,
        app: apps::SLURMRESTD,
        label: components::RESTAPI,
    }
}

/// The Service by which clients reach slurmrestd. As upstream does, it does not carry the RestApi's own labels and
/// annotations.
fn build_service(rest_api: &RestApi) -> Result<Value, PortClash> {
    let name = rest_api.child_names().service();
    component(rest_api).service(Marks::default(), name, SLURMRESTD_PORT, rest_api.spec.service.as_ref())
}

fn build_deployment(rest_api: &RestApi, controller: &Controller, image: &str) -> Result<Deployment, serde_json::Error> {
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

/// The children of the first RestApi among these objects, for the comparison with upstream's.
#[cfg(test)]
pub(crate) fn children_of(caches: &crate::runtime::Caches, images: &crate::defaults::Images) -> Vec<serde_json::Value> {
    let rest_api = caches.rest_apis.all().remove(0);
    let mut findings = Vec::new();
    let plan = RestApi::plan(&observe(rest_api, caches, images.clone()), &mut findings);
    assert_eq!(findings, []);
    let service = plan
        .service
        .map(|service| serde_json::to_value(service).unwrap_or_default());
    let deployment = plan
        .deployment
        .map(|deployment| serde_json::to_value(deployment).unwrap_or_default());
    service.into_iter().chain(deployment).collect()
}
