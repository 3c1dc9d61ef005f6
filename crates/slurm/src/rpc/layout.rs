//! Parts of large answers that are passed over on the way to what is read.

use super::wire::{Malformed, Reader, UNSET_U32, Unpackable, Writer};

/// The kinds of values an answer is made of.
#[derive(Debug, Clone, Copy)]
pub(super) enum Value {
    U16,
    U32,
    U64,
    Text,
    Texts,
    /// Names with values.
    Pairs,
}

use Value::{Pairs, Text, Texts, U16, U32, U64};

pub(super) fn pass_over(reader: &mut Reader<'_>, values: &[Value]) -> Result<(), Malformed> {
    for value in values {
        match value {
            U16 => reader.u16().map(drop)?,
            U32 => reader.u32().map(drop)?,
            U64 => reader.u64().map(drop)?,
            Text => reader.text().map(drop)?,
            Texts => {
                for _ in 0..reader.u32()? {
                    reader.text()?;
                }
            }
            Pairs => match reader.u32()? {
                // There is no list.
                UNSET_U32 => {}
                count => {
                    for _ in 0..count {
                        reader.text()?;
                        reader.text()?;
                    }
                }
            },
        }
    }
    Ok(())
}

/// The same part with nothing in it, for whoever plays slurmctld.
pub(super) fn pack_nothing(body: &mut Writer, values: &[Value]) -> Result<(), Unpackable> {
    for value in values {
        match value {
            U16 => body.u16(0),
            U32 | Texts => body.u32(0),
            U64 => body.u64(0),
            Text => body.text(None)?,
            Pairs => body.u32(UNSET_U32),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_in_between_may_be_full_or_empty() {
        let mut reader = Reader::new(b"\0\0\0\x01\0\0\0\x02a\0\0\0\0\x02b\0\0\0\0\x01\0\0\0\0\xff\xff\xff\xfe!");
        pass_over(&mut reader, &[Pairs, Texts, Pairs]).unwrap();
        assert_eq!(reader.u8(), Ok(b'!'));
    }
}
