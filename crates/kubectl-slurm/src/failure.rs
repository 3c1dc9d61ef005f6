//! The failures of a command, and their exit codes.

use std::io;

use slurm::hostlist::HostlistError;
use thiserror::Error;

/// Each message is a sentence with the remedy.
#[derive(Debug, Error)]
pub(crate) enum Failure {
    /// It was refused, or it failed.
    #[error("{0}")]
    Refused(String),
    /// The operator or slurmctld rejected a change, which has to be undone.
    #[error("{0}")]
    Rejected(String),
    /// The command line is invalid.
    #[error("{0}")]
    Usage(String),
    /// The object does not exist.
    #[error("{0}")]
    NotFound(String),
    /// The change is not live within the timeout. It may still become live.
    #[error("{0}")]
    TimedOut(String),
    /// The reader closed the pipe (`| head`), which is no failure.
    #[error("the output was closed")]
    Closed,
    /// Differences were found and printed.
    #[error("differences were found")]
    Different,
    #[error(transparent)]
    Hostlist(#[from] HostlistError),
    /// The command line does not fit the kind of the object.
    #[error(transparent)]
    InvalidObject(#[from] serde_json::Error),
}

pub(crate) type Outcome<T = ()> = Result<T, Failure>;

impl Failure {
    pub(crate) fn refused(message: impl Into<String>) -> Self {
        Self::Refused(message.into())
    }

    pub(crate) fn usage(message: impl Into<String>) -> Self {
        Self::Usage(message.into())
    }

    pub(crate) fn not_found(message: impl Into<String>) -> Self {
        Self::NotFound(message.into())
    }

    /// docs/kubectl-slurm.md lists these.
    pub(crate) fn exit_code(&self) -> u8 {
        match self {
            Self::Closed => 0,
            Self::Refused(_) | Self::Rejected(_) | Self::Different | Self::Hostlist(_) => 1,
            Self::Usage(_) | Self::InvalidObject(_) => 2,
            Self::NotFound(_) => 3,
            Self::TimedOut(_) => 4,
        }
    }

    /// Whether no message is printed.
    pub(crate) fn is_silent(&self) -> bool {
        matches!(self, Self::Closed | Self::Different)
    }
}

impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Self {
        if error.kind() == io::ErrorKind::BrokenPipe {
            Self::Closed
        } else {
            Self::Refused(format!("cannot write the output: {error}"))
        }
    }
}

impl From<kube::Error> for Failure {
    fn from(error: kube::Error) -> Self {
        match error {
            kube::Error::Api(status) if status.code == 404 => Self::NotFound(status.message),
            kube::Error::Api(status) if status.code == 403 => Self::Refused(format!(
                "{}; ask for the rights in docs/kubectl-slurm.md",
                status.message
            )),
            kube::Error::Api(status) => Self::Refused(status.message.clone()),
            error => Self::Refused(format!("the API server did not respond: {}", with_causes(&error))),
        }
    }
}

/// Returns an error with its causes, as one line.
pub(crate) fn with_causes(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        let said = error.to_string();
        if !text.contains(&said) {
            text.push_str(": ");
            text.push_str(&said);
        }
        cause = error.source();
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_failure_has_its_exit_code() {
        let codes: Vec<u8> = [
            Failure::Closed,
            Failure::refused("x"),
            Failure::Rejected("x".into()),
            Failure::usage("x"),
            Failure::not_found("x"),
            Failure::TimedOut("x".into()),
        ]
        .iter()
        .map(Failure::exit_code)
        .collect();
        assert_eq!(codes, [0, 1, 1, 2, 3, 4]);
    }

    #[test]
    fn a_closed_pipe_is_no_failure() {
        let closed = Failure::from(io::Error::from(io::ErrorKind::BrokenPipe));
        assert!(closed.is_silent() && closed.exit_code() == 0);
        assert_eq!(Failure::from(io::Error::other("disk")).exit_code(), 1);
    }
}
