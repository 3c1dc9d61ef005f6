//! What can go wrong on the way to the API server.

use std::time::Duration;

use super::Key;

/// A failed reconcile, or a failed call in it. It is tried again with backoff.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The API server refused, or could not be asked.
    #[error("cannot {verb} {kind} {key}: {}", words_of(source))]
    Api {
        verb: &'static str,
        kind: String,
        key: Key,
        #[source]
        source: Box<kube::Error>,
    },

    /// Somebody else wrote first. The next reconcile sees what they wrote.
    #[error("cannot {verb} {kind} {key}: it has changed meanwhile")]
    Conflict { verb: &'static str, kind: String, key: Key },

    /// The object exists, and the API server does not let this field change.
    #[error("cannot change {kind} {key} in place: {message}")]
    Immutable { kind: String, key: Key, message: String },

    /// An object of that name exists and is not ours. `owner` says whose it is, as a predicate: "has no owner".
    #[error(
        "{kind} {key} already exists and {owner}; it is left unchanged. Delete it if nobody needs it, or give this object \
         another name"
    )]
    Taken { kind: String, key: Key, owner: String },

    /// The object is a child of an earlier object of the same name, which was deleted.
    #[error("waiting for {kind} {key} to be deleted by the garbage collector: it belongs to an earlier {owner}")]
    Leftover { kind: String, key: Key, owner: String },

    /// The API server finds the object wrong.
    #[error("the API server refuses {kind} {key}: {message}")]
    Refused { kind: String, key: Key, message: String },

    /// The API server did not answer in time.
    #[error("cannot {verb} {kind} {key}: no answer within {after:?}")]
    Silent {
        verb: &'static str,
        kind: String,
        key: Key,
        after: Duration,
    },

    /// The reconcile took too long and was given up.
    #[error("not done within {0:?}")]
    Deadline(Duration),

    /// A defect of ours.
    #[error("panicked: {0}")]
    Panic(String),

    /// A kind's own error.
    #[error(transparent)]
    Other(#[from] Box<dyn std::error::Error + Send + Sync>),
}

impl Error {
    /// Wraps a kind's own error.
    pub fn other(error: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> Self {
        Self::Other(error.into())
    }

    /// Its word in metrics.
    pub fn label(&self) -> &'static str {
        match self {
            Self::Api { .. } => "api",
            Self::Conflict { .. } => "conflict",
            Self::Immutable { .. } => "immutable",
            Self::Taken { .. } => "taken",
            Self::Leftover { .. } => "leftover",
            Self::Refused { .. } => "refused",
            Self::Silent { .. } => "silent",
            Self::Deadline(_) => "deadline",
            Self::Panic(_) => "panic",
            Self::Other(_) => "other",
        }
    }
}

/// What the API server says, for people; kube's own text repeats it as a structure.
pub(super) fn words_of(error: &kube::Error) -> String {
    match error {
        kube::Error::Api(status) => format!("{} ({})", status.message, status.code),
        error => error.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_of_the_api_server_is_told_in_its_own_words() {
        let status = kube::core::Status {
            code: 403,
            message: "pods is forbidden: exceeded quota".to_owned(),
            ..kube::core::Status::default()
        };
        let error = Error::Api {
            verb: "create",
            kind: "Pod".to_owned(),
            key: Key::new("n", "a"),
            source: Box::new(kube::Error::Api(Box::new(status))),
        };
        assert_eq!(
            error.to_string(),
            "cannot create Pod n/a: pods is forbidden: exceeded quota (403)"
        );
    }
}
