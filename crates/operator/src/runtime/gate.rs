//! Read your writes: the next reconcile of an object runs only when the caches hold what the one before wrote.
//!
//! Otherwise it would decide on the world as it was before, and do the same again: count a pod it has just made as
//! missing, for one. (Kubernetes' own controllers have this since 1.36, KEP-5647.)

use std::{
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use futures::future::{BoxFuture, join_all};

use super::{Cached, Caches, Key, cache::ResourceVersion};

tokio::task_local! {
    /// Of the reconcile that runs in this task.
    static JOURNAL: Journal;
}

/// What one reconcile wrote. A clone shares it.
#[derive(Clone, Default)]
pub(super) struct Journal(Arc<Mutex<Vec<BoxFuture<'static, ()>>>>);

impl std::fmt::Debug for Journal {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Journal").finish_non_exhaustive()
    }
}

impl Journal {
    /// Runs a reconcile whose writes are noted here. What it spawns is not seen.
    pub(super) async fn note<F: Future>(self, reconcile: F) -> F::Output {
        JOURNAL.scope(self, reconcile).await
    }

    pub(super) fn is_empty(&self) -> bool {
        self.entries().is_empty()
    }

    /// Waits until the caches hold everything noted. Says whether they do; a watch that lags longer must not hold up
    /// an object for ever.
    pub(super) async fn settled(&self, within: Duration) -> bool {
        let entries = std::mem::take(&mut *self.entries());
        tokio::time::timeout(within, join_all(entries)).await.is_ok()
    }

    fn entries(&self) -> std::sync::MutexGuard<'_, Vec<BoxFuture<'static, ()>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn add(entry: impl Future<Output = ()> + Send + 'static) {
        // Without a journal somebody outside of a reconcile writes, and nobody waits for it.
        let _ = JOURNAL.try_with(|journal| journal.entries().push(Box::pin(entry)));
    }
}

/// Notes an object as the API server returned it.
pub(super) fn wrote<K: Cached>(caches: &Caches, object: &K) {
    let Some(version) = ResourceVersion::of(object) else {
        return;
    };
    let (cache, key) = (K::cache(caches).clone(), Key::of(object));
    Journal::add(async move { cache.wait_until(|cache| cache.has_seen(&key, version)).await });
}

/// Notes that the object with this UID was deleted, or is being.
pub(super) fn deleted<K: Cached>(caches: &Caches, key: Key, uid: String) {
    let cache = K::cache(caches).clone();
    Journal::add(async move {
        cache
            .wait_until(|cache| {
                cache.get(&key.namespace, &key.name).is_none_or(|object| {
                    let meta = object.meta();
                    meta.uid.as_deref() != Some(&uid) || meta.deletion_timestamp.is_some()
                })
            })
            .await;
    });
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::ConfigMap;
    use serde_json::json;

    use super::*;

    const SOON: Duration = Duration::from_secs(2);

    fn config_map(version: &str, uid: &str) -> ConfigMap {
        serde_json::from_value(
            json!({"metadata": {"namespace": "n", "name": "a", "resourceVersion": version, "uid": uid}}),
        )
        .unwrap()
    }

    async fn journal_of_a_write(caches: &Caches) -> Journal {
        let journal = Journal::default();
        let write = async { wrote(caches, &config_map("10", "u")) };
        journal.clone().note(write).await;
        journal
    }

    #[tokio::test(start_paused = true)]
    async fn a_write_is_waited_for_until_the_watch_brings_it() {
        let caches = Caches::default();
        let journal = journal_of_a_write(&caches).await;
        assert!(!journal.is_empty());
        let watch = async {
            tokio::time::sleep(Duration::from_millis(1)).await;
            caches.config_maps.insert(config_map("9", "u"));
            tokio::time::sleep(Duration::from_secs(1)).await;
            caches.config_maps.insert(config_map("10", "u"));
        };
        let start = tokio::time::Instant::now();
        let (settled, ()) = tokio::join!(journal.settled(SOON), watch);
        assert!(settled);
        assert!(start.elapsed() >= Duration::from_secs(1));
        assert!(journal.is_empty());
    }

    #[tokio::test(start_paused = true)]
    async fn a_watch_that_lags_holds_nothing_up_for_ever() {
        let caches = Caches::default();
        let journal = journal_of_a_write(&caches).await;
        assert!(!journal.settled(SOON).await);
    }

    #[tokio::test(start_paused = true)]
    async fn a_delete_is_waited_for_by_uid() {
        let caches = Caches::default();
        caches.config_maps.insert(config_map("9", "u"));
        let delete = || async { deleted::<ConfigMap>(&caches, Key::new("n", "a"), "u".to_owned()) };
        let journal = Journal::default();
        journal.clone().note(delete()).await;
        assert!(!journal.settled(SOON).await);

        journal.clone().note(delete()).await;
        caches.config_maps.insert(config_map("11", "v"));
        assert!(journal.settled(SOON).await);
    }

    #[tokio::test(start_paused = true)]
    async fn a_write_outside_of_a_reconcile_is_nobodys() {
        wrote(&Caches::default(), &config_map("10", "u"));
    }
}
