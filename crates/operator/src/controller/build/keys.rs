//! Keys that the user did not provide.

use std::collections::BTreeMap;

use k8s_openapi::{ByteString, api::core::v1::Secret};

use super::Parent;

/// As long as the charts' keys, and longer than any hash needs.
pub(crate) const KEY_LENGTH: usize = 1024;

/// A key to generate once. It is never overwritten: every daemon of the cluster uses it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct NewKey {
    pub(crate) secret: String,
    pub(crate) entry: String,
}

/// The Secret of a new key with these bytes. It is mutable: kubelets stop watching an immutable Secret, and give its old
/// content to new pods after it was deleted and created again under the same name.
pub(crate) fn build_key(parent: &Parent, key: &NewKey, bytes: Vec<u8>) -> Secret {
    Secret {
        metadata: parent
            .marks()
            .into_meta(&parent.namespace, key.secret.clone(), parent.owner()),
        type_: Some("Opaque".to_owned()),
        data: Some(BTreeMap::from([(key.entry.clone(), ByteString(bytes))])),
        ..Secret::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_secret_of_a_key_is_mutable_so_that_kubelets_watch_it() {
        let controller = api::Controller::new("slurm", api::ControllerSpec::default());
        let key = NewKey {
            secret: "keys".to_owned(),
            entry: "slurm.key".to_owned(),
        };
        let secret = build_key(&Parent::new(&controller), &key, vec![1; KEY_LENGTH]);
        assert_eq!(secret.immutable, None);
        assert_eq!(secret.data.unwrap()["slurm.key"].0.len(), KEY_LENGTH);
    }
}
