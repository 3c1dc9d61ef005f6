//! Workers: no two of one name run at a time, and one that was chosen to leave leaves.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use serde_json::Value;

use crate::world::{World, elapsed};

/// The annotation of a worker that was chosen to leave.
pub const LEAVING: &str = "nodeset.slinky.slurm.net/leaving";

/// The annotation of a worker that says since when our drain has been in force.
pub const DRAINED: &str = "nodeset.slinky.slurm.net/drained";

/// The annotation of a worker that says which reason our drain has.
const DRAIN_REASON: &str = "nodeset.slinky.slurm.net/drain-reason";

/// The label of a worker that may not be evicted.
pub const PROTECTED: &str = "nodeset.slinky.slurm.net/pod-protect";

/// A kubelet ends a pod that the API server does not know within this time, with the grace period of a second that it has then.
const ENDED: Duration = Duration::from_secs(15);

/// The operator reacts to a change of a NodeSet or of its workers within this time, while nothing fails.
const CHOSEN: Duration = Duration::from_mins(1);

#[derive(Debug, Default)]
pub(super) struct Workers {
    /// Since when two workers of this name have run.
    twins: BTreeMap<String, Duration>,
    /// What decides how many workers of a NodeSet leave, and since when that has been so.
    causes: BTreeMap<String, (Value, Duration)>,
    /// The UIDs of workers that were chosen in a scale-in, with their names.
    chosen: BTreeMap<String, String>,
}

impl Workers {
    /// Faults end at `faults_end`.
    pub(super) fn judge(&mut self, world: &World, faults_end: Duration) -> Vec<String> {
        let mut failures = self.judge_twins(world);
        failures.extend(self.judge_choices(world, faults_end));
        failures
    }

    fn judge_twins(&mut self, world: &World) -> Vec<String> {
        let mut twins = world.twins();
        // A restored etcd has forgotten pods that run.
        if !world.rewound.lock().unwrap().is_empty() {
            twins.clear();
        }
        let untraceable = world.untraceable.lock().unwrap();
        twins.retain(|name| !untraceable.contains(name));
        self.twins.retain(|name, _| twins.contains(name));
        let mut failures = Vec::new();
        for name in twins {
            let since = *self.twins.entry(name.clone()).or_insert_with(elapsed);
            if elapsed().saturating_sub(since) > ENDED {
                failures.push(format!("two workers {name} run at the same time"));
            }
        }
        failures
    }

    /// The choice stands while people want the same and no worker comes or goes. Otherwise one worker after the other would be drained.
    fn judge_choices(&mut self, world: &World, faults_end: Duration) -> Vec<String> {
        let (sets, pods) = (world.all("nodesets"), world.all("pods"));
        let mut failures = Vec::new();
        let mut chosen = BTreeMap::new();
        for set in &sets {
            let name = set["metadata"]["name"].as_str().unwrap_or_default().to_owned();
            let owned = |pod: &&std::sync::Arc<Value>| {
                pod["metadata"]["ownerReferences"][0]["uid"] == set["metadata"]["uid"]
                    && !pod["metadata"]["deletionTimestamp"].is_string()
            };
            let workers: Vec<_> = pods.iter().filter(owned).collect();
            let uids: BTreeSet<String> = workers.iter().map(|pod| pod["metadata"]["uid"].to_string()).collect();
            let cause = serde_json::json!({ "set": set["metadata"]["uid"], "spec": set["spec"], "workers": uids, "disturbed": world.disturbances() });
            let new = (cause.clone(), elapsed());
            let known = self.causes.entry(name).or_insert_with(|| new.clone());
            if known.0 != cause {
                *known = new;
            }
            let is_calm = elapsed().saturating_sub(known.1.max(faults_end)) > CHOSEN;
            for pod in workers {
                let (uid, pod_name) = (pod["metadata"]["uid"].to_string(), pod["metadata"]["name"].to_string());
                let mark = pod["metadata"]["annotations"][LEAVING].as_str().unwrap_or_default();
                if mark.contains("scale-in") {
                    chosen.insert(uid, pod_name);
                } else if is_calm && self.chosen.contains_key(&uid) {
                    failures.push(format!(
                        "{pod_name} was chosen to leave, and another one was later, though nothing changed"
                    ));
                }
            }
        }
        self.chosen = chosen;
        failures
    }
}

/// Workers that are marked to leave, or as drained, or that may be evicted, though everything is as people want it.
pub fn marked(world: &World) -> Vec<String> {
    let pods = world.all("pods");
    let workers = pods
        .iter()
        .filter(|pod| pod["metadata"]["labels"]["app.kubernetes.io/name"] == "slurmd");
    let marks = |pod: &std::sync::Arc<Value>| {
        let (name, annotations) = (&pod["metadata"]["name"], &pod["metadata"]["annotations"]);
        let found = [LEAVING, DRAINED, DRAIN_REASON]
            .into_iter()
            .filter(|key| annotations[key].is_string());
        let mut marks: Vec<String> = found
            .map(|key| match key {
                LEAVING => format!("{name} is still marked to leave"),
                key => format!("{name} still has the annotation {key}"),
            })
            .collect();
        if !pod["metadata"]["labels"][PROTECTED].is_string() {
            marks.push(format!("{name} may still be evicted"));
        }
        marks
    };
    workers.flat_map(marks).collect()
}
