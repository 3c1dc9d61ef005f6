//! RestApi: slurmrestd, by which programs reach a cluster.

mod apply;
mod build;
mod observe;
mod plan;
mod status;
#[cfg(test)]
mod tests;

use std::sync::Arc;

use api::{Controller, RestApi};
use kube::ResourceExt as _;

use crate::{
    fault::Fault,
    runtime::{Caches, Change, Context, Error, Key, Outcome, Reconciler, Writer},
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
            writer: Writer::new(&context, Self::NAME),
            context,
        }
    }
}

impl Reconciler for RestApiReconciler {
    const NAME: &'static str = "restapi";

    fn interested(&self, change: &Change, caches: &Caches) -> Vec<Key> {
        interested(change, caches)
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

/// The RestApis that a change may concern.
fn interested(change: &Change, caches: &Caches) -> Vec<Key> {
    match change {
        Change::RestApi(delta) => delta.key().into_iter().collect(),
        Change::Controller(delta) => delta.key().map(|key| of_controller(caches, &key)).unwrap_or_default(),
        Change::Secret(delta) => delta.key().map(|key| through_key(caches, &key)).unwrap_or_default(),
        // slurm.conf, whose absence is waited for.
        Change::ConfigMap(_) => {
            let controllers = change.owners::<Controller>();
            controllers.iter().flat_map(|key| of_controller(caches, key)).collect()
        }
        Change::Deployment(_) | Change::Service(_) => change.owners::<RestApi>(),
        Change::NodeSet(_)
        | Change::LoginSet(_)
        | Change::Accounting(_)
        | Change::Token(_)
        | Change::Pod(_)
        | Change::StatefulSet(_)
        | Change::Revision(_)
        | Change::Claim(_)
        | Change::Budget(_)
        | Change::Node(_)
        | Change::Namespace(_)
        | Change::ServiceMonitor(_)
        | Change::Partition(_) => Vec::new(),
    }
}

fn of_controller(caches: &Caches, controller: &Key) -> Vec<Key> {
    let rest_apis = caches.rest_apis.list(&controller.namespace).into_iter();
    rest_apis
        .filter(|rest_api| rest_api.spec.controller_ref.name == controller.name)
        .map(|rest_api| Key::new(rest_api.namespace().unwrap_or_default(), rest_api.name_any()))
        .collect()
}

/// The RestApis of Controllers that have their key in this Secret.
fn through_key(caches: &Caches, secret: &Key) -> Vec<Key> {
    let controllers = caches.controllers.list(&secret.namespace).into_iter();
    controllers
        .filter(|controller| controller.slurm_key().is_some_and(|key| key.name == secret.name))
        .flat_map(|controller| of_controller(caches, &Key::of(controller.as_ref())))
        .collect()
}

/// The children of the first RestApi among these objects, for the comparison with upstream's.
#[cfg(test)]
pub(crate) fn children_of(caches: &Caches, images: &crate::defaults::Images) -> Vec<serde_json::Value> {
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
