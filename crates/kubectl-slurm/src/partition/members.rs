//! Changes of the members of a partition: `+node[005-010]`, `-node[001-002]`, `+gpu`. Pure.

use std::collections::BTreeMap;

use api::NodeSet;
use kube::ResourceExt as _;
use slurm::{Hostlist, hostlist::HostlistError};

use crate::cluster::Cluster;
use crate::failure::{Failure, Outcome};

/// The value of one `--nodes`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct MemberChange {
    pub(crate) sign: Sign,
    /// By the names of the objects.
    pub(crate) node_sets: Vec<String>,
    pub(crate) nodes: Vec<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Sign {
    Add,
    Remove,
    /// Replaces all members.
    Replace,
}

/// The nodes of the NodeSets.
#[derive(Clone, Debug, Default)]
pub(crate) struct Workers {
    /// The name of the NodeSet object, and Slurm's name of one of its nodes.
    pub(crate) nodes: Vec<(String, String)>,
    /// Slurm's names by those of the pods, where they differ.
    pub(crate) by_pod: BTreeMap<String, String>,
}

impl Workers {
    /// Returns the names in Slurm of a hostlist of nodes or pods.
    pub(crate) fn names_in(&self, list: &str) -> Result<Vec<String>, HostlistError> {
        let names = Hostlist::parse(list)?;
        let in_slurm = |name: String| self.by_pod.get(&name).cloned().unwrap_or(name);
        Ok(names.names().map(in_slurm).collect())
    }

    /// Returns the NodeSet of a node, by its pod, or by its name if it has no pod yet.
    pub(crate) fn owner(&self, cluster: &Cluster, node: &str) -> Option<String> {
        let running = self.nodes.iter().find(|(_, name)| name == node);
        running.map(|(set, _)| set.clone()).or_else(|| {
            let set = cluster.node_sets.iter().find(|set| could_name(set, node))?;
            Some(set.name_any())
        })
    }
}

/// Whether a worker of the NodeSet could have this name.
fn could_name(set: &NodeSet, node: &str) -> bool {
    let prefix = match set.spec.hostname_prefix() {
        Some(prefix) if !prefix.is_empty() => prefix.to_owned(),
        _ => set.child_names().pod_prefix(),
    };
    let number = node.strip_prefix(&prefix).unwrap_or_default();
    !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit())
}

pub(crate) fn parse_change(cluster: &Cluster, workers: &Workers, text: &str) -> Outcome<MemberChange> {
    let (sign, list) = match text.split_at_checked(1) {
        Some(("+", list)) => (Sign::Add, list),
        Some(("-", list)) => (Sign::Remove, list),
        _ => (Sign::Replace, text),
    };
    let (mut node_sets, mut nodes) = (Vec::new(), Vec::new());
    for item in split_items(list) {
        if let Some(set) = cluster.node_set(item) {
            node_sets.push(set.name_any());
            continue;
        }
        let names = workers.names_in(item);
        nodes
            .extend(names.map_err(|error| {
                Failure::usage(format!("--nodes {text}: {error}; write nodes as in node[005-010]"))
            })?);
    }
    if node_sets.is_empty() && nodes.is_empty() {
        return Err(Failure::usage(format!(
            "--nodes {text:?} names nothing; give NodeSets or nodes, as in +node[005-010]"
        )));
    }
    Ok(MemberChange { sign, node_sets, nodes })
}

/// Splits at commas outside of brackets.
pub(crate) fn split_items(list: &str) -> Vec<&str> {
    let mut depth = 0_usize;
    list.split(|c| {
        match c {
            '[' => depth += 1,
            ']' => depth = depth.saturating_sub(1),
            _ => {}
        }
        c == ',' && depth == 0
    })
    .map(str::trim)
    .filter(|item| !item.is_empty())
    .collect()
}

/// Members of a Partition object.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Membership {
    pub(crate) node_sets: Vec<String>,
    pub(crate) nodes: Vec<String>,
    pub(crate) exclude: Vec<String>,
    /// Whether labels select further NodeSets.
    pub(crate) selects: bool,
}

impl Membership {
    pub(crate) fn change(&mut self, cluster: &Cluster, workers: &Workers, change: &MemberChange) -> Outcome {
        if change.sign == Sign::Replace {
            self.node_sets.clear();
            self.nodes.clear();
        }
        let nodes: Vec<&str> = change.nodes.iter().map(String::as_str).collect();
        for set in &change.node_sets {
            self.change_set(cluster, change.sign, set)?;
        }
        if change.sign == Sign::Remove {
            self.remove_nodes(cluster, workers, &nodes)?;
        } else {
            self.add_nodes(cluster, workers, &nodes)?;
        }
        if self.node_sets.is_empty() && self.nodes.is_empty() && !self.selects {
            return Err(Failure::refused(
                "it would have no members left; add others first, drain it, or delete it",
            ));
        }
        Ok(())
    }

    fn change_set(&mut self, cluster: &Cluster, sign: Sign, set: &str) -> Outcome {
        // The entry may have Slurm's name.
        let is_it = |entry: &String| cluster.node_set(entry).is_some_and(|found| found.name_any() == *set);
        let there = self.node_sets.iter().any(is_it);
        match sign {
            Sign::Remove if there => self.node_sets.retain(|entry| !is_it(entry)),
            Sign::Remove if self.selects => {
                return Err(Failure::refused(format!(
                    "NodeSet {set:?} is a member by spec.nodeSetSelector, if at all; change its labels or the selector with `kubectl edit`"
                )));
            }
            Sign::Remove => return Err(not_a_member(&format!("NodeSet {set:?}"))),
            Sign::Add | Sign::Replace if there => {}
            Sign::Add | Sign::Replace => self.node_sets.push(set.to_owned()),
        }
        Ok(())
    }

    fn add_nodes(&mut self, cluster: &Cluster, workers: &Workers, nodes: &[&str]) -> Outcome {
        remove_names(&mut self.exclude, nodes)?;
        let mut added = Vec::new();
        for node in nodes {
            if !self.includes(cluster, workers, node) && !contains(&self.nodes, node)? {
                added.push(*node);
            }
        }
        add_names(&mut self.nodes, &added)
    }

    fn remove_nodes(&mut self, cluster: &Cluster, workers: &Workers, nodes: &[&str]) -> Outcome {
        let mut excluded = Vec::new();
        for node in nodes {
            let listed = contains(&self.nodes, node)?;
            let brought = self.includes(cluster, workers, node);
            if !listed && !brought {
                return Err(not_a_member(&format!("node {node:?}")));
            }
            if brought && !contains(&self.exclude, node)? {
                excluded.push(*node);
            }
        }
        remove_names(&mut self.nodes, nodes)?;
        add_names(&mut self.exclude, &excluded)
    }

    /// Whether the node belongs to a NodeSet that is a member. With a selector any NodeSet may be.
    fn includes(&self, cluster: &Cluster, workers: &Workers, node: &str) -> bool {
        let Some(owner) = workers.owner(cluster, node) else {
            return false;
        };
        let is_it = |entry: &String| cluster.node_set(entry).is_some_and(|set| set.name_any() == owner);
        self.selects || self.node_sets.iter().any(is_it)
    }
}

/// Changes `Nodes=` of an extraConf line, which has NodeSets by Slurm's names beside nodes.
pub(crate) fn change_line(cluster: &Cluster, workers: &Workers, nodes: &str, change: &MemberChange) -> Outcome<String> {
    let slurm_name = |set: &str| {
        cluster
            .node_set(set)
            .map_or_else(|| set.to_owned(), NodeSet::slurm_name)
    };
    let mut items: Vec<String> = split_items(nodes).into_iter().map(str::to_owned).collect();
    if change.sign == Sign::Replace {
        items.clear();
    } else if items.iter().any(|item| item.eq_ignore_ascii_case("ALL")) {
        return Err(Failure::refused(
            "its Nodes=ALL means every node; give a list first by --nodes, or create a Partition object, which can exclude nodes (excludeNodes)",
        ));
    }
    let sets = change.node_sets.iter();
    let sets = sets.map(|set| (slurm_name(set), format!("NodeSet {set:?}")));
    let nodes = change.nodes.iter().map(|node| (node.clone(), format!("node {node:?}")));
    for (name, what) in sets.chain(nodes) {
        let is_set = |item: &str| cluster.node_sets.iter().any(|set| set.slurm_name() == item);
        let mut holders = items.iter_mut().filter(|item| !is_set(item) || **item == name);
        let holder =
            holders.find(|item| **item == name || Hostlist::parse(item).is_ok_and(|list| list.contains(&name)));
        match (change.sign, holder) {
            (Sign::Add | Sign::Replace, Some(_)) => {}
            (Sign::Add | Sign::Replace, None) => items.push(name),
            (Sign::Remove, Some(item)) => *item = without(item, &name)?,
            (Sign::Remove, None) => {
                let owner = workers.owner(cluster, &name).map(|set| slurm_name(&set));
                if let Some(owner) = owner.filter(|owner| items.contains(owner)) {
                    return Err(Failure::refused(format!(
                        "{what} belongs to NodeSet {owner:?} of its Nodes=, and a line in extraConf cannot exclude single nodes; create a Partition object, which can (excludeNodes)"
                    )));
                }
                return Err(not_a_member(&what));
            }
        }
        items.retain(|item| !item.is_empty());
    }
    if items.is_empty() {
        return Err(Failure::refused(
            "it would have no members left; add others first, drain it, or delete it",
        ));
    }
    compact(cluster, &items)
}

/// Joins single nodes to one hostlist.
fn compact(cluster: &Cluster, items: &[String]) -> Outcome<String> {
    let is_set = |item: &&String| cluster.node_sets.iter().any(|set| set.slurm_name() == **item);
    let sets: Vec<&str> = items.iter().filter(is_set).map(String::as_str).collect();
    let nodes: Vec<&str> = items.iter().filter(|item| !is_set(item)).map(String::as_str).collect();
    let nodes = parse(&nodes.join(","))?.to_string();
    let all = sets.into_iter().chain((!nodes.is_empty()).then_some(nodes.as_str()));
    Ok(all.collect::<Vec<&str>>().join(","))
}

fn without(item: &str, name: &str) -> Outcome<String> {
    if item == name {
        return Ok(String::new());
    }
    let left: Vec<String> = parse(item)?.names().filter(|host| host != name).collect();
    of_names(&left)
}

fn contains(entries: &[String], node: &str) -> Outcome<bool> {
    for entry in entries {
        if parse(entry)?.contains(node) {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Removes names from entries, which are hostlists; other entries keep their spelling.
fn remove_names(entries: &mut Vec<String>, nodes: &[&str]) -> Outcome {
    for entry in entries.iter_mut() {
        let list = parse(entry)?;
        if nodes.iter().any(|node| list.contains(node)) {
            let left: Vec<String> = list.names().filter(|host| !nodes.contains(&host.as_str())).collect();
            *entry = of_names(&left)?;
        }
    }
    entries.retain(|entry| !entry.is_empty());
    Ok(())
}

fn add_names(entries: &mut Vec<String>, nodes: &[&str]) -> Outcome {
    let added = of_names(nodes)?;
    if !added.is_empty() {
        entries.push(added);
    }
    Ok(())
}

fn parse(text: &str) -> Outcome<Hostlist> {
    Ok(Hostlist::parse(text)?)
}

fn of_names<S: AsRef<str>>(names: &[S]) -> Outcome<String> {
    Ok(Hostlist::of_names(names)?.to_string())
}

fn not_a_member(what: &str) -> Failure {
    Failure::not_found(format!(
        "{what} is no member of it; `kubectl slurm partition show` lists its members"
    ))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn node_set(name: &str, spec: serde_json::Value) -> NodeSet {
        let mut spec = spec;
        spec["controllerRef"] = json!({ "name": "slurm" });
        NodeSet::new(name, serde_json::from_value(spec).unwrap())
    }

    fn cluster() -> Cluster {
        Cluster {
            node_sets: vec![
                node_set("compute", json!({})),
                node_set("gpu", json!({ "template": { "spec": { "hostname": "g-" } } })),
            ],
            ..Cluster::default()
        }
    }

    fn list(items: &[&str]) -> Vec<String> {
        items.iter().map(|item| (*item).to_owned()).collect()
    }

    /// Members after the changes: NodeSets, nodes, excluded nodes.
    fn changed(start: &Membership, changes: &[&str]) -> Outcome<[Vec<String>; 3]> {
        let cluster = cluster();
        let workers = Workers {
            nodes: vec![("compute".into(), "odd-name".into())],
            by_pod: BTreeMap::from([("slurm-gpu-3".into(), "g-3".into())]),
        };
        let mut members = start.clone();
        for change in changes {
            members.change(&cluster, &workers, &parse_change(&cluster, &workers, change)?)?;
        }
        Ok([members.node_sets, members.nodes, members.exclude])
    }

    fn start() -> Membership {
        Membership {
            node_sets: list(&["compute"]),
            nodes: list(&["ext[001-004]"]),
            ..Membership::default()
        }
    }

    #[test]
    fn members_are_added_and_removed_without_other_changes() {
        for (changes, node_sets, nodes, exclude) in [
            (
                vec!["+ext[005-006]"],
                vec!["compute"],
                vec!["ext[001-004]", "ext[005-006]"],
                vec![],
            ),
            (vec!["-ext[001-002]"], vec!["compute"], vec!["ext[003-004]"], vec![]),
            (vec!["+ext001"], vec!["compute"], vec!["ext[001-004]"], vec![]),
            (vec!["-ext[001-004]"], vec!["compute"], vec![], vec![]),
            // Nodes of a NodeSet that is a member are excluded, and included again.
            (
                vec!["-compute-[0-1]"],
                vec!["compute"],
                vec!["ext[001-004]"],
                vec!["compute-[0-1]"],
            ),
            (
                vec!["-compute-[0-1]", "+compute-0"],
                vec!["compute"],
                vec!["ext[001-004]"],
                vec!["compute-1"],
            ),
            (
                vec!["-compute-0", "-compute-0"],
                vec!["compute"],
                vec!["ext[001-004]"],
                vec!["compute-0"],
            ),
            (
                vec!["-odd-name"],
                vec!["compute"],
                vec!["ext[001-004]"],
                vec!["odd-name"],
            ),
            // NodeSets by the object's name and by Slurm's.
            (vec!["+gpu"], vec!["compute", "gpu"], vec!["ext[001-004]"], vec![]),
            (vec!["+g", "+gpu"], vec!["compute", "gpu"], vec!["ext[001-004]"], vec![]),
            (
                vec!["+gpu", "-g-0"],
                vec!["compute", "gpu"],
                vec!["ext[001-004]"],
                vec!["g-0"],
            ),
            (vec!["-compute"], vec![], vec!["ext[001-004]"], vec![]),
            // A single node of a NodeSet that is no member.
            (vec!["+g-3"], vec!["compute"], vec!["ext[001-004]", "g-3"], vec![]),
            // By the name of its pod.
            (
                vec!["+slurm-gpu-[3-3]"],
                vec!["compute"],
                vec!["ext[001-004]", "g-3"],
                vec![],
            ),
            (vec!["gpu,n[1-2]"], vec!["gpu"], vec!["n[1-2]"], vec![]),
        ] {
            let expected = [list(&node_sets), list(&nodes), list(&exclude)];
            assert_eq!(changed(&start(), &changes).unwrap(), expected, "{changes:?}");
        }
    }

    #[test]
    fn invalid_changes_are_refused_with_the_remedy() {
        for (start, change, code, words) in [
            (start(), "-ext009", 3, "no member"),
            (start(), "-gpu", 3, "no member"),
            (start(), "-compute,ext[001-004]", 1, "no members left"),
            (start(), "+n[1-", 2, "brackets"),
            (start(), "+", 2, "names nothing"),
            (start(), "", 2, "names nothing"),
            (start(), "+n[1-9999999]", 2, "more than"),
            (
                Membership {
                    selects: true,
                    ..Membership::default()
                },
                "-gpu",
                1,
                "nodeSetSelector",
            ),
        ] {
            let failure = changed(&start, &[change]).unwrap_err();
            assert_eq!(failure.exit_code(), code, "{change}: {failure}");
            assert!(failure.to_string().contains(words), "{change}: {failure}");
        }
    }

    #[test]
    fn a_selector_includes_the_nodes_of_every_nodeset() {
        let start = Membership {
            selects: true,
            ..Membership::default()
        };
        assert_eq!(changed(&start, &["-g-1"]).unwrap()[2], ["g-1"]);
    }

    #[test]
    fn the_line_of_a_partition_is_changed_if_possible() {
        let cluster = cluster();
        let change = |nodes: &str, change: &str| {
            let workers = Workers::default();
            change_line(&cluster, &workers, nodes, &parse_change(&cluster, &workers, change)?)
        };
        for (nodes, by, expected) in [
            ("compute", "+gpu", "compute,g"),
            ("compute,g", "-gpu", "compute"),
            ("node[001-004]", "+node[005-010]", "node[001-010]"),
            ("node[001-010]", "-node[001-002]", "node[003-010]"),
            ("compute,n1", "+n2", "compute,n[1-2]"),
            ("compute", "+compute", "compute"),
            ("compute", "n1", "n1"),
            ("ALL", "compute", "compute"),
        ] {
            assert_eq!(change(nodes, by).unwrap(), expected, "{nodes} {by}");
        }
        for (nodes, by, words) in [
            ("ALL", "-n1", "Nodes=ALL"),
            ("compute", "-compute-0", "excludeNodes"),
            ("compute", "-n1", "no member"),
            ("n1", "-n1", "no members left"),
        ] {
            let failure = change(nodes, by).unwrap_err();
            assert!(failure.to_string().contains(words), "{nodes} {by}: {failure}");
        }
    }
}
