//! /etc/slurm, in the layout the kubelet gives to mounted ConfigMaps: the files are in a directory of their own, `..data`
//! links to it, and each name in /etc/slurm links through `..data`. One rename switches all of them.
//!
//! `..revision`, beside the files, says which revision they are. A directory exists from before it goes live until slurmctld
//! runs with its successor, so that an unfinished change can be rolled back.
//!
//! Nothing here is synced: whenever the pod's node was down, the pod's init containers run again, and fill an empty or torn
//! directory from the state volume.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use host::{Durability, FileError, FileKind, Host};
use serde::Serialize;
use slurm::Revision;
use slurm::conf::Configuration;
use slurm::revision::{Digest, File, FileName, Summary};
use tracing::warn;

use crate::dry_run::configuration_of;

const DATA: &str = "..data";
const SUMMARY: &str = "..revision";
/// [`Revision::closed_by_hand`], beside the files. There is none if it is empty.
const CLOSED_BY_HAND: &str = "..closed-by-hand";
/// The name of a link before it is renamed into place.
const NEW: &str = "..new";

/// The files of one revision in the configuration directory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Files {
    /// The name of their directory, which is never used twice.
    pub name: String,
    pub summary: Summary,
}

#[derive(Debug, Clone)]
pub struct ConfigDir {
    host: Host,
    path: PathBuf,
    keys: PathBuf,
    parsed: Arc<Mutex<Option<Parsed>>>,
}

/// The configuration of the live directory, which polls read every second.
#[derive(Debug)]
struct Parsed {
    /// Of the directory.
    name: String,
    configuration: Arc<Configuration>,
}

/// Returns the name of the live directory, whatever is in it.
pub fn live_name(host: &Host, config_dir: &Path) -> Option<String> {
    let target = host.files().read_link(&config_dir.join(DATA)).ok()?;
    target.file_name().map(|name| name.to_string_lossy().into_owned())
}

impl ConfigDir {
    pub fn new(host: &Host, path: &Path, keys: &Path) -> Self {
        Self {
            host: host.clone(),
            path: path.to_owned(),
            keys: keys.to_owned(),
            parsed: Arc::default(),
        }
    }

    /// The live files; `None` if there are none, or none that an agent wrote.
    pub fn live(&self) -> Option<Files> {
        self.files(live_name(&self.host, &self.path)?)
    }

    /// The configuration in these files; `None` if a part of it cannot be read.
    pub(crate) fn configuration(&self, files: &Files) -> Option<Configuration> {
        Some(configuration_of(&self.read(files)?.files))
    }

    /// The live configuration, which is parsed once.
    pub(crate) fn live_configuration(&self) -> Option<Arc<Configuration>> {
        let name = live_name(&self.host, &self.path)?;
        let mut parsed = self.parsed.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(parsed) = parsed.as_ref().filter(|parsed| parsed.name == name) {
            return Some(Arc::clone(&parsed.configuration));
        }
        let configuration = Arc::new(self.configuration(&self.files(name.clone())?)?);
        *parsed = Some(Parsed {
            name,
            configuration: Arc::clone(&configuration),
        });
        Some(configuration)
    }

    /// The live revision, read back.
    pub fn live_revision(&self) -> Option<Revision> {
        self.read(&self.live()?)
    }

    /// The files that were live before; `None` once slurmctld was seen to run with the live ones.
    pub fn before(&self, live: &Files) -> Option<Files> {
        self.directories()
            .ok()?
            .into_iter()
            .filter_map(|name| self.files(name))
            .filter(|files| files.summary.sequence < live.summary.sequence)
            .max_by_key(|files| files.summary.sequence)
    }

    /// Writes the files to a directory that is not live yet.
    pub fn write(&self, revision: &Revision) -> Result<Files, FileError> {
        let name = self.new_directory()?;
        let directory = self.path.join(&name);
        let create = |name: &str, file: &File| {
            // Not for others: a prolog may hold a password.
            let mode = if file.executable { 0o750 } else { 0o640 };
            self.host.files().create(&directory.join(name), &file.content, mode)
        };
        for (name, file) in &revision.files {
            create(name.as_str(), file)?;
        }
        let summary = revision.summary();
        if !revision.closed_by_hand.is_empty() {
            create(CLOSED_BY_HAND, &File::config(to_json(&revision.closed_by_hand)))?;
        }
        create(SUMMARY, &File::config(to_json(&summary)))?;
        Ok(Files { name, summary })
    }

    /// Makes the files live. New names get their link before the switch, and old names lose theirs after it, so that every file
    /// is of the old or of the new revision at any time.
    pub fn switch(&self, files: &Files) -> Result<(), FileError> {
        let links = self.links(&files.summary)?;
        for (name, target) in &links {
            self.link(name.as_str(), target)?;
        }
        self.link(DATA, Path::new(&files.name))?;
        self.remove_links_but(&links)
    }

    /// Gives the same bytes another number.
    pub fn renumber(&self, files: &Files, summary: &Summary) -> Result<(), FileError> {
        let path = self.path.join(&files.name).join(SUMMARY);
        let text = to_json(summary);
        self.host.files().replace(&path, &text, 0o640, Durability::Unsynced)
    }

    /// Removes all directories that are not live. There is nothing to roll back to after that.
    pub fn remove_all_but(&self, live: &Files) {
        for name in self.directories().unwrap_or_default() {
            if name != live.name {
                self.remove(&name);
            }
        }
    }

    pub fn remove(&self, name: &str) {
        if let Err(error) = self.host.files().remove_tree(&self.path.join(name)) {
            warn!(%error, "cannot remove old files");
        }
    }

    /// Compares what a reader of the directory finds with the revision. Returns the first file that differs.
    pub fn check(&self, files: &Files) -> Result<(), FileName> {
        let differs = |name: &FileName, digest: &Digest| {
            let bytes = self.host.files().read(&self.path.join(name.as_str()));
            !bytes.is_ok_and(|bytes| Digest::of(&bytes) == *digest)
        };
        let keys = self.key_names().unwrap_or_default();
        let mut all = files.summary.files.iter();
        match all.find(|(name, digest)| !keys.contains(name) && differs(name, digest)) {
            Some((name, _)) => Err(name.clone()),
            None => Ok(()),
        }
    }

    /// Reads the revision back; `None` if a part of it cannot be read.
    pub fn read(&self, files: &Files) -> Option<Revision> {
        let directory = self.path.join(&files.name);
        let read = |name: &FileName| {
            let path = directory.join(name.as_str());
            let content = self.host.files().read(&path).ok()?;
            let executable = self.host.files().metadata(&path).ok()?.mode & 0o100 != 0;
            Some((name.clone(), File { content, executable }))
        };
        let closed = self.host.files().read(&directory.join(CLOSED_BY_HAND)).ok();
        let closed = closed.and_then(|closed| serde_json::from_slice(&closed).ok());
        Some(Revision {
            sequence: files.summary.sequence,
            controller: files.summary.controller.clone(),
            files: files.summary.files.keys().map(read).collect::<Option<_>>()?,
            closed_by_hand: closed.unwrap_or_default(),
        })
    }

    fn files(&self, name: String) -> Option<Files> {
        let text = self.host.files().read(&self.path.join(&name).join(SUMMARY)).ok()?;
        let summary = serde_json::from_slice(&text).ok()?;
        Some(Files { name, summary })
    }

    fn directories(&self) -> Result<Vec<String>, FileError> {
        let entries = self.host.files().entries(&self.path)?.into_iter();
        let directories = entries.filter(|entry| entry.kind == FileKind::Directory);
        let names = directories.filter_map(|entry| entry.name.into_string().ok());
        Ok(names.filter(|name| name.starts_with("..")).collect())
    }

    fn new_directory(&self) -> Result<String, FileError> {
        loop {
            // As the kubelet names its own; the fraction makes it unique.
            let name = self.host.timestamp().strftime("..%Y_%m_%d_%H_%M_%S.%9f").to_string();
            match self.host.files().create_directory(&self.path.join(&name), 0o755) {
                Err(error) if error.is_already_exists() => {}
                Err(error) => return Err(error),
                Ok(()) => return Ok(name),
            }
        }
    }

    /// Returns each name in the directory with the target of its link. A key replaces a file of the same name.
    fn links(&self, summary: &Summary) -> Result<BTreeMap<FileName, PathBuf>, FileError> {
        let mut links: BTreeMap<_, _> = summary
            .files
            .keys()
            .map(|name| (name.clone(), Path::new(DATA).join(name.as_str())))
            .collect();
        for name in self.key_names()? {
            let target = self.keys.join(name.as_str());
            if links.insert(name.clone(), target).is_some() {
                warn!(%name, "the revision has a file with the name of a key; using the key");
            }
        }
        Ok(links)
    }

    fn key_names(&self) -> Result<Vec<FileName>, FileError> {
        self.file_names(&self.keys)
    }

    /// Names that no revision can have are left out.
    fn file_names(&self, directory: &Path) -> Result<Vec<FileName>, FileError> {
        let entries = self.host.files().entries(directory)?.into_iter();
        let names = entries.filter_map(|entry| entry.name.into_string().ok());
        Ok(names.filter_map(|name| FileName::new(name).ok()).collect())
    }

    fn link(&self, name: &str, target: &Path) -> Result<(), FileError> {
        let files = self.host.files();
        let path = self.path.join(name);
        if files.read_link(&path).is_ok_and(|existing| existing == target) {
            return Ok(());
        }
        let new = self.path.join(NEW);
        // An interrupted switch may have left one.
        files.remove_if_exists(&new)?;
        files.symlink(target, &new)?;
        files.rename(&new, &path)
    }

    /// Removes the agent's own links only.
    fn remove_links_but(&self, links: &BTreeMap<FileName, PathBuf>) -> Result<(), FileError> {
        let files = self.host.files();
        for name in self.file_names(&self.path)? {
            let path = self.path.join(name.as_str());
            let Ok(target) = files.read_link(&path) else { continue };
            let ours = target.starts_with(DATA) || target.starts_with(&self.keys);
            if ours && !links.contains_key(&name) {
                files.remove(&path)?;
            }
        }
        Ok(())
    }
}

/// Serializing our own types cannot fail.
fn to_json(value: &impl Serialize) -> Vec<u8> {
    serde_json::to_vec(value).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::fs;
    use std::os::unix::fs::{MetadataExt as _, symlink};

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
            config: ConfigDir::new(&Host::real(), &config, &keys),
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

        /// The visible names.
        fn names(&self) -> Vec<String> {
            let entries = fs::read_dir(&self.config.path).unwrap();
            let names = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap());
            let mut names: Vec<String> = names.filter(|name| !name.starts_with("..")).collect();
            names.sort();
            names
        }
    }

    #[test]
    fn the_live_configuration_is_that_of_the_live_directory() {
        let place = place();
        assert!(place.config.live_configuration().is_none());
        let value = |place: &Place| {
            let live = place.config.live_configuration().unwrap();
            live.value("MessageTimeout").map(str::to_owned)
        };
        place.go(&revision(1, &[("slurm.conf", "MessageTimeout=11\n")]));
        assert_eq!(value(&place).as_deref(), Some("11"));
        let first = place.config.live_configuration().unwrap();
        assert!(Arc::ptr_eq(&first, &place.config.live_configuration().unwrap()));
        place.go(&revision(2, &[("slurm.conf", "MessageTimeout=12\n")]));
        assert_eq!(value(&place).as_deref(), Some("12"));
    }

    #[test]
    fn files_have_their_modes_and_keys_are_linked_beside_them() {
        let place = place();
        let files = place.go(&revision(1, &[("slurm.conf", "A=1\n"), ("prolog.sh", "#!/bin/sh\n")]));
        assert_eq!(place.names(), ["prolog.sh", "slurm.conf", "slurm.key"]);
        assert_eq!(place.read("slurm.conf").unwrap(), "A=1\n");
        assert_eq!(place.read("slurm.key").unwrap(), "secret");
        let mode = |name: &str| fs::metadata(place.config.path.join(name)).unwrap().mode() & 0o777;
        assert_eq!(mode("slurm.conf"), 0o640);
        assert_eq!(mode("prolog.sh"), 0o750);
        let read = place.config.read(&files).unwrap();
        assert_eq!(read.summary(), files.summary, "the written revision with its modes");
        assert_eq!(place.config.live(), Some(files.clone()));
        assert_eq!(place.config.check(&files), Ok(()));
        // As in the kubelet's layout.
        let link = |name: &str| fs::read_link(place.config.path.join(name)).unwrap();
        assert_eq!(link("slurm.conf"), Path::new("..data/slurm.conf"));
        assert_eq!(link("..data"), Path::new(&files.name));
    }

    #[test]
    fn a_switch_adds_new_names_and_removes_old_ones() {
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
        // A roll back.
        place.config.switch(&first).unwrap();
        assert_eq!(place.names(), ["gone.conf", "slurm.conf", "slurm.key"]);
        place.config.remove_all_but(&first);
        assert_eq!(place.config.directories().unwrap(), [first.name.as_str()]);
        assert_eq!(place.config.before(&first), None);
    }

    #[test]
    fn foreign_files_are_replaced_by_name_and_otherwise_kept() {
        let place = place();
        fs::write(place.config.path.join("slurm.conf"), "by hand").unwrap();
        fs::write(place.config.path.join("notes.txt"), "mine").unwrap();
        assert_eq!(place.config.live(), None);
        place.go(&revision(1, &[("slurm.conf", "1")]));
        assert_eq!(place.read("slurm.conf").unwrap(), "1");
        assert_eq!(place.read("notes.txt").unwrap(), "mine");
    }

    #[test]
    fn a_manually_edited_file_is_found() {
        let place = place();
        let files = place.go(&revision(1, &[("a.conf", "1"), ("b.conf", "1")]));
        fs::write(place.config.path.join("b.conf"), "2").unwrap();
        assert_eq!(place.config.check(&files), Err(FileName::new("b.conf").unwrap()));
        fs::remove_file(place.config.path.join("a.conf")).unwrap();
        assert_eq!(place.config.check(&files), Err(FileName::new("a.conf").unwrap()));
    }

    #[test]
    fn a_key_replaces_a_file_of_the_same_name() {
        let place = place();
        let files = place.go(&revision(1, &[("slurm.key", "not secret")]));
        assert_eq!(place.read("slurm.key").unwrap(), "secret");
        assert_eq!(place.config.check(&files), Ok(()));
    }

    #[test]
    fn an_interrupted_switch_can_be_repeated() {
        let place = place();
        place.go(&revision(1, &[("slurm.conf", "1")]));
        symlink("nowhere", place.config.path.join(NEW)).unwrap();
        place.go(&revision(2, &[("slurm.conf", "2")]));
        assert_eq!(place.read("slurm.conf").unwrap(), "2");
    }

    #[test]
    fn readers_see_one_revision_at_any_time() {
        let place = place();
        place.go(&revision(0, &[("a", "0"), ("b", "0")]));
        let path = place.config.path.clone();
        let stop = std::sync::atomic::AtomicBool::new(false);
        std::thread::scope(|scope| {
            let reader = scope.spawn(|| {
                while !stop.load(std::sync::atomic::Ordering::Relaxed) {
                    // Through one name of the directory: a switch may happen between two opens.
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
