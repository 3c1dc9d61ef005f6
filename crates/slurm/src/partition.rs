//! A partition as slurmctld sees it.

use serde::Deserialize;

use crate::answer::null_as_default;
use crate::names::slurm_names;
use crate::number::Number;

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
    /// `None` from a slurmrestd older than v0.0.45, which does not tell.
    pub flags: Option<Vec<String>>,
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
        ];
        settings.extend(
            self.is_default()
                .map(|is_default| ("Default", if is_default { "YES" } else { "NO" }.to_owned())),
        );
        settings
    }

    pub fn is_default(&self) -> Option<bool> {
        self.flags
            .as_ref()
            .map(|flags| flags.iter().any(|flag| flag == "DEFAULT"))
    }
}

/// The shape Slurm has for it.
mod wire {
    use super::{Deserialize, Number, PartitionState, null_as_default};

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
        #[serde(default)]
        flags: Option<Vec<String>>,
    }

    #[derive(Deserialize)]
    struct Inner {
        state: Vec<String>,
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
                flags: wire.flags,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{PartitionState, PartitionStateName};

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
