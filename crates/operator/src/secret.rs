//! Entries of Secrets, and the findings of missing references.

use api::references::SecretKeyRef;
use k8s_openapi::{ByteString, api::core::v1::Secret};

use crate::{
    finding::Finding,
    reason::{CONTROLLER_MISSING, SECRET_MISSING},
};

/// The bytes of an entry, if there are any.
pub(crate) fn entry<'a>(secret: Option<&'a Secret>, key: &str) -> Option<&'a [u8]> {
    let ByteString(bytes) = secret?.data.as_ref()?.get(key)?;
    (!bytes.is_empty()).then_some(bytes.as_slice())
}

/// The finding of a missing entry. `names` is the subject and verb of the reference, `remedy` what the owner can do.
pub(crate) fn missing(names: &str, reference: &SecretKeyRef, secret: Option<&Secret>, remedy: &str) -> Finding {
    let what = if secret.is_some() {
        "which is absent or empty there"
    } else {
        "which does not exist"
    };
    let SecretKeyRef { key, name, .. } = reference;
    Finding::blocking(
        SECRET_MISSING,
        format!("{names} entry {key:?} of Secret {name:?}, {what}; {remedy}"),
    )
}

/// The finding of an object that names a missing Controller.
pub(crate) fn missing_controller(name: &str) -> Finding {
    Finding::blocking(
        CONTROLLER_MISSING,
        format!("spec.controllerRef.name names Controller {name:?}, which does not exist; create it, or name another"),
    )
}
