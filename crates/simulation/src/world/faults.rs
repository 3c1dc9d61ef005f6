//! The faults that histories draw. What they do to machines is in `outages.rs`, evictions are in `evictions.rs`; those of disks, links
//! and the API server are with them.

use std::{
    collections::BTreeMap,
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use serde_json::{Value, json};
use tokio::time::sleep;

use super::{
    Random, World,
    api::ApiFault,
    files::DiskFault,
    machine::Clock,
    network::{ANY, LinkFault},
    objects::{name_of, text},
    outages::Place,
    time::elapsed,
};
use crate::slurm::HostId;

/// Backups of etcd are kept for this time.
const KEPT: usize = 10;

/// So many drawn faults are of every kind.
const DRAWS: usize = 2000;

/// Clocks may be a minute apart.
const BEHIND: Duration = Duration::from_secs(45);

/// A fault that lasts for a while and then heals.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Fault {
    KillOperators,
    PauseLeader,
    PauseOperators,
    KillSlurmctld,
    FreezeSlurmctld,
    KillAgent,
    FreezeAgent,
    FreezePod(Place),
    FreezeNode(Place),
    RestartSlurmd,
    DeleteWorker {
        force: bool,
    },
    DeleteController,
    LoseNode(Place),
    /// The machine of a worker loses its power, and a person declares that nothing runs there (`out-of-service`).
    DeclareDead,
    /// Kubelet and network are away, processes go on. A person may delete the pods by force.
    CutOffNode(Place, bool),
    DrainNode(Place),
    PressureEviction,
    /// The same, of a worker.
    EvictWorker,
    Link(Link, LinkFault),
    Api(Client, ApiFault),
    /// 410 when they begin again.
    ExpireWatches,
    /// 410 while they deliver.
    BreakWatches,
    StepOperatorClock(f64),
    StepNodeClock(f64),
    DriftOperatorClock(f64),
    DriftNodeClock(f64),
    /// By 45 s.
    SlowSlurmctldClock,
    Disk(DiskFault),
    /// The state volume fills up while a change of the configuration is delivered.
    FullDiskAtChange,
    /// A person writes a Controller that only a later release of the operator can decode, and deletes a NodeSet.
    UnreadableController,
    /// Back to a backup that is at least so old.
    RewindEtcd(Duration),
}

/// Whose link to slurmctld's machine is bad.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Link {
    Everybody,
    Leader,
    Worker,
}

/// Whose requests to the API server go wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Client {
    Both,
    Leader,
    Other,
}

impl Fault {
    /// Its kind, for the table of what was covered: what fails, not for whom or for how long.
    pub fn kind(self) -> String {
        match self {
            Self::Link(_, LinkFault::Delay(_)) => "Link Delay".to_owned(),
            Self::Link(_, fault) => format!("Link {fault:?}"),
            Self::Api(_, ApiFault::Slow(_)) => "Api Slow".to_owned(),
            Self::Api(_, ApiFault::StallKind(_)) => "Api StallKind".to_owned(),
            Self::Api(_, ApiFault::DelayWatches(_)) => "Api DelayWatches".to_owned(),
            Self::Api(_, fault) => format!("Api {fault:?}"),
            Self::CutOffNode(place, _) => format!("CutOffNode({place:?})"),
            Self::StepOperatorClock(_) => "StepOperatorClock".to_owned(),
            Self::StepNodeClock(_) => "StepNodeClock".to_owned(),
            Self::DriftOperatorClock(_) => "DriftOperatorClock".to_owned(),
            Self::DriftNodeClock(_) => "DriftNodeClock".to_owned(),
            Self::RewindEtcd(_) => "RewindEtcd".to_owned(),
            other => format!("{other:?}"),
        }
    }

    /// One of each kind, drawn.
    pub fn of_each_kind(random: &Random) -> Vec<Self> {
        let drawn = (0..DRAWS).map(|_| Self::draw(random));
        let kinds: BTreeMap<String, Self> = drawn.map(|fault| (fault.kind(), fault)).collect();
        kinds.into_values().collect()
    }

    /// Draws one.
    pub fn draw(random: &Random) -> Self {
        let one = random.below(12);
        match one {
            0..=2 => Self::of_processes(random),
            3..=6 => Self::of_machines(random),
            7 | 8 => Self::of_links(random),
            9 | 10 => Self::of_api_server(random),
            _ => Self::of_clocks_and_disks(random),
        }
    }

    /// What ends workers, or hides them.
    pub fn of_workers(random: &Random) -> Self {
        let force = random.one_in(2);
        let all = [
            Self::FreezeNode(Place::Worker),
            Self::DeleteWorker { force },
            Self::LoseNode(Place::Worker),
            Self::CutOffNode(Place::Worker, force),
            Self::CutOffNode(Place::Worker, true),
            Self::DrainNode(Place::Worker),
            Self::DrainNode(Place::Worker),
            Self::PressureEviction,
            Self::Link(Link::Worker, LinkFault::Cut),
            Self::Api(Client::Leader, ApiFault::Late),
            Self::StepNodeClock(*random.pick(&[-45.0, 45.0]).unwrap()),
        ];
        *random.pick(&all).unwrap()
    }

    /// What changes the leader, and what leaders see.
    pub fn of_leaders(random: &Random) -> Self {
        let whose = *random.pick(&[Client::Leader, Client::Other]).unwrap();
        let kind = *random.pick(&["pods", "nodes", "nodesets", "controllers"]).unwrap();
        let all = [
            Self::KillOperators,
            Self::PauseLeader,
            Self::PauseLeader,
            Self::Link(Link::Leader, LinkFault::Freeze),
            Self::Api(Client::Leader, ApiFault::Silent),
            Self::Api(Client::Leader, ApiFault::Refuse(503)),
            Self::Api(whose, ApiFault::StallWatches),
            Self::Api(whose, ApiFault::StallKind(kind)),
            Self::KillAgent,
            Self::DeleteWorker { force: true },
        ];
        *random.pick(&all).unwrap()
    }

    /// What disturbs changes of the configuration.
    pub fn of_configuration(random: &Random) -> Self {
        let all = [
            Self::KillSlurmctld,
            Self::KillAgent,
            Self::FreezeSlurmctld,
            Self::DeleteController,
            Self::LoseNode(Place::Slurmctld),
            Self::CutOffNode(Place::Slurmctld, true),
            Self::FullDiskAtChange,
            Self::UnreadableController,
            Self::Link(Link::Leader, LinkFault::Lose),
            Self::Api(Client::Leader, ApiFault::LoseAnswers),
            Self::RewindEtcd(Duration::from_mins(1)),
        ];
        *random.pick(&all).unwrap()
    }

    fn of_processes(random: &Random) -> Self {
        let place = place(random);
        let all = [
            Self::KillOperators,
            Self::PauseLeader,
            Self::PauseOperators,
            Self::KillSlurmctld,
            Self::FreezeSlurmctld,
            Self::KillAgent,
            Self::FreezeAgent,
            Self::FreezePod(place),
            Self::RestartSlurmd,
        ];
        *random.pick(&all).unwrap()
    }

    fn of_machines(random: &Random) -> Self {
        let (place, force) = (place(random), random.one_in(2));
        let all = [
            Self::FreezeNode(place),
            Self::DeleteWorker { force },
            Self::DeleteController,
            Self::LoseNode(place),
            Self::CutOffNode(place, force),
            Self::CutOffNode(Place::Worker, force),
            Self::DrainNode(place),
            Self::PressureEviction,
        ];
        *random.pick(&all).unwrap()
    }

    fn of_links(random: &Random) -> Self {
        let whose = *random.pick(&[Link::Everybody, Link::Leader, Link::Worker]).unwrap();
        let all = [
            LinkFault::Delay(Duration::from_millis(random.between(100, 8000))),
            LinkFault::Freeze,
            LinkFault::Cut,
            LinkFault::Lose,
            LinkFault::Double,
        ];
        let fault = *random.pick(&all).unwrap();
        // slurmd's messages are within the model of Slurm, which loses them or does not.
        match (whose, fault) {
            (Link::Worker, LinkFault::Delay(_) | LinkFault::Double) => Self::Link(Link::Worker, LinkFault::Lose),
            (whose, fault) => Self::Link(whose, fault),
        }
    }

    fn of_api_server(random: &Random) -> Self {
        let whose = *random.pick(&[Client::Both, Client::Leader, Client::Other]).unwrap();
        let kinds = ["pods", "nodes", "nodesets", "controllers", "configmaps", "partitions"];
        let kind = *random.pick(&kinds).unwrap();
        let rewind = Duration::from_mins(random.between(1, 10));
        let all = [
            Self::Api(whose, ApiFault::Refuse(if random.one_in(2) { 429 } else { 503 })),
            Self::Api(whose, ApiFault::Slow(Duration::from_millis(random.between(100, 5000)))),
            Self::Api(whose, ApiFault::StallWatches),
            Self::Api(whose, ApiFault::StallKind(kind)),
            Self::Api(
                whose,
                ApiFault::DelayWatches(Duration::from_millis(random.between(100, 10_000))),
            ),
            Self::Api(whose, ApiFault::LoseAnswers),
            Self::Api(whose, ApiFault::Late),
            Self::Api(whose, ApiFault::Silent),
            Self::ExpireWatches,
            Self::BreakWatches,
            Self::UnreadableController,
            Self::RewindEtcd(rewind),
        ];
        *random.pick(&all).unwrap()
    }

    fn of_clocks_and_disks(random: &Random) -> Self {
        let seconds = *random.pick(&[-600.0, -45.0, 45.0, 600.0]).unwrap();
        let rate = *random.pick(&[-0.5, -0.1, 0.1, 0.5]).unwrap();
        let all = [
            Self::StepOperatorClock(seconds),
            Self::StepNodeClock(seconds),
            Self::DriftOperatorClock(rate),
            Self::DriftNodeClock(rate),
            Self::Disk(DiskFault::Full),
            Self::Disk(DiskFault::Failing),
            Self::FullDiskAtChange,
        ];
        *random.pick(&all).unwrap()
    }

    /// How long it lasts.
    pub fn time(self, random: &Random) -> Duration {
        let seconds: &[u64] = match self {
            // Kubernetes misses a node after 40 s and evicts its pods after five minutes more.
            Self::CutOffNode(..) | Self::FreezeNode(_) => &[20, 60, 90, 200, 400],
            Self::DrainNode(_) | Self::PressureEviction => &[60, 90, 200],
            _ => &[5, 20, 60, 90],
        };
        Duration::from_secs(*random.pick(seconds).unwrap())
    }
}

fn place(random: &Random) -> Place {
    if random.one_in(3) {
        Place::Slurmctld
    } else {
        Place::Worker
    }
}

impl World {
    /// Whether a fault has not healed yet.
    pub fn is_suffering(&self) -> bool {
        self.suffering.load(Ordering::Relaxed) > 0
    }

    /// Lets a fault strike for a time.
    pub async fn suffer(&self, fault: Fault, time: Duration) {
        self.suffering.fetch_add(1, Ordering::Relaxed);
        self.strike(fault, time).await;
        self.suffering.fetch_sub(1, Ordering::Relaxed);
    }

    async fn strike(&self, fault: Fault, time: Duration) {
        match fault {
            Fault::KillOperators | Fault::PauseOperators | Fault::PauseLeader => self.stop_operators(fault, time).await,
            Fault::KillSlurmctld => {
                if let Some(pod) = self.controller_pod() {
                    pod.kill_daemon();
                }
            }
            Fault::FreezeSlurmctld => {
                if let Some(id) = self.active() {
                    self.slurm().freeze_controller(id);
                    sleep(time).await;
                    self.slurm().thaw_controller(id);
                }
            }
            Fault::KillAgent => {
                if let Some(pod) = self.controller_pod() {
                    pod.kill_agent();
                }
            }
            Fault::FreezeAgent => {
                if let Some(pod) = self.controller_pod() {
                    pod.freeze_agent(true);
                    sleep(time).await;
                    pod.freeze_agent(false);
                }
            }
            Fault::FreezePod(place) => self.freeze_pod(place, time).await,
            Fault::FreezeNode(place) => self.freeze_node(place, time).await,
            Fault::RestartSlurmd => self.restart_slurmd().await,
            Fault::DeleteWorker { force } => self.delete_worker(force),
            Fault::DeleteController => {
                self.delete("pods", "slurm-controller-0", &json!({}));
            }
            Fault::LoseNode(place) => self.lose_node(place, false, time).await,
            Fault::DeclareDead => self.lose_node(Place::Worker, true, time).await,
            Fault::CutOffNode(place, force) => self.cut_off(place, force, time).await,
            Fault::DrainNode(place) => {
                if let Some(node) = self.pick_node(place) {
                    self.drain_node(&node, time).await;
                }
            }
            Fault::PressureEviction => self.evict_by_pressure(false, time).await,
            Fault::EvictWorker => self.evict_by_pressure(true, time).await,
            Fault::Link(whose, link) => self.break_link(whose, link, time).await,
            Fault::Api(whose, api) => self.break_api(whose, api, time).await,
            Fault::ExpireWatches => self.access.server.cut_watches(),
            Fault::BreakWatches => self.access.expire_watches(),
            Fault::StepOperatorClock(_) | Fault::DriftOperatorClock(_) => {
                let operators: Vec<Clock> = self
                    .operators
                    .lock()
                    .unwrap()
                    .values()
                    .map(|found| found.clock.clone())
                    .collect();
                let clock = self.random.pick(&operators).unwrap().clone();
                set_clock(fault, &clock, time).await;
            }
            Fault::StepNodeClock(_) | Fault::DriftNodeClock(_) => {
                if let Some(node) = self.pick_node(place(&self.random)) {
                    self.tell(format!("it is the clock of {node}"));
                    let clock = self.nodes.lock().unwrap()[&node].clock.clone();
                    set_clock(fault, &clock, time).await;
                }
            }
            Fault::SlowSlurmctldClock => {
                self.slurm().clock_behind = BEHIND;
                sleep(time).await;
                self.slurm().clock_behind = Duration::ZERO;
            }
            Fault::Disk(disk) => self.break_disk(disk, time).await,
            Fault::FullDiskAtChange => {
                let text = format!("BatchStartTimeout={}\n", self.random.between(100, 199));
                self.tell(format!(
                    "a person sets extraConf to {text:?}, and the state volume fills up"
                ));
                self.disturb();
                self.patch("controllers", "slurm", &json!({ "spec": { "extraConf": text } }));
                sleep(Duration::from_millis(self.random.below(3000))).await;
                self.break_disk(DiskFault::Full, time).await;
            }
            Fault::UnreadableController => self.write_unreadable(time).await,
            Fault::RewindEtcd(age) => self.rewind_etcd(age),
        }
    }

    async fn stop_operators(&self, fault: Fault, time: Duration) {
        let mut victims: Vec<_> = self.operators.lock().unwrap().values().cloned().collect();
        if fault == Fault::PauseLeader {
            let is_second = self.leader().starts_with("operator-b");
            victims = vec![victims.swap_remove(usize::from(is_second))];
        }
        if fault == Fault::KillOperators {
            for operator in &victims {
                operator.life.kill();
            }
            return;
        }
        for operator in &victims {
            operator.life.freeze();
        }
        sleep(time).await;
        for operator in &victims {
            operator.life.thaw();
        }
    }

    async fn break_link(&self, whose: Link, link: LinkFault, time: Duration) {
        let Some(node) = self.pick_node(Place::Slurmctld) else {
            return;
        };
        let other = match whose {
            Link::Everybody => ANY.to_owned(),
            Link::Leader => self.leading_process(),
            Link::Worker => match self.pick_node(Place::Worker) {
                Some(other) => other,
                None => return,
            },
        };
        let one_way = self.random.below(3);
        self.tell(format!("the link of {node} and {other} is bad"));
        let faults = match (link, one_way) {
            (LinkFault::Freeze, 0) => vec![self.network.set_fault(&node, &other, link)],
            (LinkFault::Freeze, 1) => vec![self.network.set_fault(&other, &node, link)],
            _ => self.network.set_faults(&node, &other, link).into(),
        };
        self.sweep();
        sleep(time).await;
        self.network.lift(faults);
        self.tell(format!("the link of {node} and {other} is good"));
    }

    async fn break_api(&self, whose: Client, api: ApiFault, time: Duration) {
        let leader = self.leading_process();
        let process = match whose {
            Client::Both => ANY,
            Client::Leader => &leader,
            Client::Other if leader == "operator-a" => "operator-b",
            Client::Other => "operator-a",
        };
        let number = self.access.set_fault(process, api);
        sleep(time).await;
        self.access.lift(number);
    }

    async fn write_unreadable(&self, time: Duration) {
        let Ok(before) = self.get("controllers", "slurm") else {
            return;
        };
        let write = |text: &Value| {
            self.disturb();
            self.patch("controllers", "slurm", &json!({ "spec": { "extraConf": text } }));
        };
        write(&json!(17));
        if self.delete("nodesets", "burst", &json!({})) {
            self.tell("a person deletes NodeSet burst");
        }
        sleep(time).await;
        if self
            .get("controllers", "slurm")
            .is_ok_and(|now| now["spec"]["extraConf"] == 17)
        {
            let text = before["spec"]["extraConf"].as_str();
            write(&json!(text.unwrap_or_default()));
        }
    }

    async fn break_disk(&self, disk: DiskFault, time: Duration) {
        self.state_disk().set_fault(Some(disk));
        sleep(time).await;
        self.state_disk().set_fault(None);
    }

    /// How often a fault changed what people had written.
    pub fn disturbances(&self) -> u64 {
        self.disturbed.load(Ordering::Relaxed)
    }

    pub(super) fn disturb(&self) {
        self.disturbed.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn back_up(&self) {
        // A cluster that is not installed yet has nothing to lose.
        if self.get("pods", "slurm-controller-0").is_err() {
            return;
        }
        let copy = self.access.server.store().clone();
        let mut backups = self.backups.lock().unwrap();
        backups.push_front((elapsed(), copy));
        backups.truncate(KEPT);
    }

    /// A person restores etcd. What was written since the backup is void, and what was deleted is back.
    pub(super) fn rewind_etcd(&self, age: Duration) {
        let backup = {
            let backups = self.backups.lock().unwrap();
            let old = backups.iter().find(|(at, _)| elapsed().saturating_sub(*at) >= age);
            old.or(backups.back()).cloned()
        };
        let Some((at, store)) = backup else { return };
        self.tell(format!("etcd is restored from its backup of {:.0} s", at.as_secs_f64()));
        let before = self.names("pods");
        self.unseated.lock().unwrap().push((self.leader(), elapsed()));
        self.edit(|found| found.restore(&store));
        // Kubelets end the pods that etcd has forgotten.
        for gone in before.iter().filter(|name| self.get("pods", name).is_err()) {
            self.lose_worker(gone);
        }
        self.disturb();
        self.access.server.cut_watches();
        // What was backed up later is void too.
        self.backups.lock().unwrap().retain(|(later, _)| *later <= at);
        self.rewound.lock().unwrap().push((at, elapsed()));
    }

    /// Whom the lease names.
    pub fn leader(&self) -> String {
        let lease = self.get("leases", "slurm-operator").unwrap_or_default();
        text(&lease, "/spec/holderIdentity")
    }

    fn leading_process(&self) -> String {
        let leader = self.leader();
        if leader.starts_with("operator-b") {
            "operator-b".to_owned()
        } else {
            "operator-a".to_owned()
        }
    }

    async fn restart_slurmd(&self) {
        let workers: Vec<HostId> = self.workers().into_values().collect();
        if let Some(host) = self.random.pick(&workers).copied() {
            self.slurm().kill_slurmd(host);
            sleep(Duration::from_secs(1)).await;
            self.slurm().start_slurmd(host);
        }
    }

    fn delete_worker(&self, force: bool) {
        let names: Vec<String> = self.workers().into_keys().collect();
        if let Some(name) = self.random.pick(&names) {
            let options = if force {
                json!({ "gracePeriodSeconds": 0 })
            } else {
                json!({})
            };
            self.tell(format!("a person deletes pod {name}, by force: {force}"));
            self.lose_worker(name);
            self.delete("pods", name, &options);
        }
    }

    /// The names of objects.
    pub fn names(&self, plural: &str) -> Vec<String> {
        self.access
            .server
            .store()
            .all(plural)
            .map(|object| name_of(object))
            .collect()
    }

    /// All objects of a kind.
    pub fn all(&self, plural: &str) -> Vec<Arc<Value>> {
        self.access.server.store().all(plural).cloned().collect()
    }
}

async fn set_clock(fault: Fault, clock: &Clock, time: Duration) {
    match fault {
        Fault::StepOperatorClock(seconds) | Fault::StepNodeClock(seconds) => clock.step(seconds),
        Fault::DriftOperatorClock(rate) | Fault::DriftNodeClock(rate) => clock.drift(rate),
        _ => return,
    }
    sleep(time).await;
    clock.correct();
}
