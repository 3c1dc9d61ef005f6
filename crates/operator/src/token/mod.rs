//! Token: a JSON web token for a Slurm user, kept fresh in a Secret.

mod apply;
mod build;
mod observe;
mod plan;
mod references;
mod status;
#[cfg(test)]
mod tests;

use std::sync::Arc;

use api::Token;

use crate::{
    fault::Fault,
    runtime::{Change, Context, Error, Key, Outcome, Reconciler, Writer},
};

/// Brings Tokens to what their specs ask for.
#[derive(Debug)]
pub struct TokenReconciler {
    context: Context,
    writer: Writer,
}

impl TokenReconciler {
    pub fn new(context: Context) -> Self {
        Self {
            writer: Writer::new::<Token>(&context),
            context,
        }
    }
}

impl Reconciler for TokenReconciler {
    const NAME: &'static str = "token";
    type Object = Token;

    fn interested(&self, change: &Change) -> Vec<Key> {
        references::interested(change, &self.context.caches)
    }

    async fn reconcile(&self, key: &Key) -> Result<Outcome, Error> {
        let context = &self.context;
        let Some(token) = context.caches.tokens.get(&key.namespace, &key.name) else {
            return Ok(Outcome::settled());
        };
        let now = context.clock.now();
        let observed = observe::observe(Arc::clone(&token), &context.caches, context.definitions.outdated());
        let plan = plan::plan(&observed, now);
        let look_again = context.warn(token.as_ref(), plan.faults.iter().map(Fault::warning));
        let applied = apply::apply(&self.writer, &token, &plan).await;
        let status = status::build_status(&observed, &plan, applied.failure().as_ref(), now);
        let state = status::state(&plan);
        let outcome = self.writer.finish(token.as_ref(), status, applied, state).await?;
        let renewal = plan.renew_after;
        Ok(look_again.into_iter().chain(renewal).fold(outcome, Outcome::requeue))
    }
}
