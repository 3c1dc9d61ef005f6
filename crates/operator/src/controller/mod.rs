//! Reconciles Controllers: a Slurm cluster's slurmctld, its configuration and its keys.

mod apply;
mod build;
mod observe;
mod plan;
mod status;
#[cfg(test)]
mod tests;

use std::sync::Arc;

use api::{
    Controller,
    keys::{apps, labels},
};
use k8s_openapi::api::core::v1::Pod;
use kube::{Resource, ResourceExt as _};

use crate::{
    cluster::ExternalState,
    configuration::report::held_before,
    runtime::{Caches, Change, Context, Delta, Error, Key, Outcome, Reconciler, State, Writer},
};

/// Brings Controllers to the state that their specs declare.
#[derive(Debug)]
pub struct ControllerReconciler {
    context: Context,
    writer: Writer,
}

impl ControllerReconciler {
    pub fn new(context: Context) -> Self {
        Self {
            writer: Writer::new(&context, Self::NAME),
            context,
        }
    }
}

impl Reconciler for ControllerReconciler {
    const NAME: &'static str = "controller";

    fn interested(&self, change: &Change, caches: &Caches) -> Vec<Key> {
        interested(change, caches)
    }

    async fn reconcile(&self, key: &Key) -> Result<Outcome, Error> {
        let context = &self.context;
        let Some(controller) = context.caches.controllers.get(&key.namespace, &key.name) else {
            context.clusters.remove(key);
            return Ok(Outcome::settled());
        };
        let observed = observe::observe(Arc::clone(&controller), context);
        if let ExternalState::Polling { address } = &observed.snapshot.external {
            // The end of the first poll wakes the Controller.
            let why = format!("slurmctld at {address} is polled for the first time");
            return Ok(State::Progressing { why }.into());
        }
        let plan = plan::plan(&observed);
        let requeue_after = context.warn(controller.as_ref(), plan.warnings(held_before(&observed.inputs)));
        let applied = apply::apply(context, &self.writer, &controller, &plan).await;
        let status = status::build_status(&observed, &plan, applied.failure().as_ref(), context.clock.now());
        let state = status::state(&observed, &plan);
        if let Some((reason, message)) = status::setback(&observed, &plan, &status) {
            context.events.warn(controller.as_ref(), reason, message);
        }
        let outcome = self.writer.finish(controller.as_ref(), status, applied, state).await?;
        let requeue_after = requeue_after
            .into_iter()
            .chain(plan.requeue_after())
            .chain(observed.snapshot.lagging.requeue_after);
        Ok(requeue_after.fold(outcome, Outcome::requeue))
    }
}

/// Returns the Controllers that a change may affect.
fn interested(change: &Change, caches: &Caches) -> Vec<Key> {
    match change {
        Change::Controller(delta) => {
            let mut keys: Vec<Key> = delta.key().into_iter().collect();
            // Two Controllers with the same cluster name conflict, and one of them may have released it.
            keys.extend(with(caches, |controller| {
                delta
                    .sides()
                    .any(|side| side.cluster_name() == controller.cluster_name())
            }));
            keys
        }
        Change::NodeSet(delta) => delta
            .sides()
            .map(|node_set| {
                Key::new(
                    node_set.namespace().unwrap_or_default(),
                    &node_set.spec.controller_ref.name,
                )
            })
            .collect(),
        // With a thousand Partitions, a reconcile for each status change would cost as much as the change itself.
        Change::Partition(delta) if delta.is_of_status() => Vec::new(),
        Change::Partition(delta) => delta
            .sides()
            .map(|partition| {
                Key::new(
                    partition.namespace().unwrap_or_default(),
                    &partition.spec.controller_ref.name,
                )
            })
            .collect(),
        Change::Accounting(delta) => named(caches, delta, |controller, name| {
            controller.spec.accounting_name() == Some(name)
        }),
        Change::Secret(delta) => named(caches, delta, |controller, name| {
            let keys = [controller.slurm_key(), controller.jwt_key()];
            keys.iter().flatten().any(|key| key.name == name)
        })
        .into_iter()
        .chain(change.owners::<Controller>())
        .collect(),
        Change::ConfigMap(delta) => named(caches, delta, |controller, name| {
            observe::referenced_config_maps(controller).any(|referenced| referenced == name)
        })
        .into_iter()
        .chain(change.owners::<Controller>())
        .collect(),
        Change::Claim(delta) => named(caches, delta, |controller, name| {
            controller.spec.existing_claim() == Some(name)
        }),
        Change::Pod(delta) => delta.sides().filter_map(|pod| cluster_of(pod)).collect(),
        Change::StatefulSet(_) | Change::Service(_) | Change::ServiceMonitor(_) => change.owners::<Controller>(),
        Change::LoginSet(_)
        | Change::RestApi(_)
        | Change::Token(_)
        | Change::Deployment(_)
        | Change::Revision(_)
        | Change::Budget(_)
        | Change::Node(_)
        | Change::Namespace(_) => Vec::new(),
    }
}

/// The Controller whose slurmctld this pod runs.
fn cluster_of(pod: &Pod) -> Option<Key> {
    let instance = pod.labels().get(labels::INSTANCE)?;
    let is_slurmctld = pod.labels().get(labels::NAME).is_some_and(|app| app == apps::SLURMCTLD);
    is_slurmctld.then(|| Key::new(pod.namespace().unwrap_or_default(), instance))
}

/// The Controllers in the namespace of the changed object that refer to it by this rule.
fn named<K: Resource<DynamicType = ()>>(
    caches: &Caches,
    delta: &Delta<K>,
    refers: impl Fn(&Controller, &str) -> bool,
) -> Vec<Key> {
    let Some(Key { namespace, name }) = delta.key() else {
        return Vec::new();
    };
    let controllers = caches.controllers.list(&namespace).into_iter();
    controllers
        .filter(|controller| refers(controller, &name))
        .map(|controller| Key::of(controller.as_ref()))
        .collect()
}

fn with(caches: &Caches, holds: impl Fn(&Controller) -> bool) -> Vec<Key> {
    let controllers = caches.controllers.all().into_iter();
    controllers
        .filter(|controller| holds(controller))
        .map(|controller| Key::of(controller.as_ref()))
        .collect()
}
