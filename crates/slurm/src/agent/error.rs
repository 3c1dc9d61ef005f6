use thiserror::Error;

use super::fence::Fence;
use super::message::Refusal;
use crate::transport;

#[derive(Debug, Error)]
pub enum Error {
    /// The agent did not respond, or a response is not proven to be the agent's.
    #[error("the agent {0}")]
    Transport(#[from] transport::Error),
    /// Another leader has taken over, or a later command of this one was received first.
    #[error("the agent has received a command with a higher fence ({highest})")]
    StaleFence { highest: Fence },
    #[error("the agent refused: {0}")]
    Refused(Refusal),
    /// No command is sent, because its token would be valid at the wrong time.
    #[error("{}", describe_clock(*offset))]
    Clock { offset: Option<i64> },
    /// Nothing was sent.
    #[error("cannot encode {what}: {source}")]
    Encode {
        what: &'static str,
        source: serde_json::Error,
    },
}

impl Error {
    /// Whether the outcome is known. Otherwise a command may or may not have taken effect, and the caller has to read it back.
    pub fn is_definite(&self) -> bool {
        match self {
            // A write or an scontrol that failed may have been carried out in part.
            Self::Refused(Refusal::Failed { .. } | Refusal::Slurm { .. } | Refusal::Unknown) | Self::Transport(_) => {
                false
            }
            Self::Refused(_) | Self::StaleFence { .. } | Self::Clock { .. } | Self::Encode { .. } => true,
        }
    }
}

fn describe_clock(offset: Option<i64>) -> String {
    match offset {
        Some(offset) => {
            let direction = if offset < 0 { "behind" } else { "ahead of" };
            format!(
                "the agent's clock is {} s {direction} the operator's, and commands wait; synchronize the clocks of their nodes",
                offset.unsigned_abs()
            )
        }
        None => "the agent did not send its time, and commands wait until it does".to_owned(),
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
