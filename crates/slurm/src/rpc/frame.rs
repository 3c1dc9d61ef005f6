//! One message: a header, a credential, a body.

use super::error::Error;
use super::version::Version;
use super::wire::{Field, Fields, Malformed, Reader, Unpackable, Writer};

/// The largest response is all files of a configuration, for which the operator allows a few megabytes.
pub const MAX_FRAME: usize = 64 * 1024 * 1024;

/// The numbers of the plugins auth/jwt and auth/slurm, whose credential follows the header.
const AUTH_JWT: u32 = 102;
const AUTH_SLURM: u32 = 103;

/// Version, flags, type, length of the body, then the numbers of hops and of collected responses, and the kind of the
/// sender's address. The last three are zero in a message that is not forwarded.
const SHORTEST_HEADER: usize = 16;

/// The type of a message, by the name in Slurm's sources.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct MessageType(pub u16);

impl MessageType {
    pub const NODE_REGISTRATION_STATUS: Self = Self(1001);
    pub const PING: Self = Self(1008);
    /// slurmd's response to a ping, and to a request to register.
    pub const RESPONSE_PING: Self = Self(1016);
    pub const PERSIST_RETURN_CODE: Self = Self(1433);
    pub const BUILD_INFO: Self = Self(2001);
    pub const RESPONSE_BUILD_INFO: Self = Self(2002);
    pub const NODE_INFO: Self = Self(2007);
    pub const RESPONSE_NODE_INFO: Self = Self(2008);
    pub const PARTITION_INFO: Self = Self(2009);
    pub const RESPONSE_PARTITION_INFO: Self = Self(2010);
    pub const CONFIG: Self = Self(2015);
    pub const RESPONSE_CONFIG: Self = Self(2016);
    pub const NODE_INFO_SINGLE: Self = Self(2040);
    pub const UPDATE_NODE: Self = Self(3002);
    pub const CREATE_PARTITION: Self = Self(3003);
    pub const DELETE_PARTITION: Self = Self(3004);
    pub const UPDATE_PARTITION: Self = Self(3005);
    pub const DELETE_NODE: Self = Self(3014);
    pub const CREATE_NODE: Self = Self(3015);
    pub const COMPLETE_JOB_ALLOCATION: Self = Self(5017);
    pub const COMPLETE_BATCH_SCRIPT: Self = Self(5018);
    pub const PERSIST_INIT: Self = Self(6500);
    pub const RESPONSE_RETURN_CODE: Self = Self(8001);
    /// A return code with a message.
    pub const RESPONSE_RETURN_CODE_AND_TEXT: Self = Self(8002);
}

/// A message without the credential.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Frame {
    /// As on the wire, possibly of an unknown release.
    pub version: u16,
    pub kind: MessageType,
    pub body: Vec<u8>,
}

impl Frame {
    pub fn new(version: Version, kind: MessageType, body: Vec<u8>) -> Self {
        Self {
            version: version.wire(),
            kind,
            body,
        }
    }

    /// Returns the bytes to send, with the length of the whole in front.
    pub fn pack(&self, token: &str) -> Result<Vec<u8>, Unpackable> {
        // Without the user, which the token names.
        self.pack_with(AUTH_JWT, &[Some(token), None])
    }

    /// The same with a credential of auth/slurm.
    pub(super) fn pack_for_daemon(&self, credential: &str) -> Result<Vec<u8>, Unpackable> {
        self.pack_with(AUTH_SLURM, &[Some(credential)])
    }

    fn pack_with(&self, plugin: u32, credential: &[Option<&str>]) -> Result<Vec<u8>, Unpackable> {
        let mut frame = Writer::default();
        frame.u16(&mut { self.version })?;
        // Flags.
        frame.skip(&[Field::U16])?;
        frame.u16(&mut { self.kind.0 })?;
        frame.length(self.body.len())?;
        frame.skip(&[Field::U16; 3])?;
        frame.u32(&mut { plugin })?;
        for text in credential {
            frame.text(&mut text.map(str::to_owned))?;
        }
        frame.raw(&self.body);
        let frame = frame.into_bytes();
        if frame.len() > MAX_FRAME {
            return Err(Unpackable::TooLarge);
        }
        let mut sent = Writer::default();
        sent.length(frame.len())?;
        sent.raw(&frame);
        Ok(sent.into_bytes())
    }

    /// Reads the bytes that follow the length of the whole. slurmctld's responses carry no credential (measured), so the sender
    /// is identified by its address alone.
    pub fn unpack(bytes: &[u8]) -> Result<Self, Malformed> {
        let mut reader = Reader::new(bytes);
        let (mut version, mut kind) = (0, 0);
        reader.u16(&mut version)?;
        reader.skip(&[Field::U16])?;
        reader.u16(&mut kind)?;
        let length = usize::try_from(reader.length()?).map_err(|_| Malformed::Truncated)?;
        let start = bytes.len().checked_sub(length).ok_or(Malformed::Truncated)?;
        if start < SHORTEST_HEADER {
            return Err(Malformed::Truncated);
        }
        let body = bytes.get(start..).ok_or(Malformed::Truncated)?.to_vec();
        Ok(Self {
            version,
            kind: MessageType(kind),
            body,
        })
    }

    /// Returns the body of a response that has to be of this type.
    pub(super) fn body_of(&self, kind: MessageType) -> Result<&[u8], Error> {
        if self.kind != kind {
            return Err(Error::unexpected(self.kind));
        }
        Ok(&self.body)
    }

    /// Returns the token of a request, for a test that acts as slurmctld.
    pub fn token(bytes: &[u8]) -> Result<String, Malformed> {
        let credential = bytes.get(SHORTEST_HEADER..).ok_or(Malformed::Truncated)?;
        let mut reader = Reader::new(credential);
        reader.skip(&[Field::U32])?;
        let mut token = String::new();
        reader.string(&mut token)?;
        Ok(token)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_message_has_this_wire_format() {
        let frame = Frame::new(Version::V45, MessageType::DELETE_PARTITION, b"body".to_vec());
        let packed = frame.pack("tok").unwrap();
        assert_eq!(
            packed,
            [
                &[0, 0, 0, 36][..],
                &[0x2d, 0, 0, 0, 0x0b, 0xbc, 0, 0, 0, 4, 0, 0, 0, 0, 0, 0],
                &[0, 0, 0, 102, 0, 0, 0, 4],
                b"tok\0",
                &[0, 0, 0, 0],
                b"body"
            ]
            .concat()
        );
        assert_eq!(Frame::unpack(&packed[4..]), Ok(frame));
        assert_eq!(Frame::token(&packed[4..]).unwrap(), "tok");
    }

    #[test]
    fn a_body_longer_than_its_message_is_malformed() {
        let packed = Frame::new(Version::V42, MessageType::PING, vec![]).pack("t").unwrap();
        let mut longer = packed[4..].to_vec();
        longer[6..10].copy_from_slice(&u32::MAX.to_be_bytes());
        assert_eq!(Frame::unpack(&longer), Err(Malformed::Truncated));
        // The body would begin inside the header.
        longer[6..10].copy_from_slice(&20_u32.to_be_bytes());
        assert_eq!(Frame::unpack(&longer), Err(Malformed::Truncated));
    }

    #[test]
    fn a_message_that_is_too_large_is_not_sent() {
        let frame = Frame::new(Version::V42, MessageType::PING, vec![0; MAX_FRAME]);
        assert_eq!(frame.pack("t"), Err(Unpackable::TooLarge));
    }

    proptest! {
        #[test]
        fn garbage_is_malformed_or_read_within_its_bounds(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            if let Ok(frame) = Frame::unpack(&bytes) {
                prop_assert!(frame.body.len() + SHORTEST_HEADER <= bytes.len());
            }
            let _ = Frame::token(&bytes);
        }

        #[test]
        fn every_body_is_read_back(body in prop::collection::vec(any::<u8>(), 0..200), kind in any::<u16>()) {
            let frame = Frame::new(Version::V43, MessageType(kind), body);
            prop_assert_eq!(Frame::unpack(&frame.pack("token").unwrap()[4..]), Ok(frame));
        }
    }
}
