//! Partitions by slurmrestd, for a slurmctld whose protocol version is not supported.
//!
//! One request creates a partition or changes an existing one, so its existence is checked before. If another client creates or
//! deletes the partition in between, the caller notices when it reads back.

use super::client::Client;
use super::error::Error;
use super::partition_update::render_partition;
use crate::rpc::{Failure, LivePartition, PartitionCommands, PartitionUpdate, ReturnCode};
use crate::transport;

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        let text = error.to_string();
        match error {
            Error::Refused { number, .. } if number == i64::from(ReturnCode::INVALID_PARTITION_NAME.0) => {
                Self::NoSuchPartition(text)
            }
            // 9000 to 9999 are of slurmrestd's own parser: slurmctld has not received the request.
            Error::Refused {
                number: 9000..=9999, ..
            }
            | Error::Unauthorized { .. }
            | Error::Encode { .. }
            | Error::Lacking { .. }
            | Error::AgentOnly { .. }
            | Error::Unsupported
            | Error::Misread { .. } => Self::NotUnderstood(text),
            Error::Refused { status, .. } if status >= 500 => Self::Unknown(text),
            Error::Refused { .. } | Error::NotFound { .. } => Self::Refused(text),
            Error::Transport(transport::Error::Malformed { .. }) => Self::Malformed(text),
            Error::Transport(transport::Error::Unreachable { .. }) => Self::Unknown(text),
        }
    }
}

impl Client {
    /// Creates a partition, or changes one that exists.
    async fn write(&self, partition: &PartitionUpdate, exists: bool) -> Result<(), Failure> {
        let body = render_partition(partition)?;
        let name = &partition.name;
        let partitions = self.live_partitions().await?;
        if partitions.iter().any(|partition| partition.name == *name) != exists {
            let problem = if exists { "has no" } else { "already has a" };
            return Err(Failure::NoSuchPartition(format!(
                "slurmctld {problem} partition {name:?}"
            )));
        }
        Ok(self.write_partition(name, &body).await?)
    }
}

impl PartitionCommands for Client {
    async fn partitions(&self) -> Result<Vec<LivePartition>, Failure> {
        Ok(self.live_partitions().await?)
    }

    async fn create_partition(&self, partition: &PartitionUpdate) -> Result<(), Failure> {
        self.write(partition, false).await
    }

    async fn update_partition(&self, partition: &PartitionUpdate) -> Result<(), Failure> {
        self.write(partition, true).await
    }

    async fn delete_partition(&self, name: &str) -> Result<(), Failure> {
        Ok(Self::delete_partition(self, name).await?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rest::ApiVersion;

    #[test]
    fn the_errors_of_slurmrestd_are_distinguished() {
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
        assert!(matches!(refused(500, 9207), Failure::NotUnderstood(_)), "its parser");
        assert!(matches!(refused(500, -1), Failure::Unknown(_)));
        assert!(matches!(
            Failure::from(Error::Lacking {
                what: "x",
                since: ApiVersion::V45,
            }),
            Failure::NotUnderstood(_)
        ));
    }
}
