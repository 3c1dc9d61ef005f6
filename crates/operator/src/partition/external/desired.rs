//! Plans the wanted partition of a slurmctld whose files the operator does not manage. Pure.
//!
//! Keys that the object does not set keep the value of the file there, or of a manual change: nothing is sent for them.
//! A key that is removed from the object is reset to the value of the file, or to Slurm's default. If the file is not
//! known, the value is kept.

use std::{collections::BTreeSet, sync::Arc};

use api::{NodeSet, Partition};
use kube::ResourceExt as _;
use slurm::{
    conf::{Key, Settings},
    rpc::{PartitionUpdate, plan_partition_update},
};

use super::sent_line;
use crate::{
    cluster::external::ExternalCluster,
    finding::Finding,
    partition::rules::{
        line::{PartitionLine, render_settings, settings_in},
        members::resolve_members,
    },
    reason,
};

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Desired {
    /// The equivalent line of slurm.conf.
    pub(super) line: PartitionLine,
    /// The update that makes the partition match.
    pub(super) update: PartitionUpdate,
    /// Why it does not survive a restart of that slurmctld, if so.
    pub(super) not_persistent: Option<String>,
}

/// Plans the wanted partition, or returns what is wrong with it.
pub(super) fn plan_desired(
    partition: &Partition,
    node_sets: &[Arc<NodeSet>],
    cluster: &ExternalCluster,
    address: &str,
) -> Result<Desired, Finding> {
    let name = partition.slurm_name();
    let nodes = members(partition, node_sets, cluster, address)?;
    let before = sent_line(partition).map(settings_in);
    let in_file = cluster.line(&name);
    let base = match &before {
        // The last line sent contains keys of the file, and it is not known which.
        Some(before) if !cluster.is_file_known => before.clone(),
        _ => in_file.cloned().unwrap_or_default(),
    };
    let mut own = settings_in(&format!("PartitionName={name} {}", render_settings(&partition.spec)));
    own.insert(Key::new("Nodes"), nodes.clone());
    let state = partition.spec.state.as_ref();
    own.extend(state.map(|state| (Key::new("State"), state.slurm_word())));
    let mut whole = base.clone();
    for (key, value) in &own {
        // Of two spellings of a key, the object's is shown.
        whole.remove(key);
        whole.insert(key.clone(), value.clone());
    }
    let line = to_line(&name, nodes, &whole, partition.metadata.generation.unwrap_or_default());
    let before = before.unwrap_or_else(|| base.clone());
    let differs = |key: &&Key| before.get(*key) != whole.get(*key);
    let touched: BTreeSet<&Key> = own
        .keys()
        .chain(before.keys().chain(whole.keys()).filter(differs))
        .collect();
    let update = updates(&name, &touched, &base, &whole).map_err(|keys| {
        let keys: Vec<&str> = keys.iter().map(Key::as_str).collect();
        Finding::blocking(
            reason::CONFIG_REJECTED,
            format!(
                "a running slurmctld cannot change {}, and the operator does not manage the slurm.conf of slurmctld at {address}; remove it from the spec, or write {} there and reconfigure",
                keys.join(", "),
                line.whole()
            ),
        )
    })?;
    let is_in_file = in_file.is_some() && is_same(&name, &base, &whole);
    let unless = if cluster.is_file_known {
        ""
    } else {
        ", unless its slurm.conf, which slurmrestd does not return, contains the same"
    };
    let not_persistent = (!is_in_file && !cluster.keeps_partitions).then(|| {
        format!(
            "slurmctld at {address} loses it when it restarts or reads its files{unless}; the operator then sends it again; to make it persistent, write {} into the slurm.conf there",
            line.whole()
        )
    });
    Ok(Desired {
        line,
        update,
        not_persistent,
    })
}

/// The value of `Nodes=`.
fn members(
    partition: &Partition,
    node_sets: &[Arc<NodeSet>],
    cluster: &ExternalCluster,
    address: &str,
) -> Result<String, Finding> {
    let bad = |why: String| Finding::blocking(reason::BAD_MEMBERS, why);
    let members = resolve_members(partition, node_sets)?;
    if members.mark.is_some() {
        return Err(bad(format!(
            "spec.excludeNodes excludes nodes of NodeSets, which requires that the operator manages the slurm.conf of slurmctld at {address}; list the nodes of the partition in spec.nodes"
        )));
    }
    let unknown = node_sets.iter().find(|node_set| {
        let name = node_set.slurm_name();
        members.nodes.split(',').any(|entry| entry == name) && !cluster.node_sets.contains(&name)
    });
    // Without the file, slurmctld itself rejects unknown sets.
    let unknown = unknown.filter(|_| cluster.is_file_known);
    match unknown {
        None => Ok(members.nodes),
        Some(node_set) => Err(bad(format!(
            "NodeSet {:?} is not a node set of slurmctld at {address}; write NodeSet={name} Feature={name} into the slurm.conf there and reconfigure, or list nodes in spec.nodes",
            node_set.name_any(),
            name = node_set.slurm_name()
        ))),
    }
}

fn to_line(name: &str, nodes: String, settings: &Settings, generation: i64) -> PartitionLine {
    let state = settings.get(&Key::new("State"));
    // In slurm.conf a blank ends a value.
    let needs_quotes = |value: &str| value.is_empty() || value.contains(char::is_whitespace);
    let others: Vec<String> = settings
        .iter()
        .filter(|(key, _)| **key != *"Nodes" && **key != *"State")
        .map(|(key, value)| match value {
            value if needs_quotes(value) => format!("{key}=\"{value}\""),
            value => format!("{key}={value}"),
        })
        .collect();
    PartitionLine {
        name: name.to_owned(),
        nodes,
        state: state.map_or_else(|| "UP".to_owned(), |state| state.to_ascii_uppercase()),
        settings: others.join(" "),
        generation,
        mark: None,
    }
}

/// The update for these keys. A key that no update supports is ignored if the file has its value.
fn updates(
    name: &str,
    touched: &BTreeSet<&Key>,
    base: &Settings,
    whole: &Settings,
) -> Result<PartitionUpdate, BTreeSet<Key>> {
    let mut touched = touched.clone();
    loop {
        let of = |key: &&Key| Some(((*key).clone(), whole.get(*key)?.clone()));
        let new: Settings = touched.iter().filter_map(of).collect();
        let removed = touched.iter().filter(|key| !whole.contains_key(**key));
        let old: Settings = removed.map(|key| ((*key).clone(), String::new())).collect();
        let unsupported = match plan_partition_update(name, &old, &new) {
            // slurmctld does not report it, so it could not be verified.
            Ok(update) if update.topology.is_some() => BTreeSet::from([Key::new("Topology")]),
            Ok(update) => return Ok(update),
            Err(not_live) => not_live.keys,
        };
        let missing: BTreeSet<Key> = unsupported
            .iter()
            .filter(|key| base.get(*key) != whole.get(*key))
            .cloned()
            .collect();
        if !missing.is_empty() {
            return Err(missing);
        }
        let count = touched.len();
        touched.retain(|key| !unsupported.contains(*key));
        if touched.len() == count {
            return Err(unsupported);
        }
    }
}

/// Whether two lines make the same partition, however they are written.
fn is_same(name: &str, one: &Settings, other: &Settings) -> bool {
    let update = |settings: &Settings| plan_partition_update(name, &Settings::new(), settings);
    match (update(one), update(other)) {
        (Ok(one), Ok(other)) => one == other,
        _ => one == other,
    }
}
