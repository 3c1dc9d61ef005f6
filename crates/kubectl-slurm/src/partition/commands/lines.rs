//! Changes of partitions that are lines: a NodeSet's `partition.config`, or lines of extraConf.

use api::{Controller, NodeSet};
use slurm::conf::{Key, SettingChange, Settings};

use super::objects::word;
use super::undo::undo_rejected;
use super::{Change, Note, Target, workers};
use crate::access::{Access, Changed, Undo};
use crate::cli::Wait;
use crate::failure::{Failure, Outcome};
use crate::output::{notify, print};
use crate::ownership::warn_owner;
use crate::partition::edit::{extra_conf_patch, node_set_patch};
use crate::partition::expect::{ExpectedLine, judge_line};
use crate::partition::place::{Kind, Place, settings_of_line, wanted_settings};
use crate::wait::{Progress, report, until};

/// Returns how to revert the change.
pub(super) async fn change(access: &Access, target: &Target, change: &Change, wait: &Wait) -> Outcome<Option<Undo>> {
    if target.cluster.controller.spec.is_external() {
        return Err(Failure::refused(format!(
            "slurmctld of {} runs outside Kubernetes, and its slurm.conf is not managed by the operator; change it there, or create a Partition object",
            target.cluster.name()
        )));
    }
    if let Note::Drained(Some(_)) = change.note {
        notify("the reason is not stored: only a Partition object has a field for it");
    }
    let (expected, undo) = match target.kind {
        Kind::NodeSet => change_node_set(access, target, change).await?,
        _ => change_extra_conf(access, target, change).await?,
    };
    let done = async {
        let how = wait_live(access, target, &expected, wait).await?;
        if wait.wait {
            settle_state(access, target, change, wait).await?;
        }
        Ok(how)
    };
    let how = undo_rejected(access, target, undo.as_ref(), done.await).await?;
    print(&format!("partition {} {}{how}\n", target.name, word(change)))?;
    Ok(undo)
}

async fn change_node_set(access: &Access, target: &Target, change: &Change) -> Outcome<(ExpectedLine, Option<Undo>)> {
    let api = access.api::<NodeSet>(&target.cluster.namespace());
    let Changed { object: set, undo } = Access::change(&api, &target.object, |set: &NodeSet| {
        let gone = || Failure::not_found(format!("NodeSet {} has no partition any more", target.object));
        let config = set.spec.wanted_partition().ok_or_else(gone)?;
        let line = settings_of_line(&format!("PartitionName=x {config}"), "x");
        node_set_patch(set, &settings_to_write(change, line), &change.members)
    })
    .await?;
    if undo.is_some() {
        warn_owner(
            &set,
            &["spec", "partition", "config"],
            "nodesets.ENTRY.partition.config",
        );
    }
    let settings = wanted_settings(&target.cluster, &target.name, &Place::NodeSet(&set));
    Ok((expect(target, Some(settings), None, undo.is_some()), undo))
}

async fn change_extra_conf(access: &Access, target: &Target, change: &Change) -> Outcome<(ExpectedLine, Option<Undo>)> {
    let workers = workers(access, &target.cluster).await?;
    let api = access.api::<Controller>(&target.cluster.namespace());
    let Changed {
        object: controller,
        undo,
    } = Access::change(&api, &target.object, |controller: &Controller| {
        let text = controller.spec.extra_conf.as_deref().unwrap_or_default();
        let settings = settings_to_write(change, settings_of_line(text, &target.name));
        extra_conf_patch(
            &target.cluster,
            &workers,
            controller,
            &target.name,
            &settings,
            &change.members,
        )
    })
    .await?;
    if undo.is_some() {
        let value = format!("controller.extraConf, or partitions.{},", target.name);
        warn_owner(&controller, &["spec", "extraConf"], &value);
    }
    let text = controller.spec.extra_conf.clone().unwrap_or_default();
    let settings = settings_of_line(&text, &target.name);
    let generation = controller.metadata.generation;
    Ok((expect(target, settings, generation, undo.is_some()), undo))
}

pub(super) fn expect(
    target: &Target,
    settings: Option<Settings>,
    generation: Option<i64>,
    changed: bool,
) -> ExpectedLine {
    ExpectedLine {
        name: target.name.clone(),
        settings,
        source: target.source.clone(),
        generation,
        before: Box::new(target.cluster.controller.clone()),
        changed,
    }
}

/// Returns the settings to write. A partition without a state is up, so a resume does not write one.
fn settings_to_write(change: &Change, line: Option<Settings>) -> Vec<SettingChange> {
    let says_state = line.is_some_and(|settings| settings.contains_key(&Key::new("State")));
    let needless =
        |setting: &&SettingChange| matches!(change.note, Note::Resumed) && *setting.key() == *"State" && !says_state;
    let settings = change.settings.iter();
    settings.filter(|setting| !needless(setting)).cloned().collect()
}

/// Waits until the change is live, and returns how, for the last line.
pub(super) async fn wait_live(
    access: &Access,
    target: &Target,
    expected: &ExpectedLine,
    wait: &Wait,
) -> Outcome<String> {
    let api = access.api::<Controller>(&target.cluster.namespace());
    let cluster = target.cluster.name();
    report(
        wait,
        &format!("partition {} is not live", target.name),
        async |waited| {
            let controller = api.get(&cluster).await?;
            let conf = access.slurm_conf(&controller).await?;
            match judge_line(expected, &controller, conf.as_deref(), waited) {
                Progress::Refused(why) => Ok(Progress::Refused(format!("partition {}: {why}", target.name))),
                progress => Ok(progress),
            }
        },
    )
    .await
}

/// A manual state stays in slurmctld and in slurm.conf although the object has another. It is therefore also set in slurmctld
/// directly, which ends the manual state.
async fn settle_state(access: &Access, target: &Target, change: &Change, wait: &Wait) -> Outcome {
    let wanted = change.settings.iter().find_map(|setting| match setting {
        SettingChange::Set { key, value } if *key == *"State" => Some(value.to_ascii_uppercase()),
        _ => None,
    });
    let Some(wanted) = wanted else { return Ok(()) };
    match access.live(&target.cluster).await {
        Ok(live) => {
            let partition = live.partitions.iter().find(|partition| partition.name == target.name);
            if partition.is_none_or(|partition| partition.state.to_string() != wanted) {
                set_state(access, target, &wanted).await?;
            }
        }
        Err(why) => notify(&format!(
            "slurmctld does not respond, so its state is not checked: {why}"
        )),
    }
    // Otherwise a restart of slurmctld would restore the other state.
    until(wait, &format!("State={wanted} is not in slurm.conf"), async |_| {
        let conf = access.slurm_conf(&target.cluster.controller).await?.unwrap_or_default();
        let settings = settings_of_line(&conf, &target.name).unwrap_or_default();
        let state = settings.get(&Key::new("State")).map_or("UP", String::as_str);
        Ok(if state.eq_ignore_ascii_case(&wanted) {
            Progress::Done(())
        } else {
            Progress::Waits(format!(
                "its line in slurm.conf has State={state}, which was set manually in Slurm"
            ))
        })
    })
    .await
}

async fn set_state(access: &Access, target: &Target, wanted: &str) -> Outcome {
    let (name, value) = (format!("PartitionName={}", target.name), format!("State={wanted}"));
    let update = ["scontrol", "update", name.as_str(), value.as_str()];
    let updated = access.slurm(&target.cluster, &update).await;
    updated.map(drop).map_err(|why| {
        Failure::Rejected(format!(
            "slurmctld refuses State={wanted} for partition {}: {why}",
            target.name
        ))
    })
}
