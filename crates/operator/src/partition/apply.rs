//! Carries out a plan.

use api::{Partition, keys::PARTITION_FINALIZER};
use kube::ResourceExt as _;
use serde_json::json;
use slurm::agent::Restored;
use tracing::info;

use super::{
    external::{
        apply::{Done, Session},
        channel::Reach,
    },
    observe::Observed,
    plan::{Effect, Plan},
};
use crate::{
    cluster::{CommandError, JobOrder},
    runtime::{Applied, Context, Error, Key, Writer},
};

/// The results of the effects.
#[derive(Debug, Default)]
pub(super) struct Results {
    pub(super) applied: Applied,
    /// The state of the Partition in an external slurmctld after an order was sent.
    pub(super) external: Option<Done>,
    /// The keys that were sent again, and the result.
    pub(super) restored: Option<(Vec<String>, Restored)>,
}

pub(super) async fn apply(context: &Context, writer: &Writer, observed: &Observed, plan: &Plan) -> Results {
    let partition = observed.partition.as_ref();
    let cluster = observed.cluster();
    let session = match &observed.external {
        Some(Reach::Reached(reached)) => Some(Session {
            context,
            writer,
            partition,
            controller: &cluster,
            reached,
        }),
        _ => None,
    };
    let mut results = Results::default();
    if let Some(why) = &plan.stays {
        context.events.normal(partition, "LeftAsItIs", why.clone());
    }
    for effect in &plan.effects {
        let done = match effect {
            Effect::AddFinalizer => {
                let finalizers = partition.finalizers().iter().cloned();
                write_finalizers(
                    writer,
                    partition,
                    finalizers.chain([PARTITION_FINALIZER.to_owned()]).collect(),
                )
                .await
            }
            Effect::RemoveFinalizer => {
                let finalizers = partition.finalizers().iter().cloned();
                let others = finalizers.filter(|finalizer| finalizer != PARTITION_FINALIZER);
                write_finalizers(writer, partition, others.collect()).await
            }
            Effect::CancelJobs(jobs) => {
                for job in jobs {
                    match context.clusters.command_job(&cluster, job, JobOrder::Cancel).await {
                        Ok(()) | Err(CommandError::NotFound(_)) => {}
                        Err(error) => drop(results.applied.note(Err::<(), Error>(Error::other(error)))),
                    }
                }
                continue;
            }
            Effect::External(effect) => match session {
                Some(session) => session.apply(effect).await.map(|done| results.external = Some(done)),
                None => Ok(()),
            },
            Effect::Restore(keys) => restore(context, &cluster, partition, keys, session)
                .await
                .map(|restored| results.restored = Some((keys.clone(), restored))),
        };
        results.applied.note(done);
    }
    results
}

async fn restore(
    context: &Context,
    cluster: &Key,
    partition: &Partition,
    keys: &[String],
    session: Option<Session<'_>>,
) -> Result<Restored, Error> {
    info!(partition = %Key::of(partition), ?keys, "reverting manual changes in Slurm");
    if let Some(session) = session {
        return session.restore(keys).await;
    }
    let name = partition.slurm_name();
    let restored = context.clusters.restore_partition(cluster, &name, keys).await;
    restored.map_err(Error::other)
}

async fn write_finalizers(writer: &Writer, partition: &Partition, finalizers: Vec<String>) -> Result<(), Error> {
    let meta = &partition.metadata;
    // The list is written as a whole, so it must not have changed in the meantime.
    let patch = json!({ "metadata": {
        "uid": meta.uid,
        "resourceVersion": meta.resource_version,
        "finalizers": finalizers,
    } });
    let namespace = partition.namespace().unwrap_or_default();
    writer
        .patch::<Partition>(&namespace, &partition.name_any(), patch)
        .await
        .map(drop)
}
