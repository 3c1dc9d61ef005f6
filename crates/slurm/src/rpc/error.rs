use thiserror::Error;

use super::frame::MessageType;
use super::return_code::ReturnCode;
use super::wire::{Malformed, Unpackable};
use crate::transport;

#[derive(Debug, Error)]
pub enum Error {
    #[error("slurmctld {0}")]
    Transport(#[from] transport::Error),
    /// The key differs, or the clocks do.
    #[error("slurmctld does not accept our token: {0}")]
    Unauthorized(ReturnCode),
    /// After an update, the fields that slurmctld handled first may have changed all the same.
    #[error("slurmctld refused: {code}{}", .said.as_ref().map(|said| format!(": {said}")).unwrap_or_default())]
    Refused {
        code: ReturnCode,
        /// A message about this case, which slurmctld rarely sends.
        said: Option<String>,
    },
    /// Nothing has happened.
    #[error("slurmctld supports none of the versions 42 to 45 of Slurm's protocol; Slurm 24.11 to 26.05 do")]
    Unsupported,
    /// Nothing was sent.
    #[error("the message to slurmctld cannot be encoded: {0}")]
    Unpackable(#[from] Unpackable),
    /// Nothing was sent.
    #[error("the token cannot be encoded: {0}")]
    Token(#[from] serde_json::Error),
}

impl Error {
    /// Whether the outcome is known. Otherwise a command may or may not have taken effect, and the caller has to read it back.
    pub fn is_definite(&self) -> bool {
        match self {
            // "Unspecified error" is as likely a partial failure as a refusal.
            Self::Refused { code, .. } => *code != ReturnCode(-1),
            Self::Unauthorized(_) | Self::Unsupported | Self::Unpackable(_) | Self::Token(_) => true,
            Self::Transport(_) => false,
        }
    }

    /// Whether slurmctld understood nothing, so that another channel may succeed.
    pub fn is_not_understood(&self) -> bool {
        match self {
            // The active slurmctld would have understood.
            Self::Refused { code, .. } => code.is_of_standby(),
            Self::Unauthorized(_) | Self::Unsupported | Self::Unpackable(_) | Self::Token(_) => true,
            Self::Transport(_) => false,
        }
    }

    /// Whether there is no partition of that name (or, for a create, whether there is one).
    pub fn is_no_such_partition(&self) -> bool {
        matches!(self, Self::Refused { code, .. } if *code == ReturnCode::INVALID_PARTITION_NAME)
    }

    pub(super) fn unexpected(MessageType(kind): MessageType) -> Self {
        Self::malformed(format!("it is a message of type {kind}"))
    }

    pub(super) fn malformed(reason: String) -> Self {
        Self::Transport(transport::Error::Malformed { reason, source: None })
    }
}

impl From<Malformed> for Error {
    fn from(malformed: Malformed) -> Self {
        Self::Transport(transport::Error::invalid(malformed))
    }
}
