//! Step safety: whatever happens in whatever order, no worker is deleted while a job is on it, and once nothing happens
//! any more the set is what its spec asks for.
//!
//! A small world: pods, a slurmctld that forgets what it has not written down when it is killed, jobs that come and go, an
//! operator that looks late, dies between two steps and finds Slurm silent.

use std::{collections::BTreeMap, sync::Arc};

use proptest::prelude::*;
use serde_json::{Value, json};
use slurm::rest::{Observation, Process};

use super::{Effect, Evidence, ObjectId, Standing, plan};
use crate::{
    access::{Knowledge, Seen},
    nodeset::fixture::{controller, finished, marked, nodeset, now, observed, slurm_key, terminating, unknown, worker},
};

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
    /// Somebody undrains the n-th node by hand.
    Undrained(usize),
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
struct Pod {
    life: Life,
    victim: bool,
    terminating: bool,
}

#[derive(Clone, Debug, Default)]
struct World {
    replicas: u32,
    pods: BTreeMap<u32, Pod>,
    /// Name and whether it is drained.
    nodes: BTreeMap<String, bool>,
    saved: BTreeMap<String, bool>,
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
        let nodes = self.nodes.iter().map(|(name, drained)| {
            let busy = self.jobs.values().any(|(node, suspended)| node == name && !suspended);
            let mut state = vec![if busy { "ALLOCATED" } else { "IDLE" }, "DYNAMIC_NORM"];
            if *drained {
                state.push("DRAIN");
            }
            json!({ "name": name, "state": state, "reason": if *drained { "slurm-operator: x" } else { "" } })
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

    fn objects(&self) -> Vec<Value> {
        let mut objects = vec![
            controller(),
            slurm_key(),
            nodeset(&json!({ "replicas": self.replicas })),
        ];
        for (ordinal, pod) in &self.pods {
            let mut manifest = worker(*ordinal);
            if pod.victim {
                manifest = marked(manifest);
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

    fn reconcile(&mut self, dies_after: usize) -> usize {
        let knowledge = match &self.seen {
            Some(seen) if !self.silent => Knowledge::Known(Arc::new(seen.clone())),
            _ => unknown(),
        };
        let plan = plan(&observed(self.objects(), knowledge));
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
                assert!(
                    self.pods.insert(ordinal, Pod::default()).is_none(),
                    "{name} was there already"
                );
            }
            Effect::ReplacePod { pod } => self.delete_pod(ordinal(pod)),
            Effect::MarkVictim { pod } => self.pods.get_mut(&ordinal(pod)).unwrap().victim = true,
            Effect::SpareVictim { pod, undrain } => {
                if let Some(node) = undrain {
                    if self.silent {
                        return;
                    }
                    self.nodes.entry(node.clone()).and_modify(|drained| *drained = false);
                }
                self.pods.get_mut(&ordinal(pod)).unwrap().victim = false;
            }
            Effect::DrainNode { node, .. } if !self.silent => {
                self.nodes.entry(node.clone()).and_modify(|drained| *drained = true);
            }
            Effect::RemoveWorker {
                pod, node, standing, ..
            } if !self.silent => {
                let fresh = self.look();
                if Evidence::new(&fresh).standing(node) != *standing {
                    return;
                }
                if let Standing::Proven { keep_record: None } = standing {
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
                    .filter(|(_, drained)| !**drained)
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
            Happening::StateSaved => self.saved = self.nodes.clone(),
            Happening::SlurmctldKilled => {
                self.boots += 1;
                // Nodes that are forgotten come back when their slurmd registers; a drain does not.
                for (name, drained) in &mut self.nodes {
                    *drained = self.saved.get(name).copied().unwrap_or(false);
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
            Happening::Undrained(nth) => {
                let count = self.nodes.len().max(1);
                if let Some(drained) = self.nodes.values_mut().nth(nth % count) {
                    *drained = false;
                }
            }
            Happening::KubeletCatchesUp => {
                self.pods.retain(|_, pod| !pod.terminating);
                for (ordinal, pod) in &mut self.pods {
                    if pod.life == Life::Pending {
                        pod.life = Life::Running;
                        self.nodes.entry(node_name(*ordinal)).or_insert(false);
                    }
                }
            }
        }
    }

    /// Nothing bad happens any more: jobs end, Slurm answers.
    fn settle(&mut self) {
        self.silent = false;
        self.jobs.clear();
        for _ in 0..40 {
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
        1 => any::<usize>().prop_map(Happening::Undrained),
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
        prop_assert!(world.pods.values().all(|pod| !pod.victim));
    }
}
