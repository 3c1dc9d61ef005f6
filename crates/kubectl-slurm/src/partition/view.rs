//! The view of a partition: what its object sets, what was accepted, and what slurmctld has. Pure.

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
    /// In kubectl's form.
    pub(crate) object: String,
    /// The state in slurmctld; absent if it is unknown.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) live: Option<LiveView>,
    /// The state that its object sets.
    pub(crate) wanted_state: String,
    /// The value of `Nodes=`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) members: Option<String>,
    pub(crate) settings: BTreeMap<String, String>,
    /// Whether slurmctld has the settings of the object.
    pub(crate) ready: bool,
    /// The reason and the remedy.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) message: Option<String>,
    /// Manual changes in Slurm, if known.
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

/// Returns all partitions of a cluster by name, including those that only slurmctld has.
pub(crate) fn view_partitions(cluster: &Cluster, live: Option<&Live>) -> Vec<PartitionView> {
    let written = places(cluster);
    let unknown = live.iter().flat_map(|live| &live.partitions);
    let unknown = unknown.filter(|partition| !written.iter().any(|(name, _)| *name == partition.name));
    let mut views: Vec<PartitionView> = unknown
        .map(|partition| of_undefined(cluster, live, &partition.name))
        .collect();
    views.extend(written.iter().map(|(name, place)| of_place(cluster, live, name, place)));
    views.sort_by(|a, b| a.name.cmp(&b.name));
    views
}

fn of_place(cluster: &Cluster, live: Option<&Live>, name: &str, place: &Place<'_>) -> PartitionView {
    let wanted = wanted_settings(cluster, name, place);
    let mut view = PartitionView {
        kind: place.kind(),
        object: place.object(cluster),
        wanted_state: state_of(&wanted),
        ..of_settings(cluster, live, name, &wanted)
    };
    (view.ready, view.message) = match place {
        Place::Object(partition) => readiness_of_object(partition),
        Place::NodeSet(_) | Place::ExtraConf => readiness_of_line(cluster, name, place, &wanted),
    };
    if let Place::Object(partition) = place {
        view.members = members_of_object(partition);
        view.drift = drift_of(partition);
    }
    view
}

fn of_undefined(cluster: &Cluster, live: Option<&Live>, name: &str) -> PartitionView {
    let accepted = settings_of_line(cluster.slurm_conf.as_deref().unwrap_or_default(), name);
    let message = if accepted.is_some() {
        "its line stays in slurm.conf until Slurm deletes it"
    } else {
        "in no object: created manually in Slurm, or in a file that slurm.conf includes"
    };
    PartitionView {
        message: Some(message.to_owned()),
        ..of_settings(cluster, live, name, &accepted.unwrap_or_default())
    }
}

/// Returns the view of a partition that no object defines.
fn of_settings(cluster: &Cluster, live: Option<&Live>, name: &str, settings: &Settings) -> PartitionView {
    PartitionView {
        namespace: cluster.namespace(),
        cluster: cluster.name(),
        name: name.to_owned(),
        kind: Kind::Live,
        object: Place::ExtraConf.object(cluster),
        live: live_view(live, name),
        wanted_state: String::new(),
        members: settings.get(&Key::new("Nodes")).cloned(),
        settings: plain(settings),
        ready: true,
        message: None,
        drift: Vec::new(),
    }
}

fn state_of(settings: &Settings) -> String {
    let state = settings.get(&Key::new("State"));
    state.map_or("UP", String::as_str).to_ascii_uppercase()
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

/// Returns the manual changes that are still in effect.
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
        _ => (false, Some("the operator has not handled it yet".to_owned())),
    }
}

fn readiness_of_line(cluster: &Cluster, name: &str, place: &Place<'_>, wanted: &Settings) -> (bool, Option<String>) {
    let accepted = settings_of_line(cluster.slurm_conf.as_deref().unwrap_or_default(), name);
    if let Some(accepted) = accepted.filter(|accepted| is_same_but_for_state(accepted, wanted)) {
        let state = state_of(&accepted);
        let is_manual = state != state_of(wanted);
        let message = format!(
            "State={state} was set manually in Slurm, and is kept until `kubectl slurm partition resume {name}`"
        );
        return (true, is_manual.then_some(message));
    }
    let source = place.held_source(cluster);
    let configuration = cluster.controller.configuration();
    let held =
        configuration.and_then(|configuration| configuration.held_inputs.iter().find(|held| held.source == source));
    let message = held.map_or_else(
        || "slurmctld does not have it yet; see `kubectl slurm config diff`".to_owned(),
        |held| held.message.clone(),
    );
    (false, Some(message))
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

/// Formats a time limit as Slurm does.
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
