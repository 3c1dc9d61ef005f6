//! Accounting: slurmdbd, by which clusters keep their records in a database.

mod apply;
mod build;
mod observe;
mod outside;
mod plan;
mod references;
mod status;
#[cfg(test)]
mod tests;

use std::{sync::Arc, time::Duration};

use api::Accounting;

use self::observe::Observed;
use crate::{
    fault::Fault,
    key_mismatch::find_key_mismatch,
    runtime::{Change, Context, Error, Key, Outcome, Reconciler, Writer},
};

/// Nobody tells when slurmdbd loses its database, or has it back.
const ASK_AGAIN: Duration = Duration::from_secs(15);

/// Brings Accountings to what their specs ask for.
#[derive(Debug)]
pub struct AccountingReconciler {
    context: Context,
    writer: Writer,
}

impl AccountingReconciler {
    pub fn new(context: Context) -> Self {
        Self {
            writer: Writer::new::<Accounting>(&context),
            context,
        }
    }
}

impl AccountingReconciler {
    /// Asks how slurmdbd fares, and says when to ask again where nobody will tell.
    async fn ask(&self, observed: &mut Observed) -> Option<Duration> {
        let is_external = observed.accounting.spec.is_external();
        if is_external {
            observed.database_trouble = outside::look(observed).await;
        } else if !observed.is_up() {
            if let Some(pod) = observed.pod.as_deref() {
                observed.complaints = observe::read_complaints(&self.context.client, pod).await;
            }
            return None;
        }
        let referring = observe::referring(&observed.accounting, &self.context.caches);
        if let Some(controller) = referring.as_deref().filter(|_| observed.database_trouble.is_none()) {
            observed.database_trouble = self.context.access.database_trouble(&Key::of(controller)).await;
        }
        if let Some(controller) = referring.as_deref().filter(|_| !is_external) {
            let context = &self.context;
            let known = find_key_mismatch(controller, &context.caches, &context.access, context.clock.now());
            let their_key = controller.slurm_key().and_then(|key| {
                Some((
                    context.caches.secrets.get(&Key::of(controller).namespace, &key.name)?,
                    key,
                ))
            });
            observed.note_key_mismatch(
                known.as_ref(),
                their_key.as_ref().map(|(secret, key)| (secret.as_ref(), key)),
            );
        }
        (is_external || referring.is_some()).then_some(ASK_AGAIN)
    }
}

impl Reconciler for AccountingReconciler {
    const NAME: &'static str = "accounting";
    type Object = Accounting;

    fn interested(&self, change: &Change) -> Vec<Key> {
        references::interested(change, &self.context.caches)
    }

    async fn reconcile(&self, key: &Key) -> Result<Outcome, Error> {
        let context = &self.context;
        let Some(accounting) = context.caches.accountings.get(&key.namespace, &key.name) else {
            return Ok(Outcome::settled());
        };
        let mut observed = observe::observe(
            Arc::clone(&accounting),
            &context.caches,
            context.defaults.images.clone(),
            context.definitions.outdated(),
        );
        let ask_again = self.ask(&mut observed).await;
        let plan = plan::plan(&observed);
        let look_again = context.warn(accounting.as_ref(), plan.faults.iter().map(Fault::warning));
        let applied = apply::apply(context, &self.writer, &accounting, &plan).await;
        let status = status::build_status(&observed, &plan, applied.failure().as_ref(), context.clock.now());
        let state = status::state(&observed, &plan);
        let outcome = self.writer.finish(accounting.as_ref(), status, applied, state).await?;
        Ok(look_again.into_iter().chain(ask_again).fold(outcome, Outcome::requeue))
    }
}

/// The children of the first Accounting among these objects, for the comparison with upstream's.
#[cfg(test)]
pub(crate) fn children_of(caches: &crate::runtime::Caches, images: &crate::defaults::Images) -> Vec<serde_json::Value> {
    let Some(accounting) = caches.accountings.all().into_iter().next() else {
        return Vec::new();
    };
    let plan = plan::plan(&observe::observe(accounting, caches, images.clone(), Vec::new()));
    assert_eq!(plan.faults, []);
    let mut config = serde_json::to_value(&plan.config).unwrap_or_default();
    // Secrets are recorded as text.
    for (file, bytes) in plan.config.iter().flat_map(|config| config.data.iter().flatten()) {
        config["data"][file] = String::from_utf8_lossy(&bytes.0).into();
    }
    let others = [
        serde_json::to_value(plan.service),
        serde_json::to_value(plan.stateful_set),
    ];
    let children = others.into_iter().flatten().chain([config]);
    children.filter(|child| !child.is_null()).collect()
}
