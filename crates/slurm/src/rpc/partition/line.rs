//! A partition as slurmctld has it, as what would make it: a line of slurm.conf, or a message.

use std::fmt::Write as _;

use super::super::wire::{UNSET_U16, UNSET_U32, UNSET_U64};
use super::{LivePartition, PartitionFlag, PartitionUpdate};

impl LivePartition {
    /// The line that makes it once more. What slurmctld does not tell is not in it: AllocNodes of a release too old, power
    /// saving, topology.
    pub fn to_line(&self) -> String {
        let mut line = Line(format!("PartitionName={}", self.name));
        line.text("Nodes", self.members());
        if let Some(state) = self.state.name() {
            line.text("State", state.name());
        }
        for flag in PartitionFlag::ALL.into_iter().filter(|flag| self.has(*flag)) {
            line.text(flag.key(), "YES");
        }
        line.text("AllowAccounts", &self.allow_accounts);
        line.text("AllocNodes", &self.allow_alloc_nodes);
        line.text("AllowGroups", &self.allow_groups);
        line.text("AllowQos", &self.allow_qos);
        line.text("DenyAccounts", &self.deny_accounts);
        line.text("DenyQos", &self.deny_qos);
        line.text("QOS", &self.qos);
        line.text("Alternate", &self.alternate);
        line.text("TRESBillingWeights", &self.billing_weights);
        for default in self.job_defaults.iter().flatten() {
            if let Some(key) = default.key() {
                line.text(key, &default.value.to_string());
            }
        }
        line.text("CpuBind", cpu_bind(self.cpu_bind));
        line.memory("DefMem", self.default_memory);
        line.memory("MaxMem", self.max_memory);
        line.number("DefaultTime", self.default_time, UNSET_U32);
        line.number("MaxTime", self.max_time, PartitionUpdate::UNLIMITED);
        line.number("GraceTime", self.grace_time, 0);
        line.number("MaxCPUsPerNode", self.max_cpus_per_node, PartitionUpdate::UNLIMITED);
        line.number("MaxCPUsPerSocket", self.max_cpus_per_socket, PartitionUpdate::UNLIMITED);
        line.number("MaxNodes", self.max_nodes, PartitionUpdate::UNLIMITED);
        // Slurm has 0 where nobody said anything, and takes it for 1.
        line.number("MinNodes", self.min_nodes.max(1), 1);
        line.text("OverSubscribe", &over_subscribe(self.max_share));
        match self.over_time_limit {
            u16::MAX => line.text("OverTimeLimit", "UNLIMITED"),
            limit => line.number("OverTimeLimit", limit.into(), UNSET_U16.into()),
        }
        line.text("PreemptMode", preempt_mode(self.preempt_mode));
        line.number("PriorityJobFactor", self.priority_job_factor.into(), 1);
        line.number("PriorityTier", self.priority_tier.into(), 1);
        line.0
    }

    /// The message that makes it once more, or as it is now again.
    pub fn to_update(&self) -> PartitionUpdate {
        let number = |value: u32| Some(value).filter(|value| *value != UNSET_U32);
        let small = |value: u16| Some(value).filter(|value| *value != UNSET_U16);
        let large = |value: u64| Some(value).filter(|value| *value != UNSET_U64);
        let flag = |flag: PartitionFlag| if self.has(flag) { flag } else { flag.not() };
        PartitionUpdate {
            name: self.name.clone(),
            nodes: Some(self.members().to_owned()),
            state: self.state.name(),
            flags: PartitionFlag::ALL.into_iter().map(flag).collect(),
            allow_accounts: Some(self.allow_accounts.clone()),
            allow_groups: Some(self.allow_groups.clone()),
            // Empty ones would be refused.
            allow_qos: Some(self.allow_qos.clone()).filter(|qos| !qos.is_empty()),
            deny_accounts: Some(self.deny_accounts.clone()).filter(|accounts| !accounts.is_empty()),
            deny_qos: Some(self.deny_qos.clone()).filter(|qos| !qos.is_empty()),
            alternate: Some(self.alternate.clone()),
            billing_weights: Some(self.billing_weights.clone()),
            cpu_bind: Some(self.cpu_bind).filter(|bind| *bind != 0),
            default_memory: large(self.default_memory),
            max_memory: large(self.max_memory),
            default_time: number(self.default_time),
            max_time: number(self.max_time),
            job_defaults: self.job_defaults_in_words(),
            grace_time: number(self.grace_time),
            max_cpus_per_node: number(self.max_cpus_per_node),
            max_cpus_per_socket: number(self.max_cpus_per_socket),
            max_nodes: number(self.max_nodes),
            min_nodes: number(self.min_nodes),
            max_share: small(self.max_share),
            over_time_limit: small(self.over_time_limit),
            preempt_mode: small(self.preempt_mode),
            priority_job_factor: small(self.priority_job_factor),
            priority_tier: small(self.priority_tier),
            qos: Some(self.qos.clone()).filter(|qos| !qos.is_empty()),
            topology: None,
        }
    }

    /// As in a message.
    pub(super) fn job_defaults_in_words(&self) -> Option<String> {
        let defaults = self.job_defaults.as_ref()?.iter();
        let words = defaults.filter_map(|default| Some(format!("{}={}", default.key()?, default.value)));
        Some(words.collect::<Vec<_>>().join(","))
    }

    /// Node sets where it has any: their nodes come and go.
    fn members(&self) -> &str {
        if self.node_sets.is_empty() {
            &self.nodes
        } else {
            &self.node_sets
        }
    }
}

struct Line(String);

impl Line {
    fn text(&mut self, key: &str, value: &str) {
        if !value.is_empty() {
            let _ = write!(self.0, " {key}={value}");
        }
    }

    fn number(&mut self, key: &str, value: u32, default: u32) {
        match value {
            value if value == default => {}
            PartitionUpdate::UNLIMITED => self.text(key, "UNLIMITED"),
            value => self.text(key, &value.to_string()),
        }
    }

    fn memory(&mut self, key: &str, value: u64) {
        let megabytes = value & !PartitionUpdate::MEMORY_PER_CPU;
        if value == 0 || value >= UNSET_U64 {
            return;
        }
        let per = if megabytes == value { "Node" } else { "CPU" };
        self.text(&format!("{key}Per{per}"), &megabytes.to_string());
    }
}

pub(crate) fn over_subscribe(max_share: u16) -> String {
    match max_share {
        1 | UNSET_U16 => String::new(),
        0 => "EXCLUSIVE".to_owned(),
        forced if forced & PartitionUpdate::SHARE_FORCED != 0 => {
            format!("FORCE:{}", forced & !PartitionUpdate::SHARE_FORCED)
        }
        jobs => format!("YES:{jobs}"),
    }
}

pub(super) const fn cpu_bind(bind: u32) -> &'static str {
    match bind {
        0x20 => "none",
        0x2 => "thread",
        0x4 => "core",
        0x8 => "socket",
        0x10 => "ldom",
        _ => "",
    }
}

pub(super) const fn preempt_mode(mode: u16) -> &'static str {
    match mode {
        0 => "OFF",
        1 => "SUSPEND",
        2 => "REQUEUE",
        8 => "CANCEL",
        _ => "",
    }
}

#[cfg(test)]
mod tests {
    use super::super::{JobDefault, LiveState, plan_partition};
    use super::*;
    use crate::conf::{Document, RecordKind};

    /// As slurmctld 26.05 has one of which nothing was said.
    fn plain() -> LivePartition {
        LivePartition {
            name: "hand".to_owned(),
            state: LiveState(3),
            nodes: "n[1-2]".to_owned(),
            default_time: UNSET_U32,
            max_time: u32::MAX,
            max_cpus_per_node: u32::MAX,
            max_cpus_per_socket: u32::MAX,
            max_nodes: u32::MAX,
            max_share: 1,
            over_time_limit: UNSET_U16,
            preempt_mode: UNSET_U16,
            priority_job_factor: 1,
            priority_tier: 1,
            ..LivePartition::default()
        }
    }

    #[test]
    fn a_plain_partition_is_a_short_line() {
        assert_eq!(plain().to_line(), "PartitionName=hand Nodes=n[1-2] State=UP");
    }

    #[test]
    fn a_line_and_a_message_make_the_same_partition() {
        let partition = LivePartition {
            state: LiveState(2),
            node_sets: "s1".to_owned(),
            flags: 0x2 | 0x20,
            allow_accounts: "a,b".to_owned(),
            qos: "q".to_owned(),
            job_defaults: Some(vec![JobDefault { kind: 2, value: 100 }]),
            cpu_bind: 4,
            default_memory: PartitionUpdate::MEMORY_PER_CPU + 100,
            max_memory: 4000,
            default_time: 30,
            max_time: 60,
            min_nodes: 2,
            max_share: 0x8004,
            over_time_limit: u16::MAX,
            preempt_mode: 2,
            priority_tier: 9,
            ..plain()
        };
        let line = partition.to_line();
        assert_eq!(
            line,
            "PartitionName=hand Nodes=s1 State=DRAIN Hidden=YES LLN=YES AllowAccounts=a,b QOS=q DefMemPerGPU=100 \
             CpuBind=core DefMemPerCPU=100 MaxMemPerNode=4000 DefaultTime=30 MaxTime=60 MinNodes=2 OverSubscribe=FORCE:4 \
             OverTimeLimit=UNLIMITED PreemptMode=REQUEUE PriorityTier=9"
        );
        let document = Document::parse(&line);
        let settings = document.effective(RecordKind::Partition).remove(0).1;
        let by_line = plan_partition("hand", &settings).unwrap();
        assert_eq!(by_line.differences(&partition), []);
        assert_eq!(partition.to_update().differences(&partition), []);
    }
}
