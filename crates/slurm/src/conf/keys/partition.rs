//! The keys of a PartitionName line, and which of them UPDATE_PARTITION can change in a running slurmctld.

use super::global::PREEMPT_MODES;
use super::value::ValueKind::{Boolean, IgnoredWords, Megabytes, OverSubscribe, Text, Time, U16, U32, U64, Word};
use super::{KeySpec, Needs, key};

const UPDATED: &str = "UPDATE_PARTITION has a field for it";
const NOT_UPDATED: &str = "measured: UPDATE_PARTITION does not change it";
const NOT_TAKEN_AWAY: &str = "measured: UPDATE_PARTITION leaves EXCLUSIVE behind when it takes it away";
const NO_FIELD: &str = "UPDATE_PARTITION has no field for it";

/// Can be set while slurmctld runs, but not removed; see [`live_and_clearable`].
const fn live(name: &'static str, kind: super::ValueKind) -> KeySpec {
    key(name, kind)
        .needs(Needs::PartitionRpc, UPDATED)
        .needs_when_removed(Needs::Reconfigure)
}

/// Can also be removed: an RPC has a value that means the same as a line without the key (measured).
const fn live_and_clearable(name: &'static str, kind: super::ValueKind) -> KeySpec {
    key(name, kind).needs(Needs::PartitionRpc, UPDATED)
}

/// In alphabetical order, for binary search.
pub(super) const PARTITION: &[KeySpec] = &[
    key("AllocNodes", Text).documented(NOT_UPDATED),
    live_and_clearable("AllowAccounts", Text),
    live_and_clearable("AllowGroups", Text),
    live("AllowQos", Text),
    live_and_clearable("Alternate", Text),
    live_and_clearable("CpuBind", Text),
    live_and_clearable("Default", Boolean),
    live("DefaultTime", Time),
    live_and_clearable("DefCPUPerGPU", U64),
    live_and_clearable("DefMemPerCPU", Megabytes),
    live_and_clearable("DefMemPerGPU", Megabytes),
    live_and_clearable("DefMemPerNode", Megabytes),
    live_and_clearable("DenyAccounts", Text),
    live("DenyQos", Text),
    live_and_clearable("DisableRootJobs", Boolean),
    key("Exclusive", Word(&["NO", "NODE", "USER", "TOPO"])).documented(NO_FIELD),
    key("ExclusiveTopo", Boolean)
        .documented(NOT_TAKEN_AWAY)
        .legacy("Exclusive=TOPO (Slurm 26.05)"),
    live_and_clearable("ExclusiveUser", Boolean).legacy("Exclusive=USER (Slurm 26.05)"),
    live_and_clearable("GraceTime", U32),
    live_and_clearable("Hidden", Boolean),
    live_and_clearable("LLN", Boolean),
    live_and_clearable("MaxCPUsPerNode", U32),
    live_and_clearable("MaxCPUsPerSocket", U32),
    live_and_clearable("MaxMemPerCPU", Megabytes),
    live_and_clearable("MaxMemPerNode", Megabytes),
    live_and_clearable("MaxNodes", U32),
    live_and_clearable("MaxTime", Time),
    live_and_clearable("MinNodes", U32),
    live_and_clearable("Nodes", Text),
    live_and_clearable("OverSubscribe", OverSubscribe),
    live("OverTimeLimit", Text),
    live_and_clearable("PowerDownOnIdle", Boolean),
    live("PreemptMode", IgnoredWords(&PREEMPT_MODES)),
    live_and_clearable("Priority", U16).legacy("PriorityJobFactor and PriorityTier"),
    live_and_clearable("PriorityJobFactor", U16),
    live_and_clearable("PriorityTier", U16),
    live("QOS", Text),
    live_and_clearable("ReqResv", Boolean),
    key("ResumeTimeout", U16).documented(NOT_UPDATED),
    live_and_clearable("RootOnly", Boolean),
    key("SelectTypeParameters", Text).documented(NOT_UPDATED),
    live_and_clearable("Shared", OverSubscribe).legacy("OverSubscribe"),
    live_and_clearable("State", Word(&["UP", "DOWN", "DRAIN", "INACTIVE"])),
    key("SuspendTime", Text).documented(NOT_UPDATED),
    key("SuspendTimeout", U16).documented(NO_FIELD),
    live("Topology", Text),
    live_and_clearable("TRESBillingWeights", Text),
];
