//! Changes of Partition objects.

use api::Partition;
use kube::{ResourceExt as _, api::PostParams};
use serde_json::{Value, json};
use slurm::conf::SettingChange;

use super::undo::{delete_rejected, undo_rejected};
use super::{Change, Note, Target, workers};
use crate::access::{Access, Changed};
use crate::cli::Wait;
use crate::cluster::Cluster;
use crate::failure::{Failure, Outcome};
use crate::output::{notify, print};
use crate::ownership::warning;
use crate::partition::edit::{is_closed_since, lift_time, new_object, object_patch, state_annotations};
use crate::partition::expect::judge_object;
use crate::partition::members::MemberChange;
use crate::wait::{Progress, report, until};

pub(super) async fn create(
    access: &Access,
    cluster: &Cluster,
    name: &str,
    members: &[MemberChange],
    exclude: &[String],
    settings: &[SettingChange],
    wait: &Wait,
) -> Outcome {
    let object = new_object(cluster, name, members, exclude, settings)?;
    let problems = api::Validate::check(&object);
    let errors: Vec<String> = problems.errors().map(ToString::to_string).collect();
    if !errors.is_empty() {
        return Err(Failure::usage(errors.join("\n")));
    }
    let api = access.api::<Partition>(&cluster.namespace());
    let created = api.create(&PostParams::default(), &object).await?;
    let how = delete_rejected(&api, &created, wait_live(access, &created, wait).await).await?;
    print(&format!("partition/{} created{how}\n", created.name_any()))
}

pub(super) async fn change(access: &Access, target: &Target, change: &Change, wait: &Wait) -> Outcome {
    let workers = workers(access, &target.cluster).await?;
    let api = access.api::<Partition>(&target.cluster.namespace());
    let mut warned = None;
    let Changed { object, undo } = Access::change(&api, &target.object, |object: &Partition| {
        let spec = object_patch(&target.cluster, &workers, object, &change.settings, &change.members)?;
        let notes = match &change.note {
            Note::None => None,
            Note::Drained(reason) => state_annotations(reason.as_deref(), None),
            Note::Resumed => state_annotations(None, Some(lift_time(object, jiff::Timestamp::now()))),
        };
        warned = warning(object, &["spec"], "the manifest it was made from").filter(|_| spec.is_some());
        Ok(joined(spec, notes))
    })
    .await?;
    if let Some(warning) = warned {
        notify(&warning);
    }
    let how = undo_rejected(access, target, undo.as_ref(), wait_live(access, &object, wait).await).await?;
    match &change.note {
        Note::None => {}
        Note::Drained(_) => wait_state(access, target, "DRAIN", false, wait).await?,
        Note::Resumed => wait_state(access, target, "UP", true, wait).await?,
    }
    print(&format!("partition/{} {}{how}\n", target.object, word(change)))
}

/// Returns what was done, for the last line.
pub(super) fn word(change: &Change) -> &'static str {
    match change.note {
        Note::None => "changed",
        Note::Drained(_) => "drained",
        Note::Resumed => "resumed",
    }
}

fn joined(one: Option<Value>, other: Option<Value>) -> Option<Value> {
    match (one, other) {
        (Some(Value::Object(mut one)), Some(Value::Object(other))) => {
            one.extend(other);
            Some(json!(one))
        }
        (one, other) => one.or(other),
    }
}

/// Waits until the change is live, and returns how, for the last line.
async fn wait_live(access: &Access, object: &Partition, wait: &Wait) -> Outcome<String> {
    let name = object.name_any();
    let generation = object.metadata.generation;
    let api = access.api::<Partition>(&object.namespace().unwrap_or_default());
    report(wait, &format!("partition/{name} is not live"), async |_| {
        let mut now = api.get(&name).await?;
        // A later change of another user is not waited for.
        now.metadata.generation = generation;
        Ok(match judge_object(&now) {
            Progress::Refused(why) => Progress::Refused(format!("partition/{name}: {why}")),
            progress => progress,
        })
    })
    .await
}

/// Waits until slurmctld has the partition in this state. Users who may not exec into pods rely on the operator's report.
async fn wait_state(access: &Access, target: &Target, wanted: &str, lifts: bool, wait: &Wait) -> Outcome {
    if !wait.wait {
        return Ok(());
    }
    let api = access.api::<Partition>(&target.cluster.namespace());
    let what = format!("partition/{} is not {wanted} in slurmctld", target.object);
    until(wait, &what, async |_| {
        let object = api.get(&target.object).await?;
        if lifts && is_closed_since(&object) {
            Access::change(&api, &target.object, |object: &Partition| {
                Ok(state_annotations(None, Some(lift_time(object, jiff::Timestamp::now()))))
            })
            .await?;
        }
        let Ok(live) = access.live(&target.cluster).await else {
            return Ok(Progress::Done(()));
        };
        let live = live.partitions.iter().find(|partition| partition.name == target.name);
        let state = live.map_or_else(|| "unknown".to_owned(), |partition| partition.state.to_string());
        Ok(if state == wanted {
            Progress::Done(())
        } else {
            Progress::Waits(format!("its state in slurmctld is {state}"))
        })
    })
    .await
}
