//! How Slurm writes numbers and text: big endian, and a text as its length, its bytes and a NUL, which counts.

use thiserror::Error;

/// Bytes that are not what they should be.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum Malformed {
    #[error("it ends too early")]
    Truncated,
    #[error("a text does not end in NUL")]
    Unterminated,
}

/// What cannot be sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum Unpackable {
    /// Slurm would take the text to end there.
    #[error("a text holds a NUL character")]
    Nul,
    #[error("it is too large")]
    TooLarge,
    /// The release on the other side is too old for it.
    #[error("its release has no {0} here")]
    Lacking(&'static str),
}

/// No value: left as it is by an update.
pub(super) const UNSET_U16: u16 = 0xfffe;
pub(super) const UNSET_U32: u32 = 0xffff_fffe;
pub(super) const UNSET_U64: u64 = 0xffff_ffff_ffff_fffe;

#[derive(Debug, Default)]
pub(super) struct Writer(Vec<u8>);

impl Writer {
    pub(super) fn u8(&mut self, value: u8) {
        self.0.push(value);
    }

    pub(super) fn u16(&mut self, value: u16) {
        self.0.extend(value.to_be_bytes());
    }

    pub(super) fn u32(&mut self, value: u32) {
        self.0.extend(value.to_be_bytes());
    }

    pub(super) fn u64(&mut self, value: u64) {
        self.0.extend(value.to_be_bytes());
    }

    /// How many of something follow, or how long something is.
    pub(super) fn length(&mut self, length: usize) -> Result<(), Unpackable> {
        self.u32(u32::try_from(length).map_err(|_| Unpackable::TooLarge)?);
        Ok(())
    }

    /// In updates, no text means "as it is" and an empty one means "none".
    pub(super) fn text(&mut self, text: Option<&[u8]>) -> Result<(), Unpackable> {
        let Some(text) = text else {
            self.u32(0);
            return Ok(());
        };
        if text.contains(&0) {
            return Err(Unpackable::Nul);
        }
        self.length(text.len().saturating_add(1))?;
        self.0.extend(text);
        self.0.push(0);
        Ok(())
    }

    pub(super) fn str(&mut self, text: Option<&str>) -> Result<(), Unpackable> {
        self.text(text.map(str::as_bytes))
    }

    pub(super) fn raw(&mut self, bytes: &[u8]) {
        self.0.extend(bytes);
    }

    pub(super) fn into_bytes(self) -> Vec<u8> {
        self.0
    }
}

/// Takes values off the front. Nothing is copied or set aside before it has been seen to be there.
#[derive(Debug, Clone, Copy)]
pub(super) struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    pub(super) fn new(bytes: &'a [u8]) -> Self {
        Self(bytes)
    }

    /// How many bytes are left.
    pub(super) fn left(&self) -> usize {
        self.0.len()
    }

    pub(super) fn take(&mut self, count: usize) -> Result<&'a [u8], Malformed> {
        let (taken, rest) = self.0.split_at_checked(count).ok_or(Malformed::Truncated)?;
        self.0 = rest;
        Ok(taken)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], Malformed> {
        let (taken, rest) = self.0.split_first_chunk().ok_or(Malformed::Truncated)?;
        self.0 = rest;
        Ok(*taken)
    }

    pub(super) fn u8(&mut self) -> Result<u8, Malformed> {
        self.array().map(u8::from_be_bytes)
    }

    pub(super) fn u16(&mut self) -> Result<u16, Malformed> {
        self.array().map(u16::from_be_bytes)
    }

    pub(super) fn u32(&mut self) -> Result<u32, Malformed> {
        self.array().map(u32::from_be_bytes)
    }

    pub(super) fn i32(&mut self) -> Result<i32, Malformed> {
        self.array().map(i32::from_be_bytes)
    }

    pub(super) fn u64(&mut self) -> Result<u64, Malformed> {
        self.array().map(u64::from_be_bytes)
    }

    /// Without its NUL.
    pub(super) fn text(&mut self) -> Result<Option<&'a [u8]>, Malformed> {
        let length = usize::try_from(self.u32()?).map_err(|_| Malformed::Truncated)?;
        if length == 0 {
            return Ok(None);
        }
        match self.take(length)?.split_last() {
            Some((0, text)) => Ok(Some(text)),
            _ => Err(Malformed::Unterminated),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_text_has_its_length_in_front_and_a_nul_behind() {
        let mut writer = Writer::default();
        writer.text(Some(b"n1")).unwrap();
        writer.text(Some(b"")).unwrap();
        writer.text(None).unwrap();
        assert_eq!(writer.0, b"\0\0\0\x03n1\0\0\0\0\x01\0\0\0\0\0");
        let mut reader = Reader::new(&writer.0);
        assert_eq!(reader.text(), Ok(Some(&b"n1"[..])));
        assert_eq!(reader.text(), Ok(Some(&b""[..])));
        assert_eq!(reader.text(), Ok(None));
        assert_eq!(reader.u8(), Err(Malformed::Truncated));
    }

    #[test]
    fn a_text_that_slurm_would_cut_short_is_not_sent() {
        assert_eq!(Writer::default().text(Some(b"a\0b")), Err(Unpackable::Nul));
    }

    #[test]
    fn a_text_that_is_not_all_there_is_no_text() {
        for (bytes, why) in [
            (&b"\0\0\0\x03ab"[..], Malformed::Truncated),
            (b"\0\0\0", Malformed::Truncated),
            (b"\xff\xff\xff\xffab\0", Malformed::Truncated),
            (b"\0\0\0\x02ab", Malformed::Unterminated),
        ] {
            assert_eq!(Reader::new(bytes).text(), Err(why), "{bytes:?}");
        }
    }

    proptest! {
        #[test]
        fn what_was_written_is_read(texts in prop::collection::vec(prop::option::of("[^\\x00]{0,20}"), 0..8), numbers in any::<(u8, u16, u32, u64)>()) {
            let mut writer = Writer::default();
            writer.u8(numbers.0);
            writer.u16(numbers.1);
            writer.u32(numbers.2);
            writer.u64(numbers.3);
            for text in &texts {
                writer.text(text.as_ref().map(String::as_bytes)).unwrap();
            }
            let mut reader = Reader::new(&writer.0);
            prop_assert_eq!((reader.u8(), reader.u16(), reader.u32(), reader.u64()), (Ok(numbers.0), Ok(numbers.1), Ok(numbers.2), Ok(numbers.3)));
            for text in &texts {
                prop_assert_eq!(reader.text().unwrap(), text.as_ref().map(String::as_bytes));
            }
            prop_assert_eq!(reader.u8(), Err(Malformed::Truncated));
        }
    }
}
