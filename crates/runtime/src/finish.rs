//! The failed steps, the warnings and the end of a reconcile, the same for all kinds.

use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use serde::Serialize;

use crate::{Context, Error, Outcome, State, TAKEN_RETRY, Writer, Written};

/// Reason: an object of another owner has the name of a child.
pub const NAME_TAKEN: &str = "NameTaken";
/// Reason: the API server rejects a child.
pub const CHILD_REFUSED: &str = "ChildRefused";
/// Reason: a step failed and is retried.
pub const RETRYING: &str = "Retrying";

/// How often an object that is changing is reconciled although nothing changed in Kubernetes.
const PROGRESS_INTERVAL: Duration = Duration::from_secs(30);

/// Helm creates an object and what it refers to within a second or two, in any order; the operator then creates Secrets and
/// files that others of its objects wait for.
const GRACE: Duration = Duration::from_secs(10);

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

/// A problem of an object, for its owner.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Warning<'a> {
    pub reason: &'static str,
    pub message: &'a str,
    /// The problem may go away by itself: something is missing that may be created soon.
    pub may_pass: bool,
}

impl Context {
    /// Reports problems as events. A problem that may pass is not reported while the object is new; then returns when it
    /// has to be.
    pub fn warn<'a, K: Written>(
        &self,
        object: &K,
        warnings: impl IntoIterator<Item = Warning<'a>>,
    ) -> Option<Duration> {
        let grace = grace(object.meta(), self.clock.now());
        let mut check_again = None;
        for warning in warnings {
            if warning.may_pass && grace.is_some() {
                check_again = grace;
            } else {
                self.events.warn(object, warning.reason, warning.message.to_owned());
            }
        }
        check_again
    }
}

/// How long the object still counts as new. A clock that differs from the API server's shortens or lengthens this, but at
/// most to [`GRACE`].
fn grace(meta: &ObjectMeta, now: Timestamp) -> Option<Duration> {
    let made = meta.creation_timestamp.as_ref()?.0;
    let age = Duration::try_from(now.duration_since(made)).unwrap_or_default();
    GRACE.checked_sub(age).filter(|left| !left.is_zero())
}

impl Writer {
    /// Writes the status, also after a failure, and returns the outcome.
    pub async fn finish<K: Written>(
        &self,
        object: &K,
        status: impl Serialize,
        applied: Applied,
        state: State,
    ) -> Result<Outcome, Error> {
        if object.meta().deletion_timestamp.is_none() {
            let status = serde_json::to_value(status).map_err(Error::other)?;
            self.status(object, status).await?;
        }
        let taken = applied.failure().filter(Failure::is_name_taken);
        applied.into_result()?;
        Ok(match (taken, &state) {
            (Some(taken), _) => Outcome::from(State::Blocked { on: taken.message }).requeue(TAKEN_RETRY),
            (None, State::Progressing { .. }) => Outcome::from(state).requeue(PROGRESS_INTERVAL),
            (None, _) => state.into(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_object_is_new_for_some_seconds() {
        let meta = |made: Option<&str>| -> ObjectMeta {
            serde_json::from_value(serde_json::json!({ "creationTimestamp": made })).unwrap()
        };
        let now: Timestamp = "2026-01-01T00:01:00Z".parse().unwrap();
        for (made, left) in [
            (Some("2026-01-01T00:01:00Z"), Some(10)),
            (Some("2026-01-01T00:00:57Z"), Some(7)),
            (Some("2026-01-01T00:00:50Z"), None),
            (Some("2025-01-01T00:00:00Z"), None),
            (Some("2026-01-01T00:05:00Z"), Some(10)),
            (None, None),
        ] {
            assert_eq!(grace(&meta(made), now), left.map(Duration::from_secs), "{made:?}");
        }
    }
}
