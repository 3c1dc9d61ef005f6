//! The rules of a Token, as tests.

use std::time::Duration;

use api::{ConditionStatus, Token};
use base64::{Engine as _, engine::general_purpose::STANDARD};
use jiff::Timestamp;
use proptest::prelude::*;
use serde_json::{Value, json};
use slurm::token::SigningKey;

use super::{Observed, Plan, build_secret, observe};
use crate::{
    defaults::TokenPolicy,
    kind::{self, Kind as _},
    runtime::{Caches, Change, Delta, Key},
    testing::any_spec::any_spec,
};

const START: i64 = 1_800_000_000;

fn at(seconds: i64) -> Timestamp {
    Timestamp::from_second(START + seconds).unwrap()
}

fn token(more: &Value) -> Value {
    let mut spec =
        json!({ "username": "alice", "jwtKeyRef": { "name": "keys", "key": "jwt.key" }, "lifetime": "100s" });
    for (field, value) in more.as_object().unwrap() {
        spec[field] = value.clone();
    }
    json!({
        "apiVersion": "slinky.slurm.net/v1beta1", "kind": "Token",
        "metadata": { "name": "alice", "namespace": "hpc", "uid": "u", "generation": 1 }, "spec": spec,
    })
}

fn keys(bytes: &str) -> Value {
    let data = json!({ "jwt.key": STANDARD.encode(bytes) });
    json!({ "apiVersion": "v1", "kind": "Secret", "metadata": { "name": "keys", "namespace": "hpc", "uid": "k" }, "data": data })
}

/// A Controller with the key.
fn controller() -> Value {
    json!({
        "apiVersion": "slinky.slurm.net/v1beta1", "kind": "Controller", "metadata": { "name": "slurm", "namespace": "hpc", "uid": "c" },
        "spec": { "jwtKeyRef": { "name": "keys", "key": "jwt.key" } },
    })
}

fn observed(mut objects: Vec<Value>, now: i64) -> Observed {
    objects.push(controller());
    observed_under(objects, TokenPolicy::default(), now)
}

fn observed_under(objects: Vec<Value>, policy: TokenPolicy, now: i64) -> Observed {
    let caches = Caches::of(objects);
    observe(caches.tokens.all().remove(0), &caches, policy, at(now))
}

fn planned(objects: Vec<Value>, now: i64) -> Plan {
    kind::plan::<Token>(&observed(objects, now)).1
}

/// The Secret that a plan leads to.
fn kept(more: &Value, key: &str, now: i64) -> Value {
    let objects = vec![token(more), keys(key)];
    let plan = planned(objects.clone(), now);
    let signed = plan.issue.unwrap().sign(&plan.claims.unwrap()).unwrap();
    serde_json::to_value(build_secret(&observed(objects, now).token, signed.secret())).unwrap()
}

fn reason(objects: Vec<Value>) -> (ConditionStatus, String, String) {
    condition("Ready", &observed(objects, 0))
}

fn condition(name: &str, observed: &Observed) -> (ConditionStatus, String, String) {
    let plan = kind::plan::<Token>(observed);
    let status = kind::status::<Token>(observed, &plan, None, &[], at(0));
    let mut conditions = status.conditions.into_iter();
    let found = conditions.find(|condition| condition.type_ == name).unwrap();
    (found.status, found.reason, found.message)
}

#[test]
fn a_token_of_a_user_with_privileges_is_issued_only_if_a_flag_allows_it() {
    for user in ["root", "slurm", "0", "401"] {
        let objects = || vec![token(&json!({ "username": user })), keys("key"), controller()];
        let refused = observed_under(objects(), TokenPolicy::default(), 0);
        assert!(kind::plan::<Token>(&refused).1.issue.is_none(), "{user}");
        let (status, said, message) = condition("Ready", &refused);
        assert_eq!((status, said.as_str()), (ConditionStatus::False, "UserNotAllowed"));
        assert!(message.contains("--privileged-token-users"), "{message}");
        let policy = TokenPolicy {
            privileged_users: vec![user.to_owned()],
            ..TokenPolicy::default()
        };
        let allowed = observed_under(objects(), policy, 0);
        assert!(kind::plan::<Token>(&allowed).1.issue.is_some(), "{user}");
    }
}

#[test]
fn a_key_that_no_controller_uses_signs_nothing() {
    let of = |controllers: Vec<Value>| {
        let objects = [vec![token(&json!({})), keys("key")], controllers].concat();
        observed_under(objects, TokenPolicy::default(), 0)
    };
    let mut other = controller();
    other["spec"]["jwtKeyRef"]["key"] = json!("slurm.key");
    let mut elsewhere = controller();
    elsewhere["metadata"]["namespace"] = json!("other");
    for controllers in [vec![], vec![other], vec![elsewhere]] {
        let observed = of(controllers);
        assert!(kind::plan::<Token>(&observed).1.issue.is_none());
        assert_eq!(condition("Ready", &observed).1, "ControllerMissing");
    }
    assert!(kind::plan::<Token>(&of(vec![controller()])).1.issue.is_some());
}

#[test]
fn a_lifetime_above_the_limit_is_capped_and_the_token_renewed() {
    let policy = TokenPolicy {
        max_lifetime: jiff::SignedDuration::from_secs(60),
        ..TokenPolicy::default()
    };
    for refresh in [true, false] {
        let spec = json!({ "lifetime": "100h", "refresh": refresh });
        let objects = || vec![token(&spec), keys("key"), controller()];
        let first = observed_under(objects(), policy.clone(), 0);
        let plan = kind::plan::<Token>(&first).1;
        assert_eq!(plan.claims.as_ref().unwrap().lifetime(), Duration::from_mins(1));
        assert_eq!(plan.renew_after, Some(Duration::from_secs(48)));
        let (status, said, message) = condition("Degraded", &first);
        assert_eq!((status, said.as_str()), (ConditionStatus::True, "LifetimeCapped"));
        assert!(message.contains("--max-token-lifetime"), "{message}");
        assert_eq!(condition("Ready", &first).0, ConditionStatus::True);
        // A longer one that was issued before there was a limit.
        let long = kept(&json!({ "lifetime": "20h" }), "key", 0);
        let before = observed_under([objects(), vec![long]].concat(), policy.clone(), 1);
        assert!(kind::plan::<Token>(&before).1.issue.is_some(), "{refresh}");
    }
}

#[test]
fn a_token_is_signed_for_its_user_and_stored_under_its_name() {
    let secret = kept(&json!({}), "key", 0);
    assert_eq!(secret["metadata"]["name"], "alice-jwt-alice");
    assert_eq!(secret["metadata"]["ownerReferences"][0]["uid"], "u");
    let text = STANDARD.decode(secret["data"]["SLURM_JWT"].as_str().unwrap()).unwrap();
    let claims = SigningKey::new(b"key")
        .unwrap()
        .read(std::str::from_utf8(&text).unwrap())
        .unwrap();
    assert_eq!(claims.user, "alice");
    assert_eq!(claims.expires_at - claims.issued_at, 100);
    assert_eq!(claims.issuer.as_deref(), Some("slurm-operator"));
}

#[test]
fn it_is_renewed_when_a_fifth_of_its_life_is_left() {
    let objects = |now| planned(vec![token(&json!({})), keys("key"), kept(&json!({}), "key", 0)], now);
    assert!(objects(0).issue.is_none());
    assert_eq!(objects(0).renew_after, Some(Duration::from_secs(80)));
    assert!(objects(79).issue.is_none());
    assert!(objects(80).issue.is_some());
    assert!(objects(500).issue.is_some());
    // A clock that was set back.
    assert!(objects(-5).issue.is_some());
}

#[test]
fn a_token_without_refresh_is_not_renewed() {
    let once = json!({ "refresh": false });
    let later = planned(vec![token(&once), keys("key"), kept(&once, "key", 0)], 500);
    assert!(later.issue.is_none() && later.renew_after.is_none());
}

#[test]
fn another_key_user_or_lifetime_is_another_token() {
    for (more, key) in [
        (json!({}), "other"),
        (
            json!({ "username": "bob", "secretRef": { "name": "alice-jwt-alice", "key": "SLURM_JWT" } }),
            "key",
        ),
        (json!({ "lifetime": "200s" }), "key"),
        (
            json!({ "secretRef": { "name": "alice-jwt-alice", "key": "other" } }),
            "key",
        ),
    ] {
        let plan = planned(vec![token(&more), keys(key), kept(&json!({}), "key", 0)], 1);
        assert!(plan.issue.is_some(), "{more}");
        assert!(plan.replace.is_none());
    }
}

#[test]
fn a_foreign_secret_is_not_overwritten() {
    let mut theirs = kept(&json!({}), "key", 0);
    theirs["metadata"]["ownerReferences"] = json!([]);
    let objects = vec![token(&json!({})), keys("key"), theirs];
    assert!(planned(objects.clone(), 0).issue.is_none());
    let (_, said, message) = reason(objects);
    assert_eq!(said, "NameTaken");
    assert!(message.contains("spec.secretRef.name"), "{message}");
    // The key itself, too.
    let objects = vec![
        token(&json!({ "secretRef": { "name": "keys", "key": "jwt.key" } })),
        keys("key"),
    ];
    assert_eq!(reason(objects).1, "NameTaken");
}

#[test]
fn upstreams_secret_is_replaced() {
    let mut theirs = kept(&json!({}), "key", 0);
    theirs["metadata"]["uid"] = json!("theirs");
    theirs["metadata"]["ownerReferences"] =
        json!([{ "apiVersion": "v1", "kind": "Secret", "name": "keys", "uid": "k", "controller": true }]);
    let plan = planned(vec![token(&json!({})), keys("key"), theirs.clone()], 0);
    assert_eq!(plan.replace.as_deref(), Some("theirs"));
    // One of another Secret that had the key's name is nobody's to delete.
    theirs["metadata"]["ownerReferences"][0]["uid"] = json!("other");
    assert_eq!(reason(vec![token(&json!({})), keys("key"), theirs]).1, "NameTaken");
}

#[test]
fn a_missing_key_is_named() {
    let (status, said, message) = reason(vec![token(&json!({}))]);
    assert_eq!((status, said.as_str()), (ConditionStatus::False, "SecretMissing"));
    assert!(
        message.contains("spec.jwtKeyRef names entry \"jwt.key\" of Secret \"keys\""),
        "{message}"
    );
    assert_eq!(reason(vec![token(&json!({})), keys("")]).1, "SecretMissing");
}

#[test]
fn it_depends_on_the_controller_with_its_key() {
    let caches = Caches::of(vec![token(&json!({})), controller()]);
    let change = Change::from(Delta::appeared(caches.controllers.all().remove(0)));
    assert_eq!(
        Token::references().affected(&change, &caches),
        [Key::new("hpc", "alice")]
    );
}

#[test]
fn it_depends_on_its_key_and_its_secret() {
    let caches = Caches::of(vec![token(&json!({})), keys("key"), kept(&json!({}), "key", 0)]);
    for secret in caches.secrets.all() {
        let change = Change::from(Delta::appeared(secret));
        assert_eq!(
            Token::references().affected(&change, &caches),
            [Key::new("hpc", "alice")]
        );
    }
}

proptest! {
    #[test]
    fn no_manifest_makes_a_plan_panic(spec in any_spec("Token"), now in any::<i32>()) {
        let mut object = token(&json!({}));
        object["spec"] = spec;
        let observed = observed(vec![object, keys("key")], i64::from(now));
        let plan = kind::plan::<Token>(&observed);
        let _ = kind::status::<Token>(&observed, &plan, None, &[], at(0));
    }
}
