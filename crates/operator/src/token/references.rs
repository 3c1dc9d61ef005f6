//! Which Tokens a change affects.

use api::Token;
use k8s_openapi::api::core::v1::Secret;

use crate::references::References;

pub(super) fn references() -> References<Token> {
    References::<Token>::new().names::<Secret>(|token, _| {
        let key = token.spec.effective_jwt_key_ref().map(|key| key.name.clone());
        key.into_iter().chain([token.secret_name()]).collect()
    })
}
