//! Tokens between operator and agent: each is valid for one request to one pod for a minute.

use std::time::{Duration, SystemTime};

use serde::{Deserialize, Serialize};
use thiserror::Error;

use super::candidate;
use super::fence::Fence;
use super::key::AgentKey;
use crate::jws::{Invalid, unix};
use crate::revision::Digest;

/// Longer than any request takes. The fence, not the time, identifies a late command.
const LIFETIME: Duration = Duration::from_mins(1);

/// The kubelet updates mounted ConfigMaps about once a minute.
const LIFETIME_OF_CANDIDATE: Duration = Duration::from_mins(10);

/// How far the clocks of two nodes may be apart.
const SKEW: Duration = Duration::from_secs(30);

/// The request that a token is valid for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Request<'a> {
    pub method: &'a str,
    /// Includes the query.
    pub path: &'a str,
    /// The UID of the pod it goes to.
    pub pod: &'a str,
}

/// Times are seconds since 1970.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Claims {
    #[serde(rename = "aud")]
    pub pod: String,
    #[serde(rename = "iat")]
    pub issued_at: u64,
    #[serde(rename = "exp")]
    pub expires_at: u64,
    pub method: String,
    pub path: String,
    /// The digest of the body, which may be empty.
    pub body: Digest,
    /// Set for every command that changes something.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fence: Option<Fence>,
}

/// The operator compares the messages of [`InvalidToken::Signature`] and [`InvalidToken::Time`] with the one an agent of
/// another release sent: they are part of the protocol.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum InvalidToken {
    #[error("it is no token of this protocol")]
    Form,
    #[error("it is signed with another key")]
    Signature,
    #[error("it is for another pod")]
    Audience,
    #[error("it is for another request")]
    Request,
    #[error("it has expired or is not valid yet; the clocks of the nodes may be more than {SKEW:?} apart")]
    Time,
}

impl Claims {
    pub fn new(request: Request<'_>, body: &[u8], fence: Option<Fence>, now: SystemTime) -> Self {
        let issued_at = unix(now);
        Self {
            pod: request.pod.to_owned(),
            issued_at,
            expires_at: issued_at.saturating_add(lifetime(request.method).as_secs()),
            method: request.method.to_owned(),
            path: request.path.to_owned(),
            body: Digest::of(body),
            fence,
        }
    }

    pub fn sign(&self, key: &AgentKey) -> Result<String, serde_json::Error> {
        key.0.encode(self)
    }

    /// Checks everything but the body, which is read after this: the caller compares it with [`Claims::body`].
    pub fn verify(token: &str, key: &AgentKey, request: Request<'_>, now: SystemTime) -> Result<Self, InvalidToken> {
        let claims: Self = key.0.verify(token).map_err(|invalid| match invalid {
            Invalid::Form => InvalidToken::Form,
            Invalid::Signature => InvalidToken::Signature,
        })?;
        if claims.pod != request.pod {
            return Err(InvalidToken::Audience);
        }
        if claims.method != request.method || claims.path != request.path {
            return Err(InvalidToken::Request);
        }
        let (now, skew) = (unix(now), SKEW.as_secs());
        let lifetime = lifetime(request.method).as_secs();
        let short = claims.expires_at.saturating_sub(claims.issued_at) <= lifetime;
        let begun = claims.issued_at <= now.saturating_add(skew);
        let over = now > claims.expires_at.saturating_add(skew);
        if !short || !begun || over {
            return Err(InvalidToken::Time);
        }
        Ok(claims)
    }
}

fn lifetime(method: &str) -> Duration {
    if method == candidate::METHOD {
        LIFETIME_OF_CANDIDATE
    } else {
        LIFETIME
    }
}

#[cfg(test)]
mod tests {
    use std::time::UNIX_EPOCH;

    use base64::Engine as _;
    use base64::engine::general_purpose::URL_SAFE_NO_PAD;
    use proptest::prelude::*;

    use super::*;

    const REQUEST: Request<'static> = Request {
        method: "PUT",
        path: "/v1/revision",
        pod: "pod-1",
    };

    fn key() -> AgentKey {
        AgentKey::derive(b"0123456789abcdef0123456789abcdef").unwrap()
    }

    fn at(seconds: u64) -> SystemTime {
        UNIX_EPOCH + Duration::from_secs(seconds)
    }

    fn claims() -> Claims {
        let fence = Fence { term: 3, sequence: 9 };
        Claims::new(REQUEST, b"body", Some(fence), at(1000))
    }

    fn verify(claims: &Claims, now: u64) -> Result<Claims, InvalidToken> {
        Claims::verify(&claims.sign(&key()).unwrap(), &key(), REQUEST, at(now))
    }

    #[test]
    fn a_token_carries_fence_and_digest_of_the_body() {
        let claims = verify(&claims(), 1000).unwrap();
        assert_eq!(claims.fence, Some(Fence { term: 3, sequence: 9 }));
        assert_eq!(claims.body, Digest::of(b"body"));
        assert_eq!(claims.expires_at, 1060);
    }

    #[test]
    fn a_token_is_valid_for_its_lifetime_and_the_clock_skew() {
        for (now, good) in [(969, false), (970, true), (1060, true), (1090, true), (1091, false)] {
            assert_eq!(verify(&claims(), now).is_ok(), good, "{now}");
        }
    }

    #[test]
    fn a_token_with_a_longer_lifetime_is_rejected() {
        let lasting = Claims {
            expires_at: 2000,
            ..claims()
        };
        assert_eq!(verify(&lasting, 1000), Err(InvalidToken::Time));
    }

    #[test]
    fn a_token_for_another_pod_or_request_is_rejected() {
        let of = |claims: Claims| verify(&claims, 1000);
        let other = |text: &str| text.to_owned();
        assert_eq!(
            of(Claims {
                pod: other("pod-2"),
                ..claims()
            }),
            Err(InvalidToken::Audience)
        );
        assert_eq!(
            of(Claims {
                method: other("GET"),
                ..claims()
            }),
            Err(InvalidToken::Request)
        );
        assert_eq!(
            of(Claims {
                path: other("/v1/node"),
                ..claims()
            }),
            Err(InvalidToken::Request)
        );
    }

    #[test]
    fn a_forged_or_altered_token_is_rejected() {
        let verify = |token: &str| Claims::verify(token, &key(), REQUEST, at(1000));
        let good = claims().sign(&key()).unwrap();
        let forged = claims().sign(&AgentKey::derive(b"other").unwrap()).unwrap();
        assert_eq!(verify(&forged), Err(InvalidToken::Signature));
        let parts: Vec<&str> = good.split('.').collect();
        // {"alg":"none"}
        assert_eq!(
            verify(&format!("eyJhbGciOiJub25lIn0.{}.", parts[1])),
            Err(InvalidToken::Form)
        );
        assert_eq!(
            verify(&format!("{}.{}.", parts[0], parts[1])),
            Err(InvalidToken::Signature)
        );
        let other_claims = forged.split('.').nth(1).unwrap().replace('W', "X");
        assert_eq!(
            verify(&format!("{}.{other_claims}.{}", parts[0], parts[2])),
            Err(InvalidToken::Signature)
        );
    }

    /// Proofs and tokens are signed with the same key; neither is valid as the other.
    #[test]
    fn a_proof_is_no_token() {
        let message = claims().sign(&key()).unwrap();
        let (message, _) = message.rsplit_once('.').unwrap();
        let proof = key().prove(message, 200, b"");
        assert!(Claims::verify(&format!("{message}.{proof}"), &key(), REQUEST, at(1000)).is_err());
    }

    proptest! {
        #[test]
        fn no_text_panics(text in ".*") {
            prop_assert!(Claims::verify(&text, &key(), REQUEST, at(1000)).is_err());
            let valid = claims().sign(&key()).unwrap();
            let header = valid.split('.').next().unwrap();
            let signed = format!("{header}.{}", URL_SAFE_NO_PAD.encode(&text));
            let signed = format!("{signed}.{}", key().0.sign(&signed));
            prop_assert_eq!(Claims::verify(&signed, &key(), REQUEST, at(1000)), Err(InvalidToken::Form));
        }
    }
}
