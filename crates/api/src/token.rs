//! Token: a JSON web token for a Slurm user, kept fresh in a Secret.

use jiff::SignedDuration;
use kube::{CustomResource, ResourceExt};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_with::skip_serializing_none;

use crate::{
    conditions::Condition,
    names::TokenName,
    references::SecretKeyRef,
    time::{GoDuration, Timestamp},
    wellknown,
};

/// How long a token is good for when it does not say. Upstream's notes speak of an hour, its code of this.
pub const DEFAULT_LIFETIME: SignedDuration = SignedDuration::from_mins(15);
/// The longest lifetime: one second below what Slurm reads as "for ever".
pub const MAX_LIFETIME: SignedDuration = SignedDuration::from_secs(2_147_483_646);
/// The user a token speaks for when it names none.
pub const DEFAULT_USERNAME: &str = "nobody";

/// A JSON web token for a Slurm user, kept in a Secret and renewed before it ends.
#[skip_serializing_none]
#[derive(CustomResource, Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[kube(
    group = "slinky.slurm.net",
    version = "v1beta1",
    kind = "Token",
    plural = "tokens",
    singular = "token",
    shortname = "tokens",
    shortname = "jwt",
    namespaced,
    status = "TokenStatus",
    doc = "A JSON web token for a Slurm user, kept in a Secret and renewed before it ends.",
    derive = "Default",
    derive = "PartialEq",
    schema = "disabled",
    printcolumn = r#"{"name": "USER", "type": "string", "jsonPath": ".spec.username",
        "description": "The Slurm user the token speaks for."}"#,
    printcolumn = r#"{"name": "IAT", "type": "date", "jsonPath": ".status.issuedAt",
        "description": "When the current token was issued."}"#,
    printcolumn = r#"{"name": "AGE", "type": "date", "jsonPath": ".metadata.creationTimestamp"}"#
)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("x-kubernetes-validations" = [{
    "rule": "has(self.jwtKeyRef) || has(self.jwtHs256KeyRef)",
    "message": "jwtKeyRef is needed: it names the key that signs the token",
}]))]
pub struct TokenSpec {
    /// Older name of `jwtKeyRef`, which wins over it.
    pub jwt_hs256_key_ref: Option<SigningKeyRef>,

    /// Key that signs the token: the one of the cluster it is for. It cannot be changed.
    pub jwt_key_ref: Option<SigningKeyRef>,

    /// The Slurm user the token speaks for. Empty: `nobody`.
    pub username: String,

    /// How long a token is good for: `90s`, `1h30m`. Absent: 15 minutes.
    pub lifetime: Option<GoDuration>,

    /// Renew the token before it ends. Otherwise it is made once.
    #[schemars(extend("default" = true))]
    pub refresh: Option<bool>,

    /// Secret entry to put the token in. Absent: `SLURM_JWT` in `<name>-jwt-<username>`.
    pub secret_ref: Option<SecretKeyRef>,
}

/// The Secret entry that holds a signing key.
#[skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[schemars(extend("x-kubernetes-map-type" = "atomic"))]
pub struct SigningKeyRef {
    /// Name of the Secret.
    #[serde(default)]
    pub name: String,

    /// Key of the entry in the Secret's data.
    pub key: String,

    /// Namespace of the Secret. Only the Token's own namespace is accepted, so it can be left out.
    pub namespace: Option<String>,

    /// Accepted because Kubernetes' own type has it; the operator needs the entry all the same.
    pub optional: Option<bool>,
}

/// What is known about a Token.
#[skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct TokenStatus {
    /// When the current token was issued.
    pub issued_at: Option<Timestamp>,

    /// What holds for this Token.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["type"]))]
    pub conditions: Vec<Condition>,

    /// The `metadata.generation` this status is about.
    pub observed_generation: Option<i64>,
}

impl Token {
    /// Name of the Secret the token is put in.
    pub fn secret_name(&self) -> String {
        match self.spec.secret_ref.as_ref() {
            Some(secret) if !secret.name.is_empty() => secret.name.clone(),
            _ => TokenName::new(self.name_any()).secret(&self.spec.username),
        }
    }
}

impl TokenSpec {
    /// The reference to the key of auth/jwt, under whichever name it was given.
    pub fn effective_jwt_key_ref(&self) -> Option<&SigningKeyRef> {
        self.jwt_key_ref.as_ref().or(self.jwt_hs256_key_ref.as_ref())
    }

    /// The user the token speaks for.
    pub fn username(&self) -> &str {
        if self.username.is_empty() {
            DEFAULT_USERNAME
        } else {
            &self.username
        }
    }

    /// How long a token is good for.
    pub fn lifetime(&self) -> SignedDuration {
        let given = self.lifetime.as_ref().and_then(GoDuration::length);
        given
            .unwrap_or(DEFAULT_LIFETIME)
            .clamp(SignedDuration::ZERO, MAX_LIFETIME)
    }

    /// Whether the token is renewed before it ends.
    pub fn refreshes(&self) -> bool {
        self.refresh.unwrap_or(true)
    }

    /// Key of the Secret entry the token is put in.
    pub fn secret_key(&self) -> &str {
        let given = self.secret_ref.as_ref().map(|secret| secret.key.as_str());
        given
            .filter(|key| !key.is_empty())
            .unwrap_or(wellknown::TOKEN_SECRET_KEY)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn token(spec: serde_json::Value) -> Token {
        Token::new("alice", serde_json::from_value(spec).unwrap())
    }

    #[test]
    fn a_token_goes_to_the_secret_named_after_it_unless_it_says() {
        let plain = token(serde_json::json!({ "username": "alice" }));
        assert_eq!(
            (plain.secret_name().as_str(), plain.spec.secret_key()),
            ("alice-jwt-alice", "SLURM_JWT")
        );
        let given = token(serde_json::json!({ "username": "alice", "secretRef": { "name": "mine", "key": "jwt" } }));
        assert_eq!((given.secret_name().as_str(), given.spec.secret_key()), ("mine", "jwt"));
    }

    #[test]
    fn a_lifetime_stays_between_nothing_and_slurms_limit() {
        for (lifetime, seconds) in [("1h", 3600), ("-1h", 0), ("1000000h", 2_147_483_646), ("a while", 900)] {
            let spec = token(serde_json::json!({ "username": "a", "lifetime": lifetime })).spec;
            assert_eq!(spec.lifetime().as_secs(), seconds, "{lifetime}");
        }
    }
}
