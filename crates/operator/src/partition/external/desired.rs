//! What a Partition asks of a slurmctld whose files are not the operator's. Pure.
//!
//! Keys that the object does not have keep the value of the file there, or of a manual change: nothing is sent for them. A key that is
//! removed from the object goes back to the value of the file, or to Slurm's default. Where the file is not known, it stays.

use std::{collections::BTreeSet, sync::Arc};

use api::{NodeSet, Partition};
use kube::ResourceExt as _;
use slurm::{
    conf::{Key, Settings},
    rpc::{PartitionUpdate, plan_partition_update},
};

use crate::{
    cluster::external::ExternalCluster,
    fault::Fault,
    partition::rules::{
        line::{Line, render_settings, settings_in},
        members::resolve_members,
    },
    reason,
};

/// The partition that is wanted there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::partition) struct Desired {
    /// The line that would say all of it in slurm.conf.
    pub(in crate::partition) line: Line,
    /// What makes the partition so.
    pub(in crate::partition) update: PartitionUpdate,
    /// Why it does not outlive that slurmctld, if it does not.
    pub(in crate::partition) not_persistent: Option<String>,
}

/// Plans the wanted partition, or returns what is wrong with it.
pub(in crate::partition) fn plan_desired(
    partition: &Partition,
    node_sets: &[Arc<NodeSet>],
    cluster: &ExternalCluster,
    address: &str,
) -> Result<Desired, Fault> {
    let name = partition.slurm_name();
    let nodes = members(partition, node_sets, cluster, address)?;
    let status = partition.status.as_ref();
    let before = status.filter(|status| status.applied.is_some());
    let before = before.and_then(|status| status.line.as_deref()).map(settings_in);
    let in_file = cluster.line(&name);
    let base = match &before {
        // What was told last has the file's keys in it, and nobody knows which.
        Some(before) if !cluster.is_file_known => before.clone(),
        _ => in_file.cloned().unwrap_or_default(),
    };
    let own = own_settings(partition, &name, &nodes);
    let mut whole = base.clone();
    for (key, value) in &own {
        // Of two spellings that of the object is shown.
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
        Fault::new(
            reason::CONFIG_REJECTED,
            format!(
                "a running slurmctld cannot take {}, and the slurm.conf of slurmctld at {address} is not the operator's; take it out of the spec, or write {} there and reconfigure",
                keys.join(", "),
                line.whole()
            ),
        )
    })?;
    let is_in_file = in_file.is_some() && is_same(&name, &base, &whole);
    let unless = if cluster.is_file_known {
        ""
    } else {
        ", unless its slurm.conf, which slurmrestd does not tell, says the same"
    };
    let not_persistent = (!is_in_file && !cluster.keeps_partitions).then(|| {
        format!(
            "slurmctld at {address} forgets it when it starts anew or reads its files{unless}, whereupon the operator tells it again; to have it last, write {} into the slurm.conf there",
            line.whole()
        )
    });
    Ok(Desired {
        line,
        update,
        not_persistent,
    })
}

/// What `Nodes=` is to say.
fn members(
    partition: &Partition,
    node_sets: &[Arc<NodeSet>],
    cluster: &ExternalCluster,
    address: &str,
) -> Result<String, Fault> {
    let bad = |why: String| Fault::new(reason::BAD_MEMBERS, why);
    let members = resolve_members(partition, node_sets).map_err(bad)?;
    if members.mark.is_some() {
        return Err(bad(format!(
            "spec.excludeNodes takes nodes out of NodeSets, for which the slurm.conf of slurmctld at {address} would have to be the operator's; list the nodes that belong to it in spec.nodes"
        )));
    }
    let unknown = node_sets.iter().find(|node_set| {
        let name = node_set.slurm_name();
        members.nodes.split(',').any(|entry| entry == name) && !cluster.node_sets.contains(&name)
    });
    // slurmctld knows, and refuses what it does not have.
    let unknown = unknown.filter(|_| cluster.is_file_known);
    match unknown {
        None => Ok(members.nodes),
        Some(node_set) => Err(bad(format!(
            "NodeSet {:?} is no set of nodes to slurmctld at {address}; write NodeSet={name} Feature={name} into the slurm.conf there and reconfigure, or list nodes in spec.nodes",
            node_set.name_any(),
            name = node_set.slurm_name()
        ))),
    }
}

/// What the object says itself.
fn own_settings(partition: &Partition, name: &str, nodes: &str) -> Settings {
    let spec = &partition.spec;
    let mut own = settings_in(&format!("PartitionName={name} {}", render_settings(spec)));
    own.insert(Key::new("Nodes"), nodes.to_owned());
    if let Some(state) = &spec.state {
        own.insert(Key::new("State"), state.slurm_word());
    }
    own
}

fn to_line(name: &str, nodes: String, settings: &Settings, generation: i64) -> Line {
    let state = settings.get(&Key::new("State"));
    let others = settings
        .iter()
        .filter(|(key, _)| **key != *"Nodes" && **key != *"State");
    // As slurm.conf has to have it, where a blank ends a value.
    let needs_quotes = |value: &str| value.is_empty() || value.contains(char::is_whitespace);
    let others: Vec<String> = others
        .map(|(key, value)| match value {
            value if needs_quotes(value) => format!("{}=\"{value}\"", key.as_str()),
            value => format!("{}={value}", key.as_str()),
        })
        .collect();
    Line {
        name: name.to_owned(),
        nodes,
        state: state.map_or_else(|| "UP".to_owned(), |state| state.to_ascii_uppercase()),
        settings: others.join(" "),
        generation,
        mark: None,
    }
}

/// The update for these keys. A key that no update can carry does not matter where the file has its value.
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
        let gone = touched.iter().filter(|key| !whole.contains_key(**key));
        let old: Settings = gone.map(|key| ((*key).clone(), String::new())).collect();
        let unsaid = match plan_partition_update(name, &old, &new) {
            // slurmctld does not tell it, so nobody could know whether it was taken.
            Ok(update) if update.topology.is_some() => BTreeSet::from([Key::new("Topology")]),
            Ok(update) => return Ok(update),
            Err(not_live) => not_live.keys,
        };
        let missing: BTreeSet<Key> = unsaid
            .iter()
            .filter(|key| base.get(*key) != whole.get(*key))
            .cloned()
            .collect();
        if !missing.is_empty() {
            return Err(missing);
        }
        let count = touched.len();
        touched.retain(|key| !unsaid.contains(*key));
        if touched.len() == count {
            return Err(unsaid);
        }
    }
}

/// Whether two lines make the same partition, however they are written.
fn is_same(name: &str, one: &Settings, other: &Settings) -> bool {
    let said = |settings: &Settings| plan_partition_update(name, &Settings::new(), settings);
    match (said(one), said(other)) {
        (Ok(one), Ok(other)) => one == other,
        _ => one == other,
    }
}
