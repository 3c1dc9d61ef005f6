//! What people ordered stands until people lift it.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use jiff::Timestamp;
use serde_json::{Value, json};
use slurm::node::NodeFlag;

use super::workers::{DRAINED, LEAVING};
use crate::{
    slurm::{
        ControllerId, NodeOrder, Request, Slurm, State,
        state::{JobKey, JobPhase, Node},
    },
    world::{World, elapsed},
};

/// The operator polls Slurm every five seconds, and a change of a partition's state is delivered within seconds of that,
/// whatever else is to be delivered.
const NOTICED: Duration = Duration::from_secs(7);

/// From the reading of files until the agent has restored the manual states of partitions.
const HANDED_OVER: Duration = Duration::from_millis(500);

/// A removal that is under way goes on for so long when people want the worker again: an order is given up after ten seconds.
const REMOVED: Duration = Duration::from_mins(1);

/// slurmctld takes the states of partitions from its files. The agent reads what people changed so soon before that.
const READ_BEFORE: Duration = Duration::from_millis(100);

/// A proof is at most this old when its order is carried out.
const PROVEN: Duration = Duration::from_secs(15);

/// The kinds whose spec people write.
const KINDS: [&str; 3] = ["controllers", "nodesets", "partitions"];

/// What people ordered and did not lift.
#[derive(Debug, Default)]
pub struct Orders {
    /// Nodes that are drained or down.
    nodes: BTreeMap<String, NodeState>,
    /// Held jobs.
    jobs: BTreeMap<JobKey, Held>,
    /// Partitions that people closed or opened.
    partitions: BTreeMap<String, PartitionOrder>,
    /// What people wrote into objects, by kind and name.
    objects: BTreeMap<(&'static str, String), Value>,
    /// Every partition that was ever closed by hand.
    pub closed_once: BTreeSet<String>,
    slurmctld: Option<ControllerId>,
    /// Changes of objects that faults brought.
    disturbances: u64,
    /// Workers that were to leave when a person resumed their nodes: the UIDs of their pods and their marks, by node.
    stay: BTreeMap<String, (Value, Value)>,
}

#[derive(Debug)]
#[allow(clippy::struct_excessive_bools)] // Each is a fact of its own.
struct NodeState {
    drained: bool,
    down: bool,
    reason: String,
    /// slurmctld has saved it.
    durable: bool,
    /// When its worker was last to be removed, so that its record may go.
    unwanted: Option<Duration>,
}

impl NodeState {
    fn stands(&self, node: &Node) -> bool {
        let drained = node.has(NodeFlag::Drain) || node.has(NodeFlag::Fail);
        (drained || !self.drained) && (node.down || !self.down) && node.reason.contains(&self.reason)
    }
}

#[derive(Debug)]
struct Held {
    id: u32,
    durable: bool,
}

#[derive(Debug)]
struct PartitionOrder {
    state: String,
    since: Duration,
    /// slurmctld has been one process, and nothing has failed, for so long since then that the operator must have noticed.
    noticed: bool,
}

impl Orders {
    pub fn drain(&mut self, world: &World, node: &str, reason: &str) {
        self.order(node, reason).drained = true;
        self.note_what_may_go(world);
    }

    pub fn down(&mut self, world: &World, node: &str, reason: &str) {
        self.order(node, reason).down = true;
        self.note_what_may_go(world);
    }

    fn order(&mut self, node: &str, reason: &str) -> &mut NodeState {
        let new = || NodeState {
            drained: false,
            down: false,
            reason: String::new(),
            durable: false,
            unwanted: None,
        };
        let order = self.nodes.entry(node.to_owned()).or_insert_with(new);
        order.durable = false;
        reason.clone_into(&mut order.reason);
        order
    }

    pub fn resume(&mut self, node: &str) {
        self.nodes.remove(node);
    }

    /// A person resumed a node that we drained. We have noted when we did, so we know that its worker must not leave.
    pub fn resume_ours(&mut self, world: &World, node: &str) {
        let pods = world.all("pods");
        let noted = |pod: &&Arc<Value>| {
            let annotations = &pod["metadata"]["annotations"];
            // `scale-in 2027-01-15T08:10:07Z`. A drain from before was for a cordon.
            let chosen = annotations[LEAVING].as_str().and_then(|mark| mark.rsplit(' ').next());
            let is_drained_to_leave = annotations[DRAINED]
                .as_str()
                .zip(chosen)
                .is_some_and(|(at, since)| time(at) >= time(since));
            pod["spec"]["hostname"] == node && is_drained_to_leave
        };
        if let Some(pod) = pods.iter().find(noted) {
            let meta = &pod["metadata"];
            let (uid, mark) = (meta["uid"].clone(), meta["annotations"][LEAVING].clone());
            self.stay.insert(node.to_owned(), (uid, mark));
        }
    }

    /// A person drains it, so that its worker leaves.
    pub fn let_go(&mut self, node: &str) {
        self.stay.remove(node);
    }

    /// Nodes with an order.
    pub fn node_names(&self) -> Vec<String> {
        self.nodes.keys().cloned().collect()
    }

    pub fn hold(&mut self, job: JobKey, id: u32) {
        self.jobs.insert(job, Held { id, durable: false });
    }

    pub fn release(&mut self, job: JobKey) {
        self.jobs.remove(&job);
    }

    /// A person sets the state of a partition: closes or opens it.
    pub fn set_partition(&mut self, partition: &str, state: &str) {
        let order = PartitionOrder {
            state: state.to_owned(),
            since: elapsed(),
            noticed: false,
        };
        self.partitions.insert(partition.to_owned(), order);
        if state != "UP" {
            self.closed_once.insert(partition.to_owned());
        }
    }

    /// People have just changed objects. What they do not want any more may be gone at the next look.
    pub fn note_objects(&mut self, world: &World) {
        self.objects = objects(world);
        self.note_what_may_go(world);
    }

    /// Faults end at `faults_end`.
    pub(super) fn judge(&mut self, world: &World, faults_end: Duration) -> Vec<String> {
        let mut failures = self.judge_objects(world);
        let Some(active) = world.active() else { return failures };
        if self.slurmctld != Some(active) {
            // A killed slurmctld forgets what it did not save.
            self.nodes.retain(|_, order| order.durable);
            self.jobs.retain(|_, order| order.durable);
            let rewound = world.rewound.lock().unwrap();
            // The operator's note of the state is gone with what etcd has forgotten.
            let is_void = |at: Duration| rewound.iter().any(|(from, to)| (*from..*to).contains(&at));
            self.partitions
                .retain(|_, order| order.noticed && !is_void(order.since));
            self.stay.clear();
            self.slurmctld = Some(active);
        }
        self.note_what_may_go(world);
        // A removal that was under way when people wanted the worker again has ended.
        let ended = |since: Duration| elapsed().saturating_sub(since.max(faults_end)) > REMOVED;
        for order in self.nodes.values_mut() {
            order.unwanted = order.unwanted.filter(|since| !ended(*since));
        }
        let slurm = world.slurm();
        let Ok(state) = slurm.state(active) else {
            return failures;
        };
        let saved = slurm.saved(world.volume());
        failures.extend(self.judge_nodes(state, saved));
        failures.extend(self.judge_jobs(state, saved));
        failures.extend(self.judge_partitions(world, state, slurm.booted(active), faults_end));
        failures.extend(judge_named(&slurm, state));
        failures.extend(judge_resumed(world, &slurm));
        failures.extend(self.judge_stay(world, state));
        failures
    }

    /// A worker whose node a person resumed is not drained again and does not leave, while people want the same.
    fn judge_stay(&mut self, world: &World, state: &State) -> Vec<String> {
        let (pods, sets) = (world.all("pods"), world.all("nodesets"));
        let lost = world.lost_workers.lock().unwrap();
        let is_rewound = !world.rewound.lock().unwrap().is_empty();
        let is_ending = |object: &Value| object["metadata"]["deletionTimestamp"].is_string();
        let mut failures = Vec::new();
        self.stay.retain(|name, (uid, mark)| {
            let set = name.rsplit_once('-').map_or("", |(set, _)| set);
            let has_set = sets
                .iter()
                .any(|found| found["metadata"]["name"] == set && !is_ending(found));
            let pod = pods.iter().find(|pod| pod["metadata"]["uid"] == *uid);
            let is_same = pod.is_none_or(|pod| pod["metadata"]["annotations"][LEAVING] == *mark);
            if !has_set || !is_same || is_rewound || lost.contains(name) || self.nodes.contains_key(name) {
                return false;
            }
            if pod.is_none_or(|pod| is_ending(pod)) {
                failures.push(format!("a person resumed {name}, and its worker left"));
                return false;
            }
            let Some(node) = state.nodes.get(name).filter(|node| !node.down) else {
                return false;
            };
            if node.has(NodeFlag::Drain) {
                failures.push(format!(
                    "a person resumed {name}, and it was drained again\n{}",
                    node.reason
                ));
            }
            !node.has(NodeFlag::Drain)
        });
        failures
    }

    fn judge_nodes(&mut self, state: &State, saved: &State) -> Vec<String> {
        let mut failures = Vec::new();
        self.nodes.retain(|name, order| {
            let Some(node) = state.nodes.get(name) else {
                if order.unwanted.is_none() {
                    failures.push(format!("a person ordered {order:?} of {name}, and its record is gone"));
                }
                return false;
            };
            order.durable |= saved.nodes.get(name).is_some_and(|node| order.stands(node));
            let stands = order.stands(node);
            if !stands {
                let now = state.node_state_names(node, elapsed());
                failures.push(format!(
                    "a person ordered a state of {name}, and nobody lifted it, but it changed\n{order:?}: {now:?} {:?}",
                    node.reason
                ));
            }
            stands
        });
        failures
    }

    fn judge_jobs(&mut self, state: &State, saved: &State) -> Vec<String> {
        let mut failures = Vec::new();
        self.jobs.retain(|key, order| {
            let find = |state: &State| state.jobs.get(&order.id).filter(|job| job.key == *key).cloned();
            order.durable |= find(saved).is_some_and(|job| job.held);
            let held = find(state).map(|job| job.held || job.phase.is_end());
            if held == Some(false) {
                failures.push(format!(
                    "a person held job {}, and nobody released it, but it is not held",
                    order.id
                ));
            }
            held == Some(true)
        });
        failures
    }

    /// slurmctld read its files when it `booted`.
    fn judge_partitions(
        &mut self,
        world: &World,
        state: &State,
        booted: Option<Duration>,
        faults_end: Duration,
    ) -> Vec<String> {
        // A process that has read new files serves no request until it is the main process. Then the agent restores manual states.
        if booted.is_some_and(|at| elapsed() < at + HANDED_OVER) {
            return Vec::new();
        }
        let is_wanted = |name: &str| {
            ["partitions", "nodesets"].iter().any(|plural| {
                let found = world.get(plural, name);
                found.is_ok_and(|object| !object["metadata"]["deletionTimestamp"].is_string())
            })
        };
        let mut failures = Vec::new();
        self.partitions.retain(|name, order| {
            let Some(partition) = state.partitions.get(name).filter(|_| is_wanted(name)) else {
                return false;
            };
            order.noticed |= elapsed().saturating_sub(order.since.max(faults_end)) > NOTICED;
            let is_unread = booted.is_some_and(|at| (order.since..order.since + READ_BEFORE).contains(&at));
            if partition.state != order.state && !is_unread {
                failures.push(format!(
                    "a person set partition {name} to {}, and nobody changed that, but it is {}",
                    order.state, partition.state
                ));
            }
            partition.state == order.state
        });
        failures
    }

    /// The record of a worker that people do not want any more may go.
    fn note_what_may_go(&mut self, world: &World) {
        let sets = world.all("nodesets");
        let pods = world.all("pods");
        let ordinal = |name: &str| name.rsplit_once('-').and_then(|(_, number)| number.parse::<u64>().ok());
        for (name, order) in &mut self.nodes {
            let set_name = name.rsplit_once('-').map_or("", |(set, _)| set);
            let set = sets.iter().find(|set| set["metadata"]["name"] == set_name);
            let may_go = set.is_none_or(|set| {
                let wanted = set["spec"]["replicas"].as_u64().unwrap_or(1);
                let owned = |pod: &&Arc<Value>| pod["metadata"]["ownerReferences"][0]["uid"] == set["metadata"]["uid"];
                let numbers = pods
                    .iter()
                    .filter(owned)
                    .map(|pod| ordinal(pod["metadata"]["name"].as_str()?));
                let numbers: Vec<Option<u64>> = numbers.collect();
                // An update keeps the record for a successor of the same name. This one gets a lower number that is free, and the
                // record stays without a worker.
                let higher = numbers.iter().filter(|number| **number > ordinal(name)).count() as u64;
                let gets_another_name = ordinal(name).is_some_and(|number| number + higher >= wanted);
                let is_surplus = numbers.len() as u64 > wanted;
                if gets_another_name && !is_surplus {
                    world.lost_workers.lock().unwrap().insert(name.clone());
                }
                is_surplus || set["metadata"]["deletionTimestamp"].is_string()
            });
            if may_go {
                order.unwanted = Some(elapsed());
            }
        }
    }

    /// Nobody but people writes into a spec, or changes labels, annotations and cordons of theirs.
    fn judge_objects(&mut self, world: &World) -> Vec<String> {
        let now = objects(world);
        let mut failures = Vec::new();
        let disturbances = world.disturbances();
        if std::mem::replace(&mut self.disturbances, disturbances) != disturbances {
            // A person drained a node or restored etcd since the last look.
            self.objects = now;
            return failures;
        }
        for (key, before) in &self.objects {
            let (plural, name) = key;
            if let Some(after) = now.get(key).filter(|after| *after != before) {
                failures.push(format!(
                    "what people wrote into {plural} {name} changed\n{before} to {after}"
                ));
            }
        }
        // What is gone is gone; what changed is reported once.
        self.objects = now;
        failures
    }
}

/// A node that a pending job names is not deleted.
fn judge_named(slurm: &Slurm, state: &State) -> Vec<String> {
    let mut failures = Vec::new();
    for job in state.jobs.values().filter(|job| job.phase == JobPhase::Pending) {
        for name in job.spec.required.iter().filter(|name| !state.nodes.contains_key(*name)) {
            let deletes = |request: &Request| matches!(request, Request::DeleteNode(node) if node == name);
            let mut orders = slurm.ledger.orders.iter().rev();
            let last = orders.find(|order| order.failure.is_none() && deletes(&order.request));
            // The job may have come after the proof.
            if last.is_some_and(|order| order.at > job.submitted + PROVEN) {
                failures.push(format!(
                    "job {} waits for {name} by name, and {name} is deleted",
                    job.id
                ));
            }
        }
    }
    failures
}

fn time(text: &str) -> Timestamp {
    text.parse().unwrap()
}

/// The operator takes nothing but a resume by a person for one.
fn judge_resumed(world: &World, slurm: &Slurm) -> Vec<String> {
    // A restored etcd has old notes of drains.
    if !world.rewound.lock().unwrap().is_empty() {
        return Vec::new();
    }
    let by_person = |name: &str| {
        let is_resume = |request: &Request| matches!(request, Request::UpdateNode { node, update } if node == name && update.state == Some(NodeOrder::Resume));
        let mut orders = slurm.ledger.orders.iter();
        orders.any(|order| order.sender == "person" && is_resume(&order.request))
    };
    let reported = resumed(world).into_iter();
    let wrong = reported.filter(|name| !by_person(name));
    wrong
        .map(|name| format!("the operator reports that a person resumed {name}, and nobody did"))
        .collect()
}

/// Nodes that a person resumed while they were to leave, as the operator reports.
pub fn resumed(world: &World) -> Vec<String> {
    let mut names = Vec::new();
    for set in world.all("nodesets") {
        for condition in set["status"]["conditions"].as_array().into_iter().flatten() {
            let message = condition["message"].as_str().unwrap_or_default();
            let asked = message
                .split("; ")
                .filter(|part| part.contains("an administrator resumed it in Slurm"));
            names.extend(
                asked
                    .filter_map(|part| part.split_whitespace().nth(1))
                    .map(str::to_owned),
            );
        }
    }
    names
}

/// What only people write, of all objects.
fn objects(world: &World) -> BTreeMap<(&'static str, String), Value> {
    let name = |object: &Value| object["metadata"]["name"].as_str().unwrap_or_default().to_owned();
    let mut found = BTreeMap::new();
    for plural in KINDS {
        for object in world.all(plural) {
            let owner = &object["metadata"]["annotations"]["example.com/owner"];
            let theirs = json!({ "spec": object["spec"], "labels": object["metadata"]["labels"], "owner": owner });
            found.insert((plural, name(&object)), theirs);
        }
    }
    for node in world.all("nodes") {
        let cordon = node["spec"]["unschedulable"] == true;
        let theirs = json!({
            "cordon": cordon, "labels": node["metadata"]["labels"], "annotations": node["metadata"]["annotations"],
        });
        found.insert(("nodes", name(&node)), theirs);
    }
    found
}
