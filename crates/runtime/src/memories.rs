//! How many objects this process remembers. Nothing may be remembered of objects that are gone.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex},
};

use crate::lock;

type Count = Box<dyn Fn() -> usize + Send>;

/// All memories by object. A clone shares them.
#[derive(Clone, Default)]
pub struct Memories(Arc<Mutex<Vec<(String, Count)>>>);

impl Memories {
    /// Adds a memory that can count its objects.
    pub fn add(&self, name: impl Into<String>, count: impl Fn() -> usize + Send + 'static) {
        lock(&self.0).push((name.into(), Box::new(count)));
    }

    /// The number of objects in each memory.
    pub fn counts(&self) -> BTreeMap<String, usize> {
        let memories = lock(&self.0);
        memories.iter().map(|(name, count)| (name.clone(), count())).collect()
    }
}

impl std::fmt::Debug for Memories {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_map().entries(self.counts()).finish()
    }
}
