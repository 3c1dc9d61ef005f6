//! Step safety: in any order of events, no worker is deleted while a job is on it, manual orders are kept, and once nothing
//! happens any more the NodeSet is as its spec asks.
//!
//! A small world: pods; a slurmctld that loses what it has not saved when it is killed; jobs that start and end;
//! administrators who drain, resume, cordon and evict; templates that change and may be broken; an operator that reconciles
//! late, dies between two steps and finds Slurm unreachable. Anything may happen between two steps of a plan. Slurm
//! executes every order; the agent rejects orders that were planned on another state, and [`World::agent_compares`] turns
//! that off.

use std::{
    collections::{BTreeMap, BTreeSet},
    panic::{AssertUnwindSafe, catch_unwind},
};

use jiff::Timestamp;
use proptest::prelude::*;
use serde_json::{Value, json};
use slurm::{
    AdminState,
    rest::{Observation, Process},
};

use crate::{
    cluster::Seen,
    nodeset::fixture::{controller, finished, nodeset, now, slurm_key, terminating, worker},
    worker::{DRAIN_REASON, DRAINED, Leaving, ObjectId},
};

pub(super) const PROTECT: &str = "nodeset.slinky.slurm.net/pod-protect";

/// An event.
#[derive(Clone, Debug)]
pub(super) enum Event {
    Scale(u32),
    /// The operator reconciles on the last snapshot, and dies after so many steps. Other events happen meanwhile.
    Reconcile {
        dies_after: usize,
        meanwhile: Vec<Event>,
    },
    /// A poll.
    Poll,
    SlurmFallsSilent,
    SlurmAnswers,
    /// A job starts on the n-th open node.
    JobStarts(usize),
    JobSuspended(usize),
    JobEnds(usize),
    /// slurmctld saves its state.
    StateSaved,
    /// slurmctld is killed and restarted; unsaved state is lost.
    SlurmctldKilled,
    PodFails(usize),
    /// Slurm sets the n-th node down because it does not respond, until its slurmd registers again.
    StopsResponding(usize),
    /// An administrator drains the n-th node.
    DrainedByHand(usize),
    /// An administrator sets the n-th node down.
    DownByHand(usize),
    /// An administrator resumes the n-th node.
    Resumed(usize),
    /// A user cordons or uncordons the n-th pod.
    Cordoned(usize, bool),
    /// A user requests the eviction of the n-th pod.
    Evicted(usize),
    /// The template changes, and may be broken.
    Template {
        broken: bool,
    },
    /// Deleted pods end, slurmd starts in new ones, and pods in which it has started are reported as running.
    KubeletCatchesUp,
    /// Every slurmd that has started registers. With a backlog, each new node gets a job at once.
    SlurmdsRegister {
        backlog: bool,
    },
}

#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) enum Life {
    #[default]
    Pending,
    Running,
    Failed,
}

#[derive(Clone, Debug, Default)]
#[allow(clippy::struct_excessive_bools)] // Each is a fact of its own.
pub(super) struct Pod {
    pub(super) life: Life,
    pub(super) created: i64,
    /// slurmd runs. The kubelet reports that later.
    pub(super) started: bool,
    pub(super) ready: i64,
    pub(super) leaving: Option<Leaving>,
    pub(super) terminating: bool,
    pub(super) unprotected: bool,
    pub(super) cordoned: bool,
    pub(super) drain_reason: Option<String>,
    /// Since when the operator's drain has been in force.
    pub(super) drained: Option<i64>,
    pub(super) revision: String,
    pub(super) broken: bool,
}

/// A node in Slurm.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Truth {
    pub(super) admin: AdminState,
    /// The last order was manual: a drain or a down.
    pub(super) theirs: bool,
    /// An administrator reverted the operator's drain, in the slurmctld process that had accepted it.
    pub(super) resumed: bool,
    /// Slurm itself set it down.
    pub(super) unresponsive: bool,
}

#[derive(Clone, Debug)]
pub(super) struct World {
    /// Set in production. Without it, manual orders are lost: see the last test.
    pub(super) agent_compares: bool,
    /// In seconds. Each event takes one.
    pub(super) time: i64,
    pub(super) replicas: u32,
    pub(super) template: u32,
    pub(super) broken: bool,
    pub(super) pods: BTreeMap<u32, Pod>,
    pub(super) nodes: BTreeMap<String, Truth>,
    pub(super) saved: BTreeMap<String, Truth>,
    pub(super) saved_at: i64,
    /// Node and whether it is suspended.
    pub(super) jobs: BTreeMap<u64, (String, bool)>,
    pub(super) next_job: u64,
    /// When slurmctld started.
    pub(super) boot: i64,
    pub(super) silent: bool,
    pub(super) seen: Option<Seen>,
}

/// slurmctld saves its state at least that often.
const SAVED_EVERY: i64 = 5;

pub(super) fn at(time: i64) -> Timestamp {
    Timestamp::from_second(now().as_second() + time).unwrap()
}

pub(super) fn node_name(ordinal: u32) -> String {
    format!("compute-{ordinal}")
}

pub(super) fn ordinal(pod: &ObjectId) -> u32 {
    pod.name.rsplit_once('-').unwrap().1.parse().unwrap()
}

impl World {
    pub(super) fn new() -> Self {
        Self {
            agent_compares: true,
            time: 0,
            replicas: 3,
            template: 0,
            broken: false,
            pods: BTreeMap::new(),
            nodes: BTreeMap::new(),
            saved: BTreeMap::new(),
            saved_at: 0,
            jobs: BTreeMap::new(),
            next_job: 0,
            boot: 0,
            silent: false,
            seen: None,
        }
    }

    pub(super) fn look(&self) -> Seen {
        let nodes = self.nodes.iter().map(|(name, Truth { admin, .. })| {
            let busy = self.jobs.values().any(|(node, suspended)| node == name && !suspended);
            let base = match (admin.down, busy) {
                (true, _) => "DOWN",
                (false, true) => "ALLOCATED",
                (false, false) => "IDLE",
            };
            let mut state = vec![base, "DYNAMIC_NORM"];
            if admin.drain {
                state.push("DRAIN");
            }
            let since = json!({ "set": true, "infinite": false, "number": admin.reason_since });
            json!({ "name": name, "state": state, "reason": admin.reason, "reason_changed_at": since })
        });
        let jobs = self.jobs.iter().map(|(id, (node, suspended))| {
            json!({ "job_id": id, "job_state": [if *suspended { "SUSPENDED" } else { "RUNNING" }], "nodes": node })
        });
        let boot_time = u64::try_from(at(self.boot).as_second()).unwrap();
        let observation = Observation {
            nodes: nodes.map(|node| serde_json::from_value(node).unwrap()).collect(),
            jobs: jobs.map(|job| serde_json::from_value(job).unwrap()).collect(),
            process: Some(Process { boot_time }),
        };
        Seen::new(observation, at(self.time), crate::cluster::Source::Agent)
    }

    pub(super) fn objects(&self) -> Vec<Value> {
        let spec = json!({ "replicas": self.replicas, "extraConf": format!("Weight={}", self.template) });
        let mut objects = vec![controller(), slurm_key(), nodeset(&spec)];
        for (ordinal, pod) in &self.pods {
            let mut manifest = worker(*ordinal);
            let meta = &mut manifest["metadata"];
            meta["creationTimestamp"] = json!(at(pod.created));
            meta["labels"]["controller.kubernetes.io/hash"] = json!(pod.revision);
            if pod.unprotected {
                meta["labels"].as_object_mut().unwrap().remove(PROTECT);
            }
            if let Some(leaving) = pod.leaving {
                meta["annotations"]["nodeset.slinky.slurm.net/leaving"] = json!(leaving.to_string());
            }
            if pod.cordoned {
                meta["annotations"]["nodeset.slinky.slurm.net/pod-cordon"] = json!("true");
            }
            if let Some(since) = pod.drained {
                meta["annotations"][DRAINED] = json!(at(since));
            }
            if let Some(reason) = &pod.drain_reason {
                meta["annotations"][DRAIN_REASON] = json!(reason);
            }
            match pod.life {
                Life::Running => manifest["status"]["conditions"][0]["lastTransitionTime"] = json!(at(pod.ready)),
                Life::Failed => manifest = finished(manifest),
                Life::Pending => {
                    let reason = if pod.broken {
                        "ImagePullBackOff"
                    } else {
                        "ContainerCreating"
                    };
                    let slurmd = json!({ "name": "slurmd", "image": "", "imageID": "", "ready": false, "restartCount": 0,
                        "state": { "waiting": { "reason": reason } } });
                    manifest["status"] = json!({ "phase": "Pending", "containerStatuses": [slurmd] });
                }
            }
            if pod.terminating {
                manifest = terminating(manifest);
            }
            objects.push(manifest);
        }
        objects
    }

    pub(super) fn happen(&mut self, event: &Event) {
        self.time += 1;
        if self.time - self.saved_at >= SAVED_EVERY {
            self.save();
        }
        match event {
            Event::Scale(replicas) => self.replicas = *replicas,
            Event::Reconcile { dies_after, meanwhile } => drop(self.reconcile(*dies_after, meanwhile)),
            Event::Poll => self.seen = (!self.silent).then(|| self.look()),
            Event::SlurmFallsSilent => self.silent = true,
            Event::SlurmAnswers => self.silent = false,
            Event::JobStarts(nth) => {
                let open: Vec<String> = self
                    .nodes
                    .iter()
                    .filter(|(_, truth)| !truth.admin.drain && !truth.admin.down)
                    .map(|(name, _)| name.clone())
                    .collect();
                if let Some(node) = open.get(nth % open.len().max(1)) {
                    self.next_job += 1;
                    self.jobs.insert(self.next_job, (node.clone(), false));
                }
            }
            Event::JobSuspended(nth) => {
                let count = self.jobs.len().max(1);
                if let Some((_, suspended)) = self.jobs.values_mut().nth(nth % count) {
                    *suspended = !*suspended;
                }
            }
            Event::JobEnds(nth) => {
                let ids: Vec<u64> = self.jobs.keys().copied().collect();
                if let Some(id) = ids.get(nth % ids.len().max(1)) {
                    self.jobs.remove(id);
                }
            }
            Event::StateSaved => self.save(),
            Event::SlurmctldKilled => {
                self.boot = self.time;
                // Lost nodes return when their slurmd registers; a lost drain does not.
                for (name, truth) in &mut self.nodes {
                    *truth = self.saved.get(name).cloned().unwrap_or_default();
                    truth.resumed = false;
                }
            }
            Event::PodFails(nth) => {
                let count = self.pods.len().max(1);
                let victim = self.pods.iter_mut().nth(nth % count).map(|(ordinal, pod)| {
                    pod.life = Life::Failed;
                    node_name(*ordinal)
                });
                // Its jobs are lost to its failure, not to the operator.
                if let Some(node) = victim {
                    self.jobs.retain(|_, (on, _)| *on != node);
                }
            }
            Event::StopsResponding(nth) => self.stop_responding(*nth),
            Event::DrainedByHand(nth) => self.by_hand(*nth, |admin| admin.drain = true),
            Event::DownByHand(nth) => self.by_hand(*nth, |admin| admin.down = true),
            Event::Resumed(nth) => self.resume_by_hand(*nth),
            Event::Cordoned(nth, cordoned) => {
                let count = self.pods.len().max(1);
                if let Some((ordinal, pod)) = self.pods.iter_mut().nth(nth % count) {
                    pod.cordoned = *cordoned;
                    let name = node_name(*ordinal);
                    // A new cordon after an uncordon drains the node again.
                    if !cordoned {
                        pod.drained = None;
                        self.forget_resume(&name);
                    }
                }
            }
            Event::Evicted(nth) => {
                let open: Vec<u32> = self
                    .pods
                    .iter()
                    .filter(|(_, pod)| pod.unprotected)
                    .map(|(n, _)| *n)
                    .collect();
                if let Some(ordinal) = open.get(nth % open.len().max(1)) {
                    self.delete_pod(*ordinal);
                }
            }
            Event::Template { broken } => {
                self.template += 1;
                self.broken = *broken;
            }
            Event::KubeletCatchesUp => {
                self.pods.retain(|_, pod| !pod.terminating);
                for pod in self.pods.values_mut().filter(|pod| pod.life == Life::Pending) {
                    if pod.started {
                        (pod.life, pod.ready) = (Life::Running, self.time);
                    }
                    pod.started = !pod.broken;
                }
            }
            Event::SlurmdsRegister { backlog } => self.register(*backlog),
        }
    }

    fn register(&mut self, backlog: bool) {
        let started = self.pods.iter().filter(|(_, pod)| pod.started);
        for (ordinal, _) in started.filter(|(_, pod)| pod.life != Life::Failed) {
            let name = node_name(*ordinal);
            if backlog && !self.nodes.contains_key(&name) {
                self.next_job += 1;
                self.jobs.insert(self.next_job, (name.clone(), false));
            }
            let truth = self.nodes.entry(name).or_default();
            if std::mem::take(&mut truth.unresponsive) && truth.admin.down {
                truth.admin.down = false;
                // The reason of a drained node stays.
                if !truth.admin.drain {
                    truth.admin = AdminState::default();
                }
            }
        }
    }

    fn save(&mut self) {
        self.saved = self.nodes.clone();
        self.saved_at = self.time;
    }

    /// A manual order on an evictable node is a race that the operator cannot win.
    fn nth_node(&mut self, nth: usize) -> Option<(String, &mut Truth)> {
        let count = self.nodes.len().max(1);
        let name = self.nodes.keys().nth(nth % count)?.clone();
        let evictable = self
            .pods
            .iter()
            .any(|(n, pod)| pod.unprotected && node_name(*n) == name);
        let truth = self.nodes.get_mut(&name)?;
        (!evictable).then_some((name, truth))
    }

    /// Slurm appends to an existing reason, and the jobs are lost with the node.
    fn stop_responding(&mut self, nth: usize) {
        let now = u64::try_from(at(self.time).as_second()).unwrap();
        let Some((name, truth)) = self.nth_node(nth).filter(|(_, truth)| !truth.admin.down) else {
            return;
        };
        (truth.admin.down, truth.unresponsive) = (true, true);
        let separator = if truth.admin.reason.is_empty() { "" } else { " : " };
        truth.admin.reason = format!("{}{separator}Not responding", truth.admin.reason);
        truth.admin.reason_since = now;
        self.jobs.retain(|_, (on, _)| *on != name);
    }

    /// A manual order, always with a reason.
    fn by_hand(&mut self, nth: usize, order: impl FnOnce(&mut AdminState)) {
        let now = u64::try_from(at(self.time).as_second()).unwrap();
        let Some((name, truth)) = self.nth_node(nth) else {
            return;
        };
        order(&mut truth.admin);
        truth.admin.reason = "slurm-operator: RMA".to_owned();
        truth.admin.reason_since = now;
        (truth.theirs, truth.resumed, truth.unresponsive) = (true, false, false);
        if truth.admin.down {
            // Its jobs end with the manual down.
            self.jobs.retain(|_, (on, _)| *on != name);
        }
    }

    fn resume_by_hand(&mut self, nth: usize) {
        let boot = self.boot;
        let Some((name, truth)) = self.nth_node(nth) else {
            return;
        };
        let was_ours = truth.admin.drain && !truth.theirs;
        *truth = Truth::default();
        let pod = self.pods.iter().find(|(ordinal, _)| node_name(**ordinal) == name);
        // Otherwise it looks like a drain that slurmctld lost.
        let is_known = pod.is_some_and(|(_, pod)| {
            let leaving = pod
                .leaving
                .map_or(i64::MIN, |leaving| leaving.since.as_second() - at(0).as_second());
            pod.drained.is_some_and(|since| since >= boot && since >= leaving)
        });
        if let Some(truth) = self.nodes.get_mut(&name) {
            truth.resumed = was_ours && is_known;
        }
    }

    /// No more trouble: jobs end, Slurm answers, manual orders are reverted, templates work.
    fn settle(&mut self) {
        self.silent = false;
        self.jobs.clear();
        self.happen(&Event::Template { broken: false });
        for pod in self.pods.values_mut() {
            pod.cordoned = false;
        }
        for _ in 0..60 {
            self.revert_manual_orders();
            self.happen(&Event::KubeletCatchesUp);
            self.happen(&Event::SlurmdsRegister { backlog: false });
            self.happen(&Event::Poll);
            if self.reconcile(usize::MAX, &[]) == 0
                && self
                    .pods
                    .values()
                    .all(|pod| pod.life == Life::Running && !pod.terminating && pod.leaving.is_none())
            {
                return;
            }
        }
        panic!("it does not come to rest: {self:?}");
    }

    /// Manual orders are reverted, and resumed nodes that have to leave are drained.
    fn revert_manual_orders(&mut self) {
        // Since when each leaving node has been drained.
        let leaving: BTreeMap<String, Option<i64>> = self
            .pods
            .iter()
            .filter(|(_, pod)| pod.leaving.is_some())
            .map(|(ordinal, pod)| (node_name(*ordinal), pod.drained))
            .collect();
        for (name, truth) in &mut self.nodes {
            match leaving.get(name) {
                None if truth.theirs => *truth = Truth::default(),
                Some(Some(_)) if !truth.admin.drain => {
                    truth.admin.drain = true;
                    truth.admin.reason = "it may go".to_owned();
                    (truth.theirs, truth.resumed) = (true, false);
                }
                _ => {}
            }
        }
    }
}

/// Events while a plan is executed.
fn any_meanwhile() -> impl Strategy<Value = Event> {
    prop_oneof![
        2 => any::<usize>().prop_map(Event::JobStarts),
        1 => any::<usize>().prop_map(Event::JobSuspended),
        1 => any::<usize>().prop_map(Event::JobEnds),
        2 => any::<usize>().prop_map(Event::DrainedByHand),
        1 => any::<usize>().prop_map(Event::DownByHand),
        2 => any::<usize>().prop_map(Event::Resumed),
        6 => any::<bool>().prop_map(|backlog| Event::SlurmdsRegister { backlog }),
    ]
}

fn any_event() -> impl Strategy<Value = Event> {
    let meanwhile = prop_oneof![2 => Just(Vec::new()), 1 => prop::collection::vec(any_meanwhile(), 1..4)];
    let dies_after = prop_oneof![3 => Just(usize::MAX), 1 => 0..3_usize];
    prop_oneof![
        2 => (0..6_u32).prop_map(Event::Scale),
        6 => (dies_after, meanwhile).prop_map(|(dies_after, meanwhile)| Event::Reconcile { dies_after, meanwhile }),
        4 => Just(Event::Poll),
        1 => Just(Event::SlurmFallsSilent),
        1 => Just(Event::SlurmAnswers),
        3 => any::<usize>().prop_map(Event::JobStarts),
        1 => any::<usize>().prop_map(Event::JobSuspended),
        2 => any::<usize>().prop_map(Event::JobEnds),
        1 => Just(Event::StateSaved),
        1 => Just(Event::SlurmctldKilled),
        1 => any::<usize>().prop_map(Event::PodFails),
        2 => any::<usize>().prop_map(Event::DrainedByHand),
        1 => any::<usize>().prop_map(Event::StopsResponding),
        1 => any::<usize>().prop_map(Event::DownByHand),
        2 => any::<usize>().prop_map(Event::Resumed),
        2 => (any::<usize>(), any::<bool>()).prop_map(|(nth, cordoned)| Event::Cordoned(nth, cordoned)),
        1 => any::<usize>().prop_map(Event::Evicted),
        1 => any::<bool>().prop_map(|broken| Event::Template { broken }),
        3 => Just(Event::KubeletCatchesUp),
        2 => any::<bool>().prop_map(|backlog| Event::SlurmdsRegister { backlog }),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, ..ProptestConfig::default() })]

    #[test]
    fn no_job_is_lost_no_manual_order_is_overruled_and_the_set_settles(events in prop::collection::vec(any_event(), 1..60)) {
        let mut world = World::new();
        for event in &events {
            world.happen(event);
        }
        world.settle();
        prop_assert_eq!(world.pods.len(), usize::try_from(world.replicas).unwrap());
        let revisions: BTreeSet<&str> = world.pods.values().map(|pod| pod.revision.as_str()).collect();
        prop_assert!(revisions.len() <= 1, "{:?}", revisions);
        prop_assert!(world.pods.values().all(|pod| pod.leaving.is_none() && !pod.unprotected && pod.drained.is_none()));
        prop_assert!(world.pods.values().all(|pod| pod.drain_reason.is_none()));
        prop_assert!(world.pods.keys().all(|ordinal| world.nodes[&node_name(*ordinal)].admin == AdminState::default()));
    }
}

/// Shows what the comparison of the agent prevents.
#[test]
fn without_the_agents_comparison_manual_orders_are_overruled() {
    let reconcile = || Event::Reconcile {
        dies_after: usize::MAX,
        meanwhile: Vec::new(),
    };
    let running = || {
        [
            Event::Poll,
            reconcile(),
            Event::KubeletCatchesUp,
            Event::KubeletCatchesUp,
            Event::SlurmdsRegister { backlog: false },
            Event::Poll,
            reconcile(),
        ]
    };
    let cordoned = || {
        [
            running().to_vec(),
            vec![Event::Cordoned(0, true), reconcile(), Event::Poll, reconcile()],
        ]
    };
    let histories = [
        // A manual drain, then a cordon, on an older snapshot.
        [
            running().to_vec(),
            vec![Event::DrainedByHand(0), Event::Cordoned(0, true), reconcile()],
        ]
        .concat(),
        // A cordon, a manual drain, an uncordon.
        [
            cordoned().concat(),
            vec![Event::DrainedByHand(0), Event::Cordoned(0, false), reconcile()],
        ]
        .concat(),
    ];
    for history in &histories {
        for agent_compares in [true, false] {
            let mut world = World {
                agent_compares,
                ..World::new()
            };
            let lived = catch_unwind(AssertUnwindSafe(|| {
                for event in history {
                    world.happen(event);
                }
            }));
            assert_eq!(lived.is_ok(), agent_compares, "{history:?}");
        }
    }
}
