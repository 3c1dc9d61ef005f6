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

fn observed(objects: Vec<Value>, now: i64) -> Observed {
    let caches = Caches::of(objects);
    observe(caches.tokens.all().remove(0), &caches, at(now))
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
    let observed = observed(objects, 0);
    let plan = kind::plan::<Token>(&observed);
    let status = kind::status::<Token>(&observed, &plan, None, &[], at(0));
    let ready = status
        .conditions
        .into_iter()
        .find(|condition| condition.type_ == "Ready")
        .unwrap();
    (ready.status, ready.reason, ready.message)
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
    fn no_spec_makes_it_panic(spec in any_spec("Token"), now in any::<i32>()) {
        let mut object = token(&json!({}));
        object["spec"] = spec;
        let observed = observed(vec![object, keys("key")], i64::from(now));
        let plan = kind::plan::<Token>(&observed);
        let _ = kind::status::<Token>(&observed, &plan, None, &[], at(0));
    }
}
