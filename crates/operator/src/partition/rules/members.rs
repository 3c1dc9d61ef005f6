//! Resolves the nodes of a Partition into the value of `Nodes=`. NodeSets are listed by their names in Slurm, so that
//! scaling one changes no partition. Pure.

use std::{collections::BTreeSet, sync::Arc};

use api::{NodeSet, Partition, claims::LabelSelector};
use kube::ResourceExt as _;
use slurm::{
    Hostlist,
    hostlist::{HostlistError, MAX_HOSTS},
};
use thiserror::Error;

use super::mark::Mark;
use crate::{finding::Finding, reason};

/// The members of a Partition.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Members {
    /// The value of `Nodes=`.
    pub(crate) nodes: String,
    /// The mark of the members, if nodes of NodeSets are excluded.
    pub(crate) mark: Option<Mark>,
}

/// What is wrong with the members, with the field and the remedy.
#[derive(Clone, Debug, Error)]
pub(crate) enum BadMembers {
    #[error("spec.nodeSetSelector selects none of the NodeSets of Controller {0:?}; correct it, or label a NodeSet")]
    NoneSelected(String),
    #[error("spec.nodeSetSelector has operator {0:?}; use In, NotIn, Exists or DoesNotExist")]
    UnknownOperator(String),
    #[error(
        "spec.nodeSets[{index}] names NodeSet {name:?}, which Controller {controller:?} does not have: it has {existing}; create it, or name another one"
    )]
    NoSuchNodeSet {
        index: usize,
        name: String,
        controller: String,
        existing: String,
    },
    #[error("spec.nodeSets[{0}] is {1:?}, which is the name of NodeSets {2} in Slurm; use the name of the object")]
    AmbiguousName(usize, String, String),
    #[error("spec.nodes[{0}] is {1:?}, which is NodeSet {2:?}; name that in spec.nodeSets")]
    NodeSetAsNode(usize, String, String),
    #[error("{0}[{1}] is not a hostlist: {2}; write one such as ext[001-004]")]
    NotAHostlist(&'static str, usize, #[source] HostlistError),
    #[error("{0}: {1}")]
    BadNames(&'static str, #[source] HostlistError),
    #[error("{0} lists {1} nodes, and at most {MAX_HOSTS} are allowed; list fewer")]
    TooManyNodes(&'static str, usize),
    #[error("spec.excludeNodes cannot exclude nodes from ALL in spec.nodes; name NodeSets instead")]
    ExcludedFromAll,
    #[error("spec.excludeNodes excludes all of spec.nodes; exclude fewer, or delete the Partition")]
    NoneLeft,
}

impl From<BadMembers> for Finding {
    fn from(bad: BadMembers) -> Self {
        Self::blocking(reason::BAD_MEMBERS, bad.to_string())
    }
}

/// Returns the members, or what is wrong with them.
pub(crate) fn resolve_members(partition: &Partition, node_sets: &[Arc<NodeSet>]) -> Result<Members, BadMembers> {
    let sets = resolve_node_sets(partition, node_sets)?;
    let listed = resolve_nodes(partition, node_sets)?;
    if sets.is_empty() && listed.is_empty() {
        return Err(BadMembers::NoneSelected(partition.spec.controller_ref.name.clone()));
    }
    let excluded = partition.spec.exclude_nodes.as_deref().unwrap_or_default();
    let excluded = hosts_of("spec.excludeNodes", excluded)?;
    if excluded.is_empty() {
        let nodes: Vec<String> = sets.into_iter().chain(listed).collect();
        return Ok(Members {
            nodes: nodes.join(","),
            mark: None,
        });
    }
    if listed.iter().any(|entry| entry.eq_ignore_ascii_case("ALL")) {
        return Err(BadMembers::ExcludedFromAll);
    }
    let left = hosts_of("spec.nodes", &listed)?;
    let left = left.names().filter(|name| !excluded.contains(name));
    let left = Hostlist::of_names(left).map_err(|why| BadMembers::BadNames("spec.nodes", why))?;
    let mark = (!sets.is_empty()).then(|| Mark::new(&partition.slurm_name(), sets, &excluded));
    let marked = mark.iter().map(|mark| mark.name.clone());
    let nodes: Vec<String> = marked.chain((!left.is_empty()).then(|| left.to_string())).collect();
    if nodes.is_empty() {
        return Err(BadMembers::NoneLeft);
    }
    Ok(Members {
        nodes: nodes.join(","),
        mark,
    })
}

/// Returns the names of its NodeSets in Slurm.
fn resolve_node_sets(partition: &Partition, node_sets: &[Arc<NodeSet>]) -> Result<Vec<String>, BadMembers> {
    let mut members = Vec::new();
    for (index, name) in partition.spec.node_sets.iter().flatten().enumerate() {
        members.push(find_node_set(partition, node_sets, index, name)?.slurm_name());
    }
    if let Some(selector) = &partition.spec.node_set_selector {
        for node_set in node_sets {
            if selects(selector, node_set)? {
                members.push(node_set.slurm_name());
            }
        }
    }
    Ok(without_duplicates(members))
}

/// Returns the entries of `spec.nodes`, as written.
fn resolve_nodes(partition: &Partition, node_sets: &[Arc<NodeSet>]) -> Result<Vec<String>, BadMembers> {
    let nodes = partition.spec.nodes.as_deref().unwrap_or_default();
    for (index, entry) in nodes.iter().enumerate() {
        if let Some(node_set) = node_sets.iter().find(|node_set| node_set.slurm_name() == *entry) {
            return Err(BadMembers::NodeSetAsNode(index, entry.clone(), node_set.name_any()));
        }
    }
    hosts_of("spec.nodes", nodes)?;
    Ok(without_duplicates(nodes.to_vec()))
}

/// Keeps the first of equal names.
fn without_duplicates(mut names: Vec<String>) -> Vec<String> {
    let mut seen = BTreeSet::new();
    names.retain(|name| seen.insert(name.clone()));
    names
}

/// Returns all hosts of a field whose entries are hostlists.
fn hosts_of(field: &'static str, entries: &[String]) -> Result<Hostlist, BadMembers> {
    let mut count = 0;
    let mut names = Vec::new();
    for (index, entry) in entries.iter().enumerate() {
        let hosts = Hostlist::parse(entry).map_err(|why| BadMembers::NotAHostlist(field, index, why))?;
        count += hosts.len();
        if count > MAX_HOSTS {
            return Err(BadMembers::TooManyNodes(field, count));
        }
        names.extend(hosts.names());
    }
    Hostlist::of_names(names).map_err(|why| BadMembers::BadNames(field, why))
}

/// Finds a NodeSet by the name of the object, else by its name in Slurm.
fn find_node_set<'a>(
    partition: &Partition,
    node_sets: &'a [Arc<NodeSet>],
    index: usize,
    name: &str,
) -> Result<&'a NodeSet, BadMembers> {
    if let Some(node_set) = node_sets.iter().find(|node_set| node_set.name_any() == name) {
        return Ok(node_set);
    }
    let all: Vec<&Arc<NodeSet>> = node_sets.iter().collect();
    let called: Vec<&Arc<NodeSet>> = node_sets.iter().filter(|set| set.slurm_name() == name).collect();
    let names = |sets: &[&Arc<NodeSet>], separator: &str| match sets {
        [] => "none".to_owned(),
        sets => sets
            .iter()
            .map(|set| set.name_any())
            .collect::<Vec<_>>()
            .join(separator),
    };
    let (name, controller) = (name.to_owned(), partition.spec.controller_ref.name.clone());
    match called.as_slice() {
        [one] => Ok(one),
        [] => Err(BadMembers::NoSuchNodeSet {
            index,
            name,
            controller,
            existing: names(&all, ", "),
        }),
        several => Err(BadMembers::AmbiguousName(index, name, names(several, " and "))),
    }
}

/// Kubernetes' own rules: an empty selector selects everything.
fn selects(selector: &LabelSelector, node_set: &NodeSet) -> Result<bool, BadMembers> {
    let labels = node_set.labels();
    let same = |(key, value): (&String, &String)| labels.get(key) == Some(value);
    if !selector.match_labels.iter().flatten().all(same) {
        return Ok(false);
    }
    for requirement in selector.match_expressions.iter().flatten() {
        let values = requirement.values.as_deref().unwrap_or_default();
        let value = labels.get(&requirement.key);
        let is_one = value.is_some_and(|value| values.contains(value));
        let holds = match requirement.operator.as_str() {
            "In" => is_one,
            "NotIn" => !is_one,
            "Exists" => value.is_some(),
            "DoesNotExist" => value.is_none(),
            other => return Err(BadMembers::UnknownOperator(other.to_owned())),
        };
        if !holds {
            return Ok(false);
        }
    }
    Ok(true)
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn node_set(name: &str, hostname: &str, labels: &Value) -> Arc<NodeSet> {
        Arc::new(
            serde_json::from_value(json!({
                "apiVersion": "slinky.slurm.net/v1beta1", "kind": "NodeSet",
                "metadata": { "name": name, "namespace": "hpc", "labels": labels },
                "spec": { "controllerRef": { "name": "slurm" }, "template": { "spec": { "hostname": hostname } } },
            }))
            .unwrap(),
        )
    }

    fn sets() -> Vec<Arc<NodeSet>> {
        vec![
            node_set("slurm-cpu", "cpu-", &json!({ "zone": "a" })),
            node_set("slurm-gpu", "gpu-", &json!({ "zone": "b" })),
            node_set("other-gpu", "gpu-", &json!({})),
        ]
    }

    fn members(spec: Value) -> Result<String, String> {
        let mut spec = spec;
        spec["controllerRef"] = json!({ "name": "slurm" });
        let partition = Partition::new("x", serde_json::from_value(spec).unwrap());
        let members = resolve_members(&partition, &sets()).map_err(|bad| bad.to_string())?;
        Ok(members.nodes)
    }

    #[test]
    fn node_sets_are_listed_by_their_names_in_slurm() {
        for (spec, expected) in [
            (json!({ "nodeSets": ["slurm-gpu", "slurm-cpu"] }), "gpu,cpu"),
            (json!({ "nodeSets": ["cpu", "slurm-cpu"] }), "cpu"),
            (json!({ "nodeSetSelector": {} }), "cpu,gpu"),
            (json!({ "nodeSetSelector": { "matchLabels": { "zone": "b" } } }), "gpu"),
            (
                json!({ "nodeSetSelector": { "matchExpressions": [{ "key": "zone", "operator": "In", "values": ["a", "c"] }] } }),
                "cpu",
            ),
            (
                json!({ "nodeSetSelector": { "matchExpressions": [{ "key": "zone", "operator": "DoesNotExist" }] } }),
                "gpu",
            ),
            (
                json!({ "nodeSets": ["cpu"], "nodes": ["ext[001-004]", "old"] }),
                "cpu,ext[001-004],old",
            ),
            (json!({ "nodes": ["ALL"] }), "ALL"),
        ] {
            assert_eq!(members(spec.clone()).as_deref(), Ok(expected), "{spec}");
        }
    }

    #[test]
    fn nodes_of_node_sets_are_excluded_by_a_mark_and_listed_ones_by_omission() {
        let marked = |spec: Value| members(spec).unwrap();
        let cpu = marked(json!({ "nodeSets": ["cpu"], "excludeNodes": ["cpu-1"] }));
        assert!(cpu.starts_with("x.members-"), "{cpu}");
        let both = marked(json!({ "nodeSets": ["cpu"], "nodes": ["ext[1-4]"], "excludeNodes": ["cpu-1", "ext2"] }));
        assert_ne!(
            both.split(',').next(),
            Some(cpu.as_str()),
            "another list is another mark"
        );
        assert!(both.ends_with(",ext[1,3-4]"), "{both}");
        let listed = json!({ "nodes": ["ext[1-4]"], "excludeNodes": ["ext[2-3]"] });
        assert_eq!(marked(listed), "ext[1,4]");
        assert_eq!(marked(json!({ "nodeSets": ["cpu"], "excludeNodes": [] })), "cpu");
    }

    #[test]
    fn an_error_names_the_field() {
        for (spec, says) in [
            (
                json!({ "nodeSets": ["nope"] }),
                "spec.nodeSets[0] names NodeSet \"nope\"",
            ),
            (
                json!({ "nodeSets": ["cpu", "gpu"] }),
                "spec.nodeSets[1] is \"gpu\", which is the name of NodeSets slurm-gpu and other-gpu",
            ),
            (
                json!({ "nodeSetSelector": { "matchLabels": { "zone": "z" } } }),
                "spec.nodeSetSelector selects none",
            ),
            (
                json!({ "nodeSetSelector": { "matchExpressions": [{ "key": "zone", "operator": "Like" }] } }),
                "spec.nodeSetSelector has operator \"Like\"",
            ),
            (json!({ "nodes": ["n[0-9999999]"] }), "spec.nodes[0] is not a hostlist"),
            (
                json!({ "nodes": ["n[1-60000]", "m[1-60000]"] }),
                "spec.nodes lists 120000 nodes",
            ),
            (
                json!({ "nodes": ["cpu"] }),
                "spec.nodes[0] is \"cpu\", which is NodeSet \"slurm-cpu\"",
            ),
            (json!({ "nodes": ["n[1-"] }), "spec.nodes[0] is not a hostlist"),
            (
                json!({ "nodeSets": ["cpu"], "excludeNodes": ["n[0-9999999]"] }),
                "spec.excludeNodes[0] is not a hostlist",
            ),
            (
                json!({ "nodes": ["ALL"], "excludeNodes": ["cpu-1"] }),
                "spec.excludeNodes cannot exclude nodes from ALL",
            ),
            (
                json!({ "nodes": ["ext[1-2]"], "excludeNodes": ["ext[0-9]"] }),
                "spec.excludeNodes excludes all of spec.nodes",
            ),
        ] {
            let why = members(spec.clone()).unwrap_err();
            assert!(why.starts_with(says), "{spec}: {why}");
        }
    }
}
