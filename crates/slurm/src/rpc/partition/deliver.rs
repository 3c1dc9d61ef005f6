//! Creates or updates partitions in slurmctld and reads them back, since a success code alone proves nothing.

use super::{Failure, LivePartition, PartitionCommands, PartitionUpdate};

/// The outcome of sending partitions to slurmctld.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Delivery {
    Done,
    /// slurmctld refused, or has other settings afterwards.
    Refused(String),
    /// It may or may not have been carried out.
    Unknown(String),
    /// This channel cannot express it, or the response is invalid. A reconfigure with the files works in any case.
    NotUnderstood(String),
}

impl From<Result<(), Failure>> for Delivery {
    fn from(result: Result<(), Failure>) -> Self {
        match result {
            Ok(()) => Self::Done,
            Err(Failure::NoSuchPartition(why) | Failure::Refused(why)) => Self::Refused(why),
            Err(Failure::NotUnderstood(why) | Failure::Malformed(why)) => Self::NotUnderstood(why),
            Err(Failure::Unknown(why)) => Self::Unknown(why),
        }
    }
}

/// Creates or updates the partitions that differ from what is wanted, and reads them back.
pub async fn deliver_partitions(
    commands: &impl PartitionCommands,
    wanted: &[PartitionUpdate],
    live: &[LivePartition],
) -> Delivery {
    let mut sent = false;
    for update in wanted {
        let partition = live.iter().find(|partition| partition.name == update.name);
        let result = match partition {
            Some(partition) if update.differences(partition).is_empty() => continue,
            Some(_) => commands.update_partition(update).await,
            None => commands.create_partition(update).await,
        };
        sent = true;
        match result.into() {
            Delivery::Done => {}
            other => return other,
        }
    }
    if !sent {
        return Delivery::Done;
    }
    read_back_partitions(commands, wanted).await
}

/// Checks whether these partitions are as wanted.
pub async fn read_back_partitions(commands: &impl PartitionCommands, wanted: &[PartitionUpdate]) -> Delivery {
    match commands.partitions().await {
        Ok(live) => check(wanted, &live),
        Err(failure) if failure.needs_another_channel() => Delivery::NotUnderstood(failure.to_string()),
        Err(failure) => Delivery::Unknown(failure.to_string()),
    }
}

fn check(wanted: &[PartitionUpdate], live: &[LivePartition]) -> Delivery {
    let mut problems = Vec::new();
    for wanted in wanted {
        match live.iter().find(|partition| partition.name == wanted.name) {
            Some(partition) => problems.extend(wanted.differences(partition).iter().map(ToString::to_string)),
            None => problems.push(format!("PartitionName={}: it is not in slurmctld", wanted.name)),
        }
    }
    if problems.is_empty() {
        Delivery::Done
    } else {
        Delivery::Refused(problems.join("; "))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_delivery_is_done_when_slurmctld_has_the_settings() {
        let wanted = PartitionUpdate {
            max_time: Some(5),
            ..PartitionUpdate::new("p")
        };
        let live = |max_time| LivePartition {
            name: "p".to_owned(),
            max_time,
            ..LivePartition::default()
        };
        let wanted = [wanted];
        assert_eq!(check(&wanted, &[live(5)]), Delivery::Done);
        for live in [vec![live(6)], Vec::new()] {
            assert!(matches!(check(&wanted, &live), Delivery::Refused(_)), "{live:?}");
        }
    }
}
