//! A partition as slurmrestd and `scontrol --json` show it.

use serde::Deserialize;

use crate::answer::null_as_default;
use crate::names::slurm_names;
use crate::number::Number;
use crate::rpc::PartitionFlag;

slurm_names! {
    pub enum PartitionStateName {
        Up = "UP",
        Down = "DOWN",
        Drain = "DRAIN",
        Inactive = "INACTIVE",
    }
}

impl PartitionStateName {
    /// Orders states by how few jobs they accept and start. `DRAIN` and `DOWN` are equally strict.
    pub fn strictness(self) -> u8 {
        match self {
            Self::Up => 0,
            Self::Drain | Self::Down => 1,
            Self::Inactive => 2,
        }
    }
}

/// Slurm shows a list, although a partition has one state.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PartitionState {
    Known(PartitionStateName),
    /// As Slurm shows it, several joined by `+`.
    Other(String),
}

impl PartitionState {
    pub fn of_names<S: AsRef<str>>(names: &[S]) -> Self {
        match names {
            [name] => PartitionStateName::from_name(name.as_ref()).map(Self::Known),
            _ => None,
        }
        .unwrap_or_else(|| Self::Other(names.iter().map(AsRef::as_ref).collect::<Vec<_>>().join("+")))
    }
}

impl std::fmt::Display for PartitionState {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Known(name) => f.write_str(name.name()),
            Self::Other(words) => f.write_str(words),
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(from = "wire::Entry")]
pub struct Partition {
    pub name: String,
    pub state: PartitionState,
    /// The current nodes, as a hostlist.
    pub nodes: String,
    /// The node sets of its definition, or `ALL`. Slurm drops them when a member is added or removed at run time.
    pub node_sets: String,
    pub total_nodes: u64,
    pub total_cpus: u64,
    pub cpu_bind: Vec<String>,
    /// Minutes.
    pub max_time: Number,
    /// Minutes.
    pub default_time: Number,
    pub max_nodes: Number,
    pub min_nodes: u64,
    pub priority_tier: u64,
    pub priority_job_factor: u64,
    pub allow_accounts: String,
    pub allow_alloc_nodes: String,
    pub allow_groups: String,
    pub allow_qos: String,
    pub deny_accounts: String,
    pub deny_qos: String,
    pub qos: String,
    pub alternate: String,
    pub billing_weights: String,
    /// Seconds.
    pub grace_time: u64,
    pub max_cpus_per_node: Number,
    pub max_cpus_per_socket: Number,
    /// Minutes.
    pub over_time_limit: Number,
    pub default_memory: Memory,
    pub max_memory: Memory,
    /// `None` before v0.0.45, as the next three.
    pub over_subscribe: Option<String>,
    pub exclusive: Option<String>,
    /// Several are possible.
    pub preempt_mode: Option<Vec<String>>,
    pub flags: Option<Vec<String>>,
}

/// MiB per CPU or per node; Slurm has one of both.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Memory {
    pub per_cpu: Number,
    pub per_node: Number,
}

impl Memory {
    /// Returns the key of the value that is set, of these two, and the value.
    fn setting(self, per_cpu: &'static str, per_node: &'static str) -> (&'static str, String) {
        match (self.per_cpu.finite(), self.per_node.finite()) {
            (Some(memory), _) => (per_cpu, memory.to_string()),
            // Not set means 0, in slurm.conf and in an RPC alike.
            (None, memory) => (per_node, memory.unwrap_or_default().to_string()),
        }
    }
}

impl Partition {
    /// Returns its settings but for state and nodes, in the form of slurm.conf.
    pub fn settings(&self) -> Vec<(&'static str, String)> {
        let number = |number: &Number| number.to_string();
        let mut settings = vec![
            ("MaxTime", number(&self.max_time)),
            ("DefaultTime", number(&self.default_time)),
            ("MaxNodes", number(&self.max_nodes)),
            // 0 and 1 mean the same; slurmctld has one of them after reading a file and the other after an RPC.
            ("MinNodes", self.min_nodes.max(1).to_string()),
            ("PriorityTier", self.priority_tier.to_string()),
            ("PriorityJobFactor", self.priority_job_factor.to_string()),
            ("AllowAccounts", self.allow_accounts.clone()),
            ("DenyAccounts", self.deny_accounts.clone()),
            ("AllowGroups", self.allow_groups.clone()),
            ("AllowQos", self.allow_qos.clone()),
            ("DenyQos", self.deny_qos.clone()),
            ("QOS", self.qos.clone()),
            ("Nodes", self.node_sets.clone()),
            ("Alternate", self.alternate.clone()),
            ("TRESBillingWeights", self.billing_weights.clone()),
            ("GraceTime", self.grace_time.to_string()),
            ("MaxCPUsPerNode", number(&self.max_cpus_per_node)),
            ("MaxCPUsPerSocket", number(&self.max_cpus_per_socket)),
            ("OverTimeLimit", number(&self.over_time_limit)),
            self.default_memory.setting("DefMemPerCPU", "DefMemPerNode"),
            self.max_memory.setting("MaxMemPerCPU", "MaxMemPerNode"),
        ];
        settings.extend(self.over_subscribe.iter().map(|mode| ("OverSubscribe", mode.clone())));
        settings.extend(self.preempt_mode.iter().map(|modes| ("PreemptMode", modes.join(","))));
        let flags = [
            PartitionFlag::Default(true),
            PartitionFlag::Hidden(true),
            PartitionFlag::Lln(true),
            PartitionFlag::ReqResv(true),
            PartitionFlag::RootOnly(true),
        ];
        settings.extend(flags.into_iter().filter_map(|flag| {
            let word = if self.has(flag)? { "YES" } else { "NO" };
            Some((flag.key(), word.to_owned()))
        }));
        settings
    }

    pub fn is_default(&self) -> Option<bool> {
        self.has(PartitionFlag::Default(true))
    }

    fn has(&self, flag: PartitionFlag) -> Option<bool> {
        let flags = self.flags.as_ref();
        flags.map(|flags| flags.iter().any(|given| given == flag.json_name()))
    }
}

/// The JSON of slurmrestd and `scontrol --json`.
///
/// Measured on 26.05.5: both show every setting but the defaults of jobs on GPUs, whose field is always empty. The raw numbers
/// (`shares`, `memory_per_cpu`) are always 0; the words and the numbers beside them are right.
mod wire {
    use serde::de::IgnoredAny;

    use super::{Deserialize, Memory, Number, PartitionState, null_as_default};

    #[derive(Deserialize)]
    pub(super) struct Entry {
        name: String,
        partition: Inner,
        nodes: Nodes,
        #[serde(default, deserialize_with = "null_as_default")]
        node_sets: String,
        #[serde(default)]
        cpus: Cpus,
        #[serde(default)]
        maximums: Maximums,
        #[serde(default)]
        minimums: Minimums,
        #[serde(default)]
        defaults: Defaults,
        #[serde(default)]
        priority: Priority,
        #[serde(default)]
        accounts: Accounts,
        #[serde(default)]
        groups: Groups,
        #[serde(default)]
        qos: Qos,
        #[serde(default, deserialize_with = "null_as_default")]
        alternate: String,
        #[serde(default)]
        tres: Tres,
        #[serde(default)]
        grace_time: u64,
        preempt_mode: Option<Vec<String>>,
        flags: Option<Vec<String>>,
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
        total: u64,
        #[serde(default, deserialize_with = "null_as_default")]
        allowed_allocation: String,
    }

    #[derive(Deserialize, Default)]
    #[serde(default)]
    struct Cpus {
        total: u64,
        task_binding: TaskBinding,
    }

    #[derive(Deserialize)]
    #[serde(untagged)]
    enum TaskBinding {
        Names(Vec<String>),
        /// v0.0.44 has a number here.
        Other(IgnoredAny),
    }

    impl Default for TaskBinding {
        fn default() -> Self {
            Self::Names(Vec::new())
        }
    }

    #[derive(Deserialize, Default)]
    #[serde(default)]
    struct Maximums {
        time: Number,
        nodes: Number,
        cpus_per_node: Number,
        cpus_per_socket: Number,
        over_time_limit: Number,
        partition_memory_per_cpu: Number,
        partition_memory_per_node: Number,
    }

    #[derive(Deserialize, Default)]
    #[serde(default)]
    struct Minimums {
        nodes: u64,
    }

    #[derive(Deserialize, Default)]
    #[serde(default)]
    struct Defaults {
        time: Number,
        partition_memory_per_cpu: Number,
        partition_memory_per_node: Number,
    }

    #[derive(Deserialize, Default)]
    #[serde(default)]
    struct Priority {
        tier: u64,
        job_factor: u64,
    }

    #[derive(Deserialize, Default)]
    #[serde(default)]
    struct Accounts {
        #[serde(deserialize_with = "null_as_default")]
        allowed: String,
        #[serde(deserialize_with = "null_as_default")]
        deny: String,
    }

    #[derive(Deserialize, Default)]
    #[serde(default)]
    struct Groups {
        #[serde(deserialize_with = "null_as_default")]
        allowed: String,
    }

    #[derive(Deserialize, Default)]
    #[serde(default)]
    struct Qos {
        #[serde(deserialize_with = "null_as_default")]
        allowed: String,
        #[serde(deserialize_with = "null_as_default")]
        deny: String,
        #[serde(deserialize_with = "null_as_default")]
        assigned: String,
    }

    #[derive(Deserialize, Default)]
    #[serde(default)]
    struct Tres {
        #[serde(deserialize_with = "null_as_default")]
        billing_weights: String,
    }

    impl From<Entry> for super::Partition {
        fn from(entry: Entry) -> Self {
            Self {
                name: entry.name,
                state: PartitionState::of_names(&entry.partition.state),
                nodes: entry.nodes.configured,
                node_sets: entry.node_sets,
                total_nodes: entry.nodes.total,
                total_cpus: entry.cpus.total,
                cpu_bind: match entry.cpus.task_binding {
                    TaskBinding::Names(names) => names,
                    TaskBinding::Other(_) => Vec::new(),
                },
                max_time: entry.maximums.time,
                default_time: entry.defaults.time,
                max_nodes: entry.maximums.nodes,
                min_nodes: entry.minimums.nodes,
                priority_tier: entry.priority.tier,
                priority_job_factor: entry.priority.job_factor,
                allow_accounts: entry.accounts.allowed,
                allow_alloc_nodes: entry.nodes.allowed_allocation,
                allow_groups: entry.groups.allowed,
                allow_qos: entry.qos.allowed,
                deny_accounts: entry.accounts.deny,
                deny_qos: entry.qos.deny,
                qos: entry.qos.assigned,
                alternate: entry.alternate,
                billing_weights: entry.tres.billing_weights,
                grace_time: entry.grace_time,
                max_cpus_per_node: entry.maximums.cpus_per_node,
                max_cpus_per_socket: entry.maximums.cpus_per_socket,
                over_time_limit: entry.maximums.over_time_limit,
                default_memory: Memory {
                    per_cpu: entry.defaults.partition_memory_per_cpu,
                    per_node: entry.defaults.partition_memory_per_node,
                },
                max_memory: Memory {
                    per_cpu: entry.maximums.partition_memory_per_cpu,
                    per_node: entry.maximums.partition_memory_per_node,
                },
                over_subscribe: entry.partition.oversubscribe,
                exclusive: entry.partition.exclusive,
                preempt_mode: entry.preempt_mode,
                flags: entry.flags,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use serde_json::{Value, json};

    use super::{Partition, PartitionState, PartitionStateName};

    fn settings(more: &Value) -> BTreeMap<&'static str, String> {
        let mut entry = json!({ "name": "a", "partition": { "state": ["UP"] }, "nodes": { "configured": "" } });
        for (key, value) in more.as_object().unwrap() {
            entry[key] = value.clone();
        }
        let partition: Partition = serde_json::from_value(entry).unwrap();
        partition.settings().into_iter().collect()
    }

    #[test]
    fn every_setting_has_the_form_of_slurm_conf() {
        let finite = |number: u64| json!({ "set": true, "infinite": false, "number": number });
        for (shown, key, word) in [
            (json!({ "grace_time": 30 }), "GraceTime", "30"),
            (json!({ "alternate": "b" }), "Alternate", "b"),
            (
                json!({ "tres": { "billing_weights": "CPU=2" } }),
                "TRESBillingWeights",
                "CPU=2",
            ),
            (
                json!({ "maximums": { "cpus_per_node": finite(4) } }),
                "MaxCPUsPerNode",
                "4",
            ),
            (
                json!({ "maximums": { "cpus_per_socket": { "set": false, "infinite": true, "number": 0 } } }),
                "MaxCPUsPerSocket",
                "UNLIMITED",
            ),
            (
                json!({ "maximums": { "over_time_limit": finite(5) } }),
                "OverTimeLimit",
                "5",
            ),
            (
                json!({ "defaults": { "partition_memory_per_cpu": finite(100) } }),
                "DefMemPerCPU",
                "100",
            ),
            (
                json!({ "maximums": { "partition_memory_per_node": finite(200) } }),
                "MaxMemPerNode",
                "200",
            ),
            (json!({}), "DefMemPerNode", "0"),
            (
                json!({ "partition": { "state": ["UP"], "oversubscribe": "FORCE:4" } }),
                "OverSubscribe",
                "FORCE:4",
            ),
            (json!({ "preempt_mode": ["REQUEUE"] }), "PreemptMode", "REQUEUE"),
            (json!({ "flags": ["HIDDEN"] }), "Hidden", "YES"),
            (json!({ "flags": ["HIDDEN"] }), "RootOnly", "NO"),
            (json!({ "flags": ["ROOT_ONLY"] }), "RootOnly", "YES"),
            (json!({ "flags": ["REQ_RESV"] }), "ReqResv", "YES"),
            (json!({ "flags": ["LLN"] }), "LLN", "YES"),
        ] {
            assert_eq!(settings(&shown).get(key).map(String::as_str), Some(word), "{shown}");
        }
        for key in ["OverSubscribe", "PreemptMode", "Hidden", "Default"] {
            assert_eq!(
                settings(&json!({})).get(key),
                None,
                "an older slurmrestd does not show it"
            );
        }
        assert_eq!(settings(&json!({})).get("DefMemPerCPU"), None, "Slurm has one of both");
    }

    #[test]
    fn an_unknown_state_is_kept() {
        assert_eq!(
            PartitionState::of_names(&["DRAIN"]),
            PartitionState::Known(PartitionStateName::Drain)
        );
        assert_eq!(
            PartitionState::of_names(&["UP", "ODD"]),
            PartitionState::Other("UP+ODD".to_owned())
        );
        assert_eq!(
            PartitionState::of_names(&["UNKNOWN"]),
            PartitionState::Other("UNKNOWN".to_owned())
        );
        assert_eq!(
            PartitionState::of_names::<&str>(&[]),
            PartitionState::Other(String::new())
        );
    }
}
