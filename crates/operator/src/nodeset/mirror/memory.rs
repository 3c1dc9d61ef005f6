//! What was done about each pod before, so that nothing is repeated sooner than it may be.
//!
//! It is lost with the process. Then a thing may be written or told once more, which changes nothing.

use std::collections::{HashMap, HashSet};

use jiff::Timestamp;

/// By the pod's UID.
#[derive(Clone, Debug, Default)]
pub struct Memory(HashMap<String, PodMemory>);

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PodMemory {
    /// When its pod was last written.
    pub written: Option<Timestamp>,
    /// When its Slurm node was last told something: what was seen before that is old.
    pub told: Option<Timestamp>,
    pub topology: Option<Asked>,
}

/// A place in the topology that Slurm was asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Asked {
    pub place: String,
    pub at: Timestamp,
    /// Slurm's words, if it refused.
    pub refused: Option<String>,
}

impl Memory {
    pub fn of(&self, uid: &str) -> Option<&PodMemory> {
        self.0.get(uid)
    }

    pub fn of_mut(&mut self, uid: &str) -> &mut PodMemory {
        self.0.entry(uid.to_owned()).or_default()
    }

    /// Forgets pods that are gone.
    pub fn keep<'a>(&mut self, uids: impl IntoIterator<Item = &'a str>) {
        let uids: HashSet<&str> = uids.into_iter().collect();
        self.0.retain(|uid, _| uids.contains(uid.as_str()));
    }
}
