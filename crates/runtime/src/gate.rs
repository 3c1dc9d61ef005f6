//! Read your writes: the next reconcile of an object runs only when the caches hold the writes of the one before.
//!
//! Otherwise it would decide on stale caches and repeat its writes, for example create a pod a second time. (Kubernetes'
//! own controllers do this since 1.36, KEP-5647.)

use std::{
    sync::{Arc, Mutex},
    time::Duration,
};

use futures::future::{BoxFuture, join_all};

use crate::{Cache, Key, Object, Registry, cache::resource_version, lock};

tokio::task_local! {
    /// The journal of the reconcile that runs in this task.
    static JOURNAL: Journal;
}

/// The writes of one reconcile. A clone shares them.
#[derive(Clone, Default)]
pub(crate) struct Journal(Arc<Mutex<Vec<BoxFuture<'static, ()>>>>);

impl Journal {
    /// Runs a reconcile and records its writes, but not those of the tasks it spawns.
    pub(crate) async fn record<F: Future>(self, reconcile: F) -> F::Output {
        JOURNAL.scope(self, reconcile).await
    }

    pub(crate) fn is_empty(&self) -> bool {
        lock(&self.0).is_empty()
    }

    /// Waits until the caches hold the recorded writes and returns whether they do. A watch that lags must not block an
    /// object for ever.
    pub(crate) async fn settled(&self, within: Duration) -> bool {
        let entries = std::mem::take(&mut *lock(&self.0));
        tokio::time::timeout(within, join_all(entries)).await.is_ok()
    }

    fn add(entry: impl Future<Output = ()> + Send + 'static) {
        // A write outside of a reconcile has no journal, and no reconcile waits for it.
        let _ = JOURNAL.try_with(|journal| lock(&journal.0).push(Box::pin(entry)));
    }
}

/// Records an object as the API server returned it.
pub(crate) fn wrote<K: Object>(registry: &Registry, object: &K) {
    let Some(version) = resource_version(object) else {
        return;
    };
    let (cache, namespace) = (registry.cache::<K>(), Key::of(object).namespace);
    Journal::add(async move { cache.wait_until(|cache| cache.has_seen(&namespace, version)).await });
}

/// Records that the object with this UID was or is being deleted.
pub(crate) fn deleted<K: Object>(registry: &Registry, key: Key, uid: String) {
    let cache = registry.cache::<K>();
    let is_gone = move |cache: &Cache<K>| {
        let found = cache.get(&key.namespace, &key.name);
        found.is_none_or(|object| {
            let meta = object.meta();
            meta.uid.as_deref() != Some(&uid) || meta.deletion_timestamp.is_some()
        })
    };
    Journal::add(async move { cache.wait_until(is_gone).await });
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::ConfigMap;
    use serde_json::json;

    use super::*;
    use crate::registry::tests::registry;

    const SOON: Duration = Duration::from_secs(2);

    fn config_map(version: &str, uid: &str) -> ConfigMap {
        serde_json::from_value(
            json!({"metadata": {"namespace": "n", "name": "a", "resourceVersion": version, "uid": uid}}),
        )
        .unwrap()
    }

    async fn journal_of_a_write(registry: &Registry) -> Journal {
        let journal = Journal::default();
        let write = async { wrote(registry, &config_map("10", "u")) };
        journal.clone().record(write).await;
        journal
    }

    #[tokio::test(start_paused = true)]
    async fn a_write_is_awaited_until_the_watch_delivers_it() {
        let registry = registry();
        let journal = journal_of_a_write(&registry).await;
        assert!(!journal.is_empty());
        let watch = async {
            tokio::time::sleep(Duration::from_millis(1)).await;
            registry.cache::<ConfigMap>().insert(config_map("9", "u"));
            tokio::time::sleep(Duration::from_secs(1)).await;
            registry.cache::<ConfigMap>().insert(config_map("10", "u"));
        };
        let start = tokio::time::Instant::now();
        let (settled, ()) = tokio::join!(journal.settled(SOON), watch);
        assert!(settled);
        assert!(start.elapsed() >= Duration::from_secs(1));
        assert!(journal.is_empty());
    }

    #[tokio::test(start_paused = true)]
    async fn an_event_of_another_namespace_says_nothing_about_a_write() {
        let registry = registry();
        let journal = journal_of_a_write(&registry).await;
        let mut other = config_map("11", "v");
        other.metadata.namespace = Some("other".to_owned());
        registry.cache::<ConfigMap>().insert(other);
        assert!(!journal.settled(SOON).await);
    }

    #[tokio::test(start_paused = true)]
    async fn a_watch_that_lags_blocks_no_object_for_ever() {
        let registry = registry();
        let journal = journal_of_a_write(&registry).await;
        assert!(!journal.settled(SOON).await);
    }

    #[tokio::test(start_paused = true)]
    async fn a_delete_is_awaited_by_uid() {
        let registry = registry();
        registry.cache::<ConfigMap>().insert(config_map("9", "u"));
        let delete = || async { deleted::<ConfigMap>(&registry, Key::new("n", "a"), "u".to_owned()) };
        let journal = Journal::default();
        journal.clone().record(delete()).await;
        assert!(!journal.settled(SOON).await);

        journal.clone().record(delete()).await;
        registry.cache::<ConfigMap>().insert(config_map("11", "v"));
        assert!(journal.settled(SOON).await);
    }

    #[tokio::test(start_paused = true)]
    async fn a_write_outside_of_a_reconcile_is_not_recorded() {
        wrote(&registry(), &config_map("10", "u"));
    }
}
