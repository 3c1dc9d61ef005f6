//! Entries of Secrets.

use k8s_openapi::{ByteString, api::core::v1::Secret};

/// The bytes of an entry, if there are any.
pub(crate) fn entry<'a>(secret: Option<&'a Secret>, key: &str) -> Option<&'a [u8]> {
    let ByteString(bytes) = secret?.data.as_ref()?.get(key)?;
    (!bytes.is_empty()).then_some(bytes.as_slice())
}
