//! What slurmctld knows: nodes, jobs and partitions, with the states that it shows of them.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use slurm::node::NodeFlag;
use slurm::{Hostlist, Number};

use super::settings::{Conf, PartitionLine};

/// Identifies a submission in the ledger; numbers of jobs are used again after a kill.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct JobKey(pub u64);

impl JobKey {
    /// A submission that was refused after it got its number. Slurm shows it as failed, and the ledger does not have it.
    pub const REFUSED: Self = Self(u64::MAX);
}

/// What a user asked for, and what the job will do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Submission {
    pub name: String,
    /// Several are separated by commas.
    pub partition: String,
    /// How many nodes; those of `required` are among them.
    pub nodes: usize,
    pub required: BTreeSet<String>,
    /// Per node.
    pub cpus: u32,
    pub exclusive: bool,
    pub constraint: Option<String>,
    /// Whether Slurm may start it again.
    pub requeue: bool,
    pub hold: bool,
    /// Minutes; `None` for the limit of its partition.
    pub time_limit: Option<u64>,
    /// How long its script runs, and what it returns.
    pub work: Duration,
    pub exit_code: i32,
}

impl Submission {
    pub fn new(partition: &str, work: Duration) -> Self {
        Self {
            name: "job".to_owned(),
            partition: partition.to_owned(),
            nodes: 1,
            required: BTreeSet::new(),
            cpus: 1,
            exclusive: false,
            constraint: None,
            requeue: true,
            hold: false,
            time_limit: None,
            work,
            exit_code: 0,
        }
    }

    #[must_use]
    pub fn on<'a>(mut self, nodes: impl IntoIterator<Item = &'a str>) -> Self {
        self.required = nodes.into_iter().map(str::to_owned).collect();
        self.nodes = self.nodes.max(self.required.len());
        self
    }

    pub fn partitions(&self) -> impl Iterator<Item = &str> {
        self.partition.split(',').filter(|name| !name.is_empty())
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum JobPhase {
    Pending,
    Running,
    Suspended,
    Completed,
    Failed,
    Cancelled,
    NodeFail,
    Timeout,
}

impl JobPhase {
    pub const fn name(self) -> &'static str {
        match self {
            Self::Pending => "PENDING",
            Self::Running => "RUNNING",
            Self::Suspended => "SUSPENDED",
            Self::Completed => "COMPLETED",
            Self::Failed => "FAILED",
            Self::Cancelled => "CANCELLED",
            Self::NodeFail => "NODE_FAIL",
            Self::Timeout => "TIMEOUT",
        }
    }

    pub const fn is_end(self) -> bool {
        !matches!(self, Self::Pending | Self::Running | Self::Suspended)
    }

    pub const fn has_nodes(self) -> bool {
        matches!(self, Self::Running | Self::Suspended)
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Job {
    pub key: JobKey,
    pub id: u32,
    pub spec: Submission,
    pub phase: JobPhase,
    /// The partition it runs in, or those it may run in.
    pub partition: String,
    pub nodes: Vec<String>,
    /// Its nodes whose epilog has not been reported.
    pub completing: BTreeSet<String>,
    pub held: bool,
    pub admin_comment: String,
    pub submitted: Duration,
    pub eligible: Duration,
    pub started: Option<Duration>,
    pub ended: Option<Duration>,
    /// When a node last confirmed its script.
    pub last_active: Duration,
    /// When it began to be suspended.
    pub suspended: Option<Duration>,
    /// Minutes.
    pub time_limit: Number,
    /// When its time limit is over.
    pub limit: Option<Duration>,
    pub restarts: u32,
    pub exit_code: i32,
    /// Distinguishes its launches.
    pub launch: u64,
}

impl Job {
    pub fn is_completing(&self) -> bool {
        !self.completing.is_empty()
    }

    /// Whether it counts as a user of its partition.
    pub const fn is_active(&self) -> bool {
        !self.phase.is_end()
    }

    pub fn batch_host(&self) -> Option<&str> {
        self.nodes.first().map(String::as_str)
    }

    /// Returns the names of its state, as Slurm's JSON shows them.
    pub fn state_names(&self) -> Vec<&'static str> {
        let completing = self.is_completing().then_some("COMPLETING");
        std::iter::once(self.phase.name()).chain(completing).collect()
    }
}

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Node {
    pub name: String,
    /// Its place in slurmctld's table, by which a job's nodes are ordered: the first one runs the script.
    pub slot: usize,
    pub address: String,
    pub cpus: u32,
    pub down: bool,
    /// Only flags that are kept: `COMPLETING` follows from the jobs.
    pub flags: BTreeSet<NodeFlag>,
    pub reason: String,
    pub reason_time: Duration,
    pub comment: String,
    pub extra: String,
    pub features: Vec<String>,
    pub active_features: Vec<String>,
    pub topology: String,
    pub resume_after: Option<Duration>,
    /// `None` asks for a registration at the next ping.
    pub boot_time: Option<Duration>,
    pub slurmd_start_time: Duration,
    pub last_response: Option<Duration>,
}

impl Node {
    pub fn has(&self, flag: NodeFlag) -> bool {
        self.flags.contains(&flag)
    }

    pub fn is_available(&self) -> bool {
        let closed = [NodeFlag::Drain, NodeFlag::Fail, NodeFlag::NotResponding];
        !self.down && !closed.iter().any(|flag| self.has(*flag))
    }

    /// Appends to the reason, as slurmctld does for its own reasons.
    pub fn append_reason(&mut self, text: &str, now: Duration) {
        if self.reason.is_empty() {
            text.clone_into(&mut self.reason);
        } else {
            let addition = format!(" : {text}");
            if !self.reason.contains(&addition) {
                self.reason.push_str(&addition);
            }
        }
        self.reason_time = now;
    }

    pub fn clear_reason(&mut self) {
        self.reason.clear();
        self.reason_time = Duration::ZERO;
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Partition {
    pub name: String,
    pub state: String,
    /// As it was written: names and NodeSets.
    pub nodes: String,
    /// The nodes it has. Slurm does not follow changes of features by itself.
    pub members: BTreeSet<String>,
    pub settings: BTreeMap<String, String>,
}

impl Partition {
    pub fn of_line(name: &str, line: &PartitionLine) -> Self {
        let mut settings = line.settings.clone();
        let state = settings.remove("State").unwrap_or_else(|| "UP".to_owned());
        Self {
            name: name.to_owned(),
            state: state.to_ascii_uppercase(),
            nodes: line.nodes.clone(),
            members: BTreeSet::new(),
            settings,
        }
    }

    /// Whether jobs of it start.
    pub fn starts_jobs(&self) -> bool {
        matches!(self.state.as_str(), "UP" | "DRAIN")
    }

    /// Whether it accepts jobs.
    pub fn accepts_jobs(&self) -> bool {
        matches!(self.state.as_str(), "UP" | "DOWN")
    }

    /// Returns the NodeSets of its nodes, or `ALL`.
    pub fn node_sets(&self, conf: &Conf) -> Vec<&str> {
        let items = self.nodes.split(',');
        items
            .filter(|item| *item == "ALL" || conf.node_sets.contains_key(*item))
            .collect()
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reservation {
    pub name: String,
    pub start: Duration,
    pub end: Duration,
    pub nodes: BTreeSet<String>,
    /// Separated by commas.
    pub users: String,
    pub flags: BTreeSet<String>,
}

/// Reads `90`, `1:30:00` or `1-00:00:00`.
pub fn minutes(text: &str) -> Option<u64> {
    let (days, rest) = text
        .split_once('-')
        .map_or((0, text), |(days, rest)| (days.parse().unwrap_or(0), rest));
    let parts: Option<Vec<u64>> = rest.split(':').map(|part| part.parse().ok()).collect();
    let has_days = rest.len() < text.len();
    Some(
        days * 24 * 60
            + match (parts?.as_slice(), has_days) {
                ([hours], true) => hours * 60,
                ([hours, minutes], true) | ([hours, minutes, _], _) => hours * 60 + minutes,
                ([minutes] | [minutes, _], false) => *minutes,
                _ => return None,
            },
    )
}

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct State {
    pub nodes: BTreeMap<String, Node>,
    pub jobs: BTreeMap<u32, Job>,
    pub next_job: u32,
    pub partitions: BTreeMap<String, Partition>,
    pub reservations: BTreeMap<String, Reservation>,
    /// Memory is allocated, too, and a suspended job keeps it.
    pub allocates_memory: bool,
}

impl State {
    /// Returns the CPUs that running jobs have on a node. A suspended job has none.
    pub fn allocated_cpus(&self, node: &Node) -> u32 {
        let running = self.jobs.values().filter(|job| {
            (job.phase == JobPhase::Running && job.nodes.contains(&node.name)) || job.completing.contains(&node.name)
        });
        running
            .map(|job| if job.spec.exclusive { node.cpus } else { job.spec.cpus })
            .sum()
    }

    pub fn jobs_on<'a>(&'a self, node: &'a str) -> impl Iterator<Item = &'a Job> {
        let on = move |job: &&Job| {
            (job.phase.has_nodes() && job.nodes.iter().any(|name| name == node)) || job.completing.contains(node)
        };
        self.jobs.values().filter(on)
    }

    /// Returns the names of a node's state, as Slurm's JSON shows them.
    pub fn node_state_names(&self, node: &Node, now: Duration) -> Vec<&'static str> {
        let shown = |phase| phase == JobPhase::Running || phase == JobPhase::Suspended && self.allocates_memory;
        let running = |job: &&Job| shown(job.phase) && job.nodes.contains(&node.name);
        let base = if node.down {
            "DOWN"
        } else if self.jobs.values().filter(running).count() == 0 {
            "IDLE"
        } else if self.allocated_cpus(node) >= node.cpus {
            "ALLOCATED"
        } else {
            "MIXED"
        };
        let completing = self.jobs.values().any(|job| job.completing.contains(&node.name));
        let mut names = vec![base];
        names.extend(node.flags.iter().map(|flag| flag.name()));
        names.extend(completing.then_some(NodeFlag::Completing.name()));
        let mut is_reserved = self.reserved(&node.name, now, now).peekable();
        names.extend(is_reserved.peek().map(|_| NodeFlag::Reserved.name()));
        let is_maintained = is_reserved.any(|reservation| reservation.flags.contains("MAINT"));
        names.extend(is_maintained.then_some(NodeFlag::Maintenance.name()));
        names
    }

    /// Returns the nodes that a list of nodes and NodeSets means. `None` with an unknown name.
    pub fn expand(&self, nodes: &str, conf: &Conf) -> Option<BTreeSet<String>> {
        let mut members = BTreeSet::new();
        let list = Hostlist::parse(nodes).ok()?;
        for item in list.names() {
            if item == "ALL" {
                members.extend(self.nodes.keys().cloned());
            } else if let Some(feature) = conf.node_sets.get(&item) {
                let has = |node: &&Node| node.features.iter().any(|own| own == feature);
                members.extend(self.nodes.values().filter(has).map(|node| node.name.clone()));
            } else if self.nodes.contains_key(&item) {
                members.insert(item);
            } else {
                return None;
            }
        }
        Some(members)
    }

    /// Returns the first free place for a node.
    pub fn free_slot(&self) -> usize {
        let taken: BTreeSet<usize> = self.nodes.values().map(|node| node.slot).collect();
        (0..=taken.len()).find(|slot| !taken.contains(slot)).unwrap()
    }

    /// Returns the time limit of a job in minutes. A job that was never started has that of its partition.
    pub fn time_limit(&self, job: &Job) -> Number {
        let partition = job.partition.split(',').find_map(|name| self.partitions.get(name));
        let setting = |key| minutes(partition?.settings.get(key)?);
        match (job.time_limit, partition) {
            (Number::Unset, Some(_)) => {
                let limit = setting("DefaultTime").or_else(|| setting("MaxTime"));
                limit.map_or(Number::Infinite, Number::Finite)
            }
            (limit, _) => limit,
        }
    }

    /// Evaluates the nodes of all partitions again, as when a node joins or leaves.
    pub fn update_members(&mut self, conf: &Conf) {
        let known = self.clone();
        for partition in self.partitions.values_mut() {
            let items: Vec<&str> = partition.nodes.split(',').filter(|item| !item.is_empty()).collect();
            let expanded = items.iter().filter_map(|item| known.expand(item, conf));
            partition.members = expanded.flatten().collect();
        }
    }
}
