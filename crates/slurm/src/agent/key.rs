use std::fmt;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use hkdf::Hkdf;
use hmac::{Hmac, Mac};
use serde::{Deserialize, Serialize};
use sha2::Sha256;
use thiserror::Error;

use crate::revision::Digest;

/// Keeps these keys apart from whatever else is made of the same secret.
const PURPOSE: &[u8] = b"slurm-agent/v1";
/// Keeps digests apart from everything else that is made of a key.
const DIGEST_PURPOSE: &[u8] = b"slurm-agent/v1/key-digest";

#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[error("the cluster's JWT key is empty")]
pub struct EmptyKey;

/// What operator and agent have in common: made from the cluster's `jwt.key`, which both can read and nobody else.
#[derive(Clone)]
pub struct AgentKey(Hmac<Sha256>);

impl AgentKey {
    pub fn derive(jwt_key: &[u8]) -> Result<Self, EmptyKey> {
        if jwt_key.is_empty() {
            return Err(EmptyKey);
        }
        let mut key = [0; 32];
        // HKDF gives up to 255 times this much, and HMAC takes any length: neither can fail.
        Hkdf::<Sha256>::new(None, jwt_key)
            .expand(PURPOSE, &mut key)
            .map_err(|_| EmptyKey)?;
        Hmac::new_from_slice(&key).map(Self).map_err(|_| EmptyKey)
    }

    /// Shows that an answer comes from who has the key, and belongs to this very request.
    pub fn prove(&self, token: &str, status: u16, body: &[u8]) -> String {
        self.sign(&answer(token, status, body))
    }

    pub fn is_proven(&self, proof: &str, token: &str, status: u16, body: &[u8]) -> bool {
        self.is_signed(&answer(token, status, body), proof)
    }

    pub(super) fn sign(&self, message: &str) -> String {
        URL_SAFE_NO_PAD.encode(self.0.clone().chain_update(message).finalize().into_bytes())
    }

    /// In the same time whatever is wrong with it.
    pub(super) fn is_signed(&self, message: &str, signature: &str) -> bool {
        URL_SAFE_NO_PAD
            .decode(signature)
            .is_ok_and(|signature| self.0.clone().chain_update(message).verify_slice(&signature).is_ok())
    }
}

/// A token has no line ends in it, so this can be read in one way only, and never as a token.
fn answer(token: &str, status: u16, body: &[u8]) -> String {
    format!("answer\n{token}\n{status}\n{}", Digest::of(body))
}

impl fmt::Debug for AgentKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("AgentKey(…)")
    }
}

/// Tells one `slurm.key` from another, and nothing else about it: it is derived from the key, and is not the key's hash.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct KeyDigest(String);

impl KeyDigest {
    pub fn of(key: &[u8]) -> Self {
        let mut digest = [0; 16];
        // HKDF gives up to 255 times 32 bytes: this cannot fail.
        let _ = Hkdf::<Sha256>::new(None, key).expand(DIGEST_PURPOSE, &mut digest);
        Self(URL_SAFE_NO_PAD.encode(digest))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Worked out with Python's hmac module: HKDF of RFC 5869 with no salt, then HMAC.
    #[test]
    fn the_key_is_hkdf_of_the_jwt_key() {
        let key = AgentKey::derive(&[0x0b; 22]).unwrap();
        assert_eq!(key.sign("hello"), "AghGZ2TRfNEbELJMKYOkI9Yzafr31Vy6zoQ0jn413qQ");
    }

    #[test]
    fn a_proof_is_for_one_answer() {
        let key = AgentKey::derive(b"secret").unwrap();
        let proof = key.prove("a.b.c", 200, b"body");
        assert!(key.is_proven(&proof, "a.b.c", 200, b"body"));
        assert!(!key.is_proven(&proof, "a.b.d", 200, b"body"));
        assert!(!key.is_proven(&proof, "a.b.c", 202, b"body"));
        assert!(!key.is_proven(&proof, "a.b.c", 200, b"bode"));
        assert!(!key.is_proven("", "a.b.c", 200, b"body"));
        let other = AgentKey::derive(b"other").unwrap();
        assert!(!other.is_proven(&proof, "a.b.c", 200, b"body"));
    }

    #[test]
    fn an_empty_key_is_none_and_no_key_is_shown() {
        assert_eq!(AgentKey::derive(b"").unwrap_err(), EmptyKey);
        assert_eq!(format!("{:?}", AgentKey::derive(b"secret").unwrap()), "AgentKey(…)");
    }

    #[test]
    fn digests_tell_keys_apart() {
        assert_eq!(KeyDigest::of(b"one"), KeyDigest::of(b"one"));
        assert_ne!(KeyDigest::of(b"one"), KeyDigest::of(b"other"));
        assert_eq!(KeyDigest::of(b"one").0.len(), 22);
    }
}
