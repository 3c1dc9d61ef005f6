//! Errors of reconciles and of requests to the API server.

use std::time::Duration;

/// The API server's messages when a field is immutable.
const IMMUTABLE: [&str; 6] = [
    "field is immutable",
    "is immutable after creation",
    "updates to statefulset spec for fields other than",
    "may not change once set",
    "primary clusterIP can not be unset",
    "may not be changed",
];

/// A failed reconcile, or a failed request in it. It is retried with back-off. `object` is the kind and the key.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The API server rejected the request, or could not be reached.
    #[error("cannot {verb} {object}: {}", describe(source))]
    Api {
        verb: &'static str,
        object: String,
        #[source]
        source: Box<kube::Error>,
    },

    /// The object changed since it was read. The next reconcile sees the change.
    #[error("cannot {verb} {object}: it has changed in the meantime")]
    Conflict { verb: &'static str, object: String },

    /// The object exists, and the field is immutable.
    #[error("cannot change {object} in place: {message}")]
    Immutable { object: String, message: String },

    /// An object of that name exists and is not ours. `owner` describes its owner as a predicate: "has no owner".
    #[error(
        "{object} already exists and {owner}; it is left unchanged. Delete it if it is not needed, or give this object \
         another name"
    )]
    Taken { object: String, owner: String },

    /// The object is a child of an earlier object of the same name, which was deleted.
    #[error("waiting for {object} to be deleted by the garbage collector: it belongs to an earlier {owner}")]
    Leftover { object: String, owner: String },

    /// The API server rejects the object.
    #[error("the API server rejects {object}: {message}")]
    Refused { object: String, message: String },

    /// The API server did not respond in time.
    #[error("cannot {verb} {object}: no response within {after:?}")]
    Silent {
        verb: &'static str,
        object: String,
        after: Duration,
    },

    /// This process does not hold the lease, or could not renew it in time.
    #[error("cannot {verb} {object}: this process no longer leads")]
    NotLeading { verb: &'static str, object: String },

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

    /// Classifies an error of the API server.
    pub(crate) fn of_request(verb: &'static str, object: String, error: kube::Error) -> Self {
        let (code, message) = match &error {
            kube::Error::Api(status) if status.reason != "AlreadyExists" => (status.code, status.message.clone()),
            _ => (0, String::new()),
        };
        match code {
            409 => Self::Conflict { verb, object },
            // The patch has the UID of an object that was replaced: the API server reports that a UID cannot change.
            422 if message.contains("metadata.uid:") => Self::Conflict { verb, object },
            422 if IMMUTABLE.iter().any(|words| message.contains(words)) => Self::Immutable { object, message },
            400 | 422 => Self::Refused { object, message },
            _ => Self::Api {
                verb,
                object,
                source: Box::new(error),
            },
        }
    }

    /// Whether the API server returned this code, and the error is none of those that have a variant of their own.
    pub(crate) fn has_code(&self, code: u16) -> bool {
        matches!(self, Self::Api { source, .. } if matches!(source.as_ref(), kube::Error::Api(status) if status.code == code))
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
            Self::NotLeading { .. } => "not-leading",
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
            object: "Pod n/a".to_owned(),
            source: Box::new(kube::Error::Api(Box::new(status))),
        };
        assert_eq!(
            error.to_string(),
            "cannot create Pod n/a: pods is forbidden: exceeded quota (403)"
        );
    }
}
