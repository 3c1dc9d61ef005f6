//! Fills the caches from the API server, with one watch per kind and namespace.

use std::{collections::HashSet, pin::pin, time::Duration};

use futures::{Stream, StreamExt};
use kube::{
    Client,
    core::DeserializeGuard,
    runtime::{WatchStreamExt, watcher},
};

use crate::{
    Cache, Clients, Context, Definition, Delta, Key, Object, Reach, Signal, definitions::name_of, error,
    metrics::of_kind,
};

/// Reason: an object cannot be decoded.
pub const UNDECODABLE: &str = "Undecodable";

/// Seconds after which the API server ends a watch, which is then requested again. kube notices 5 s later that it did not.
const WATCH_SECONDS: u32 = 60;
/// Time for that and for a second request.
const SILENT_AFTER: Duration = Duration::from_secs(80);

/// A page of full pods is some megabytes before it is trimmed.
const PAGE: u32 = 250;
/// The largest ConfigMaps and Secrets are a megabyte, most of which is not kept.
const PAGE_ON_DEMAND: u32 = 20;

/// Fills a kind's cache until the process ends. A kind that has a CustomResourceDefinition is watched while that is
/// installed. The cache counts as not synced from the call on, even before the watch runs.
pub(crate) fn watch_kind<K: Object>(
    cache: Cache<K>,
    namespace: Option<String>,
    context: Context,
) -> impl Future<Output = ()> + Send + 'static {
    let definitions = context.definitions.clone();
    let mut watch = Watch::new(cache.clone(), namespace.clone(), context);
    let client = watch.client();
    async move {
        let rules = cache.rules();
        let definition = (rules.definition != Definition::BuiltIn).then(name_of::<K>);
        loop {
            if let Some(name) = &definition {
                tokio::select! {
                    biased;
                    () = definitions.installed(name) => {}
                    () = definitions.missing(name) => {
                        watch.context.health.unwatched(&watch.name);
                        watch.clear();
                        definitions.installed(name).await;
                    }
                }
            }
            let api = K::Scope::api::<DeserializeGuard<K>>(client.clone(), namespace.as_deref());
            let page = rules.on_demand_unless.map_or(PAGE, |_| PAGE_ON_DEMAND);
            let requested = rules.requested.clone().page_size(page).timeout(WATCH_SECONDS);
            let stream = watcher(api, requested).default_backoff();
            match &definition {
                None => watch.follow(stream).await,
                Some(name) => tokio::select! {
                    biased;
                    () = watch.follow(stream) => {}
                    () = definitions.missing(name) => {}
                },
            }
        }
    }
}

/// Describes why a watch broke.
pub(crate) fn describe(error: &watcher::Error) -> String {
    use watcher::Error::{InitialListFailed, NoResourceVersion, WatchError, WatchFailed, WatchStartFailed};
    match error {
        InitialListFailed(error) => format!("cannot list: {}", error::describe(error)),
        WatchStartFailed(error) | WatchFailed(error) => format!("cannot watch: {}", error::describe(error)),
        WatchError(status) => format!("the watch ended: {} ({})", status.message, status.code),
        NoResourceVersion => error.to_string(),
    }
}

/// One watch, from its events to the cache.
pub(crate) struct Watch<K> {
    cache: Cache<K>,
    /// The watched namespace, or `None` for all.
    namespace: Option<String>,
    /// The keys of the list that is being received, so far.
    listed: HashSet<Key>,
    context: Context,
    /// Its name in health and logs.
    name: String,
}

impl<K: Object> Watch<K> {
    pub(crate) fn new(cache: Cache<K>, namespace: Option<String>, context: Context) -> Self {
        let kind = K::kind(&());
        let name = namespace
            .as_ref()
            .map_or_else(|| kind.to_string(), |namespace| format!("{kind} in {namespace}"));
        context.health.synced(&name, false);
        Self {
            cache,
            namespace,
            listed: HashSet::new(),
            context,
            name,
        }
    }

    /// A client that records every response.
    fn client(&self) -> Client {
        let Context {
            client,
            watches,
            health,
            ..
        } = self.context.clone();
        let (calls, name) = (client, self.name.clone());
        Clients { calls, watches }.of_watch(move || health.heard(&name, SILENT_AFTER))
    }

    /// Empties the cache: the definition was deleted, and every object with it.
    fn clear(&mut self) {
        self.take(watcher::Event::Init);
        self.take(watcher::Event::InitDone);
    }

    pub(crate) async fn follow(
        &mut self,
        stream: impl Stream<Item = watcher::Result<watcher::Event<DeserializeGuard<K>>>>,
    ) {
        let mut stream = pin!(stream);
        while let Some(event) = stream.next().await {
            match event {
                Ok(event) => self.take(event),
                // The API server serves the objects of a new definition a moment after the definition.
                Err(watcher::Error::InitialListFailed(kube::Error::Api(status))) if status.is_not_found() => {
                    tracing::debug!(watch = self.name, "kind is not served yet");
                }
                Err(error) => {
                    let restarts = &self.context.metrics.watch_restarts;
                    restarts.get_or_create(&of_kind(&K::kind(&()))).inc();
                    tracing::warn!(watch = self.name, error = describe(&error), "watch broke");
                }
            }
        }
    }

    fn take(&mut self, event: watcher::Event<DeserializeGuard<K>>) {
        let full = matches!(event, watcher::Event::InitDone);
        for delta in self.store(event) {
            self.context.triggers.send(&Signal::Change(delta.into()));
        }
        if full {
            self.context.health.synced(&self.name, true);
        }
    }

    /// Writes an event into the cache and returns what changed.
    pub(crate) fn store(&mut self, event: watcher::Event<DeserializeGuard<K>>) -> Vec<Delta<K>> {
        use watcher::Event::{Apply, Delete, Init, InitApply, InitDone};
        let changed = match event {
            Init => {
                self.listed.clear();
                None
            }
            // Each object is stored at once, so that a list never needs the memory of two.
            InitApply(object) => {
                self.listed.insert(Key::of(&object));
                self.insert(object)
            }
            InitDone => {
                let listed = std::mem::take(&mut self.listed);
                return self.cache.sweep(self.namespace.as_deref(), &listed);
            }
            Apply(object) => self.insert(object),
            Delete(object) => self.cache.remove(&object),
        };
        changed.into_iter().collect()
    }

    /// Stores an object. Of one that cannot be decoded, the last version that could be stays.
    fn insert(&self, object: DeserializeGuard<K>) -> Option<Delta<K>> {
        if let Err(invalid) = &object.0 {
            self.report_undecodable(&object, &invalid.error);
            self.cache.insert_undecodable(&object, invalid.error.clone());
        }
        self.cache.insert_watched(object.0.ok()?)
    }

    fn report_undecodable(&self, object: &DeserializeGuard<K>, error: &str) {
        let (kind, key) = (K::kind(&()), Key::of(object));
        self.context.metrics.undecodable.get_or_create(&of_kind(&kind)).inc();
        tracing::warn!(%kind, object = %key, error, "cannot decode an object");
        let message = format!("{kind} {key} cannot be decoded and is ignored: {error}; correct it with kubectl edit");
        self.context.events.warn(object, UNDECODABLE, message);
    }
}

#[cfg(test)]
mod tests;
