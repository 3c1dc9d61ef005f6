//! What became of a plan: the steps that failed, for the status and for the queue.

use super::Error;

/// The name of a child is another object's.
pub const NAME_TAKEN: &str = "NameTaken";
/// The API server refuses a child.
const CHILD_REFUSED: &str = "ChildRefused";
/// A step failed and is tried again.
const RETRYING: &str = "Retrying";

/// What failed while a plan was carried out, as a status tells it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    /// As it stands in the condition.
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

    /// Whether it stays until a person changes something.
    pub fn needs_a_person(&self) -> bool {
        self.reason != RETRYING
    }
}

/// A step that fails keeps the later ones from nothing they do not depend on, so failures are gathered.
#[derive(Debug, Default)]
pub struct Applied {
    failures: Vec<Error>,
}

impl Applied {
    /// Notes how a step went; true if it went well.
    pub fn note<T>(&mut self, result: Result<T, Error>) -> bool {
        match result {
            Ok(_) => true,
            Err(error) => {
                self.failures.push(error);
                false
            }
        }
    }

    /// For the status: all names that are taken, or else the first failure.
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

    /// The first failure that is to be tried again with backoff. A taken name is none: it has its own time.
    pub fn into_result(self) -> Result<(), Error> {
        let mut failures = self.failures.into_iter();
        let failure = failures.find(|error| !matches!(error, Error::Taken { .. }));
        failure.map_or(Ok(()), Err)
    }
}
