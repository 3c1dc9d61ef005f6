//! Has slurmctld make partitions as they are wanted, and reads back whether it did: its word alone says nothing.

use super::{Failure, LivePartition, PartitionCommands, PartitionUpdate};

/// What came of what slurmctld was told.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Told {
    Done,
    /// It said no, or did something else.
    Refused(String),
    /// It may or may not have.
    Unknown(String),
    /// It cannot be told this way, or answers what makes no sense. Its files it understands in any case.
    Unspoken(String),
}

impl From<Result<(), Failure>> for Told {
    fn from(answer: Result<(), Failure>) -> Self {
        match answer {
            Ok(()) => Self::Done,
            Err(Failure::NoSuchPartition(why) | Failure::Refused(why)) => Self::Refused(why),
            Err(Failure::Unspoken(why) | Failure::Garbled(why)) => Self::Unspoken(why),
            Err(Failure::Unknown(why)) => Self::Unknown(why),
        }
    }
}

/// Brings partitions to what is wanted of them, as far as they are not, and reads back.
pub async fn settle_partitions(
    commands: &impl PartitionCommands,
    wanted: &[PartitionUpdate],
    live: &[LivePartition],
) -> Told {
    let mut told = false;
    for update in wanted {
        let partition = live.iter().find(|partition| partition.name == update.name);
        let answer = match partition {
            Some(partition) if update.differences(partition).is_empty() => continue,
            Some(_) => commands.update_partition(update).await,
            None => commands.create_partition(update).await,
        };
        told = true;
        match answer.into() {
            Told::Done => {}
            other => return other,
        }
    }
    if !told {
        return Told::Done;
    }
    read_back_partitions(commands, wanted).await
}

/// Whether these partitions are as wanted now.
pub async fn read_back_partitions(commands: &impl PartitionCommands, wanted: &[PartitionUpdate]) -> Told {
    match commands.partitions().await {
        Ok(live) => check(wanted, &live),
        Err(failure) if failure.asks_for_another_way() => Told::Unspoken(failure.to_string()),
        Err(failure) => Told::Unknown(failure.to_string()),
    }
}

fn check(wanted: &[PartitionUpdate], live: &[LivePartition]) -> Told {
    let mut complaints = Vec::new();
    for wanted in wanted {
        match live.iter().find(|partition| partition.name == wanted.name) {
            Some(partition) => complaints.extend(wanted.differences(partition).iter().map(ToString::to_string)),
            None => complaints.push(format!("PartitionName={}: slurmctld does not have it", wanted.name)),
        }
    }
    if complaints.is_empty() {
        Told::Done
    } else {
        Told::Refused(complaints.join("; "))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_read_back_counts() {
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
        assert_eq!(check(&wanted, &[live(5)]), Told::Done);
        for live in [vec![live(6)], Vec::new()] {
            assert!(matches!(check(&wanted, &live), Told::Refused(_)), "{live:?}");
        }
    }
}
