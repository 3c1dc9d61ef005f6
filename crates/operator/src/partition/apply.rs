//! Carries a plan out.

use api::{Partition, keys::PARTITION_FINALIZER};
use kube::ResourceExt as _;
use serde_json::json;

use super::{
    observe::Observed,
    plan::{Effect, Plan},
};
use crate::{
    cluster::{CommandError, JobOrder},
    runtime::{Applied, Context, Error, Key, Writer},
};

pub(super) async fn apply(context: &Context, writer: &Writer, observed: &Observed, plan: &Plan) -> Applied {
    let partition = observed.partition.as_ref();
    let mut applied = Applied::default();
    for effect in &plan.effects {
        let mut finalizers = partition.finalizers().to_vec();
        match effect {
            Effect::AddFinalizer => finalizers.push(PARTITION_FINALIZER.to_owned()),
            Effect::RemoveFinalizer => finalizers.retain(|finalizer| finalizer != PARTITION_FINALIZER),
            Effect::CancelJobs(jobs) => {
                let controller = Key::new(
                    partition.namespace().unwrap_or_default(),
                    &partition.spec.controller_ref.name,
                );
                for job in jobs {
                    match context.clusters.command_job(&controller, job, JobOrder::Cancel).await {
                        Ok(()) | Err(CommandError::NotFound(_)) => {}
                        Err(error) => drop(applied.note(Err::<(), Error>(Error::other(error)))),
                    }
                }
                continue;
            }
        }
        applied.note(write_finalizers(writer, partition, &finalizers).await);
    }
    applied
}

async fn write_finalizers(writer: &Writer, partition: &Partition, finalizers: &[String]) -> Result<(), Error> {
    let meta = &partition.metadata;
    // The list is written whole, so nobody may have changed it meanwhile.
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
