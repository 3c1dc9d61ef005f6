//! Rules for a Token.

use jiff::SignedDuration;

use super::{
    Cel, Check, Reason, Rule, Validate,
    cel::{self, is_duration, is_entry, is_name},
    fields::{check_entry, check_namespace},
    names::is_subdomain,
    shared::{Fields, entry_rule, jwt_names},
};
use crate::{
    overlay::ContainerOverlay,
    templates::PodTemplate,
    time::GoDuration,
    token::{DEFAULT_USERNAME, Token},
};

impl Fields for Token {
    fn containers(&self) -> Vec<(&'static str, &Option<ContainerOverlay>)> {
        Vec::new()
    }

    fn template(&self) -> Option<&PodTemplate> {
        None
    }

    fn has_two_jwt_keys(&self) -> bool {
        let (new, old) = (&self.spec.jwt_key_ref, &self.spec.jwt_hs256_key_ref);
        new.is_some() && old.is_some() && new != old
    }
}

impl Validate for Token {
    const SMALLEST: &'static str = "spec: {username: alice, jwtKeyRef: {name: jwt, key: jwt.key}}";

    const FREE: &'static [&'static str] = &["refresh"];

    const RULES: &'static [Rule<Self>] = &[
        entry_rule!(
            "jwt-key-entry", "jwtKeyRef", "Secret", token => &token.spec.jwt_key_ref,
            "spec: {jwtKeyRef: {name: a, key: k_1}}",
            ["spec: {jwtKeyRef: {name: '', key: k}}", "spec: {jwtKeyRef: {name: a, key: a/b}}"]
        ),
        entry_rule!(
            "old-jwt-key-entry", "jwtHs256KeyRef", "Secret", token => &token.spec.jwt_hs256_key_ref,
            "spec: {jwtKeyRef: null, jwtHs256KeyRef: {name: a, key: k}}",
            ["spec: {jwtKeyRef: null, jwtHs256KeyRef: {name: A, key: k}}"]
        ),
        Rule {
            id: "jwt-key-namespace",
            field: "spec.jwtKeyRef.namespace, spec.jwtHs256KeyRef.namespace",
            holds: "must be the namespace of the Token",
            remedy: "remove it, and create the Token in the namespace of the Secret",
            cel: cel::NAMESPACE,
            check: Check::Problems(|token, problems| {
                for (field, reference) in [
                    ("spec.jwtKeyRef.namespace", &token.spec.jwt_key_ref),
                    ("spec.jwtHs256KeyRef.namespace", &token.spec.jwt_hs256_key_ref),
                ] {
                    let namespace = reference.as_ref().and_then(|reference| reference.namespace.as_deref());
                    check_namespace(problems, field, namespace, token.metadata.namespace.as_deref());
                }
            }),
            good: &["spec: {jwtKeyRef: {name: a, key: k, namespace: slurm}}"],
            bad: &["spec: {jwtKeyRef: {name: a, key: k, namespace: other}}"],
        },
        jwt_names(),
        Rule {
            id: "jwt-key",
            field: "spec.jwtKeyRef",
            holds: "is required: it names the key that signs the token",
            remedy: "name the Secret entry that holds the cluster's auth/jwt key",
            cel: Cel::Object {
                reads: &["spec.jwtKeyRef", "spec.jwtHs256KeyRef"],
                holds: "has(self.spec.jwtKeyRef) || has(self.spec.jwtHs256KeyRef)",
            },
            check: Check::Fault(Reason::Missing, |token| {
                token.spec.effective_jwt_key_ref().is_none().then(|| "is absent".into())
            }),
            good: &["spec: {jwtKeyRef: null, jwtHs256KeyRef: {name: a, key: k}}"],
            bad: &["spec: {jwtKeyRef: null}"],
        },
        Rule {
            id: "username-empty",
            field: "spec.username",
            holds: "should not be empty",
            remedy: "name the Slurm user",
            cel: cel::WARNING,
            check: Check::Warning(Reason::Missing, |token| {
                let is_empty = token.spec.username.is_empty();
                is_empty.then(|| format!("is empty, and the token is for user {DEFAULT_USERNAME:?}"))
            }),
            good: &["spec: {username: bob}"],
            bad: &["spec: {username: '', secretRef: {name: a, key: k}}"],
        },
        Rule {
            id: "lifetime",
            field: "spec.lifetime",
            holds: "must be a positive duration",
            remedy: "write it like 90s or 1h30m",
            cel: Cel::Value(concat!(is_duration!("{}"), " && duration({}) > duration('0s')")),
            check: Check::Fault(Reason::BadValue, |token| {
                let lifetime = token.spec.lifetime.as_ref()?;
                let is_positive = GoDuration::length(lifetime).is_some_and(|length| length > SignedDuration::ZERO);
                let text = lifetime.as_str();
                (!is_positive).then(|| format!("is {text:?}, which is not a positive duration"))
            }),
            good: &["spec: {lifetime: 1h30m}", "spec: {lifetime: 1.5h}"],
            bad: &[
                "spec: {lifetime: 0s}",
                "spec: {lifetime: -5m}",
                "spec: {lifetime: 1d}",
                "spec: {lifetime: 1.2.3s}",
            ],
        },
        Rule {
            id: "secret-name",
            field: "spec.secretRef.name",
            holds: "or its default <name>-jwt-<username> must be a valid name of a Secret",
            remedy: "set a name of lower-case letters, digits, dashes and dots",
            cel: Cel::Object {
                reads: &["spec.secretRef", "spec.username"],
                holds: concat!(
                    "has(self.spec.secretRef) && self.spec.secretRef.name != '' ? (",
                    is_name!("self.spec.secretRef.name"),
                    ") : (self.spec.username.matches('^[-.a-z0-9]*[a-z0-9]$'))"
                ),
            },
            check: Check::Fault(Reason::BadName, |token| {
                let secret = token.secret_name();
                let is_valid = is_subdomain(&secret);
                (!is_valid).then(|| format!("is {secret:?}, which is not a valid name of a Secret"))
            }),
            good: &["spec: {username: Alice, secretRef: {name: a.b, key: k}}"],
            bad: &["spec: {username: Alice}", "spec: {secretRef: {name: A, key: k}}"],
        },
        Rule {
            id: "jwt-key-immutable",
            field: "spec.jwtKeyRef",
            holds: "cannot be changed",
            remedy: "create another Token",
            cel: Cel::Constant(
                "has(self.spec.jwtKeyRef) ? [dyn(self.spec.jwtKeyRef)] : \
                 has(self.spec.jwtHs256KeyRef) ? [dyn(self.spec.jwtHs256KeyRef)] : []",
            ),
            check: Check::Unchanged(|old, new| old.spec.effective_jwt_key_ref() == new.spec.effective_jwt_key_ref()),
            good: &[
                "spec: {jwtKeyRef: {name: jwt, key: jwt.key}}",
                "spec: {jwtKeyRef: null, jwtHs256KeyRef: {name: jwt, key: jwt.key}}",
            ],
            bad: &[
                "spec: {jwtKeyRef: {name: other, key: jwt.key}}",
                "spec: {jwtKeyRef: {name: jwt, key: other}}",
            ],
        },
    ];
}
