//! How a Partition excludes single nodes of its NodeSets. Pure.
//!
//! Slurm has no syntax for exclusion. A list of nodes in slurm.conf would work, but slurmctld does not start with an
//! unknown name in it (not yet registered, or deleted), and new nodes would be missing. So the members get a feature,
//! the mark, and the partition refers to a `NodeSet=` line with that feature, which Slurm evaluates at every start,
//! reconfigure and registration of a node.
//!
//! The name of a mark is derived from everything that decides who has it. So a mark is never valid for one list and
//! wrong for the next: a node with an older mark, or without one, is not a member. The line goes live when all existing
//! nodes have the mark.

use std::{collections::BTreeMap, sync::Arc};

use api::{NodeSet, Partition};
use jiff::{SignedDuration, Timestamp};
use serde::{Deserialize, Serialize};
use slurm::{Hostlist, Node, revision::Digest};

use super::members::resolve_members;

/// Separates the partition's name from the digest of the list. No host name in Kubernetes contains a dot.
const INFIX: &str = ".members-";

/// A slurmd registers within a second of its start. After a minute something prevents it from registering.
const REGISTRATION_TIMEOUT: SignedDuration = SignedDuration::from_mins(1);

/// A worker that runs on a Kubernetes node. It may register at any moment: Slurm's last response may not contain it yet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Joining {
    /// Name of its NodeSet in Slurm.
    pub(crate) node_set: String,
    /// Its own name in Slurm.
    pub(crate) node: String,
    /// When its slurmd started, or else when its pod was created.
    pub(crate) since: Timestamp,
}

/// The mark of a Partition's members.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Mark {
    /// The feature, and the node set of the nodes that have it.
    pub(crate) name: String,
    /// NodeSets by their names in Slurm.
    node_sets: Vec<String>,
    /// A hostlist.
    excluded: String,
}

impl Mark {
    pub(crate) fn new(partition: &str, node_sets: Vec<String>, excluded: &Hostlist) -> Self {
        let excluded = excluded.to_string();
        let digest = Digest::of(format!("{} {excluded}", node_sets.join(",")).as_bytes()).to_string();
        // Letters only: a name that ends in digits could be read as a range of hosts.
        let letters = digest.bytes().take(8).map(|digit| match digit {
            b'0'..=b'9' => char::from(b'g' + (digit - b'0')),
            letter => char::from(letter),
        });
        Self {
            name: format!("{partition}{INFIX}{}", letters.collect::<String>()),
            node_sets,
            excluded,
        }
    }

    /// Returns the NodeSets, and the nodes that are excluded.
    pub(crate) fn names(&self) -> (String, &str) {
        (self.node_sets.join(","), &self.excluded)
    }

    /// Whether a node of this set (by its name in Slurm) is a member.
    pub(crate) fn is_for(&self, node_set: &str, node: &str) -> bool {
        self.node_sets.iter().any(|name| name == node_set)
            && Hostlist::parse(&self.excluded).is_ok_and(|excluded| !excluded.contains(node))
    }

    /// Returns the first node that must have the mark and does not have it, among the nodes that Slurm listed at this time
    /// and the workers that it may list by now. A node that is down accepts no jobs, and may have no pod that can set the
    /// mark.
    pub(crate) fn first_without<'a>(
        &self,
        nodes: &'a BTreeMap<String, Node>,
        at: Timestamp,
        joining: &'a [Joining],
    ) -> Option<&'a str> {
        let lacks = |node: &&Node| {
            let is_member = node.features.iter().any(|set| self.is_for(set, &node.name));
            is_member && !node.state.is_down() && !node.features.contains(&self.name)
        };
        let joins = |worker: &&Joining| {
            self.is_for(&worker.node_set, &worker.node)
                && !nodes.contains_key(&worker.node)
                && at.duration_since(worker.since) < REGISTRATION_TIMEOUT
        };
        let listed = nodes.values().find(lacks).map(|node| &node.name);
        let first = listed.or_else(|| joining.iter().find(joins).map(|worker| &worker.node));
        first.map(String::as_str)
    }
}

/// The marks that one node must have.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Marks {
    /// To be added to the node's features.
    pub(crate) wanted: Vec<String>,
    /// Names of partitions whose older marks may still be in slurm.conf.
    unsettled: Vec<String>,
    /// Marks that are in slurm.conf now.
    written: Vec<String>,
}

impl Marks {
    /// Returns the marks of a node of this NodeSet. `node_sets` and `partitions` belong to the Controller.
    pub(crate) fn of(
        node_set: &NodeSet,
        node: &str,
        partitions: &[Arc<Partition>],
        node_sets: &[Arc<NodeSet>],
    ) -> Self {
        let mut marks = Self::default();
        for partition in partitions {
            let status = partition.status.as_ref();
            marks.written.extend(written_mark(partition).map(str::to_owned));
            let applied = status.and_then(|status| status.applied.as_ref());
            if applied.map(|applied| applied.generation) != partition.metadata.generation {
                marks.unsettled.push(partition.slurm_name());
            }
            let mark = resolve_members(partition, node_sets)
                .ok()
                .and_then(|members| members.mark);
            let mark = mark.filter(|mark| mark.is_for(&node_set.slurm_name(), node));
            marks.wanted.extend(mark.map(|mark| mark.name));
        }
        marks
    }

    /// Whether a feature is a mark that is no longer needed.
    pub(crate) fn is_stale(&self, feature: &str) -> bool {
        let Some(partition) = partition_of(feature) else {
            return false;
        };
        let has = |all: &[String], name: &str| all.iter().any(|each| each == name);
        !has(&self.wanted, feature) && !has(&self.written, feature) && !has(&self.unsettled, partition)
    }
}

/// Returns the partition of a feature, if the feature is a mark.
pub(crate) fn partition_of(feature: &str) -> Option<&str> {
    let (partition, rest) = feature.rsplit_once(INFIX)?;
    (rest.len() == 8 && rest.bytes().all(|byte| byte.is_ascii_lowercase())).then_some(partition)
}

/// Whether nodes have or may have marks because of this Partition.
pub(crate) fn has_mark(partition: &Partition) -> bool {
    let excludes = partition.spec.exclude_nodes.as_ref();
    excludes.is_some_and(|nodes| !nodes.is_empty()) || written_mark(partition).is_some()
}

fn written_mark(partition: &Partition) -> Option<&str> {
    let line = partition.status.as_ref()?.line.as_deref()?;
    let nodes = line.split_whitespace().find_map(|item| item.strip_prefix("Nodes="))?;
    nodes.split(',').find(|name| partition_of(name).is_some())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn mark(node_sets: &[&str], excluded: &str) -> Mark {
        let node_sets = node_sets.iter().map(|name| (*name).to_owned()).collect();
        Mark::new("long", node_sets, &Hostlist::parse(excluded).unwrap())
    }

    fn node(name: &str, features: &[&str], state: &str) -> Node {
        serde_json::from_value(json!({ "name": name, "features": features, "state": [state] })).unwrap()
    }

    #[test]
    fn a_mark_identifies_the_list_of_members() {
        let one = mark(&["cpu"], "cpu-1");
        assert_eq!(partition_of(&one.name), Some("long"));
        assert_eq!(one, mark(&["cpu"], "cpu-[1]"));
        assert_ne!(one.name, mark(&["cpu"], "cpu-[1-2]").name);
        assert_ne!(one.name, mark(&["cpu", "gpu"], "cpu-1").name);
        assert_eq!(partition_of("k8s/rack.members-1"), None);
    }

    #[test]
    fn every_node_of_the_sets_that_accepts_jobs_must_have_the_mark_unless_excluded() {
        let mark = mark(&["cpu", "gpu"], "cpu-1");
        let has = ["cpu", mark.name.as_str()];
        let by_name = |nodes: Vec<Node>| -> BTreeMap<String, Node> {
            nodes.into_iter().map(|node| (node.name.clone(), node)).collect()
        };
        let at = |second: i64| Timestamp::from_second(second).unwrap();
        for (nodes, missing) in [
            (vec![], None),
            (vec![node("cpu-0", &has, "IDLE"), node("cpu-1", &["cpu"], "IDLE")], None),
            (vec![node("gpu-0", &["gpu"], "IDLE")], Some("gpu-0")),
            (
                vec![node("cpu-2", &["cpu", "long.members-aaaaaaaa"], "IDLE")],
                Some("cpu-2"),
            ),
            (vec![node("cpu-2", &["cpu"], "DOWN")], None),
            (vec![node("other-0", &["other"], "IDLE")], None),
        ] {
            assert_eq!(
                mark.first_without(&by_name(nodes.clone()), at(0), &[]),
                missing,
                "{nodes:?}"
            );
        }
        for (node_set, node, since, missing) in [
            ("cpu", "cpu-2", 0, Some("cpu-2")),
            ("cpu", "cpu-0", 0, None),
            ("cpu", "cpu-1", 0, None),
            ("other", "other-0", 0, None),
            ("cpu", "cpu-2", -60, None),
        ] {
            let joining = [Joining {
                node_set: node_set.to_owned(),
                node: node.to_owned(),
                since: at(since),
            }];
            let listed = by_name(vec![self::node("cpu-0", &has, "IDLE")]);
            assert_eq!(mark.first_without(&listed, at(0), &joining), missing, "{node} {since}");
        }
    }

    fn partition(exclude: &[&str], generation: i64, applied: i64, line: &str) -> Arc<Partition> {
        let object = json!({
            "apiVersion": "slinky.slurm.net/v1alpha1", "kind": "Partition",
            "metadata": { "name": "long", "namespace": "hpc", "generation": generation },
            "spec": { "controllerRef": { "name": "slurm" }, "nodeSets": ["cpu"], "excludeNodes": exclude },
            "status": { "line": line, "applied": { "generation": applied, "time": "2026-01-01T00:00:00Z", "way": "Reconfigure" } },
        });
        Arc::new(serde_json::from_value(object).unwrap())
    }

    #[test]
    fn an_older_mark_is_stale_once_the_newer_one_is_in_slurm_conf() {
        let cpu: NodeSet = serde_json::from_value(json!({
            "apiVersion": "slinky.slurm.net/v1beta1", "kind": "NodeSet", "metadata": { "name": "cpu", "namespace": "hpc" },
            "spec": { "controllerRef": { "name": "slurm" } },
        }))
        .unwrap();
        let sets = [Arc::new(cpu.clone())];
        let (old, new) = (mark(&["cpu"], "cpu-1").name, mark(&["cpu"], "cpu-2").name);
        let line = |mark: &str| format!("PartitionName=long Nodes={mark} State=UP");
        let marks = |node: &str, partitions: &[Arc<Partition>]| Marks::of(&cpu, node, partitions, &sets);

        let under_way = marks("cpu-1", &[partition(&["cpu-2"], 2, 1, &line(&old))]);
        assert_eq!(under_way.wanted, std::slice::from_ref(&new));
        assert!(!under_way.is_stale(&old));
        // Accepted, though the status still shows the former line.
        assert!(!marks("cpu-1", &[partition(&["cpu-2"], 3, 2, "")]).is_stale(&old));
        let done = marks("cpu-2", &[partition(&["cpu-2"], 2, 2, &line(&new))]);
        assert_eq!(done.wanted.len(), 0);
        assert!(done.is_stale(&old) && !done.is_stale(&new) && !done.is_stale("cpu") && !done.is_stale("k8s/x"));
        assert!(marks("cpu-1", &[]).is_stale(&new), "its partition was deleted");
        assert!(marks("cpu-1", &[partition(&[], 4, 4, "PartitionName=long Nodes=cpu")]).is_stale(&new));
    }
}
