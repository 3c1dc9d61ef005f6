//! Deletes a partition: closes it, waits for its jobs, removes it.

use api::{Controller, NodeSet, Partition};
use kube::api::DeleteParams;
use serde_json::json;

use super::undo::{revert, undo_rejected};
use super::{Change, Note, Target, lines};
use crate::access::{Access, Changed, Undo};
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
    let mut drained = None;
    if jobs > 0 {
        drained = lines::change(access, target, &Change::state("DRAIN", Note::Drained(None)), wait).await?;
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
    let (generation, undo) = match target.kind {
        Kind::NodeSet => (None, remove_from_node_set(access, target).await?),
        _ => remove_from_extra_conf(access, target).await?,
    };
    let expected = ExpectedLine {
        before,
        ..lines::expect(target, None, generation, undo.is_some())
    };
    let live = lines::wait_live(access, target, &expected, wait).await;
    let is_rejected = matches!(live, Err(Failure::Rejected(_)));
    let undone = undo_rejected(access, target, undo.as_ref(), live).await;
    if let Some(drained) = drained.filter(|_| is_rejected) {
        revert(access, target, &drained).await?;
    }
    let how = undone?;
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

async fn remove_from_node_set(access: &Access, target: &Target) -> Outcome<Option<Undo>> {
    let api = access.api::<NodeSet>(&target.cluster.namespace());
    let Changed { object: set, undo } = Access::change(&api, &target.object, |set: &NodeSet| {
        let wanted = set.spec.wanted_partition();
        Ok(wanted.map(|_| json!({ "spec": { "partition": { "enabled": false } } })))
    })
    .await?;
    warn_owner(
        &set,
        &["spec", "partition", "enabled"],
        "nodesets.ENTRY.partition.enabled",
    );
    Ok(undo)
}

async fn remove_from_extra_conf(access: &Access, target: &Target) -> Outcome<(Option<i64>, Option<Undo>)> {
    let api = access.api::<Controller>(&target.cluster.namespace());
    let remove = |controller: &Controller| Ok(removed_line_patch(controller, &target.name));
    let Changed {
        object: controller,
        undo,
    } = Access::change(&api, &target.object, remove).await?;
    let value = format!("controller.extraConf, or partitions.{},", target.name);
    warn_owner(&controller, &["spec", "extraConf"], &value);
    Ok((controller.metadata.generation, undo))
}
