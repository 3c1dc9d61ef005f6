//! Tokens for Slurm's auth/jwt: HS256 over the raw bytes of the cluster's `jwt.key`.
//!
//! Made here because asking slurmctld for one (`scontrol token`) needs a running slurmctld. Whoever has the key is any
//! user of the cluster, so neither it nor a token is ever shown by `Debug`.

use std::fmt;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use hmac::{Hmac, Mac};
use serde::{Deserialize, Serialize};
use sha2::Sha256;
use thiserror::Error;

/// Slurm keeps lifetimes in 32 bits with the highest value standing for "for ever".
const MAX_LIFETIME: Duration = Duration::from_secs(2_147_483_646);

/// The header every token has: `{"alg":"HS256","typ":"JWT"}`.
const HEADER: &str = "eyJhbGciOiJIUzI1NiIsInR5cCI6IkpXVCJ9";

#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[error("the signing key is empty")]
pub struct EmptyKey;

#[derive(Clone)]
pub struct SigningKey(Hmac<Sha256>);

impl SigningKey {
    pub fn new(bytes: &[u8]) -> Result<Self, EmptyKey> {
        // HMAC itself takes any length, and an empty key is one that everybody has.
        if bytes.is_empty() {
            return Err(EmptyKey);
        }
        Hmac::new_from_slice(bytes).map(Self).map_err(|_| EmptyKey)
    }

    pub fn sign(&self, claims: &Claims) -> Result<Token, serde_json::Error> {
        let message = format!("{HEADER}.{}", URL_SAFE_NO_PAD.encode(serde_json::to_vec(claims)?));
        let text = format!("{message}.{}", self.signature(&message));
        Ok(Token {
            text,
            issued_at: claims.issued_at,
            expires_at: claims.expires_at,
        })
    }

    /// What a token says that was signed with this key; `None` for any other text.
    pub fn read(&self, text: &str) -> Option<Claims> {
        let (message, signature) = text.trim().rsplit_once('.')?;
        let (header, claims) = message.split_once('.')?;
        let signature = URL_SAFE_NO_PAD.decode(signature).ok()?;
        let is_ours = self.0.clone().chain_update(message).verify_slice(&signature).is_ok();
        let claims = URL_SAFE_NO_PAD.decode(claims).ok()?;
        // Signed by us means written by us, header included.
        (is_ours && header == HEADER).then(|| serde_json::from_slice(&claims).ok())?
    }

    fn signature(&self, message: &str) -> String {
        URL_SAFE_NO_PAD.encode(self.0.clone().chain_update(message).finalize().into_bytes())
    }
}

impl fmt::Debug for SigningKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SigningKey(…)")
    }
}

/// Times are seconds since 1970. Slurm wants a user and an end; the rest is for whoever looks at the token.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Claims {
    #[serde(rename = "sun")]
    pub user: String,
    #[serde(rename = "iat")]
    pub issued_at: u64,
    #[serde(rename = "exp")]
    pub expires_at: u64,
    #[serde(rename = "nbf", skip_serializing_if = "Option::is_none")]
    pub not_before: Option<u64>,
    #[serde(rename = "iss", skip_serializing_if = "Option::is_none")]
    pub issuer: Option<String>,
    #[serde(rename = "jti", skip_serializing_if = "Option::is_none")]
    pub id: Option<String>,
}

impl Claims {
    pub fn new(user: impl Into<String>, now: SystemTime, lifetime: Duration) -> Self {
        let issued_at = unix(now);
        let expires_at = issued_at.saturating_add(lifetime.min(MAX_LIFETIME).as_secs());
        Self {
            user: user.into(),
            issued_at,
            expires_at,
            not_before: None,
            issuer: None,
            id: None,
        }
    }
}

#[derive(Clone, PartialEq, Eq)]
pub struct Token {
    text: String,
    pub issued_at: u64,
    pub expires_at: u64,
}

impl Token {
    /// What goes over the wire.
    pub fn secret(&self) -> &str {
        &self.text
    }

    /// Four fifths of its life are over, or the clock was set back behind its beginning.
    fn is_stale(&self, now: u64) -> bool {
        let left = self.expires_at.saturating_sub(now);
        let life = self.expires_at.saturating_sub(self.issued_at);
        now < self.issued_at || left <= life / 5
    }
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Token")
            .field("issued_at", &self.issued_at)
            .field("expires_at", &self.expires_at)
            .finish_non_exhaustive()
    }
}

/// Hands out a token of one user that has enough life left, and makes a new one in time.
#[derive(Debug)]
pub struct Issuer {
    key: SigningKey,
    user: String,
    lifetime: Duration,
    current: Mutex<Option<Token>>,
}

impl Issuer {
    pub fn new(key: SigningKey, user: impl Into<String>, lifetime: Duration) -> Self {
        Self {
            key,
            user: user.into(),
            lifetime,
            current: Mutex::new(None),
        }
    }

    pub fn token(&self, now: SystemTime) -> Result<Token, serde_json::Error> {
        let mut current = self.current.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(token) = current.as_ref().filter(|token| !token.is_stale(unix(now))) {
            return Ok(token.clone());
        }
        let token = self.key.sign(&Claims::new(&self.user, now, self.lifetime))?;
        *current = Some(token.clone());
        Ok(token)
    }

    /// After a refusal: the next token is a new one.
    pub fn forget(&self) {
        *self.current.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }
}

fn unix(time: SystemTime) -> u64 {
    time.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: u64) -> SystemTime {
        UNIX_EPOCH + Duration::from_secs(seconds)
    }

    fn key() -> SigningKey {
        SigningKey::new(b"0123456789abcdef0123456789abcdef").unwrap()
    }

    /// RFC 7515, appendix A.1.
    #[test]
    fn the_signature_is_that_of_the_standard() {
        let secret = "AyM1SysPpbyDfgZld3umj1qzKObwVMkoqQ-EstJQLr_T-1qS0gZH75aKtMN3Yj0iPS4hcgUuTwjAzZr1Z9CAow";
        let key = SigningKey::new(&URL_SAFE_NO_PAD.decode(secret).unwrap()).unwrap();
        let message = concat!(
            "eyJ0eXAiOiJKV1QiLA0KICJhbGciOiJIUzI1NiJ9.",
            "eyJpc3MiOiJqb2UiLA0KICJleHAiOjEzMDA4MTkzODAsDQogImh0dHA6Ly9leGFtcGxlLmNvbS9pc19yb290Ijp0cnVlfQ",
        );
        assert_eq!(key.signature(message), "dBjftJeZ4CVP-mB92K27uhbUJU1p1r_wW1gFWFOEjXk");
    }

    #[test]
    fn a_token_holds_what_slurm_wants() {
        let token = key()
            .sign(&Claims::new("slurm", at(1000), Duration::from_mins(15)))
            .unwrap();
        let parts: Vec<&str> = token.secret().split('.').collect();
        let json = |part: &str| String::from_utf8(URL_SAFE_NO_PAD.decode(part).unwrap()).unwrap();
        assert_eq!(json(parts[0]), r#"{"alg":"HS256","typ":"JWT"}"#);
        assert_eq!(json(parts[1]), r#"{"sun":"slurm","iat":1000,"exp":1900}"#);
        assert_eq!(parts.len(), 3);
    }

    #[test]
    fn only_the_key_that_signed_a_token_reads_it() {
        let claims = Claims::new("alice", at(1000), Duration::from_mins(15));
        let token = key().sign(&claims).unwrap();
        assert_eq!(key().read(token.secret()), Some(claims));
        assert_eq!(SigningKey::new(b"other").unwrap().read(token.secret()), None);
        for text in [
            "",
            ".",
            "..",
            "a.b.c",
            &token.secret()[1..],
            &format!("{}x", token.secret()),
        ] {
            assert_eq!(key().read(text), None, "{text}");
        }
    }

    #[test]
    fn a_lifetime_beyond_slurms_is_cut() {
        assert_eq!(Claims::new("slurm", at(0), Duration::MAX).expires_at, 2_147_483_646);
    }

    #[test]
    fn a_token_is_renewed_before_it_ends() {
        let issuer = Issuer::new(key(), "slurm", Duration::from_mins(15));
        let first = issuer.token(at(1000)).unwrap();
        assert_eq!(issuer.token(at(1719)).unwrap(), first);
        assert_eq!(issuer.token(at(1720)).unwrap().expires_at, 2620);
    }

    #[test]
    fn a_token_from_the_future_or_refused_is_made_again() {
        let issuer = Issuer::new(key(), "slurm", Duration::from_mins(15));
        let first = issuer.token(at(5000)).unwrap();
        assert_eq!(issuer.token(at(4999)).unwrap().issued_at, 4999);
        issuer.forget();
        assert_eq!(issuer.token(at(5000)).unwrap(), first);
    }

    #[test]
    fn neither_key_nor_token_is_shown() {
        let token = key()
            .sign(&Claims::new("slurm", at(0), Duration::from_secs(1)))
            .unwrap();
        let issuer = Issuer::new(key(), "slurm", Duration::from_secs(1));
        issuer.token(at(0)).unwrap();
        let shown = format!("{:?} {token:?} {issuer:?}", key());
        assert!(!shown.contains("0123") && !shown.contains("eyJ"), "{shown}");
    }

    #[test]
    fn an_empty_key_is_refused() {
        assert!(SigningKey::new(b"").is_err());
    }
}
