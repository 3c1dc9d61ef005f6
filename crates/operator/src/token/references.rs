//! Which Tokens a change affects.

use std::sync::LazyLock;

use api::Token;
use k8s_openapi::api::core::v1::Secret;

use crate::{
    references::References,
    runtime::{Caches, Change, Key},
};

static REFERENCES: LazyLock<References<Token>> = LazyLock::new(|| {
    References::<Token>::new().names::<Secret>(|token, _| {
        let key = token.spec.effective_jwt_key_ref().map(|key| key.name.clone());
        key.into_iter().chain([token.secret_name()]).collect()
    })
});

pub(super) fn interested(change: &Change, caches: &Caches) -> Vec<Key> {
    REFERENCES.affected(change, caches)
}
