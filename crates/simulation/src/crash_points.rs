//! Every effect of a scenario is a crash point: the process that did it dies right after it, and the world comes to the same end.

use std::{
    collections::BTreeMap,
    panic::AssertUnwindSafe,
    sync::{
        Mutex,
        atomic::{AtomicU64, Ordering},
    },
    thread,
    time::Duration,
};

use futures::FutureExt as _;
use serde_json::{Value, json};
use tokio::time::sleep;

use crate::{
    log, oracles, panics, script,
    slurm::Submission,
    world::{NAMESPACE, World, crash, elapsed},
};

/// A scenario ends within this time of its start, whatever died.
const END: Duration = Duration::from_mins(15);

/// Then everything is written.
const QUIET: Duration = Duration::from_mins(1);

/// Something that people do, during which processes die.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scenario {
    Install,
    ScaleIn,
    Update,
    Configure,
    Partition,
    DeleteNodeSet,
}

impl Scenario {
    pub const ALL: [Self; 6] = [
        Self::Install,
        Self::ScaleIn,
        Self::Update,
        Self::Configure,
        Self::Partition,
        Self::DeleteNodeSet,
    ];

    pub const fn name(self) -> &'static str {
        match self {
            Self::Install => "install",
            Self::ScaleIn => "scale-in with a job",
            Self::Update => "update",
            Self::Configure => "configuration",
            Self::Partition => "partition made and deleted",
            Self::DeleteNodeSet => "deletion of a NodeSet",
        }
    }

    /// What people do, until it is done.
    async fn play(self, world: &World) {
        let changed = |plural: &str, name: &str, spec: Value| world.patch(plural, name, &json!({ "spec": spec }));
        match self {
            Self::Install => script::create_cluster(world, 2),
            Self::ScaleIn => {
                let job = Submission {
                    nodes: 2,
                    ..Submission::new("compute", Duration::from_mins(1))
                };
                script::submit(world, job).unwrap();
                sleep(Duration::from_secs(5)).await;
                changed("nodesets", "compute", json!({ "replicas": 1 }));
            }
            Self::Update => drop(changed(
                "nodesets",
                "compute",
                json!({ "slurmd": { "image": "slurmd:2" } }),
            )),
            Self::Configure => drop(changed(
                "controllers",
                "slurm",
                json!({ "extraConf": "BatchStartTimeout=30\n" }),
            )),
            Self::Partition => {
                let meta = json!({ "name": "debug", "namespace": NAMESPACE });
                let spec = json!({ "controllerRef": { "name": "slurm" }, "nodeSets": ["compute"], "maxTime": 30 });
                let kind = json!({ "apiVersion": "slinky.slurm.net/v1beta1", "kind": "Partition", "metadata": meta, "spec": spec });
                world.create("partitions", kind);
                settle(world).await;
                world.delete("partitions", "debug", &json!({}));
            }
            Self::DeleteNodeSet => drop(world.delete("nodesets", "compute", &json!({}))),
        }
        settle(world).await;
    }
}

async fn settle(world: &World) {
    let begin = elapsed();
    while let Some(why) = oracles::differs(world) {
        assert!(elapsed().saturating_sub(begin) < END, "not within {END:?}: {why}");
        sleep(Duration::from_secs(1)).await;
    }
}

/// The end of a scenario.
#[derive(Debug)]
struct Played {
    /// One line per field.
    end: Result<Vec<String>, String>,
    plan: crash::Plan,
    story: Vec<String>,
}

/// Plays a scenario in which the process that does the n-th effect dies.
fn play(scenario: Scenario, deadly: Option<u64>) -> Played {
    panics::collect();
    let mut played = crate::world::run(async || {
        let world = World::new(1, 3);
        log::tell(&world);
        let run = async {
            if scenario != Scenario::Install {
                script::install(&world, 2).await;
                sleep(QUIET).await;
            }
            crash::begin(deadly);
            scenario.play(&world).await;
            let plan = crash::end();
            sleep(QUIET).await;
            settle(&world).await;
            (plan, snapshot(&world))
        };
        match AssertUnwindSafe(run).catch_unwind().await {
            Ok((plan, end)) => Played {
                end: Ok(end),
                plan,
                story: world.story(),
            },
            Err(_) => Played {
                end: Err(String::new()),
                plan: crash::end(),
                story: world.story(),
            },
        }
    });
    let panics = panics::take();
    if !panics.is_empty() {
        played.end = Err(panics.join("\n"));
    }
    played
}

/// What one scenario showed.
#[derive(Debug, Default)]
pub struct Report {
    /// Effects by kind.
    pub counts: BTreeMap<&'static str, u64>,
    pub played: u64,
    pub failures: Vec<String>,
}

/// Plays a scenario once for every n-th effect, on several threads.
pub fn check(scenario: Scenario, every: u64, threads: usize) -> Report {
    let whole = play(scenario, None);
    let Ok(end) = whole.end else {
        return Report {
            failures: vec![format!("{}: {:?}", scenario.name(), whole.end)],
            ..Report::default()
        };
    };
    let points: u64 = whole.plan.counts.values().sum();
    let (next, failures) = (AtomicU64::new(0), Mutex::new(BTreeMap::new()));
    let work = || {
        loop {
            let point = next.fetch_add(1, Ordering::Relaxed) * every + 1;
            if point > points {
                break;
            }
            let played = play(scenario, Some(point));
            if let Some(why) = difference(&end, &played.end) {
                let struck = played.plan.struck.unwrap_or_default();
                let text = format!("{}, point {point} ({struck}): {why}", scenario.name());
                failures.lock().unwrap().insert(point, text);
            }
        }
    };
    thread::scope(|scope| {
        for _ in 0..threads.max(1) {
            scope.spawn(work);
        }
    });
    Report {
        counts: whole.plan.counts,
        played: points.div_ceil(every),
        failures: failures.into_inner().unwrap().into_values().collect(),
    }
}

/// The story of a scenario with one death.
pub fn tell(scenario: Scenario, point: u64) -> Vec<String> {
    play(scenario, Some(point)).story
}

fn difference(wanted: &[String], end: &Result<Vec<String>, String>) -> Option<String> {
    let end = match end {
        Ok(end) => end,
        Err(why) => return Some(why.clone()),
    };
    let lacks = wanted.iter().find(|line| !end.contains(line));
    let extra = end.iter().find(|line| !wanted.contains(line));
    (lacks.is_some() || extra.is_some()).then(|| format!("lacks {lacks:?}, has {extra:?}"))
}

/// Objects and Slurm's state, without what differs between two runs of the same scenario.
fn snapshot(world: &World) -> Vec<String> {
    let mut lines = Vec::new();
    for plural in world.plurals() {
        if ["leases", "events", "nodes", "customresourcedefinitions"].contains(&plural.as_str()) {
            continue;
        }
        for object in world.all(&plural) {
            let name = object["metadata"]["name"].as_str().unwrap_or_default();
            // Its name is that of its content, and contents of the past may be more.
            if plural == "controllerrevisions" {
                continue;
            }
            collect(&format!("{plural}/{name}"), &object, &mut lines);
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

/// Fields that differ between two runs: identities, times, places, and numbers of revisions.
const VOLATILE: [&str; 26] = [
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
    "conditions",
    "ownerReferences",
    "finalizers",
];

fn collect(path: &str, value: &Value, lines: &mut Vec<String>) {
    match value {
        Value::Object(fields) => {
            let is_history = path.starts_with("configmaps/") && path.contains("-history/");
            for (key, value) in fields {
                if !VOLATILE.contains(&key.as_str()) && !is_history {
                    collect(&format!("{path}/{key}"), value, lines);
                }
            }
        }
        Value::Array(elements) => {
            for (index, value) in elements.iter().enumerate() {
                collect(&format!("{path}/{index}"), value, lines);
            }
        }
        value => lines.push(format!("{path} = {value}")),
    }
}
