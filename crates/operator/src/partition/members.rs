//! Which nodes a Partition has, as `Nodes=` says it. NodeSets stand there by their names in Slurm, so that scaling one
//! changes no partition. Pure.

use std::sync::Arc;

use api::{NodeSet, Partition, PartitionSpec, claims::LabelSelector};
use kube::ResourceExt as _;
use slurm::{Hostlist, hostlist::MAX_HOSTS};

/// The names for `Nodes=`; or what is wrong, with the field and what to do.
pub(crate) fn resolve_members(partition: &Partition, node_sets: &[Arc<NodeSet>]) -> Result<Vec<String>, String> {
    if partition
        .spec
        .exclude_nodes
        .as_ref()
        .is_some_and(|nodes| !nodes.is_empty())
    {
        return Err(
            "spec.excludeNodes cannot be followed: Slurm has no word for it; put the other nodes into a NodeSet of their own"
                .to_owned(),
        );
    }
    let PartitionSpec {
        node_sets: named,
        node_set_selector: selector,
        nodes,
        ..
    } = &partition.spec;
    let mut members: Vec<String> = Vec::new();
    let mut add = |name: String| {
        if !members.contains(&name) {
            members.push(name);
        }
    };
    for (index, name) in named.iter().flatten().enumerate() {
        add(find_node_set(partition, node_sets, index, name)?.slurm_name());
    }
    if let Some(selector) = selector {
        for node_set in node_sets {
            if selects(selector, node_set).map_err(|why| format!("spec.nodeSetSelector {why}"))? {
                add(node_set.slurm_name());
            }
        }
    }
    let mut count = 0;
    for (index, entry) in nodes.iter().flatten().enumerate() {
        let field = format!("spec.nodes[{index}]");
        if let Some(node_set) = node_sets.iter().find(|node_set| node_set.slurm_name() == *entry) {
            return Err(format!(
                "{field} is {entry:?}, which is NodeSet {:?}; name that in spec.nodeSets",
                node_set.name_any()
            ));
        }
        let hosts = Hostlist::parse(entry)
            .map_err(|why| format!("{field} is no hostlist: {why}; write one such as ext[001-004]"))?;
        count += hosts.len();
        add(entry.clone());
    }
    if count > MAX_HOSTS {
        return Err(format!(
            "spec.nodes stands for {count} nodes, and {MAX_HOSTS} are the most; list fewer"
        ));
    }
    if members.is_empty() {
        return Err(format!(
            "spec.nodeSetSelector selects none of the NodeSets of Controller {:?}; correct it, or label a NodeSet",
            partition.spec.controller_ref.name
        ));
    }
    Ok(members)
}

/// By the name of the object, else by that in Slurm.
fn find_node_set<'a>(
    partition: &Partition,
    node_sets: &'a [Arc<NodeSet>],
    index: usize,
    name: &str,
) -> Result<&'a NodeSet, String> {
    if let Some(node_set) = node_sets.iter().find(|node_set| node_set.name_any() == name) {
        return Ok(node_set);
    }
    let field = format!("spec.nodeSets[{index}]");
    let called: Vec<&Arc<NodeSet>> = node_sets
        .iter()
        .filter(|node_set| node_set.slurm_name() == name)
        .collect();
    match called.as_slice() {
        [one] => Ok(one),
        [] => {
            let controller = &partition.spec.controller_ref.name;
            let known: Vec<String> = node_sets.iter().map(|node_set| node_set.name_any()).collect();
            let known = if known.is_empty() {
                "it has none".to_owned()
            } else {
                format!("it has {}", known.join(", "))
            };
            Err(format!(
                "{field} names NodeSet {name:?}, which Controller {controller:?} does not have: {known}; make it, or name another"
            ))
        }
        several => {
            let objects: Vec<String> = several.iter().map(|node_set| node_set.name_any()).collect();
            Err(format!(
                "{field} is {name:?}, which NodeSets {} are called in Slurm; name the one that is meant by its object",
                objects.join(" and ")
            ))
        }
    }
}

/// Kubernetes' own rules. An empty selector selects everything.
fn selects(selector: &LabelSelector, node_set: &NodeSet) -> Result<bool, String> {
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
            other => {
                return Err(format!("has operator {other:?}; use In, NotIn, Exists or DoesNotExist"));
            }
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
        resolve_members(&partition, &sets()).map(|members| members.join(","))
    }

    #[test]
    fn node_sets_stand_by_their_names_in_slurm() {
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
    fn what_cannot_be_meant_is_said_by_its_field() {
        for (spec, says) in [
            (
                json!({ "nodeSets": ["nope"] }),
                "spec.nodeSets[0] names NodeSet \"nope\"",
            ),
            (
                json!({ "nodeSets": ["cpu", "gpu"] }),
                "spec.nodeSets[1] is \"gpu\", which NodeSets slurm-gpu and other-gpu",
            ),
            (
                json!({ "nodeSetSelector": { "matchLabels": { "zone": "z" } } }),
                "spec.nodeSetSelector selects none",
            ),
            (
                json!({ "nodeSetSelector": { "matchExpressions": [{ "key": "zone", "operator": "Like" }] } }),
                "spec.nodeSetSelector has operator \"Like\"",
            ),
            (json!({ "nodes": ["n[0-9999999]"] }), "spec.nodes[0] is no hostlist"),
            (
                json!({ "nodes": ["n[1-60000]", "m[1-60000]"] }),
                "spec.nodes stands for 120000 nodes",
            ),
            (
                json!({ "nodes": ["cpu"] }),
                "spec.nodes[0] is \"cpu\", which is NodeSet \"slurm-cpu\"",
            ),
            (json!({ "nodes": ["n[1-"] }), "spec.nodes[0] is no hostlist"),
            (
                json!({ "nodeSets": ["cpu"], "excludeNodes": ["cpu-1"] }),
                "spec.excludeNodes cannot be followed",
            ),
        ] {
            let why = members(spec.clone()).unwrap_err();
            assert!(why.starts_with(says), "{spec}: {why}");
        }
    }
}
