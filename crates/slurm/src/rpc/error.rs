use thiserror::Error;

use super::frame::MessageType;
use super::return_code::ReturnCode;
use super::wire::{Malformed, Unpackable};
use crate::transport;

#[derive(Debug, Error)]
pub enum Error {
    #[error("slurmctld {0}")]
    Transport(#[from] transport::Error),
    /// The token was not accepted: another key, or clocks apart.
    #[error("slurmctld does not accept our token: {0}")]
    Unauthorized(ReturnCode),
    /// slurmctld understood and said no. After an update, the fields it looked at first may have changed all the same.
    #[error("slurmctld refused: {code}{}", .said.as_ref().map(|said| format!(": {said}")).unwrap_or_default())]
    Refused {
        code: ReturnCode,
        /// What it said of this very case, which it rarely does.
        said: Option<String>,
    },
    /// Nothing has happened.
    #[error("slurmctld speaks none of the versions 42 to 45 of Slurm's protocol; Slurm 24.11 to 26.05 do")]
    Unsupported,
    /// Nothing was sent.
    #[error("this cannot be said to slurmctld: {0}")]
    Unpackable(#[from] Unpackable),
    /// Nothing was sent.
    #[error("no token could be made: {0}")]
    Token(#[from] serde_json::Error),
}

impl Error {
    /// Whether slurmctld itself decided. Otherwise a command may or may not have taken effect, and has to be looked up.
    pub fn is_definite(&self) -> bool {
        match self {
            // "Unspecified error" is as likely a failure halfway as a refusal.
            Self::Refused { code, .. } => *code != ReturnCode(-1),
            Self::Unauthorized(_) | Self::Unsupported | Self::Unpackable(_) | Self::Token(_) => true,
            Self::Transport(_) => false,
        }
    }

    /// Whether nothing of it was understood: another way may lead there.
    pub fn is_unspoken(&self) -> bool {
        match self {
            // The one that is active would have understood.
            Self::Refused { code, .. } => code.is_of_standby(),
            Self::Unauthorized(_) | Self::Unsupported | Self::Unpackable(_) | Self::Token(_) => true,
            Self::Transport(_) => false,
        }
    }

    /// Whether there is no partition of that name (or, after an order to make one, whether there is).
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
