//! Partition: a partition of its own, across NodeSets and machines outside Kubernetes.
//!
//! Its line is written by the [`crate::controller`], which alone changes a slurmctld: Partitions are an input of its
//! configuration as NodeSets are. What a line says and which nodes it names is decided here ([`line`], [`members`]); how it
//! stands comes back over the [`Board`].

mod apply;
pub(crate) mod board;
mod counts;
mod drift;
pub(crate) mod line;
pub(crate) mod mark;
pub(crate) mod members;
mod observe;
mod outside;
mod plan;
mod references;
mod restore;
mod status;
#[cfg(test)]
mod tests;

use std::{sync::Arc, time::Duration};

use api::Partition;
use tracing::info;

pub use self::board::Board;
use crate::access::Follower;
use crate::runtime::{Change, Context, Error, Key, Outcome, Reconciler, Writer};

/// Slurm is looked at every few seconds, so by then it was.
const LOOKED_AGAIN: Duration = Duration::from_secs(10);
/// A look that was asked for is over by then.
const LOOKED: Duration = Duration::from_secs(1);

/// Says how Partitions stand, and lets them go when Slurm has.
#[derive(Debug)]
pub struct PartitionReconciler {
    context: Context,
    writer: Writer,
    counts: counts::Counts,
    baselines: drift::Baselines,
    refusals: outside::Refusals,
}

impl PartitionReconciler {
    pub fn new(context: Context) -> Self {
        Self {
            writer: Writer::new::<Partition>(&context),
            context,
            counts: counts::Counts::default(),
            baselines: drift::Baselines::default(),
            refusals: outside::Refusals::default(),
        }
    }
}

impl Reconciler for PartitionReconciler {
    const NAME: &'static str = "partition";
    type Object = Partition;

    fn interested(&self, change: &Change) -> Vec<Key> {
        references::interested(change, &self.context.caches)
    }

    async fn reconcile(&self, key: &Key) -> Result<Outcome, Error> {
        let context = &self.context;
        let Some(partition) = context.caches.partitions.get(&key.namespace, &key.name) else {
            self.counts.forget(key);
            self.baselines.forget(key);
            self.refusals.forget(key);
            return Ok(Outcome::settled());
        };
        let controller = Key::new(&key.namespace, &partition.spec.controller_ref.name);
        let mut observed = observe::observe(Arc::clone(&partition), &context.caches, &context.board, &context.access);
        let errand = observed.is_told_directly().then(|| outside::Errand {
            context,
            writer: &self.writer,
            refusals: &self.refusals,
            partition: &partition,
            key,
            controller: &controller,
        });
        let mut try_again = None;
        if let Some(errand) = &errand {
            let stand = errand.run().await?;
            (observed.standing, try_again) = (stand.standing, stand.again);
        }
        observed.found = self.baselines.find_drift(key, &observed);
        if let Some(errand) = &errand
            && let Some(stand) = errand.run_again(&observed).await?
        {
            // What a slurmctld forgot that started anew is nobody's change.
            (observed.standing, try_again) = (stand.standing, stand.again);
            observed.found = self.baselines.find_drift(key, &observed);
        }
        let keys = restore::plan_restore(&observed);
        let restored = self.restore(&controller, &mut observed, &keys, errand.as_ref()).await;
        let plan = plan::plan(&observed);
        let look_again = context.warn(partition.as_ref(), plan.faults.iter().map(plan::warning));
        context
            .access
            .follow_jobs(&controller, &Follower::Partition(key.clone()), plan.needs_jobs);
        let mut applied = apply::apply(context, &self.writer, &observed, &plan).await;
        applied.note(restored);
        let now = context.clock.now();
        let mut status = status::build_status(&observed, &plan, applied.failure().as_ref(), now);
        let count_again = self.counts.calm(key, partition.status.as_ref(), &mut status, now);
        if let Some(drifted) = status::new_drift(&observed, &status) {
            context.events.warn(partition.as_ref(), drifted.reason, drifted.message);
        }
        if let Some(reverted) = status::new_reverts(&observed, &status) {
            context.events.warn(partition.as_ref(), "Reverted", reverted);
        }
        let state = status::state(&plan);
        if plan.retained.is_some() {
            let status = serde_json::to_value(&status).map_err(Error::other)?;
            self.writer.status(partition.as_ref(), status).await?;
        }
        let outcome = self.writer.finish(partition.as_ref(), status, applied, state).await?;
        // Slurm that says the same as before is no news, and yet it may have been changed again.
        let judge_again = (!keys.is_empty()).then_some(LOOKED_AGAIN);
        let found_by = plan.needs_look.then(|| {
            let is_asked = context.access.look_soon(&controller);
            if is_asked { LOOKED } else { LOOKED_AGAIN }
        });
        let look_again = look_again
            .into_iter()
            .chain(found_by)
            .chain(count_again)
            .chain(judge_again)
            .chain(try_again);
        Ok(look_again.fold(outcome, Outcome::requeue))
    }
}

impl PartitionReconciler {
    /// Has slurmctld told again what the line says for these keys.
    async fn restore(
        &self,
        controller: &Key,
        observed: &mut observe::Observed,
        keys: &[String],
        errand: Option<&outside::Errand<'_>>,
    ) -> Result<(), Error> {
        if keys.is_empty() {
            return Ok(());
        }
        let context = &self.context;
        let key = Key::of(observed.partition.as_ref());
        let name = observed.partition.slurm_name();
        info!(partition = %key, ?keys, "putting back what somebody changed in Slurm");
        let restored = if let Some(errand) = errand {
            errand.restore(keys).await?
        } else {
            let restored = context.access.restore_partition(controller, &name, keys).await;
            restored.map_err(Error::other)?
        };
        let settled = restore::settle_restored(&observed.found, keys, &restored);
        self.baselines.note_restored(&key, context.clock.now(), &settled);
        observed.found = settled.found;
        Ok(())
    }
}
