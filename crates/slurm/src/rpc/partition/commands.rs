//! Whoever partitions can be told to: slurmctld itself by its own protocol, or somebody who knows another way to it.

use std::fmt;

use super::super::client::Client;
use super::super::error::Error;
use super::{LivePartition, PartitionUpdate};
use crate::transport;

/// One way to a slurmctld. By each of them success does not mean that everything was applied, and a refusal does not mean that
/// nothing was: what counts is what is read back.
pub trait PartitionCommands: Sync {
    /// All of them, hidden ones too.
    fn partitions(&self) -> impl Future<Output = Result<Vec<LivePartition>, Failure>> + Send;

    /// [`Failure::NoSuchPartition`] also if there is one of that name.
    fn create_partition(&self, partition: &PartitionUpdate) -> impl Future<Output = Result<(), Failure>> + Send;

    fn update_partition(&self, partition: &PartitionUpdate) -> impl Future<Output = Result<(), Failure>> + Send;

    /// Refused while it has jobs, but not while its last job is completing.
    fn delete_partition(&self, name: &str) -> impl Future<Output = Result<(), Failure>> + Send;
}

/// Why a command was not carried out, or may not have been. Each with the words for it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Failure {
    /// There is none of that name (or, after an order to make one, there is).
    NoSuchPartition(String),
    /// slurmctld understood and said no.
    Refused(String),
    /// Nothing has happened: this way cannot say it, or nobody understands it. Another way may lead there.
    Unspoken(String),
    /// An answer that makes no sense. It may have happened; another way may tell.
    Garbled(String),
    /// It may or may not have happened.
    Unknown(String),
}

impl Failure {
    /// Whether it is known what has become of it.
    pub const fn is_definite(&self) -> bool {
        match self {
            Self::NoSuchPartition(_) | Self::Refused(_) | Self::Unspoken(_) => true,
            Self::Garbled(_) | Self::Unknown(_) => false,
        }
    }

    /// Whether somebody else may be understood.
    pub const fn asks_for_another_way(&self) -> bool {
        matches!(self, Self::Unspoken(_) | Self::Garbled(_))
    }

    pub const fn is_no_such_partition(&self) -> bool {
        matches!(self, Self::NoSuchPartition(_))
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (Self::NoSuchPartition(words)
        | Self::Refused(words)
        | Self::Unspoken(words)
        | Self::Garbled(words)
        | Self::Unknown(words)) = self;
        f.write_str(words)
    }
}

impl std::error::Error for Failure {}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        let words = error.to_string();
        match error {
            Error::Transport(transport::Error::Malformed { .. }) => Self::Garbled(words),
            _ if error.is_no_such_partition() => Self::NoSuchPartition(words),
            _ if error.is_unspoken() => Self::Unspoken(words),
            _ if error.is_definite() => Self::Refused(words),
            _ => Self::Unknown(words),
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
    fn a_refusal_is_told_from_what_nobody_knows() {
        let refused = |code| {
            Failure::from(Error::Refused {
                code: ReturnCode(code),
                said: None,
            })
        };
        assert!(matches!(refused(2018), Failure::Refused(_)));
        assert!(matches!(refused(2000), Failure::NoSuchPartition(_)));
        assert!(matches!(refused(2027), Failure::Unspoken(_)), "a standby");
        assert!(matches!(refused(-1), Failure::Unknown(_)));
        assert!(matches!(Failure::from(Error::Unsupported), Failure::Unspoken(_)));
        let garbage = Failure::from(Error::malformed(String::new()));
        assert!(garbage.asks_for_another_way() && !garbage.is_definite());
    }
}
