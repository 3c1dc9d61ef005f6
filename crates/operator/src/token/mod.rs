//! Token: a JSON web token for a Slurm user, kept fresh in a Secret.

mod apply;
mod build;
mod observe;
mod plan;
mod status;
#[cfg(test)]
mod tests;

use std::sync::Arc;

use kube::ResourceExt as _;

use crate::{
    fault::Fault,
    runtime::{Caches, Change, Context, Error, Key, Outcome, Reconciler, Writer},
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
            writer: Writer::new(&context, Self::NAME),
            context,
        }
    }
}

impl Reconciler for TokenReconciler {
    const NAME: &'static str = "token";

    fn interested(&self, change: &Change, caches: &Caches) -> Vec<Key> {
        interested(change, caches)
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

/// The Tokens that a change may concern.
fn interested(change: &Change, caches: &Caches) -> Vec<Key> {
    match change {
        Change::Token(delta) => delta.key().into_iter().collect(),
        Change::Secret(delta) => {
            let Some(secret) = delta.key() else { return Vec::new() };
            let all = caches.tokens.list(&secret.namespace).into_iter();
            all.filter(|token| {
                let key = token.spec.effective_jwt_key_ref();
                key.is_some_and(|key| key.name == secret.name) || token.secret_name() == secret.name
            })
            .map(|token| Key::new(token.namespace().unwrap_or_default(), token.name_any()))
            .collect()
        }
        Change::Controller(_)
        | Change::NodeSet(_)
        | Change::LoginSet(_)
        | Change::RestApi(_)
        | Change::Accounting(_)
        | Change::Partition(_)
        | Change::ConfigMap(_)
        | Change::Pod(_)
        | Change::StatefulSet(_)
        | Change::Deployment(_)
        | Change::Service(_)
        | Change::Revision(_)
        | Change::Claim(_)
        | Change::Budget(_)
        | Change::Node(_)
        | Change::Namespace(_)
        | Change::ServiceMonitor(_) => Vec::new(),
    }
}
