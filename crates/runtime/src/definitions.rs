//! Which CustomResourceDefinitions the cluster has of the kinds in the registry, and whether our own are new enough.

use std::{collections::BTreeMap, sync::Arc};

use futures::{Stream, StreamExt, stream::select_all};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::{
    Api, Client, Resource, ResourceExt,
    core::PartialObjectMeta,
    runtime::{
        WatchStreamExt,
        watcher::{self, Event, watcher},
    },
};
use tokio::sync::watch;

use crate::{
    Definition, Metrics, Object, Registry,
    hub::{Hub, Signal},
    watch::describe,
};

type DefinitionMeta = PartialObjectMeta<CustomResourceDefinition>;

/// The definitions as the cluster has them. A clone shares them.
#[derive(Debug, Clone)]
pub struct Definitions {
    /// The definitions to follow, by name.
    followed: Arc<BTreeMap<String, Definition>>,
    /// What is known of them. A definition that is not in the map has not been observed yet.
    known: watch::Sender<BTreeMap<String, Presence>>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Presence {
    Missing,
    /// With the revision of the schema; upstream's definitions have none.
    Installed(Option<u32>),
    /// One of our own that RBAC does not let us read. It is assumed to be installed and current; a request for a kind
    /// that does not exist returns 404.
    Assumed,
}

impl Definitions {
    /// Follows the definitions of the kinds in this registry.
    pub fn of(registry: &Registry) -> Self {
        Self {
            followed: Arc::new(registry.definitions()),
            known: watch::Sender::new(BTreeMap::new()),
        }
    }

    /// Names of our own definitions that are older than this operator. The API server drops fields that were added
    /// since, so kinds do not use these and say so in the condition `CRDsOutdated`.
    pub fn outdated(&self) -> Vec<String> {
        let known = self.known.borrow();
        let outdated = known.iter().filter(|(name, presence)| {
            let Some(Definition::Own { revision: needed, .. }) = self.followed.get(*name) else {
                return false;
            };
            matches!(presence, Presence::Installed(revision) if revision.unwrap_or(0) < *needed)
        });
        outdated.map(|(name, _)| name.clone()).collect()
    }

    /// Whether the cluster has the definition of this kind.
    pub fn has<K: Object>(&self) -> bool {
        let known = self.known.borrow();
        let presence = known.get(&name_of::<K>());
        presence.is_some_and(|presence| *presence != Presence::Missing)
    }

    /// Returns when the definition is installed.
    pub(crate) async fn installed(&self, name: &str) {
        self.wait(name, |presence| presence != Presence::Missing).await;
    }

    /// Returns when the definition is known to be missing.
    pub(crate) async fn missing(&self, name: &str) {
        self.wait(name, |presence| presence == Presence::Missing).await;
    }

    async fn wait(&self, name: &str, matches: impl Fn(Presence) -> bool) {
        let known = |known: &BTreeMap<String, Presence>| known.get(name).copied().is_some_and(&matches);
        // The sender lives as long as `self`.
        let _ = self.known.subscribe().wait_for(known).await;
    }

    /// Follows the definitions until the process ends, each with a watch of its own: RBAC lets us read only these.
    pub(crate) async fn follow(self, client: Client, hub: Hub, metrics: Metrics) {
        let watches = self.followed.keys().cloned().map(|name| {
            let api: Api<DefinitionMeta> = Api::all(client.clone());
            let config = watcher::Config::default().fields(&format!("metadata.name={name}"));
            let events = watcher(api, config).default_backoff();
            events.map(move |event| (name.clone(), event)).boxed()
        });
        self.listen(select_all(watches), hub, metrics).await;
        // Without definitions there is nothing to follow.
        std::future::pending::<()>().await;
    }

    async fn listen(
        &self,
        mut events: impl Stream<Item = (String, watcher::Result<Event<DefinitionMeta>>)> + Unpin,
        hub: Hub,
        metrics: Metrics,
    ) {
        // What the lists that are being received contain so far.
        let mut listed: BTreeMap<String, Presence> = BTreeMap::new();
        while let Some((name, event)) = events.next().await {
            let presence = match event {
                Ok(Event::Init) => {
                    listed.remove(&name);
                    None
                }
                Ok(Event::InitApply(definition)) if definition.name_any() == name => {
                    listed.insert(name.clone(), self.read(&definition));
                    None
                }
                Ok(Event::InitDone) => Some(listed.remove(&name).unwrap_or(Presence::Missing)),
                Ok(Event::Apply(definition)) if definition.name_any() == name => Some(self.read(&definition)),
                Ok(Event::Delete(definition)) if definition.name_any() == name => Some(Presence::Missing),
                Ok(_) => None,
                Err(error) => {
                    metrics.watch_restarted(&CustomResourceDefinition::kind(&()));
                    tracing::warn!(
                        definition = name,
                        error = describe(&error),
                        "watch of a definition broke"
                    );
                    (is_forbidden(&error) && !self.known.borrow().contains_key(&name)).then(|| self.unreadable(&name))
                }
            };
            if let Some(presence) = presence {
                self.record(name, presence, &hub, &metrics);
            }
        }
    }

    fn read(&self, definition: &DefinitionMeta) -> Presence {
        let revision = match self.followed.get(&definition.name_any()) {
            Some(Definition::Own { annotation, .. }) => definition.annotations().get(*annotation),
            _ => None,
        };
        Presence::Installed(revision.and_then(|text| text.parse().ok()))
    }

    /// What to assume of a definition that RBAC does not let us read. A foreign one need not be installed, and its
    /// cache would then never be synced.
    fn unreadable(&self, name: &str) -> Presence {
        match self.followed.get(name) {
            Some(Definition::Own { .. }) => Presence::Assumed,
            _ => Presence::Missing,
        }
    }

    /// Foreign definitions that the cluster has.
    fn foreign(&self) -> Vec<String> {
        let known = self.known.borrow();
        let installed = known.iter().filter(|(name, presence)| {
            **presence != Presence::Missing && self.followed.get(*name) == Some(&Definition::Foreign)
        });
        installed.map(|(name, _)| name.clone()).collect()
    }

    fn record(&self, name: String, presence: Presence, hub: &Hub, metrics: &Metrics) {
        let before = (self.outdated(), self.foreign());
        self.known
            .send_if_modified(|known| known.insert(name, presence) != Some(presence));
        let outdated = self.outdated();
        if before == (outdated.clone(), self.foreign()) {
            return;
        }
        if before.0 != outdated && !outdated.is_empty() {
            tracing::warn!(
                definitions = outdated.join(" "),
                "definitions are older than this operator, so its newer fields are disabled; upgrade the chart slurm-operator-crds"
            );
        }
        metrics.crds_outdated(outdated.len());
        hub.send(&Signal::Everything);
    }
}

/// The name of a kind's CustomResourceDefinition.
pub(crate) fn name_of<K: Object>() -> String {
    format!("{}.{}", K::plural(&()), K::group(&()))
}

fn is_forbidden(error: &watcher::Error) -> bool {
    matches!(error, watcher::Error::InitialListFailed(kube::Error::Api(status)) if status.is_forbidden())
}

#[cfg(test)]
mod tests {
    use api::{crds::SCHEMA_REVISION, keys::annotations};
    use futures::stream;
    use serde_json::json;

    use super::*;

    const CONTROLLERS: &str = "controllers.slinky.slurm.net";
    const NODE_SETS: &str = "nodesets.slinky.slurm.net";
    const TOKENS: &str = "tokens.slinky.slurm.net";
    const REST_APIS: &str = "restapis.slinky.slurm.net";
    const MONITORS: &str = "servicemonitors.monitoring.coreos.com";

    fn definitions() -> Definitions {
        let own = Definition::Own {
            annotation: annotations::SCHEMA_REVISION,
            revision: SCHEMA_REVISION,
        };
        let own = [CONTROLLERS, NODE_SETS, TOKENS, REST_APIS].map(|name| (name.to_owned(), own));
        let foreign = (MONITORS.to_owned(), Definition::Foreign);
        Definitions {
            followed: Arc::new(own.into_iter().chain([foreign]).collect()),
            known: watch::Sender::new(BTreeMap::new()),
        }
    }

    fn definition(name: &str, revision: Option<&str>) -> DefinitionMeta {
        let annotations = revision.map(|revision| json!({annotations::SCHEMA_REVISION: revision}));
        serde_json::from_value(json!({"metadata": {"name": name, "annotations": annotations}})).unwrap()
    }

    async fn receive(definitions: &Definitions, hub: &Hub, name: &str, events: Vec<Event<DefinitionMeta>>) {
        let stream = stream::iter(events.into_iter().map(|event| (name.to_owned(), Ok(event))));
        definitions.listen(stream, hub.clone(), Metrics::new()).await;
    }

    fn listed(name: &str, revision: Option<&str>) -> Vec<Event<DefinitionMeta>> {
        vec![
            Event::Init,
            Event::InitApply(definition(name, revision)),
            Event::InitDone,
        ]
    }

    #[tokio::test]
    async fn definitions_without_our_revision_are_outdated() {
        let (definitions, hub) = (definitions(), Hub::default());
        let current = SCHEMA_REVISION.to_string();
        receive(&definitions, &hub, CONTROLLERS, listed(CONTROLLERS, None)).await;
        receive(&definitions, &hub, NODE_SETS, listed(NODE_SETS, Some(&current))).await;
        receive(&definitions, &hub, TOKENS, listed(TOKENS, Some("one"))).await;
        receive(&definitions, &hub, REST_APIS, vec![Event::Init, Event::InitDone]).await;
        assert_eq!(definitions.outdated(), [CONTROLLERS, TOKENS]);
        definitions.installed(NODE_SETS).await;
        definitions.missing(REST_APIS).await;
    }

    #[tokio::test]
    async fn an_upgrade_of_the_definitions_wakes_every_kind() {
        let (definitions, hub) = (definitions(), Hub::default());
        let mut signals = hub.listen();
        let newer = (SCHEMA_REVISION + 1).to_string();
        receive(&definitions, &hub, CONTROLLERS, listed(CONTROLLERS, None)).await;
        assert!(matches!(signals.try_recv(), Ok(Signal::Everything)));
        receive(
            &definitions,
            &hub,
            CONTROLLERS,
            vec![Event::Apply(definition(CONTROLLERS, Some(&newer)))],
        )
        .await;
        assert!(definitions.outdated().is_empty());
        assert!(matches!(signals.try_recv(), Ok(Signal::Everything)));
        receive(&definitions, &hub, CONTROLLERS, listed(CONTROLLERS, Some(&newer))).await;
        assert!(signals.try_recv().is_err());
    }

    #[tokio::test]
    async fn a_definition_that_is_deleted_and_recreated_is_noticed() {
        let (definitions, hub) = (definitions(), Hub::default());
        receive(&definitions, &hub, CONTROLLERS, listed(CONTROLLERS, Some("1"))).await;
        definitions.installed(CONTROLLERS).await;
        receive(
            &definitions,
            &hub,
            CONTROLLERS,
            vec![Event::Delete(definition(CONTROLLERS, Some("1")))],
        )
        .await;
        definitions.missing(CONTROLLERS).await;
        receive(
            &definitions,
            &hub,
            CONTROLLERS,
            vec![Event::Apply(definition(CONTROLLERS, Some("1")))],
        )
        .await;
        definitions.installed(CONTROLLERS).await;
    }

    #[tokio::test]
    async fn an_unreadable_definition_of_our_own_counts_as_installed() {
        let definitions = definitions();
        let status = kube::core::Status {
            code: 403,
            reason: "Forbidden".to_owned(),
            ..kube::core::Status::default()
        };
        let error = watcher::Error::InitialListFailed(kube::Error::Api(Box::new(status)));
        let stream = stream::iter([(CONTROLLERS.to_owned(), Err(error))]);
        definitions.listen(stream, Hub::default(), Metrics::new()).await;
        definitions.installed(CONTROLLERS).await;
        assert!(definitions.outdated().is_empty());
    }

    #[tokio::test]
    async fn a_foreign_definition_is_optional_and_never_outdated() {
        let (definitions, hub) = (definitions(), Hub::default());
        let status = kube::core::Status {
            code: 403,
            reason: "Forbidden".to_owned(),
            ..kube::core::Status::default()
        };
        let error = watcher::Error::InitialListFailed(kube::Error::Api(Box::new(status)));
        let stream = stream::iter([(MONITORS.to_owned(), Err(error))]);
        definitions.listen(stream, hub.clone(), Metrics::new()).await;
        definitions.missing(MONITORS).await;
        let mut signals = hub.listen();
        receive(&definitions, &hub, MONITORS, listed(MONITORS, None)).await;
        assert_eq!(definitions.foreign(), [MONITORS]);
        assert!(definitions.outdated().is_empty());
        assert!(matches!(signals.try_recv(), Ok(Signal::Everything)));
    }
}
