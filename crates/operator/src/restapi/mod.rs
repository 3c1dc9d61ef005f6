//! RestApi: slurmrestd, by which programs reach a cluster.

mod build;
mod observe;
mod plan;
mod references;
#[cfg(test)]
mod tests;

use std::sync::Arc;

use api::{Condition, RestApi, RestApiStatus};

use self::{observe::Observed, plan::Plan};
use crate::{
    finding::Finding,
    kind::{Kind, KindReconciler, Progress, Report},
    references::References,
    runtime::{Applied, Context, Writer},
};

pub(crate) type RestApiReconciler = KindReconciler<RestApi>;

impl Kind for RestApi {
    const NAME: &'static str = "restapi";
    type Observed = Observed;
    type Plan = Plan;
    type Status = RestApiStatus;

    fn references() -> References<Self> {
        references::references()
    }

    async fn observe(rest_api: Arc<Self>, context: &Context) -> Observed {
        observe::observe(rest_api, &context.caches, context.defaults.images.clone())
    }

    fn object(observed: &Observed) -> &Arc<Self> {
        &observed.rest_api
    }

    fn plan(observed: &Observed, findings: &mut Vec<Finding>) -> Plan {
        plan::plan(observed, findings)
    }

    async fn apply(_: &Context, writer: &Writer, _: &Observed, plan: &Plan) -> Applied {
        let mut applied = Applied::default();
        applied.apply(writer, plan.service.as_ref()).await;
        applied.apply(writer, plan.deployment.as_ref()).await;
        applied
    }

    fn progress(observed: &Observed, _: &Plan) -> Progress {
        let wanted = observed.rest_api.spec.replicas();
        Progress::of_deployment("slurmrestd", observed.deployment.as_deref(), wanted)
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

/// The children of the first RestApi among these objects, for the comparison with upstream's.
#[cfg(test)]
pub(crate) fn children_of(caches: &crate::runtime::Caches, images: &crate::defaults::Images) -> Vec<serde_json::Value> {
    let rest_api = caches.rest_apis.all().remove(0);
    let mut findings = Vec::new();
    let plan = plan::plan(&observe::observe(rest_api, caches, images.clone()), &mut findings);
    assert_eq!(findings, []);
    let service = plan
        .service
        .map(|service| serde_json::to_value(service).unwrap_or_default());
    let deployment = plan
        .deployment
        .map(|deployment| serde_json::to_value(deployment).unwrap_or_default());
    service.into_iter().chain(deployment).collect()
}
