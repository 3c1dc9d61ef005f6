//! A revision: all files of one cluster's configuration, with a sequence number.
//!
//! Pure. The operator creates revisions and the agent makes them live; both identify them by sequence and digest. One encoding
//! ([`bundle`]) serves for the ConfigMap, for the state volume and for the protocol between operator and agent.

mod bundle;
mod digest;
mod names;
mod sequence;

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

pub use bundle::{DecodeError, MAX_BUNDLE, MAX_CONTENT, TooLarge};
pub use digest::{Digest, InvalidDigest};
pub use names::{ControllerUid, FileName, InvalidControllerUid, InvalidFileName};
pub use sequence::{Implausible, MAX_JUMP, MAX_SEQUENCE, check_jump, next_sequence};

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Revision {
    /// Greater than that of every earlier revision of this Controller.
    pub sequence: u64,
    pub controller: ControllerUid,
    pub files: BTreeMap<FileName, File>,
    /// Partitions whose `State=` in slurm.conf is a manual state: it ends when a person opens the partition in Slurm. The digest does
    /// not cover this, and it is not stored in /etc/slurm.
    pub closed_by_hand: BTreeSet<String>,
}

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct File {
    pub content: Vec<u8>,
    /// Set for a prolog or an epilog.
    pub executable: bool,
}

/// A revision without the content of its files.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Summary {
    pub sequence: u64,
    pub controller: ControllerUid,
    /// Covers names, bytes and modes of all files, but neither sequence nor Controller: equal digests mean that nothing has to be
    /// done.
    pub digest: Digest,
    pub files: BTreeMap<FileName, Digest>,
}

/// Which revision is live.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct LiveRevision {
    pub sequence: u64,
    pub digest: Digest,
}

impl From<&Summary> for LiveRevision {
    fn from(summary: &Summary) -> Self {
        Self {
            sequence: summary.sequence,
            digest: summary.digest,
        }
    }
}

impl File {
    pub fn config(content: impl Into<Vec<u8>>) -> Self {
        Self {
            content: content.into(),
            executable: false,
        }
    }

    pub fn script(content: impl Into<Vec<u8>>) -> Self {
        Self {
            content: content.into(),
            executable: true,
        }
    }

    pub fn digest(&self) -> Digest {
        Digest::of(&self.content)
    }
}

impl Revision {
    /// See [`Summary::digest`].
    pub fn digest(&self) -> Digest {
        digest_of_files(&self.files)
    }

    pub fn summary(&self) -> Summary {
        Summary {
            sequence: self.sequence,
            controller: self.controller.clone(),
            digest: self.digest(),
            files: self
                .files
                .iter()
                .map(|(name, file)| (name.clone(), file.digest()))
                .collect(),
        }
    }
}

/// Returns the digest of a revision with these files: that of the lines `<digest> <x or -> <name>`, sorted by name.
pub fn digest_of_files(files: &BTreeMap<FileName, File>) -> Digest {
    let lines: Vec<String> = files
        .iter()
        .map(|(name, file)| {
            let mode = if file.executable { 'x' } else { '-' };
            format!("{} {mode} {name}\n", file.digest())
        })
        .collect();
    Digest::of(lines.concat().as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn revision(files: &[(&str, File)]) -> Revision {
        Revision {
            sequence: 7,
            controller: ControllerUid::new("0f0e").unwrap(),
            files: files
                .iter()
                .map(|(name, file)| (FileName::new(*name).unwrap(), file.clone()))
                .collect(),
            closed_by_hand: BTreeSet::new(),
        }
    }

    #[test]
    fn the_digest_depends_on_names_bytes_and_modes() {
        let one = revision(&[("a", File::config("x")), ("b", File::config("y"))]).digest();
        for other in [
            revision(&[("a", File::config("y")), ("b", File::config("x"))]),
            revision(&[("a", File::config("x")), ("b", File::script("y"))]),
            revision(&[("a", File::config("x"))]),
            revision(&[]),
        ] {
            assert_ne!(one, other.digest());
        }
    }

    #[test]
    fn the_digest_depends_on_the_files_alone() {
        let one = revision(&[("a", File::config("x"))]);
        let other = Revision {
            sequence: 8,
            controller: ControllerUid::new("other").unwrap(),
            ..one.clone()
        };
        assert_eq!(one.digest(), other.digest());
        assert_ne!(one.summary(), other.summary());
    }
}
