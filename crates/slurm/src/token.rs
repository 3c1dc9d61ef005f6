//! Tokens for Slurm's auth/jwt, signed with the raw bytes of the cluster's `jwt.key`.
//!
//! They are signed here because `scontrol token` needs a running slurmctld.

use std::fmt;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, SystemTime};

use serde::{Deserialize, Serialize};

pub use crate::jws::EmptyKey;
use crate::jws::{self, unix};

/// Slurm stores lifetimes in 32 bits, of which the highest value means "unlimited".
const MAX_LIFETIME: Duration = Duration::from_secs(2_147_483_646);

/// A token is replaced when this part of its lifetime is left.
const RENEWED_AT: u64 = 5;

#[derive(Debug, Clone)]
pub struct SigningKey(jws::Key);

impl SigningKey {
    pub fn new(bytes: &[u8]) -> Result<Self, EmptyKey> {
        jws::Key::new(bytes).map(Self)
    }

    pub fn sign(&self, claims: &Claims) -> Result<Token, serde_json::Error> {
        Ok(Token {
            text: self.0.encode(claims)?,
            claims: claims.clone(),
        })
    }

    /// Returns the claims of a token that was signed with this key, and `None` for any other text.
    pub fn read(&self, text: &str) -> Option<Claims> {
        self.0.verify(text.trim()).ok()
    }
}

/// Times are seconds since 1970. Slurm reads the user and the expiry; the rest is information for people.
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

    pub fn lifetime(&self) -> Duration {
        Duration::from_secs(self.expires_at.saturating_sub(self.issued_at))
    }

    /// Returns when the token is to be replaced, in seconds since 1970.
    pub fn renewal(&self) -> u64 {
        self.expires_at.saturating_sub(self.lifetime().as_secs() / RENEWED_AT)
    }

    /// Whether the token is to be replaced now. It is too if the clock was set back to before it was issued.
    pub fn is_stale(&self, now: u64) -> bool {
        now < self.issued_at || now >= self.renewal()
    }
}

#[derive(Clone, PartialEq, Eq)]
pub struct Token {
    text: String,
    pub claims: Claims,
}

impl Token {
    /// The text that is sent.
    pub fn secret(&self) -> &str {
        &self.text
    }
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Token")
            .field("claims", &self.claims)
            .finish_non_exhaustive()
    }
}

/// Provides tokens of one user, and replaces them in time.
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
        if let Some(token) = current.as_ref().filter(|token| !token.claims.is_stale(unix(now))) {
            return Ok(token.clone());
        }
        let token = self.key.sign(&Claims::new(&self.user, now, self.lifetime))?;
        *current = Some(token.clone());
        Ok(token)
    }

    /// Discards the current token after Slurm refused it.
    pub fn forget(&self) {
        *self.current.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }
}

#[cfg(test)]
mod tests {
    use std::time::UNIX_EPOCH;

    use base64::Engine as _;
    use base64::engine::general_purpose::URL_SAFE_NO_PAD;

    use super::*;

    fn at(seconds: u64) -> SystemTime {
        UNIX_EPOCH + Duration::from_secs(seconds)
    }

    fn key() -> SigningKey {
        SigningKey::new(b"0123456789abcdef0123456789abcdef").unwrap()
    }

    #[test]
    fn a_token_has_the_claims_that_slurm_reads() {
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
    fn a_lifetime_above_slurms_maximum_is_cut() {
        assert_eq!(Claims::new("slurm", at(0), Duration::MAX).expires_at, 2_147_483_646);
    }

    #[test]
    fn a_token_is_replaced_when_a_fifth_of_its_lifetime_is_left() {
        let issuer = Issuer::new(key(), "slurm", Duration::from_mins(15));
        let first = issuer.token(at(1000)).unwrap();
        assert_eq!(issuer.token(at(1719)).unwrap(), first);
        assert_eq!(issuer.token(at(1720)).unwrap().claims.expires_at, 2620);
    }

    #[test]
    fn a_token_from_the_future_or_a_refused_one_is_replaced() {
        let issuer = Issuer::new(key(), "slurm", Duration::from_mins(15));
        let first = issuer.token(at(5000)).unwrap();
        assert_eq!(issuer.token(at(4999)).unwrap().claims.issued_at, 4999);
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
    fn an_empty_key_is_rejected() {
        assert!(SigningKey::new(b"").is_err());
    }
}
