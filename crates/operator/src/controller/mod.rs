//! Reconciles Controllers: a Slurm cluster's slurmctld, its configuration and its keys.

mod apply;
mod build;
mod observe;
mod plan;
mod references;
mod status;
#[cfg(test)]
mod tests;

use api::Controller;

use crate::{
    configuration::report::held_before,
    references::References,
    runtime::{Change, Context, Error, Key, Outcome, Reconciler, State, Writer},
};

pub(crate) use observe::{referenced_config_maps, refers_to};

/// Brings Controllers to the state that their specs declare.
#[derive(Debug)]
pub struct ControllerReconciler {
    context: Context,
    writer: Writer,
    references: References<Controller>,
}

impl ControllerReconciler {
    pub fn new(context: Context) -> Self {
        Self {
            writer: Writer::new::<Controller>(&context),
            references: references::references(),
            context,
        }
    }
}

impl Reconciler for ControllerReconciler {
    const NAME: &'static str = "controller";
    type Object = Controller;

    fn interested(&self, change: &Change) -> Vec<Key> {
        self.references.affected(change, &self.context.caches)
    }

    async fn reconcile(&self, key: &Key) -> Result<Outcome, Error> {
        let context = &self.context;
        let Some(controller) = context.caches.controllers.get(&key.namespace, &key.name) else {
            context.clusters.remove(key);
            return Ok(Outcome::settled());
        };
        let references = &self.references;
        references.load(&controller, &context.caches, &context.client).await?;
        let observed = observe::observe(&controller, context);
        if let Some((address, None)) = &observed.snapshot.external {
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
