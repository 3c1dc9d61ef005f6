//! Partitions by slurmrestd, for a slurmctld that does not understand us.
//!
//! One message stands for making and for changing: what is there already is changed, and what is not is made. So it is looked up
//! before. Whoever makes or deletes one of that name in the same millisecond is found out by reading back.

use super::client::Client;
use super::error::Error;
use super::partition_update::render_partition;
use crate::rpc::{Failure, LivePartition, PartitionCommands, PartitionUpdate, ReturnCode};
use crate::transport;

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        let words = error.to_string();
        match error {
            Error::Refused { number, .. } if number == i64::from(ReturnCode::INVALID_PARTITION_NAME.0) => {
                Self::NoSuchPartition(words)
            }
            // slurmrestd's own parser: slurmctld has heard nothing of it.
            Error::Refused {
                number: 9000..=9999, ..
            } => Self::Unspoken(words),
            Error::Refused { status, .. } if status >= 500 => Self::Unknown(words),
            Error::Refused { .. } | Error::NotFound { .. } => Self::Refused(words),
            Error::Unauthorized { .. }
            | Error::Encode { .. }
            | Error::Lacking { .. }
            | Error::Unsupported
            | Error::Misread { .. } => Self::Unspoken(words),
            Error::Transport(transport::Error::Malformed { .. }) => Self::Garbled(words),
            Error::Transport(transport::Error::Unreachable { .. }) => Self::Unknown(words),
        }
    }
}

impl Client {
    async fn has_partition(&self, name: &str) -> Result<bool, Failure> {
        let partitions = PartitionCommands::partitions(self).await?;
        Ok(partitions.iter().any(|partition| partition.name == name))
    }
}

impl PartitionCommands for Client {
    async fn partitions(&self) -> Result<Vec<LivePartition>, Failure> {
        Ok(self.live_partitions().await?)
    }

    async fn create_partition(&self, partition: &PartitionUpdate) -> Result<(), Failure> {
        let body = render_partition(partition)?;
        if self.has_partition(&partition.name).await? {
            return Err(Failure::NoSuchPartition(format!(
                "slurmctld has a partition {:?} already",
                partition.name
            )));
        }
        Ok(self.write_partition(&partition.name, &body).await?)
    }

    async fn update_partition(&self, partition: &PartitionUpdate) -> Result<(), Failure> {
        let body = render_partition(partition)?;
        if !self.has_partition(&partition.name).await? {
            return Err(Failure::NoSuchPartition(format!(
                "slurmctld has no partition {:?}",
                partition.name
            )));
        }
        Ok(self.write_partition(&partition.name, &body).await?)
    }

    async fn delete_partition(&self, name: &str) -> Result<(), Failure> {
        Ok(Self::delete_partition(self, name).await?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slurmrestds_answers_are_told_apart() {
        let refused = |status, number| {
            Failure::from(Error::Refused {
                status,
                number,
                text: String::new(),
            })
        };
        assert!(matches!(refused(422, 2000), Failure::NoSuchPartition(_)));
        assert!(matches!(refused(422, 2066), Failure::Refused(_)));
        assert!(matches!(refused(422, 2075), Failure::Refused(_)), "in use");
        assert!(matches!(refused(500, 9207), Failure::Unspoken(_)), "its parser");
        assert!(matches!(refused(500, -1), Failure::Unknown(_)));
        assert!(matches!(
            Failure::from(Error::Lacking { what: "x" }),
            Failure::Unspoken(_)
        ));
    }
}
