//! Whether what people want is what there is.

use std::collections::BTreeSet;

use serde_json::Value;

use crate::{
    slurm::{
        Request, Slurm, State,
        state::{Job, Node},
    },
    world::World,
    world::elapsed,
};

/// Why what people want is not what there is.
pub fn differs(world: &World) -> Option<String> {
    let Some(active) = world.active() else {
        return Some("no slurmctld".to_owned());
    };
    let slurm = world.slurm();
    let Ok(state) = slurm.state(active) else {
        return Some("slurmctld does not answer".to_owned());
    };
    // Jobs that start and end change what the operator mirrors. A held job waits for a person. A job completes on a node that does
    // not respond when Slurm sets that DOWN, after `SlurmdTimeout`.
    let changes = |job: &&Job| job.is_active() && !job.held || job.is_completing();
    if let Some(job) = state.jobs.values().find(changes) {
        return Some(format!("job {} is {:?}", job.id, job.state_names()));
    }
    let kept = kept_records(world, &slurm);
    workers_differ(world, state, &kept)
        .or_else(|| left_nodes(world, state, &kept))
        .or_else(|| partitions_differ(world, state))
        .or_else(|| world.configuration_differs())
}

/// Nodes whose records may stay without a worker: of workers that were lost (`pruneSlurmNodeRecords: Never`), and those to which a
/// person gave an order, which outlives the worker.
fn kept_records(world: &World, slurm: &Slurm) -> BTreeSet<String> {
    let mut kept = world.lost_workers.lock().unwrap().clone();
    for order in slurm.ledger.orders.iter().filter(|order| order.sender == "person") {
        if let Request::UpdateNode { node, update } = &order.request
            && update.state.is_some()
        {
            kept.insert(node.clone());
        }
    }
    kept
}

fn workers_differ(world: &World, state: &State, kept: &BTreeSet<String>) -> Option<String> {
    for set in world.all("nodesets") {
        let name = set["metadata"]["name"].as_str().unwrap_or_default().to_owned();
        if set["metadata"]["deletionTimestamp"].is_string() {
            return Some(format!("NodeSet {name} is being deleted"));
        }
        let wanted = set["spec"]["replicas"].as_u64().unwrap_or(1);
        let of_set = |node: &&Node| node.name.starts_with(&format!("{name}-"));
        let hostnames: Vec<String> = world
            .all("pods")
            .iter()
            .map(|pod| pod["spec"]["hostname"].to_string())
            .collect();
        let is_left = |node: &&Node| {
            let has_pod = hostnames.contains(&format!("{:?}", node.name));
            !node.is_available() && !has_pod && kept.contains(&node.name)
        };
        let nodes: Vec<_> = state
            .nodes
            .values()
            .filter(of_set)
            .filter(|node| !is_left(node))
            .collect();
        let available = nodes.iter().filter(|node| node.is_available()).count() as u64;
        if available != wanted || nodes.len() as u64 != wanted {
            let states: Vec<String> = nodes
                .iter()
                .map(|node| {
                    format!(
                        "{} {:?} {}",
                        node.name,
                        state.node_state_names(node, elapsed()),
                        node.reason
                    )
                })
                .collect();
            return Some(format!("NodeSet {name} wants {wanted} workers: {states:?}"));
        }
        let image = set["spec"]["slurmd"]["image"].as_str();
        let pods = world.all("pods");
        let owned = pods
            .iter()
            .filter(|pod| pod["metadata"]["ownerReferences"][0]["uid"] == set["metadata"]["uid"]);
        if let Some(old) = owned
            .into_iter()
            .find(|pod| image.is_some_and(|image| pod["spec"]["containers"][0]["image"] != image))
        {
            return Some(format!("{} has an old image", old["metadata"]["name"]));
        }
    }
    None
}

/// Records whose NodeSet is gone.
fn left_nodes(world: &World, state: &State, kept: &BTreeSet<String>) -> Option<String> {
    let sets = world.names("nodesets");
    let of_set = |node: &Node| sets.iter().any(|set| node.name.starts_with(&format!("{set}-")));
    let mut left = state
        .nodes
        .values()
        .filter(|node| !of_set(node) && !kept.contains(&node.name));
    left.next()
        .map(|node| format!("node {} is left without its NodeSet", node.name))
}

fn partitions_differ(world: &World, state: &State) -> Option<String> {
    let known: BTreeSet<String> = [world.names("partitions"), world.names("nodesets")]
        .concat()
        .into_iter()
        .collect();
    let all = world.all("partitions");
    let mut ending = all
        .iter()
        .filter(|object| object["metadata"]["deletionTimestamp"].is_string());
    if let Some(ending) = ending.next() {
        return Some(format!("Partition {} is being deleted", ending["metadata"]["name"]));
    }
    for name in &known {
        match state.partitions.get(name) {
            None => return Some(format!("partition {name} is missing")),
            Some(partition) if partition.state != "UP" => {
                return Some(format!("partition {name} is {}", partition.state));
            }
            Some(_) => {}
        }
    }
    let extra = state.partitions.keys().find(|name| !known.contains(*name));
    extra.map(|extra| format!("partition {extra} is left"))
}

/// The objects that operators report in, by kind and name.
pub fn objects_of_ours(world: &World) -> Value {
    let mut all = Value::default();
    for plural in ["controllers", "nodesets", "partitions", "pods"] {
        for object in world.all(plural) {
            let name = object["metadata"]["name"].as_str().unwrap_or_default();
            all[plural][name] = (*object).clone();
        }
    }
    all
}

/// The values that differ, with their path.
pub fn changes(before: &Value, after: &Value) -> Vec<String> {
    let keys = |value: &Value| -> BTreeSet<String> {
        let entries = value.as_object().into_iter().flatten();
        let items = value.as_array().into_iter().flatten().enumerate();
        entries
            .map(|(key, _)| key.clone())
            .chain(items.map(|(number, _)| number.to_string()))
            .collect()
    };
    if before == after {
        return Vec::new();
    }
    let (mut all, more) = (keys(before), keys(after));
    all.extend(more);
    if all.is_empty() {
        return vec![format!(": {before} to {after}")];
    }
    let inner = |key: &String| {
        let of = |value: &Value| {
            value
                .pointer(&format!("/{}", key.replace('~', "~0").replace('/', "~1")))
                .cloned()
        };
        let changes = changes(&of(before).unwrap_or_default(), &of(after).unwrap_or_default());
        changes
            .into_iter()
            .map(move |change| format!("/{key}{change}"))
            .collect::<Vec<_>>()
    };
    all.iter().flat_map(inner).collect()
}

/// What our objects report though everything is as people want it.
pub fn problems(world: &World) -> Vec<String> {
    let mut problems = Vec::new();
    for plural in ["controllers", "nodesets", "partitions"] {
        for object in world.all(plural) {
            let name = object["metadata"]["name"].as_str().unwrap_or_default();
            for condition in object["status"]["conditions"].as_array().into_iter().flatten() {
                let part = |field: &str| condition[field].as_str().unwrap_or_default();
                let good = match part("type") {
                    "Ready" | "ConfigurationApplied" | "SlurmReachable" => "True",
                    "Degraded" | "Progressing" | "Drifted" | "PartitionRetained" => "False",
                    _ => continue,
                };
                if part("status") != good {
                    let (kind, status, why, message) = (part("type"), part("status"), part("reason"), part("message"));
                    problems.push(format!(
                        "{plural} {name} still reports {kind}={status} {why}: {message}"
                    ));
                }
            }
        }
    }
    problems
}
