//! The failed steps of a plan, for the status and for the queue.

use crate::{Error, Writer, Written};

/// Reason: an object of another owner has the name of a child.
pub const NAME_TAKEN: &str = "NameTaken";
/// Reason: the API server rejects a child.
const CHILD_REFUSED: &str = "ChildRefused";
/// Reason: a step failed and is retried.
const RETRYING: &str = "Retrying";

/// A failed step, as reported in the status.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    /// The condition's reason.
    pub reason: &'static str,
    pub message: String,
}

impl Failure {
    fn of(error: &Error) -> Self {
        let reason = match error {
            Error::Immutable { .. } | Error::Refused { .. } => CHILD_REFUSED,
            _ => RETRYING,
        };
        Self {
            reason,
            message: error.to_string(),
        }
    }

    pub fn is_name_taken(&self) -> bool {
        self.reason == NAME_TAKEN
    }

    /// Whether retries cannot succeed before a person changes something.
    pub fn needs_a_person(&self) -> bool {
        self.reason != RETRYING
    }
}

/// The failures of a plan. A failed step stops only the steps that depend on it, so there may be several.
#[derive(Debug, Default)]
pub struct Applied {
    failures: Vec<Error>,
}

impl Applied {
    /// Records the result of a step and returns whether it succeeded.
    pub fn note<T>(&mut self, result: Result<T, Error>) -> bool {
        match result {
            Ok(_) => true,
            Err(error) => {
                self.failures.push(error);
                false
            }
        }
    }

    /// Applies an object, if there is one, and returns whether that succeeded.
    pub async fn apply<K: Written>(&mut self, writer: &Writer, desired: Option<&K>) -> bool {
        match desired {
            Some(desired) => self.note(writer.apply(desired).await),
            None => true,
        }
    }

    /// The failure to report: all taken names, or else the first failure.
    pub fn failure(&self) -> Option<Failure> {
        let taken = self
            .failures
            .iter()
            .filter(|error| matches!(error, Error::Taken { .. }));
        let taken: Vec<String> = taken.map(ToString::to_string).collect();
        if taken.is_empty() {
            return self.failures.first().map(Failure::of);
        }
        Some(Failure {
            reason: NAME_TAKEN,
            message: taken.join("\n"),
        })
    }

    /// The first failure to retry with back-off. A taken name has an interval of its own instead.
    pub fn into_result(self) -> Result<(), Error> {
        let mut failures = self.failures.into_iter();
        let failure = failures.find(|error| !matches!(error, Error::Taken { .. }));
        failure.map_or(Ok(()), Err)
    }
}
