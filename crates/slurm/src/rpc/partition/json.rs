//! A partition as slurmrestd and `scontrol --json` show it (v0.0.45), for who cannot ask slurmctld itself.
//!
//! Measured on 26.05.5: both tell everything but the defaults of jobs on GPUs, whose field is always empty. The raw numbers
//! (`shares`, `memory_per_cpu`) are always 0; the words and the numbers beside them are right.

use serde::Deserialize;

use super::super::wire::{UNSET_U16, UNSET_U32, UNSET_U64};
use super::settings::CPU_BIND_OFF;
use super::{LivePartition, LiveState, PartitionFlag, PartitionUpdate};
use crate::answer::{Payload, null_as_default};
use crate::number::Number;
use crate::partition::PartitionStateName;

/// Decodes only where everything is told that can be changed.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(try_from = "Entry")]
pub struct ShownPartition(pub LivePartition);

impl Payload for Vec<ShownPartition> {
    const FIELD: &'static str = "partitions";
}

#[derive(Deserialize)]
struct Entry {
    name: String,
    partition: Inner,
    nodes: Nodes,
    #[serde(default, deserialize_with = "null_as_default")]
    node_sets: String,
    cpus: Cpus,
    /// Missing before v0.0.45.
    flags: Option<Vec<String>>,
    accounts: AllowDeny,
    groups: AllowDeny,
    qos: AllowDeny,
    #[serde(default, deserialize_with = "null_as_default")]
    alternate: String,
    tres: Tres,
    defaults: Limits,
    maximums: Limits,
    minimums: Minimums,
    grace_time: u32,
    preempt_mode: Option<Vec<String>>,
    priority: Priority,
}

#[derive(Deserialize)]
struct Inner {
    state: Vec<String>,
    exclusive: Option<String>,
    oversubscribe: Option<String>,
}

#[derive(Deserialize)]
struct Nodes {
    configured: String,
    #[serde(default)]
    total: u32,
    #[serde(default, deserialize_with = "null_as_default")]
    allowed_allocation: String,
}

#[derive(Deserialize)]
struct Cpus {
    #[serde(default)]
    task_binding: Vec<String>,
    #[serde(default)]
    total: u32,
}

#[derive(Deserialize)]
struct AllowDeny {
    #[serde(default, deserialize_with = "null_as_default")]
    allowed: String,
    #[serde(default, deserialize_with = "null_as_default")]
    deny: String,
    #[serde(default, deserialize_with = "null_as_default")]
    assigned: String,
}

#[derive(Deserialize)]
struct Tres {
    #[serde(default, deserialize_with = "null_as_default")]
    billing_weights: String,
}

/// What jobs get by default, or at most.
#[derive(Deserialize)]
struct Limits {
    partition_memory_per_cpu: Number,
    partition_memory_per_node: Number,
    time: Number,
    #[serde(default)]
    nodes: Number,
    #[serde(default)]
    cpus_per_node: Number,
    #[serde(default)]
    cpus_per_socket: Number,
    #[serde(default)]
    over_time_limit: Number,
}

#[derive(Deserialize)]
struct Minimums {
    nodes: u32,
}

#[derive(Deserialize)]
struct Priority {
    job_factor: u16,
    tier: u16,
}

impl TryFrom<Entry> for ShownPartition {
    type Error = String;

    fn try_from(entry: Entry) -> Result<Self, String> {
        let lacks = |what: &str| format!("it does not tell {what} of partitions, as Slurm 26.05 and later do");
        let flags = entry.flags.ok_or_else(|| lacks("the flags"))?;
        let preempt_mode = entry.preempt_mode.ok_or_else(|| lacks("PreemptMode"))?;
        let exclusive = entry.partition.exclusive.ok_or_else(|| lacks("what is exclusive"))?;
        let shared = entry.partition.oversubscribe.ok_or_else(|| lacks("OverSubscribe"))?;
        let mut partition = LivePartition {
            name: entry.name,
            state: state(&entry.partition.state),
            nodes: entry.nodes.configured,
            node_sets: entry.node_sets,
            total_nodes: entry.nodes.total,
            total_cpus: entry.cpus.total,
            flags: 0,
            allow_accounts: entry.accounts.allowed,
            allow_alloc_nodes: entry.nodes.allowed_allocation,
            allow_groups: entry.groups.allowed,
            allow_qos: entry.qos.allowed,
            deny_accounts: entry.accounts.deny,
            deny_qos: entry.qos.deny,
            qos: entry.qos.assigned,
            alternate: entry.alternate,
            billing_weights: entry.tres.billing_weights,
            job_defaults: None,
            cpu_bind: cpu_bind(&entry.cpus.task_binding),
            default_memory: memory(&entry.defaults)?,
            max_memory: memory(&entry.maximums)?,
            default_time: number(entry.defaults.time)?,
            max_time: number(entry.maximums.time)?,
            grace_time: entry.grace_time,
            max_cpus_per_node: number(entry.maximums.cpus_per_node)?,
            max_cpus_per_socket: number(entry.maximums.cpus_per_socket)?,
            max_nodes: number(entry.maximums.nodes)?,
            min_nodes: entry.minimums.nodes,
            max_share: max_share(&exclusive, &shared).ok_or_else(|| format!("its OverSubscribe is {shared:?}"))?,
            over_time_limit: small(entry.maximums.over_time_limit)?,
            preempt_mode: mode(&preempt_mode),
            priority_job_factor: entry.priority.job_factor,
            priority_tier: entry.priority.tier,
        };
        for flag in PartitionFlag::ALL {
            if flags.iter().any(|name| name == flag.json_name()) {
                partition.set(flag);
            }
        }
        // This one stands elsewhere, and not at all beside `NODE`.
        if exclusive == "USER" {
            partition.set(PartitionFlag::ExclusiveUser(true));
        }
        Ok(Self(partition))
    }
}

impl PartitionFlag {
    /// As slurmrestd calls it when it is set; with `_CLEAR` behind it, it is taken away.
    pub(crate) const fn json_name(self) -> &'static str {
        match self {
            Self::Default(_) => "DEFAULT",
            Self::Hidden(_) => "HIDDEN",
            Self::DisableRootJobs(_) => "NO_ROOT",
            Self::RootOnly(_) => "ROOT_ONLY",
            Self::ReqResv(_) => "REQ_RESV",
            Self::Lln(_) => "LLN",
            Self::ExclusiveUser(_) => "EXCLUSIVE_USER",
            Self::PowerDownOnIdle(_) => "PDOI",
        }
    }
}

/// slurmrestd's words for the ways of binding.
pub(crate) const CPU_BINDS: [(&str, u32); 6] = [
    ("CPU_BIND_TO_THREADS", 0x2),
    ("CPU_BIND_TO_CORES", 0x4),
    ("CPU_BIND_TO_SOCKETS", 0x8),
    ("CPU_BIND_TO_LDOMS", 0x10),
    ("CPU_BIND_NONE", 0x20),
    ("CPU_BIND_OFF", CPU_BIND_OFF),
];

/// And for those of preemption. There is more than these, which no message could set.
pub(crate) const PREEMPT_MODES: [(&str, u16); 4] = [("DISABLED", 0), ("SUSPEND", 1), ("REQUEUE", 2), ("CANCEL", 8)];

fn cpu_bind(names: &[String]) -> u32 {
    let known = CPU_BINDS
        .iter()
        .filter(|(name, _)| names.iter().any(|shown| shown == name));
    known.fold(0, |bits, (_, bit)| bits | bit)
}

/// `CLUSTER_GLOBAL` is what no key makes it.
fn mode(names: &[String]) -> u16 {
    let [name] = names else { return UNSET_U16 };
    let known = PREEMPT_MODES.iter().find(|(known, _)| known == name);
    known.map_or(UNSET_U16, |(_, mode)| *mode)
}

fn state(names: &[String]) -> LiveState {
    let name = match names {
        [name] => PartitionStateName::from_name(name),
        _ => None,
    };
    name.map_or(LiveState(u16::MAX), LiveState::from)
}

fn max_share(exclusive: &str, shared: &str) -> Option<u16> {
    if exclusive == "NODE" {
        return Some(0);
    }
    match shared.split_once(':') {
        None => (shared == "NO").then_some(1),
        Some(("YES", jobs)) => jobs.parse().ok(),
        Some(("FORCE", jobs)) => Some(jobs.parse::<u16>().ok()? | PartitionUpdate::SHARE_FORCED),
        Some(_) => None,
    }
}

fn number(number: Number) -> Result<u32, String> {
    match number {
        Number::Unset => Ok(UNSET_U32),
        Number::Infinite => Ok(u32::MAX),
        Number::Finite(number) => u32::try_from(number).map_err(|error| error.to_string()),
    }
}

fn small(number: Number) -> Result<u16, String> {
    match number {
        Number::Unset => Ok(UNSET_U16),
        Number::Infinite => Ok(u16::MAX),
        Number::Finite(number) => u16::try_from(number).map_err(|error| error.to_string()),
    }
}

fn memory(limits: &Limits) -> Result<u64, String> {
    match (limits.partition_memory_per_cpu, limits.partition_memory_per_node) {
        (Number::Finite(megabytes), _) if megabytes < PartitionUpdate::MEMORY_PER_CPU => {
            Ok(megabytes | PartitionUpdate::MEMORY_PER_CPU)
        }
        (Number::Unset, Number::Finite(megabytes)) if megabytes < PartitionUpdate::MEMORY_PER_CPU => Ok(megabytes),
        (Number::Unset, Number::Unset) => Ok(UNSET_U64),
        other => Err(format!("its memory is {other:?}")),
    }
}
