//! Step safety: whatever happens in whatever order, no worker is deleted while a job is on it, and once nothing happens
//! any more the set is what its spec asks for.
//!
//! A small world: pods, a slurmctld that forgets what it has not written down when it is killed, jobs that come and go,
//! people who drain, cordon and evict, templates that change and may be broken, an operator that looks late, dies between
//! two steps and finds Slurm silent.

use std::{collections::BTreeMap, sync::Arc};

use proptest::prelude::*;
use serde_json::{Value, json};
use slurm::rest::{Observation, Process};

use super::{Cause, Effect, Evidence, Leaving, ObjectId, Plan, Record, Standing, plan};
use crate::{
    access::{Knowledge, Seen},
    nodeset::{
        DRAINED,
        fixture::{NOW, controller, finished, nodeset, now, observed, slurm_key, terminating, unknown, worker},
    },
};

const PROTECT: &str = "nodeset.slinky.slurm.net/pod-protect";

/// What happens.
#[derive(Clone, Debug)]
enum Happening {
    Scale(u32),
    /// The operator reconciles on what was last seen, and dies after so many steps.
    Reconcile {
        dies_after: usize,
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
    /// Somebody undrains the n-th node by hand.
    Undrained(usize),
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
enum Life {
    #[default]
    Pending,
    Running,
    Failed,
}

#[derive(Clone, Debug, Default)]
#[allow(clippy::struct_excessive_bools)] // Each is a fact of its own.
struct Pod {
    life: Life,
    leaving: Option<Leaving>,
    terminating: bool,
    unprotected: bool,
    cordoned: bool,
    /// Its node was seen drained for the cordon.
    drained: bool,
    /// And that for so long that Slurm has written it down.
    durable: bool,
    revision: String,
    broken: bool,
}

#[derive(Clone, Copy, Debug, Default, PartialEq)]
enum Drain {
    #[default]
    No,
    Ours,
    Theirs,
}

#[derive(Clone, Debug, Default)]
struct World {
    replicas: u32,
    template: u32,
    broken: bool,
    pods: BTreeMap<u32, Pod>,
    nodes: BTreeMap<String, Drain>,
    saved: BTreeMap<String, Drain>,
    /// Node and whether it is suspended.
    jobs: BTreeMap<u64, (String, bool)>,
    next_job: u64,
    boots: u64,
    silent: bool,
    seen: Option<Seen>,
}

fn node_name(ordinal: u32) -> String {
    format!("compute-{ordinal}")
}

fn ordinal(pod: &ObjectId) -> u32 {
    pod.name.rsplit_once('-').unwrap().1.parse().unwrap()
}

impl World {
    fn look(&self) -> Seen {
        let nodes = self.nodes.iter().map(|(name, drain)| {
            let busy = self.jobs.values().any(|(node, suspended)| node == name && !suspended);
            let mut state = vec![if busy { "ALLOCATED" } else { "IDLE" }, "DYNAMIC_NORM"];
            if *drain != Drain::No {
                state.push("DRAIN");
            }
            // What exactly is said does not matter here, and is not said again.
            let reason = match drain {
                Drain::No => String::new(),
                Drain::Ours => self.our_reason(name),
                Drain::Theirs => "broken fan".to_owned(),
            };
            json!({ "name": name, "state": state, "reason": reason })
        });
        let jobs = self.jobs.iter().map(|(id, (node, suspended))| {
            json!({ "job_id": id, "job_state": [if *suspended { "SUSPENDED" } else { "RUNNING" }], "nodes": node })
        });
        let observation = Observation {
            nodes: nodes.map(|node| serde_json::from_value(node).unwrap()).collect(),
            jobs: jobs.map(|job| serde_json::from_value(job).unwrap()).collect(),
            process: Some(Process { boot_time: self.boots }),
        };
        Seen::new(observation, now())
    }

    fn our_reason(&self, node: &str) -> String {
        let pod = self.pods.iter().find(|(ordinal, _)| node_name(**ordinal) == node);
        let text = match pod.map(|(_, pod)| pod) {
            Some(Pod {
                leaving: Some(leaving), ..
            }) => {
                format!(
                    "Pod (slurm/{node}) is pending termination for {}",
                    leaving.cause.purpose()
                )
            }
            _ => format!("Pod (slurm/{node}) was cordoned"),
        };
        format!("slurm-operator: {text}")
    }

    fn objects(&self) -> Vec<Value> {
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
            if pod.drained {
                let since = if pod.durable { "2026-01-01T00:00:00Z" } else { NOW };
                meta["annotations"][DRAINED] = json!(since);
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

    /// An update takes none away that is of use while as many are missing as may be.
    fn check_update(&self, plan: &Plan) {
        let Some(seen) = &self.seen else { return };
        let serves = |ordinal: &u32, pod: &Pod| {
            let node = seen.nodes.get(&node_name(*ordinal));
            let open = node.is_some_and(|node| !node.state.is_drain());
            let goes = pod.leaving.is_some_and(|leaving| leaving.cause == Cause::Update);
            open && pod.life == Life::Running && !pod.terminating && !goes
        };
        let taken = plan
            .effects
            .iter()
            .filter_map(|effect| match effect {
                Effect::MarkLeaving { pod, leaving } if leaving.cause == Cause::Update => Some(ordinal(pod)),
                _ => None,
            })
            .filter(|ordinal| serves(ordinal, &self.pods[ordinal]))
            .count();
        let serving = self.pods.iter().filter(|(ordinal, pod)| serves(ordinal, pod)).count();
        let least = usize::try_from(self.replicas - self.replicas.div_ceil(4)).unwrap();
        assert!(
            taken == 0 || serving - taken >= least,
            "{taken} of {serving} are taken, {least} should be left"
        );
    }

    fn reconcile(&mut self, dies_after: usize) -> usize {
        let knowledge = match &self.seen {
            Some(seen) if !self.silent => Knowledge::Known(Arc::new(seen.clone())),
            _ => unknown(),
        };
        let plan = plan(&observed(self.objects(), knowledge));
        self.check_update(&plan);
        for effect in plan.effects.iter().take(dies_after) {
            self.carry_out(effect);
        }
        plan.effects.len()
    }

    fn carry_out(&mut self, effect: &Effect) {
        match effect {
            Effect::CreatePod { pod, .. } => {
                let name = pod["metadata"]["name"].as_str().unwrap();
                let ordinal = name.rsplit_once('-').unwrap().1.parse().unwrap();
                let revision = pod["metadata"]["labels"]["controller.kubernetes.io/hash"].as_str();
                let made = Pod {
                    revision: revision.unwrap().to_owned(),
                    broken: self.broken,
                    ..Pod::default()
                };
                assert!(self.pods.insert(ordinal, made).is_none(), "{name} was there already");
            }
            Effect::LoseWorker { pod: Some(pod), .. } => self.delete_pod(ordinal(pod)),
            Effect::MarkLeaving { pod, leaving } => self.pod(pod).leaving = Some(*leaving),
            Effect::Spare { pod } => self.pod(pod).leaving = None,
            Effect::MarkPod {
                pod,
                labels,
                annotations,
            } => {
                let pod = self.pod(pod);
                if let Some(protect) = labels.get(PROTECT) {
                    pod.unprotected = protect.is_none();
                }
                if let Some(drained) = annotations.get(DRAINED) {
                    pod.drained = drained.is_some();
                    pod.durable = false;
                }
            }
            Effect::DrainNode { node, .. } if !self.silent => {
                self.nodes.entry(node.clone()).and_modify(|drain| {
                    if *drain == Drain::No {
                        *drain = Drain::Ours;
                    }
                });
            }
            Effect::UndrainNode { node, .. } if !self.silent => {
                let taken_back = |drain: &mut Drain| {
                    // Somebody's word that came after the look.
                    if *drain == Drain::Ours {
                        *drain = Drain::No;
                    }
                };
                self.nodes.entry(node.clone()).and_modify(taken_back);
            }
            Effect::Unprotect { pod, node, standing } if !self.silent && self.holds(node, standing) => {
                self.pod(pod).unprotected = true;
            }
            Effect::RemoveWorker {
                pod,
                node,
                standing,
                record,
                ..
            } if !self.silent && self.holds(node, standing) => {
                if *record == Record::Delete {
                    // As Slurm does: a suspended job is no hindrance.
                    assert!(!self.jobs.values().any(|(on, suspended)| on == node && !suspended));
                    self.nodes.remove(node);
                    self.saved.remove(node);
                }
                self.delete_pod(ordinal(pod));
            }
            _ => {}
        }
    }

    fn pod(&mut self, id: &ObjectId) -> &mut Pod {
        self.pods.get_mut(&ordinal(id)).unwrap()
    }

    fn holds(&self, node: &str, standing: &Standing) -> bool {
        Evidence::new(&self.look()).standing(node) == *standing
    }

    /// The promise.
    fn delete_pod(&mut self, ordinal: u32) {
        let name = node_name(ordinal);
        let pod = self.pods.get_mut(&ordinal).unwrap();
        assert!(
            pod.life == Life::Failed || !self.jobs.values().any(|(node, _)| *node == name),
            "{name} was deleted with a job on it"
        );
        pod.terminating = true;
    }

    fn happen(&mut self, happening: &Happening) {
        match happening {
            Happening::Scale(replicas) => self.replicas = *replicas,
            Happening::Reconcile { dies_after } => drop(self.reconcile(*dies_after)),
            Happening::Look => self.seen = (!self.silent).then(|| self.look()),
            Happening::SlurmFallsSilent => self.silent = true,
            Happening::SlurmAnswers => self.silent = false,
            Happening::JobStarts(nth) => {
                let open: Vec<String> = self
                    .nodes
                    .iter()
                    .filter(|(_, drain)| **drain == Drain::No)
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
            Happening::StateSaved => {
                self.saved = self.nodes.clone();
                for pod in self.pods.values_mut() {
                    pod.durable = pod.drained;
                }
            }
            Happening::SlurmctldKilled => {
                self.boots += 1;
                // Nodes that are forgotten come back when their slurmd registers; a drain does not.
                for (name, drain) in &mut self.nodes {
                    *drain = self.saved.get(name).copied().unwrap_or_default();
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
            Happening::DrainedByHand(nth) => self.drain_by_hand(*nth, Drain::Theirs),
            Happening::Undrained(nth) => self.drain_by_hand(*nth, Drain::No),
            Happening::Cordoned(nth, cordoned) => {
                let count = self.pods.len().max(1);
                if let Some(pod) = self.pods.values_mut().nth(nth % count) {
                    pod.cordoned = *cordoned;
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

    fn drain_by_hand(&mut self, nth: usize, wanted: Drain) {
        let count = self.nodes.len().max(1);
        let Some((name, drain)) = self.nodes.iter_mut().nth(nth % count) else {
            return;
        };
        // Who opens a node while its pod may be evicted is in a race that only they can win.
        let evictable = self
            .pods
            .iter()
            .any(|(n, pod)| pod.unprotected && node_name(*n) == *name);
        if !evictable {
            *drain = wanted;
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
        for drain in self.nodes.values_mut().filter(|drain| **drain == Drain::Theirs) {
            *drain = Drain::No;
        }
        for _ in 0..60 {
            self.happen(&Happening::KubeletCatchesUp);
            self.happen(&Happening::Look);
            if self.reconcile(usize::MAX) == 0
                && self
                    .pods
                    .values()
                    .all(|pod| pod.life == Life::Running && !pod.terminating)
            {
                return;
            }
        }
        panic!("it does not come to rest: {self:?}");
    }
}

fn any_happening() -> impl Strategy<Value = Happening> {
    prop_oneof![
        2 => (0..6_u32).prop_map(Happening::Scale),
        6 => prop_oneof![3 => Just(usize::MAX), 1 => 0..3_usize].prop_map(|dies_after| Happening::Reconcile { dies_after }),
        4 => Just(Happening::Look),
        1 => Just(Happening::SlurmFallsSilent),
        1 => Just(Happening::SlurmAnswers),
        3 => any::<usize>().prop_map(Happening::JobStarts),
        1 => any::<usize>().prop_map(Happening::JobSuspended),
        2 => any::<usize>().prop_map(Happening::JobEnds),
        1 => Just(Happening::StateSaved),
        1 => Just(Happening::SlurmctldKilled),
        1 => any::<usize>().prop_map(Happening::PodFails),
        1 => any::<usize>().prop_map(Happening::DrainedByHand),
        1 => any::<usize>().prop_map(Happening::Undrained),
        2 => (any::<usize>(), any::<bool>()).prop_map(|(nth, cordoned)| Happening::Cordoned(nth, cordoned)),
        1 => any::<usize>().prop_map(Happening::Evicted),
        1 => any::<bool>().prop_map(|broken| Happening::Template { broken }),
        3 => Just(Happening::KubeletCatchesUp),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, ..ProptestConfig::default() })]

    #[test]
    fn no_job_is_lost_and_the_set_settles(happenings in prop::collection::vec(any_happening(), 1..60)) {
        let mut world = World { replicas: 3, ..World::default() };
        for happening in &happenings {
            world.happen(happening);
        }
        world.settle();
        prop_assert_eq!(world.pods.len(), usize::try_from(world.replicas).unwrap());
        let revisions: std::collections::BTreeSet<&str> = world.pods.values().map(|pod| pod.revision.as_str()).collect();
        prop_assert!(revisions.len() <= 1, "{:?}", revisions);
        prop_assert!(world.pods.values().all(|pod| pod.leaving.is_none() && !pod.unprotected && !pod.drained));
        prop_assert!(world.pods.keys().all(|ordinal| world.nodes[&node_name(*ordinal)] == Drain::No));
    }
}
