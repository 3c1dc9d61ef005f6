//! The revisions of one Controller on slurmctld's state volume: what a pod starts from when it died right after a change.
//!
//! `.slurm-operator/<uid>/<sequence>.bundle`, each durable before it goes live; `verified`, which of them slurmctld was last
//! seen to run with; `fence`, the highest term of a leader; and `journal`, see [`Journal`]. Where standbys share the volume each
//! pod has all that in a directory of its own, `<uid>/<pod>/`: what one of them refuses is nothing the others lose.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use slurm::Revision;
use slurm::agent::KeptState;
use slurm::revision::{ControllerUid, DecodeError, Digest, Summary, TooLarge};
use thiserror::Error;
use tracing::warn;

use crate::durable;
use crate::journal::{Entry, Journal};

/// What is live, what was live before, and one more for a person who looks.
const KEPT: usize = 3;

const SUFFIX: &str = "bundle";

#[derive(Debug, Error)]
pub enum Error {
    #[error("cannot read {path}: {source}", path = .path.display())]
    Read { path: PathBuf, source: io::Error },
    #[error("cannot write {path}: {source}", path = .path.display())]
    Write { path: PathBuf, source: io::Error },
    #[error(transparent)]
    TooLarge(#[from] TooLarge),
}

/// Last known good.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Verified {
    pub sequence: u64,
    pub digest: Digest,
}

#[derive(Debug, Clone)]
pub struct Store {
    volume: PathBuf,
    directory: PathBuf,
    controller: ControllerUid,
}

impl Store {
    pub fn new(state_volume: &Path, controller: &ControllerUid) -> Self {
        Self {
            volume: state_volume.to_owned(),
            directory: state_volume.join(".slurm-operator").join(controller.as_str()),
            controller: controller.clone(),
        }
    }

    /// What this pod knows, where it is one of several.
    #[must_use]
    pub fn of_pod(mut self, pod: Option<&str>) -> Self {
        if let Some(pod) = pod {
            self.directory.push(pod);
        }
        self
    }

    /// On the disk when it returns.
    pub fn save(&self, revision: &Revision) -> Result<(), Error> {
        let bundle = revision.to_bundle()?;
        self.create_directory()?;
        let path = self.path_of(revision.sequence);
        durable::replace(&path, &bundle, 0o640).map_err(|source| Error::Write { path, source })?;
        self.prune();
        Ok(())
    }

    /// For the agent after this one to finish what this one has begun with slurmctld. No pod starts from it.
    pub fn save_pending(&self, revision: &Revision) -> Result<(), Error> {
        let bundle = revision.to_bundle()?;
        self.create_directory()?;
        let path = self.path_of_pending();
        durable::replace(&path, &bundle, 0o640).map_err(|source| Error::Write { path, source })
    }

    /// From here on a pod may start from it.
    pub fn promote_pending(&self, sequence: u64) -> Result<(), Error> {
        let path = self.path_of(sequence);
        fs::rename(self.path_of_pending(), &path)
            .and_then(|()| durable::sync_directory(&self.directory))
            .map_err(|source| Error::Write { path, source })?;
        self.prune();
        Ok(())
    }

    pub fn pending(&self) -> Option<Revision> {
        let bundle = fs::read(self.path_of_pending()).ok()?;
        let revision = Revision::from_bundle(&bundle).ok()?;
        (revision.controller == self.controller).then_some(revision)
    }

    pub fn remove_pending(&self) {
        let path = self.path_of_pending();
        if let Err(error) = durable::remove(&path) {
            warn!(path = %path.display(), %error, "a change that has ended stays on the state volume");
        }
    }

    /// Partitions that somebody has closed, before files are read that have them open.
    pub fn save_closed(&self, closed: &[KeptState]) -> Result<(), Error> {
        self.create_directory()?;
        let path = self.path_of_closed();
        let text = serde_json::to_vec(closed).unwrap_or_default();
        durable::replace(&path, &text, 0o640).map_err(|source| Error::Write { path, source })
    }

    pub fn closed(&self) -> Vec<KeptState> {
        let text = fs::read(self.path_of_closed()).unwrap_or_default();
        serde_json::from_slice(&text).unwrap_or_default()
    }

    pub fn remove_closed(&self) {
        let path = self.path_of_closed();
        if let Err(error) = durable::remove(&path) {
            warn!(path = %path.display(), %error, "what was closed by hand stays on the state volume");
        }
    }

    /// A revision that slurmctld refused must not be what the next pod starts from.
    pub fn remove(&self, sequence: u64) -> Result<(), Error> {
        let path = self.path_of(sequence);
        durable::remove(&path).map_err(|source| Error::Write { path, source })
    }

    /// The highest that can be read. One that cannot, or belongs to somebody else, is passed over with a word in the log.
    pub fn newest(&self) -> Result<Option<Revision>, Error> {
        for sequence in self.sequences()?.into_iter().rev() {
            let path = self.path_of(sequence);
            let bundle = fs::read(&path).map_err(|source| Error::Read {
                path: path.clone(),
                source,
            })?;
            match self.check(sequence, Revision::from_bundle(&bundle)) {
                Ok(revision) => return Ok(Some(revision)),
                Err(why) => warn!(path = %path.display(), %why, "revision passed over"),
            }
        }
        Ok(None)
    }

    /// `None` if it is not there, or of no use.
    pub fn load(&self, sequence: u64) -> Option<Revision> {
        let bundle = fs::read(self.path_of(sequence)).ok()?;
        self.check(sequence, Revision::from_bundle(&bundle)).ok()
    }

    fn check(&self, sequence: u64, decoded: Result<Revision, DecodeError>) -> Result<Revision, String> {
        let revision = decoded.map_err(|error| error.to_string())?;
        if revision.controller != self.controller || revision.sequence != sequence {
            return Err(format!(
                "it holds revision {} of Controller {}",
                revision.sequence, revision.controller
            ));
        }
        Ok(revision)
    }

    /// Ascending.
    pub fn sequences(&self) -> Result<Vec<u64>, Error> {
        let failed = |source| Error::Read {
            path: self.directory.clone(),
            source,
        };
        let entries = match fs::read_dir(&self.directory) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            other => other.map_err(failed)?,
        };
        let mut sequences = Vec::new();
        for entry in entries {
            let name = entry.map_err(failed)?.file_name();
            let name = Path::new(&name);
            if name.extension().is_some_and(|suffix| suffix == SUFFIX)
                && let Some(sequence) = name.file_stem().and_then(|stem| stem.to_str()?.parse().ok())
            {
                sequences.push(sequence);
            }
        }
        sequences.sort_unstable();
        Ok(sequences)
    }

    /// The highest term of a leader that has been heard; 0 if none has.
    pub fn term(&self) -> u64 {
        let text = fs::read_to_string(self.directory.join("fence")).unwrap_or_default();
        text.trim().parse().unwrap_or(0)
    }

    pub fn save_term(&self, term: u64) -> Result<(), Error> {
        self.create_directory()?;
        let path = self.directory.join("fence");
        durable::replace(&path, format!("{term}\n").as_bytes(), 0o640).map_err(|source| Error::Write { path, source })
    }

    /// What slurmctld was last seen to run with.
    pub fn verified(&self) -> Option<Verified> {
        let text = fs::read(self.directory.join("verified")).ok()?;
        serde_json::from_slice(&text).ok()
    }

    /// On the disk when it returns.
    pub fn save_verified(&self, revision: &Summary) -> Result<(), Error> {
        let verified = Verified {
            sequence: revision.sequence,
            digest: revision.digest,
        };
        self.create_directory()?;
        let path = self.directory.join("verified");
        let text = serde_json::to_vec(&verified).unwrap_or_default();
        durable::replace(&path, &text, 0o640).map_err(|source| Error::Write { path, source })
    }

    pub fn journal(&self) -> Journal {
        Journal::new(&self.directory)
    }

    pub fn note(&self, entry: Entry) -> Result<(), Error> {
        self.create_directory()?;
        let journal = self.journal();
        journal.note(entry).map_err(|source| Error::Write {
            path: journal.path,
            source,
        })
    }

    fn path_of(&self, sequence: u64) -> PathBuf {
        self.directory.join(format!("{sequence}.{SUFFIX}"))
    }

    fn path_of_pending(&self) -> PathBuf {
        self.directory.join("pending")
    }

    fn path_of_closed(&self) -> PathBuf {
        self.directory.join("closed")
    }

    fn create_directory(&self) -> Result<(), Error> {
        if self.directory.is_dir() {
            return Ok(());
        }
        let failed = |source| Error::Write {
            path: self.directory.clone(),
            source,
        };
        fs::create_dir_all(&self.directory).map_err(failed)?;
        // The names of all new directories stand in the ones above them.
        self.directory
            .ancestors()
            .take_while(|above| above.starts_with(&self.volume))
            .try_for_each(durable::sync_directory)
            .map_err(failed)
    }

    fn prune(&self) {
        let sequences = self.sequences().unwrap_or_default();
        let (old, _) = sequences.split_at(sequences.len().saturating_sub(KEPT));
        let good = self.verified().map(|verified| verified.sequence);
        for sequence in old.iter().filter(|sequence| Some(**sequence) != good) {
            // A change does not wait for the disk to forget: one that is there again after a crash has the lowest number.
            if let Err(error) = fs::remove_file(self.path_of(*sequence)) {
                warn!(%error, sequence, "an old revision stays");
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, BTreeSet};

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
        let store = Store::new(volume.path(), &uid("a"));
        assert_eq!(store.newest().unwrap(), None);
        for sequence in [9, 10, 8] {
            store.save(&revision(sequence)).unwrap();
        }
        assert_eq!(store.newest().unwrap(), Some(revision(10)));
        assert_eq!(Store::new(volume.path(), &uid("b")).newest().unwrap(), None);
    }

    #[test]
    fn a_few_are_kept_and_nothing_else_lies_about() {
        let volume = tempfile::tempdir().unwrap();
        let store = Store::new(volume.path(), &uid("a"));
        for sequence in 1..=20 {
            store.save(&revision(sequence)).unwrap();
        }
        assert_eq!(store.sequences().unwrap(), [18, 19, 20]);
        let directory = volume.path().join(".slurm-operator/a");
        assert_eq!(fs::read_dir(directory).unwrap().count(), 3);
    }

    #[test]
    fn what_slurmctld_last_ran_with_is_kept_however_many_come_after_it() {
        let volume = tempfile::tempdir().unwrap();
        let store = Store::new(volume.path(), &uid("a"));
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
    fn what_is_pending_is_nothing_to_start_from() {
        let volume = tempfile::tempdir().unwrap();
        let store = Store::new(volume.path(), &uid("a"));
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
    fn a_torn_or_foreign_file_is_passed_over() {
        let volume = tempfile::tempdir().unwrap();
        let store = Store::new(volume.path(), &uid("a"));
        store.save(&revision(5)).unwrap();
        let bundle = revision(5).to_bundle().unwrap();
        fs::write(store.path_of(6), &bundle[..bundle.len() / 2]).unwrap();
        fs::write(store.path_of(7), &bundle).unwrap();
        let foreign = Revision {
            controller: uid("b"),
            ..revision(8)
        };
        fs::write(store.path_of(8), foreign.to_bundle().unwrap()).unwrap();
        fs::write(store.directory.join("9.bundle.tmp"), "").unwrap();
        assert_eq!(store.newest().unwrap(), Some(revision(5)));
    }

    #[test]
    fn a_refused_revision_is_gone() {
        let volume = tempfile::tempdir().unwrap();
        let store = Store::new(volume.path(), &uid("a"));
        store.save(&revision(5)).unwrap();
        store.save(&revision(6)).unwrap();
        store.remove(6).unwrap();
        store.remove(6).unwrap();
        assert_eq!(store.newest().unwrap(), Some(revision(5)));
    }

    #[test]
    fn pods_that_share_a_volume_know_nothing_of_each_other() {
        let volume = tempfile::tempdir().unwrap();
        let store = |pod| Store::new(volume.path(), &uid("a")).of_pod(Some(pod));
        let (one, two) = (store("slurm-controller-0"), store("slurm-controller-1"));
        one.save(&revision(5)).unwrap();
        two.save(&revision(5)).unwrap();
        two.save_verified(&revision(5).summary()).unwrap();
        one.remove(5).unwrap();
        assert_eq!(one.newest().unwrap(), None);
        assert_eq!(one.verified(), None);
        assert_eq!(two.newest().unwrap(), Some(revision(5)));
        assert_eq!(Store::new(volume.path(), &uid("a")).newest().unwrap(), None);
    }

    #[test]
    fn the_term_outlives_the_pod() {
        let volume = tempfile::tempdir().unwrap();
        let store = Store::new(volume.path(), &uid("a"));
        assert_eq!(store.term(), 0);
        store.save_term(7).unwrap();
        assert_eq!(Store::new(volume.path(), &uid("a")).term(), 7);
    }
}
