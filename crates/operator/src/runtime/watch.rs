//! From the API server into a cache, one watch per kind and namespace.

use std::pin::pin;

use futures::{Stream, StreamExt};
use kube::{
    Api, Client, Resource,
    core::{ClusterResourceScope, DeserializeGuard, NamespaceResourceScope, error_boundary::InvalidObject},
    runtime::{WatchStreamExt, watcher},
};

use super::{
    Cached, Caches, Definitions, Delta, Events, Metrics,
    cache::Intake,
    definitions::name_of,
    error,
    health::Health,
    hub::{Hub, Signal},
};

/// A page of full pods is some megabytes before it is trimmed.
const PAGE: u32 = 250;

/// How far a watch of a kind reaches.
pub trait Reach: Sized {
    /// The objects of a namespace, or all. Cluster-scoped ones are in no namespace.
    fn api<K: Resource<DynamicType = (), Scope = Self>>(client: Client, namespace: Option<&str>) -> Api<K>;
    /// Whether a namespace makes a difference.
    const NAMESPACED: bool;
}

impl Reach for NamespaceResourceScope {
    const NAMESPACED: bool = true;

    fn api<K: Resource<DynamicType = (), Scope = Self>>(client: Client, namespace: Option<&str>) -> Api<K> {
        match namespace {
            Some(namespace) => Api::namespaced(client, namespace),
            None => Api::all(client),
        }
    }
}

impl Reach for ClusterResourceScope {
    const NAMESPACED: bool = false;

    fn api<K: Resource<DynamicType = (), Scope = Self>>(client: Client, _: Option<&str>) -> Api<K> {
        Api::all(client)
    }
}

/// Which objects the API server is asked for.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Selectors {
    pub labels: Option<String>,
    pub fields: Option<String>,
}

impl From<Selectors> for watcher::Config {
    fn from(selectors: Selectors) -> Self {
        Self {
            label_selector: selectors.labels,
            field_selector: selectors.fields,
            ..Self::default()
        }
        .page_size(PAGE)
    }
}

/// What all watches write to.
#[derive(Debug, Clone)]
pub(super) struct Sinks {
    pub(super) caches: Caches,
    pub(super) hub: Hub,
    pub(super) health: Health,
    pub(super) events: Events,
    pub(super) metrics: Metrics,
}

/// Fills a kind's cache for as long as the process lives. A kind of ours is watched while its definition is there.
/// From the call on, even before the watch runs, the cache counts as not full.
pub(super) fn watch_kind<K: Cached>(
    client: Client,
    namespace: Option<String>,
    definitions: Definitions,
    sinks: Sinks,
) -> impl Future<Output = ()> + Send + 'static {
    let watch = Watch::<K>::new(namespace.clone(), sinks);
    run_watch(watch, client, namespace, definitions)
}

async fn run_watch<K: Cached>(
    mut watch: Watch<K>,
    client: Client,
    namespace: Option<String>,
    definitions: Definitions,
) {
    let definition = name_of::<K>();
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
        let stream = watcher(api, K::selectors().into()).default_backoff();
        match &definition {
            None => watch.follow(stream).await,
            Some(name) => tokio::select! {
                () = watch.follow(stream) => {}
                () = definitions.missing(name) => {}
            },
        }
    }
}

/// What broke a watch, for people.
pub(super) fn words_of(error: &watcher::Error) -> String {
    use watcher::Error::{InitialListFailed, NoResourceVersion, WatchError, WatchFailed, WatchStartFailed};
    match error {
        InitialListFailed(error) => format!("cannot list: {}", error::words_of(error)),
        WatchStartFailed(error) | WatchFailed(error) => format!("cannot watch: {}", error::words_of(error)),
        WatchError(status) => format!("the watch ended: {} ({})", status.message, status.code),
        NoResourceVersion => error.to_string(),
    }
}

pub(super) struct Watch<K> {
    intake: Intake<K>,
    sinks: Sinks,
    /// In health and logs.
    name: String,
}

impl<K: Cached> Watch<K> {
    pub(super) fn new(namespace: Option<String>, sinks: Sinks) -> Self {
        let kind = K::kind(&());
        let name = namespace
            .as_ref()
            .map_or_else(|| kind.to_string(), |namespace| format!("{kind} in {namespace}"));
        sinks.health.synced(&name, false);
        Self {
            intake: Intake::new(K::cache(&sinks.caches).clone(), namespace),
            sinks,
            name,
        }
    }

    /// The definition is gone, and every object with it.
    fn clear(&mut self) {
        self.intake.take(watcher::Event::Init);
        self.take(watcher::Event::InitDone);
    }

    pub(super) async fn follow(
        &mut self,
        stream: impl Stream<Item = watcher::Result<watcher::Event<DeserializeGuard<K>>>>,
    ) {
        let mut stream = pin!(stream);
        while let Some(event) = stream.next().await {
            match event {
                Ok(event) => self.hear(event),
                // For a moment a new definition is there and its objects are not.
                Err(watcher::Error::InitialListFailed(kube::Error::Api(status))) if status.is_not_found() => {
                    tracing::debug!(watch = self.name, "Not served yet");
                }
                Err(error) => {
                    self.sinks.metrics.watch_restarted(&K::kind(&()));
                    tracing::warn!(watch = self.name, error = words_of(&error), "Watch broke");
                }
            }
        }
    }

    fn hear(&mut self, event: watcher::Event<DeserializeGuard<K>>) {
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
                self.pass_on(gone);
            }
        }
    }

    fn take(&mut self, event: watcher::Event<K>) {
        let full = matches!(event, watcher::Event::InitDone);
        let deltas = self.intake.take(event);
        self.pass_on(deltas);
        if full {
            self.sinks.health.synced(&self.name, true);
        }
    }

    fn pass_on(&self, deltas: Vec<Delta<K>>) {
        for delta in deltas {
            self.sinks.hub.say(&Signal::Change(K::change(delta)));
        }
    }

    fn refuse(&mut self, invalid: InvalidObject) {
        let kind = K::kind(&());
        let key = self.intake.refuse(&invalid);
        self.sinks.metrics.undecodable(&kind);
        tracing::warn!(%kind, object = %key, error = invalid.error, "Object not understood");
        let message = format!(
            "{kind} {key} cannot be understood and is not acted on: {}; correct it with kubectl edit",
            invalid.error
        );
        let object = DeserializeGuard::<K>(Err(invalid));
        self.sinks.events.warn(&object, "Undecodable", message);
    }
}

#[cfg(test)]
mod tests;
