//! Machines die, are cut off and come back, in random order; people delete pods by force. Two promises hold all the time: no node
//! is down whose worker is alive, and no name is given to a second worker while the first may be alive.

use std::{collections::BTreeMap, sync::Arc};

use proptest::prelude::*;
use serde_json::{Value, json};
use slurm::rest::{Observation, Process};

use super::{Effect, cut_off, plan};
use crate::{
    access::{Knowledge, Seen},
    nodeset::fixture::{controller, nodeset, now, observed_exactly, slurm_key, terminating, unknown, with, worker},
};

const HOSTS: [&str; 3] = ["k0", "k1", "k2"];
const SIZE: u32 = 3;

/// What a machine is, and what Kubernetes thinks of it.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Host {
    Well,
    /// It runs, and nobody can see it.
    CutOff,
    /// It is off, and nobody knows.
    Off,
    /// It is off, and somebody has said so.
    Declared,
    /// It is off, and Kubernetes has no such node.
    Gone,
}

#[derive(Clone, Debug)]
enum Happening {
    Reconcile,
    Look,
    CutOff(usize),
    PowerOff(usize),
    Declare(usize),
    DeleteNode(usize),
    Back(usize),
    /// The object goes at once, whatever its containers do.
    ForceDelete(usize),
    /// As `kubectl delete` does: the kubelet has to confirm.
    Delete(usize),
    SlurmFallsSilent,
    SlurmAnswers,
    KubeletsCatchUp,
}

#[derive(Debug)]
struct World {
    hosts: BTreeMap<&'static str, Host>,
    /// Pod objects by number, with their host and whether they are on their way out.
    pods: BTreeMap<u32, (&'static str, bool)>,
    /// What really runs: number and host.
    running: Vec<(u32, &'static str)>,
    /// Slurm's records: is it down, and where was it last?
    records: BTreeMap<u32, (bool, &'static str)>,
    noted: BTreeMap<String, String>,
    silent: bool,
    seen: Option<Seen>,
}

fn name(number: u32) -> String {
    format!("compute-{number}")
}

impl World {
    fn new() -> Self {
        Self {
            hosts: HOSTS.into_iter().map(|host| (host, Host::Well)).collect(),
            pods: BTreeMap::new(),
            running: Vec::new(),
            records: BTreeMap::new(),
            noted: BTreeMap::new(),
            silent: false,
            seen: None,
        }
    }

    fn objects(&self) -> Vec<Value> {
        let set = nodeset(&json!({ "replicas": SIZE }));
        let status = json!({ "nodeSetHash": "", "cutOff": self.noted });
        let mut objects = vec![controller(), slurm_key(), with(set, &[("/status", status)])];
        for (host, state) in &self.hosts {
            let ready = if *state == Host::Well { "True" } else { "Unknown" };
            let taints = match state {
                Host::Declared => json!([{ "key": "node.kubernetes.io/out-of-service", "effect": "NoExecute" }]),
                _ => json!([]),
            };
            if *state != Host::Gone {
                objects.push(json!({
                    "apiVersion": "v1", "kind": "Node", "metadata": { "name": host }, "spec": { "taints": taints },
                    "status": { "conditions": [{ "type": "Ready", "status": ready, "lastTransitionTime": "2026-01-01T00:00:00Z" }] },
                }));
            }
        }
        for (number, (host, ends)) in &self.pods {
            let pod = with(worker(*number), &[("/spec/nodeName", json!(host))]);
            objects.push(if *ends { terminating(pod) } else { pod });
        }
        objects
    }

    fn look(&self) -> Seen {
        let nodes = self.records.iter().map(|(number, (down, host))| {
            let comment = json!({ "namespace": "slurm", "podName": name(*number), "node": host, "nodeSetName": "compute", "nodeSetUID": "compute" });
            json!({ "name": name(*number), "state": [if *down { "DOWN" } else { "IDLE" }, "DYNAMIC_NORM"],
                "reason": if *down { "slurm-operator: lost" } else { "" }, "comment": comment.to_string() })
        });
        let observation = Observation {
            nodes: nodes.map(|node| serde_json::from_value(node).unwrap()).collect(),
            jobs: Vec::new(),
            process: Some(Process { boot_time: 1 }),
        };
        Seen::new(observation, now())
    }

    fn reconcile(&mut self) -> usize {
        let knowledge = match &self.seen {
            Some(seen) if !self.silent => Knowledge::Known(Arc::new(seen.clone())),
            _ => unknown(),
        };
        let observed = observed_exactly("compute", self.objects(), knowledge);
        let plan = plan(&observed);
        let (losses, others): (Vec<&Effect>, Vec<&Effect>) = plan
            .effects
            .iter()
            .partition(|effect| matches!(effect, Effect::LoseWorker { .. }));
        for effect in losses.into_iter().chain(others) {
            self.carry_out(effect);
        }
        self.noted = cut_off(&observed);
        plan.effects.len()
    }

    fn number(text: &str) -> u32 {
        text.rsplit_once('-').unwrap().1.parse().unwrap()
    }

    fn carry_out(&mut self, effect: &Effect) {
        match effect {
            Effect::CreatePod { pod, .. } => {
                let number = Self::number(pod["metadata"]["name"].as_str().unwrap());
                let alive = self.running.iter().find(|(other, _)| *other == number);
                assert_eq!(alive, None, "{number} is made a second time");
                let free = HOSTS
                    .into_iter()
                    .find(|host| self.hosts[host] == Host::Well && !self.pods.values().any(|(other, _)| other == host));
                // Without a free host it waits, as good as not there.
                if let Some(host) = free {
                    self.pods.insert(number, (host, false));
                    self.running.push((number, host));
                    self.records.entry(number).or_insert((false, host)).1 = host;
                }
            }
            Effect::LoseWorker { pod, down, .. } => {
                if let Some((node, _)) = down.as_ref().filter(|_| !self.silent) {
                    let number = Self::number(node);
                    let alive = self.running.iter().find(|(other, _)| *other == number);
                    assert_eq!(alive, None, "{node} is taken for dead");
                    self.records.entry(number).and_modify(|(down, _)| *down = true);
                }
                if let Some(pod) = pod {
                    self.pods.remove(&Self::number(&pod.name));
                }
            }
            Effect::ResumeNode { node, .. } if !self.silent => {
                self.records
                    .entry(Self::number(node))
                    .and_modify(|(down, _)| *down = false);
            }
            _ => {}
        }
    }

    fn happen(&mut self, happening: &Happening) {
        match happening {
            Happening::Reconcile => drop(self.reconcile()),
            Happening::Look => self.seen = (!self.silent).then(|| self.look()),
            Happening::SlurmFallsSilent => self.silent = true,
            Happening::SlurmAnswers => self.silent = false,
            Happening::CutOff(nth) => self.turn(*nth, &[Host::Well], Host::CutOff),
            Happening::PowerOff(nth) => {
                self.turn(*nth, &[Host::Well, Host::CutOff], Host::Off);
                self.stop_what_is_off();
            }
            Happening::Declare(nth) => self.turn(*nth, &[Host::Off], Host::Declared),
            Happening::DeleteNode(nth) => self.turn(*nth, &[Host::Off, Host::Declared], Host::Gone),
            Happening::Back(nth) => self.turn(*nth, &[Host::CutOff, Host::Off, Host::Declared, Host::Gone], Host::Well),
            Happening::ForceDelete(nth) => {
                // Of a machine that is well the kubelet ends it at once; one that is not has been noted by then.
                if let Some(number) = self.nth_pod(*nth) {
                    let (host, _) = self.pods[&number];
                    if self.hosts[host] == Host::Well {
                        self.running.retain(|running| *running != (number, host));
                    } else if !self.noted.contains_key(&name(number)) {
                        return;
                    }
                    self.pods.remove(&number);
                }
            }
            Happening::Delete(nth) => {
                if let Some(number) = self.nth_pod(*nth) {
                    self.pods.entry(number).and_modify(|(_, ends)| *ends = true);
                }
            }
            Happening::KubeletsCatchUp => self.catch_up(),
        }
    }

    fn nth_pod(&self, nth: usize) -> Option<u32> {
        self.pods.keys().copied().nth(nth % self.pods.len().max(1))
    }

    fn turn(&mut self, nth: usize, from: &[Host], to: Host) {
        let host = HOSTS[nth % HOSTS.len()];
        if from.contains(&self.hosts[host]) {
            self.hosts.insert(host, to);
            if to == Host::Well {
                self.catch_up();
            }
        }
    }

    fn stop_what_is_off(&mut self) {
        let hosts = &self.hosts;
        self.running
            .retain(|(_, host)| matches!(hosts[host], Host::Well | Host::CutOff));
    }

    /// Kubelets that are heard end what is not wanted, and start what is.
    fn catch_up(&mut self) {
        let hosts = &self.hosts;
        self.pods.retain(|_, (host, ends)| hosts[host] != Host::Well || !*ends);
        let pods = &self.pods;
        self.running.retain(|(number, host)| {
            hosts[host] != Host::Well || pods.get(number).is_some_and(|(other, _)| other == host)
        });
        for (number, (host, _)) in &self.pods {
            if hosts[host] == Host::Well && !self.running.contains(&(*number, *host)) {
                self.running.push((*number, *host));
            }
        }
    }

    fn settle(&mut self) {
        self.silent = false;
        for host in HOSTS {
            self.hosts.insert(host, Host::Well);
        }
        for _ in 0..20 {
            self.catch_up();
            self.happen(&Happening::Look);
            self.reconcile();
        }
    }
}

fn any_happening() -> impl Strategy<Value = Happening> {
    prop_oneof![
        8 => Just(Happening::Reconcile),
        4 => Just(Happening::Look),
        2 => any::<usize>().prop_map(Happening::CutOff),
        2 => any::<usize>().prop_map(Happening::PowerOff),
        2 => any::<usize>().prop_map(Happening::Declare),
        2 => any::<usize>().prop_map(Happening::DeleteNode),
        3 => any::<usize>().prop_map(Happening::Back),
        3 => any::<usize>().prop_map(Happening::ForceDelete),
        1 => any::<usize>().prop_map(Happening::Delete),
        1 => Just(Happening::SlurmFallsSilent),
        1 => Just(Happening::SlurmAnswers),
        3 => Just(Happening::KubeletsCatchUp),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, ..ProptestConfig::default() })]

    #[test]
    fn the_living_are_never_taken_for_dead_and_the_set_is_whole_in_the_end(
        happenings in prop::collection::vec(any_happening(), 1..80),
    ) {
        let mut world = World::new();
        world.settle();
        for happening in &happenings {
            world.happen(happening);
        }
        world.settle();
        prop_assert_eq!(world.pods.len(), usize::try_from(SIZE).unwrap(), "{:?}", world);
        prop_assert!(world.records.values().all(|(down, _)| !down), "{:?}", world);
    }
}
