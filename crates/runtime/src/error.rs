//! Errors of reconciles and of requests to the API server.

use std::time::Duration;

use crate::Key;

/// A failed reconcile, or a failed request in it. It is retried with back-off.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The API server rejected the request, or could not be reached.
    #[error("cannot {verb} {kind} {key}: {}", describe(source))]
    Api {
        verb: &'static str,
        kind: String,
        key: Key,
        #[source]
        source: Box<kube::Error>,
    },

    /// The object changed since it was read. The next reconcile sees the change.
    #[error("cannot {verb} {kind} {key}: it has changed in the meantime")]
    Conflict { verb: &'static str, kind: String, key: Key },

    /// The object exists, and the field is immutable.
    #[error("cannot change {kind} {key} in place: {message}")]
    Immutable { kind: String, key: Key, message: String },

    /// An object of that name exists and is not ours. `owner` describes its owner as a predicate: "has no owner".
    #[error(
        "{kind} {key} already exists and {owner}; it is left unchanged. Delete it if it is not needed, or give this object \
         another name"
    )]
    Taken { kind: String, key: Key, owner: String },

    /// The object is a child of an earlier object of the same name, which was deleted.
    #[error("waiting for {kind} {key} to be deleted by the garbage collector: it belongs to an earlier {owner}")]
    Leftover { kind: String, key: Key, owner: String },

    /// The API server rejects the object.
    #[error("the API server rejects {kind} {key}: {message}")]
    Refused { kind: String, key: Key, message: String },

    /// The API server did not respond in time.
    #[error("cannot {verb} {kind} {key}: no response within {after:?}")]
    Silent {
        verb: &'static str,
        kind: String,
        key: Key,
        after: Duration,
    },

    /// The reconcile took too long and was aborted.
    #[error("not finished within {0:?}")]
    Deadline(Duration),

    /// A bug in this operator.
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

    /// The error's label in metrics.
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

/// The API server's own message; kube's text repeats it as a structure.
pub(crate) fn describe(error: &kube::Error) -> String {
    match error {
        kube::Error::Api(status) => format!("{} ({})", status.message, status.code),
        error => error.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_message_of_the_api_server_is_kept() {
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
