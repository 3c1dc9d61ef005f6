//! Tokens that a real slurmrestd accepts.

use std::path::Path;
use std::process::Command;

use base64::Engine as _;
use base64::engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD};
use serde_json::{Value, json};
use testbed::command::{long_output, output};
use testbed::harness::{Namespace, cluster, eventually, expect};
use testbed::paths;

use crate::common::clusters::{CONTROLLER, REST_API, operator_namespace, wait_said, workers};
use crate::common::forward::Forward;
use crate::common::slurm::{SOON, slurm, wait_idle};

const TOKEN: &str = "
apiVersion: slinky.slurm.net/v1beta1
kind: Token
metadata:
  name: operations
spec:
  username: slurm
  lifetime: 30s
  jwtKeyRef:
    name: slurm-auth-jwt
    key: jwt.key
";

/// A token with the default lifetime.
const FOR_A_PROGRAM: &str = "
apiVersion: slinky.slurm.net/v1beta1
kind: Token
metadata:
  name: program
spec:
  username: slurm
  jwtKeyRef:
    name: slurm-auth-jwt
    key: jwt.key
";

/// For a user whose name is not valid in the name of a Secret, signed with a key that changes.
const ODD: &str = "
apiVersion: slinky.slurm.net/v1beta1
kind: Token
metadata:
  name: odd
spec:
  username: Zoë $(id)/..
  jwtKeyRef:
    name: elsewhere
    key: jwt.key
";

/// A cluster elsewhere, with that key.
const ELSEWHERE: &str = "
apiVersion: slinky.slurm.net/v1beta1
kind: Controller
metadata:
  name: elsewhere
spec:
  external: true
  externalConfig: {host: elsewhere.invalid, port: 6817}
  jwtKeyRef:
    name: elsewhere
    key: jwt.key
";

/// It is downloaded once, into the machine's cache.
const GENERATOR: (&str, &str) = ("openapi-python-client", "0.29.1");

fn token(namespace: &Namespace) -> anyhow::Result<String> {
    token_of(namespace, "operations")
}

fn token_of(namespace: &Namespace, name: &str) -> anyhow::Result<String> {
    let data = namespace.field(&format!("secret/{name}-jwt-slurm"), ".data.SLURM_JWT")?;
    Ok(String::from_utf8(STANDARD.decode(data)?)?)
}

/// Sends a request to slurmrestd with a token.
fn asked_with(namespace: &Namespace, token: &str) -> anyhow::Result<String> {
    let ask = format!(
        "curl -sS -o /dev/null -w '%{{http_code}}' -H 'X-SLURM-USER-TOKEN: {token}' http://slurm-restapi:6820/slurm/v0.0.45/partitions"
    );
    slurm(namespace, &ask)
}

/// slurmrestd's OpenAPI document, without its errors (docs/tokens.md).
fn description(forward: &Forward, token: &str) -> Value {
    let ask = format!("http://{}/openapi/v3", forward.address);
    let header = format!("X-SLURM-USER-TOKEN: {token}");
    let said = output(Command::new("curl").args(["--silent", "--show-error", "--fail", "--header", &header, &ask]));
    let mut said: Value = serde_json::from_str(&said.unwrap()).unwrap();
    let job = said["components"]["schemas"]["v0.0.45_job_info"]["properties"].as_object_mut();
    job.unwrap().remove("job_resources").unwrap();
    said
}

/// A client that is generated from slurmrestd's OpenAPI document submits a job and waits for its end.
fn a_generated_client_submits_a_job(namespace: &Namespace) {
    let (name, version) = GENERATOR;
    let install = paths::repository().join("hack/python-tool");
    let programs = long_output(Command::new(install).args([name, version])).unwrap();
    let programs = Path::new(programs.trim());
    let forward = Forward::open(namespace, "service/slurm-restapi", 6820);
    let token = token_of(namespace, "program").unwrap();
    let place = tempfile::tempdir().unwrap();
    let described = place.path().join("openapi.json");
    std::fs::write(&described, description(&forward, &token).to_string()).unwrap();
    output(
        Command::new(programs.join(name))
            .args(["generate", "--meta=none", "--output-path"])
            .arg(place.path().join("slurm_client"))
            .arg("--path")
            .arg(&described),
    )
    .unwrap();
    let said = output(
        Command::new(programs.join("python3"))
            .arg(paths::repository().join("examples/rest/submit.py"))
            .arg(format!("http://{}", forward.address))
            .env("PYTHONPATH", place.path())
            .env("SLURM_JWT", &token),
    )
    .unwrap();
    let words: Vec<&str> = said.split_whitespace().collect();
    assert!(matches!(words.as_slice(), [_, "from-python", "COMPLETED"]), "{said}");
}

fn set_key(namespace: &Namespace, text: &str) {
    let secret = json!({
        "apiVersion": "v1", "kind": "Secret", "metadata": { "name": "elsewhere" }, "stringData": { "jwt.key": text },
    });
    namespace.apply(&secret.to_string()).unwrap();
}

/// Errors are reported and heal, and another key gives another token.
fn an_odd_user_and_another_key(namespace: &Namespace) {
    let said = namespace.apply(ODD).unwrap_err().to_string();
    assert!(said.contains("spec.secretRef.name"), "{said}");
    let named = format!("{ODD}  secretRef:\n    name: odd\n    key: token\n");
    namespace.apply(&named).unwrap();
    wait_said(
        namespace,
        "token/odd",
        "Ready",
        &["False", "Secret \"elsewhere\", which does not exist"],
    );
    set_key(namespace, "the first of two keys that are long enough");
    // An entry of a Secret that is no cluster's key signs nothing.
    let no_key = "is not the JWT key of a Controller in this namespace";
    wait_said(namespace, "token/odd", "Ready", &["False", no_key]);
    namespace.apply(ELSEWHERE).unwrap();
    wait_said(namespace, "token/odd", "Ready", &["True"]);
    let kept = || namespace.field("secret/odd", ".data.token");
    let first = kept().unwrap();
    let signed = String::from_utf8(STANDARD.decode(&first).unwrap()).unwrap();
    let claims = URL_SAFE_NO_PAD.decode(signed.split('.').nth(1).unwrap()).unwrap();
    let claims: Value = serde_json::from_slice(&claims).unwrap();
    assert_eq!(claims["sun"], "Zoë $(id)/..");
    set_key(namespace, "the second of two keys that are long enough");
    eventually("another token", SOON, || {
        let now = kept()?;
        expect(now != first, now)
    })
    .unwrap();
}

/// A Token for root, and one for 68 years, as the review of the code's security found them.
fn privileges_and_long_lives_are_limited(namespace: &Namespace) {
    let token = |name: &str, user: &str, lifetime: &str| {
        let token = json!({
            "apiVersion": "slinky.slurm.net/v1beta1", "kind": "Token", "metadata": { "name": name },
            "spec": { "username": user, "lifetime": lifetime, "jwtKeyRef": { "name": "slurm-auth-jwt", "key": "jwt.key" } },
        });
        namespace.apply(&token.to_string()).unwrap();
    };
    token("mighty", "root", "1h");
    wait_said(
        namespace,
        "token/mighty",
        "Ready",
        &["False", "--privileged-token-users"],
    );
    assert!(namespace.ask(&["get", "secret/mighty-jwt-root"]).is_err());
    token("lasting", "nobody", "596523h");
    wait_said(
        namespace,
        "token/lasting",
        "Degraded",
        &["True", "--max-token-lifetime"],
    );
    namespace.wait("condition=Ready", "token/lasting").unwrap();
    let data = namespace.field("secret/lasting-jwt-nobody", ".data.SLURM_JWT").unwrap();
    let signed = String::from_utf8(STANDARD.decode(data).unwrap()).unwrap();
    let claims = URL_SAFE_NO_PAD.decode(signed.split('.').nth(1).unwrap()).unwrap();
    let claims: Value = serde_json::from_slice(&claims).unwrap();
    let lifetime = claims["exp"].as_u64().unwrap() - claims["iat"].as_u64().unwrap();
    assert_eq!(lifetime, 24 * 60 * 60);
}

#[test]
fn a_token_is_accepted_renewed_and_deleted_with_its_object() {
    let namespace = operator_namespace(cluster(), "tokens");
    namespace.apply(CONTROLLER).unwrap();
    for manifest in [&workers(1), REST_API, TOKEN, FOR_A_PROGRAM] {
        namespace.apply(manifest).unwrap();
    }
    namespace.wait("condition=Ready", "token/operations").unwrap();
    namespace.wait("condition=Ready", "restapi/slurm").unwrap();
    eventually("slurmrestd accepts it", SOON, || {
        let said = asked_with(&namespace, &token(&namespace)?)?;
        expect(said == "200", said)
    })
    .unwrap();

    let first = token(&namespace).unwrap();
    let second = eventually("another token", SOON, || {
        let now = token(&namespace)?;
        expect(now != first, "the same")?;
        Ok(now)
    })
    .unwrap();
    assert_eq!(asked_with(&namespace, &second).unwrap(), "200");
    let forged = format!("{second}x");
    assert_ne!(asked_with(&namespace, &forged).unwrap(), "200");

    an_odd_user_and_another_key(&namespace);
    privileges_and_long_lives_are_limited(&namespace);
    wait_idle(&namespace, 1).unwrap();
    a_generated_client_submits_a_job(&namespace);

    namespace.ask(&["delete", "token/operations"]).unwrap();
    namespace.wait("delete", "secret/operations-jwt-slurm").unwrap();
}
