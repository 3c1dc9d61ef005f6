//! The revisions of one Controller on slurmctld's state volume. A pod that was lost right after a change starts from them.
//!
//! `.slurm-operator/<uid>/<sequence>.bundle`, each synced before it goes live; `verified`, the revision that slurmctld was last
//! seen to run with; `fence`, the highest term of a leader; `nodes`, those that slurmctld has shown; and [`journal`]. Where standbys
//! share the volume, each pod has all of that in a directory of its own, `<uid>/<pod>/`: the others do not lose what one of them rejects.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use host::{Durability, FileError, FileKind, Host};
use serde::Serialize;
use serde::de::DeserializeOwned;
use slurm::Revision;
use slurm::agent::KeptState;
use slurm::revision::{ControllerUid, DecodeError, LiveRevision, Summary, TooLarge};
use thiserror::Error;
use tracing::warn;

use crate::journal::{self, Entry};

/// The live one, the one before it, and one more for a person who investigates.
const KEPT: usize = 3;

const SUFFIX: &str = "bundle";
/// A change of partitions that was begun. No pod starts from it.
const PENDING: &str = "pending";
/// Partitions that a person has closed, before slurmctld reads files that open them.
const CLOSED: &str = "closed";
const FENCE: &str = "fence";
/// The nodes that slurmctld has shown, with their addresses. slurmctld itself saves a new node up to minutes later.
const NODES: &str = "nodes";
const VERIFIED: &str = "verified";
const JOURNAL: &str = "journal";

#[derive(Debug, Error)]
pub enum Error {
    #[error(transparent)]
    File(#[from] FileError),
    #[error(transparent)]
    TooLarge(#[from] TooLarge),
}

/// Why a stored revision is not used.
#[derive(Debug, Error)]
enum Unusable {
    #[error(transparent)]
    Decode(#[from] DecodeError),
    #[error("it holds revision {sequence} of Controller {controller}")]
    Foreign { sequence: u64, controller: ControllerUid },
}

#[derive(Debug, Clone)]
pub struct Store {
    host: Host,
    volume: PathBuf,
    directory: PathBuf,
    controller: ControllerUid,
}

impl Store {
    pub fn new(host: &Host, state_volume: &Path, controller: &ControllerUid) -> Self {
        Self {
            host: host.clone(),
            volume: state_volume.to_owned(),
            directory: state_volume.join(".slurm-operator").join(controller.as_str()),
            controller: controller.clone(),
        }
    }

    /// The store of one pod of several.
    #[must_use]
    pub fn of_pod(mut self, pod: Option<&str>) -> Self {
        if let Some(pod) = pod {
            self.directory.push(pod);
        }
        self
    }

    pub(crate) fn host(&self) -> &Host {
        &self.host
    }

    /// Saves a revision that a pod may start from. It is synced.
    pub fn save(&self, revision: &Revision) -> Result<(), Error> {
        self.write(&bundle_name(revision.sequence), &revision.to_bundle()?)?;
        self.prune();
        Ok(())
    }

    /// Saves a change that slurmctld is about to get, for the next agent to finish. No pod starts from it.
    pub fn save_pending(&self, revision: &Revision) -> Result<(), Error> {
        self.write(PENDING, &revision.to_bundle()?)
    }

    /// Makes the pending change a revision that a pod may start from.
    pub fn promote_pending(&self, sequence: u64) -> Result<(), Error> {
        let files = self.host.files();
        files.rename(&self.path(PENDING), &self.path(&bundle_name(sequence)))?;
        files.sync_directory(&self.directory)?;
        self.prune();
        Ok(())
    }

    pub fn pending(&self) -> Option<Revision> {
        let revision = Revision::from_bundle(&self.read(PENDING)?).ok()?;
        (revision.controller == self.controller).then_some(revision)
    }

    pub fn remove_pending(&self) {
        self.remove_or_warn(PENDING);
    }

    /// Saves the partitions that a person has closed, before slurmctld reads files that open them.
    pub fn save_closed(&self, closed: &[KeptState]) -> Result<(), Error> {
        self.write_json(CLOSED, &closed)
    }

    pub fn closed(&self) -> Vec<KeptState> {
        self.read_json(CLOSED).unwrap_or_default()
    }

    pub fn remove_closed(&self) {
        self.remove_or_warn(CLOSED);
    }

    /// Removes a revision that slurmctld rejected: the next pod must not start from it.
    pub fn remove(&self, sequence: u64) -> Result<(), Error> {
        self.remove_file(&bundle_name(sequence))
    }

    /// The highest revision that can be read. Others are skipped with a warning.
    pub fn newest(&self) -> Result<Option<Revision>, Error> {
        for sequence in self.sequences()?.into_iter().rev() {
            let path = self.path(&bundle_name(sequence));
            match self.decode(sequence, &self.host.files().read(&path)?) {
                Ok(revision) => return Ok(Some(revision)),
                Err(error) => warn!(path = %path.display(), %error, "skipping a revision"),
            }
        }
        Ok(None)
    }

    /// `None` if the revision is missing or unusable.
    pub fn load(&self, sequence: u64) -> Option<Revision> {
        self.decode(sequence, &self.read(&bundle_name(sequence))?).ok()
    }

    fn decode(&self, sequence: u64, bundle: &[u8]) -> Result<Revision, Unusable> {
        let revision = Revision::from_bundle(bundle)?;
        if revision.controller != self.controller || revision.sequence != sequence {
            return Err(Unusable::Foreign {
                sequence: revision.sequence,
                controller: revision.controller,
            });
        }
        Ok(revision)
    }

    /// The numbers of all stored revisions, ascending.
    pub fn sequences(&self) -> Result<Vec<u64>, Error> {
        let entries = match self.host.files().entries(&self.directory) {
            Err(error) if error.is_not_found() => return Ok(Vec::new()),
            other => other?,
        };
        let sequence = |name: &Path| {
            let is_bundle = name.extension().is_some_and(|suffix| suffix == SUFFIX);
            is_bundle.then(|| name.file_stem()?.to_str()?.parse().ok()).flatten()
        };
        let names = entries.iter().map(|entry| Path::new(&entry.name));
        let mut sequences: Vec<u64> = names.filter_map(sequence).collect();
        sequences.sort_unstable();
        Ok(sequences)
    }

    /// The highest term of a leader that was seen; 0 if there was none.
    pub fn term(&self) -> u64 {
        self.read_text(FENCE).trim().parse().unwrap_or(0)
    }

    pub fn save_term(&self, term: u64) -> Result<(), Error> {
        self.write(FENCE, format!("{term}\n").as_bytes())
    }

    /// The nodes that slurmctld has shown, each with the address of its slurmd.
    pub fn nodes(&self) -> BTreeMap<String, String> {
        self.read_json(NODES).unwrap_or_default()
    }

    pub fn save_nodes(&self, nodes: &BTreeMap<String, String>) -> Result<(), Error> {
        self.write_json(NODES, nodes)
    }

    /// The last revision that slurmctld was seen to run with.
    pub fn verified(&self) -> Option<LiveRevision> {
        self.read_json(VERIFIED)
    }

    pub fn save_verified(&self, revision: &Summary) -> Result<(), Error> {
        self.write_json(VERIFIED, &LiveRevision::from(revision))
    }

    /// The last steps, oldest first.
    pub fn journal(&self) -> Vec<Entry> {
        journal::parse(&self.read_text(JOURNAL))
    }

    /// Adds a step to the journal, which is not synced.
    pub fn note(&self, entry: Entry) -> Result<(), Error> {
        let journal = journal::append(&self.read_text(JOURNAL), entry);
        self.replace(JOURNAL, journal.as_bytes(), Durability::Unsynced)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.join(name)
    }

    fn read(&self, name: &str) -> Option<Vec<u8>> {
        self.host.files().read(&self.path(name)).ok()
    }

    fn read_json<T: DeserializeOwned>(&self, name: &str) -> Option<T> {
        serde_json::from_slice(&self.read(name)?).ok()
    }

    /// Empty if the file is missing.
    fn read_text(&self, name: &str) -> String {
        self.host.files().read_text(&self.path(name)).unwrap_or_default()
    }

    fn write(&self, name: &str, bytes: &[u8]) -> Result<(), Error> {
        self.replace(name, bytes, Durability::Synced)
    }

    fn replace(&self, name: &str, bytes: &[u8], durability: Durability) -> Result<(), Error> {
        self.create_directory()?;
        let path = self.path(name);
        Ok(self.host.files().replace(&path, bytes, 0o640, durability)?)
    }

    fn write_json(&self, name: &str, value: &impl Serialize) -> Result<(), Error> {
        // Serializing our own types cannot fail.
        self.write(name, &serde_json::to_vec(value).unwrap_or_default())
    }

    fn remove_file(&self, name: &str) -> Result<(), Error> {
        if self.host.files().remove_if_exists(&self.path(name))? {
            self.host.files().sync_directory(&self.directory)?;
        }
        Ok(())
    }

    fn remove_or_warn(&self, name: &str) {
        if let Err(error) = self.remove_file(name) {
            warn!(%error, "an outdated file stays on the state volume");
        }
    }

    fn create_directory(&self) -> Result<(), Error> {
        let files = self.host.files();
        if files.is(FileKind::Directory, &self.directory) {
            return Ok(());
        }
        files.create_directories(&self.directory, 0o777)?;
        // A new directory is an entry of its parent, up to the volume.
        let mut ancestors = self.directory.ancestors();
        while let Some(directory) = ancestors.next().filter(|above| above.starts_with(&self.volume)) {
            files.sync_directory(directory)?;
        }
        Ok(())
    }

    fn prune(&self) {
        let sequences = self.sequences().unwrap_or_default();
        let (old, _) = sequences.split_at(sequences.len().saturating_sub(KEPT));
        let verified = self.verified().map(|verified| verified.sequence);
        for sequence in old.iter().filter(|sequence| Some(**sequence) != verified) {
            // Not synced: one that is back after a crash has the lowest number and is not used.
            if let Err(error) = self.host.files().remove(&self.path(&bundle_name(*sequence))) {
                warn!(%error, sequence, "cannot remove an old revision");
            }
        }
    }
}

fn bundle_name(sequence: u64) -> String {
    format!("{sequence}.{SUFFIX}")
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, BTreeSet};
    use std::fs;

    use slurm::revision::{File, FileName};

    use super::*;

    fn uid(text: &str) -> ControllerUid {
        ControllerUid::new(text).unwrap()
    }

    fn revision(sequence: u64) -> Revision {
        Revision {
            sequence,
            controller: uid("a"),
            files: BTreeMap::from([(
                FileName::new("slurm.conf").unwrap(),
                File::config(format!("# {sequence}\n")),
            )]),
            closed_by_hand: BTreeSet::new(),
        }
    }

    #[test]
    fn the_newest_is_the_one_with_the_highest_number() {
        let volume = tempfile::tempdir().unwrap();
        let store = Store::new(&Host::real(), volume.path(), &uid("a"));
        assert_eq!(store.newest().unwrap(), None);
        for sequence in [9, 10, 8] {
            store.save(&revision(sequence)).unwrap();
        }
        assert_eq!(store.newest().unwrap(), Some(revision(10)));
        assert_eq!(
            Store::new(&Host::real(), volume.path(), &uid("b")).newest().unwrap(),
            None
        );
    }

    #[test]
    fn the_last_revisions_are_kept_and_no_temporary_files() {
        let volume = tempfile::tempdir().unwrap();
        let store = Store::new(&Host::real(), volume.path(), &uid("a"));
        for sequence in 1..=20 {
            store.save(&revision(sequence)).unwrap();
        }
        assert_eq!(store.sequences().unwrap(), [18, 19, 20]);
        let directory = volume.path().join(".slurm-operator/a");
        assert_eq!(fs::read_dir(directory).unwrap().count(), 3);
    }

    #[test]
    fn the_verified_revision_is_never_pruned() {
        let volume = tempfile::tempdir().unwrap();
        let store = Store::new(&Host::real(), volume.path(), &uid("a"));
        assert_eq!(store.verified(), None);
        store.save(&revision(1)).unwrap();
        store.save_verified(&revision(1).summary()).unwrap();
        for sequence in 2..=20 {
            store.save(&revision(sequence)).unwrap();
        }
        assert_eq!(store.verified().unwrap().sequence, 1);
        assert_eq!(store.load(1), Some(revision(1)));
        assert_eq!(store.load(2), None);
    }

    #[test]
    fn a_pending_revision_is_not_started_from() {
        let volume = tempfile::tempdir().unwrap();
        let store = Store::new(&Host::real(), volume.path(), &uid("a"));
        store.save(&revision(1)).unwrap();
        store.save_pending(&revision(2)).unwrap();
        assert_eq!(store.newest().unwrap(), Some(revision(1)));
        assert_eq!(store.pending(), Some(revision(2)));
        store.promote_pending(2).unwrap();
        assert_eq!(store.newest().unwrap(), Some(revision(2)));
        assert_eq!(store.pending(), None);
        store.save_pending(&revision(3)).unwrap();
        store.remove_pending();
        store.remove_pending();
        assert_eq!(store.pending(), None);
    }

    #[test]
    fn a_torn_or_foreign_file_is_skipped() {
        let volume = tempfile::tempdir().unwrap();
        let store = Store::new(&Host::real(), volume.path(), &uid("a"));
        store.save(&revision(5)).unwrap();
        let bundle = revision(5).to_bundle().unwrap();
        fs::write(store.path(&bundle_name(6)), &bundle[..bundle.len() / 2]).unwrap();
        fs::write(store.path(&bundle_name(7)), &bundle).unwrap();
        let foreign = Revision {
            controller: uid("b"),
            ..revision(8)
        };
        fs::write(store.path(&bundle_name(8)), foreign.to_bundle().unwrap()).unwrap();
        fs::write(store.directory.join("9.bundle.tmp"), "").unwrap();
        assert_eq!(store.newest().unwrap(), Some(revision(5)));
    }

    #[test]
    fn a_rejected_revision_is_removed() {
        let volume = tempfile::tempdir().unwrap();
        let store = Store::new(&Host::real(), volume.path(), &uid("a"));
        store.save(&revision(5)).unwrap();
        store.save(&revision(6)).unwrap();
        store.remove(6).unwrap();
        store.remove(6).unwrap();
        assert_eq!(store.newest().unwrap(), Some(revision(5)));
    }

    #[test]
    fn pods_that_share_a_volume_have_separate_stores() {
        let volume = tempfile::tempdir().unwrap();
        let store = |pod| Store::new(&Host::real(), volume.path(), &uid("a")).of_pod(Some(pod));
        let (one, two) = (store("slurm-controller-0"), store("slurm-controller-1"));
        one.save(&revision(5)).unwrap();
        two.save(&revision(5)).unwrap();
        two.save_verified(&revision(5).summary()).unwrap();
        one.remove(5).unwrap();
        assert_eq!(one.newest().unwrap(), None);
        assert_eq!(one.verified(), None);
        assert_eq!(two.newest().unwrap(), Some(revision(5)));
        assert_eq!(
            Store::new(&Host::real(), volume.path(), &uid("a")).newest().unwrap(),
            None
        );
    }

    #[test]
    fn the_term_outlives_the_pod() {
        let volume = tempfile::tempdir().unwrap();
        let store = Store::new(&Host::real(), volume.path(), &uid("a"));
        assert_eq!(store.term(), 0);
        store.save_term(7).unwrap();
        assert_eq!(Store::new(&Host::real(), volume.path(), &uid("a")).term(), 7);
    }
}
