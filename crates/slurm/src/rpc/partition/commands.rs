//! The channels by which partitions are read and changed: Slurm's own protocol, scontrol or slurmrestd.

use thiserror::Error;

use super::super::client::Client;
use super::super::error::Error;
use super::{LivePartition, PartitionUpdate};
use crate::transport;

/// A channel to slurmctld. Success does not mean that everything was applied, and a refusal does not mean that nothing was: the
/// caller has to read back.
pub trait PartitionCommands: Sync {
    /// Returns all partitions, including hidden ones.
    fn partitions(&self) -> impl Future<Output = Result<Vec<LivePartition>, Failure>> + Send;

    /// Returns [`Failure::NoSuchPartition`] also if a partition of that name exists.
    fn create_partition(&self, partition: &PartitionUpdate) -> impl Future<Output = Result<(), Failure>> + Send;

    fn update_partition(&self, partition: &PartitionUpdate) -> impl Future<Output = Result<(), Failure>> + Send;

    /// Slurm refuses while the partition has jobs, but not while its last job is completing.
    fn delete_partition(&self, name: &str) -> impl Future<Output = Result<(), Failure>> + Send;
}

/// Why a command was not carried out, or may not have been.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum Failure {
    /// There is no partition of that name (or, for a create, there is one).
    #[error("{0}")]
    NoSuchPartition(String),
    #[error("{0}")]
    Refused(String),
    /// Nothing has happened: this channel cannot express the command, or the receiver does not understand it. Another channel may
    /// succeed.
    #[error("{0}")]
    NotUnderstood(String),
    /// The response is invalid. The command may have been carried out; another channel may show it.
    #[error("{0}")]
    Malformed(String),
    /// The command may or may not have been carried out.
    #[error("{0}")]
    Unknown(String),
}

impl Failure {
    /// Whether the outcome is known.
    pub const fn is_definite(&self) -> bool {
        match self {
            Self::NoSuchPartition(_) | Self::Refused(_) | Self::NotUnderstood(_) => true,
            Self::Malformed(_) | Self::Unknown(_) => false,
        }
    }

    /// Whether another channel may succeed.
    pub const fn needs_another_channel(&self) -> bool {
        matches!(self, Self::NotUnderstood(_) | Self::Malformed(_))
    }

    pub const fn is_no_such_partition(&self) -> bool {
        matches!(self, Self::NoSuchPartition(_))
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        let text = error.to_string();
        match error {
            Error::Transport(transport::Error::Malformed { .. }) => Self::Malformed(text),
            _ if error.is_no_such_partition() => Self::NoSuchPartition(text),
            _ if error.is_not_understood() => Self::NotUnderstood(text),
            _ if error.is_definite() => Self::Refused(text),
            _ => Self::Unknown(text),
        }
    }
}

impl PartitionCommands for Client {
    async fn partitions(&self) -> Result<Vec<LivePartition>, Failure> {
        Ok(Self::partitions(self).await?)
    }

    async fn create_partition(&self, partition: &PartitionUpdate) -> Result<(), Failure> {
        Ok(Self::create_partition(self, partition).await?)
    }

    async fn update_partition(&self, partition: &PartitionUpdate) -> Result<(), Failure> {
        Ok(Self::update_partition(self, partition).await?)
    }

    async fn delete_partition(&self, name: &str) -> Result<(), Failure> {
        Ok(Self::delete_partition(self, name).await?)
    }
}

#[cfg(test)]
mod tests {
    use super::super::super::ReturnCode;
    use super::*;

    #[test]
    fn a_refusal_is_distinguished_from_an_unknown_outcome() {
        let refused = |code| {
            Failure::from(Error::Refused {
                code: ReturnCode(code),
                said: None,
            })
        };
        assert!(matches!(refused(2018), Failure::Refused(_)));
        assert!(matches!(refused(2000), Failure::NoSuchPartition(_)));
        assert!(matches!(refused(2027), Failure::NotUnderstood(_)), "a standby");
        assert!(matches!(refused(-1), Failure::Unknown(_)));
        assert!(matches!(Failure::from(Error::Unsupported), Failure::NotUnderstood(_)));
        let garbage = Failure::from(Error::malformed(String::new()));
        assert!(garbage.needs_another_channel() && !garbage.is_definite());
    }
}
