//! Token: a JSON web token for a Slurm user, stored in a Secret and renewed.

use jiff::SignedDuration;
use kube::{CustomResource, ResourceExt};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_with::skip_serializing_none;

use crate::{
    conditions::Condition,
    references::SecretKeyRef,
    time::{GoDuration, Timestamp},
    wellknown,
};

/// Default lifetime of a token: the one in upstream's code. Upstream's documentation says an hour.
pub const DEFAULT_LIFETIME: SignedDuration = SignedDuration::from_mins(15);
/// Maximum lifetime: one second below the value that Slurm takes for unlimited.
pub const MAX_LIFETIME: SignedDuration = SignedDuration::from_secs(2_147_483_646);
/// Default user of a token.
pub const DEFAULT_USERNAME: &str = "nobody";

/// A JSON web token for a Slurm user, stored in a Secret and renewed before it expires.
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
    doc = "A JSON web token for a Slurm user, stored in a Secret and renewed before it expires.",
    derive = "Default",
    derive = "PartialEq",
    category = "slurm",
    schema = "disabled",
    printcolumn = r#"{"name": "USER", "type": "string", "jsonPath": ".spec.username",
        "description": "Slurm user of the token."}"#,
    printcolumn = r#"{"name": "IAT", "type": "date", "jsonPath": ".status.issuedAt",
        "description": "Time at which the current token was issued."}"#,
    printcolumn = r#"{"name": "READY", "type": "string", "jsonPath": ".status.conditions[?(@.type==\"Ready\")].status",
        "description": "Whether the object is in the state that its spec describes."}"#,
    printcolumn = r#"{"name": "REASON", "type": "string", "jsonPath": ".status.conditions[?(@.type==\"Ready\")].reason",
        "description": "Why it is or is not: see the message of condition Ready."}"#,
    printcolumn = r#"{"name": "AGE", "type": "date", "jsonPath": ".metadata.creationTimestamp"}"#
)]
#[serde(rename_all = "camelCase")]
pub struct TokenSpec {
    /// Older name of `jwtKeyRef`, which takes precedence.
    pub jwt_hs256_key_ref: Option<SigningKeyRef>,

    /// Key that signs the token: the auth/jwt key of the cluster. Immutable.
    pub jwt_key_ref: Option<SigningKeyRef>,

    /// Slurm user of the token. If empty, `nobody`.
    pub username: String,

    /// Lifetime of the token: `90s`, `1h30m`. Defaults to 15 minutes.
    pub lifetime: Option<GoDuration>,

    /// Whether the token is renewed before it expires. Otherwise it is issued once.
    #[schemars(extend("default" = true))]
    pub refresh: Option<bool>,

    /// Secret entry to write the token to. Defaults to `SLURM_JWT` in `<name>-jwt-<username>`.
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

    /// Namespace of the Secret. Only the namespace of the Token is accepted, so it can be omitted.
    pub namespace: Option<String>,

    /// Accepted because the Kubernetes type has it. The operator needs the entry in any case.
    pub optional: Option<bool>,
}

/// Observed state of a Token.
#[skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct TokenStatus {
    /// When the current token was issued.
    pub issued_at: Option<Timestamp>,

    /// Conditions of the Token.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["type"]))]
    pub conditions: Vec<Condition>,

    /// The `metadata.generation` that this status describes.
    pub observed_generation: Option<i64>,
}

impl Token {
    /// Name of the Secret that the token is written to.
    pub fn secret_name(&self) -> String {
        match self.spec.secret_ref.as_ref() {
            Some(secret) if !secret.name.is_empty() => secret.name.clone(),
            _ => format!("{}-jwt-{}", self.name_any(), self.spec.username),
        }
    }
}

impl TokenSpec {
    /// The reference to the key of auth/jwt, from the newer or the older field.
    pub fn effective_jwt_key_ref(&self) -> Option<&SigningKeyRef> {
        self.jwt_key_ref.as_ref().or(self.jwt_hs256_key_ref.as_ref())
    }

    /// Slurm user of the token.
    pub fn username(&self) -> &str {
        if self.username.is_empty() {
            DEFAULT_USERNAME
        } else {
            &self.username
        }
    }

    /// Lifetime of the token.
    pub fn lifetime(&self) -> SignedDuration {
        let given = self.lifetime.as_ref().and_then(GoDuration::length);
        given
            .unwrap_or(DEFAULT_LIFETIME)
            .clamp(SignedDuration::ZERO, MAX_LIFETIME)
    }

    /// Whether the token is renewed before it expires.
    pub fn refreshes(&self) -> bool {
        self.refresh.unwrap_or(true)
    }

    /// Key of the Secret entry that the token is written to.
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
    fn a_token_has_a_default_secret() {
        let plain = token(serde_json::json!({ "username": "alice" }));
        assert_eq!(
            (plain.secret_name().as_str(), plain.spec.secret_key()),
            ("alice-jwt-alice", "SLURM_JWT")
        );
        let given = token(serde_json::json!({ "username": "alice", "secretRef": { "name": "mine", "key": "jwt" } }));
        assert_eq!((given.secret_name().as_str(), given.spec.secret_key()), ("mine", "jwt"));
    }

    #[test]
    fn a_lifetime_is_between_zero_and_slurms_limit() {
        for (lifetime, seconds) in [("1h", 3600), ("-1h", 0), ("1000000h", 2_147_483_646), ("a while", 900)] {
            let spec = token(serde_json::json!({ "username": "a", "lifetime": lifetime })).spec;
            assert_eq!(spec.lifetime().as_secs(), seconds, "{lifetime}");
        }
    }
}
