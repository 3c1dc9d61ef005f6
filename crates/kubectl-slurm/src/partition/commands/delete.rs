//! The end of a partition: closed first, then its jobs are waited for, then it goes.

use api::{Controller, NodeSet, Partition};
use kube::api::DeleteParams;
use serde_json::json;

use super::{Change, Note, Target, lines};
use crate::access::Access;
use crate::cli::Wait;
use crate::failure::{Failure, Outcome};
use crate::output::{print, tell};
use crate::ownership::warning;
use crate::partition::edit::removed_line_patch;
use crate::partition::expect::{ExpectedLine, why_retained};
use crate::partition::place::Kind;
use crate::partition::view::held_source;
use crate::wait::{Progress, until};

pub(super) async fn run(access: &Access, target: &Target, wait: &Wait) -> Outcome {
    match target.kind {
        Kind::Partition => object(access, target, wait).await,
        _ => line(access, target, wait).await,
    }
}

/// The operator does all of it.
async fn object(access: &Access, target: &Target, wait: &Wait) -> Outcome {
    let api = access.api::<Partition>(&target.cluster.namespace());
    api.delete(&target.object, &DeleteParams::default()).await?;
    if !wait.wait {
        return print(&format!(
            "partition/{} is being deleted (not waited for)\n",
            target.object
        ));
    }
    until(wait, &format!("partition/{} is not gone", target.object), async |_| {
        Ok(match api.get_opt(&target.object).await? {
            None => Progress::Done(()),
            Some(still) => Progress::Waits(why_retained(&still)),
        })
    })
    .await?;
    print(&format!("partition/{} deleted\n", target.object))
}

/// Of a line that is gone nobody could tell any more what its jobs wait for, so they are waited for here.
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
    let before = Box::new(
        access
            .api::<Controller>(&target.cluster.namespace())
            .get(&target.cluster.name())
            .await?,
    );
    let (generation, changed) = match target.kind {
        Kind::NodeSet => (None, take_from_node_set(access, target).await?),
        _ => take_from_extra_conf(access, target).await?,
    };
    let expected = ExpectedLine {
        name: target.name.clone(),
        settings: None,
        source: held_source(&target.place()),
        generation,
        before,
        changed,
    };
    let how = lines::wait_live(access, target, &expected, wait).await?;
    print(&format!("partition {} deleted{how}\n", target.name))
}

/// Jobs that run in it or wait for it. Not knowing is no answer.
async fn jobs(access: &Access, target: &Target) -> Outcome<usize> {
    let live = access.live(&target.cluster).await;
    let live = live.map_err(|why| {
        Failure::refused(format!(
            "slurmctld cannot be asked whether {} has jobs, so it stays: {why}",
            target.name
        ))
    })?;
    let (running, pending) = live.jobs.of(&target.name);
    Ok(running + pending)
}

async fn take_from_node_set(access: &Access, target: &Target) -> Outcome<bool> {
    let api = access.api::<NodeSet>(&target.cluster.namespace());
    let mut changed = false;
    let set = Access::change(&api, &target.object, |set: &NodeSet| {
        changed = set.spec.wanted_partition().is_some();
        Ok(changed.then(|| json!({ "spec": { "partition": { "enabled": false } } })))
    })
    .await?;
    if let Some(warned) = warning(
        &set,
        &["spec", "partition", "enabled"],
        "nodesets.ENTRY.partition.enabled",
    ) {
        tell(&warned);
    }
    Ok(changed)
}

async fn take_from_extra_conf(access: &Access, target: &Target) -> Outcome<(Option<i64>, bool)> {
    let api = access.api::<Controller>(&target.cluster.namespace());
    let mut changed = false;
    let controller = Access::change(&api, &target.object, |controller: &Controller| {
        let patch = removed_line_patch(controller, &target.name);
        changed = patch.is_some();
        Ok(patch)
    })
    .await?;
    let value = format!("controller.extraConf, or partitions.{},", target.name);
    if let Some(warned) = warning(&controller, &["spec", "extraConf"], &value) {
        tell(&warned);
    }
    Ok((controller.metadata.generation, changed))
}
