//! RestApi: slurmrestd, by which programs reach a cluster.

mod apply;
mod build;
mod observe;
mod plan;
mod references;
mod status;
#[cfg(test)]
mod tests;

use std::sync::Arc;

use api::RestApi;

use crate::{
    fault::Fault,
    runtime::{Change, Context, Error, Key, Outcome, Reconciler, Writer},
};

/// Brings RestApis to what their specs ask for.
#[derive(Debug)]
pub struct RestApiReconciler {
    context: Context,
    writer: Writer,
}

impl RestApiReconciler {
    pub fn new(context: Context) -> Self {
        Self {
            writer: Writer::new::<RestApi>(&context),
            context,
        }
    }
}

impl Reconciler for RestApiReconciler {
    const NAME: &'static str = "restapi";
    type Object = RestApi;

    fn interested(&self, change: &Change) -> Vec<Key> {
        references::interested(change, &self.context.caches)
    }

    async fn reconcile(&self, key: &Key) -> Result<Outcome, Error> {
        let context = &self.context;
        let Some(rest_api) = context.caches.rest_apis.get(&key.namespace, &key.name) else {
            return Ok(Outcome::settled());
        };
        let observed = observe::observe(
            Arc::clone(&rest_api),
            &context.caches,
            context.defaults.images.clone(),
            context.definitions.outdated(),
        );
        let plan = plan::plan(&observed);
        let look_again = context.warn(rest_api.as_ref(), plan.faults.iter().map(Fault::warning));
        let applied = apply::apply(&self.writer, &plan).await;
        let status = status::build_status(&observed, &plan, applied.failure().as_ref(), context.clock.now());
        let state = status::state(&observed, &plan);
        let outcome = self.writer.finish(rest_api.as_ref(), status, applied, state).await?;
        Ok(look_again.into_iter().fold(outcome, Outcome::requeue))
    }
}

/// The children of the first RestApi among these objects, for the comparison with upstream's.
#[cfg(test)]
pub(crate) fn children_of(caches: &crate::runtime::Caches, images: &crate::defaults::Images) -> Vec<serde_json::Value> {
    let rest_api = caches.rest_apis.all().remove(0);
    let plan = plan::plan(&observe::observe(rest_api, caches, images.clone(), Vec::new()));
    assert_eq!(plan.faults, []);
    let service = plan
        .service
        .map(|service| serde_json::to_value(service).unwrap_or_default());
    let deployment = plan
        .deployment
        .map(|deployment| serde_json::to_value(deployment).unwrap_or_default());
    service.into_iter().chain(deployment).collect()
}
