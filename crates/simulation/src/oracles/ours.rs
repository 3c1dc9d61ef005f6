//! What we ordered ends soon after its cause.

use std::{collections::BTreeMap, time::Duration};

use serde_json::Value;
use slurm::node::NodeFlag;

use crate::world::{World, elapsed};

/// A drain of ours is lifted within this time of its cause, while nothing fails. The operator is woken by the change of the object
/// or by a poll every five seconds, and lifts it with one order; one back-off of a minute may come before that.
const LIFTED: Duration = Duration::from_mins(2);

/// Since when there has been no cause for a drain of ours, by node.
#[derive(Debug, Default)]
pub(super) struct Drains(BTreeMap<String, Duration>);

impl Drains {
    pub(super) fn judge(&mut self, world: &World, faults_end: Duration) -> Vec<String> {
        let drained = without_cause(world);
        self.0.retain(|name, _| drained.contains_key(name));
        let mut failures = Vec::new();
        for (name, reason) in drained {
            let since = *self.0.entry(name.clone()).or_insert_with(elapsed);
            if elapsed().saturating_sub(since.max(faults_end)) > LIFTED {
                failures.push(format!(
                    "{name} is drained by us without a cause for more than {LIFTED:?}: {reason}"
                ));
            }
        }
        failures
    }
}

/// Nodes that we drained though their worker is to stay, is as people want it, and its Kubernetes node is open.
fn without_cause(world: &World) -> BTreeMap<String, String> {
    let slurm = world.slurm();
    let Some(state) = world.active().and_then(|active| slurm.state(active).ok()) else {
        return BTreeMap::new();
    };
    let ours = |reason: &str| reason.starts_with("slurm-operator:");
    let drained = state
        .nodes
        .values()
        .filter(|node| node.has(NodeFlag::Drain) && ours(&node.reason));
    let drained: Vec<(String, String)> = drained.map(|node| (node.name.clone(), node.reason.clone())).collect();
    drop(slurm);
    if drained.is_empty() {
        return BTreeMap::new();
    }
    let (sets, pods) = (world.all("nodesets"), world.all("pods"));
    let has_cause = |name: &str| {
        let Some(pod) = pods.iter().find(|pod| pod["spec"]["hostname"] == name) else {
            return true;
        };
        let owner = &pod["metadata"]["ownerReferences"][0]["uid"];
        let Some(set) = sets.iter().find(|set| set["metadata"]["uid"] == *owner) else {
            return true;
        };
        let wanted = set["spec"]["replicas"].as_u64().unwrap_or(1);
        let workers = pods
            .iter()
            .filter(|pod| pod["metadata"]["ownerReferences"][0]["uid"] == *owner);
        let image = set["spec"]["slurmd"]["image"].as_str();
        let is_old = image.is_some_and(|image| pod["spec"]["containers"][0]["image"] != image);
        is_ending(pod) || is_ending(set) || workers.count() as u64 > wanted || is_old || is_closed(world, pod)
    };
    drained.into_iter().filter(|(name, _)| !has_cause(name)).collect()
}

fn is_ending(object: &Value) -> bool {
    object["metadata"]["deletionTimestamp"].is_string()
}

/// Whether the Kubernetes node of a pod is cordoned, or does not report.
fn is_closed(world: &World, pod: &Value) -> bool {
    let node = world.get("nodes", pod["spec"]["nodeName"].as_str().unwrap_or_default());
    node.map_or(true, |node| {
        node["spec"]["unschedulable"] == true || node["status"]["conditions"][0]["status"] != "True"
    })
}
