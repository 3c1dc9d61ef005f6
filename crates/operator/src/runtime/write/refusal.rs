//! What the API server means by a refusal (pure).

use crate::runtime::{Error, Key};

/// What the API server says, word for word, when a field cannot change.
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
        // A patch with the UID of another object than the one of this name now: the API server says a UID cannot change.
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

/// Of a JSON patch that begins with a test of the resourceVersion: the API server calls a failed test invalid.
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
