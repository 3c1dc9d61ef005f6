//! Entries of Secrets, and the findings of missing references.

use api::references::SecretKeyRef;
use k8s_openapi::{ByteString, api::core::v1::Secret};

use crate::{
    finding::Finding,
    kinds::Caches,
    reason::{CONTROLLER_MISSING, CONTROLLER_UNREADABLE, SECRET_MISSING},
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

/// Why the Controller of this name exists and cannot be used, as a predicate.
pub(crate) fn unreadable_controller(caches: &Caches, namespace: &str, name: &str) -> Option<String> {
    let error = caches.controllers.undecodable(namespace, name)?;
    Some(format!(
        "cannot be decoded by this version of the operator: {error}; correct it with kubectl edit, or run the version that knows it"
    ))
}

/// The finding of an object whose Controller is not known: it is missing, or `unreadable` says why it cannot be used.
pub(crate) fn missing_controller(name: &str, unreadable: Option<&str>) -> Finding {
    if let Some(why) = unreadable {
        let message = format!("spec.controllerRef.name names Controller {name:?}, which {why}");
        return Finding::blocking(CONTROLLER_UNREADABLE, message);
    }
    Finding::blocking(
        CONTROLLER_MISSING,
        format!("spec.controllerRef.name names Controller {name:?}, which does not exist; create it, or name another"),
    )
}
