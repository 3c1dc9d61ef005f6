//! What is known of every partition: what its place asks for, what was accepted, and what slurmctld has. Pure.

use std::collections::BTreeMap;

use api::{ConditionStatus, Partition, conditions::READY, partition::DriftSettled};
use serde::Serialize;
use slurm::{
    Number,
    conf::{Key, Settings},
};

use super::place::{Kind, Place, is_same_but_for_state, places, settings_of_line, wanted_settings};
use crate::access::Live;
use crate::cluster::Cluster;
use crate::output::Listed;

#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct PartitionView {
    pub(crate) namespace: String,
    pub(crate) cluster: String,
    /// Slurm's name.
    pub(crate) name: String,
    pub(crate) kind: Kind,
    /// As kubectl takes it.
    pub(crate) object: String,
    /// What slurmctld says; absent while it cannot be asked.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) live: Option<LiveView>,
    /// What its place asks for.
    pub(crate) wanted_state: String,
    /// What `Nodes=` says, or is to say.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) members: Option<String>,
    pub(crate) settings: BTreeMap<String, String>,
    /// Whether slurmctld was given what its place asks for.
    pub(crate) ready: bool,
    /// Why not, and what to do.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) message: Option<String>,
    /// What somebody changed in Slurm, where that is known.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) drift: Vec<String>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct LiveView {
    pub(crate) state: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) default: Option<bool>,
    pub(crate) nodes: u64,
    pub(crate) node_list: String,
    pub(crate) cpus: u64,
    pub(crate) max_time: String,
    pub(crate) running: usize,
    pub(crate) pending: usize,
}

impl Listed for PartitionView {
    fn object(&self) -> String {
        self.object.clone()
    }
}

/// All partitions of a cluster by name. What slurmctld has and nobody wrote down is among them.
pub(crate) fn view_partitions(cluster: &Cluster, live: Option<&Live>) -> Vec<PartitionView> {
    let written = places(cluster);
    let unknown = live.iter().flat_map(|live| &live.partitions);
    let unknown = unknown.filter(|partition| !written.iter().any(|(name, _)| *name == partition.name));
    let mut views: Vec<PartitionView> = unknown
        .map(|partition| of_unwritten(cluster, live, &partition.name))
        .collect();
    views.extend(written.iter().map(|(name, place)| of_place(cluster, live, name, place)));
    views.sort_by(|a, b| a.name.cmp(&b.name));
    views
}

fn of_place(cluster: &Cluster, live: Option<&Live>, name: &str, place: &Place<'_>) -> PartitionView {
    let wanted = wanted_settings(cluster, name, place);
    let (ready, message) = match place {
        Place::Object(partition) => readiness_of_object(partition),
        Place::NodeSet(_) | Place::ExtraConf => readiness_of_line(cluster, name, place, &wanted),
    };
    let members = match place {
        Place::Object(partition) => members_of_object(partition),
        Place::NodeSet(_) | Place::ExtraConf => wanted.get(&Key::new("Nodes")).cloned(),
    };
    let drift = match place {
        Place::Object(partition) => drift_of(partition),
        Place::NodeSet(_) | Place::ExtraConf => Vec::new(),
    };
    PartitionView {
        namespace: cluster.namespace(),
        cluster: cluster.name(),
        name: name.to_owned(),
        kind: place.kind(),
        object: place.object(cluster),
        live: live_view(live, name),
        wanted_state: wanted
            .get(&Key::new("State"))
            .map_or_else(|| "UP".to_owned(), |state| state.to_ascii_uppercase()),
        members,
        settings: plain(&wanted),
        ready,
        message,
        drift,
    }
}

fn of_unwritten(cluster: &Cluster, live: Option<&Live>, name: &str) -> PartitionView {
    let accepted = settings_of_line(cluster.slurm_conf.as_deref().unwrap_or_default(), name);
    let message = if accepted.is_some() {
        "its line is still in slurm.conf, until Slurm lets it go"
    } else {
        "in no object: made by hand in Slurm, or in a file that slurm.conf includes"
    };
    let settings = accepted.unwrap_or_default();
    PartitionView {
        namespace: cluster.namespace(),
        cluster: cluster.name(),
        name: name.to_owned(),
        kind: Kind::Live,
        object: format!("controllers.slinky.slurm.net/{}", cluster.name()),
        live: live_view(live, name),
        wanted_state: String::new(),
        members: settings.get(&Key::new("Nodes")).cloned(),
        settings: plain(&settings),
        ready: true,
        message: Some(message.to_owned()),
        drift: Vec::new(),
    }
}

fn plain(settings: &Settings) -> BTreeMap<String, String> {
    let is_elsewhere = |key: &Key| *key == *"State" || *key == *"Nodes";
    let rest = settings.iter().filter(|(key, _)| !is_elsewhere(key));
    rest.map(|(key, value)| (key.to_string(), value.clone())).collect()
}

fn members_of_object(partition: &Partition) -> Option<String> {
    let said = partition.status.as_ref().and_then(|status| status.members.clone());
    said.or_else(|| {
        let sets = partition.spec.node_sets.iter().flatten();
        let all: Vec<&str> = sets
            .chain(partition.spec.nodes.iter().flatten())
            .map(String::as_str)
            .collect();
        (!all.is_empty()).then(|| all.join(","))
    })
}

/// What differs now.
fn drift_of(partition: &Partition) -> Vec<String> {
    let drift = partition.status.iter().flat_map(|status| &status.drift);
    drift
        .filter(|drift| drift.settled != DriftSettled::Reverted)
        .map(|drift| {
            format!(
                "{}: {} in Slurm, {} wanted ({})",
                drift.key,
                drift.live,
                drift.wanted,
                drift.settled.as_str()
            )
        })
        .collect()
}

fn readiness_of_object(partition: &Partition) -> (bool, Option<String>) {
    let status = partition.status.as_ref();
    let generation = partition.metadata.generation;
    let is_new = status.and_then(|status| status.observed_generation) < generation;
    let ready = status.and_then(|status| status.conditions.iter().find(|condition| condition.type_ == READY));
    match ready {
        Some(ready) if ready.status == ConditionStatus::True && !is_new => (true, None),
        Some(ready) if !is_new => (false, Some(ready.message.clone())),
        _ => (false, Some("the operator has not looked at it yet".to_owned())),
    }
}

fn readiness_of_line(cluster: &Cluster, name: &str, place: &Place<'_>, wanted: &Settings) -> (bool, Option<String>) {
    let accepted = settings_of_line(cluster.slurm_conf.as_deref().unwrap_or_default(), name);
    if let Some(accepted) = accepted.filter(|accepted| is_same_but_for_state(accepted, wanted)) {
        let state = |settings: &Settings| {
            settings
                .get(&Key::new("State"))
                .map_or("UP", String::as_str)
                .to_ascii_uppercase()
        };
        let closed = state(&accepted) != state(wanted);
        let message = format!(
            "somebody set State={} in Slurm, and it stays so until `kubectl slurm partition resume {name}`",
            state(&accepted)
        );
        return (true, closed.then_some(message));
    }
    let source = held_source(place);
    let status = cluster.controller.status.as_ref();
    let held = status.and_then(|status| status.configuration.as_ref());
    let held = held.and_then(|configuration| configuration.held_inputs.iter().find(|held| held.source == source));
    let message = held.map_or_else(
        || "slurmctld was not given it yet; see `kubectl slurm config diff`".to_owned(),
        |held| held.message.clone(),
    );
    (false, Some(message))
}

/// How the Controller's status calls a place in `heldInputs`.
pub(super) fn held_source(place: &Place<'_>) -> String {
    match place {
        Place::NodeSet(set) => {
            let name = set.metadata.name.clone().unwrap_or_default();
            format!("NodeSet {name:?} spec.partition")
        }
        Place::ExtraConf => "spec.extraConf".to_owned(),
        Place::Object(partition) => {
            let name = partition.metadata.name.clone().unwrap_or_default();
            format!("Partition {name:?}")
        }
    }
}

fn live_view(live: Option<&Live>, name: &str) -> Option<LiveView> {
    let live = live?;
    let partition = live.partitions.iter().find(|partition| partition.name == name)?;
    let (running, pending) = live.jobs.of(name);
    Some(LiveView {
        state: partition.state.to_string(),
        default: partition.is_default(),
        nodes: partition.total_nodes,
        node_list: partition.nodes.clone(),
        cpus: partition.total_cpus,
        max_time: minutes(partition.max_time),
        running,
        pending,
    })
}

/// As Slurm writes a time limit.
fn minutes(time: Number) -> String {
    match time {
        Number::Infinite => "UNLIMITED".to_owned(),
        Number::Unset => String::new(),
        Number::Finite(minutes) => {
            let (days, hours, minutes) = (minutes / 1440, minutes / 60 % 24, minutes % 60);
            if days > 0 {
                format!("{days}-{hours:02}:{minutes:02}:00")
            } else {
                format!("{hours}:{minutes:02}:00")
            }
        }
    }
}
