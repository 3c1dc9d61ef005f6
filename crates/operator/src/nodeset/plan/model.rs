//! Step safety: whatever happens in whatever order, no worker is deleted while a job is on it, what a person ordered of a node stands,
//! and once nothing happens any more the set is what its spec asks for.
//!
//! A small world: pods, a slurmctld that forgets what it has not written down when it is killed, jobs that come and go,
//! people who drain, resume, cordon and evict, templates that change and may be broken, an operator that looks late, dies between
//! two steps and finds Slurm silent. Between any two steps of a plan something else may happen. Slurm does whatever it is told; that an
//! order is still about the state it was planned on is seen to by the agent, and [`World::agent_compares`] turns that off.

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

/// What happens.
#[derive(Clone, Debug)]
pub(super) enum Happening {
    Scale(u32),
    /// The operator reconciles on what was last seen, and dies after so many steps. Meanwhile others are not idle.
    Reconcile {
        dies_after: usize,
        meanwhile: Vec<Happening>,
    },
    /// The poller looks.
    Look,
    SlurmFallsSilent,
    SlurmAnswers,
    /// A job starts on the n-th node that takes jobs.
    JobStarts(usize),
    JobSuspended(usize),
    JobEnds(usize),
    /// Slurm writes its state down.
    StateSaved,
    /// slurmctld is killed and started again: what was not written down is lost.
    SlurmctldKilled,
    PodFails(usize),
    /// Somebody drains the n-th node by hand.
    DrainedByHand(usize),
    /// Somebody takes the n-th node down by hand.
    DownByHand(usize),
    /// Somebody resumes the n-th node by hand.
    Resumed(usize),
    /// Somebody cordons or uncordons the n-th pod.
    Cordoned(usize, bool),
    /// Somebody asks for the n-th pod to be evicted.
    Evicted(usize),
    /// Another template, of which no pod may ever start.
    Template {
        broken: bool,
    },
    /// Pods that were deleted are gone, new ones run and register.
    KubeletCatchesUp,
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
    pub(super) leaving: Option<Leaving>,
    pub(super) terminating: bool,
    pub(super) unprotected: bool,
    pub(super) cordoned: bool,
    pub(super) drain_reason: Option<String>,
    /// Since when a drain of ours is in force.
    pub(super) drained: Option<i64>,
    pub(super) revision: String,
    pub(super) broken: bool,
}

/// A node as Slurm has it.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Truth {
    pub(super) admin: AdminState,
    /// The last word on it was a person's: they drained it or took it down.
    pub(super) theirs: bool,
    /// A person took a drain of ours back, in the life of slurmctld that had taken it.
    pub(super) resumed: bool,
}

#[derive(Clone, Debug)]
pub(super) struct World {
    /// As it is. Without that, what people order is lost: see the last test.
    pub(super) agent_compares: bool,
    /// In seconds. Each happening takes one.
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
    /// When slurmctld began.
    pub(super) boot: i64,
    pub(super) silent: bool,
    pub(super) seen: Option<Seen>,
}

/// Slurm writes its state down at least that often.
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
    fn new() -> Self {
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
        Seen::new(observation, at(self.time))
    }

    pub(super) fn objects(&self) -> Vec<Value> {
        let spec = json!({ "replicas": self.replicas, "extraConf": format!("Weight={}", self.template) });
        let mut objects = vec![controller(), slurm_key(), nodeset(&spec)];
        for (ordinal, pod) in &self.pods {
            let mut manifest = worker(*ordinal);
            let meta = &mut manifest["metadata"];
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
                Life::Running => {}
                Life::Failed => manifest = finished(manifest),
                Life::Pending => manifest["status"] = json!({ "phase": "Pending" }),
            }
            if pod.terminating {
                manifest = terminating(manifest);
            }
            objects.push(manifest);
        }
        objects
    }

    pub(super) fn happen(&mut self, happening: &Happening) {
        self.time += 1;
        if self.time - self.saved_at >= SAVED_EVERY {
            self.save();
        }
        match happening {
            Happening::Scale(replicas) => self.replicas = *replicas,
            Happening::Reconcile { dies_after, meanwhile } => drop(self.reconcile(*dies_after, meanwhile)),
            Happening::Look => self.seen = (!self.silent).then(|| self.look()),
            Happening::SlurmFallsSilent => self.silent = true,
            Happening::SlurmAnswers => self.silent = false,
            Happening::JobStarts(nth) => {
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
            Happening::JobSuspended(nth) => {
                let count = self.jobs.len().max(1);
                if let Some((_, suspended)) = self.jobs.values_mut().nth(nth % count) {
                    *suspended = !*suspended;
                }
            }
            Happening::JobEnds(nth) => {
                let ids: Vec<u64> = self.jobs.keys().copied().collect();
                if let Some(id) = ids.get(nth % ids.len().max(1)) {
                    self.jobs.remove(id);
                }
            }
            Happening::StateSaved => self.save(),
            Happening::SlurmctldKilled => {
                self.boot = self.time;
                // Nodes that are forgotten come back when their slurmd registers; a drain does not.
                for (name, truth) in &mut self.nodes {
                    *truth = self.saved.get(name).cloned().unwrap_or_default();
                    truth.resumed = false;
                }
            }
            Happening::PodFails(nth) => {
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
            Happening::DrainedByHand(nth) => self.by_hand(*nth, |admin| admin.drain = true),
            Happening::DownByHand(nth) => self.by_hand(*nth, |admin| admin.down = true),
            Happening::Resumed(nth) => self.resume_by_hand(*nth),
            Happening::Cordoned(nth, cordoned) => {
                let count = self.pods.len().max(1);
                if let Some((ordinal, pod)) = self.pods.iter_mut().nth(nth % count) {
                    pod.cordoned = *cordoned;
                    let name = node_name(*ordinal);
                    // Who takes a cordon back, and cordons again, wants the node drained.
                    if !cordoned {
                        pod.drained = None;
                        self.forget_resume(&name);
                    }
                }
            }
            Happening::Evicted(nth) => {
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
            Happening::Template { broken } => {
                self.template += 1;
                self.broken = *broken;
            }
            Happening::KubeletCatchesUp => {
                self.pods.retain(|_, pod| !pod.terminating);
                for (ordinal, pod) in &mut self.pods {
                    if pod.life == Life::Pending && !pod.broken {
                        pod.life = Life::Running;
                        self.nodes.entry(node_name(*ordinal)).or_default();
                    }
                }
            }
        }
    }

    fn save(&mut self) {
        self.saved = self.nodes.clone();
        self.saved_at = self.time;
    }

    /// Who changes a node while its pod may be evicted is in a race that only they can win.
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

    /// A person's order. They always say why.
    fn by_hand(&mut self, nth: usize, order: impl FnOnce(&mut AdminState)) {
        let now = u64::try_from(at(self.time).as_second()).unwrap();
        let Some((name, truth)) = self.nth_node(nth) else {
            return;
        };
        order(&mut truth.admin);
        truth.admin.reason = "slurm-operator: RMA".to_owned();
        truth.admin.reason_since = now;
        (truth.theirs, truth.resumed) = (true, false);
        if truth.admin.down {
            // Their jobs end with it, by the person's word.
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
        // Otherwise it cannot be told from what slurmctld has forgotten.
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

    /// Nothing bad happens any more: jobs end, Slurm answers, people take back what they did, templates work.
    fn settle(&mut self) {
        self.silent = false;
        self.jobs.clear();
        self.happen(&Happening::Template { broken: false });
        for pod in self.pods.values_mut() {
            pod.cordoned = false;
        }
        for _ in 0..60 {
            self.settle_people();
            self.happen(&Happening::KubeletCatchesUp);
            self.happen(&Happening::Look);
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

    /// People take back what they ordered; and let go what they have resumed although it is to leave.
    fn settle_people(&mut self) {
        // Since when each that is to leave has been drained.
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

/// What others do while a plan is carried out.
fn any_meanwhile() -> impl Strategy<Value = Happening> {
    prop_oneof![
        2 => any::<usize>().prop_map(Happening::JobStarts),
        1 => any::<usize>().prop_map(Happening::JobSuspended),
        1 => any::<usize>().prop_map(Happening::JobEnds),
        2 => any::<usize>().prop_map(Happening::DrainedByHand),
        1 => any::<usize>().prop_map(Happening::DownByHand),
        2 => any::<usize>().prop_map(Happening::Resumed),
    ]
}

fn any_happening() -> impl Strategy<Value = Happening> {
    let meanwhile = prop_oneof![2 => Just(Vec::new()), 1 => prop::collection::vec(any_meanwhile(), 1..4)];
    let dies_after = prop_oneof![3 => Just(usize::MAX), 1 => 0..3_usize];
    prop_oneof![
        2 => (0..6_u32).prop_map(Happening::Scale),
        6 => (dies_after, meanwhile).prop_map(|(dies_after, meanwhile)| Happening::Reconcile { dies_after, meanwhile }),
        4 => Just(Happening::Look),
        1 => Just(Happening::SlurmFallsSilent),
        1 => Just(Happening::SlurmAnswers),
        3 => any::<usize>().prop_map(Happening::JobStarts),
        1 => any::<usize>().prop_map(Happening::JobSuspended),
        2 => any::<usize>().prop_map(Happening::JobEnds),
        1 => Just(Happening::StateSaved),
        1 => Just(Happening::SlurmctldKilled),
        1 => any::<usize>().prop_map(Happening::PodFails),
        2 => any::<usize>().prop_map(Happening::DrainedByHand),
        1 => any::<usize>().prop_map(Happening::DownByHand),
        2 => any::<usize>().prop_map(Happening::Resumed),
        2 => (any::<usize>(), any::<bool>()).prop_map(|(nth, cordoned)| Happening::Cordoned(nth, cordoned)),
        1 => any::<usize>().prop_map(Happening::Evicted),
        1 => any::<bool>().prop_map(|broken| Happening::Template { broken }),
        3 => Just(Happening::KubeletCatchesUp),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, ..ProptestConfig::default() })]

    #[test]
    fn no_job_is_lost_no_person_is_overruled_and_the_set_settles(happenings in prop::collection::vec(any_happening(), 1..60)) {
        let mut world = World::new();
        for happening in &happenings {
            world.happen(happening);
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

/// What the agent's comparison is good for.
#[test]
fn without_the_agents_comparison_people_are_overruled() {
    let reconcile = || Happening::Reconcile {
        dies_after: usize::MAX,
        meanwhile: Vec::new(),
    };
    let running = || {
        [
            Happening::Look,
            reconcile(),
            Happening::KubeletCatchesUp,
            Happening::Look,
            reconcile(),
        ]
    };
    let cordoned = || {
        [
            running().to_vec(),
            vec![Happening::Cordoned(0, true), reconcile(), Happening::Look, reconcile()],
        ]
    };
    let histories = [
        // Drained by hand, then cordoned, on a look that is older.
        [
            running().to_vec(),
            vec![Happening::DrainedByHand(0), Happening::Cordoned(0, true), reconcile()],
        ]
        .concat(),
        // Cordoned, drained by hand, uncordoned.
        [
            cordoned().concat(),
            vec![Happening::DrainedByHand(0), Happening::Cordoned(0, false), reconcile()],
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
                for happening in history {
                    world.happen(happening);
                }
            }));
            assert_eq!(lived.is_ok(), agent_compares, "{history:?}");
        }
    }
}
