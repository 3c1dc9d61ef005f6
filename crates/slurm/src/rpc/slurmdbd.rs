//! The first words of a conversation with slurmdbd (REQUEST_PERSIST_INIT), by which it is told from anything else that listens.
//! Nothing more is said to it.
//!
//! slurmdbd reads the type of a message first. The greeting has a header and a credential behind it, like a message to slurmctld;
//! the answer has neither. It answers whoever it does not let in too, and with the right token its log says nothing of us (measured,
//! 26.05).

use super::error::Error;
use super::frame::{Frame, MessageType};
use super::return_code::ReturnCode;
use super::version::Version;
use super::wire::{Malformed, Reader, Unpackable, Writer};

/// All releases we know understand it, and it says the same in all of them.
const VERSION: Version = Version::V42;

/// Whom the connection is for: clients of slurmdbd, like sacctmgr.
const TYPE_DBD: u16 = 1;
/// The cluster we would belong to; it is looked up nowhere.
const NAME: &str = "slurm-operator";
/// Of the length in front of a message.
const LENGTH: usize = 4;
/// Of flags, code and the number behind it.
const WITH_FLAGS: usize = 8;

/// With the length of the whole in front, ready to be sent.
pub(super) fn pack_greeting(token: &str) -> Result<Vec<u8>, Unpackable> {
    let mut body = Writer::default();
    body.u16(VERSION.wire());
    body.str(Some(NAME))?;
    body.u16(TYPE_DBD);
    // Where a slurmctld would be told of changes.
    body.u16(0);
    let message = Frame::new(VERSION, MessageType::PERSIST_INIT, body.into_bytes()).pack(token)?;
    let message = message.get(LENGTH..).unwrap_or_default();
    let mut sent = Writer::default();
    sent.length(message.len() + size_of::<u16>())?;
    sent.u16(MessageType::PERSIST_INIT.0);
    sent.raw(message);
    Ok(sent.into_bytes())
}

/// What it answered, from what follows the length of the whole.
pub(super) fn read_answer(answer: &[u8]) -> Result<(), Error> {
    let (kind, said, code) = unpack(answer)?;
    match (kind, code) {
        (MessageType::PERSIST_RETURN_CODE, ReturnCode::SUCCESS) => Ok(()),
        (MessageType::PERSIST_RETURN_CODE, code) => Err(Error::Refused { code, said }),
        (kind, _) => Err(Error::unexpected(kind)),
    }
}

/// Newer releases have flags in front of the code, whatever version they are spoken to in (measured, 26.05.5). Behind it is a number
/// that means nothing here.
fn unpack(answer: &[u8]) -> Result<(MessageType, Option<String>, ReturnCode), Malformed> {
    let mut reader = Reader::new(answer);
    let kind = MessageType(reader.u16()?);
    let said = reader.text()?.map(|text| String::from_utf8_lossy(text).into_owned());
    if reader.left() >= WITH_FLAGS {
        reader.u16()?;
    }
    Ok((kind, said, ReturnCode(reader.i32()?)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::transport;

    #[test]
    fn the_greeting_looks_like_this_on_the_wire() {
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
    fn slurmdbd_is_told_from_others_and_from_one_that_lets_us_not_in() {
        // The second of each pair as slurmdbd 26.05.5 gave it, the first without the flags.
        let welcome = [0x05, 0x99, 0, 0, 0, 0, 0, 0, 0, 0, 0x2a, 0];
        assert!(read_answer(&welcome).is_ok());
        assert!(read_answer(&[0x05, 0x99, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0x2a, 0]).is_ok());
        for words in [
            &b"\x05\x99\0\0\0\x2cFailed to unpack SLURM_PERSIST_INIT message\0\0\0\x03\xef\x19\x64"[..],
            b"\x05\x99\0\0\0\x2cFailed to unpack SLURM_PERSIST_INIT message\0\0\0\0\0\x03\xef\x19\x64",
        ] {
            let refused = read_answer(words).unwrap_err();
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
            let error = read_answer(other).unwrap_err();
            assert!(
                matches!(error, Error::Transport(transport::Error::Malformed { .. })),
                "{error:?}"
            );
        }
    }
}
