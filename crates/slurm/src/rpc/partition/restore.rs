//! Reverts manual changes of a partition in the running slurmctld to the settings of slurm.conf.

use std::collections::BTreeMap;

use super::{Failure, LivePartition, PartitionCommands, PartitionFlag, PartitionUpdate, plan_partition_update};
use crate::agent::Restored;
use crate::conf::{Key, Settings};
use crate::partition::PartitionStateName;

/// Sets these keys of one partition to the values of its line. `lines` are those of all partitions, with the settings of
/// `PartitionName=DEFAULT`. Returns `None` for a partition that does not exist. A refusal of slurmctld is part of the result; an
/// error means that the outcome is unknown, or that another channel is needed.
pub async fn restore_partition(
    commands: &impl PartitionCommands,
    lines: &[(&str, Settings)],
    name: &str,
    keys: &[String],
) -> Result<Option<Restored>, Failure> {
    let unclear = |failure: Failure| {
        if failure.is_definite() && !failure.needs_another_channel() {
            Ok(Some(Restored::none_of(keys, &failure.to_string())))
        } else {
            Err(failure)
        }
    };
    let before = match commands.partitions().await {
        Ok(before) => before,
        Err(failure) => return unclear(failure),
    };
    let Some(Plan {
        updates,
        mut left,
        same,
    }) = plan(lines, &before, name, keys)
    else {
        return Ok(None);
    };
    for update in &updates {
        if let Err(failure) = commands.update_partition(update).await {
            return unclear(failure);
        }
    }
    if updates.is_empty() {
        return Ok(Some(Restored { left, same }));
    }
    let after = match commands.partitions().await {
        Ok(after) => after,
        Err(failure) => return unclear(failure),
    };
    for update in &updates {
        let shown = after.iter().find(|partition| partition.name == update.name);
        for difference in shown.iter().flat_map(|shown| update.differences(shown)) {
            left.insert(difference.key.to_owned(), difference.to_string());
        }
    }
    Ok(Some(Restored { left, same }))
}

#[derive(Debug, Default, PartialEq, Eq)]
struct Plan {
    updates: Vec<PartitionUpdate>,
    /// The keys that are not reverted, each with the reason.
    left: BTreeMap<String, String>,
    /// The keys that already have the value of the files.
    same: Vec<String>,
}

/// Returns `None` for a partition that the files or slurmctld do not have.
fn plan(lines: &[(&str, Settings)], partitions: &[LivePartition], name: &str, keys: &[String]) -> Option<Plan> {
    let (_, line) = lines.iter().find(|(line, _)| *line == name)?;
    let shown = partitions.iter().find(|partition| partition.name == name)?;
    let mut plan = Plan::default();
    let mut changed = line.clone();
    let is_current = |update: &PartitionUpdate| {
        let shown = partitions.iter().find(|partition| partition.name == update.name);
        shown.is_some_and(|shown| update.differences(shown).is_empty())
    };
    for given in keys {
        let key = key_on_line(given, line);
        let other = lines.iter().find(|(_, line)| is_default(line));
        let alone = match other.filter(|_| key == *"Default" && !is_default(line)) {
            // Making a partition the default has cleared the flag of another one, which gets it back.
            Some((other, _)) => Ok(PartitionUpdate {
                flags: vec![PartitionFlag::Default(true)],
                ..PartitionUpdate::new(*other)
            }),
            None => plan_partition_update(name, &unlike(line, &key), line),
        };
        match alone {
            Ok(alone) if is_current(&alone) => plan.same.push(given.clone()),
            Ok(_) if key == *"State" && !is_opened(shown, line) => {
                let why = "it was closed manually in the meantime, which is kept";
                plan.left.insert(given.clone(), why.to_owned());
            }
            Ok(alone) if alone.name != name => plan.updates.push(alone),
            Ok(_) => changed = unlike_too(changed, line, &key),
            Err(not_live) => drop(plan.left.insert(given.clone(), not_live.to_string())),
        }
    }
    if let Ok(update) = plan_partition_update(name, &changed, line)
        && update != PartitionUpdate::new(name)
    {
        plan.updates.push(update);
    }
    Some(plan)
}

/// Returns the key by which the line sets it.
fn key_on_line(given: &str, line: &Settings) -> Key {
    let both = Key::new("Priority");
    let is_priority = ["PriorityTier", "PriorityJobFactor"].contains(&given);
    let key = Key::new(given);
    if is_priority && !line.contains_key(&key) && line.contains_key(&both) {
        both
    } else {
        key
    }
}

/// Returns a line that differs from this one in this key alone.
fn unlike(line: &Settings, key: &Key) -> Settings {
    unlike_too(line.clone(), line, key)
}

fn unlike_too(mut other: Settings, line: &Settings, key: &Key) -> Settings {
    if line.contains_key(key) {
        other.remove(key);
    } else {
        other.insert(key.clone(), String::new());
    }
    other
}

fn is_default(line: &Settings) -> bool {
    let value = line.get(&Key::new("Default"));
    value.is_some_and(|value| value.eq_ignore_ascii_case("YES"))
}

/// Whether the partition accepts or starts more jobs than its line allows.
fn is_opened(shown: &LivePartition, line: &Settings) -> bool {
    let written = line.get(&Key::new("State")).map(|state| state.to_ascii_uppercase());
    let written = written.map_or(Some(PartitionStateName::Up), |state| {
        PartitionStateName::from_name(&state)
    });
    let shown = shown.state.name().map(PartitionStateName::strictness);
    shown.is_some() && shown < written.map(PartitionStateName::strictness)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::conf::{Document, RecordKind};

    const CONF: &str = "PartitionName=DEFAULT MaxTime=60\n\
        PartitionName=a Nodes=s,n1 Default=YES State=DRAIN\n\
        PartitionName=b Nodes=s PriorityTier=4 MaxTime=30\n\
        PartitionName=c Priority=5\n";

    fn restored(partition: &str, keys: &[&str], state: PartitionStateName) -> Option<Plan> {
        let live = ["a", "b", "c"].map(|name| LivePartition {
            name: name.to_owned(),
            state: state.into(),
            allow_accounts: "x".to_owned(),
            priority_job_factor: 1,
            ..LivePartition::default()
        });
        let keys: Vec<String> = keys.iter().map(ToString::to_string).collect();
        let conf = Document::parse(CONF);
        plan(&conf.effective(RecordKind::Partition), &live, partition, &keys)
    }

    fn updates(partition: &str, keys: &[&str]) -> Vec<PartitionUpdate> {
        let plan = restored(partition, keys, PartitionStateName::Up).unwrap();
        assert_eq!((plan.left, plan.same), (BTreeMap::new(), Vec::new()));
        plan.updates
    }

    #[test]
    fn only_the_given_keys_are_set_to_the_values_of_the_files() {
        let b = || PartitionUpdate::new("b");
        assert_eq!(
            updates("b", &["MaxTime", "PriorityTier"]),
            [PartitionUpdate {
                max_time: Some(30),
                priority_tier: Some(4),
                ..b()
            }]
        );
        // From PartitionName=DEFAULT.
        assert_eq!(updates("a", &["MaxTime"])[0].max_time, Some(60));
        // A key that no line has gets Slurm's default.
        assert_eq!(
            updates("b", &["AllowAccounts"]),
            [PartitionUpdate {
                allow_accounts: Some(String::new()),
                ..b()
            }]
        );
        assert_eq!(updates("a", &["Nodes"])[0].nodes.as_deref(), Some("s,n1"));
        let both = &updates("c", &["PriorityTier"])[0];
        assert_eq!((both.priority_tier, both.priority_job_factor), (Some(5), Some(5)));
    }

    #[test]
    fn a_key_that_needs_a_reconfigure_is_left_and_the_others_are_set() {
        let plan = restored("b", &["DefaultTime", "MaxTime"], PartitionStateName::Up).unwrap();
        assert_eq!(plan.left.keys().collect::<Vec<_>>(), ["DefaultTime"]);
        assert_eq!(plan.updates[0].max_time, Some(30));
        assert_eq!(restored("nobody", &["MaxTime"], PartitionStateName::Up), None);
    }

    #[test]
    fn a_key_with_the_right_value_is_not_sent() {
        let plan = restored("b", &["PriorityJobFactor", "State"], PartitionStateName::Up).unwrap();
        assert_eq!(plan.same, ["PriorityJobFactor", "State"]);
        assert_eq!((plan.updates, plan.left), (Vec::new(), BTreeMap::new()));
    }

    #[test]
    fn the_default_flag_returns_to_its_partition() {
        let default = |name: &str| PartitionUpdate {
            flags: vec![PartitionFlag::Default(true)],
            ..PartitionUpdate::new(name)
        };
        assert_eq!(updates("b", &["Default"]), [default("a")]);
        assert_eq!(updates("a", &["Default"]), [default("a")]);
    }

    #[test]
    fn a_partition_opened_manually_is_closed_and_one_closed_manually_stays_closed() {
        use PartitionStateName::{Down, Drain, Inactive, Up};
        let opened = restored("a", &["State"], Up).unwrap();
        assert_eq!(opened.updates[0].state, Some(Drain));
        for (partition, state) in [("a", Inactive), ("a", Down), ("b", Drain)] {
            let closed = restored(partition, &["State"], state).unwrap();
            assert_eq!(closed.updates, [], "{partition}");
            assert!(closed.left.contains_key("State"));
        }
    }
}
