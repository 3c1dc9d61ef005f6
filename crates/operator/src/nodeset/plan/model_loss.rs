//! Machines die, are cut off and come back, in random order; people delete pods by force; slurmctld is killed and has forgotten what
//! it had not written down. Three promises hold all the time: no node is down whose worker is alive, no job is taken for dead that
//! is alive, and no name is given to a second worker while the first may be alive. In the end no job of the dead is left.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use proptest::prelude::*;
use serde_json::{Value, json};
use slurm::rest::{Observation, Process};

use jiff::Timestamp;

use super::{DownOrder, Effect, Evidence, Remedy, StaleJobs, Worker, cut_off, plan, stale_jobs};
use crate::{
    cluster::{Knowledge, Seen},
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
    /// On the node of this number, if Slurm takes it for fit.
    StartJob(usize),
    SlurmSaves,
    /// And is back as it was when it last saved.
    SlurmIsKilled,
}

/// Slurm's record of a node.
#[derive(Clone, Debug, PartialEq)]
struct Record {
    down: bool,
    /// Where it was last.
    host: &'static str,
    /// When the slurmd that registered last has started.
    started: i64,
    /// When each job began, and which worker it was given to: the one made then.
    jobs: Vec<(i64, i64)>,
}

#[derive(Debug)]
struct World {
    hosts: BTreeMap<&'static str, Host>,
    /// Pod objects by number, with their host, whether they are on their way out, and when they were made.
    pods: BTreeMap<u32, (&'static str, bool, i64)>,
    /// What really runs: number, host, and when it was made.
    running: Vec<(u32, &'static str, i64)>,
    records: BTreeMap<u32, Record>,
    /// As Slurm has them on disk.
    saved: BTreeMap<u32, Record>,
    /// In seconds. Each happening takes some.
    time: i64,
    /// When slurmctld began.
    boot: i64,
    noted: BTreeMap<String, String>,
    silent: bool,
    seen: Option<Seen>,
}

/// Longer than clocks may differ, so that nothing is left to guess.
const TICK: i64 = 20;

fn at(time: i64) -> Timestamp {
    let start: Timestamp = "2026-01-01T00:00:00Z".parse().unwrap();
    Timestamp::from_second(start.as_second() + time).unwrap()
}

fn number_at(time: i64) -> Value {
    json!({ "set": true, "infinite": false, "number": at(time).as_second() })
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
            saved: BTreeMap::new(),
            time: 0,
            boot: 0,
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
        for (number, (host, ends, created)) in &self.pods {
            let pod = Self::pod(*number, host, *created);
            objects.push(if *ends { terminating(pod) } else { pod });
        }
        objects
    }

    fn pod(number: u32, host: &str, created: i64) -> Value {
        let created = at(created).to_string();
        with(
            worker(number),
            &[
                ("/spec/nodeName", json!(host)),
                ("/metadata/creationTimestamp", json!(created)),
            ],
        )
    }

    /// Whether the worker that a job was given to is there.
    fn is_alive(&self, number: u32, worker: i64) -> bool {
        self.running
            .iter()
            .any(|(other, _, made)| (*other, *made) == (number, worker))
    }

    fn look(&self) -> Seen {
        let nodes = self.records.iter().map(|(number, record)| {
            let Record { down, host, started, jobs } = record;
            let comment = json!({ "namespace": "slurm", "podName": name(*number), "node": host, "nodeSetName": "compute", "nodeSetUID": "compute" });
            let state = match (down, jobs.is_empty()) {
                (true, _) => "DOWN",
                (false, true) => "IDLE",
                (false, false) => "MIXED",
            };
            json!({ "name": name(*number), "state": [state, "DYNAMIC_NORM"], "slurmd_start_time": number_at(*started),
                "reason": if *down { "slurm-operator: lost: it is gone" } else { "" }, "comment": comment.to_string() })
        });
        let jobs = self.records.iter().flat_map(|(number, record)| {
            record.jobs.iter().enumerate().map(move |(nth, (began, _))| {
                json!({ "job_id": 100 * usize::try_from(*number).unwrap() + nth, "job_state": ["RUNNING"], "nodes": name(*number),
                    "start_time": number_at(*began) })
            })
        });
        let observation = Observation {
            nodes: nodes.map(|node| serde_json::from_value(node).unwrap()).collect(),
            jobs: jobs.map(|job| serde_json::from_value(job).unwrap()).collect(),
            process: Some(Process {
                boot_time: u64::try_from(at(self.boot).as_second()).unwrap(),
            }),
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
                let alive = self.running.iter().find(|(other, ..)| *other == number);
                assert_eq!(alive, None, "{number} is made a second time");
                let free = HOSTS.into_iter().find(|host| {
                    self.hosts[host] == Host::Well && !self.pods.values().any(|(other, ..)| other == host)
                });
                // Without a free host it waits, as good as not there.
                if let Some(host) = free {
                    self.pods.insert(number, (host, false, self.time));
                    self.running.push((number, host, self.time));
                    self.register(number, host, self.time);
                }
            }
            Effect::LoseWorker { pod, down, .. } => {
                if let Some(DownOrder { node, expect, .. }) = down.as_ref().filter(|_| !self.silent) {
                    let number = Self::number(node);
                    // As the agent does. Then the pod stays, too.
                    if self
                        .records
                        .get(&number)
                        .is_some_and(|record| record.down != expect.down)
                    {
                        return;
                    }
                    let alive = self.running.iter().find(|(other, ..)| *other == number);
                    assert_eq!(alive, None, "{node} is taken for dead");
                    self.set_down(number);
                }
                if let Some(pod) = pod {
                    self.pods.remove(&Self::number(&pod.name));
                }
            }
            Effect::ResumeNode { node, .. } if !self.silent => {
                self.records
                    .entry(Self::number(node))
                    .and_modify(|record| record.down = false);
            }
            Effect::EndStaleJobs {
                pod,
                node,
                stale_jobs: planned,
            } if !self.silent => {
                let number = Self::number(node);
                let Some((host, _, created)) = self.pods.get(&number).copied() else {
                    return;
                };
                let object = serde_json::from_value(Self::pod(number, host, created)).unwrap();
                let (worker, seen) = (Worker(&object), self.look());
                // As who carries it out does: what a fresh look does not show is not done.
                if worker.uid() == pod.uid && stale_jobs(&Evidence::new(&seen), worker).as_ref() == Some(planned) {
                    self.end_stale_jobs(number, planned);
                }
            }
            _ => {}
        }
    }

    fn register(&mut self, number: u32, host: &'static str, started: i64) {
        let record = self.records.entry(number).or_insert(Record {
            down: false,
            host,
            started,
            jobs: Vec::new(),
        });
        (record.host, record.started) = (host, started);
    }

    /// Slurm queues what is there again.
    fn set_down(&mut self, number: u32) {
        let Some(mut record) = self.records.remove(&number) else {
            return;
        };
        for (_, worker) in std::mem::take(&mut record.jobs) {
            assert!(!self.is_alive(number, worker), "a job of {number} is taken for dead");
        }
        record.down = true;
        self.records.insert(number, record);
    }

    fn end_stale_jobs(&mut self, number: u32, planned: &StaleJobs) {
        match &planned.remedy {
            Remedy::Down => self.set_down(number),
            Remedy::Requeue(jobs) => {
                let told: Vec<usize> = jobs
                    .iter()
                    .map(|job| job.as_str().parse::<usize>().unwrap() % 100)
                    .collect();
                let (requeued, stay): (Vec<_>, Vec<_>) = self.records[&number]
                    .jobs
                    .iter()
                    .copied()
                    .enumerate()
                    .partition(|(nth, _)| told.contains(nth));
                for (_, (_, worker)) in requeued {
                    assert!(!self.is_alive(number, worker), "a job of {number} is taken for dead");
                }
                let stay = stay.into_iter().map(|(_, job)| job).collect();
                self.records.entry(number).and_modify(|record| record.jobs = stay);
            }
        }
    }

    fn happen(&mut self, happening: &Happening) {
        self.time += TICK;
        match happening {
            Happening::SlurmSaves => self.saved = self.records.clone(),
            Happening::SlurmIsKilled => {
                self.records = self.saved.clone();
                self.boot = self.time;
            }
            Happening::StartJob(nth) => {
                let running = &self.running;
                let fit = self.records.iter_mut().filter_map(|(number, record)| {
                    let worker = running
                        .iter()
                        .find(|(other, _, made)| (other, *made) == (number, record.started))?;
                    (!record.down).then_some((record, worker.2))
                });
                let mut fit: Vec<(&mut Record, i64)> = fit.collect();
                let count = fit.len().max(1);
                if let Some((record, worker)) = fit.get_mut(nth % count) {
                    record.jobs.push((self.time, *worker));
                }
            }
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
                    let (host, ..) = self.pods[&number];
                    if self.hosts[host] == Host::Well {
                        self.running.retain(|(other, on, _)| (*other, *on) != (number, host));
                    } else if !self.noted.contains_key(&name(number)) {
                        return;
                    }
                    self.pods.remove(&number);
                }
            }
            Happening::Delete(nth) => {
                if let Some(number) = self.nth_pod(*nth) {
                    self.pods.entry(number).and_modify(|(_, ends, _)| *ends = true);
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
            .retain(|(_, host, _)| matches!(hosts[host], Host::Well | Host::CutOff));
    }

    /// Kubelets that are heard end what is not wanted, and start what is.
    fn catch_up(&mut self) {
        let is_well: BTreeSet<&str> = HOSTS
            .into_iter()
            .filter(|host| self.hosts[host] == Host::Well)
            .collect();
        let ended: Vec<u32> = self
            .pods
            .iter()
            .filter(|(_, (host, ends, _))| *ends && is_well.contains(host))
            .map(|(number, _)| *number)
            .collect();
        self.pods.retain(|number, _| !ended.contains(number));
        let pods = &self.pods;
        self.running.retain(|(number, host, made)| {
            !is_well.contains(host)
                || pods
                    .get(number)
                    .is_some_and(|(on, _, created)| (on, created) == (host, made))
        });
        // A worker's last word, where it is heard.
        let heard = if self.silent { Vec::new() } else { ended };
        for number in heard {
            self.set_down(number);
        }
        let pods: Vec<_> = self.pods.iter().map(|(number, pod)| (*number, *pod)).collect();
        for (number, (host, _, created)) in pods {
            if !is_well.contains(host) {
                continue;
            }
            if !self.running.contains(&(number, host, created)) {
                self.running.push((number, host, created));
                // Slurm sees that the machine was off.
                self.records.entry(number).and_modify(|record| record.jobs.clear());
            }
            self.register(number, host, created);
        }
    }

    fn settle(&mut self, rounds: u32) {
        self.silent = false;
        for host in HOSTS {
            self.hosts.insert(host, Host::Well);
        }
        for _ in 0..rounds {
            self.catch_up();
            self.happen(&Happening::Look);
            self.reconcile();
        }
    }

    /// Jobs that Slurm shows though their workers are gone.
    fn jobs_of_the_dead(&self) -> usize {
        let all = self
            .records
            .iter()
            .flat_map(|(number, record)| record.jobs.iter().map(|(_, worker)| (*number, *worker)));
        all.filter(|(number, worker)| !self.is_alive(*number, *worker)).count()
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
        4 => any::<usize>().prop_map(Happening::StartJob),
        3 => Just(Happening::SlurmSaves),
        2 => Just(Happening::SlurmIsKilled),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, ..ProptestConfig::default() })]

    #[test]
    fn the_living_are_never_taken_for_dead_and_the_set_is_whole_in_the_end(
        happenings in prop::collection::vec(any_happening(), 1..80),
    ) {
        let mut world = World::new();
        world.settle(5);
        for happening in &happenings {
            world.happen(happening);
        }
        world.settle(20);
        prop_assert_eq!(world.pods.len(), usize::try_from(SIZE).unwrap(), "{:?}", world);
        prop_assert!(world.records.values().all(|record| !record.down), "{:?}", world);
        // One that has not been killed since is believed only what is two minutes old.
        world.happen(&Happening::SlurmSaves);
        world.happen(&Happening::SlurmIsKilled);
        world.settle(5);
        prop_assert_eq!(world.jobs_of_the_dead(), 0, "{:?}", world);
    }
}
