//! The first words of a conversation with slurmdbd (REQUEST_PERSIST_INIT), by which it is told from anything else that listens.
//! Nothing more is said to it.

use super::error::Error;
use super::frame::{Frame, MessageType};
use super::version::Version;
use super::wire::{Reader, Unpackable, Writer};

/// All releases we know understand it, and it says the same in all of them.
pub(super) const VERSION: Version = Version::V42;

/// Whom the connection is for: clients of slurmdbd, like sacctmgr.
const TYPE_DBD: u16 = 1;
/// What slurmdbd's log calls us; it is looked up nowhere.
const NAME: &str = "slurm-operator";

pub(super) fn pack_greeting() -> Result<Vec<u8>, Unpackable> {
    let mut body = Writer::default();
    body.u16(VERSION.wire());
    body.str(Some(NAME))?;
    body.u16(TYPE_DBD);
    // Where a slurmctld would be told of changes.
    body.u16(0);
    Ok(body.into_bytes())
}

/// Whether this is an answer that slurmdbd gives: bare words on the connection that it has opened, or a message with a header
/// when it could not open one. What it says is not looked at: it is there.
pub(super) fn check_answer(answer: &[u8]) -> Result<(), Error> {
    let first = Reader::new(answer).u16().map_err(Error::malformed)?;
    if MessageType(first) == MessageType::PERSIST_RETURN_CODE {
        return Ok(());
    }
    match Frame::unpack(answer).map_err(Error::malformed)?.kind {
        MessageType::PERSIST_RETURN_CODE | MessageType::RESPONSE_RETURN_CODE => Ok(()),
        kind => Err(Error::unexpected(kind)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_greeting_looks_like_this_on_the_wire() {
        let expected = [&[0x2a, 0, 0, 0, 0, 15][..], b"slurm-operator\0", &[0, 1, 0, 0]].concat();
        assert_eq!(pack_greeting().unwrap(), expected);
    }

    #[test]
    fn slurmdbd_is_told_from_others() {
        let framed = |kind| Frame::new(VERSION, kind, vec![0; 4]).pack("t").unwrap()[4..].to_vec();
        for (answer, is_slurmdbd) in [
            (vec![0x05, 0x99, 0, 0, 0, 0], true),
            (framed(MessageType::PERSIST_RETURN_CODE), true),
            (framed(MessageType::RESPONSE_RETURN_CODE), true),
            (framed(MessageType::RESPONSE_CONFIG), false),
            (b"HTTP/1.1 400 Bad Request".to_vec(), false),
            (vec![], false),
        ] {
            assert_eq!(check_answer(&answer).is_ok(), is_slurmdbd, "{answer:?}");
        }
    }
}
