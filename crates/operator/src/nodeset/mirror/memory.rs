//! What was written for each pod, so that nothing is repeated too early.
//!
//! It is lost with the process; then a value may be written once more, which changes nothing.

use std::collections::{HashMap, HashSet};

use jiff::Timestamp;

/// MirrorMemory by UID of the pod.
#[derive(Clone, Debug, Default)]
pub struct MirrorMemory(HashMap<String, PodMemory>);

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PodMemory {
    pub written: Option<Timestamp>,
    /// When its Slurm node was last updated; older snapshots do not show the result.
    pub updated: Option<Timestamp>,
    pub topology: Option<TopologyRequest>,
}

/// A topology that Slurm was asked to set.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TopologyRequest {
    pub place: String,
    pub at: Timestamp,
    /// Slurm's message, if it refused.
    pub refused: Option<String>,
}

impl MirrorMemory {
    pub fn of(&self, uid: &str) -> Option<&PodMemory> {
        self.0.get(uid)
    }

    pub fn of_mut(&mut self, uid: &str) -> &mut PodMemory {
        self.0.entry(uid.to_owned()).or_default()
    }

    /// Drops all other pods.
    pub fn keep<'a>(&mut self, uids: impl IntoIterator<Item = &'a str>) {
        let uids: HashSet<&str> = uids.into_iter().collect();
        self.0.retain(|uid, _| uids.contains(uid.as_str()));
    }
}
