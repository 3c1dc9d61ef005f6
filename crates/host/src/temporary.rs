//! A directory that is removed with its value.

use std::path::{Path, PathBuf};

use crate::{FileError, Host};

/// A directory that only this user can enter. Dropping it removes it with everything in it.
#[derive(Debug)]
pub struct TemporaryDirectory {
    host: Host,
    path: PathBuf,
}

impl TemporaryDirectory {
    /// Creates it in `parent`, under a name that begins with `prefix`.
    pub(crate) fn create(host: &Host, parent: &Path, prefix: &str) -> Result<Self, FileError> {
        loop {
            let path = parent.join(format!("{prefix}{:016x}", host.random().u64()));
            match host.files().create_directory(&path, 0o700) {
                Err(error) if error.is_already_exists() => {}
                Err(error) => return Err(error),
                Ok(()) => {
                    let host = host.clone();
                    return Ok(Self { host, path });
                }
            }
        }
    }

    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for TemporaryDirectory {
    fn drop(&mut self) {
        let _ = self.host.files().remove_tree(&self.path);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_temporary_directory_is_private_and_goes_with_its_content() {
        let parent = tempfile::tempdir().unwrap();
        let host = Host::real();
        let directory = host.temporary_directory(parent.path(), "x-").unwrap();
        let other = host.temporary_directory(parent.path(), "x-").unwrap();
        assert_ne!(directory.path(), other.path());
        assert_eq!(host.files().metadata(directory.path()).unwrap().mode, 0o700);
        host.files().create(&directory.path().join("a"), b"", 0o600).unwrap();
        drop((directory, other));
        assert_eq!(host.files().entries(parent.path()).unwrap(), []);
    }
}
