//! Fills the caches from the API server, with one watch per kind and namespace.

use std::pin::pin;

use futures::{Stream, StreamExt};
use kube::{
    core::DeserializeGuard,
    runtime::{WatchStreamExt, watcher},
};

use crate::{Cache, Context, Definition, Key, Object, Reach, Signal, cache::Intake, definitions::name_of, error};

/// Reason: an object cannot be decoded.
pub const UNDECODABLE: &str = "Undecodable";

/// A page of full pods is some megabytes before it is trimmed.
const PAGE: u32 = 250;

/// Fills a kind's cache until the process ends. A kind that has a CustomResourceDefinition is watched while that is
/// installed. The cache counts as not synced from the call on, even before the watch runs.
pub(crate) fn watch_kind<K: Object>(
    cache: Cache<K>,
    namespace: Option<String>,
    context: Context,
) -> impl Future<Output = ()> + Send + 'static {
    let (client, definitions) = (context.watches.clone(), context.definitions.clone());
    let mut watch = Watch::new(cache.clone(), namespace.clone(), context);
    async move {
        let rules = cache.rules();
        let definition = (rules.definition != Definition::BuiltIn).then(name_of::<K>);
        loop {
            if let Some(name) = &definition {
                tokio::select! {
                    () = definitions.installed(name) => {}
                    () = definitions.missing(name) => {
                        watch.clear();
                        definitions.installed(name).await;
                    }
                }
            }
            let api = K::Scope::api::<DeserializeGuard<K>>(client.clone(), namespace.as_deref());
            let stream = watcher(api, rules.requested.clone().page_size(PAGE)).default_backoff();
            match &definition {
                None => watch.follow(stream).await,
                Some(name) => tokio::select! {
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
    intake: Intake<K>,
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
            intake: Intake::new(cache, namespace),
            context,
            name,
        }
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
                    self.context.metrics.watch_restarted(&K::kind(&()));
                    tracing::warn!(watch = self.name, error = describe(&error), "watch broke");
                }
            }
        }
    }

    fn take(&mut self, event: watcher::Event<DeserializeGuard<K>>) {
        use watcher::Event::{Apply, InitApply, InitDone};
        if let InitApply(object) | Apply(object) = &event
            && let Err(invalid) = &object.0
        {
            self.report_undecodable(object, &invalid.error);
        }
        let full = matches!(event, InitDone);
        for delta in self.intake.take(event) {
            self.context.triggers.send(&Signal::Change(delta.into()));
        }
        if full {
            self.context.health.synced(&self.name, true);
        }
    }

    fn report_undecodable(&self, object: &DeserializeGuard<K>, error: &str) {
        let (kind, key) = (K::kind(&()), Key::of(object));
        self.context.metrics.undecodable(&kind);
        tracing::warn!(%kind, object = %key, error, "cannot decode an object");
        let message = format!("{kind} {key} cannot be decoded and is ignored: {error}; correct it with kubectl edit");
        self.context.events.warn(object, UNDECODABLE, message);
    }
}

#[cfg(test)]
mod tests;
