//! Machines die, become unreachable and return, in random order; users delete pods by force; slurmctld is killed and loses
//! unsaved state. Three rules hold all the time: no node is set down whose worker is alive, no living job is ended, and no
//! name is given to a second worker while the first may be alive. In the end no stale job is left.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use proptest::prelude::*;
use serde_json::{Value, json};
use slurm::rest::{Observation, Process};

use jiff::Timestamp;

use super::{Effect, Evidence, PlannedOrder, StaleJobs, Worker, WorkerLoss, cut_off, plan, stale_jobs, without_pod};
use crate::{
    cluster::{Knowledge, NodeOrder, Seen},
    nodeset::fixture::{controller, nodeset, now, observed_exactly, slurm_key, terminating, unknown, with, worker},
};

const HOSTS: [&str; 3] = ["k0", "k1", "k2"];
const SIZE: u32 = 3;

/// A machine, and what Kubernetes knows of it.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Host {
    Well,
    /// It runs, but is unreachable.
    CutOff,
    /// It is off, and Kubernetes does not know.
    Off,
    /// It is off, and an administrator declared that.
    Declared,
    /// It is off, and its Node is deleted.
    Gone,
}

#[derive(Clone, Debug)]
enum Event {
    Reconcile,
    Poll,
    CutOff(usize),
    PowerOff(usize),
    Declare(usize),
    DeleteNode(usize),
    Back(usize),
    /// The object is deleted at once, whatever its containers do.
    ForceDelete(usize),
    /// Like `kubectl delete`: the kubelet has to confirm.
    Delete(usize),
    SlurmFallsSilent,
    SlurmAnswers,
    KubeletsCatchUp,
    /// On the n-th node that Slurm considers up.
    StartJob(usize),
    SlurmSaves,
    /// It returns with the state that it last saved.
    SlurmIsKilled,
}

/// Slurm's record of a node.
#[derive(Clone, Debug, PartialEq)]
struct Record {
    down: bool,
    /// Its last host.
    host: &'static str,
    /// When the registered slurmd started.
    started: i64,
    /// The start of each job, and when its worker was created.
    jobs: Vec<(i64, i64)>,
}

#[derive(Debug)]
struct World {
    hosts: BTreeMap<&'static str, Host>,
    /// When a host became unreachable. Kubernetes notices that later.
    silent_since: BTreeMap<&'static str, i64>,
    /// What the operator remembers.
    without_pod: BTreeMap<String, Timestamp>,
    /// Pods by ordinal: host, whether terminating, and creation.
    pods: BTreeMap<u32, (&'static str, bool, i64)>,
    /// What runs: ordinal, host, and creation.
    running: Vec<(u32, &'static str, i64)>,
    records: BTreeMap<u32, Record>,
    /// The saved records.
    saved: BTreeMap<u32, Record>,
    /// In seconds, by the clock of the API server.
    time: i64,
    /// How long an event takes.
    tick: i64,
    clocks: Clocks,
    /// How long Kubernetes considers an unreachable host ready.
    noticed_within: i64,
    /// When slurmctld started.
    boot: i64,
    noted: BTreeMap<String, String>,
    silent: bool,
    seen: Option<Seen>,
}

/// How far the clocks of slurmctld and of the workers are ahead of the API server's.
#[derive(Clone, Copy, Debug, Default)]
struct Clocks {
    slurmctld: i64,
    workers: i64,
}

/// Longer than clocks may differ, so that every comparison is clear.
const TICK: i64 = 70;

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
            silent_since: BTreeMap::new(),
            without_pod: BTreeMap::new(),
            pods: BTreeMap::new(),
            running: Vec::new(),
            records: BTreeMap::new(),
            saved: BTreeMap::new(),
            time: 0,
            tick: TICK,
            clocks: Clocks::default(),
            noticed_within: 0,
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
            let ready = if self.looks_ready(host) { "True" } else { "Unknown" };
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

    /// Whether Kubernetes considers a host ready.
    fn looks_ready(&self, host: &str) -> bool {
        let silent_since = self.silent_since.get(host).filter(|_| self.hosts[host] != Host::Well);
        silent_since.map_or(self.hosts[host] == Host::Well, |since| {
            self.time - since < self.noticed_within
        })
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

    /// Whether the worker of a job runs.
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
            json!({ "name": name(*number), "state": [state, "DYNAMIC_NORM"], "slurmd_start_time": number_at(started + self.clocks.workers),
                "reason": if *down { "slurm-operator: lost: it is gone" } else { "" }, "comment": comment.to_string() })
        });
        let jobs = self.records.iter().flat_map(|(number, record)| {
            record.jobs.iter().enumerate().map(move |(nth, (began, _))| {
                let began = began + self.clocks.slurmctld;
                json!({ "job_id": 100 * usize::try_from(*number).unwrap() + nth, "job_state": ["RUNNING"], "nodes": name(*number),
                    "start_time": number_at(began) })
            })
        });
        let observation = Observation {
            nodes: nodes.map(|node| serde_json::from_value(node).unwrap()).collect(),
            jobs: jobs.map(|job| serde_json::from_value(job).unwrap()).collect(),
            process: Some(Process {
                boot_time: u64::try_from(at(self.boot + self.clocks.slurmctld).as_second()).unwrap(),
            }),
        };
        Seen::new(observation, now(), crate::cluster::Source::Agent)
    }

    fn reconcile(&mut self) -> usize {
        let knowledge = match &self.seen {
            Some(seen) if !self.silent => Knowledge::Known(Arc::new(seen.clone())),
            _ => unknown(),
        };
        let mut observed = observed_exactly("compute", self.objects(), knowledge);
        observed.now = at(self.time);
        self.without_pod = without_pod(&observed, &self.without_pod);
        observed.without_pod.clone_from(&self.without_pod);
        let plan = plan(&observed);
        let (losses, others): (Vec<&Effect>, Vec<&Effect>) = plan
            .effects
            .iter()
            .partition(|effect| matches!(effect, Effect::LoseWorker(_)));
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
                // A node that is down has no job, and gets none.
                let is_down = self.records.get(&number).is_some_and(|record| record.down);
                let alive = alive.filter(|_| self.noticed_within == 0 || !is_down);
                assert_eq!(alive, None, "{number} is made a second time");
                let free = HOSTS.into_iter().find(|host| {
                    self.hosts[host] == Host::Well && !self.pods.values().any(|(other, ..)| other == host)
                });
                // Without a free host the pod stays pending.
                if let Some(host) = free {
                    self.pods.insert(number, (host, false, self.time));
                    self.running.push((number, host, self.time));
                    self.register(number, host, self.time);
                    // The operator sees the pod before anything happens to it.
                    self.without_pod.remove(&name(number));
                }
            }
            Effect::LoseWorker(WorkerLoss { pod, down, .. }) => {
                if let Some(PlannedOrder { node, expect, .. }) = down.as_ref().filter(|_| !self.silent) {
                    let number = Self::number(node);
                    // Like the agent. The pod stays, too.
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
            Effect::OrderNode { order, .. } if !self.silent && order.order == NodeOrder::Resume => {
                self.records
                    .entry(Self::number(&order.node))
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
                // Like the executor: nothing happens unless a fresh snapshot shows the same.
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

    /// Slurm requeues its jobs.
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
        match &planned.requeue {
            None => self.set_down(number),
            Some(jobs) => {
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

    fn happen(&mut self, event: &Event) {
        self.time += self.tick;
        match event {
            Event::SlurmSaves => self.saved = self.records.clone(),
            Event::SlurmIsKilled => {
                self.records = self.saved.clone();
                self.boot = self.time;
            }
            Event::StartJob(nth) => {
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
            Event::Reconcile => drop(self.reconcile()),
            Event::Poll => self.seen = (!self.silent).then(|| self.look()),
            Event::SlurmFallsSilent => self.silent = true,
            Event::SlurmAnswers => self.silent = false,
            Event::CutOff(nth) => self.turn(*nth, &[Host::Well], Host::CutOff),
            Event::PowerOff(nth) => {
                self.turn(*nth, &[Host::Well, Host::CutOff], Host::Off);
                self.stop_what_is_off();
            }
            Event::Declare(nth) => self.turn(*nth, &[Host::Off], Host::Declared),
            Event::DeleteNode(nth) => self.turn(*nth, &[Host::Off, Host::Declared], Host::Gone),
            Event::Back(nth) => self.turn(*nth, &[Host::CutOff, Host::Off, Host::Declared, Host::Gone], Host::Well),
            Event::ForceDelete(nth) => {
                // The kubelet of a ready machine ends it at once; an unreachable one is recorded by then.
                if let Some(number) = self.nth_pod(*nth) {
                    let (host, ..) = self.pods[&number];
                    if self.hosts[host] == Host::Well {
                        self.running.retain(|(other, on, _)| (*other, *on) != (number, host));
                    } else if !self.looks_ready(host) && !self.noted.contains_key(&name(number)) {
                        return;
                    }
                    self.pods.remove(&number);
                }
            }
            Event::Delete(nth) => {
                if let Some(number) = self.nth_pod(*nth) {
                    self.pods.entry(number).and_modify(|(_, ends, _)| *ends = true);
                }
            }
            Event::KubeletsCatchUp => self.catch_up(),
        }
    }

    fn nth_pod(&self, nth: usize) -> Option<u32> {
        self.pods.keys().copied().nth(nth % self.pods.len().max(1))
    }

    fn turn(&mut self, nth: usize, from: &[Host], to: Host) {
        let host = HOSTS[nth % HOSTS.len()];
        if from.contains(&self.hosts[host]) {
            if self.hosts[host] == Host::Well {
                self.silent_since.insert(host, self.time);
            }
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

    /// Reachable kubelets end unwanted pods and start wanted ones.
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
        // The preStop hook, if slurmctld is reachable.
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
                // Slurm notices that the machine was off.
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
            self.happen(&Event::Poll);
            self.reconcile();
        }
    }

    /// Stale jobs.
    fn jobs_of_the_dead(&self) -> usize {
        let all = self
            .records
            .iter()
            .flat_map(|(number, record)| record.jobs.iter().map(|(_, worker)| (*number, *worker)));
        all.filter(|(number, worker)| !self.is_alive(*number, *worker)).count()
    }
}

fn any_event() -> impl Strategy<Value = Event> {
    prop_oneof![
        8 => Just(Event::Reconcile),
        4 => Just(Event::Poll),
        2 => any::<usize>().prop_map(Event::CutOff),
        2 => any::<usize>().prop_map(Event::PowerOff),
        2 => any::<usize>().prop_map(Event::Declare),
        2 => any::<usize>().prop_map(Event::DeleteNode),
        3 => any::<usize>().prop_map(Event::Back),
        3 => any::<usize>().prop_map(Event::ForceDelete),
        1 => any::<usize>().prop_map(Event::Delete),
        1 => Just(Event::SlurmFallsSilent),
        1 => Just(Event::SlurmAnswers),
        3 => Just(Event::KubeletsCatchUp),
        4 => any::<usize>().prop_map(Event::StartJob),
        3 => Just(Event::SlurmSaves),
        2 => Just(Event::SlurmIsKilled),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, ..ProptestConfig::default() })]

    #[test]
    fn the_living_are_never_taken_for_dead_and_the_set_is_whole_in_the_end(
        events in prop::collection::vec(any_event(), 1..80),
    ) {
        let mut world = World::new();
        world.settle(5);
        for event in &events {
            world.happen(event);
        }
        world.settle(20);
        prop_assert_eq!(world.pods.len(), usize::try_from(SIZE).unwrap(), "{:?}", world);
        prop_assert!(world.records.values().all(|record| !record.down), "{:?}", world);
        // A slurmctld that has not restarted only ends jobs that are two minutes older than the worker.
        world.happen(&Event::SlurmSaves);
        world.happen(&Event::SlurmIsKilled);
        world.settle(5);
        prop_assert_eq!(world.jobs_of_the_dead(), 0, "{:?}", world);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 60, ..ProptestConfig::default() })]

    /// Workers that Slurm has are not made a second time, also before Kubernetes notices that a machine is unreachable.
    #[test]
    fn no_name_is_used_again_before_kubernetes_notices(events in prop::collection::vec(any_event(), 1..80)) {
        let mut world = World { tick: 2, time: TICK, noticed_within: 50, ..World::new() };
        world.settle(5);
        for event in &events {
            if !matches!(event, Event::SlurmFallsSilent | Event::SlurmIsKilled) {
                world.happen(event);
                world.happen(&Event::Poll);
            }
        }
        // Waits of a minute are over by then.
        world.settle(50);
        prop_assert_eq!(world.pods.len(), usize::try_from(SIZE).unwrap(), "{:?}", world);
    }
}

/// Clocks may be a minute apart, and jobs start seconds after their workers.
#[test]
fn clocks_that_differ_end_no_living_job() {
    for slurmctld in (-60..=60).step_by(10) {
        for tenths in [0, 5, 10] {
            // The clocks of the workers are between the two others.
            let workers = slurmctld * tenths / 10;
            let clocks = Clocks { slurmctld, workers };
            let mut world = World {
                tick: 2,
                time: TICK,
                clocks,
                ..World::new()
            };
            world.settle(5);
            for event in [
                Event::StartJob(0),
                Event::SlurmSaves,
                Event::SlurmIsKilled,
                Event::Poll,
                Event::Reconcile,
            ] {
                world.happen(&event);
            }
            let jobs: usize = world.records.values().map(|record| record.jobs.len()).sum();
            assert_eq!(jobs, 1, "{clocks:?}");
        }
    }
}
