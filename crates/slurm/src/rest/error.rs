use hyper::StatusCode;
use thiserror::Error;

use super::client::ApiVersion;
use crate::answer::{Complaint, DecodeError};
use crate::transport;

#[derive(Debug, Error)]
pub enum Error {
    /// slurmrestd did not respond, or slurmrestd could not reach slurmctld.
    #[error("Slurm {0}")]
    Transport(#[from] transport::Error),
    /// The key differs, or the clocks do.
    #[error("Slurm does not accept the token: {text}")]
    Unauthorized { text: String },
    #[error("Slurm has no {what}")]
    NotFound { what: String },
    #[error("Slurm refused: {text} (error {number}, HTTP {status})")]
    Refused { status: u16, number: i64, text: String },
    /// Nothing was sent.
    #[error("cannot encode {what}: {source}")]
    Encode {
        what: &'static str,
        source: serde_json::Error,
    },
    /// slurmrestd is too old for the request. Nothing was sent.
    #[error("slurmrestd cannot {what} before {since}")]
    Lacking { what: &'static str, since: ApiVersion },
    /// Only the agent does this. Nothing was sent.
    #[error("no agent that could {what}")]
    AgentOnly { what: &'static str },
    /// slurmrestd takes the name in the path for a boolean or a number, and would use another name. Nothing was sent.
    #[error("slurmrestd would take the name {name:?} for a boolean or a number")]
    Misread { name: String },
    #[error("slurmrestd supports none of v0.0.45, v0.0.44 and v0.0.42; Slurm 24.11 or newer is needed")]
    Unsupported,
}

/// `SLURM_PROTOCOL_AUTHENTICATION_ERROR`.
const AUTHENTICATION: i64 = 1007;
/// `ESLURM_INVALID_JOB_ID`.
const INVALID_JOB_ID: i64 = 2017;
/// `ESLURM_INVALID_NODE_NAME`.
const INVALID_NODE_NAME: i64 = 2018;
/// `ESLURM_RESERVATION_INVALID`: the reservation does not exist.
const RESERVATION_INVALID: i64 = 2053;

impl Error {
    /// Whether the outcome is known. Otherwise a write may or may not have taken effect, and the caller has to read it back.
    pub fn is_definite(&self) -> bool {
        match self {
            Self::Unauthorized { .. }
            | Self::NotFound { .. }
            | Self::Encode { .. }
            | Self::Lacking { .. }
            | Self::AgentOnly { .. }
            | Self::Misread { .. }
            | Self::Unsupported => true,
            // "500, Unspecified error" is as likely a partial failure as a refusal.
            Self::Refused { status, .. } => *status < 500,
            Self::Transport(_) => false,
        }
    }

    fn unreachable(reason: String) -> Self {
        Self::Transport(transport::Error::Unreachable { reason, source: None })
    }

    fn malformed(reason: String) -> Self {
        Self::Transport(transport::Error::Malformed { reason, source: None })
    }

    /// Returns the error for a status that is no success.
    pub(super) fn of_status(status: StatusCode, what: &str) -> Self {
        let text = status.to_string();
        match status {
            StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN | StatusCode::NETWORK_AUTHENTICATION_REQUIRED => {
                Self::Unauthorized { text }
            }
            // slurmrestd has no such path, which says nothing about the object.
            StatusCode::NOT_FOUND => Self::malformed(format!("slurmrestd has no path for {what}")),
            _ if status.is_client_error() => Self::Refused {
                status: status.as_u16(),
                number: 0,
                text,
            },
            _ if status.is_server_error() => Self::unreachable(format!("slurmrestd answered {text}")),
            _ => Self::malformed(format!("HTTP {text}")),
        }
    }

    pub(super) fn of_decoding(status: StatusCode, what: &str, error: DecodeError) -> Self {
        match error {
            DecodeError::Complaints(complaints) => Self::of_complaints(status, what, &complaints),
            // The page of a proxy, or nothing at all: the status is all there is.
            DecodeError::Json(_) | DecodeError::Missing(_) if !status.is_success() => Self::of_status(status, what),
            DecodeError::Json(source) => Self::Transport(transport::Error::invalid(source)),
            DecodeError::Missing(_) => Self::Transport(transport::Error::invalid(error)),
        }
    }

    /// Returns the error of one job of a command, which comes with HTTP 200.
    pub(super) fn of_job(what: &str, number: i64, text: &str) -> Self {
        match number {
            INVALID_JOB_ID => Self::NotFound { what: what.to_owned() },
            _ => Self::Refused {
                status: 200,
                number,
                text: text.to_owned(),
            },
        }
    }

    fn of_complaints(status: StatusCode, what: &str, complaints: &[Complaint]) -> Self {
        // The first error is the cause; the others say where it was noticed.
        let number = complaints
            .iter()
            .map(|complaint| complaint.number)
            .find(|number| *number != 0)
            .unwrap_or(0);
        let text = complaints
            .iter()
            .map(ToString::to_string)
            .collect::<Vec<_>>()
            .join("; ");
        match number {
            AUTHENTICATION => Self::Unauthorized { text },
            INVALID_NODE_NAME | INVALID_JOB_ID | RESERVATION_INVALID => Self::NotFound { what: what.to_owned() },
            // A connection failed or broke: any (1001-1006), to slurmctld (1800-1899), the socket itself (5000-5099). slurmrestd's
            // status for it is 502 to 504.
            1001..=1006 | 1800..=1899 | 5000..=5099 => Self::unreachable(text),
            _ if matches!(status.as_u16(), 502..=504) => Self::unreachable(text),
            _ if matches!(Self::of_status(status, what), Self::Unauthorized { .. }) => Self::Unauthorized { text },
            _ => Self::Refused {
                status: status.as_u16(),
                number,
                text,
            },
        }
    }
}
