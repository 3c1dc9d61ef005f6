//! A partition that slurmrestd or `scontrol --json` (v0.0.45) shows, in the numbers of Slurm's own protocol.

use thiserror::Error;

use super::super::wire::{UNSET_U16, UNSET_U32, UNSET_U64};
use super::words::{CPU_BINDS, PREEMPT_MODES};
use super::{LivePartition, LiveState, PartitionFlag, PartitionUpdate};
use crate::number::Number;
use crate::partition::{Memory, Partition, PartitionState};

/// Why a partition in JSON cannot be compared with what slurm.conf sets.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum Incomparable {
    #[error("the JSON of partitions lacks {0}, which Slurm 26.05 and later write")]
    Lacks(&'static str),
    #[error("the JSON of a partition has {key} {value}")]
    Value { key: &'static str, value: String },
}

impl TryFrom<Partition> for LivePartition {
    type Error = Incomparable;

    fn try_from(shown: Partition) -> Result<Self, Incomparable> {
        let flags = shown.flags.ok_or(Incomparable::Lacks("the flags"))?;
        let preempt_mode = shown.preempt_mode.ok_or(Incomparable::Lacks("PreemptMode"))?;
        let exclusive = shown.exclusive.ok_or(Incomparable::Lacks("Exclusive"))?;
        let shared = shown.over_subscribe.ok_or(Incomparable::Lacks("OverSubscribe"))?;
        let mut partition = Self {
            name: shown.name,
            state: match shown.state {
                PartitionState::Known(name) => name.into(),
                PartitionState::Other(_) => LiveState(u16::MAX),
            },
            nodes: shown.nodes,
            node_sets: shown.node_sets,
            total_nodes: finite("total nodes", shown.total_nodes)?,
            total_cpus: finite("total CPUs", shown.total_cpus)?,
            flags: 0,
            allow_accounts: shown.allow_accounts,
            allow_alloc_nodes: shown.allow_alloc_nodes,
            allow_groups: shown.allow_groups,
            allow_qos: shown.allow_qos,
            deny_accounts: shown.deny_accounts,
            deny_qos: shown.deny_qos,
            qos: shown.qos,
            alternate: shown.alternate,
            billing_weights: shown.billing_weights,
            job_defaults: None,
            cpu_bind: cpu_bind(&shown.cpu_bind),
            default_memory: memory("DefMemPerCPU or DefMemPerNode", shown.default_memory)?,
            max_memory: memory("MaxMemPerCPU or MaxMemPerNode", shown.max_memory)?,
            default_time: number("DefaultTime", shown.default_time, UNSET_U32, u32::MAX)?,
            max_time: number("MaxTime", shown.max_time, UNSET_U32, u32::MAX)?,
            grace_time: finite("GraceTime", shown.grace_time)?,
            max_cpus_per_node: number("MaxCPUsPerNode", shown.max_cpus_per_node, UNSET_U32, u32::MAX)?,
            max_cpus_per_socket: number("MaxCPUsPerSocket", shown.max_cpus_per_socket, UNSET_U32, u32::MAX)?,
            max_nodes: number("MaxNodes", shown.max_nodes, UNSET_U32, u32::MAX)?,
            min_nodes: finite("MinNodes", shown.min_nodes)?,
            max_share: max_share(&exclusive, &shared).ok_or_else(|| invalid("OverSubscribe", &shared))?,
            over_time_limit: number("OverTimeLimit", shown.over_time_limit, UNSET_U16, u16::MAX)?,
            preempt_mode: mode(&preempt_mode),
            priority_job_factor: finite("PriorityJobFactor", shown.priority_job_factor)?,
            priority_tier: finite("PriorityTier", shown.priority_tier)?,
        };
        for flag in PartitionFlag::all() {
            if flags.iter().any(|name| name == flag.json_name()) {
                partition.set(flag);
            }
        }
        // It is not among the flags, and is not shown beside `NODE`.
        if exclusive == "USER" {
            partition.set(PartitionFlag::ExclusiveUser(true));
        }
        Ok(partition)
    }
}

fn cpu_bind(names: &[String]) -> u32 {
    let known = CPU_BINDS
        .iter()
        .filter(|(_, name, _)| names.iter().any(|shown| shown == name));
    known.fold(0, |bits, (.., bit)| bits | bit)
}

/// `CLUSTER_GLOBAL` means that the key is not set.
fn mode(names: &[String]) -> u16 {
    let [name] = names else { return UNSET_U16 };
    let known = PREEMPT_MODES.iter().find(|(_, known, _)| known == name);
    known.map_or(UNSET_U16, |(.., mode)| *mode)
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

fn invalid(key: &'static str, value: &impl std::fmt::Debug) -> Incomparable {
    Incomparable::Value {
        key,
        value: format!("{value:?}"),
    }
}

fn finite<T: TryFrom<u64>>(key: &'static str, value: u64) -> Result<T, Incomparable> {
    T::try_from(value).map_err(|_| invalid(key, &value))
}

fn number<T: TryFrom<u64>>(key: &'static str, value: Number, unset: T, unlimited: T) -> Result<T, Incomparable> {
    match value {
        Number::Unset => Ok(unset),
        Number::Infinite => Ok(unlimited),
        Number::Finite(value) => finite(key, value),
    }
}

fn memory(key: &'static str, memory: Memory) -> Result<u64, Incomparable> {
    match (memory.per_cpu, memory.per_node) {
        (Number::Finite(megabytes), _) if megabytes < PartitionUpdate::MEMORY_PER_CPU => {
            Ok(megabytes | PartitionUpdate::MEMORY_PER_CPU)
        }
        (Number::Unset, Number::Finite(megabytes)) if megabytes < PartitionUpdate::MEMORY_PER_CPU => Ok(megabytes),
        (Number::Unset, Number::Unset) => Ok(UNSET_U64),
        _ => Err(invalid(key, &memory)),
    }
}
