use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use hkdf::Hkdf;
use serde::{Deserialize, Serialize};
use sha2::Sha256;

pub use crate::jws::EmptyKey;
use crate::jws::Key;
use crate::revision::Digest;

/// Separates this key from other keys that are derived from the same secret.
const PURPOSE: &[u8] = b"slurm-agent/v1";
/// Separates digests from everything else that is derived from a key.
const DIGEST_PURPOSE: &[u8] = b"slurm-agent/v1/key-digest";

/// The secret that operator and agent share, derived from the cluster's `jwt.key`.
#[derive(Debug, Clone)]
pub struct AgentKey(pub(super) Key);

impl AgentKey {
    pub fn derive(jwt_key: &[u8]) -> Result<Self, EmptyKey> {
        derive(jwt_key, PURPOSE).map(Self)
    }

    /// Returns the proof that a response comes from a holder of the key and belongs to the request with this token.
    pub fn prove(&self, token: &str, status: u16, body: &[u8]) -> String {
        self.0.sign(&proven(token, status, body))
    }

    pub fn is_proven(&self, proof: &str, token: &str, status: u16, body: &[u8]) -> bool {
        self.0.is_signed(&proven(token, status, body), proof)
    }
}

/// Returns the key for this purpose.
pub(super) fn derive(jwt_key: &[u8], purpose: &[u8]) -> Result<Key, EmptyKey> {
    if jwt_key.is_empty() {
        return Err(EmptyKey);
    }
    let mut key = [0; 32];
    // HKDF provides up to 255 times this much: this cannot fail.
    Hkdf::<Sha256>::new(None, jwt_key)
        .expand(purpose, &mut key)
        .map_err(|_| EmptyKey)?;
    Key::new(&key)
}

/// The text that a proof signs. A token has no line ends, so the text is unambiguous and never itself a token.
fn proven(token: &str, status: u16, body: &[u8]) -> String {
    format!("answer\n{token}\n{status}\n{}", Digest::of(body))
}

/// Distinguishes one `slurm.key` from another and reveals nothing else: it is derived from the key and is not its hash.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct KeyDigest(String);

impl KeyDigest {
    pub fn of(key: &[u8]) -> Self {
        let mut digest = [0; 16];
        // HKDF provides up to 255 times 32 bytes: this cannot fail.
        let _ = Hkdf::<Sha256>::new(None, key).expand(DIGEST_PURPOSE, &mut digest);
        Self(URL_SAFE_NO_PAD.encode(digest))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Computed with Python's hmac module: HKDF of RFC 5869 with no salt, then HMAC.
    #[test]
    fn the_key_is_hkdf_of_the_jwt_key() {
        let key = AgentKey::derive(&[0x0b; 22]).unwrap();
        assert_eq!(key.0.sign("hello"), "AghGZ2TRfNEbELJMKYOkI9Yzafr31Vy6zoQ0jn413qQ");
    }

    #[test]
    fn a_proof_is_for_one_response() {
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
    fn an_empty_key_is_rejected_and_no_key_is_shown() {
        assert_eq!(AgentKey::derive(b"").unwrap_err(), EmptyKey);
        assert_eq!(format!("{:?}", AgentKey::derive(b"secret").unwrap()), "AgentKey(…)");
    }

    #[test]
    fn different_keys_have_different_digests() {
        assert_eq!(KeyDigest::of(b"one"), KeyDigest::of(b"one"));
        assert_ne!(KeyDigest::of(b"one"), KeyDigest::of(b"other"));
        assert_eq!(KeyDigest::of(b"one").0.len(), 22);
    }
}
