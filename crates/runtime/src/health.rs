//! Whether this process is alive, and whether it is ready.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex},
    time::Duration,
};

use host::Host;
use host::watch;
use tokio::time::Instant;

use crate::lock;

/// Every loop reports at least this often.
pub(crate) const TURN: Duration = Duration::from_secs(5);
/// A loop that has not reported for so long hangs.
const STUCK: Duration = Duration::from_mins(1);

/// When each loop last reported, which caches are synced, and which watches are silent. A clone shares them.
#[derive(Debug, Clone)]
pub(super) struct Health {
    host: Host,
    turns: Arc<Mutex<BTreeMap<&'static str, Instant>>>,
    caches: watch::Sender<BTreeMap<String, bool>>,
    /// From when on each watch, and the API server itself, counts as silent.
    silent_from: Arc<Mutex<BTreeMap<String, Instant>>>,
    /// Our own definitions, if none of them is installed.
    undefined: Arc<Mutex<Vec<String>>>,
}

impl Health {
    pub(crate) fn new(host: Host) -> Self {
        Self {
            host,
            turns: Arc::default(),
            caches: watch::Sender::default(),
            silent_from: Arc::default(),
            undefined: Arc::default(),
        }
    }

    /// Records that a loop runs.
    pub(crate) fn turned(&self, name: &'static str) {
        lock(&self.turns).insert(name, self.host.instant());
    }

    /// Records that a loop ended as it should.
    pub(super) fn ended(&self, name: &'static str) {
        lock(&self.turns).remove(name);
    }

    /// The loops that hang.
    pub(super) fn stuck(&self) -> Vec<String> {
        let (now, turns) = (self.host.instant(), lock(&self.turns));
        let stuck = turns.iter().filter(|(_, turned)| now.duration_since(**turned) > STUCK);
        stuck.map(|(name, _)| (*name).to_owned()).collect()
    }

    /// Records whether a cache holds what the API server has. One whose definition is not installed does.
    pub(super) fn synced(&self, cache: &str, synced: bool) {
        self.caches
            .send_if_modified(|caches| caches.insert(cache.to_owned(), synced) != Some(synced));
    }

    /// The caches that are not synced yet.
    pub(super) fn missing(&self) -> Vec<String> {
        let caches = self.caches.borrow();
        let missing = caches.iter().filter(|(_, synced)| !**synced);
        missing.map(|(name, _)| name.clone()).collect()
    }

    /// Records a response to a watch or to the heartbeat. It counts as silent after this time without another.
    pub(super) fn heard(&self, name: &str, silent_after: Duration) {
        let from = self.host.instant() + silent_after;
        lock(&self.silent_from).insert(name.to_owned(), from);
    }

    /// Records that a kind is not watched: its definition is not installed.
    pub(super) fn unwatched(&self, name: &str) {
        lock(&self.silent_from).remove(name);
    }

    /// Records our own definitions if none of them is installed, and an empty list otherwise.
    pub(super) fn note_undefined(&self, definitions: Vec<String>) {
        *lock(&self.undefined) = definitions;
    }

    /// Our own definitions, if none of them is installed: there is nothing to do.
    pub(super) fn undefined(&self) -> Vec<String> {
        lock(&self.undefined).clone()
    }

    /// The watches without a response for too long, so that their caches may be old.
    pub(super) fn silent(&self) -> Vec<String> {
        let (now, from) = (self.host.instant(), lock(&self.silent_from));
        let silent = from.iter().filter(|(_, from)| **from <= now);
        silent.map(|(name, _)| name.clone()).collect()
    }

    /// Returns when all caches are synced.
    pub(super) async fn all_synced(&self) {
        let mut caches = self.caches.subscribe();
        // The sender lives as long as `self`.
        let _ = caches.wait_for(|caches| caches.values().all(|synced| *synced)).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_loop_that_hangs_is_named() {
        let health = Health::new(Host::real());
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
    async fn a_process_is_ready_when_every_cache_is_synced() {
        let health = Health::new(Host::real());
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
