//! JSON Web Signatures with HMAC-SHA-256 (HS256): the form of Slurm's tokens and of the agent's.
//!
//! A key or a token gives its holder every right of its user, so `Debug` shows neither.

use std::fmt;
use std::time::{SystemTime, UNIX_EPOCH};

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use hmac::{Hmac, Mac};
use serde::Serialize;
use serde::de::DeserializeOwned;
use sha2::Sha256;
use thiserror::Error;

/// The only header that is written and accepted, `{"alg":"HS256","typ":"JWT"}`. Every other algorithm is rejected with it.
const HEADER: &str = "eyJhbGciOiJIUzI1NiIsInR5cCI6IkpXVCJ9";

#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[error("the cluster's JWT key is empty")]
pub struct EmptyKey;

/// Why a token is rejected.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Invalid {
    Form,
    Signature,
}

#[derive(Clone)]
pub(crate) struct Key(Hmac<Sha256>);

impl Key {
    pub(crate) fn new(bytes: &[u8]) -> Result<Self, EmptyKey> {
        // HMAC accepts a key of any length, and everybody has the empty one.
        if bytes.is_empty() {
            return Err(EmptyKey);
        }
        Hmac::new_from_slice(bytes).map(Self).map_err(|_| EmptyKey)
    }

    pub(crate) fn encode(&self, claims: &impl Serialize) -> Result<String, serde_json::Error> {
        let message = format!("{HEADER}.{}", URL_SAFE_NO_PAD.encode(serde_json::to_vec(claims)?));
        let signature = self.sign(&message);
        Ok(format!("{message}.{signature}"))
    }

    /// Returns the claims of a token that was signed with this key.
    pub(crate) fn verify<T: DeserializeOwned>(&self, token: &str) -> Result<T, Invalid> {
        let (message, signature) = token.rsplit_once('.').ok_or(Invalid::Form)?;
        let (header, claims) = message.split_once('.').ok_or(Invalid::Form)?;
        if header != HEADER {
            return Err(Invalid::Form);
        }
        if !self.is_signed(message, signature) {
            return Err(Invalid::Signature);
        }
        let claims = URL_SAFE_NO_PAD.decode(claims).map_err(|_| Invalid::Form)?;
        serde_json::from_slice(&claims).map_err(|_| Invalid::Form)
    }

    pub(crate) fn sign(&self, message: &str) -> String {
        URL_SAFE_NO_PAD.encode(self.0.clone().chain_update(message).finalize().into_bytes())
    }

    /// Takes the same time for every wrong signature.
    pub(crate) fn is_signed(&self, message: &str, signature: &str) -> bool {
        URL_SAFE_NO_PAD
            .decode(signature)
            .is_ok_and(|signature| self.0.clone().chain_update(message).verify_slice(&signature).is_ok())
    }
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("…")
    }
}

/// Returns the seconds since 1970, as claims have them.
pub(crate) fn unix(time: SystemTime) -> u64 {
    time.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// RFC 7515, appendix A.1.
    #[test]
    fn the_signature_is_that_of_the_standard() {
        let secret = "AyM1SysPpbyDfgZld3umj1qzKObwVMkoqQ-EstJQLr_T-1qS0gZH75aKtMN3Yj0iPS4hcgUuTwjAzZr1Z9CAow";
        let key = Key::new(&URL_SAFE_NO_PAD.decode(secret).unwrap()).unwrap();
        let message = concat!(
            "eyJ0eXAiOiJKV1QiLA0KICJhbGciOiJIUzI1NiJ9.",
            "eyJpc3MiOiJqb2UiLA0KICJleHAiOjEzMDA4MTkzODAsDQogImh0dHA6Ly9leGFtcGxlLmNvbS9pc19yb290Ijp0cnVlfQ",
        );
        assert_eq!(key.sign(message), "dBjftJeZ4CVP-mB92K27uhbUJU1p1r_wW1gFWFOEjXk");
    }

    #[test]
    fn an_empty_key_is_rejected_and_no_key_is_shown() {
        assert_eq!(Key::new(b"").unwrap_err(), EmptyKey);
        assert_eq!(format!("{:?}", Key::new(b"secret").unwrap()), "…");
    }
}
