//! Has slurmctld make partitions as they are wanted, and reads back whether it did: its word alone says nothing.

use super::super::client::Client;
use super::super::error::Error;
use super::{LivePartition, PartitionUpdate};

/// What came of what slurmctld was told.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Told {
    Done,
    /// It said no, or did something else.
    Refused(String),
    /// It may or may not have.
    Unknown(String),
    /// It speaks something else, or answers what makes no sense. Its files it understands in any case.
    Unspoken(String),
}

impl From<Result<(), Error>> for Told {
    fn from(answer: Result<(), Error>) -> Self {
        match answer {
            Ok(()) => Self::Done,
            Err(error @ Error::Malformed { .. }) => Self::Unspoken(error.to_string()),
            Err(error) if error.is_unspoken() => Self::Unspoken(error.to_string()),
            Err(error) if error.is_definite() => Self::Refused(error.to_string()),
            Err(error) => Self::Unknown(error.to_string()),
        }
    }
}

/// Brings partitions to what is wanted of them, as far as they are not, and reads back.
pub async fn settle_partitions(client: &Client, wanted: &[PartitionUpdate], live: &[LivePartition]) -> Told {
    let mut told = false;
    for update in wanted {
        let partition = live.iter().find(|partition| partition.name == update.name);
        let answer = match partition {
            Some(partition) if update.differences(partition).is_empty() => continue,
            Some(_) => client.update_partition(update).await,
            None => client.create_partition(update).await,
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
    read_back_partitions(client, wanted).await
}

/// Whether these partitions are as wanted now.
pub async fn read_back_partitions(client: &Client, wanted: &[PartitionUpdate]) -> Told {
    match client.partitions().await {
        Ok(live) => check(wanted, &live),
        Err(error) => Told::Unknown(error.to_string()),
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
    use super::super::super::ReturnCode;
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

    #[test]
    fn a_refusal_is_told_from_what_nobody_knows() {
        let refused = |code| {
            Told::from(Err(Error::Refused {
                code: ReturnCode(code),
                said: None,
            }))
        };
        assert!(matches!(refused(2018), Told::Refused(_)));
        assert!(matches!(refused(2027), Told::Unspoken(_)), "a standby");
        assert!(matches!(refused(-1), Told::Unknown(_)));
        assert!(matches!(Told::from(Err(Error::Unsupported)), Told::Unspoken(_)));
    }
}
