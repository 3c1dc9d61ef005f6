//! Controller: a Slurm cluster's slurmctld, its configuration and its keys.

mod active;
mod apply;
mod build;
mod configuration;
mod fault;
mod history;
mod inputs;
mod joining;
mod kept;
mod lagging;
mod observe;
mod partitions;
mod plan;
mod pods;
mod push;
pub(crate) mod reason;
mod references;
mod retained;
mod revise;
mod since;
mod status;
#[cfg(test)]
mod tests;
mod tries;

use std::sync::Arc;

use api::{Controller, Partition};

pub(crate) use self::kept::Kept;
use crate::access::Follower;
use crate::key_mismatch::find_key_mismatch;
use crate::runtime::{Change, Context, Error, Key, Outcome, Reconciler, ServiceMonitor, State, Writer};

/// Brings Controllers to what their specs ask for.
#[derive(Debug)]
pub struct ControllerReconciler {
    context: Context,
    writer: Writer,
    pushers: push::Pushers,
    before: lagging::Before,
    since: since::Since,
    tries: tries::AllTries,
}

impl ControllerReconciler {
    pub fn new(context: Context) -> Self {
        Self {
            writer: Writer::new::<Controller>(&context),
            pushers: push::Pushers::new(&context),
            before: lagging::Before::default(),
            since: since::Since::default(),
            tries: tries::AllTries::default(),
            context,
        }
    }
}

impl Reconciler for ControllerReconciler {
    const NAME: &'static str = "controller";
    type Object = Controller;

    fn interested(&self, change: &Change) -> Vec<Key> {
        references::interested(change, &self.context.caches)
    }

    async fn reconcile(&self, key: &Key) -> Result<Outcome, Error> {
        let context = &self.context;
        let Some(controller) = context.caches.controllers.get(&key.namespace, &key.name) else {
            self.pushers.forget(key);
            self.before.forget(key);
            self.since.forget(key);
            self.tries.forget(key);
            context.outsides.forget(key);
            context.board.forget(key);
            context.access.follow_jobs(key, &Follower::Controller, false);
            return Ok(Outcome::settled());
        };
        let mut observed = observe::observe(
            Arc::clone(&controller),
            &context.caches,
            self.pushers.report(key),
            context.access.knowledge(key),
            context.defaults.images.clone(),
            context.definitions.outdated(),
            context.definitions.has::<ServiceMonitor>(),
        );
        observed.served = self.tries.served(key, &observed.report);
        observed.lives = self.since.note(key, &observed.report, context.clock.now());
        let outside = context
            .outsides
            .look_at(&controller, &context.caches, &context.clock, &context.triggers);
        if let Some(outside) = outside {
            observed.outside = outside.view();
            if observed.outside.is_none() {
                // It is being asked, and whoever asks wakes us.
                let why = format!("slurmctld at {} is looked at for the first time", outside.address);
                return Ok(State::Progressing { why }.into());
            }
        }
        let lagging = self.before.find_lagging(key, &observed, &observed.knowledge);
        observed.lagging = lagging.nodes;
        observed.key_mismatch = find_key_mismatch(&controller, &context.caches, &context.access, context.clock.now())
            .map(|mismatch| mismatch.message());
        let mut plan = plan::plan(&observed);
        if let Some(tried) = plan.tried.take() {
            self.tries.note(key, tried);
        }
        let history = history::build_history(&observed, &plan, context.clock.now());
        // Before the revision itself: whoever takes over in between writes both again.
        plan.config_maps.splice(0..0, history);
        context
            .access
            .follow_jobs(key, &Follower::Controller, plan.needs_answers);
        let look_again = context.warn(
            controller.as_ref(),
            plan.warnings(configuration::held_before(&observed)),
        );
        let applied = apply::apply(context, &self.writer, &self.pushers, &controller, &plan).await;
        for partition in context.board.publish(key, std::mem::take(&mut plan.standings)) {
            context.triggers.wake::<Partition>(partition);
        }
        let status = status::build_status(&observed, &plan, applied.failure().as_ref(), context.clock.now());
        let state = status::state(&observed, &plan);
        if let Some((reason, message)) = status::setback(&observed, &plan, &status) {
            context.events.warn(controller.as_ref(), reason, message);
        }
        let outcome = self.writer.finish(controller.as_ref(), status, applied, state).await?;
        let look_again = look_again
            .into_iter()
            .chain(plan.look_again())
            .chain(lagging.look_again);
        Ok(look_again.fold(outcome, Outcome::requeue))
    }
}
