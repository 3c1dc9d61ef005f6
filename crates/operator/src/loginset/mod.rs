//! LoginSet: pods that people log in to, with sshd, sssd and Slurm's commands.

mod apply;
mod build;
mod files;
mod host_keys;
mod observe;
mod plan;
mod references;
mod status;
#[cfg(test)]
mod tests;

use std::{sync::Arc, time::Duration};

use api::LoginSet;

use crate::{
    cluster_domain,
    fault::Fault,
    key_mismatch::find_key_mismatch,
    runtime::{Change, Context, Error, Key, Outcome, Reconciler, Writer},
};

/// How often pods are asked whether they are content: nothing else tells that a directory is out of reach.
const ASK_AGAIN: Duration = Duration::from_secs(15);

/// Brings LoginSets to what their specs ask for.
#[derive(Debug)]
pub struct LoginSetReconciler {
    context: Context,
    writer: Writer,
    cluster_domain: String,
}

impl LoginSetReconciler {
    pub fn new(context: Context) -> Self {
        Self {
            writer: Writer::new::<LoginSet>(&context),
            cluster_domain: cluster_domain::of_this_pod(),
            context,
        }
    }
}

impl Reconciler for LoginSetReconciler {
    const NAME: &'static str = "loginset";
    type Object = LoginSet;

    fn interested(&self, change: &Change) -> Vec<Key> {
        references::interested(change, &self.context.caches)
    }

    async fn reconcile(&self, key: &Key) -> Result<Outcome, Error> {
        let context = &self.context;
        let Some(login_set) = context.caches.login_sets.get(&key.namespace, &key.name) else {
            return Ok(Outcome::settled());
        };
        let mut observed = observe::observe(
            Arc::clone(&login_set),
            &context.caches,
            context.defaults.images.clone(),
            self.cluster_domain.clone(),
            context.definitions.outdated(),
        );
        observed.complaints = observe::read_complaints(&context.client, &observed.pods).await;
        observed.key_mismatch = observed.controller.as_deref().and_then(|controller| {
            let mismatch = find_key_mismatch(controller, &context.caches, &context.access, context.clock.now())?;
            Some(mismatch.of_pods(&observed.pods)?.message())
        });
        let plan = plan::plan(&observed);
        let look_again = context.warn(login_set.as_ref(), plan.faults.iter().map(Fault::warning));
        let applied = apply::apply(&self.writer, &login_set, &plan).await;
        let status = status::build_status(&observed, &plan, applied.failure().as_ref(), context.clock.now());
        let state = status::state(&observed, &plan);
        let outcome = self.writer.finish(login_set.as_ref(), status, applied, state).await?;
        let ask_again = (!observed.pods.is_empty()).then_some(ASK_AGAIN);
        Ok(look_again.into_iter().chain(ask_again).fold(outcome, Outcome::requeue))
    }
}

/// The children of the LoginSets among these objects, for the comparison with upstream's. Host keys are among the objects.
#[cfg(test)]
pub(crate) fn children_of(caches: &crate::runtime::Caches, images: &crate::defaults::Images) -> Vec<serde_json::Value> {
    let children = |login_set: Arc<LoginSet>| {
        let observed = observe::observe(
            Arc::clone(&login_set),
            caches,
            images.clone(),
            "cluster.local".to_owned(),
            Vec::new(),
        );
        let plan = plan::plan(&observed);
        assert_eq!(plan.faults, []);
        [
            serde_json::to_value(build::build_host_keys(&login_set, Vec::new())),
            serde_json::to_value(plan.service),
            serde_json::to_value(plan.ssh_config),
            serde_json::to_value(plan.deployment),
        ]
    };
    let all = caches.login_sets.all().into_iter().flat_map(children).flatten();
    all.filter(|child| !child.is_null()).collect()
}
