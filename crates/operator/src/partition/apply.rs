//! Carries out a plan.

use std::time::Duration;

use api::{Partition, keys::PARTITION_FINALIZER};
use kube::ResourceExt as _;
use serde_json::json;
use tracing::info;

use super::{
    Memory, NEXT_POLL,
    external::{apply::Session, channel::Reach},
    observe::Observed,
    plan::{Effect, Plan},
};
use crate::{
    cluster::{CommandError, JobOrder},
    reason,
    runtime::{Applied, Context, Error, Key, Writer},
};

/// Carries out the effects, and brings `observed` to the state after them. Returns also when to reconcile again.
pub(super) async fn apply(
    context: &Context,
    writer: &Writer,
    observed: &mut Observed,
    memory: &mut Memory,
    plan: Plan,
) -> (Applied, Vec<Duration>) {
    let partition = observed.partition.as_ref();
    let session = match &observed.external {
        Some(Reach::Reached(reached)) => Some(Session {
            context,
            writer,
            partition,
            controller: &observed.cluster,
            reached,
        }),
        _ => None,
    };
    let mut applied = Applied::default();
    let mut again = Vec::from_iter(plan.again);
    for effect in plan.effects {
        let done = match effect {
            Effect::AddFinalizer => write_finalizers(writer, partition, true).await,
            Effect::RemoveFinalizer => write_finalizers(writer, partition, false).await,
            Effect::TellKept(why) => {
                context.events.normal(partition, reason::LEFT_AS_IT_IS, why);
                Ok(())
            }
            Effect::CancelJobs(jobs) => {
                for job in jobs {
                    match context
                        .clusters
                        .command_job(&observed.cluster, &job, JobOrder::Cancel)
                        .await
                    {
                        Ok(()) | Err(CommandError::NotFound(_)) => {}
                        Err(error) => drop(applied.note(Err::<(), Error>(Error::other(error)))),
                    }
                }
                Ok(())
            }
            Effect::External(order) => match session {
                Some(session) => {
                    let report = observed.report.get_or_insert_default();
                    let done = session.apply(&order, report, &mut memory.refusal).await;
                    done.map(|requeue| again.extend(requeue))
                }
                None => Ok(()),
            },
            Effect::Restore(keys) => {
                info!(partition = %Key::of(partition), ?keys, "reverting manual changes in Slurm");
                let (cluster, name) = (&observed.cluster, partition.slurm_name());
                let restored = match session {
                    Some(session) => session.restore(&keys).await,
                    None => (context.clusters.restore_partition(cluster, &name, &keys).await).map_err(Error::other),
                };
                restored.map(|restored| {
                    again.push(NEXT_POLL);
                    if let Some(baseline) = &mut memory.baseline {
                        baseline.note_restored(&mut observed.found, &keys, &restored, context.clock.now());
                    }
                })
            }
        };
        applied.note(done);
    }
    (applied, again)
}

async fn write_finalizers(writer: &Writer, partition: &Partition, with_own: bool) -> Result<(), Error> {
    let meta = &partition.metadata;
    let finalizers = partition.finalizers().iter().map(String::as_str);
    let others = finalizers.filter(|finalizer| *finalizer != PARTITION_FINALIZER);
    let all: Vec<&str> = others.chain(with_own.then_some(PARTITION_FINALIZER)).collect();
    // The list is written as a whole, so it must not have changed in the meantime.
    let patch = json!({ "metadata": {
        "uid": meta.uid,
        "resourceVersion": meta.resource_version,
        "finalizers": all,
    } });
    let Key { namespace, name } = Key::of(partition);
    writer.patch::<Partition>(&namespace, &name, patch).await
}
