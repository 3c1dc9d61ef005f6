//! What people do while processes die.

use std::time::Duration;

use serde_json::{Value, json};
use slurm::node::NodeFlag;
use tokio::time::sleep;

use crate::{
    oracles, script,
    slurm::{State, Submission},
    world::{BAD_LINES, NAMESPACE, World, elapsed},
};

/// Each step of a scenario ends within this time, whatever died.
const END: Duration = Duration::from_mins(15);

/// Something that people do, during which processes die.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scenario {
    Install,
    ScaleIn,
    Update,
    Configure,
    Refused,
    Partition,
    Cordon,
    Takeover,
    Replace,
    DeleteNodeSet,
}

impl Scenario {
    pub const ALL: [Self; 10] = [
        Self::Install,
        Self::ScaleIn,
        Self::Update,
        Self::Configure,
        Self::Refused,
        Self::Partition,
        Self::Cordon,
        Self::Takeover,
        Self::Replace,
        Self::DeleteNodeSet,
    ];

    pub const fn name(self) -> &'static str {
        match self {
            Self::Install => "install",
            Self::ScaleIn => "scale-in with a job",
            Self::Update => "update",
            Self::Configure => "configuration",
            Self::Refused => "refused configuration with a job",
            Self::Partition => "partition made and deleted",
            Self::Cordon => "drain and uncordon",
            Self::Takeover => "takeover",
            Self::Replace => "replacement of slurmctld's pod with a job",
            Self::DeleteNodeSet => "deletion of a NodeSet",
        }
    }

    /// What people do, until it is done.
    pub(super) async fn play(self, world: &World) {
        let changed = |plural: &str, name: &str, spec: Value| {
            assert!(world.patch(plural, name, &json!({ "spec": spec })), "{plural} {name}");
        };
        let configure = |line: &str| changed("controllers", "slurm", json!({ "extraConf": format!("{line}\n") }));
        match self {
            Self::Install => script::create_cluster(world, 2),
            Self::ScaleIn => {
                start_job(world, Duration::from_mins(1)).await;
                changed("nodesets", "compute", json!({ "replicas": 1 }));
            }
            Self::Update => changed("nodesets", "compute", json!({ "slurmd": { "image": "slurmd:2" } })),
            Self::Configure => configure("BatchStartTimeout=30"),
            Self::Refused => {
                start_job(world, Duration::from_mins(3)).await;
                // A line that does not wait for the end of jobs.
                configure(BAD_LINES[4]);
                until(world, "the configuration is not refused", is_refused).await;
                assert!(!is_idle(world, "compute-0"), "the job has ended before the refusal");
                configure("BatchStartTimeout=30");
            }
            Self::Partition => {
                let meta = json!({ "name": "debug", "namespace": NAMESPACE });
                let spec = json!({ "controllerRef": { "name": "slurm" }, "nodeSets": ["compute"], "maxTime": 30 });
                let kind = json!({ "apiVersion": "slinky.slurm.net/v1beta1", "kind": "Partition", "metadata": meta, "spec": spec });
                world.create("partitions", kind);
                settle(world).await;
                world.delete("partitions", "debug", &json!({}));
            }
            Self::Cordon => {
                start_job(world, Duration::from_secs(30)).await;
                let pod = world.get("pods", "compute-0").unwrap();
                let node = pod["spec"]["nodeName"].as_str().unwrap().to_owned();
                world.patch("nodes", &node, &json!({ "spec": { "unschedulable": true } }));
                until(world, "compute-0 is not drained", |world| {
                    is_drained(world, "compute-0")
                })
                .await;
                world.patch("nodes", &node, &json!({ "spec": { "unschedulable": null } }));
            }
            Self::Takeover => {
                configure("BatchStartTimeout=30");
                let leader = world.leader();
                for (name, operator) in world.operators.lock().unwrap().iter() {
                    if leader.starts_with(name) {
                        operator.life.kill();
                    }
                }
            }
            Self::Replace => {
                start_job(world, Duration::from_mins(2)).await;
                world.delete("pods", "slurm-controller-0", &json!({}));
            }
            Self::DeleteNodeSet => drop(world.delete("nodesets", "compute", &json!({}))),
        }
        settle(world).await;
    }
}

/// A job on both workers. Slurm has saved it.
async fn start_job(world: &World, work: Duration) {
    let job = Submission {
        nodes: 2,
        ..Submission::new("compute", work)
    };
    script::submit(world, job).unwrap();
    sleep(Duration::from_secs(6)).await;
}

/// Whether the operator reports that slurmctld does not take the configuration.
fn is_refused(world: &World) -> bool {
    let controller = world.get("controllers", "slurm").unwrap_or_default();
    let mut conditions = controller["status"]["conditions"].as_array().into_iter().flatten();
    conditions.any(|condition| condition["type"] == "ConfigurationApplied" && condition["reason"] == "ConfigRejected")
}

/// What a slurmctld that responds shows.
fn shows(world: &World, holds: impl FnOnce(&State) -> bool) -> bool {
    let slurm = world.slurm();
    let state = world.active().and_then(|active| slurm.state(active).ok());
    state.is_some_and(holds)
}

fn is_idle(world: &World, name: &str) -> bool {
    shows(world, |state| state.jobs_on(name).next().is_none())
}

/// Whether a node takes no jobs and has none.
fn is_drained(world: &World, name: &str) -> bool {
    let drains = |state: &State| state.nodes.get(name).is_some_and(|node| node.has(NodeFlag::Drain));
    shows(world, drains) && is_idle(world, name)
}

async fn until(world: &World, what: &str, holds: impl Fn(&World) -> bool) {
    let begin = elapsed();
    while !holds(world) {
        assert!(elapsed().saturating_sub(begin) < END, "not within {END:?}: {what}");
        sleep(Duration::from_secs(1)).await;
    }
}

/// Waits until everything is as people want it.
pub(super) async fn settle(world: &World) {
    let begin = elapsed();
    while let Some(why) = oracles::differs(world) {
        assert!(elapsed().saturating_sub(begin) < END, "not within {END:?}: {why}");
        sleep(Duration::from_secs(1)).await;
    }
}
