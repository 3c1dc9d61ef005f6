//! The object that defines a partition. Pure.

use api::{NodeSet, Partition};
use kube::ResourceExt as _;
use serde::Serialize;
use slurm::conf::{Document, Key, RecordKind, Settings};

use crate::cluster::Cluster;

#[derive(Clone, Debug)]
pub(crate) enum Place<'a> {
    /// An object of its own.
    Object(&'a Partition),
    /// `spec.partition` of a NodeSet.
    NodeSet(&'a NodeSet),
    /// A line of the Controller's `spec.extraConf`.
    ExtraConf,
}

/// The kind of a place, for people.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub(crate) enum Kind {
    Partition,
    NodeSet,
    #[serde(rename = "extraConf")]
    ExtraConf,
    /// In no object: created by `scontrol create`, or in a file that slurm.conf includes.
    #[serde(rename = "live")]
    Live,
}

impl Kind {
    pub(crate) fn word(self) -> &'static str {
        match self {
            Self::Partition => "Partition",
            Self::NodeSet => "NodeSet",
            Self::ExtraConf => "extraConf",
            Self::Live => "live",
        }
    }
}

impl Place<'_> {
    pub(crate) fn kind(&self) -> Kind {
        match self {
            Self::Object(_) => Kind::Partition,
            Self::NodeSet(_) => Kind::NodeSet,
            Self::ExtraConf => Kind::ExtraConf,
        }
    }

    /// The name of the object.
    pub(crate) fn name(&self, cluster: &Cluster) -> String {
        match self {
            Self::Object(partition) => partition.name_any(),
            Self::NodeSet(set) => set.name_any(),
            Self::ExtraConf => cluster.name(),
        }
    }

    /// The object, in kubectl's form.
    pub(crate) fn object(&self, cluster: &Cluster) -> String {
        let kind = match self {
            Self::Object(_) => "partitions",
            Self::NodeSet(_) => "nodesets",
            Self::ExtraConf => "controllers",
        };
        format!("{kind}.slinky.slurm.net/{}", self.name(cluster))
    }

    /// The field, for people.
    pub(crate) fn field(&self, cluster: &Cluster) -> String {
        let name = self.name(cluster);
        match self {
            Self::Object(_) => format!("Partition {name}"),
            Self::NodeSet(_) => format!("NodeSet {name} spec.partition"),
            Self::ExtraConf => format!("Controller {name} spec.extraConf"),
        }
    }

    /// Its name in `heldInputs` of the Controller's status.
    pub(crate) fn held_source(&self, cluster: &Cluster) -> String {
        let name = self.name(cluster);
        match self {
            Self::Object(_) => format!("Partition {name:?}"),
            Self::NodeSet(_) => format!("NodeSet {name:?} spec.partition"),
            Self::ExtraConf => "spec.extraConf".to_owned(),
        }
    }
}

/// Returns all partitions of the objects, by Slurm's names. A duplicate name occurs twice.
pub(crate) fn places(cluster: &Cluster) -> Vec<(String, Place<'_>)> {
    let objects = cluster
        .partitions
        .iter()
        .map(|object| (object.slurm_name(), Place::Object(object)));
    let own_partition = |set: &&NodeSet| set.spec.wanted_partition().is_some();
    let sets = cluster.node_sets.iter().filter(own_partition);
    let sets = sets.map(|set| (set.slurm_name(), Place::NodeSet(set)));
    let extra = Document::parse(cluster.extra_conf());
    let lines: Vec<String> = extra
        .records(RecordKind::Partition)
        .filter(|record| !record.is_default())
        .map(|record| record.name.to_owned())
        .collect();
    objects
        .chain(sets)
        .chain(lines.into_iter().map(|name| (name, Place::ExtraConf)))
        .collect()
}

/// Returns the names of all partitions of the objects.
pub(crate) fn partition_names(cluster: &Cluster) -> Vec<String> {
    places(cluster).into_iter().map(|(name, _)| name).collect()
}

/// Returns the settings of the partition's line in slurm.conf, without those of `PartitionName=DEFAULT`. For a Partition object these
/// are its own; the operator adds the members.
pub(crate) fn wanted_settings(cluster: &Cluster, name: &str, place: &Place<'_>) -> Settings {
    match place {
        Place::Object(partition) => object_settings(partition),
        Place::NodeSet(set) => {
            let config = set.spec.wanted_partition().unwrap_or_default();
            settings_of_line(&format!("PartitionName={name} Nodes={name} {config}"), name).unwrap_or_default()
        }
        Place::ExtraConf => settings_of_line(cluster.extra_conf(), name).unwrap_or_default(),
    }
}

/// Returns the settings of a partition's line in a text.
pub(crate) fn settings_of_line(text: &str, name: &str) -> Option<Settings> {
    let document = Document::parse(text);
    let record = document.record(RecordKind::Partition, name)?;
    let settings = record.settings.iter();
    Some(
        settings
            .map(|setting| (setting.key.clone(), setting.value.clone()))
            .collect(),
    )
}

/// Whether two lines are equal but for the state: slurm.conf has a manual state, whatever the object has.
pub(crate) fn is_same_but_for_state(one: &Settings, other: &Settings) -> bool {
    let rest = |settings: &Settings| -> Settings {
        let rest = settings.iter().filter(|(key, _)| **key != *"State");
        rest.map(|(key, value)| (key.clone(), value.clone())).collect()
    };
    rest(one) == rest(other)
}

fn object_settings(partition: &Partition) -> Settings {
    let spec = &partition.spec;
    let mut settings: Settings = spec
        .settings()
        .into_iter()
        .map(|setting| (Key::new(setting.key), setting.value))
        .collect();
    let config = format!("PartitionName=x {}", spec.config.as_deref().unwrap_or_default());
    settings.extend(settings_of_line(&config, "x").unwrap_or_default());
    settings.insert(Key::new("State"), spec.state().slurm_word());
    settings
}
