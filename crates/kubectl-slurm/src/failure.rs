//! How a command can end other than well, and the exit code that says so to scripts.

use std::io;

use thiserror::Error;

/// Each is a sentence for a person, with the remedy.
#[derive(Debug, Error)]
pub(crate) enum Failure {
    /// It was refused, or something failed on the way.
    #[error("{0}")]
    Refused(String),
    /// The command line asks for something that cannot be.
    #[error("{0}")]
    Usage(String),
    /// What it is about does not exist.
    #[error("{0}")]
    NotFound(String),
    /// It was asked for and has not come about in the time given. It may yet.
    #[error("{0}")]
    TimedOut(String),
    /// Nobody reads our output any more (`| head`), which is no failure of ours.
    #[error("the output was closed")]
    Closed,
    /// There is something to report that scripts should see, and it was printed already.
    #[error("differences were found")]
    Different,
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
            Self::Refused(_) | Self::Different => 1,
            Self::Usage(_) => 2,
            Self::NotFound(_) => 3,
            Self::TimedOut(_) => 4,
        }
    }

    /// Whether a person has to be told.
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
            error => Self::Refused(format!("the API server did not answer: {}", with_causes(&error))),
        }
    }
}

/// An error with what caused it, as one line.
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
    fn scripts_can_tell_the_ends_apart() {
        let codes: Vec<u8> = [
            Failure::Closed,
            Failure::refused("x"),
            Failure::usage("x"),
            Failure::not_found("x"),
            Failure::TimedOut("x".into()),
        ]
        .iter()
        .map(Failure::exit_code)
        .collect();
        assert_eq!(codes, [0, 1, 2, 3, 4]);
    }

    #[test]
    fn a_closed_pipe_is_no_failure() {
        let closed = Failure::from(io::Error::from(io::ErrorKind::BrokenPipe));
        assert!(closed.is_silent() && closed.exit_code() == 0);
        assert_eq!(Failure::from(io::Error::other("disk")).exit_code(), 1);
    }
}
