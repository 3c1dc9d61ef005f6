//! Who waits for the end of jobs. Slurm counts jobs faster than it lists them, so they are listed only while they decide
//! something.

use std::{
    collections::{BTreeSet, HashMap},
    sync::{Mutex, PoisonError},
};

use crate::runtime::Key;

/// One that waits.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Follower {
    /// The cluster's Controller itself.
    Controller,
    NodeSet(Key),
    Partition(Key),
}

/// Those who wait, by the Controller of their cluster.
#[derive(Debug, Default)]
pub(super) struct Followers(Mutex<HashMap<Key, BTreeSet<Follower>>>);

impl Followers {
    /// True if it is new that this one waits.
    pub(super) fn set(&self, controller: &Key, follower: &Follower, follows: bool) -> bool {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if follows {
            return all.entry(controller.clone()).or_default().insert(follower.clone());
        }
        if let Some(followers) = all.get_mut(controller) {
            followers.remove(follower);
            if followers.is_empty() {
                all.remove(controller);
            }
        }
        false
    }

    pub(super) fn of(&self, controller: &Key) -> BTreeSet<Follower> {
        let all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        all.get(controller).cloned().unwrap_or_default()
    }
}
