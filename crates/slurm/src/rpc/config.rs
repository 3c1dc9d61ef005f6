//! The files slurmctld serves to nodes (REQUEST_CONFIG), as it read them in its last reconfigure, even a failed one.

use super::wire::{Field, Fields, Malformed, Reader, Unpackable, Writer};

/// Requests all files, as slurmd does.
const FLAGS: u32 = 1;

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ServedFile {
    pub name: String,
    /// `None` for a file that slurmctld looked for and did not find: nodes remove theirs.
    pub content: Option<Vec<u8>>,
    pub executable: bool,
}

impl ServedFile {
    fn fields<F: Fields>(&mut self, fields: &mut F) -> Result<(), F::Error> {
        let mut exists = u8::from(self.content.is_some());
        let mut executable = u8::from(self.executable);
        fields.u8(&mut exists)?;
        fields.u8(&mut executable)?;
        fields.string(&mut self.name)?;
        fields.bytes(&mut self.content)?;
        if exists == 0 {
            self.content = None;
        } else {
            self.content.get_or_insert_default();
        }
        self.executable = executable != 0;
        Ok(())
    }
}

pub(super) fn pack_request() -> Result<Vec<u8>, Unpackable> {
    let mut body = Writer::default();
    body.u32(&mut { FLAGS })?;
    // The port of a slurmd.
    body.u16(&mut 0)?;
    Ok(body.into_bytes())
}

pub(super) fn unpack_served_files(body: &[u8]) -> Result<Vec<ServedFile>, Malformed> {
    let mut reader = Reader::new(body);
    let mut files = Vec::new();
    for _ in 0..reader.length()? {
        let mut file = ServedFile::default();
        file.fields(&mut reader)?;
        files.push(file);
    }
    // The spool directory follows, and fields of later releases.
    reader.skip(&[Field::Text])?;
    Ok(files)
}

/// Returns the response, for a test that acts as slurmctld.
pub fn pack_served_files(files: &[ServedFile]) -> Result<Vec<u8>, Unpackable> {
    let mut body = Writer::default();
    body.length(files.len())?;
    for file in files {
        file.clone().fields(&mut body)?;
    }
    body.text(&mut Some("/var/spool/slurmd".to_owned()))?;
    Ok(body.into_bytes())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn files() -> impl Strategy<Value = Vec<ServedFile>> {
        let file = ("[a-z.]{1,12}", prop::option::of("[^\\x00]{0,30}"), any::<bool>()).prop_map(
            |(name, content, executable)| ServedFile {
                name,
                content: content.map(String::into_bytes),
                executable,
            },
        );
        prop::collection::vec(file, 0..6)
    }

    #[test]
    fn the_request_has_this_wire_format() {
        assert_eq!(pack_request().unwrap(), [0, 0, 0, 1, 0, 0]);
    }

    #[test]
    fn a_count_beyond_the_message_is_malformed() {
        assert_eq!(unpack_served_files(&[0xff; 4]), Err(Malformed::Truncated));
    }

    proptest! {
        #[test]
        fn files_are_read_back_and_never_from_a_truncated_message(files in files()) {
            let body = pack_served_files(&files).unwrap();
            prop_assert_eq!(unpack_served_files(&body).unwrap(), files);
            for end in 0..body.len() {
                prop_assert_eq!(unpack_served_files(&body[..end]), Err(Malformed::Truncated));
            }
        }

        #[test]
        fn garbage_allocates_no_more_than_its_own_size(bytes in prop::collection::vec(any::<u8>(), 0..400)) {
            if let Ok(files) = unpack_served_files(&bytes) {
                prop_assert!(files.len() * 10 <= bytes.len());
            }
        }
    }
}
