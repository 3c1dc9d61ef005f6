//! What became of a plan: the steps that failed, for the status and for the queue.

use super::Error;

/// What failed while a plan was carried out, as a status tells it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    pub message: String,
    /// Trying again without another spec is of no use.
    pub refused: bool,
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

    /// For the status.
    pub fn failure(&self) -> Option<Failure> {
        let error = self.failures.first()?;
        Some(Failure {
            message: error.to_string(),
            refused: matches!(
                error,
                Error::Immutable { .. } | Error::Taken { .. } | Error::Refused { .. }
            ),
        })
    }

    /// The first failure, to be tried again.
    pub fn into_result(self) -> Result<(), Error> {
        self.failures.into_iter().next().map_or(Ok(()), Err)
    }
}
