//! The first message to slurmdbd (REQUEST_PERSIST_INIT), which shows whether slurmdbd listens at an address. No other follows.
//!
//! slurmdbd reads the type of a message first. A header and a credential follow, as in a message to slurmctld; the response has
//! neither. slurmdbd also responds to a client that it rejects, and logs nothing about one with a valid token (measured, 26.05).

use super::error::Error;
use super::frame::{Frame, MessageType};
use super::return_code::ReturnCode;
use super::version::Version;
use super::wire::{Field, Fields, Malformed, Reader, Unpackable, Writer};

/// All supported releases understand it, and the message is the same in all of them.
const VERSION: Version = Version::V42;

/// A connection of a client like sacctmgr.
const TYPE_DBD: u16 = 1;
/// The cluster of the client, which slurmdbd does not check.
const NAME: &str = "slurm-operator";
/// The size of the length in front of a message.
const LENGTH: usize = 4;
/// The size of flags, return code and the field behind it.
const WITH_FLAGS: usize = 8;

/// Returns the bytes to send, with the length of the whole in front.
pub(super) fn pack_greeting(token: &str) -> Result<Vec<u8>, Unpackable> {
    let mut body = Writer::default();
    body.u16(&mut VERSION.wire())?;
    body.text(&mut Some(NAME.to_owned()))?;
    body.u16(&mut { TYPE_DBD })?;
    // The port at which a slurmctld would receive updates.
    body.skip(&[Field::U16])?;
    let message = Frame::new(VERSION, MessageType::PERSIST_INIT, body.into_bytes()).pack(token)?;
    let message = message.get(LENGTH..).unwrap_or_default();
    let mut sent = Writer::default();
    sent.length(message.len() + size_of::<u16>())?;
    sent.u16(&mut { MessageType::PERSIST_INIT.0 })?;
    sent.raw(message);
    Ok(sent.into_bytes())
}

/// Reads the response that follows the length of the whole.
pub(super) fn read_response(response: &[u8]) -> Result<(), Error> {
    let (kind, said, code) = unpack(response)?;
    match (kind, code) {
        (MessageType::PERSIST_RETURN_CODE, ReturnCode::SUCCESS) => Ok(()),
        (MessageType::PERSIST_RETURN_CODE, code) => Err(Error::Refused { code, said }),
        (kind, _) => Err(Error::unexpected(kind)),
    }
}

/// Newer releases have flags in front of the return code, whatever version the request has (measured, 26.05.5). The field behind
/// it is not needed.
fn unpack(response: &[u8]) -> Result<(MessageType, Option<String>, ReturnCode), Malformed> {
    let mut reader = Reader::new(response);
    let (mut kind, mut said) = (0, None);
    reader.u16(&mut kind)?;
    reader.text(&mut said)?;
    if reader.left() >= WITH_FLAGS {
        reader.skip(&[Field::U16])?;
    }
    Ok((MessageType(kind), said, ReturnCode(reader.i32()?)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::transport;

    #[test]
    fn the_greeting_has_this_wire_format() {
        let expected = [
            &[0, 0, 0, 57, 0x19, 0x64][..],
            &[0x2a, 0, 0, 0, 0x19, 0x64, 0, 0, 0, 25, 0, 0, 0, 0, 0, 0],
            &[0, 0, 0, 102, 0, 0, 0, 2, b't', 0, 0, 0, 0, 0],
            &[0x2a, 0, 0, 0, 0, 15],
            b"slurm-operator\0",
            &[0, 1, 0, 0],
        ];
        assert_eq!(pack_greeting("t").unwrap(), expected.concat());
    }

    #[test]
    fn slurmdbd_is_distinguished_from_other_servers_and_from_one_that_rejects_us() {
        // The second of each pair is a response of slurmdbd 26.05.5, the first has no flags.
        let welcome = [0x05, 0x99, 0, 0, 0, 0, 0, 0, 0, 0, 0x2a, 0];
        assert!(read_response(&welcome).is_ok());
        assert!(read_response(&[0x05, 0x99, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0x2a, 0]).is_ok());
        for words in [
            &b"\x05\x99\0\0\0\x2cFailed to unpack SLURM_PERSIST_INIT message\0\0\0\x03\xef\x19\x64"[..],
            b"\x05\x99\0\0\0\x2cFailed to unpack SLURM_PERSIST_INIT message\0\0\0\0\0\x03\xef\x19\x64",
        ] {
            let refused = read_response(words).unwrap_err();
            assert!(
                matches!(
                    &refused,
                    Error::Refused {
                        code: ReturnCode::AUTHENTICATION,
                        said: Some(_)
                    }
                ),
                "{refused:?}"
            );
        }
        for other in [&b"HTTP/1.1 400 Bad Request"[..], b"", &welcome[..6], &[0x2a; 30]] {
            let error = read_response(other).unwrap_err();
            assert!(
                matches!(error, Error::Transport(transport::Error::Malformed { .. })),
                "{error:?}"
            );
        }
    }
}
