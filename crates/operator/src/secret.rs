//! Entries of Secrets, and the faults of missing references.

use api::references::SecretKeyRef;
use k8s_openapi::{ByteString, api::core::v1::Secret};

use crate::{
    fault::Fault,
    reason::{CONTROLLER_MISSING, SECRET_MISSING},
};

/// The bytes of an entry, if there are any.
pub(crate) fn entry<'a>(secret: Option<&'a Secret>, key: &str) -> Option<&'a [u8]> {
    let ByteString(bytes) = secret?.data.as_ref()?.get(key)?;
    (!bytes.is_empty()).then_some(bytes.as_slice())
}

/// The fault of a missing entry. `names` is the subject and verb of the reference, `remedy` what the owner can do.
pub(crate) fn missing(names: &str, reference: &SecretKeyRef, secret: Option<&Secret>, remedy: &str) -> Fault {
    let what = if secret.is_some() {
        "which is absent or empty there"
    } else {
        "which does not exist"
    };
    let SecretKeyRef { key, name, .. } = reference;
    Fault::new(
        SECRET_MISSING,
        format!("{names} entry {key:?} of Secret {name:?}, {what}; {remedy}"),
    )
}

/// The fault of an object that names a missing Controller.
pub(crate) fn missing_controller(name: &str) -> Fault {
    Fault::new(
        CONTROLLER_MISSING,
        format!("spec.controllerRef.name names Controller {name:?}, which does not exist; create it, or name another"),
    )
}
