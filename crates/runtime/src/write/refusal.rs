//! Classifies the errors of the API server. Pure.

use crate::{Error, Key};

/// The API server's messages when a field is immutable.
const IMMUTABLE: [&str; 6] = [
    "field is immutable",
    "is immutable after creation",
    "updates to statefulset spec for fields other than",
    "may not change once set",
    "primary clusterIP can not be unset",
    "may not be changed",
];

pub(super) fn read(verb: &'static str, kind: &str, key: &Key, error: kube::Error) -> Error {
    let (kind, key) = (kind.to_owned(), key.clone());
    let kube::Error::Api(status) = &error else {
        return Error::Api {
            verb,
            kind,
            key,
            source: Box::new(error),
        };
    };
    match status.code {
        // The patch has the UID of an object that was replaced: the API server reports that a UID cannot change.
        422 if status.message.contains("metadata.uid:") => Error::Conflict { verb, kind, key },
        409 if status.reason != "AlreadyExists" => Error::Conflict { verb, kind, key },
        422 if IMMUTABLE.iter().any(|words| status.message.contains(words)) => Error::Immutable {
            kind,
            key,
            message: status.message.clone(),
        },
        400 | 422 => Error::Refused {
            kind,
            key,
            message: status.message.clone(),
        },
        _ => Error::Api {
            verb,
            kind,
            key,
            source: Box::new(error),
        },
    }
}

/// The error of a JSON patch that begins with a test of the resourceVersion: the API server reports a failed test as
/// invalid.
pub(super) fn of_a_test(error: Error) -> Error {
    match error {
        Error::Refused { kind, key, .. } => Error::Conflict {
            verb: "patch",
            kind,
            key,
        },
        error => error,
    }
}

pub(super) fn already_exists(error: &Error) -> bool {
    matches!(error, Error::Api { source, .. } if matches!(source.as_ref(), kube::Error::Api(status) if status.code == 409))
}

pub(super) fn not_found(error: &Error) -> bool {
    matches!(error, Error::Api { source, .. } if matches!(source.as_ref(), kube::Error::Api(status) if status.code == 404))
}
