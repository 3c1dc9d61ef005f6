//! Disks in memory, and the file system of a machine that mounts them.

use std::{
    collections::BTreeMap,
    ffi::OsString,
    io,
    path::{Component, Path, PathBuf},
    sync::{Arc, Mutex, MutexGuard},
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use host::{Durability, Entry, FileError, FileKind, Files, Metadata};

use super::time::elapsed;
use crate::slurm::settings::EPOCH;

type Result<T> = std::result::Result<T, FileError>;

#[derive(Debug, Clone)]
enum Inode {
    File {
        bytes: Vec<u8>,
        mode: u32,
        modified: SystemTime,
    },
    Directory {
        mode: u32,
    },
    Link(PathBuf),
}

/// What is wrong with a disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DiskFault {
    /// ENOSPC for everything that needs space.
    Full,
    /// EIO for every write.
    Failing,
}

/// A disk. A clone is the same one. Paths are those under which it is mounted.
#[derive(Debug, Clone, Default)]
pub struct Disk(Arc<Mutex<Content>>);

#[derive(Debug, Default)]
struct Content {
    live: BTreeMap<PathBuf, Inode>,
    /// What a crash of the machine leaves.
    synced: BTreeMap<PathBuf, Inode>,
    fault: Option<DiskFault>,
    writes: u64,
}

impl Disk {
    fn content(&self) -> MutexGuard<'_, Content> {
        self.0.lock().unwrap()
    }

    pub fn set_fault(&self, fault: Option<DiskFault>) {
        self.content().fault = fault;
    }

    /// The machine loses power: renames and writes that nobody synced are gone.
    pub fn lose_unsynced(&self) {
        let mut content = self.content();
        content.live = content.synced.clone();
    }

    /// How often it was written to.
    pub fn writes(&self) -> u64 {
        self.content().writes
    }
}

impl Content {
    fn allow(&mut self, needs_space: bool) -> io::Result<()> {
        self.writes += 1;
        match self.fault {
            Some(DiskFault::Full) if needs_space => Err(io::Error::from_raw_os_error(28)),
            Some(DiskFault::Failing) => Err(io::Error::from_raw_os_error(5)),
            _ => Ok(()),
        }
    }

    fn sync_names(&mut self, directory: &Path) {
        let is_in = |path: &PathBuf| path.parent() == Some(directory);
        let before = self.synced.clone();
        // A file that was renamed keeps the content that was synced under its former name.
        let is_synced = |content: &[u8]| {
            let mut files = before.iter().filter(|(path, _)| is_in(path));
            files.any(|(_, inode)| matches!(inode, Inode::File { bytes, .. } if bytes == content))
        };
        self.synced
            .retain(|path, _| !is_in(path) || self.live.contains_key(path));
        for (path, inode) in self.live.iter().filter(|(path, _)| is_in(path)) {
            // A file whose content was never synced is empty after a crash.
            let kept = match inode {
                Inode::File { bytes, .. } if !before.contains_key(path) && is_synced(bytes) => inode.clone(),
                Inode::File { mode, modified, .. } if !before.contains_key(path) => Inode::File {
                    bytes: Vec::new(),
                    mode: *mode,
                    modified: *modified,
                },
                Inode::File { .. } => continue,
                other => other.clone(),
            };
            self.synced.insert(path.clone(), kept);
        }
    }
}

/// The file system of one pod.
#[derive(Debug, Clone, Default)]
pub struct FileSystem {
    root: Disk,
    mounts: Vec<(PathBuf, Disk)>,
}

impl FileSystem {
    pub fn mount(&mut self, path: &str, disk: Disk) {
        disk.content()
            .live
            .entry(path.into())
            .or_insert(Inode::Directory { mode: 0o755 });
        let mut content = disk.content();
        content
            .synced
            .entry(path.into())
            .or_insert(Inode::Directory { mode: 0o755 });
        drop(content);
        self.mounts.push((path.into(), disk));
    }

    /// Writes as the kubelet does, whatever the state of the disk.
    pub fn put(&self, path: &str, bytes: &[u8]) {
        let path = PathBuf::from(path);
        for parent in path.ancestors().skip(1) {
            let disk = self.disk(parent);
            let mut content = disk.content();
            content
                .live
                .entry(parent.into())
                .or_insert(Inode::Directory { mode: 0o755 });
        }
        let (mode, modified) = (0o644, modified());
        let bytes = bytes.to_vec();
        let disk = self.disk(&path);
        disk.content().live.insert(path, Inode::File { bytes, mode, modified });
    }

    fn disk(&self, path: &Path) -> &Disk {
        let of = self.mounts.iter().filter(|(mount, _)| path.starts_with(mount));
        of.max_by_key(|(mount, _)| mount.as_os_str().len())
            .map_or(&self.root, |(_, disk)| disk)
    }

    fn inode(&self, path: &Path) -> Option<Inode> {
        if path == Path::new("/") {
            return Some(Inode::Directory { mode: 0o755 });
        }
        self.disk(path).content().live.get(path).cloned()
    }

    /// The path without links. The last part stays as it is unless `follow`.
    fn resolve(&self, path: &Path, follow: bool) -> io::Result<PathBuf> {
        let mut found = PathBuf::from("/");
        let mut rest: Vec<OsString> = parts(path);
        rest.reverse();
        let mut links = 0;
        while let Some(part) = rest.pop() {
            if part == ".." {
                found.pop();
                continue;
            }
            let next = found.join(&part);
            match self.inode(&next) {
                Some(Inode::Link(target)) if follow || !rest.is_empty() => {
                    links += 1;
                    if links > 40 {
                        return Err(io::Error::from_raw_os_error(40));
                    }
                    if target.is_absolute() {
                        found = PathBuf::from("/");
                    }
                    rest.extend(parts(&target).into_iter().rev());
                }
                Some(Inode::Directory { .. }) => found = next,
                _ if rest.is_empty() => found = next,
                Some(_) => return Err(io::Error::from_raw_os_error(20)),
                None => return Err(io::ErrorKind::NotFound.into()),
            }
        }
        Ok(found)
    }

    fn change(
        &self,
        path: &Path,
        needs_space: bool,
        change: impl FnOnce(&mut Content, PathBuf) -> io::Result<()>,
    ) -> io::Result<()> {
        let path = self.resolve(path, false)?;
        let parent = path.parent().unwrap_or(Path::new("/"));
        if self.inode(parent).is_none() {
            return Err(io::ErrorKind::NotFound.into());
        }
        let disk = self.disk(&path);
        let mut content = disk.content();
        content.allow(needs_space)?;
        change(&mut content, path)
    }
}

fn parts(path: &Path) -> Vec<OsString> {
    let part = |part: Component<'_>| match part {
        Component::Normal(name) => Some(name.to_owned()),
        Component::ParentDir => Some("..".into()),
        _ => None,
    };
    path.components().filter_map(part).collect()
}

fn modified() -> SystemTime {
    UNIX_EPOCH + Duration::from_secs(EPOCH) + elapsed()
}

fn failed(action: &'static str, path: &Path) -> impl FnOnce(io::Error) -> FileError {
    move |source| FileError::new(action, path, source)
}

impl Files for FileSystem {
    fn read(&self, path: &Path) -> Result<Vec<u8>> {
        let read = || match self.inode(&self.resolve(path, true)?) {
            Some(Inode::File { bytes, .. }) => Ok(bytes),
            Some(_) => Err(io::Error::from_raw_os_error(21)),
            None => Err(io::ErrorKind::NotFound.into()),
        };
        read().map_err(failed("read", path))
    }

    fn metadata(&self, path: &Path) -> Result<Metadata> {
        let read = || {
            let inode = self.inode(&self.resolve(path, true)?);
            let (kind, mode, modified) = match inode.ok_or(io::ErrorKind::NotFound)? {
                Inode::File { mode, modified, .. } => (FileKind::File, mode, modified),
                Inode::Directory { mode } => (FileKind::Directory, mode, modified()),
                Inode::Link(_) => (FileKind::Link, 0o777, modified()),
            };
            Ok(Metadata { kind, mode, modified })
        };
        read().map_err(failed("read", path))
    }

    fn entries(&self, directory: &Path) -> Result<Vec<Entry>> {
        let read = || {
            let found = self.resolve(directory, true)?;
            match self.inode(&found) {
                Some(Inode::Directory { .. }) => {}
                Some(_) => return Err(io::Error::from_raw_os_error(20)),
                None => return Err(io::ErrorKind::NotFound.into()),
            }
            let content = self.disk(&found).content();
            let inside = content.live.iter().filter(|(path, _)| path.parent() == Some(&found));
            let entry = |(path, inode): (&PathBuf, &Inode)| Entry {
                name: path.file_name().unwrap().to_owned(),
                kind: match inode {
                    Inode::File { .. } => FileKind::File,
                    Inode::Directory { .. } => FileKind::Directory,
                    Inode::Link(_) => FileKind::Link,
                },
            };
            Ok(inside.map(entry).collect())
        };
        read().map_err(failed("read", directory))
    }

    fn read_link(&self, path: &Path) -> Result<PathBuf> {
        let read = || match self.inode(&self.resolve(path, false)?) {
            Some(Inode::Link(target)) => Ok(target),
            Some(_) => Err(io::ErrorKind::InvalidInput.into()),
            None => Err(io::ErrorKind::NotFound.into()),
        };
        read().map_err(failed("read", path))
    }

    fn canonicalize(&self, path: &Path) -> Result<PathBuf> {
        let found = || {
            let found = self.resolve(path, true)?;
            self.inode(&found).ok_or(io::ErrorKind::NotFound)?;
            Ok(found)
        };
        found().map_err(failed("read", path))
    }

    fn create(&self, path: &Path, bytes: &[u8], mode: u32) -> Result<()> {
        let create = |content: &mut Content, path: PathBuf| {
            if content.live.contains_key(&path) {
                return Err(io::ErrorKind::AlreadyExists.into());
            }
            let (bytes, modified) = (bytes.to_vec(), modified());
            content.live.insert(path, Inode::File { bytes, mode, modified });
            Ok(())
        };
        self.change(path, true, create).map_err(failed("write", path))
    }

    fn replace(&self, path: &Path, bytes: &[u8], mode: u32, durability: Durability) -> Result<()> {
        let replace = |content: &mut Content, path: PathBuf| {
            let (bytes, modified) = (bytes.to_vec(), modified());
            let file = Inode::File { bytes, mode, modified };
            content.live.insert(path.clone(), file.clone());
            if durability == Durability::Synced {
                content.synced.insert(path.clone(), file);
                content.sync_names(path.parent().unwrap_or(Path::new("/")));
            }
            Ok(())
        };
        self.change(path, true, replace).map_err(failed("write", path))
    }

    fn rename(&self, from: &Path, to: &Path) -> Result<()> {
        let rename = || {
            let from = self.resolve(from, false)?;
            self.change(to, true, |content, to| {
                let inode = content.live.remove(&from).ok_or(io::ErrorKind::NotFound)?;
                let inside: Vec<PathBuf> = content
                    .live
                    .keys()
                    .filter(|path| path.starts_with(&from))
                    .cloned()
                    .collect();
                for path in inside {
                    let moved = to.join(path.strip_prefix(&from).unwrap());
                    let inode = content.live.remove(&path).unwrap();
                    content.live.insert(moved, inode);
                }
                content.live.insert(to, inode);
                Ok(())
            })
        };
        rename().map_err(failed("write", to))
    }

    fn remove(&self, path: &Path) -> Result<()> {
        let remove = |content: &mut Content, path: PathBuf| match content.live.get(&path) {
            None => Err(io::ErrorKind::NotFound.into()),
            Some(Inode::Directory { .. }) => Err(io::Error::from_raw_os_error(21)),
            Some(_) => {
                content.live.remove(&path);
                Ok(())
            }
        };
        self.change(path, false, remove).map_err(failed("remove", path))
    }

    fn remove_tree(&self, path: &Path) -> Result<()> {
        let remove = |content: &mut Content, path: PathBuf| {
            if !content.live.contains_key(&path) {
                return Err(io::ErrorKind::NotFound.into());
            }
            content.live.retain(|found, _| !found.starts_with(&path));
            Ok(())
        };
        self.change(path, false, remove).map_err(failed("remove", path))
    }

    fn create_directory(&self, path: &Path, mode: u32) -> Result<()> {
        let create = |content: &mut Content, path: PathBuf| {
            if content.live.contains_key(&path) {
                return Err(io::ErrorKind::AlreadyExists.into());
            }
            content.live.insert(path, Inode::Directory { mode });
            Ok(())
        };
        self.change(path, true, create).map_err(failed("create", path))
    }

    fn create_directories(&self, path: &Path, mode: u32) -> Result<()> {
        let mut all: Vec<&Path> = path.ancestors().collect();
        all.reverse();
        for directory in all.into_iter().skip(1) {
            let exists = self
                .resolve(directory, true)
                .is_ok_and(|found| self.inode(&found).is_some());
            if !exists {
                self.create_directory(directory, mode)?;
            }
        }
        Ok(())
    }

    fn sync_directory(&self, path: &Path) -> Result<()> {
        let sync = || {
            let found = self.resolve(path, true)?;
            let disk = self.disk(&found);
            let mut content = disk.content();
            content.allow(false)?;
            content.sync_names(&found);
            Ok(())
        };
        sync().map_err(failed("write", path))
    }

    fn symlink(&self, target: &Path, link: &Path) -> Result<()> {
        let create = |content: &mut Content, path: PathBuf| {
            if content.live.contains_key(&path) {
                return Err(io::ErrorKind::AlreadyExists.into());
            }
            content.live.insert(path, Inode::Link(target.to_owned()));
            Ok(())
        };
        self.change(link, true, create).map_err(failed("write", link))
    }

    fn set_mode(&self, path: &Path, mode: u32) -> Result<()> {
        let set = || {
            let found = self.resolve(path, true)?;
            match self.disk(&found).content().live.get_mut(&found) {
                Some(Inode::File { mode: old, .. } | Inode::Directory { mode: old }) => *old = mode,
                _ => return Err(io::ErrorKind::NotFound.into()),
            }
            Ok(())
        };
        set().map_err(failed("set the mode of", path))
    }

    fn set_owner(&self, path: &Path, _user: u32, _group: u32) -> Result<()> {
        self.metadata(path).map(drop)
    }
}
