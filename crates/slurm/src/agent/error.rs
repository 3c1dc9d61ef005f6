use thiserror::Error;

use super::fence::Fence;
use super::message::Refusal;

#[derive(Debug, Error)]
pub enum Error {
    /// Nobody answered in time. After a command it may have happened.
    #[error("the agent cannot be reached: {reason}")]
    Unreachable {
        reason: String,
        #[source]
        source: Option<Box<dyn std::error::Error + Send + Sync>>,
    },
    /// We are no longer the leader, or a later command of ours went first.
    #[error("the agent has heard from a later leader or command ({highest})")]
    StaleFence { highest: Fence },
    #[error("the agent refused: {0}")]
    Refused(Refusal),
    /// An answer that is not the agent's, or that means nothing to us. After a command it may have happened.
    #[error("the agent's answer makes no sense: {what}")]
    Malformed {
        what: String,
        #[source]
        source: Option<Box<dyn std::error::Error + Send + Sync>>,
    },
}

impl Error {
    /// Whether the agent itself decided. Otherwise a command may or may not have taken effect, and has to be looked up.
    pub fn is_definite(&self) -> bool {
        match self {
            // A write that failed, or scontrol that did, may have got halfway.
            Self::Refused(Refusal::Failed { .. } | Refusal::Slurm { .. } | Refusal::Unknown)
            | Self::Unreachable { .. }
            | Self::Malformed { .. } => false,
            Self::Refused(_) | Self::StaleFence { .. } => true,
        }
    }

    pub(super) fn unreachable(
        reason: impl Into<String>,
        source: impl Into<Box<dyn std::error::Error + Send + Sync>>,
    ) -> Self {
        Self::Unreachable {
            reason: reason.into(),
            source: Some(source.into()),
        }
    }

    pub(super) fn malformed(
        what: impl Into<String>,
        source: impl Into<Box<dyn std::error::Error + Send + Sync>>,
    ) -> Self {
        Self::Malformed {
            what: what.into(),
            source: Some(source.into()),
        }
    }
}

impl From<Refusal> for Error {
    fn from(refusal: Refusal) -> Self {
        match refusal {
            Refusal::StaleFence { highest } => Self::StaleFence { highest },
            other => Self::Refused(other),
        }
    }
}
