//! What there is: the Token, the key that signs it and the Secret it is kept in. Reads only.

use std::sync::Arc;

use api::Token;
use k8s_openapi::api::core::v1::Secret;
use kube::ResourceExt as _;

use crate::runtime::Caches;

/// Everything a plan is made from.
#[derive(Clone, Debug)]
pub(super) struct Observed {
    pub(super) token: Arc<Token>,
    /// The Secret with the key.
    pub(super) key: Option<Arc<Secret>>,
    /// The Secret the token is kept in.
    pub(super) secret: Option<Arc<Secret>>,
    /// Definitions that are older than this operator.
    pub(super) outdated: Vec<String>,
}

/// Reads from the caches what concerns this Token.
pub(super) fn observe(token: Arc<Token>, caches: &Caches, outdated: Vec<String>) -> Observed {
    let namespace = token.namespace().unwrap_or_default();
    let key = token.spec.effective_jwt_key_ref();
    Observed {
        key: key.and_then(|key| caches.secrets.get(&namespace, &key.name)),
        secret: caches.secrets.get(&namespace, &token.secret_name()),
        token,
        outdated,
    }
}
