//! Tokens that real slurmrestd takes.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use testbed::harness::{Namespace, cluster, eventually, expect};

use crate::common::operator::{CONTROLLER, REST_API, SOON, install, slurm, workers};

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

fn token(namespace: &Namespace) -> anyhow::Result<String> {
    let data = namespace.field("secret/operations-jwt-slurm", ".data.SLURM_JWT")?;
    Ok(String::from_utf8(STANDARD.decode(data)?)?)
}

/// Asks slurmrestd who may ask, with a token.
fn asked_with(namespace: &Namespace, token: &str) -> anyhow::Result<String> {
    let ask = format!(
        "curl -sS -o /dev/null -w '%{{http_code}}' -H 'X-SLURM-USER-TOKEN: {token}' http://slurm-restapi:6820/slurm/v0.0.45/partitions"
    );
    slurm(namespace, &ask)
}

#[test]
fn a_token_is_taken_renewed_and_goes_with_its_object() {
    let cluster = cluster();
    install(cluster);
    let namespace = Namespace::create(cluster, "tokens").unwrap();
    namespace.apply(CONTROLLER).unwrap();
    // The Controller has a partition of these nodes.
    namespace.apply(&workers(0)).unwrap();
    namespace.apply(REST_API).unwrap();
    namespace.apply(TOKEN).unwrap();
    namespace.wait("condition=Ready", "token/operations").unwrap();
    namespace.wait("condition=Ready", "restapi/slurm").unwrap();
    eventually("slurmrestd takes it", SOON, || {
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

    namespace.ask(&["delete", "token/operations"]).unwrap();
    namespace.wait("delete", "secret/operations-jwt-slurm").unwrap();
}
