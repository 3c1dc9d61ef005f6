//! A history without chance: a cluster is installed, used, scaled and idle at the end.

use std::time::Duration;

use serde_json::json;
use tokio::time::sleep;

use crate::{
    slurm::{Reply, Request, Submission, state::Node},
    world::{NAMESPACE, World, elapsed},
};

/// Creates a cluster with one NodeSet, and waits until its workers are idle.
pub async fn install(world: &World, replicas: usize) {
    create_cluster(world, replicas);
    until(world, "workers are idle", Duration::from_mins(5), |world| {
        idle_workers(world) == replicas
    })
    .await;
}

/// Creates a Controller and a NodeSet.
pub fn create_cluster(world: &World, replicas: usize) {
    let meta = |name: &str| json!({ "name": name, "namespace": NAMESPACE });
    world.create(
        "controllers",
        json!({ "apiVersion": "slinky.slurm.net/v1beta1", "kind": "Controller", "metadata": meta("slurm"), "spec": {} }),
    );
    world.create(
        "nodesets",
        json!({ "apiVersion": "slinky.slurm.net/v1beta1", "kind": "NodeSet", "metadata": meta("compute"), "spec": {
            "controllerRef": { "name": "slurm" }, "replicas": replicas, "partition": { "enabled": true },
        } }),
    );
}

/// Workers that take jobs.
pub fn idle_workers(world: &World) -> usize {
    let Some(active) = world.active() else { return 0 };
    let slurm = world.slurm();
    slurm.state(active).map_or(0, |state| {
        state.nodes.values().filter(|node| node.is_available()).count()
    })
}

/// Waits until something holds. Panics with the story if it does not in time.
pub async fn until(world: &World, what: &str, within: Duration, holds: impl Fn(&World) -> bool) {
    let begin = elapsed();
    while !holds(world) {
        if elapsed().saturating_sub(begin) > within {
            show_conditions(world);
            for line in world.story() {
                println!("{line}");
            }
            panic!("not within {within:?}: {what}");
        }
        sleep(Duration::from_millis(500)).await;
    }
    world.tell(format!("it holds: {what}"));
}

/// Tells what slurmctld shows, and what the operator reports about the cluster.
pub fn show_conditions(world: &World) {
    for line in shown_by_slurm(world) {
        world.tell(line);
    }
    for plural in ["controllers", "nodesets", "partitions"] {
        for object in world.all(plural) {
            let conditions = object["status"]["conditions"].as_array().cloned().unwrap_or_default();
            for condition in conditions {
                let part = |field: &str| condition[field].as_str().unwrap_or_default().to_owned();
                let name = object["metadata"]["name"].as_str().unwrap_or_default();
                world.tell(format!(
                    "{plural} {name}: {}={} {}: {}",
                    part("type"),
                    part("status"),
                    part("reason"),
                    part("message")
                ));
            }
        }
    }
}

/// The nodes, the jobs that have not ended, and processes of jobs.
fn shown_by_slurm(world: &World) -> Vec<String> {
    let slurm = world.slurm();
    let Some(state) = world.active().and_then(|active| slurm.state(active).ok()) else {
        return vec!["slurmctld does not answer".to_owned()];
    };
    let node = |node: &Node| {
        let names = state.node_state_names(node, slurm.now());
        format!("node {} at {}: {names:?} {:?}", node.name, node.address, node.reason)
    };
    let nodes = state.nodes.values().map(node);
    let jobs = state.jobs.values().filter(|job| job.is_active());
    let jobs = jobs.map(|job| format!("{job:?}"));
    let hosts = slurm.hosts().filter(|(_, host)| !host.processes.is_empty());
    let processes = hosts.map(|(_, host)| format!("processes on {}: {:?}", host.spec.name, host.processes));
    nodes.chain(jobs).chain(processes).collect()
}

/// Submits a job and returns its number.
pub fn submit(world: &World, job: Submission) -> Option<u32> {
    match world.order(Request::Submit(job)) {
        Ok(Reply::Submitted(id)) => Some(id),
        other => {
            world.tell(format!("a job is not accepted: {other:?}"));
            None
        }
    }
}

/// The whole history.
pub async fn play(world: &World) {
    install(world, 3).await;
    let meta = json!({ "name": "debug", "namespace": NAMESPACE });
    let spec = json!({ "controllerRef": { "name": "slurm" }, "nodeSets": ["compute"], "maxTime": 30 });
    let partition =
        json!({ "apiVersion": "slinky.slurm.net/v1beta1", "kind": "Partition", "metadata": meta, "spec": spec });
    world.create("partitions", partition);
    until(world, "the partition is live", Duration::from_mins(2), |world| {
        let slurm = world.slurm();
        let state = world.active().and_then(|active| slurm.state(active).ok());
        state.is_some_and(|state| state.partitions.contains_key("debug"))
    })
    .await;
    let job = Submission {
        nodes: 2,
        ..Submission::new("compute", Duration::from_mins(2))
    };
    submit(world, job).unwrap();
    sleep(Duration::from_secs(5)).await;
    world.patch("nodesets", "compute", &json!({ "spec": { "replicas": 1 } }));
    world.tell("scaled to 1");
    until(world, "one worker is left", Duration::from_mins(10), |world| {
        world.workers().len() == 1 && idle_workers(world) == 1
    })
    .await;
    world.patch("nodesets", "compute", &json!({ "spec": { "replicas": 4 } }));
    world.tell("scaled to 4");
    until(world, "four workers are idle", Duration::from_mins(10), |world| {
        idle_workers(world) == 4
    })
    .await;
    sleep(Duration::from_mins(2)).await;
    let before = world.access.writes().len();
    sleep(Duration::from_mins(30)).await;
    let writes = world.access.writes();
    assert_eq!(writes[before..].len(), 0, "writes at rest: {:?}", &writes[before..]);
    for job in &world.slurm().ledger.jobs {
        assert_eq!(job.runs.len(), 1, "{job:?}");
    }
}
