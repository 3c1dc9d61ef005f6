//! Checks of a Token.

use jiff::SignedDuration;
use serde_json::{Value, json};

use super::{
    Problems, Reason, Validate,
    fields::{check_entry, check_jwt_names, check_namespace},
    names::is_subdomain,
};
use crate::{
    time::GoDuration,
    token::{DEFAULT_USERNAME, SigningKeyRef, Token, TokenSpec},
};

impl Validate for Token {
    fn find_problems(&self, problems: &mut Problems) {
        // Without `..`, so that a new field does not compile until its checks are decided.
        let TokenSpec {
            jwt_hs256_key_ref,
            jwt_key_ref,
            username,
            lifetime,
            refresh: _,
            secret_ref: _,
        } = &self.spec;
        let own = self.metadata.namespace.as_deref();

        for (field, reference) in [
            ("spec.jwtKeyRef", jwt_key_ref),
            ("spec.jwtHs256KeyRef", jwt_hs256_key_ref),
        ] {
            if let Some(SigningKeyRef {
                name,
                key,
                namespace,
                optional: _,
            }) = reference
            {
                check_entry(problems, field, "Secret", name, key);
                check_namespace(problems, &format!("{field}.namespace"), namespace.as_deref(), own);
            }
        }
        check_jwt_names(problems, jwt_key_ref.as_ref(), jwt_hs256_key_ref.as_ref());
        if self.spec.effective_jwt_key_ref().is_none() {
            problems.missing(
                "spec.jwtKeyRef",
                "is absent",
                "name the Secret entry that holds the cluster's auth/jwt key",
            );
        }
        if username.is_empty() {
            problems.warn(
                Reason::Missing,
                "spec.username",
                format!("is empty, and the token is for user {DEFAULT_USERNAME:?}"),
                "name the Slurm user",
            );
        }
        let length = lifetime.as_ref().map(GoDuration::length);
        if length.is_some_and(|length| length.is_none_or(|length| length <= SignedDuration::ZERO)) {
            let text = lifetime.as_ref().map(GoDuration::as_str).unwrap_or_default();
            problems.bad_value(
                "spec.lifetime",
                format!("is {text:?}, which is not a positive duration"),
                "write it like 90s or 1h30m",
            );
        }
        let secret = self.secret_name();
        if !is_subdomain(&secret) {
            problems.bad_name(
                "spec.secretRef.name",
                format!("is {secret:?}, which is not a valid name of a Secret"),
                "set a name of lower-case letters, digits, dashes and dots",
            );
        }
    }

    fn immutable(&self) -> Vec<(&'static str, Value, &'static str)> {
        let key = json!(self.spec.effective_jwt_key_ref());
        vec![("spec.jwtKeyRef", key, "create another Token")]
    }
}
