use hyper::StatusCode;
use thiserror::Error;

use crate::answer::{Complaint, DecodeError};
use crate::transport;

#[derive(Debug, Error)]
pub enum Error {
    /// slurmrestd did not respond, or slurmrestd could not reach slurmctld.
    #[error("Slurm {0}")]
    Transport(#[from] transport::Error),
    /// The token was not accepted: another key, or clocks apart.
    #[error("Slurm does not accept our token: {text}")]
    Unauthorized { text: String },
    #[error("Slurm has no {what}")]
    NotFound { what: String },
    /// Slurm understood and said no.
    #[error("Slurm refused: {text} (error {number}, HTTP {status})")]
    Refused { status: u16, number: i64, text: String },
    /// Nothing was sent.
    #[error("cannot encode {what}: {source}")]
    Encode {
        what: &'static str,
        source: serde_json::Error,
    },
    /// This slurmrestd is too old for it. Nothing was sent.
    #[error("slurmrestd cannot {what} before v0.0.45")]
    Lacking { what: &'static str },
    /// slurmrestd reads what stands in a path as a boolean or a number if it looks like one, and would look for another name.
    /// Nothing was sent.
    #[error("slurmrestd cannot be asked for {name:?}, which it takes for something else than a name")]
    Misread { name: String },
    #[error("slurmrestd speaks none of the versions v0.0.45 and v0.0.44; Slurm 25.11 or newer is needed")]
    Unsupported,
}

/// `SLURM_PROTOCOL_AUTHENTICATION_ERROR`.
const AUTHENTICATION: i64 = 1007;
/// `ESLURM_INVALID_JOB_ID`.
const INVALID_JOB_ID: i64 = 2017;
/// `ESLURM_INVALID_NODE_NAME`.
const INVALID_NODE_NAME: i64 = 2018;
/// `ESLURM_RESERVATION_INVALID`: it does not exist.
const RESERVATION_INVALID: i64 = 2053;

impl Error {
    /// Whether the cluster itself decided. Otherwise a write may or may not have taken effect, and has to be looked up.
    pub fn is_definite(&self) -> bool {
        match self {
            Self::Unauthorized { .. }
            | Self::NotFound { .. }
            | Self::Encode { .. }
            | Self::Lacking { .. }
            | Self::Misread { .. }
            | Self::Unsupported => true,
            // "500, Unspecified error" is as likely a failure halfway as a refusal.
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

    /// What an answer that is no success means.
    pub(super) fn of_status(status: StatusCode, what: &str) -> Self {
        let text = status.to_string();
        match status {
            StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN | StatusCode::NETWORK_AUTHENTICATION_REQUIRED => {
                Self::Unauthorized { text }
            }
            // slurmrestd has no such path, which says nothing about the thing the path was for.
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
            // A page of some proxy, or nothing at all: the status says what there is to say.
            DecodeError::Json(_) | DecodeError::Missing(_) if !status.is_success() => Self::of_status(status, what),
            DecodeError::Json(source) => Self::Transport(transport::Error::invalid(source)),
            DecodeError::Missing(_) => Self::Transport(transport::Error::invalid(error)),
        }
    }

    /// What Slurm said about one job of a command; it answers HTTP 200 whatever that is.
    pub(super) fn of_verdict(what: &str, number: i64, text: &str) -> Self {
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
        // The first one is the cause; those after it tell where it was noticed.
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
            // No connection, or one that broke: any (1001-1006), to slurmctld (1800-1899), the socket itself (5000-5099).
            // 502 to 504 are slurmrestd's own words for the same.
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
