//! A partition as slurmctld sees it.

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
    /// How few jobs are taken and started: all of them, some, none. One of `DRAIN` and `DOWN` is no stricter than the other.
    pub fn strictness(self) -> u8 {
        match self {
            Self::Up => 0,
            Self::Drain | Self::Down => 1,
            Self::Inactive => 2,
        }
    }
}

/// Slurm gives a list here too; a partition has one state.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PartitionState {
    Known(PartitionStateName),
    /// As Slurm wrote it, several with `+`.
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
    /// The nodes it has now, as a hostlist.
    pub nodes: String,
    /// The node sets it was made of, or `ALL`. Slurm forgets them when a member is added or removed live.
    pub node_sets: String,
    pub total_nodes: u64,
    pub total_cpus: u64,
    /// Minutes.
    pub max_time: Number,
    /// Minutes.
    pub default_time: Number,
    pub max_nodes: Number,
    pub min_nodes: u64,
    pub priority_tier: u64,
    pub priority_job_factor: u64,
    pub allowed_accounts: String,
    pub denied_accounts: String,
    pub allowed_groups: String,
    pub allowed_qos: String,
    pub denied_qos: String,
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
    /// `None` from a slurmrestd older than v0.0.45, which does not tell; so are the next two.
    pub over_subscribe: Option<String>,
    /// Several are possible.
    pub preempt_mode: Option<Vec<String>>,
    pub flags: Option<Vec<String>>,
}

/// Slurm keeps one of both: MiB per CPU or per node.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Memory {
    pub per_cpu: Number,
    pub per_node: Number,
}

impl Memory {
    /// The key of the one there is, of these two, and its value.
    fn setting(self, per_cpu: &'static str, per_node: &'static str) -> (&'static str, String) {
        match (self.per_cpu.finite(), self.per_node.finite()) {
            (Some(memory), _) => (per_cpu, memory.to_string()),
            // None is nought, which slurm.conf and an RPC say alike.
            (None, memory) => (per_node, memory.unwrap_or_default().to_string()),
        }
    }
}

impl Partition {
    /// What it is set to beside its state and its nodes, in the words of slurm.conf.
    pub fn settings(&self) -> Vec<(&'static str, String)> {
        let number = |number: &Number| number.to_string();
        let mut settings = vec![
            ("MaxTime", number(&self.max_time)),
            ("DefaultTime", number(&self.default_time)),
            ("MaxNodes", number(&self.max_nodes)),
            // None and one are the same, and slurmctld has the one after a file and the other after an RPC.
            ("MinNodes", self.min_nodes.max(1).to_string()),
            ("PriorityTier", self.priority_tier.to_string()),
            ("PriorityJobFactor", self.priority_job_factor.to_string()),
            ("AllowAccounts", self.allowed_accounts.clone()),
            ("DenyAccounts", self.denied_accounts.clone()),
            ("AllowGroups", self.allowed_groups.clone()),
            ("AllowQos", self.allowed_qos.clone()),
            ("DenyQos", self.denied_qos.clone()),
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

/// The shape Slurm has for it.
mod wire {
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
        accounts: AllowDeny,
        #[serde(default)]
        groups: Allow,
        #[serde(default)]
        qos: Qos,
        #[serde(default, deserialize_with = "null_as_default")]
        alternate: String,
        #[serde(default)]
        tres: Tres,
        #[serde(default)]
        grace_time: u64,
        #[serde(default)]
        preempt_mode: Option<Vec<String>>,
        #[serde(default)]
        flags: Option<Vec<String>>,
    }

    #[derive(Deserialize, Default)]
    struct Tres {
        #[serde(default, deserialize_with = "null_as_default")]
        billing_weights: String,
    }

    #[derive(Deserialize)]
    struct Inner {
        state: Vec<String>,
        #[serde(default)]
        oversubscribe: Option<String>,
    }

    #[derive(Deserialize)]
    struct Nodes {
        configured: String,
        #[serde(default)]
        total: u64,
    }

    #[derive(Deserialize, Default)]
    struct Cpus {
        #[serde(default)]
        total: u64,
    }

    #[derive(Deserialize, Default)]
    struct Maximums {
        #[serde(default)]
        time: Number,
        #[serde(default)]
        nodes: Number,
        #[serde(default)]
        cpus_per_node: Number,
        #[serde(default)]
        cpus_per_socket: Number,
        #[serde(default)]
        over_time_limit: Number,
        #[serde(default)]
        partition_memory_per_cpu: Number,
        #[serde(default)]
        partition_memory_per_node: Number,
    }

    #[derive(Deserialize, Default)]
    struct Minimums {
        #[serde(default)]
        nodes: u64,
    }

    #[derive(Deserialize, Default)]
    struct Defaults {
        #[serde(default)]
        time: Number,
        #[serde(default)]
        partition_memory_per_cpu: Number,
        #[serde(default)]
        partition_memory_per_node: Number,
    }

    #[derive(Deserialize, Default)]
    struct Priority {
        #[serde(default)]
        tier: u64,
        #[serde(default)]
        job_factor: u64,
    }

    #[derive(Deserialize, Default)]
    struct AllowDeny {
        #[serde(default, deserialize_with = "null_as_default")]
        allowed: String,
        #[serde(default, deserialize_with = "null_as_default")]
        deny: String,
    }

    #[derive(Deserialize, Default)]
    struct Allow {
        #[serde(default, deserialize_with = "null_as_default")]
        allowed: String,
    }

    #[derive(Deserialize, Default)]
    struct Qos {
        #[serde(default, deserialize_with = "null_as_default")]
        allowed: String,
        #[serde(default, deserialize_with = "null_as_default")]
        deny: String,
        #[serde(default, deserialize_with = "null_as_default")]
        assigned: String,
    }

    impl From<Entry> for super::Partition {
        fn from(wire: Entry) -> Self {
            Self {
                name: wire.name,
                state: PartitionState::of_names(&wire.partition.state),
                nodes: wire.nodes.configured,
                node_sets: wire.node_sets,
                total_nodes: wire.nodes.total,
                total_cpus: wire.cpus.total,
                max_time: wire.maximums.time,
                default_time: wire.defaults.time,
                max_nodes: wire.maximums.nodes,
                min_nodes: wire.minimums.nodes,
                priority_tier: wire.priority.tier,
                priority_job_factor: wire.priority.job_factor,
                allowed_accounts: wire.accounts.allowed,
                denied_accounts: wire.accounts.deny,
                allowed_groups: wire.groups.allowed,
                allowed_qos: wire.qos.allowed,
                denied_qos: wire.qos.deny,
                qos: wire.qos.assigned,
                alternate: wire.alternate,
                billing_weights: wire.tres.billing_weights,
                grace_time: wire.grace_time,
                max_cpus_per_node: wire.maximums.cpus_per_node,
                max_cpus_per_socket: wire.maximums.cpus_per_socket,
                over_time_limit: wire.maximums.over_time_limit,
                default_memory: Memory {
                    per_cpu: wire.defaults.partition_memory_per_cpu,
                    per_node: wire.defaults.partition_memory_per_node,
                },
                max_memory: Memory {
                    per_cpu: wire.maximums.partition_memory_per_cpu,
                    per_node: wire.maximums.partition_memory_per_node,
                },
                over_subscribe: wire.partition.oversubscribe,
                preempt_mode: wire.preempt_mode,
                flags: wire.flags,
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
    fn every_setting_that_slurm_tells_is_in_the_words_of_slurm_conf() {
        let finite = |number: u64| json!({ "set": true, "infinite": false, "number": number });
        for (told, key, word) in [
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
            assert_eq!(settings(&told).get(key).map(String::as_str), Some(word), "{told}");
        }
        for key in ["OverSubscribe", "PreemptMode", "Hidden", "Default"] {
            assert_eq!(settings(&json!({})).get(key), None, "an older slurmrestd does not tell");
        }
        assert_eq!(settings(&json!({})).get("DefMemPerCPU"), None, "Slurm has one of both");
    }

    #[test]
    fn a_state_we_do_not_know_is_kept() {
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
