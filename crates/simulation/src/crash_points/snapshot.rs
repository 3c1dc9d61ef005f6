//! How the world is at the end of a scenario, one line per field.

use std::collections::BTreeSet;

use serde_json::Value;

use crate::world::{World, elapsed};

/// Objects and Slurm's state, without what differs between two runs of the same scenario.
pub(super) fn snapshot(world: &World) -> Vec<String> {
    let mut lines = Vec::new();
    let all = world.plurals();
    let uids = all.iter().flat_map(|plural| world.all(plural));
    let live = uids.filter_map(|object| Some(object["metadata"]["uid"].as_str()?.to_owned()));
    let live: BTreeSet<String> = live.collect();
    for plural in all {
        if ["leases", "events", "nodes", "customresourcedefinitions"].contains(&plural.as_str()) {
            continue;
        }
        for object in world.all(&plural) {
            let name = object["metadata"]["name"].as_str().unwrap_or_default();
            // Its name is that of its content, and contents of the past may be more.
            if plural == "controllerrevisions" {
                continue;
            }
            let (live, lines) = (&live, &mut lines);
            Lines { live, lines }.collect(&format!("{plural}/{name}"), &object);
        }
    }
    let slurm = world.slurm();
    if let Some(state) = world.active().and_then(|active| slurm.state(active).ok()) {
        for node in state.nodes.values() {
            let names = state.node_state_names(node, elapsed());
            lines.push(format!(
                "node {} {names:?} {:?} {:?}",
                node.name, node.reason, node.features
            ));
        }
        for partition in state.partitions.values() {
            lines.push(format!(
                "partition {} {} {}",
                partition.name, partition.state, partition.nodes
            ));
        }
        for job in state.jobs.values() {
            lines.push(format!("job {} {:?} {}", job.id, job.phase, job.restarts));
        }
    }
    for job in &slurm.ledger.jobs {
        lines.push(format!("job {} ran {} times", job.id, job.runs.len()));
    }
    lines
}

/// Fields that differ between two runs: identities, times, places, texts with these, and numbers of revisions.
const VOLATILE: [&str; 23] = [
    "uid",
    "resourceVersion",
    "creationTimestamp",
    "generation",
    "observedGeneration",
    "managedFields",
    "lastTransitionTime",
    "message",
    "startTime",
    "startedAt",
    "finishedAt",
    "podIP",
    "podIPs",
    "nodeName",
    "binaryData",
    "configuration",
    "applied",
    "history",
    "currentRevision",
    "updateRevision",
    "collisionCount",
    "slinky.slurm.net/candidate",
    "nodeset.slinky.slurm.net/pod-deadline",
];

/// The lines of an object.
struct Lines<'a> {
    /// The UIDs of all objects.
    live: &'a BTreeSet<String>,
    lines: &'a mut Vec<String>,
}

impl Lines<'_> {
    fn collect(&mut self, path: &str, value: &Value) {
        match value {
            Value::Object(fields) => {
                let is_history = path.starts_with("configmaps/") && path.contains("-history/");
                for (key, value) in fields {
                    if !VOLATILE.contains(&key.as_str()) && !is_history {
                        self.collect_field(&format!("{path}/{key}"), key, value);
                    }
                }
            }
            Value::Array(elements) => {
                for (index, value) in elements.iter().enumerate() {
                    self.collect(&format!("{path}/{index}"), value);
                }
            }
            value => self.lines.push(format!("{path} = {value}")),
        }
    }

    /// The elements of some lists have no order.
    fn collect_field(&mut self, path: &str, key: &str, value: &Value) {
        let elements = value.as_array().map(Vec::as_slice).unwrap_or_default();
        let lines: Vec<String> = match key {
            "conditions" => {
                let text = |one: &Value| format!("{path}/{} = {} {}", one["type"], one["status"], one["reason"]);
                elements.iter().map(text).collect()
            }
            "finalizers" => elements.iter().map(|one| format!("{path} has {one}")).collect(),
            "ownerReferences" => {
                let text = |one: &Value| {
                    let is_live = self.live.contains(one["uid"].as_str().unwrap_or_default());
                    let (kind, name, controls) = (&one["kind"], &one["name"], &one["controller"]);
                    format!("{path} has {kind} {name}, controller: {controls}, exists: {is_live}")
                };
                elements.iter().map(text).collect()
            }
            _ => return self.collect(path, value),
        };
        self.lines.extend(lines);
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn lines(object: &Value) -> Vec<String> {
        let (live, mut lines) = (BTreeSet::from(["u1".to_owned()]), Vec::new());
        Lines {
            live: &live,
            lines: &mut lines,
        }
        .collect("pods/a", object);
        lines
    }

    #[test]
    fn conditions_finalizers_and_owners_are_compared_without_times_and_identities() {
        let object = json!({
            "metadata": {
                "uid": "u2",
                "finalizers": ["f"],
                "ownerReferences": [
                    { "kind": "NodeSet", "name": "here", "uid": "u1", "controller": true },
                    { "kind": "NodeSet", "name": "gone", "uid": "u0", "controller": false },
                ],
            },
            "status": { "conditions": [
                { "type": "Ready", "status": "True", "reason": "InService", "lastTransitionTime": "now", "message": "2 of 2" },
            ] },
        });
        let expected = [
            r#"pods/a/metadata/finalizers has "f""#,
            r#"pods/a/metadata/ownerReferences has "NodeSet" "here", controller: true, exists: true"#,
            r#"pods/a/metadata/ownerReferences has "NodeSet" "gone", controller: false, exists: false"#,
            r#"pods/a/status/conditions/"Ready" = "True" "InService""#,
        ];
        assert_eq!(lines(&object), expected);
    }
}
