//! The file system.
//!
//! Its calls block. A caller that must not wait for a volume that hangs makes them in a thread of its own
//! ([`Host::spawn_thread`](crate::Host::spawn_thread)).
#![allow(clippy::disallowed_methods, reason = "everything else goes through this file")]

use std::{
    ffi::OsString,
    fmt,
    fs::{self, DirBuilder, File, OpenOptions, Permissions},
    io::{self, Write as _},
    os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _, PermissionsExt as _, chown, symlink},
    path::{Path, PathBuf},
    time::SystemTime,
};

use thiserror::Error;

use crate::real::{Real, hostname};

/// A failed operation, with the path it was for.
#[derive(Debug, Error)]
#[error("cannot {action} {path}: {source}", path = .path.display())]
pub struct FileError {
    action: &'static str,
    path: PathBuf,
    source: io::Error,
}

impl FileError {
    /// `action` is a verb, such as "read".
    pub fn new(action: &'static str, path: &Path, source: io::Error) -> Self {
        Self {
            action,
            path: path.to_owned(),
            source,
        }
    }

    pub fn is_not_found(&self) -> bool {
        self.source.kind() == io::ErrorKind::NotFound
    }

    pub fn is_already_exists(&self) -> bool {
        self.source.kind() == io::ErrorKind::AlreadyExists
    }
}

/// What a file operation returns.
type Result<T> = std::result::Result<T, FileError>;

/// Whether [`Files::replace`] waits for the disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Durability {
    /// File and directory are on the disk before the call returns.
    Synced,
    /// Only a crash of the machine can leave a torn file.
    Unsynced,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FileKind {
    File,
    Directory,
    /// Only of [`Entry`]: [`Files::metadata`] follows links.
    Link,
    Other,
}

/// What is at a path.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Metadata {
    pub kind: FileKind,
    /// The permission bits.
    pub mode: u32,
    pub modified: SystemTime,
}

/// One name in a directory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    pub name: OsString,
    pub kind: FileKind,
}

/// The file system, real or simulated.
pub trait Files: fmt::Debug + Send + Sync {
    fn read(&self, path: &Path) -> Result<Vec<u8>>;

    /// Follows links.
    fn metadata(&self, path: &Path) -> Result<Metadata>;

    /// The names in a directory, in no order.
    fn entries(&self, directory: &Path) -> Result<Vec<Entry>>;

    fn read_link(&self, path: &Path) -> Result<PathBuf>;

    fn canonicalize(&self, path: &Path) -> Result<PathBuf>;

    /// Creates a file with exactly this mode, whatever the umask. Fails if the path exists.
    fn create(&self, path: &Path, bytes: &[u8], mode: u32) -> Result<()>;

    /// Creates or replaces a file. A reader sees the old content or the new one, never a part.
    fn replace(&self, path: &Path, bytes: &[u8], mode: u32, durability: Durability) -> Result<()>;

    fn rename(&self, from: &Path, to: &Path) -> Result<()>;

    /// Removes a file or a link.
    fn remove(&self, path: &Path) -> Result<()>;

    /// Removes a directory and everything in it.
    fn remove_tree(&self, path: &Path) -> Result<()>;

    /// Fails if the path exists.
    fn create_directory(&self, path: &Path, mode: u32) -> Result<()>;

    /// Creates a directory and its missing parents; one that exists is left as it is.
    fn create_directories(&self, path: &Path, mode: u32) -> Result<()>;

    /// Waits until the names in a directory are on the disk.
    fn sync_directory(&self, path: &Path) -> Result<()>;

    fn symlink(&self, target: &Path, link: &Path) -> Result<()>;

    fn set_mode(&self, path: &Path, mode: u32) -> Result<()>;

    fn set_owner(&self, path: &Path, user: u32, group: u32) -> Result<()>;
}

/// What several operations have in common.
impl dyn Files + '_ {
    /// The content as text; bytes that are no UTF-8 are replaced.
    pub fn read_text(&self, path: &Path) -> Result<String> {
        self.read(path)
            .map(|bytes| String::from_utf8_lossy(&bytes).into_owned())
    }

    pub fn is(&self, kind: FileKind, path: &Path) -> bool {
        self.metadata(path).is_ok_and(|found| found.kind == kind)
    }

    /// Removes a file or a link, if there is one. Returns whether there was.
    pub fn remove_if_exists(&self, path: &Path) -> Result<bool> {
        match self.remove(path) {
            Ok(()) => Ok(true),
            Err(error) if error.is_not_found() => Ok(false),
            Err(error) => Err(error),
        }
    }
}

fn failed(action: &'static str, path: &Path) -> impl FnOnce(io::Error) -> FileError {
    move |source| FileError::new(action, path, source)
}

impl Files for Real {
    fn read(&self, path: &Path) -> Result<Vec<u8>> {
        fs::read(path).map_err(failed("read", path))
    }

    fn metadata(&self, path: &Path) -> Result<Metadata> {
        let read = || {
            let found = fs::metadata(path)?;
            Ok(Metadata {
                kind: kind(found.file_type()),
                mode: found.permissions().mode() & 0o7777,
                modified: found.modified()?,
            })
        };
        read().map_err(failed("read", path))
    }

    fn entries(&self, directory: &Path) -> Result<Vec<Entry>> {
        let entry = |entry: io::Result<fs::DirEntry>| {
            let entry = entry?;
            Ok(Entry {
                kind: kind(entry.file_type()?),
                name: entry.file_name(),
            })
        };
        fs::read_dir(directory)
            .and_then(|entries| entries.map(entry).collect())
            .map_err(failed("read", directory))
    }

    fn read_link(&self, path: &Path) -> Result<PathBuf> {
        fs::read_link(path).map_err(failed("read", path))
    }

    fn canonicalize(&self, path: &Path) -> Result<PathBuf> {
        fs::canonicalize(path).map_err(failed("read", path))
    }

    fn create(&self, path: &Path, bytes: &[u8], mode: u32) -> Result<()> {
        let write = || {
            let mut file = OpenOptions::new().write(true).create_new(true).mode(mode).open(path)?;
            file.write_all(bytes)?;
            file.set_permissions(Permissions::from_mode(mode))
        };
        write().map_err(failed("write", path))
    }

    fn replace(&self, path: &Path, bytes: &[u8], mode: u32, durability: Durability) -> Result<()> {
        let directory = path.parent().unwrap_or(Path::new("/"));
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        // Processes of other machines may write to the same directory.
        let temporary = directory.join(format!(".{name}.{}-{}", hostname(), std::process::id()));
        let write = || {
            let mut options = OpenOptions::new();
            let options = options.write(true).create(true).truncate(true).mode(mode);
            let mut file = options.open(&temporary)?;
            file.write_all(bytes)?;
            if durability == Durability::Synced {
                file.sync_all()?;
            }
            fs::rename(&temporary, path)
        };
        if let Err(error) = write() {
            let _ = fs::remove_file(&temporary);
            return Err(FileError::new("write", path, error));
        }
        match durability {
            Durability::Synced => self.sync_directory(directory),
            Durability::Unsynced => Ok(()),
        }
    }

    fn rename(&self, from: &Path, to: &Path) -> Result<()> {
        fs::rename(from, to).map_err(failed("write", to))
    }

    fn remove(&self, path: &Path) -> Result<()> {
        fs::remove_file(path).map_err(failed("remove", path))
    }

    fn remove_tree(&self, path: &Path) -> Result<()> {
        fs::remove_dir_all(path).map_err(failed("remove", path))
    }

    fn create_directory(&self, path: &Path, mode: u32) -> Result<()> {
        let created = DirBuilder::new().mode(mode).create(path);
        created.map_err(failed("create", path))
    }

    fn create_directories(&self, path: &Path, mode: u32) -> Result<()> {
        let created = DirBuilder::new().recursive(true).mode(mode).create(path);
        created.map_err(failed("create", path))
    }

    fn sync_directory(&self, path: &Path) -> Result<()> {
        let synced = File::open(path).and_then(|directory| directory.sync_all());
        synced.map_err(failed("write", path))
    }

    fn symlink(&self, target: &Path, link: &Path) -> Result<()> {
        symlink(target, link).map_err(failed("write", link))
    }

    fn set_mode(&self, path: &Path, mode: u32) -> Result<()> {
        fs::set_permissions(path, Permissions::from_mode(mode)).map_err(failed("set the mode of", path))
    }

    fn set_owner(&self, path: &Path, user: u32, group: u32) -> Result<()> {
        chown(path, Some(user), Some(group)).map_err(failed("set the owner of", path))
    }
}

fn kind(found: fs::FileType) -> FileKind {
    if found.is_file() {
        FileKind::File
    } else if found.is_dir() {
        FileKind::Directory
    } else if found.is_symlink() {
        FileKind::Link
    } else {
        FileKind::Other
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Host;

    #[test]
    fn a_replaced_file_has_the_new_content_and_nothing_else_is_left() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("a");
        let host = Host::real();
        for (text, durability) in [("one", Durability::Synced), ("two", Durability::Unsynced)] {
            host.files().replace(&path, text.as_bytes(), 0o640, durability).unwrap();
            assert_eq!(host.files().read_text(&path).unwrap(), text);
        }
        assert_eq!(host.files().entries(directory.path()).unwrap().len(), 1);
        assert!(
            host.files()
                .replace(&path.join("b"), b"", 0o640, Durability::Synced)
                .is_err()
        );
    }

    #[test]
    fn a_created_file_has_its_mode_and_is_never_overwritten() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("a");
        let host = Host::real();
        // No usual umask lets others write.
        host.files().create(&path, b"one", 0o777).unwrap();
        assert_eq!(host.files().metadata(&path).unwrap().mode, 0o777);
        assert!(
            host.files()
                .create(&path, b"two", 0o777)
                .unwrap_err()
                .is_already_exists()
        );
        assert_eq!(host.files().read(&path).unwrap(), b"one");
    }

    #[test]
    fn an_error_names_the_path() {
        let error = Host::real().files().read(Path::new("/no/such/file")).unwrap_err();
        assert!(error.is_not_found());
        assert!(error.to_string().starts_with("cannot read /no/such/file: "), "{error}");
    }

    #[test]
    fn an_entry_shows_a_link_where_metadata_follows_it() {
        let directory = tempfile::tempdir().unwrap();
        let host = Host::real();
        let link = directory.path().join("link");
        host.files().symlink(directory.path(), &link).unwrap();
        let entries = host.files().entries(directory.path()).unwrap();
        assert_eq!(entries.first().unwrap().kind, FileKind::Link);
        assert!(host.files().is(FileKind::Directory, &link));
        assert!(host.files().remove_if_exists(&link).unwrap());
        assert!(!host.files().remove_if_exists(&link).unwrap());
    }
}
