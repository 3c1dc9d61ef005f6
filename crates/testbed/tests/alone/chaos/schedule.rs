//! The faults and orders of a run. The seed alone decides them, so that a run can be repeated.
//!
//! Several of them overlap, except where nobody could say afterwards whose fault a loss was: see [`Action::holds`].

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use Daemon::{Agent, Database, Operator, Slurmctld, Slurmd, Slurmdbd, Slurmrestd};

/// Workers that may be hurt. The others come and go by scaling.
pub(super) const WORKERS: [&str; 4] = ["compute-0", "compute-1", "batch-0", "batch-1"];
/// NodeSet `batch` is never scaled, so that a drain of its nodes stays until a person lifts it.
const DRAINED: [&str; 2] = ["batch-0", "batch-1"];
const NODES: [&str; 3] = ["node1", "node2", "node3"];
/// Kubernetes restarts a container with a growing back-off, so the next kill after these takes the whole pod.
const KILLS: u32 = 2;
/// How long a fault waits for what it would hurt to be free, before another one is chosen.
const PATIENCE: u64 = 3_000;

/// Lines of slurm.conf that are rejected.
pub(super) const MISTAKES: [&str; 4] = [
    "PartitionName=broken Nodes=nowhere",
    "SchedulerType=sched/none-such",
    "NoSuchKey=1",
    "Include /etc/slurm/none-such.conf",
];

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Daemon {
    Slurmctld,
    Agent,
    Slurmrestd,
    Slurmdbd,
    Database,
    Operator,
    Slurmd(&'static str),
}

/// A connection that is cut or slowed by a rule in the pod of the first.
const LINKS: [(Daemon, Daemon); 8] = [
    (Slurmd("compute-0"), Slurmctld),
    (Slurmd("compute-1"), Slurmctld),
    (Slurmd("batch-0"), Slurmctld),
    (Slurmd("batch-1"), Slurmctld),
    (Operator, Slurmctld),
    (Operator, Slurmrestd),
    (Slurmdbd, Slurmctld),
    (Slurmdbd, Database),
];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Action {
    KillContainer(Daemon),
    /// slurmctld or slurmd alone, which its supervisor starts again; jobs go on.
    KillProcess(Daemon),
    Freeze(Daemon),
    DeletePod(Daemon),
    DeletePodByForce(Daemon),
    KillNode(&'static str),
    Unplug(&'static str),
    Cut(Daemon, Daemon),
    Slow(Daemon, Daemon, u64),
    FillStateVolume,
    /// Of the control plane of Kubernetes.
    Pause(&'static str),
    Configure {
        resv_over_run: u32,
    },
    Misconfigure(&'static str),
    LimitTime {
        minutes: u32,
    },
    Scale(u32),
    Update(&'static str, u32),
    Cordon(&'static str),
    Drain(&'static str),
    Down(&'static str),
    ClosePartition,
    HoldJob,
    CreatePartition,
    CreateNodeSet,
}

/// What an action holds, so that no other one touches it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Thing {
    Controller,
    Rest,
    Slurmdbd,
    Database,
    Operator,
    Worker(&'static str),
    Node(&'static str),
    ApiServer,
    /// What a person says in Slurm about a node.
    Word(&'static str),
    Configuration,
    Replicas,
    Template(&'static str),
    TimeLimit,
    PartitionState,
    HeldJob,
    SecondPartition,
    ThirdNodeSet,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Step {
    pub at: Duration,
    /// Time until it is healed or lifted.
    pub lasts: Duration,
    pub action: Action,
}

/// SplitMix64.
#[derive(Clone, Debug)]
pub(super) struct Random(pub u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// A number from `from` up to, and without, `to`.
    pub(super) fn within(&mut self, from: u64, to: u64) -> u64 {
        from + self.next() % (to - from)
    }

    fn number(&mut self, from: u32, to: u32) -> u32 {
        u32::try_from(self.within(from.into(), to.into())).unwrap()
    }

    fn one_of<T: Copy>(&mut self, these: &[T]) -> T {
        these[usize::try_from(self.within(0, these.len() as u64)).unwrap()]
    }
}

impl Daemon {
    fn any(random: &mut Random) -> Self {
        let worker = Slurmd(random.one_of(&WORKERS));
        random.one_of(&[
            Slurmctld, Agent, Slurmrestd, Slurmdbd, Database, Operator, worker, worker,
        ])
    }

    fn thing(self) -> Thing {
        match self {
            Slurmctld | Agent => Thing::Controller,
            Slurmrestd => Thing::Rest,
            Slurmdbd => Thing::Slurmdbd,
            Database => Thing::Database,
            Operator => Thing::Operator,
            Slurmd(worker) => Thing::Worker(worker),
        }
    }
}

impl Action {
    fn any(random: &mut Random, kills: &mut BTreeMap<Thing, u32>) -> Self {
        let kind = random.within(0, 23);
        let daemon = Daemon::any(random);
        let worker = random.one_of(&WORKERS);
        let link = random.one_of(&LINKS);
        match kind {
            0 | 1 => {
                let count = kills.entry(daemon.thing()).or_default();
                *count += 1;
                if *count <= KILLS {
                    Self::KillContainer(daemon)
                } else {
                    *count = 0;
                    Self::DeletePodByForce(daemon)
                }
            }
            2 | 3 => Self::KillProcess(random.one_of(&[Slurmctld, Slurmctld, Slurmd(worker)])),
            4 | 5 => Self::Freeze(daemon),
            6 => Self::DeletePod(daemon),
            7 => Self::DeletePodByForce(daemon),
            8 => Self::KillNode(random.one_of(&NODES)),
            9 => Self::Unplug(random.one_of(&NODES)),
            10 => Self::Cut(link.0, link.1),
            11 => Self::Slow(link.0, link.1, random.within(50, 1500)),
            12 => Self::FillStateVolume,
            13 => Self::Pause(random.one_of(&["kube-apiserver", "etcd"])),
            14 => {
                let resv_over_run = random.number(1, 1000);
                let limit = Self::LimitTime {
                    minutes: random.number(10, 60),
                };
                random.one_of(&[Self::Configure { resv_over_run }, limit])
            }
            15 => Self::Misconfigure(random.one_of(&MISTAKES)),
            16 => Self::Scale(random.number(1, 4)),
            17 => Self::Update(random.one_of(&["compute", "batch"]), random.number(2, 1000)),
            18 => Self::Cordon(random.one_of(&["node2", "node3"])),
            19 => Self::Drain(random.one_of(&DRAINED)),
            20 => Self::Down(worker),
            21 => random.one_of(&[Self::ClosePartition, Self::HoldJob]),
            _ => random.one_of(&[Self::CreatePartition, Self::CreateNodeSet]),
        }
    }

    /// Bounds of the time until it is healed, and how long afterwards what it holds is left alone, in milliseconds.
    fn times(self) -> (u64, u64, u64) {
        match self {
            Self::KillContainer(_) | Self::DeletePod(_) | Self::DeletePodByForce(_) => (1, 2, 10_000),
            Self::KillProcess(_) => (1, 2, 4_000),
            Self::Freeze(_) => (2_000, 20_000, 3_000),
            Self::KillNode(_) => (1_000, 10_000, 45_000),
            Self::Unplug(_) => (5_000, 50_000, 10_000),
            Self::Cut(..) | Self::Slow(..) | Self::Pause(_) => (3_000, 20_000, 5_000),
            // slurmctld saves its state within 5 s of the end.
            Self::FillStateVolume => (2_000, 8_000, 8_000),
            Self::Configure { .. } | Self::LimitTime { .. } | Self::Scale(_) => (1, 2, 3_000),
            Self::Update(..) => (1, 2, 15_000),
            Self::Misconfigure(_) => (3_000, 15_000, 3_000),
            Self::Down(_) => (1_000, 5_000, 5_000),
            Self::Cordon(_) | Self::Drain(_) | Self::ClosePartition | Self::HoldJob => (5_000, 30_000, 2_000),
            Self::CreatePartition | Self::CreateNodeSet => (10_000, 40_000, 5_000),
        }
    }

    /// What no other action touches from its beginning to some seconds after its end.
    ///
    /// - No daemon has two faults at a time: a frozen container cannot be killed, and a rule in a pod is removed through the pod.
    /// - While the state volume is full, slurmctld is not killed: it can save nothing, so nothing is durable.
    /// - While a machine is down or unplugged, no worker has another fault: the time at which a worker's processes end must
    ///   be known, and it is not if its kubelet cannot be reached.
    fn holds(self) -> Vec<Thing> {
        let workers = WORKERS.map(Thing::Worker);
        let on_node1 = [Thing::Controller, Thing::Rest, Thing::Slurmdbd, Thing::Database];
        match self {
            Self::KillContainer(of)
            | Self::KillProcess(of)
            | Self::Freeze(of)
            | Self::DeletePod(of)
            | Self::DeletePodByForce(of)
            | Self::Cut(of, _)
            | Self::Slow(of, ..) => vec![of.thing()],
            Self::KillNode(node) | Self::Unplug(node) => {
                let mut held = vec![Thing::Node(node), Thing::Operator];
                if node == "node1" {
                    held.extend(on_node1);
                } else {
                    held.extend(workers);
                }
                held
            }
            Self::FillStateVolume => vec![Thing::Controller],
            Self::Pause(_) => vec![Thing::ApiServer],
            Self::Configure { .. } | Self::Misconfigure(_) => vec![Thing::Configuration],
            Self::LimitTime { .. } => vec![Thing::TimeLimit],
            Self::Scale(_) => vec![Thing::Replicas],
            Self::Update(set, _) => vec![Thing::Template(set)],
            Self::Cordon(node) => vec![Thing::Node(node)],
            Self::Drain(node) | Self::Down(node) => vec![Thing::Word(node)],
            Self::ClosePartition => vec![Thing::PartitionState],
            Self::HoldJob => vec![Thing::HeldJob],
            Self::CreatePartition => vec![Thing::SecondPartition],
            Self::CreateNodeSet => vec![Thing::ThirdNodeSet],
        }
    }

    /// What must be free when it begins.
    ///
    /// - While the API server or etcd is paused, nothing begins that needs kubectl, and no machine is being restarted.
    /// - A person orders something in Slurm when slurmctld responds.
    /// - A node is set DOWN only if it can be reached: otherwise Slurm starts its jobs elsewhere, beside the old ones.
    fn needs(self) -> Vec<Thing> {
        match self {
            Self::Pause(_) => NODES.map(Thing::Node).to_vec(),
            Self::Drain(_) | Self::ClosePartition | Self::HoldJob => vec![Thing::Controller],
            Self::Down(node) => {
                let mut needed = NODES.map(Thing::Node).to_vec();
                needed.extend([Thing::Controller, Thing::Worker(node)]);
                needed
            }
            _ => vec![Thing::ApiServer],
        }
    }
}

impl fmt::Display for Daemon {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Slurmctld => out.write_str("slurmctld"),
            Agent => out.write_str("the agent"),
            Slurmrestd => out.write_str("slurmrestd"),
            Slurmdbd => out.write_str("slurmdbd"),
            Database => out.write_str("MariaDB"),
            Operator => out.write_str("the operator"),
            Slurmd(worker) => write!(out, "slurmd of {worker}"),
        }
    }
}

impl fmt::Display for Action {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::KillContainer(of) => write!(out, "kill the container of {of}"),
            Self::KillProcess(of) => write!(out, "kill -9 {of} alone"),
            Self::Freeze(of) => write!(out, "freeze {of}"),
            Self::DeletePod(of) => write!(out, "delete the pod of {of}"),
            Self::DeletePodByForce(of) => write!(out, "delete the pod of {of} by force"),
            Self::KillNode(node) => write!(out, "power {node} off"),
            Self::Unplug(node) => write!(out, "unplug {node}"),
            Self::Cut(one, other) => write!(out, "cut {one} from {other}"),
            Self::Slow(one, other, delay) => write!(out, "delay packets of {one} to {other} by {delay} ms"),
            Self::FillStateVolume => out.write_str("fill the state volume"),
            Self::Pause(component) => write!(out, "pause {component}"),
            Self::Configure { resv_over_run } => write!(out, "set ResvOverRun={resv_over_run}"),
            Self::Misconfigure(line) => write!(out, "write a bad line: {line}"),
            Self::LimitTime { minutes } => write!(out, "set maxTime of Partition side to {minutes}"),
            Self::Scale(replicas) => write!(out, "scale compute to {replicas}"),
            Self::Update(set, weight) => write!(out, "update {set}: Weight={weight}"),
            Self::Cordon(node) => write!(out, "cordon {node}"),
            Self::Drain(node) => write!(out, "drain {node} by hand"),
            Self::Down(node) => write!(out, "set {node} down by hand"),
            Self::ClosePartition => out.write_str("set partition side down by hand"),
            Self::HoldJob => out.write_str("submit a held job"),
            Self::CreatePartition => out.write_str("create Partition second"),
            Self::CreateNodeSet => out.write_str("create NodeSet third"),
        }
    }
}

/// The steps of a run, in order of their beginning.
pub(super) fn plan(seed: u64, length: Duration) -> Vec<Step> {
    let length = u64::try_from(length.as_millis()).unwrap();
    let mut random = Random(seed);
    let (mut steps, mut now) = (Vec::new(), 0);
    let mut free_at: BTreeMap<Thing, u64> = BTreeMap::new();
    let mut kills = BTreeMap::new();
    while now < length {
        now += random.within(300, 2_500);
        let action = Action::any(&mut random, &mut kills);
        let (least, most, after) = action.times();
        let lasts = random.within(least, most);
        let held = action.holds();
        let touched = held.iter().copied().chain(action.needs());
        let begin = touched
            .filter_map(|thing| free_at.get(&thing).copied())
            .fold(now, u64::max);
        if begin > now + PATIENCE {
            continue;
        }
        now = begin;
        for thing in held {
            free_at.insert(thing, now + lasts + after);
        }
        steps.push(Step {
            at: Duration::from_millis(now),
            lasts: Duration::from_millis(lasts),
            action,
        });
    }
    steps
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOUR: Duration = Duration::from_hours(1);

    #[test]
    fn a_seed_decides_the_sequence() {
        assert_eq!(plan(7, HOUR), plan(7, HOUR));
        assert_ne!(plan(7, HOUR), plan(8, HOUR));
    }

    #[test]
    fn every_kind_of_action_is_chosen_and_faults_overlap() {
        let steps = plan(1, HOUR);
        let kinds: std::collections::BTreeSet<String> = steps
            .iter()
            .map(|step| format!("{:?}", step.action))
            .map(|shown| shown.split(['(', ' ']).next().unwrap().to_owned())
            .collect();
        assert_eq!(kinds.len(), 23, "{kinds:?}");
        let overlap = |pair: &&[Step]| pair[0].at + pair[0].lasts > pair[1].at;
        assert!(steps.windows(2).filter(overlap).count() > steps.len() / 4);
    }

    #[test]
    fn slurmctld_is_not_killed_while_it_cannot_save_its_state() {
        let kills = [
            Action::KillProcess(Slurmctld),
            Action::KillContainer(Slurmctld),
            Action::DeletePodByForce(Slurmctld),
            Action::KillNode("node1"),
        ];
        for seed in 0..20 {
            let steps = plan(seed, HOUR);
            for full in steps.iter().filter(|step| step.action == Action::FillStateVolume) {
                let unsaved = full.at..full.at + full.lasts + Duration::from_secs(5);
                let killed = |step: &Step| kills.contains(&step.action) && unsaved.contains(&step.at);
                assert!(!steps.iter().any(killed), "seed {seed}");
            }
        }
    }
}
