//! From the command line to a patch. Pure.

mod fields;

use api::{Controller, NodeSet, Partition, keys::annotations, partition::DriftSettled};
use jiff::Timestamp;
use kube::ResourceExt as _;
use serde_json::{Map, Value, json};
use slurm::conf::{EditError, Key, SettingChange, edit_partition, edit_settings, remove_partition};

use self::fields::{field_value, find_field};
use super::members::{MemberChange, Membership, Workers, change_line};
use super::place::settings_of_line;
use crate::cluster::Cluster;
use crate::failure::{Failure, Outcome};

/// `Key=Value` sets, `Key-` removes.
pub(super) fn parse_settings(words: &[String]) -> Outcome<Vec<SettingChange>> {
    words.iter().map(|word| parse_setting(word)).collect()
}

fn parse_setting(word: &str) -> Outcome<SettingChange> {
    let bad = || {
        Failure::usage(format!(
            "{word:?} is neither KEY=VALUE nor KEY-, such as MaxTime=1-00:00:00 or MaxTime-"
        ))
    };
    let is_key = |key: &str| !key.is_empty() && key.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_');
    let change = match word.split_once('=') {
        Some((key, value)) if is_key(key) && !value.is_empty() => SettingChange::Set {
            key: Key::new(key),
            value: value.to_owned(),
        },
        Some(_) => return Err(bad()),
        None => SettingChange::Remove {
            key: Key::new(word.strip_suffix('-').filter(|key| is_key(key)).ok_or_else(bad)?),
        },
    };
    for (key, remedy) in [
        ("Nodes", "use --nodes"),
        (
            "PartitionName",
            "a partition cannot be renamed: create another one and delete this one",
        ),
    ] {
        if *change.key() == *key {
            return Err(Failure::usage(format!("{key} is not a setting; {remedy}")));
        }
    }
    Ok(change)
}

/// Returns the patch of a Partition object; `None` if it has these settings already.
pub(super) fn object_patch(
    cluster: &Cluster,
    workers: &Workers,
    partition: &Partition,
    changes: &[SettingChange],
    members: &[MemberChange],
) -> Outcome<Option<Value>> {
    let mut spec = Map::new();
    let mut config = partition.spec.config.clone().unwrap_or_default();
    for change in changes {
        // A field replaces the setting in `config`.
        let in_config = match (find_field(change.key()), change) {
            (None, change) => change.clone(),
            (Some(field), SettingChange::Set { key, value }) => {
                spec.insert(field.name.to_owned(), field_value(field, value)?);
                SettingChange::Remove { key: key.clone() }
            }
            (Some(field), SettingChange::Remove { key }) => {
                spec.insert(field.name.to_owned(), Value::Null);
                SettingChange::Remove { key: key.clone() }
            }
        };
        config = edit_settings(&config, &[in_config]).map_err(|error| unwritable(&error))?;
    }
    if config.trim() != partition.spec.config.as_deref().unwrap_or_default().trim() {
        let text = config.trim();
        spec.insert(
            "config".to_owned(),
            if text.is_empty() { Value::Null } else { text.into() },
        );
    }
    if !members.is_empty() {
        spec.extend(changed_members(cluster, workers, partition, members)?);
    }
    let before = serde_json::to_value(&partition.spec).unwrap_or_default();
    spec.retain(|field, value| before.get(field).unwrap_or(&Value::Null) != value);
    Ok((!spec.is_empty()).then(|| json!({ "spec": spec })))
}

fn changed_members(
    cluster: &Cluster,
    workers: &Workers,
    partition: &Partition,
    members: &[MemberChange],
) -> Outcome<Map<String, Value>> {
    let spec = &partition.spec;
    let before = Membership {
        node_sets: spec.node_sets.clone().unwrap_or_default(),
        nodes: spec.nodes.clone().unwrap_or_default(),
        exclude: spec.exclude_nodes.clone().unwrap_or_default(),
        selects: spec.node_set_selector.is_some(),
    };
    let mut after = before.clone();
    for change in members {
        after.change(cluster, workers, change)?;
    }
    let fields = [
        ("nodeSets", before.node_sets, after.node_sets),
        ("nodes", before.nodes, after.nodes),
        ("excludeNodes", before.exclude, after.exclude),
    ];
    let changed = fields.into_iter().filter(|(_, before, after)| before != after);
    let value = |after: Vec<String>| if after.is_empty() { Value::Null } else { json!(after) };
    Ok(changed
        .map(|(name, _, after)| (name.to_owned(), value(after)))
        .collect())
}

/// Returns the patch of a NodeSet's partition; `None` if it has these settings already.
pub(super) fn node_set_patch(
    set: &NodeSet,
    changes: &[SettingChange],
    members: &[MemberChange],
) -> Outcome<Option<Value>> {
    let name = set.slurm_name();
    if !members.is_empty() {
        return Err(Failure::refused(format!(
            "the members of {name:?} are the nodes of NodeSet {own:?} and no others: scale it (`kubectl scale nodeset/{own} --replicas=N`), or create a Partition object that names it: `kubectl slurm partition create NAME --nodes {own} --exclude NODES`",
            own = set.metadata.name.as_deref().unwrap_or_default()
        )));
    }
    let config = set.spec.wanted_partition().unwrap_or_default();
    let edited = edit_settings(config, changes).map_err(|error| unwritable(&error))?;
    let edited = edited.trim();
    Ok((edited != config.trim()).then(|| json!({ "spec": { "partition": { "config": edited } } })))
}

/// Returns the patch of a line in extraConf; `None` if it has these settings already.
pub(super) fn extra_conf_patch(
    cluster: &Cluster,
    workers: &Workers,
    controller: &Controller,
    name: &str,
    changes: &[SettingChange],
    members: &[MemberChange],
) -> Outcome<Option<Value>> {
    let before = controller.spec.extra_conf.as_deref().unwrap_or_default();
    let gone = || {
        Failure::not_found(format!(
            "spec.extraConf has no line PartitionName={name} any more; it was removed"
        ))
    };
    let mut changes = changes.to_vec();
    if !members.is_empty() {
        let settings = settings_of_line(before, name).ok_or_else(gone)?;
        let mut nodes = settings.get(&Key::new("Nodes")).cloned().unwrap_or_default();
        for change in members {
            nodes = change_line(cluster, workers, &nodes, change)?;
        }
        changes.push(SettingChange::Set {
            key: Key::new("Nodes"),
            value: nodes,
        });
    }
    let edited = edit_partition(before, name, &changes)
        .map_err(|error| unwritable(&error))?
        .ok_or_else(gone)?;
    Ok((edited != before).then(|| json!({ "spec": { "extraConf": edited } })))
}

/// Returns the patch that removes a partition's line from extraConf; `None` if there is none.
pub(super) fn removed_line_patch(controller: &Controller, name: &str) -> Option<Value> {
    let before = controller.spec.extra_conf.as_deref().unwrap_or_default();
    let edited = remove_partition(before, name)?;
    Some(json!({ "spec": { "extraConf": edited } }))
}

/// Returns a new Partition object.
pub(super) fn new_object(
    cluster: &Cluster,
    name: &str,
    members: &[MemberChange],
    exclude: &[String],
    changes: &[SettingChange],
) -> Outcome<Partition> {
    let own = object_name(name);
    let mut object = Partition {
        metadata: kube::api::ObjectMeta {
            name: Some(own.clone()),
            namespace: Some(cluster.namespace()),
            ..Default::default()
        },
        ..Partition::default()
    };
    object.spec.controller_ref.name = cluster.name();
    object.spec.partition_name = (own != name).then(|| name.to_owned());
    object.spec.exclude_nodes = (!exclude.is_empty()).then(|| exclude.to_vec());
    let patch = object_patch(cluster, &Workers::default(), &object, changes, members)?;
    let mut value = serde_json::to_value(&object)?;
    if let Some(Value::Object(fields)) = patch.as_ref().and_then(|patch| patch.get("spec"))
        && let Some(spec) = value.get_mut("spec").and_then(Value::as_object_mut)
    {
        spec.extend(fields.clone());
    }
    Ok(serde_json::from_value(value)?)
}

/// Converts Slurm's name to a valid name of an object.
fn object_name(name: &str) -> String {
    let plain = |c: char| {
        if c.is_ascii_alphanumeric() || c == '.' {
            c.to_ascii_lowercase()
        } else {
            '-'
        }
    };
    let own: String = name.chars().map(plain).collect();
    own.trim_matches(|c| c == '-' || c == '.').to_owned()
}

/// Returns the annotations of a Partition object that is drained or resumed.
pub(super) fn state_annotations(drain_reason: Option<&str>, resumed_at: Option<String>) -> Option<Value> {
    let mut notes = Map::new();
    if let Some(time) = resumed_at {
        notes.insert(annotations::RESUMED_AT.to_owned(), time.into());
        notes.insert(annotations::PARTITION_REASON.to_owned(), Value::Null);
    }
    if let Some(reason) = drain_reason {
        notes.insert(annotations::PARTITION_REASON.to_owned(), reason.into());
    }
    (!notes.is_empty()).then(|| json!({ "metadata": { "annotations": notes } }))
}

/// Returns when it was closed manually in Slurm, as far as the operator knows.
fn closed_at(partition: &Partition) -> Option<Timestamp> {
    let drift = partition.status.iter().flat_map(|status| &status.drift);
    let mut closed = drift.filter(|drift| drift.key == "State" && drift.settled == DriftSettled::Kept);
    closed.find_map(|drift| drift.since.instant())
}

/// Whether it was closed manually after the last resume.
pub(super) fn is_closed_since(partition: &Partition) -> bool {
    let resumed = partition.annotations().get(annotations::RESUMED_AT);
    let resumed = resumed.and_then(|time| time.parse::<Timestamp>().ok());
    closed_at(partition).is_some_and(|closed| resumed.is_none_or(|resumed| resumed <= closed))
}

/// Returns the time at which a manual state is lifted, by the operator's clock if that is known: the local clock may differ, and a
/// partition that is closed later must stay closed.
pub(super) fn lift_time(partition: &Partition, now: Timestamp) -> String {
    let after = closed_at(partition).and_then(|closed| closed.checked_add(jiff::SignedDuration::from_millis(1)).ok());
    format!("{:.3}", after.unwrap_or(now))
}

fn unwritable(error: &EditError) -> Failure {
    match error {
        EditError::Value(_) => Failure::usage(format!("{error}; choose another value")),
        EditError::Unreadable(_) => Failure::refused(format!(
            "the present text cannot be read: {error}; correct it with `kubectl edit`"
        )),
    }
}

#[cfg(test)]
mod tests;
