//! Random numbers, all from one seed.

use std::sync::{Arc, Mutex};

use fastrand::Rng;

/// A generator. A clone draws from the same one.
#[derive(Debug, Clone)]
pub struct Random(Arc<Mutex<Rng>>);

impl Random {
    pub fn new(seed: u64) -> Self {
        Self(Arc::new(Mutex::new(Rng::with_seed(seed))))
    }

    /// A generator of its own, so that what one part draws does not change another.
    #[must_use]
    pub fn fork(&self) -> Self {
        Self::new(self.0.lock().unwrap().u64(..))
    }

    pub fn fill(&self, bytes: &mut [u8]) {
        self.0.lock().unwrap().fill(bytes);
    }

    /// Less than `end`.
    pub fn below(&self, end: u64) -> u64 {
        self.0.lock().unwrap().u64(..end.max(1))
    }

    /// True once in so many times.
    pub fn one_in(&self, times: u64) -> bool {
        self.below(times) == 0
    }

    pub fn pick<'a, T>(&self, among: &'a [T]) -> Option<&'a T> {
        among.get(usize::try_from(self.below(among.len() as u64)).unwrap())
    }

    pub fn between(&self, least: u64, most: u64) -> u64 {
        least + self.below(most - least + 1)
    }
}
