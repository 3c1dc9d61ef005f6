//! Whether this process is well, and whether it is ready.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use tokio::{sync::watch, time::Instant};

/// Every loop turns at least this often.
pub(super) const TURN: Duration = Duration::from_secs(5);
/// One that has not turned for so long hangs.
const STUCK: Duration = Duration::from_mins(1);

/// Loops and their last turns, caches and whether they are full. A clone shares them.
#[derive(Debug, Clone, Default)]
pub(super) struct Health(Arc<Inner>);

#[derive(Debug, Default)]
struct Inner {
    turns: Mutex<BTreeMap<&'static str, Instant>>,
    caches: watch::Sender<BTreeMap<String, bool>>,
}

impl Health {
    /// A loop says that it turns.
    pub(super) fn turned(&self, name: &'static str) {
        self.turns().insert(name, Instant::now());
    }

    /// A loop ended as it should.
    pub(super) fn ended(&self, name: &'static str) {
        self.turns().remove(name);
    }

    /// Loops that hang.
    pub(super) fn stuck(&self) -> Vec<&'static str> {
        let turns = self.turns();
        let stuck = turns.iter().filter(|(_, turned)| turned.elapsed() > STUCK);
        stuck.map(|(name, _)| *name).collect()
    }

    /// Whether a cache holds what the API server has. One whose definition is not installed does.
    pub(super) fn synced(&self, cache: &str, synced: bool) {
        self.0
            .caches
            .send_if_modified(|caches| caches.insert(cache.to_owned(), synced) != Some(synced));
    }

    /// Caches that are not full yet.
    pub(super) fn missing(&self) -> Vec<String> {
        let caches = self.0.caches.borrow();
        let missing = caches.iter().filter(|(_, synced)| !**synced);
        missing.map(|(name, _)| name.clone()).collect()
    }

    /// Returns when all caches are full.
    pub(super) async fn all_synced(&self) {
        let mut caches = self.0.caches.subscribe();
        // The sender lives as long as `self`.
        let _ = caches.wait_for(|caches| caches.values().all(|synced| *synced)).await;
    }

    fn turns(&self) -> MutexGuard<'_, BTreeMap<&'static str, Instant>> {
        self.0.turns.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_loop_that_does_not_turn_is_named() {
        let health = Health::default();
        health.turned("controller");
        health.turned("nodeset");
        tokio::time::advance(STUCK).await;
        health.turned("nodeset");
        tokio::time::advance(Duration::from_secs(1)).await;
        assert_eq!(health.stuck(), ["controller"]);
        health.ended("controller");
        assert!(health.stuck().is_empty());
    }

    #[tokio::test(start_paused = true)]
    async fn ready_is_when_every_cache_is_full() {
        let health = Health::default();
        health.synced("Pod", false);
        health.synced("Node", true);
        assert_eq!(health.missing(), ["Pod"]);
        let (other, ready) = (health.clone(), Duration::from_secs(1));
        tokio::spawn(async move {
            tokio::time::sleep(ready).await;
            other.synced("Pod", true);
        });
        tokio::time::timeout(ready * 2, health.all_synced()).await.unwrap();
        assert!(health.missing().is_empty());
    }
}
