//! How Slurm writes numbers and text: big endian, and a text as its length, its bytes and a NUL, which the length includes.
//!
//! A message lists its fields once, for both directions ([`Fields`]): the client writes requests and reads responses, and a
//! test that acts as slurmctld does the opposite.

use thiserror::Error;

/// Why a message cannot be read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum Malformed {
    #[error("it ends too early")]
    Truncated,
    #[error("a text does not end in NUL")]
    Unterminated,
}

/// Why a message cannot be sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum Unpackable {
    /// Slurm would end the text there.
    #[error("a text holds a NUL character")]
    Nul,
    #[error("it is too large")]
    TooLarge,
    /// The protocol version of the receiver is too old for it.
    #[error("its release has no {0}")]
    Lacking(&'static str),
}

/// No value: an update leaves the setting unchanged.
pub(super) const UNSET_U16: u16 = 0xfffe;
pub(super) const UNSET_U32: u32 = 0xffff_fffe;
pub(super) const UNSET_U64: u64 = 0xffff_ffff_ffff_fffe;

/// A number, and one that may have no value.
macro_rules! numbers {
    ($($type:ident, $optional:ident: $unset:ident;)+) => {$(
        fn $type(&mut self, value: &mut $type) -> Result<(), Self::Error> {
            let mut bytes = value.to_be_bytes();
            self.array(&mut bytes)?;
            *value = $type::from_be_bytes(bytes);
            Ok(())
        }

        fn $optional(&mut self, value: &mut Option<$type>) -> Result<(), Self::Error> {
            let mut raw = value.unwrap_or($unset);
            self.$type(&mut raw)?;
            *value = Some(raw).filter(|raw| *raw != $unset);
            Ok(())
        }
    )+};
}

/// A sequence of fields that is written or read.
pub(super) trait Fields {
    type Error;

    fn array<const N: usize>(&mut self, bytes: &mut [u8; N]) -> Result<(), Self::Error>;
    fn bytes(&mut self, text: &mut Option<Vec<u8>>) -> Result<(), Self::Error>;

    /// Fields whose values do not matter: read past, or written empty.
    fn skip(&mut self, fields: &[Field]) -> Result<(), Self::Error>;

    fn u8(&mut self, value: &mut u8) -> Result<(), Self::Error> {
        self.array(std::array::from_mut(value))
    }

    numbers! {
        u16, optional_u16: UNSET_U16;
        u32, optional_u32: UNSET_U32;
        u64, optional_u64: UNSET_U64;
    }

    /// In updates, no text means "unchanged" and an empty one means "none".
    fn text(&mut self, text: &mut Option<String>) -> Result<(), Self::Error> {
        let mut bytes = text.take().map(String::into_bytes);
        self.bytes(&mut bytes)?;
        *text = bytes.map(|bytes| String::from_utf8_lossy(&bytes).into_owned());
        Ok(())
    }

    /// No text and an empty one are the same.
    fn string(&mut self, text: &mut String) -> Result<(), Self::Error> {
        let mut optional = Some(std::mem::take(text)).filter(|text| !text.is_empty());
        self.text(&mut optional)?;
        *text = optional.unwrap_or_default();
        Ok(())
    }
}

/// The type of a field that is skipped.
#[derive(Debug, Clone, Copy)]
pub(super) enum Field {
    U16,
    U32,
    U64,
    Text,
    Texts,
    /// Names with values.
    Pairs,
    /// A set of nodes.
    Bitmap,
}

#[derive(Debug, Default)]
pub(super) struct Writer(Vec<u8>);

impl Fields for Writer {
    type Error = Unpackable;

    fn array<const N: usize>(&mut self, bytes: &mut [u8; N]) -> Result<(), Unpackable> {
        self.raw(bytes);
        Ok(())
    }

    fn bytes(&mut self, text: &mut Option<Vec<u8>>) -> Result<(), Unpackable> {
        let Some(text) = text else {
            return self.length(0);
        };
        if text.contains(&0) {
            return Err(Unpackable::Nul);
        }
        self.length(text.len().saturating_add(1))?;
        self.raw(text);
        self.raw(&[0]);
        Ok(())
    }

    fn skip(&mut self, fields: &[Field]) -> Result<(), Unpackable> {
        for field in fields {
            match field {
                Field::U16 => self.u16(&mut 0)?,
                Field::U32 | Field::Text | Field::Texts => self.u32(&mut 0)?,
                Field::U64 => self.u64(&mut 0)?,
                Field::Pairs | Field::Bitmap => self.u32(&mut { UNSET_U32 })?,
            }
        }
        Ok(())
    }
}

impl Writer {
    /// How many of something follow, or how long something is.
    pub(super) fn length(&mut self, length: usize) -> Result<(), Unpackable> {
        self.u32(&mut u32::try_from(length).map_err(|_| Unpackable::TooLarge)?)
    }

    pub(super) fn raw(&mut self, bytes: &[u8]) {
        self.0.extend(bytes);
    }

    pub(super) fn into_bytes(self) -> Vec<u8> {
        self.0
    }
}

/// Takes values off the front. Allocates nothing before the bytes for it are known to exist.
#[derive(Debug, Clone, Copy)]
pub(super) struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    pub(super) fn new(bytes: &'a [u8]) -> Self {
        Self(bytes)
    }

    /// Returns how many bytes are left.
    pub(super) fn left(&self) -> usize {
        self.0.len()
    }

    fn take(&mut self, count: usize) -> Result<&'a [u8], Malformed> {
        let (taken, rest) = self.0.split_at_checked(count).ok_or(Malformed::Truncated)?;
        self.0 = rest;
        Ok(taken)
    }

    pub(super) fn length(&mut self) -> Result<u32, Malformed> {
        let mut length = 0;
        self.u32(&mut length)?;
        Ok(length)
    }

    pub(super) fn i32(&mut self) -> Result<i32, Malformed> {
        self.length().map(u32::cast_signed)
    }
}

impl Fields for Reader<'_> {
    type Error = Malformed;

    fn array<const N: usize>(&mut self, bytes: &mut [u8; N]) -> Result<(), Malformed> {
        let (taken, rest) = self.0.split_first_chunk().ok_or(Malformed::Truncated)?;
        self.0 = rest;
        *bytes = *taken;
        Ok(())
    }

    fn bytes(&mut self, text: &mut Option<Vec<u8>>) -> Result<(), Malformed> {
        let length = usize::try_from(self.length()?).map_err(|_| Malformed::Truncated)?;
        *text = match self.take(length)?.split_last() {
            None => None,
            Some((0, text)) => Some(text.to_vec()),
            Some(_) => return Err(Malformed::Unterminated),
        };
        Ok(())
    }

    fn skip(&mut self, fields: &[Field]) -> Result<(), Malformed> {
        for field in fields {
            match field {
                Field::U16 => self.u16(&mut 0)?,
                Field::U32 => self.u32(&mut 0)?,
                Field::U64 => self.u64(&mut 0)?,
                Field::Text => self.bytes(&mut None)?,
                Field::Texts => {
                    for _ in 0..self.length()? {
                        self.bytes(&mut None)?;
                    }
                }
                Field::Pairs | Field::Bitmap => match (self.length()?, field) {
                    // There is no list.
                    (UNSET_U32, _) => {}
                    (_, Field::Bitmap) => self.bytes(&mut None)?,
                    (count, _) => {
                        for _ in 0..count {
                            self.skip(&[Field::Text, Field::Text])?;
                        }
                    }
                },
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn read(reader: &mut Reader<'_>) -> Result<Option<String>, Malformed> {
        let mut text = None;
        reader.text(&mut text).map(|()| text)
    }

    #[test]
    fn a_text_has_its_length_in_front_and_a_nul_behind() {
        let mut writer = Writer::default();
        for text in [Some("n1"), Some(""), None] {
            writer.text(&mut text.map(str::to_owned)).unwrap();
        }
        assert_eq!(writer.0, b"\0\0\0\x03n1\0\0\0\0\x01\0\0\0\0\0");
        let mut reader = Reader::new(&writer.0);
        assert_eq!(read(&mut reader), Ok(Some("n1".to_owned())));
        assert_eq!(read(&mut reader), Ok(Some(String::new())));
        assert_eq!(read(&mut reader), Ok(None));
        assert_eq!(reader.u8(&mut 0), Err(Malformed::Truncated));
    }

    #[test]
    fn a_text_that_slurm_would_cut_short_is_not_sent() {
        let mut text = Some(b"a\0b".to_vec());
        assert_eq!(Writer::default().bytes(&mut text), Err(Unpackable::Nul));
    }

    #[test]
    fn an_incomplete_text_is_malformed() {
        for (bytes, why) in [
            (&b"\0\0\0\x03ab"[..], Malformed::Truncated),
            (b"\0\0\0", Malformed::Truncated),
            (b"\xff\xff\xff\xffab\0", Malformed::Truncated),
            (b"\0\0\0\x02ab", Malformed::Unterminated),
        ] {
            assert_eq!(read(&mut Reader::new(bytes)), Err(why), "{bytes:?}");
        }
    }

    #[test]
    fn skipped_fields_may_be_full_or_empty() {
        let mut reader = Reader::new(b"\0\0\0\x01\0\0\0\x02a\0\0\0\0\x02b\0\0\0\0\x01\0\0\0\0\xff\xff\xff\xfe!");
        reader.skip(&[Field::Pairs, Field::Texts, Field::Pairs]).unwrap();
        let mut next = 0;
        reader.u8(&mut next).unwrap();
        assert_eq!(next, b'!');
    }

    proptest! {
        #[test]
        fn written_fields_are_read_back(texts in prop::collection::vec(prop::option::of("[^\\x00]{0,20}"), 0..8), numbers in any::<(u8, u16, u32, u64)>()) {
            let mut writer = Writer::default();
            let mut written = numbers;
            writer.u8(&mut written.0).unwrap();
            writer.u16(&mut written.1).unwrap();
            writer.u32(&mut written.2).unwrap();
            writer.u64(&mut written.3).unwrap();
            for text in &texts {
                writer.text(&mut text.clone()).unwrap();
            }
            let mut reader = Reader::new(&writer.0);
            let mut back = (0, 0, 0, 0);
            reader.u8(&mut back.0).unwrap();
            reader.u16(&mut back.1).unwrap();
            reader.u32(&mut back.2).unwrap();
            reader.u64(&mut back.3).unwrap();
            prop_assert_eq!(back, numbers);
            for text in texts {
                prop_assert_eq!(read(&mut reader).unwrap(), text);
            }
            prop_assert_eq!(reader.u8(&mut 0), Err(Malformed::Truncated));
        }
    }
}
