//! Steps that several situations have.

use std::{sync::Arc, time::Duration};

use serde_json::{Value, json};
use slurm::node::NodeFlag;

use super::PATIENCE;
use crate::{
    coverage::Effect,
    history::History,
    oracles::{DRAINED, LEAVING},
    script,
    slurm::{State, Submission, state::Node},
    world::{World, elapsed},
};

impl History {
    pub(super) fn want_node_set(&self, name: &str) {
        if self.world.get("nodesets", name).is_err() {
            self.create_node_set(name);
        }
    }

    /// Waits until no fault lasts and so many workers of a NodeSet take jobs.
    pub(super) async fn is_calm(&mut self, set: &str, workers: usize) -> bool {
        if self
            .world
            .get("nodesets", set)
            .is_ok_and(|set| set["spec"]["replicas"].as_u64().unwrap_or(1) < workers as u64)
        {
            self.scale(set, workers as u64);
        }
        self.judge.orders.note_objects(&self.world);
        self.wait_for(PATIENCE, |world| {
            let slurm = world.slurm();
            let state = world.active().and_then(|active| slurm.state(active).ok());
            let open = state.map_or(0, |state| {
                let nodes = state.nodes.values();
                nodes.filter(|node| is_open(state, node, set)).count()
            });
            open >= workers && !world.is_suffering()
        })
        .await
    }

    /// Waits until so many workers of a NodeSet take jobs, and gives each a job that lasts for one of the times.
    pub(super) async fn occupy(&mut self, set: &str, workers: usize, seconds: &[u64]) -> bool {
        if !self.is_calm(set, workers).await {
            return false;
        }
        for _ in 0..=workers {
            let seconds = *self.random.pick(seconds).unwrap();
            self.submit_to(set, seconds, None);
        }
        self.wait_for(Duration::from_secs(20), |world| Effect::JobRuns.is_under_way(world))
            .await
    }

    /// Submits a job that needs a whole node.
    pub(super) fn submit_to(&self, partition: &str, seconds: u64, node: Option<&str>) {
        let mut job = Submission::new(partition, Duration::from_secs(seconds));
        job.exclusive = true;
        let job = job.on(node);
        let id = script::submit(&self.world, job);
        self.world.tell(format!(
            "a person submits job {id:?} to {partition} for {seconds} s, by name {node:?}"
        ));
    }

    pub(super) fn pick_worker(&self, set: &str) -> Option<Arc<Value>> {
        let mut pods = self.world.all("pods");
        pods.retain(|pod| {
            text(pod, "/metadata/name").starts_with(&format!("{set}-"))
                && pod.pointer("/spec/nodeName").is_some()
                && pod.pointer("/metadata/deletionTimestamp").is_none()
        });
        self.random.pick(&pods).cloned()
    }

    pub(super) fn set_cordon(&mut self, machine: &str, cordoned: bool) {
        self.world
            .tell(format!("a person sets cordon of {machine} to {cordoned}"));
        self.world
            .patch("nodes", machine, &json!({ "spec": { "unschedulable": cordoned } }));
        self.judge.orders.note_objects(&self.world);
    }

    /// Writes a label, so that operators look at the workers there.
    pub(super) fn touch(&mut self, machine: &str) {
        let labels = json!({ "example.com/rack": elapsed().as_secs().to_string() });
        self.world
            .patch("nodes", machine, &json!({ "metadata": { "labels": labels } }));
        self.judge.orders.note_objects(&self.world);
    }
}

/// Whether a node of a NodeSet takes a job at once.
fn is_open(state: &State, node: &Node, set: &str) -> bool {
    node.name.starts_with(&format!("{set}-")) && node.is_available() && state.jobs_on(&node.name).next().is_none()
}

/// A node with a job that we drained because its worker leaves, and have noted that.
pub(super) fn leaving(world: &World) -> Option<String> {
    let slurm = world.slurm();
    let state = world.active().and_then(|active| slurm.state(active).ok())?;
    let is_ours = |node: &&Node| node.has(NodeFlag::Drain) && node.reason.starts_with("slurm-operator");
    let busy = |node: &&Node| state.jobs_on(&node.name).next().is_some();
    let nodes: Vec<&Node> = state.nodes.values().filter(is_ours).filter(busy).collect();
    let pods = world.all("pods");
    let noted = |node: &&&Node| {
        let mut pods = pods.iter().filter(|pod| pod["spec"]["hostname"] == node.name.as_str());
        pods.any(|pod| {
            [LEAVING, DRAINED]
                .iter()
                .all(|key| pod["metadata"]["annotations"][*key].is_string())
        })
    };
    nodes.iter().find(noted).map(|node| node.name.clone())
}

pub(super) fn has_partition(world: &World, name: &str) -> bool {
    let slurm = world.slurm();
    let state = world.active().and_then(|active| slurm.state(active).ok());
    state.is_some_and(|state| state.partitions.contains_key(name))
}

pub(super) fn is_annotated(world: &World, pod: &str, key: &str) -> bool {
    let pod = world.get("pods", pod);
    pod.is_ok_and(|pod| pod["metadata"]["annotations"][key].is_string())
}

pub(super) fn text(object: &Value, pointer: &str) -> String {
    let text = object.pointer(pointer).and_then(Value::as_str);
    text.unwrap_or_default().to_owned()
}
