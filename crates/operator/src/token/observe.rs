//! Reads a Token, the key that signs it and the Secret that holds it.

use std::sync::Arc;

use api::Token;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Secret;
use kube::ResourceExt as _;

use crate::runtime::Caches;

/// Everything that a plan is made from.
#[derive(Clone, Debug)]
pub(crate) struct Observed {
    pub(super) token: Arc<Token>,
    /// The Secret with the key.
    pub(super) key: Option<Arc<Secret>>,
    /// The Secret that holds the token.
    pub(super) secret: Option<Arc<Secret>>,
    pub(super) now: Timestamp,
}

/// Reads what concerns this Token from the caches.
pub(super) fn observe(token: Arc<Token>, caches: &Caches, now: Timestamp) -> Observed {
    let namespace = token.namespace().unwrap_or_default();
    let key = token.spec.effective_jwt_key_ref();
    Observed {
        key: key.and_then(|key| caches.secrets.get(&namespace, &key.name)),
        secret: caches.secrets.get(&namespace, &token.secret_name()),
        token,
        now,
    }
}
