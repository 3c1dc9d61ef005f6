//! The settings of an update that slurmctld did not apply, although it reported success.
//!
//! Slurm returns 0 and ignores a DefaultTime above MaxTime, a DenyAccounts beside an AllowAccounts and other settings (measured), so
//! updates have to be read back.

use std::collections::BTreeSet;
use std::fmt;

use super::settings::CPU_BIND_OFF;
use super::{LivePartition, LiveState, PartitionUpdate};
use crate::hostlist::Hostlist;

/// A key with another value than wanted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Difference {
    pub partition: String,
    pub key: &'static str,
    pub wanted: String,
    pub got: String,
}

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            partition,
            key,
            wanted,
            got,
        } = self;
        write!(
            f,
            "PartitionName={partition}: slurmctld did not apply {key}: wanted {wanted:?}, it has {got:?}"
        )
    }
}

impl PartitionUpdate {
    /// Returns the keys in which a partition differs from this update. Keys that the update does not have are not compared, nor is
    /// the topology, which slurmctld does not report.
    pub fn differences(&self, live: &LivePartition) -> Vec<Difference> {
        let mut found = Found {
            partition: &live.name,
            differences: Vec::new(),
        };
        if let Some(nodes) = &self.nodes
            && !is_same_membership(nodes, live)
        {
            let has = if live.node_sets.is_empty() {
                live.nodes.clone()
            } else {
                format!("{} with {}", live.node_sets, live.nodes)
            };
            found.note("Nodes", nodes, &has);
        }
        if let Some(state) = self.state
            && live.state != LiveState::from(state)
        {
            let got = live.state.name().map_or("UNKNOWN", |state| state.name());
            found.note("State", state.name(), got);
        }
        for flag in &self.flags {
            if !live.has(*flag) {
                let word = |yes: bool| if yes { "YES" } else { "NO" };
                found.note(flag.key(), word(flag.is_set()), word(!flag.is_set()));
            }
        }
        for (key, wanted, got) in [
            ("AllowAccounts", &self.allow_accounts, &live.allow_accounts),
            ("AllowGroups", &self.allow_groups, &live.allow_groups),
            ("AllowQos", &self.allow_qos, &live.allow_qos),
            ("DenyAccounts", &self.deny_accounts, &live.deny_accounts),
            ("DenyQos", &self.deny_qos, &live.deny_qos),
            ("Alternate", &self.alternate, &live.alternate),
            ("TRESBillingWeights", &self.billing_weights, &live.billing_weights),
            ("QOS", &self.qos, &live.qos),
        ] {
            if let Some(wanted) = wanted
                && words(wanted) != words(got)
            {
                found.note(key, wanted, got);
            }
        }
        if let Some(wanted) = &self.job_defaults {
            let got = live.job_defaults_text().unwrap_or_default();
            if words(wanted) != words(&got) {
                found.note("DefCPUPerGPU and DefMemPerGPU", wanted, &got);
            }
        }
        self.number_differences(live, &mut found);
        found.differences
    }

    fn number_differences(&self, live: &LivePartition, found: &mut Found<'_>) {
        let cpu_bind = self.cpu_bind.map(|bind| bind & !CPU_BIND_OFF);
        found.number("CpuBind", cpu_bind, live.cpu_bind & !CPU_BIND_OFF);
        found.number(
            "DefMemPerCPU or DefMemPerNode",
            self.default_memory,
            live.default_memory,
        );
        found.number("MaxMemPerCPU or MaxMemPerNode", self.max_memory, live.max_memory);
        found.number("DefaultTime", self.default_time, live.default_time);
        found.number("MaxTime", self.max_time, live.max_time);
        found.number("GraceTime", self.grace_time, live.grace_time);
        found.number("MaxCPUsPerNode", self.max_cpus_per_node, live.max_cpus_per_node);
        found.number("MaxCPUsPerSocket", self.max_cpus_per_socket, live.max_cpus_per_socket);
        found.number("MaxNodes", self.max_nodes, live.max_nodes);
        found.number("MinNodes", self.min_nodes, live.min_nodes);
        found.number("OverSubscribe", self.max_share, live.max_share);
        found.number("OverTimeLimit", self.over_time_limit, live.over_time_limit);
        found.number("PreemptMode", self.preempt_mode, live.preempt_mode);
        found.number("PriorityJobFactor", self.priority_job_factor, live.priority_job_factor);
        found.number("PriorityTier", self.priority_tier, live.priority_tier);
    }
}

struct Found<'a> {
    partition: &'a str,
    differences: Vec<Difference>,
}

impl Found<'_> {
    fn note(&mut self, key: &'static str, wanted: &str, got: &str) {
        self.differences.push(Difference {
            partition: self.partition.to_owned(),
            key,
            wanted: wanted.to_owned(),
            got: got.to_owned(),
        });
    }

    fn number<T: Copy + PartialEq + Into<u64>>(&mut self, key: &'static str, wanted: Option<T>, got: T) {
        if let Some(wanted) = wanted
            && wanted != got
        {
            self.note(key, &number(wanted), &number(got));
        }
    }
}

fn number<T: Into<u64>>(number: T) -> String {
    let number = number.into();
    let is = |max: u64| number == max || number == max.saturating_sub(1);
    if is(u64::MAX) || is(u32::MAX.into()) || is(u16::MAX.into()) {
        return "UNLIMITED or none".to_owned();
    }
    (number & !PartitionUpdate::MEMORY_PER_CPU).to_string()
}

/// Slurm keeps the order of lists, and "all" as an empty list.
fn words(list: &str) -> BTreeSet<String> {
    list.split(',')
        .map(|word| word.trim().to_ascii_lowercase())
        .filter(|word| !matches!(word.as_str(), "" | "all" | "none"))
        .collect()
}

/// slurmctld reports node sets by name and by their nodes, which change.
fn is_same_membership(wanted: &str, live: &LivePartition) -> bool {
    let live_sets: BTreeSet<&str> = live.node_sets.split(',').filter(|set| !set.is_empty()).collect();
    let (Ok(wanted), Ok(live_nodes)) = (Hostlist::parse(wanted), Hostlist::parse(&live.nodes)) else {
        // slurmctld could read the list, since it has not refused it.
        return true;
    };
    let is_set = |name: &str| live_sets.iter().any(|set| set.eq_ignore_ascii_case(name));
    let (sets, nodes): (Vec<String>, Vec<String>) = wanted.names().partition(|name| is_set(name));
    let sets_are_all = sets.len() == live_sets.len();
    let nodes_are_there = nodes.iter().all(|name| live_nodes.contains(name));
    // slurmctld reports `ALL` of a cluster without nodes as no node at all.
    let only_all = nodes.len() == 1 && nodes.iter().all(|name| name.eq_ignore_ascii_case("ALL"));
    sets_are_all && (nodes_are_there || only_all) && (!sets.is_empty() || only_all || nodes.len() == live_nodes.len())
}

#[cfg(test)]
mod tests {
    use super::super::{JobDefault, PartitionFlag};
    use super::*;
    use crate::partition::PartitionStateName;

    fn update(change: impl FnOnce(&mut PartitionUpdate)) -> PartitionUpdate {
        let mut update = PartitionUpdate::new("p");
        change(&mut update);
        update
    }

    fn live(change: impl FnOnce(&mut LivePartition)) -> LivePartition {
        let mut live = LivePartition {
            name: "p".to_owned(),
            ..LivePartition::default()
        };
        change(&mut live);
        live
    }

    #[test]
    fn keys_that_are_not_in_the_update_are_not_compared() {
        let odd = live(|live| live.max_time = 7);
        assert_eq!(PartitionUpdate::new("p").differences(&odd), []);
    }

    #[test]
    fn a_difference_names_key_wanted_and_got() {
        let wanted = update(|update| {
            update.default_time = Some(90);
            update.deny_accounts = Some("b".to_owned());
            update.state = Some(PartitionStateName::Up);
            update.flags = vec![PartitionFlag::Hidden(true)];
        });
        let got = live(|live| {
            live.default_time = u32::MAX - 1;
            live.state = LiveState(2);
        });
        let said: Vec<String> = wanted.differences(&got).iter().map(ToString::to_string).collect();
        assert_eq!(
            said,
            [
                r#"PartitionName=p: slurmctld did not apply State: wanted "UP", it has "DRAIN""#,
                r#"PartitionName=p: slurmctld did not apply Hidden: wanted "YES", it has "NO""#,
                r#"PartitionName=p: slurmctld did not apply DenyAccounts: wanted "b", it has """#,
                r#"PartitionName=p: slurmctld did not apply DefaultTime: wanted "90", it has "UNLIMITED or none""#,
            ]
        );
    }

    #[test]
    fn equivalent_values_are_equal() {
        let wanted = update(|update| {
            update.allow_accounts = Some("B,a".to_owned());
            update.allow_groups = Some("ALL".to_owned());
            update.job_defaults = Some("DefCPUPerGPU=2,DefMemPerGPU=3".to_owned());
            update.cpu_bind = Some(CPU_BIND_OFF);
        });
        let got = live(|live| {
            live.allow_accounts = "a,b".to_owned();
            live.job_defaults = Some(vec![JobDefault { kind: 2, value: 3 }, JobDefault { kind: 1, value: 2 }]);
        });
        assert_eq!(wanted.differences(&got), []);
    }

    #[test]
    fn members_are_node_sets_by_name_and_single_nodes() {
        for (wanted, sets, nodes, same) in [
            ("n[1-3]", "", "n[1-3]", true),
            ("n3,n1,n2", "", "n[1-3]", true),
            ("n[1-3]", "", "n[1-2]", false),
            ("n1", "", "n[1-2]", false),
            ("", "", "", true),
            ("", "", "n1", false),
            ("s1", "s1", "n[1-9]", true),
            ("s1,n9", "s1", "n[1-9]", true),
            ("s1,x9", "s1", "n[1-9]", false),
            ("s1,s2", "s1", "n[1-9]", false),
            ("s1", "s1,s2", "n[1-9]", false),
            ("n1", "s1", "n1", false),
            ("ALL", "ALL", "n1", true),
            ("ALL", "", "", true),
        ] {
            let wanted_update = update(|update| update.nodes = Some(wanted.to_owned()));
            let got = live(|live| {
                live.node_sets = sets.to_owned();
                live.nodes = nodes.to_owned();
            });
            assert_eq!(
                wanted_update.differences(&got).is_empty(),
                same,
                "{wanted} of {sets} {nodes}"
            );
        }
    }
}
