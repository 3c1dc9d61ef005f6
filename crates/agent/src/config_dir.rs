//! /etc/slurm, in the layout the kubelet gives to mounted ConfigMaps: the files lie in a directory of their own, `..data`
//! links to it, and each name in /etc/slurm links through `..data`. One rename switches all of them.
//!
//! Beside the files lies `..revision`, which tells what they are. A directory is there from before it goes live until
//! slurmctld runs with its successor, so a change that has not ended can be taken back.
//!
//! Nothing here is synced to the disk: whenever the pod's node was down, the pod's init containers run again, and fill an
//! empty or torn directory from the state volume.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsStr;
use std::fs::{self, DirBuilder, OpenOptions, Permissions};
use std::io::{self, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _, PermissionsExt as _, symlink};
use std::path::{Path, PathBuf};

use jiff::Timestamp;
use slurm::Revision;
use slurm::revision::{Digest, File, FileName, Summary};
use thiserror::Error;
use tracing::warn;

const DATA: &str = "..data";
const SUMMARY: &str = "..revision";
/// What a link or file of ours is called before it is renamed into its place.
const NEW: &str = "..new";

#[derive(Debug, Error)]
pub enum Error {
    #[error("cannot read {path}: {source}", path = .path.display())]
    Read { path: PathBuf, source: io::Error },
    #[error("cannot write {path}: {source}", path = .path.display())]
    Write { path: PathBuf, source: io::Error },
}

/// Files in the configuration directory that are all of one revision.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Files {
    /// Of their directory. No two have ever had the same.
    pub name: String,
    pub summary: Summary,
}

#[derive(Debug, Clone)]
pub struct ConfigDir {
    path: PathBuf,
    keys: PathBuf,
}

/// The name of the directory that is live, whatever is in it.
pub fn live_name(config_dir: &Path) -> Option<String> {
    let target = fs::read_link(config_dir.join(DATA)).ok()?;
    target.file_name().map(|name| name.to_string_lossy().into_owned())
}

impl ConfigDir {
    pub fn new(path: &Path, keys: &Path) -> Self {
        Self {
            path: path.to_owned(),
            keys: keys.to_owned(),
        }
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// What is live; `None` if that is nothing, or nothing of ours.
    pub fn live(&self) -> Option<Files> {
        self.files(live_name(&self.path)?)
    }

    /// What was live before, as long as slurmctld has not been seen to run with what is live.
    pub fn before(&self, live: &Files) -> Option<Files> {
        self.directories()
            .ok()?
            .into_iter()
            .filter_map(|name| self.files(name))
            .filter(|files| files.summary.sequence < live.summary.sequence)
            .max_by_key(|files| files.summary.sequence)
    }

    /// Puts the files there, where nobody looks yet.
    pub fn write(&self, revision: &Revision) -> Result<Files, Error> {
        let name = self.new_directory()?;
        let directory = self.path.join(&name);
        for (name, file) in &revision.files {
            write_file(&directory.join(name.as_str()), file)?;
        }
        let summary = revision.summary();
        let text = File::config(serde_json::to_vec(&summary).unwrap_or_default());
        write_file(&directory.join(SUMMARY), &text)?;
        Ok(Files { name, summary })
    }

    /// Makes them live. Names that are new get their link before, and names that are gone lose it after: at no time can a
    /// file be seen that is neither of the old nor of the new revision.
    pub fn switch(&self, files: &Files) -> Result<(), Error> {
        let links = self.links(&files.summary)?;
        for (name, target) in &links {
            self.link(name.as_str().as_ref(), target)?;
        }
        self.link(DATA.as_ref(), Path::new(&files.name))?;
        self.remove_links_but(&links)
    }

    /// The same bytes under another number.
    pub fn renumber(&self, files: &Files, summary: &Summary) -> Result<(), Error> {
        let directory = self.path.join(&files.name);
        let (new, path) = (directory.join(NEW), directory.join(SUMMARY));
        let text = serde_json::to_vec(summary).unwrap_or_default();
        fs::write(&new, text)
            .and_then(|()| fs::rename(&new, &path))
            .map_err(|source| Error::Write { path, source })
    }

    /// Removes what is not live: the way back is closed.
    pub fn forget_all_but(&self, live: &Files) {
        for name in self.directories().unwrap_or_default() {
            if name != live.name {
                self.forget(&name);
            }
        }
    }

    pub fn forget(&self, name: &str) {
        let path = self.path.join(name);
        if let Err(error) = fs::remove_dir_all(&path) {
            warn!(path = %path.display(), %error, "old files stay");
        }
    }

    /// Whether a reader of the directory finds these very bytes; else the first file that differs.
    pub fn check(&self, files: &Files) -> Result<(), FileName> {
        let differs = |name: &FileName, digest: &Digest| {
            let bytes = fs::read(self.path.join(name.as_str()));
            !bytes.is_ok_and(|bytes| Digest::of(&bytes) == *digest)
        };
        let keys = self.key_names().unwrap_or_default();
        match files
            .summary
            .files
            .iter()
            .find(|(name, digest)| !keys.contains(name) && differs(name, digest))
        {
            Some((name, _)) => Err(name.clone()),
            None => Ok(()),
        }
    }

    /// What lies there, read; `None` if a part of it cannot be.
    pub fn read(&self, files: &Files) -> Option<Revision> {
        let directory = self.path.join(&files.name);
        let read = |name: &FileName| {
            let path = directory.join(name.as_str());
            let content = fs::read(&path).ok()?;
            let executable = fs::metadata(&path).ok()?.permissions().mode() & 0o100 != 0;
            Some((name.clone(), File { content, executable }))
        };
        Some(Revision {
            sequence: files.summary.sequence,
            controller: files.summary.controller.clone(),
            files: files.summary.files.keys().map(read).collect::<Option<_>>()?,
            closed_by_hand: BTreeSet::new(),
        })
    }

    fn files(&self, name: String) -> Option<Files> {
        let text = fs::read(self.path.join(&name).join(SUMMARY)).ok()?;
        let summary = serde_json::from_slice(&text).ok()?;
        Some(Files { name, summary })
    }

    fn directories(&self) -> Result<Vec<String>, Error> {
        let names = entries(&self.path)?;
        Ok(names
            .into_iter()
            .filter(|name| {
                name.starts_with("..") && self.path.join(name).symlink_metadata().is_ok_and(|at| at.is_dir())
            })
            .collect())
    }

    fn new_directory(&self) -> Result<String, Error> {
        loop {
            // As the kubelet names its own; the fraction makes it unlike all before it.
            let name = Timestamp::now().strftime("..%Y_%m_%d_%H_%M_%S.%9f").to_string();
            let path = self.path.join(&name);
            match DirBuilder::new().mode(0o755).create(&path) {
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
                Err(source) => return Err(Error::Write { path, source }),
                Ok(()) => return Ok(name),
            }
        }
    }

    /// Each name in the directory with what it links to. A key takes the place of a file.
    fn links(&self, summary: &Summary) -> Result<BTreeMap<FileName, PathBuf>, Error> {
        let mut links: BTreeMap<_, _> = summary
            .files
            .keys()
            .map(|name| (name.clone(), Path::new(DATA).join(name.as_str())))
            .collect();
        for name in self.key_names()? {
            let target = self.keys.join(name.as_str());
            if links.insert(name.clone(), target).is_some() {
                warn!(%name, "the revision has a file with the name of a key, which is not used");
            }
        }
        Ok(links)
    }

    fn key_names(&self) -> Result<Vec<FileName>, Error> {
        let names = entries(&self.keys)?;
        Ok(names.into_iter().filter_map(|name| FileName::new(name).ok()).collect())
    }

    fn link(&self, name: &OsStr, target: &Path) -> Result<(), Error> {
        let path = self.path.join(name);
        if fs::read_link(&path).is_ok_and(|existing| existing == target) {
            return Ok(());
        }
        let new = self.path.join(NEW);
        let made = match symlink(target, &new) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                fs::remove_file(&new).and_then(|()| symlink(target, &new))
            }
            other => other,
        };
        made.and_then(|()| fs::rename(&new, &path))
            .map_err(|source| Error::Write { path, source })
    }

    /// Only links of our own making go.
    fn remove_links_but(&self, links: &BTreeMap<FileName, PathBuf>) -> Result<(), Error> {
        for name in entries(&self.path)? {
            let path = self.path.join(&name);
            let Ok(name) = FileName::new(name) else { continue };
            let Ok(target) = fs::read_link(&path) else { continue };
            let ours = target.starts_with(DATA) || target.starts_with(&self.keys);
            if ours && !links.contains_key(&name) {
                fs::remove_file(&path).map_err(|source| Error::Write { path, source })?;
            }
        }
        Ok(())
    }
}

fn write_file(path: &Path, file: &File) -> Result<(), Error> {
    // Neither is for others: a prolog may hold a password. Set apart from creating, since the umask has a say in that.
    let mode = if file.executable { 0o750 } else { 0o640 };
    let written = OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(mode)
        .open(path)
        .and_then(|mut target| {
            target.write_all(&file.content)?;
            target.set_permissions(Permissions::from_mode(mode))
        });
    written.map_err(|source| Error::Write {
        path: path.to_owned(),
        source,
    })
}

/// Names that are no text are not ours.
fn entries(path: &Path) -> Result<Vec<String>, Error> {
    let failed = |source| Error::Read {
        path: path.to_owned(),
        source,
    };
    let mut names = Vec::new();
    for entry in fs::read_dir(path).map_err(failed)? {
        names.extend(entry.map_err(failed)?.file_name().into_string().ok());
    }
    Ok(names)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::MetadataExt as _;

    use slurm::revision::ControllerUid;
    use tempfile::TempDir;

    use super::*;

    struct Place {
        directory: TempDir,
        config: ConfigDir,
    }

    fn place() -> Place {
        let directory = tempfile::tempdir().unwrap();
        let (config, keys) = (directory.path().join("etc"), directory.path().join("keys"));
        fs::create_dir(&config).unwrap();
        fs::create_dir(&keys).unwrap();
        fs::write(keys.join("slurm.key"), "secret").unwrap();
        fs::create_dir(keys.join("..2026")).unwrap();
        Place {
            config: ConfigDir::new(&config, &keys),
            directory,
        }
    }

    fn revision(sequence: u64, files: &[(&str, &str)]) -> Revision {
        Revision {
            sequence,
            controller: ControllerUid::new("a").unwrap(),
            files: files
                .iter()
                .map(|(name, text)| {
                    let content = text.as_bytes().to_vec();
                    let executable = text.starts_with("#!");
                    (FileName::new(*name).unwrap(), File { content, executable })
                })
                .collect(),
            closed_by_hand: BTreeSet::new(),
        }
    }

    impl Place {
        fn go(&self, revision: &Revision) -> Files {
            let files = self.config.write(revision).unwrap();
            self.config.switch(&files).unwrap();
            files
        }

        fn read(&self, name: &str) -> Option<String> {
            fs::read_to_string(self.config.path.join(name)).ok()
        }

        /// What a person sees.
        fn names(&self) -> Vec<String> {
            let mut names = entries(&self.config.path).unwrap();
            names.retain(|name| !name.starts_with(".."));
            names.sort();
            names
        }
    }

    #[test]
    fn the_files_are_there_with_their_modes_and_the_keys_beside_them() {
        let place = place();
        let files = place.go(&revision(1, &[("slurm.conf", "A=1\n"), ("prolog.sh", "#!/bin/sh\n")]));
        assert_eq!(place.names(), ["prolog.sh", "slurm.conf", "slurm.key"]);
        assert_eq!(place.read("slurm.conf").unwrap(), "A=1\n");
        assert_eq!(place.read("slurm.key").unwrap(), "secret");
        let mode = |name: &str| fs::metadata(place.config.path.join(name)).unwrap().mode() & 0o777;
        assert_eq!(mode("slurm.conf"), 0o640);
        assert_eq!(mode("prolog.sh"), 0o750);
        let read = place.config.read(&files).unwrap();
        assert_eq!(read.summary(), files.summary, "what was written, modes and all");
        assert_eq!(place.config.live(), Some(files.clone()));
        assert_eq!(place.config.check(&files), Ok(()));
        // As the kubelet would have it.
        let link = |name: &str| fs::read_link(place.config.path.join(name)).unwrap();
        assert_eq!(link("slurm.conf"), Path::new("..data/slurm.conf"));
        assert_eq!(link("..data"), Path::new(&files.name));
    }

    #[test]
    fn a_switch_brings_new_names_and_takes_old_ones_away() {
        let place = place();
        let first = place.go(&revision(1, &[("slurm.conf", "1"), ("gone.conf", "1")]));
        let second = place
            .config
            .write(&revision(2, &[("slurm.conf", "2"), ("new.conf", "2")]))
            .unwrap();
        assert_eq!(place.read("slurm.conf").unwrap(), "1", "not live before the switch");
        place.config.switch(&second).unwrap();
        assert_eq!(place.names(), ["new.conf", "slurm.conf", "slurm.key"]);
        assert_eq!(place.read("slurm.conf").unwrap(), "2");
        assert_eq!(place.config.before(&second), Some(first.clone()));
        // And back again.
        place.config.switch(&first).unwrap();
        assert_eq!(place.names(), ["gone.conf", "slurm.conf", "slurm.key"]);
        place.config.forget_all_but(&first);
        assert_eq!(place.config.directories().unwrap(), [first.name.as_str()]);
        assert_eq!(place.config.before(&first), None);
    }

    #[test]
    fn what_somebody_else_put_there_is_replaced_by_name_and_else_left_alone() {
        let place = place();
        fs::write(place.config.path.join("slurm.conf"), "by hand").unwrap();
        fs::write(place.config.path.join("notes.txt"), "mine").unwrap();
        assert_eq!(place.config.live(), None);
        place.go(&revision(1, &[("slurm.conf", "1")]));
        assert_eq!(place.read("slurm.conf").unwrap(), "1");
        assert_eq!(place.read("notes.txt").unwrap(), "mine");
    }

    #[test]
    fn a_file_that_was_edited_on_the_spot_is_noticed() {
        let place = place();
        let files = place.go(&revision(1, &[("a.conf", "1"), ("b.conf", "1")]));
        fs::write(place.config.path.join("b.conf"), "2").unwrap();
        assert_eq!(place.config.check(&files), Err(FileName::new("b.conf").unwrap()));
        fs::remove_file(place.config.path.join("a.conf")).unwrap();
        assert_eq!(place.config.check(&files), Err(FileName::new("a.conf").unwrap()));
    }

    #[test]
    fn a_key_wins_over_a_file_of_its_name() {
        let place = place();
        let files = place.go(&revision(1, &[("slurm.key", "not secret")]));
        assert_eq!(place.read("slurm.key").unwrap(), "secret");
        assert_eq!(place.config.check(&files), Ok(()));
    }

    #[test]
    fn a_switch_that_was_interrupted_can_be_done_again() {
        let place = place();
        place.go(&revision(1, &[("slurm.conf", "1")]));
        symlink("nowhere", place.config.path.join(NEW)).unwrap();
        place.go(&revision(2, &[("slurm.conf", "2")]));
        assert_eq!(place.read("slurm.conf").unwrap(), "2");
    }

    #[test]
    fn readers_see_all_of_one_revision_at_every_moment() {
        let place = place();
        place.go(&revision(0, &[("a", "0"), ("b", "0")]));
        let path = place.config.path.clone();
        let stop = std::sync::atomic::AtomicBool::new(false);
        std::thread::scope(|scope| {
            let reader = scope.spawn(|| {
                while !stop.load(std::sync::atomic::Ordering::Relaxed) {
                    // Through one name of the directory, as two opens could be either side of a switch.
                    let data = fs::read_link(path.join(DATA)).unwrap();
                    let both = ["a", "b"].map(|name| fs::read_to_string(path.join(&data).join(name)).unwrap());
                    assert_eq!(both[0], both[1]);
                    fs::read_to_string(path.join("a")).unwrap();
                }
            });
            for sequence in 1..100 {
                let text = sequence.to_string();
                place.go(&revision(sequence, &[("a", text.as_str()), ("b", text.as_str())]));
            }
            stop.store(true, std::sync::atomic::Ordering::Relaxed);
            reader.join().unwrap();
        });
        drop(place.directory);
    }
}
