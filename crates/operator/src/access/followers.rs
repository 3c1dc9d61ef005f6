//! Which NodeSets wait for the end of jobs. Slurm counts jobs faster than it lists them, so they are listed only while they
//! decide something.

use std::{
    collections::{BTreeSet, HashMap},
    sync::{Mutex, PoisonError},
};

use crate::runtime::Key;

/// NodeSets by their Controller.
#[derive(Debug, Default)]
pub(super) struct Followers(Mutex<HashMap<Key, BTreeSet<Key>>>);

impl Followers {
    /// True if it is new that this one waits.
    pub(super) fn set(&self, controller: &Key, nodeset: &Key, follows: bool) -> bool {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if follows {
            return all.entry(controller.clone()).or_default().insert(nodeset.clone());
        }
        if let Some(followers) = all.get_mut(controller) {
            followers.remove(nodeset);
            if followers.is_empty() {
                all.remove(controller);
            }
        }
        false
    }

    pub(super) fn of(&self, controller: &Key) -> BTreeSet<Key> {
        let all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        all.get(controller).cloned().unwrap_or_default()
    }
}
