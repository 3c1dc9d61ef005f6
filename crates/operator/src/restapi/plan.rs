//! Decides what to do about a RestApi. Pure.

use api::keys::apps;
use k8s_openapi::api::{apps::v1::Deployment, core::v1::Service};

use super::{
    build::{build_deployment, build_service},
    observe::Observed,
};
use crate::{
    finding::Finding,
    reason,
    secret::{entry, missing, missing_controller},
    template::{container::image_to_run, service::plan_service},
};

/// The children to apply.
#[derive(Clone, Debug, Default)]
pub(crate) struct Plan {
    pub(super) service: Option<Service>,
    pub(super) deployment: Option<Deployment>,
}

pub(super) fn plan(observed: &Observed, findings: &mut Vec<Finding>) -> Plan {
    Plan {
        service: plan_service(build_service(&observed.rest_api), findings),
        deployment: plan_deployment(observed, findings),
    }
}

/// Pods without slurm.conf or a key would only wait, so the Deployment is not changed until both exist.
fn plan_deployment(observed: &Observed, findings: &mut Vec<Finding>) -> Option<Deployment> {
    let rest_api = observed.rest_api.as_ref();
    let name = &rest_api.spec.controller_ref.name;
    let Some(controller) = observed.controller.as_deref() else {
        findings.push(missing_controller(name));
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
    let built = build_deployment(rest_api, controller, &image(observed));
    let invalid =
        |error| format!("spec.template.spec or spec.slurmrestd does not fit the PodSpec schema: {error}; correct it");
    built
        .map_err(|error| findings.push(Finding::invalid(invalid(error))))
        .ok()
}

/// The image for slurmrestd.
fn image(observed: &Observed) -> String {
    let spec = observed
        .deployment
        .as_ref()
        .and_then(|deployment| deployment.spec.as_ref());
    let running = spec.and_then(|spec| spec.template.spec.as_ref());
    let given = observed.rest_api.spec.slurmrestd.as_ref();
    image_to_run(given, running, apps::SLURMRESTD, &observed.images.slurmrestd)
}
