//! The files slurmctld serves to nodes (REQUEST_CONFIG): their bytes as it read them when it last took a configuration, or
//! failed to.

use super::wire::{Malformed, Reader, Unpackable, Writer};

/// All there is, as slurmd asks for it.
const FLAGS: u32 = 1;

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServedFile {
    pub name: String,
    /// None of a file that slurmctld looked for and did not find: nodes remove theirs.
    pub content: Option<Vec<u8>>,
    pub executable: bool,
}

pub(super) fn pack_question() -> Vec<u8> {
    let mut body = Writer::default();
    body.u32(FLAGS);
    // Where the asking slurmd listens; we are none.
    body.u16(0);
    body.into_bytes()
}

pub(super) fn unpack_served_files(body: &[u8]) -> Result<Vec<ServedFile>, Malformed> {
    let mut reader = Reader::new(body);
    let count = reader.u32()?;
    let mut files = Vec::new();
    for _ in 0..count {
        let exists = reader.u8()? != 0;
        let executable = reader.u8()? != 0;
        let name = reader.text()?.unwrap_or_default();
        let content = reader.text()?.unwrap_or_default();
        files.push(ServedFile {
            name: String::from_utf8_lossy(name).into_owned(),
            content: exists.then(|| content.to_vec()),
            executable,
        });
    }
    // The spool directory follows, and whatever later releases have put behind it.
    let _spool_directory = reader.text()?;
    Ok(files)
}

/// The answer, for whoever plays slurmctld.
pub fn pack_served_files(files: &[ServedFile]) -> Result<Vec<u8>, Unpackable> {
    let mut body = Writer::default();
    body.length(files.len())?;
    for ServedFile {
        name,
        content,
        executable,
    } in files
    {
        body.u8(content.is_some().into());
        body.u8((*executable).into());
        body.text(Some(name.as_bytes()))?;
        body.text(content.as_deref())?;
    }
    body.text(Some(b"/var/spool/slurmd"))?;
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
    fn the_question_looks_like_this_on_the_wire() {
        assert_eq!(pack_question(), [0, 0, 0, 1, 0, 0]);
    }

    #[test]
    fn a_count_is_not_believed() {
        assert_eq!(unpack_served_files(&[0xff; 4]), Err(Malformed::Truncated));
    }

    proptest! {
        #[test]
        fn files_come_back_and_never_from_less(files in files()) {
            let body = pack_served_files(&files).unwrap();
            prop_assert_eq!(unpack_served_files(&body).unwrap(), files);
            for end in 0..body.len() {
                prop_assert_eq!(unpack_served_files(&body[..end]), Err(Malformed::Truncated));
            }
        }

        #[test]
        fn garbage_takes_no_more_room_than_it_has(bytes in prop::collection::vec(any::<u8>(), 0..400)) {
            if let Ok(files) = unpack_served_files(&bytes) {
                prop_assert!(files.len() * 10 <= bytes.len());
            }
        }
    }
}
