//! Decides who owns a name. Partitions, NodeSets and nodes share one namespace in Slurm; the oldest keeps its name.

use std::{collections::BTreeMap, sync::Arc};

use api::{NodeSet, Partition};
use jiff::Timestamp;
use kube::{Resource, ResourceExt as _};
use slurm::{
    Hostlist,
    conf::{Document, RecordKind},
};

use super::{
    default::is_yes,
    line::{PartitionLine, is_default},
};
use crate::{finding::Finding, reason};

/// When an object was created; an object without a time is the youngest.
pub(crate) fn created(object: &impl Resource) -> Timestamp {
    let created = object.meta().creation_timestamp.as_ref();
    created.map_or(Timestamp::MAX, |time| time.0)
}

/// Orders objects by age.
pub(crate) fn age(object: &impl Resource) -> (Timestamp, String) {
    (created(object), object.meta().name.clone().unwrap_or_default())
}

/// Names in use, each with its place.
#[derive(Clone, Debug, Default)]
pub(crate) struct Taken {
    names: BTreeMap<String, String>,
    default_place: Option<String>,
    /// The hosts of the `NodeName=` lines.
    nodes: Vec<Hostlist>,
}

impl Taken {
    /// The names of a Controller's extraConf.
    pub(crate) fn of_extra_conf(extra: &Document) -> Self {
        let mut taken = Self::default();
        for kind in [RecordKind::Partition, RecordKind::NodeSet] {
            for record in extra.records(kind).filter(|record| !record.is_default()) {
                let place = format!("a {}= line in spec.extraConf of the Controller", kind.key());
                if kind == RecordKind::Partition && record.get("Default").is_some_and(is_yes) {
                    taken.default_place = Some(format!(
                        "PartitionName={} in spec.extraConf of the Controller",
                        record.name
                    ));
                }
                taken.names.insert(record.name.to_owned(), place);
            }
        }
        let nodes = extra.records(RecordKind::Node).filter(|record| !record.is_default());
        taken
            .nodes
            .extend(nodes.filter_map(|record| Hostlist::parse(record.name).ok()));
        taken
    }

    /// Adds a NodeSet by its own name, its name in Slurm and the settings of its partition.
    pub(crate) fn add_node_set(&mut self, own: &str, name: &str, partition: Option<&str>) {
        let place = format!("NodeSet {own:?}");
        // extraConf comes after the NodeSets in slurm.conf, so its line wins if both use the name.
        if partition.is_some_and(is_default) && self.default_place.is_none() {
            self.default_place = Some(place.clone());
        }
        self.names.entry(name.to_owned()).or_insert(place);
    }

    /// Adds a Partition by its own name and its line.
    pub(crate) fn add(&mut self, own: &str, line: &PartitionLine) {
        self.add_partition(own, line.name.clone(), line.is_default());
    }

    fn add_partition(&mut self, own: &str, name: String, is_default: bool) {
        let place = format!("Partition {own:?}");
        if is_default {
            self.default_place = Some(place.clone());
        }
        self.names.insert(name, place);
    }

    pub(crate) fn has(&self, name: &str) -> bool {
        self.names.contains_key(name)
    }

    pub(crate) fn has_default(&self) -> bool {
        self.default_place.is_some()
    }

    /// Checks that no other object has this name or the default. `is_node`: Slurm has a node of this name.
    pub(crate) fn check(
        &self,
        partition: &Partition,
        node_sets: &[Arc<NodeSet>],
        is_node: impl Fn(&str) -> bool,
    ) -> Result<(), Finding> {
        let name = partition.slurm_name();
        let of_node = || self.node_of_name(node_sets, is_node, &name);
        if let Some(place) = self.names.get(&name).cloned().or_else(of_node) {
            return Err(Finding::blocking(
                reason::PARTITION_NAME_TAKEN,
                format!(
                    "{name:?} is the name of {place} in Slurm already; give this one another spec.partitionName in a new Partition, or remove the other"
                ),
            ));
        }
        match &self.default_place {
            Some(place) if partition.spec.default == Some(true) => Err(Finding::blocking(
                reason::TWO_DEFAULTS,
                format!("spec.default is true, and {place} is the default partition already; unset one of the two"),
            )),
            _ => Ok(()),
        }
    }

    /// Returns the place of a node of this name.
    fn node_of_name(&self, node_sets: &[Arc<NodeSet>], is_node: impl Fn(&str) -> bool, name: &str) -> Option<String> {
        let numbered = |node_set: &&Arc<NodeSet>| {
            let of_object = format!("{}-", node_set.name_any());
            let prefix = node_set.spec.hostname_prefix().filter(|prefix| !prefix.is_empty());
            let number = name.strip_prefix(prefix.unwrap_or(&of_object));
            number.is_some_and(|number| !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit()))
        };
        if let Some(node_set) = node_sets.iter().find(numbered) {
            Some(format!("a node of NodeSet {:?}", node_set.name_any()))
        } else if self.nodes.iter().any(|nodes| nodes.contains(name)) {
            Some("a NodeName= line in spec.extraConf of the Controller".to_owned())
        } else {
            is_node(name).then(|| "a node".to_owned())
        }
    }
}

/// Returns the conflict of a Partition with an older one of the same external cluster.
pub(crate) fn find_rival(partition: &Partition, others: &[Arc<Partition>]) -> Option<Finding> {
    let mut taken = Taken::default();
    let others = others
        .iter()
        .filter(|other| other.spec.controller_ref == partition.spec.controller_ref);
    let mut older: Vec<&Arc<Partition>> = others.filter(|other| age(other.as_ref()) < age(partition)).collect();
    // The oldest last: it keeps the name.
    older.sort_by_key(|other| std::cmp::Reverse(age(other.as_ref())));
    for other in older {
        taken.add_partition(&other.name_any(), other.slurm_name(), other.spec.default == Some(true));
    }
    taken.check(partition, &[], |_| false).err()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn partition(name: &str, default: bool, created: &str) -> Arc<Partition> {
        let partition = serde_json::from_value(json!({
            "apiVersion": "slinky.slurm.net/v1beta1", "kind": "Partition",
            "metadata": { "name": format!("{name}-{created}"), "namespace": "hpc",
                          "creationTimestamp": format!("2026-01-0{created}T00:00:00Z") },
            "spec": { "controllerRef": { "name": "slurm" }, "partitionName": name, "nodes": ["n1"], "default": default },
        }));
        Arc::new(partition.unwrap())
    }

    fn reason_of(fault: Option<Finding>) -> Option<&'static str> {
        fault.map(|fault| fault.reason)
    }

    #[test]
    fn the_older_of_two_partitions_keeps_the_name_and_the_default() {
        let all = [
            partition("gpu", true, "1"),
            partition("gpu", false, "2"),
            partition("big", true, "3"),
        ];
        assert_eq!(find_rival(&all[0], &all), None);
        assert_eq!(reason_of(find_rival(&all[1], &all)), Some(reason::PARTITION_NAME_TAKEN));
        assert_eq!(reason_of(find_rival(&all[2], &all)), Some(reason::TWO_DEFAULTS));
    }

    #[test]
    fn names_of_extra_conf_node_sets_and_nodes_are_taken() {
        let extra = Document::parse("PartitionName=a Nodes=ALL Default=YES\nNodeName=ext[1-2]\n");
        let mut taken = Taken::of_extra_conf(&extra);
        taken.add_node_set("compute", "cpu", Some("Default=YES"));
        let check = |name: &str, default| {
            taken
                .check(&partition(name, default, "1"), &[], |name| name == "seen")
                .err()
        };
        for name in ["a", "cpu", "ext2", "seen"] {
            assert_eq!(
                reason_of(check(name, false)),
                Some(reason::PARTITION_NAME_TAKEN),
                "{name}"
            );
        }
        assert_eq!(check("ext3", false), None);
        let two = check("ext3", true).unwrap();
        assert!(
            two.message.contains("PartitionName=a in spec.extraConf"),
            "{}",
            two.message
        );
    }
}
