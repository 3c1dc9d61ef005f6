//! Deletes a partition: closes it, waits for its jobs, removes it.

use api::{Controller, NodeSet, Partition};
use kube::api::DeleteParams;
use serde_json::json;

use super::{Change, Note, Target, lines};
use crate::access::Access;
use crate::cli::Wait;
use crate::failure::{Failure, Outcome};
use crate::output::print;
use crate::ownership::warn_owner;
use crate::partition::edit::removed_line_patch;
use crate::partition::expect::{ExpectedLine, why_retained};
use crate::partition::place::Kind;
use crate::wait::{Progress, until};

pub(super) async fn run(access: &Access, target: &Target, wait: &Wait) -> Outcome {
    match target.kind {
        Kind::Partition => object(access, target, wait).await,
        _ => line(access, target, wait).await,
    }
}

/// Deletes an object; the operator does the rest.
async fn object(access: &Access, target: &Target, wait: &Wait) -> Outcome {
    let api = access.api::<Partition>(&target.cluster.namespace());
    api.delete(&target.object, &DeleteParams::default()).await?;
    if !wait.wait {
        return print(&format!(
            "partition/{} is being deleted (not waited for)\n",
            target.object
        ));
    }
    until(
        wait,
        &format!("partition/{} is not deleted", target.object),
        async |_| {
            Ok(match api.get_opt(&target.object).await? {
                None => Progress::Done(()),
                Some(still) => Progress::Waits(why_retained(&still)),
            })
        },
    )
    .await?;
    print(&format!("partition/{} deleted\n", target.object))
}

/// Deletes a line. Its jobs are waited for before, since nothing reports on a removed line.
async fn line(access: &Access, target: &Target, wait: &Wait) -> Outcome {
    let jobs = jobs(access, target).await?;
    if jobs > 0 && !wait.wait {
        return Err(Failure::refused(format!(
            "{} has {jobs} jobs, which would be lost; drain it and delete it when they have ended, or leave out --wait=false",
            target.name
        )));
    }
    if jobs > 0 {
        lines::change(access, target, &Change::state("DRAIN", Note::Drained(None)), wait).await?;
        until(wait, &format!("partition {} is not empty", target.name), async |_| {
            Ok(match self::jobs(access, target).await? {
                0 => Progress::Done(()),
                jobs => Progress::Waits(format!("{jobs} jobs of partition {} have not ended", target.name)),
            })
        })
        .await?;
    }
    let controllers = access.api::<Controller>(&target.cluster.namespace());
    let before = Box::new(controllers.get(&target.cluster.name()).await?);
    let (generation, changed) = match target.kind {
        Kind::NodeSet => (None, remove_from_node_set(access, target).await?),
        _ => remove_from_extra_conf(access, target).await?,
    };
    let expected = ExpectedLine {
        before,
        ..lines::expect(target, None, generation, changed)
    };
    let how = lines::wait_live(access, target, &expected, wait).await?;
    print(&format!("partition {} deleted{how}\n", target.name))
}

/// Returns the number of its running and pending jobs; an error if it is unknown.
async fn jobs(access: &Access, target: &Target) -> Outcome<usize> {
    let live = access.live(&target.cluster).await;
    let live = live.map_err(|why| {
        Failure::refused(format!(
            "{} is kept, since its jobs in slurmctld are unknown: {why}",
            target.name
        ))
    })?;
    let (running, pending) = live.jobs.of(&target.name);
    Ok(running + pending)
}

async fn remove_from_node_set(access: &Access, target: &Target) -> Outcome<bool> {
    let api = access.api::<NodeSet>(&target.cluster.namespace());
    let (set, changed) = Access::change(&api, &target.object, |set: &NodeSet| {
        let wanted = set.spec.wanted_partition();
        Ok(wanted.map(|_| json!({ "spec": { "partition": { "enabled": false } } })))
    })
    .await?;
    warn_owner(
        &set,
        &["spec", "partition", "enabled"],
        "nodesets.ENTRY.partition.enabled",
    );
    Ok(changed)
}

async fn remove_from_extra_conf(access: &Access, target: &Target) -> Outcome<(Option<i64>, bool)> {
    let api = access.api::<Controller>(&target.cluster.namespace());
    let remove = |controller: &Controller| Ok(removed_line_patch(controller, &target.name));
    let (controller, changed) = Access::change(&api, &target.object, remove).await?;
    let value = format!("controller.extraConf, or partitions.{},", target.name);
    warn_owner(&controller, &["spec", "extraConf"], &value);
    Ok((controller.metadata.generation, changed))
}
