//! Asks a slurmd to register with slurmctld (REQUEST_NODE_REGISTRATION_STATUS), as slurmctld itself does from time to time.
//!
//! A slurmd cannot check tokens of auth/jwt, which are signed with a key that it does not have. It accepts a credential of
//! auth/slurm: the same kind of token, signed with `slurm.key`.

use std::time::{Duration, SystemTime};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde::Serialize;

use super::error::Error;
use super::frame::{Frame, MessageType};
use super::version::Version;
use crate::jws::{self, EmptyKey, unix};

/// All supported releases understand it, and the message has no content.
const VERSION: Version = Version::V42;

/// Slurm's own credentials live for a minute.
const LIFETIME: Duration = Duration::from_mins(1);

/// Every user may check the credential.
const ANY_USER: u32 = u32::MAX;

/// The number of the plugin that computes no hash of the message: its type follows instead.
const NO_HASH: u8 = 1;

const NAME: &str = "slurm-agent";

/// The cluster's `slurm.key`, with which its daemons sign.
#[derive(Debug, Clone)]
pub struct SlurmKey(jws::Key);

impl SlurmKey {
    pub fn new(bytes: &[u8]) -> Result<Self, EmptyKey> {
        jws::Key::new(bytes).map(Self)
    }
}

/// Of root, whom every daemon obeys.
#[derive(Debug, Serialize)]
struct Claims {
    iat: u64,
    exp: u64,
    ver: u16,
    ruid: u32,
    context: &'static str,
    uid: u32,
    gid: u32,
    host: &'static str,
    payload: String,
}

/// Returns the bytes to send.
pub(super) fn pack_request(key: &SlurmKey, now: SystemTime) -> Result<Vec<u8>, Error> {
    let kind = MessageType::NODE_REGISTRATION_STATUS;
    let [high, low] = kind.0.to_be_bytes();
    let now = unix(now);
    let credential = key.0.encode(&Claims {
        iat: now,
        exp: now + LIFETIME.as_secs(),
        ver: VERSION.wire(),
        ruid: ANY_USER,
        context: "auth",
        uid: 0,
        gid: 0,
        host: NAME,
        payload: STANDARD.encode([NO_HASH, high, low]),
    })?;
    Ok(Frame::new(VERSION, kind, Vec::new()).pack_for_daemon(&credential)?)
}

/// Whether a slurmd has taken the request: it responds before it registers.
pub(super) fn read_response(response: &[u8]) -> Result<(), Error> {
    Frame::unpack(response)?.body_of(MessageType::RESPONSE_PING).map(drop)
}

#[cfg(test)]
mod tests {
    use std::time::UNIX_EPOCH;

    use base64::engine::general_purpose::URL_SAFE_NO_PAD;

    use super::*;

    #[test]
    fn a_request_has_a_credential_of_auth_slurm_for_this_type_of_message() {
        let key = SlurmKey::new(b"0123456789abcdef").unwrap();
        let sent = pack_request(&key, UNIX_EPOCH + Duration::from_secs(1000)).unwrap();
        assert_eq!(sent[8..10], 1001_u16.to_be_bytes());
        assert_eq!(sent[20..24], 103_u32.to_be_bytes());
        let credential = Frame::token(&sent[4..]).unwrap();
        let claims = credential.split('.').nth(1).unwrap();
        assert_eq!(
            String::from_utf8(URL_SAFE_NO_PAD.decode(claims).unwrap()).unwrap(),
            r#"{"iat":1000,"exp":1060,"ver":10752,"ruid":4294967295,"context":"auth","uid":0,"gid":0,"host":"slurm-agent","payload":"AQPp"}"#
        );
        // Nothing follows the credential: its text ends in a NUL.
        assert_eq!(sent.len(), 4 + 16 + 4 + 4 + credential.len() + 1);
    }

    #[test]
    fn only_a_ping_is_the_response() {
        let response = |kind| Frame::new(VERSION, kind, vec![0; 4]).pack("").unwrap();
        assert!(read_response(&response(MessageType::RESPONSE_PING)[4..]).is_ok());
        assert!(read_response(&response(MessageType::RESPONSE_RETURN_CODE)[4..]).is_err());
        assert!(read_response(b"").is_err());
    }
}
