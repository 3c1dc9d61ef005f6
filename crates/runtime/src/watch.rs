//! Fills the caches from the API server, with one watch per kind and namespace.

use std::pin::pin;

use futures::{Stream, StreamExt};
use kube::{
    Client,
    core::{DeserializeGuard, error_boundary::InvalidObject},
    runtime::{WatchStreamExt, watcher},
};

use crate::{
    Cache, Definition, Definitions, Delta, Events, Metrics, Object, Reach, Selectors,
    cache::Intake,
    definitions::name_of,
    error,
    health::Health,
    hub::{Hub, Signal},
};

/// A page of full pods is some megabytes before it is trimmed.
const PAGE: u32 = 250;

impl From<&Selectors> for watcher::Config {
    fn from(selectors: &Selectors) -> Self {
        Self {
            label_selector: selectors.labels.clone(),
            field_selector: selectors.fields.clone(),
            ..Self::default()
        }
        .page_size(PAGE)
    }
}

/// What all watches share: the client, the definitions, and where they report to.
#[derive(Clone)]
pub(crate) struct Sinks {
    pub(crate) client: Client,
    pub(crate) definitions: Definitions,
    pub(crate) hub: Hub,
    pub(crate) health: Health,
    pub(crate) events: Events,
    pub(crate) metrics: Metrics,
}

/// Fills a kind's cache until the process ends. A kind that has a CustomResourceDefinition is watched while that is
/// installed. The cache counts as not synced from the call on, even before the watch runs.
pub(crate) fn watch_kind<K: Object>(
    cache: Cache<K>,
    namespace: Option<String>,
    sinks: Sinks,
) -> impl Future<Output = ()> + Send + 'static {
    let watch = Watch::new(cache.clone(), namespace.clone(), sinks);
    run_watch(watch, cache, namespace)
}

async fn run_watch<K: Object>(mut watch: Watch<K>, cache: Cache<K>, namespace: Option<String>) {
    let (client, definitions) = (watch.sinks.client.clone(), watch.sinks.definitions.clone());
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
        let stream = watcher(api, (&rules.selectors).into()).default_backoff();
        match &definition {
            None => watch.follow(stream).await,
            Some(name) => tokio::select! {
                () = watch.follow(stream) => {}
                () = definitions.missing(name) => {}
            },
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
    sinks: Sinks,
    /// Its name in health and logs.
    name: String,
}

impl<K: Object> Watch<K> {
    pub(crate) fn new(cache: Cache<K>, namespace: Option<String>, sinks: Sinks) -> Self {
        let kind = K::kind(&());
        let name = namespace
            .as_ref()
            .map_or_else(|| kind.to_string(), |namespace| format!("{kind} in {namespace}"));
        sinks.health.synced(&name, false);
        Self {
            intake: Intake::new(cache, namespace),
            sinks,
            name,
        }
    }

    /// Empties the cache: the definition was deleted, and every object with it.
    fn clear(&mut self) {
        self.intake.take(watcher::Event::Init);
        self.take(watcher::Event::InitDone);
    }

    pub(crate) async fn follow(
        &mut self,
        stream: impl Stream<Item = watcher::Result<watcher::Event<DeserializeGuard<K>>>>,
    ) {
        let mut stream = pin!(stream);
        while let Some(event) = stream.next().await {
            match event {
                Ok(event) => self.handle(event),
                // The API server serves the objects of a new definition a moment after the definition.
                Err(watcher::Error::InitialListFailed(kube::Error::Api(status))) if status.is_not_found() => {
                    tracing::debug!(watch = self.name, "kind is not served yet");
                }
                Err(error) => {
                    self.sinks.metrics.watch_restarted(&K::kind(&()));
                    tracing::warn!(watch = self.name, error = describe(&error), "watch broke");
                }
            }
        }
    }

    fn handle(&mut self, event: watcher::Event<DeserializeGuard<K>>) {
        use watcher::Event::{Apply, Delete, Init, InitApply, InitDone};
        match event {
            Init => self.take(Init),
            InitDone => self.take(InitDone),
            InitApply(DeserializeGuard(Ok(object))) => self.take(InitApply(object)),
            Apply(DeserializeGuard(Ok(object))) => self.take(Apply(object)),
            Delete(DeserializeGuard(Ok(object))) => self.take(Delete(object)),
            InitApply(DeserializeGuard(Err(invalid))) | Apply(DeserializeGuard(Err(invalid))) => self.refuse(invalid),
            Delete(DeserializeGuard(Err(invalid))) => {
                let gone = self.intake.forget(&invalid);
                self.report(gone);
            }
        }
    }

    fn take(&mut self, event: watcher::Event<K>) {
        let full = matches!(event, watcher::Event::InitDone);
        let deltas = self.intake.take(event);
        self.report(deltas);
        if full {
            self.sinks.health.synced(&self.name, true);
        }
    }

    fn report(&self, deltas: Vec<Delta<K>>) {
        for delta in deltas {
            self.sinks.hub.send(&Signal::Change(delta.into()));
        }
    }

    fn refuse(&mut self, invalid: InvalidObject) {
        let kind = K::kind(&());
        let key = self.intake.refuse(&invalid);
        self.sinks.metrics.undecodable(&kind);
        tracing::warn!(%kind, object = %key, error = invalid.error, "cannot decode an object");
        let message = format!(
            "{kind} {key} cannot be decoded and is ignored: {}; correct it with kubectl edit",
            invalid.error
        );
        let object = DeserializeGuard::<K>(Err(invalid));
        self.sinks.events.warn(&object, "Undecodable", message);
    }
}

#[cfg(test)]
mod tests;
