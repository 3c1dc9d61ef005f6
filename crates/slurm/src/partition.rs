//! A partition as slurmrestd and `scontrol --json` show it.

use serde::de::{DeserializeOwned, Error as _};
use serde::{Deserialize, Deserializer};
use serde_json::Value;

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

#[derive(Debug, Clone, PartialEq, Eq)]
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

/// Measured on 26.05.5: slurmrestd and `scontrol --json` show every setting but the defaults of jobs on GPUs, whose field is always
/// empty. The raw numbers (`shares`, `memory_per_cpu`) are always 0; the words and the numbers beside them are right.
impl<'de> Deserialize<'de> for Partition {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Self::read(&Entry(Value::deserialize(deserializer)?)).map_err(D::Error::custom)
    }
}

/// A partition in JSON.
struct Entry(Value);

impl Entry {
    fn required<T: DeserializeOwned>(&self, place: &str) -> Result<T, serde_json::Error> {
        T::deserialize(self.0.pointer(place).unwrap_or(&Value::Null))
    }

    fn optional<T: DeserializeOwned + Default>(&self, place: &str) -> Result<T, serde_json::Error> {
        self.0.pointer(place).map_or_else(|| Ok(T::default()), T::deserialize)
    }

    fn text(&self, place: &str) -> Result<String, serde_json::Error> {
        Ok(self.optional::<Option<String>>(place)?.unwrap_or_default())
    }

    fn memory(&self, of: &str) -> Result<Memory, serde_json::Error> {
        Ok(Memory {
            per_cpu: self.optional(&format!("/{of}/partition_memory_per_cpu"))?,
            per_node: self.optional(&format!("/{of}/partition_memory_per_node"))?,
        })
    }
}

impl Partition {
    fn read(entry: &Entry) -> Result<Self, serde_json::Error> {
        Ok(Self {
            name: entry.required("/name")?,
            state: PartitionState::of_names(&entry.required::<Vec<String>>("/partition/state")?),
            nodes: entry.required("/nodes/configured")?,
            node_sets: entry.text("/node_sets")?,
            total_nodes: entry.optional("/nodes/total")?,
            total_cpus: entry.optional("/cpus/total")?,
            // v0.0.44 has a number here.
            cpu_bind: entry.required("/cpus/task_binding").unwrap_or_default(),
            max_time: entry.optional("/maximums/time")?,
            default_time: entry.optional("/defaults/time")?,
            max_nodes: entry.optional("/maximums/nodes")?,
            min_nodes: entry.optional("/minimums/nodes")?,
            priority_tier: entry.optional("/priority/tier")?,
            priority_job_factor: entry.optional("/priority/job_factor")?,
            allow_accounts: entry.text("/accounts/allowed")?,
            allow_alloc_nodes: entry.text("/nodes/allowed_allocation")?,
            allow_groups: entry.text("/groups/allowed")?,
            allow_qos: entry.text("/qos/allowed")?,
            deny_accounts: entry.text("/accounts/deny")?,
            deny_qos: entry.text("/qos/deny")?,
            qos: entry.text("/qos/assigned")?,
            alternate: entry.text("/alternate")?,
            billing_weights: entry.text("/tres/billing_weights")?,
            grace_time: entry.optional("/grace_time")?,
            max_cpus_per_node: entry.optional("/maximums/cpus_per_node")?,
            max_cpus_per_socket: entry.optional("/maximums/cpus_per_socket")?,
            over_time_limit: entry.optional("/maximums/over_time_limit")?,
            default_memory: entry.memory("defaults")?,
            max_memory: entry.memory("maximums")?,
            over_subscribe: entry.optional("/partition/oversubscribe")?,
            exclusive: entry.optional("/partition/exclusive")?,
            preempt_mode: entry.optional("/preempt_mode")?,
            flags: entry.optional("/flags")?,
        })
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
