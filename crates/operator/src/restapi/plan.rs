//! What is to be done about a RestApi. Pure.

use api::{Validate, keys::apps};
use k8s_openapi::api::{apps::v1::Deployment, core::v1::Service};

use super::{
    build::{build_deployment, build_service},
    observe::Observed,
};
use crate::{
    fault::{self, Fault},
    secret::entry,
    template::{container::image_to_run, service::plan_service},
};

/// What is to be done, and what is wrong.
#[derive(Clone, Debug, Default)]
pub(super) struct Plan {
    pub(super) faults: Vec<Fault>,
    pub(super) service: Option<Service>,
    pub(super) deployment: Option<Deployment>,
}

/// The Controller has no slurm.conf yet.
const CONFIG_MISSING: &str = "ConfigMissing";

pub(super) fn plan(observed: &Observed) -> Plan {
    let rest_api = observed.rest_api.as_ref();
    if rest_api.metadata.deletion_timestamp.is_some() {
        // Its children go with it.
        return Plan::default();
    }
    let mut faults = Fault::of(&rest_api.check());
    if !faults.is_empty() {
        return Plan {
            faults,
            ..Plan::default()
        };
    }
    let service = plan_service(build_service(rest_api), &mut faults);
    let deployment = plan_deployment(observed, &mut faults);
    Plan {
        faults,
        service,
        deployment,
    }
}

/// Pods whose slurm.conf or key is not there would only wait; what runs is left alone until they are.
fn plan_deployment(observed: &Observed, faults: &mut Vec<Fault>) -> Option<Deployment> {
    let rest_api = observed.rest_api.as_ref();
    let name = &rest_api.spec.controller_ref.name;
    let Some(controller) = observed.controller.as_deref() else {
        faults.push(Fault {
            reason: fault::CONTROLLER_MISSING,
            message: format!(
                "spec.controllerRef.name names Controller {name:?}, which does not exist; make it, or name another"
            ),
        });
        return None;
    };
    let key = controller.slurm_key();
    let has_key = key
        .as_ref()
        .is_none_or(|key| entry(observed.slurm_key.as_deref(), &key.key).is_some());
    if let Some(key) = key.filter(|_| !has_key) {
        faults.push(Fault {
            reason: fault::SECRET_MISSING,
            message: format!(
                "Controller {name:?} has its key in entry {:?} of Secret {:?}, which does not exist; make it, or look at the Controller's conditions",
                key.key, key.name
            ),
        });
    }
    if observed.config.is_none() {
        faults.push(Fault {
            reason: CONFIG_MISSING,
            message: format!("Controller {name:?} has no slurm.conf yet; look at its conditions"),
        });
    }
    if !faults.is_empty() {
        return None;
    }
    match build_deployment(rest_api, controller, &image(observed)) {
        Ok(deployment) => Some(deployment),
        Err(error) => {
            faults.push(Fault::invalid(format!(
                "spec.template.spec or spec.slurmrestd is not what Kubernetes has there: {error}; correct it"
            )));
            None
        }
    }
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
