//! Keys that no user brought along.

use std::collections::BTreeMap;

use k8s_openapi::{ByteString, api::core::v1::Secret};

use super::Parent;

/// As long as the charts', and longer than any hash needs.
pub(in crate::controller) const KEY_LENGTH: usize = 1024;

/// A key to make, once. It is never overwritten: every daemon of the cluster has it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::controller) struct NewKey {
    pub(in crate::controller) secret: String,
    pub(in crate::controller) entry: String,
}

/// The Secret of a new key with these bytes.
pub(in crate::controller) fn build_key(parent: &Parent, key: &NewKey, bytes: Vec<u8>) -> Secret {
    Secret {
        metadata: parent
            .marks()
            .into_meta(&parent.namespace, key.secret.clone(), parent.owner()),
        immutable: Some(true),
        type_: Some("Opaque".to_owned()),
        data: Some(BTreeMap::from([(key.entry.clone(), ByteString(bytes))])),
        ..Secret::default()
    }
}
