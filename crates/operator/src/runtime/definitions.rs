//! Which definitions the cluster has of the kinds that are not Kubernetes' own, and whether ours are as new as this operator.

use std::collections::BTreeMap;

use api::{crds::SCHEMA_REVISION, keys::annotations};
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

use super::{
    Cached, Metrics, ServiceMonitor,
    hub::{Hub, Signal},
    kinds::{KindVisitor, each_kind},
    watch::words_of,
};

type Definition = PartialObjectMeta<CustomResourceDefinition>;

/// The definitions as the cluster has them. A clone shares them.
#[derive(Debug, Clone)]
pub struct Definitions(watch::Sender<BTreeMap<String, Presence>>);

/// What is known of one definition. Nothing is known of one that stands nowhere.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Presence {
    Missing,
    /// With the schema's revision; upstream's have none.
    Installed(Option<u32>),
    /// One of ours that we may not look at. Then it is taken to be there and current: what is not there answers 404.
    Assumed,
}

impl Default for Definitions {
    fn default() -> Self {
        Self(watch::Sender::new(BTreeMap::new()))
    }
}

impl Definitions {
    /// Names of the definitions that are older than this operator. Fields the operator added since are dropped by the API
    /// server, so kinds leave them off and say so in the condition `CRDsOutdated`.
    pub fn outdated(&self) -> Vec<String> {
        let known = self.0.borrow();
        let outdated = known.iter().filter(|(name, presence)| match presence {
            Presence::Installed(revision) => is_ours(name) && revision.unwrap_or(0) < SCHEMA_REVISION,
            Presence::Missing | Presence::Assumed => false,
        });
        outdated.map(|(name, _)| name.clone()).collect()
    }

    /// Whether the cluster knows ServiceMonitors.
    pub fn has_service_monitors(&self) -> bool {
        let name = name_of::<ServiceMonitor>().unwrap_or_default();
        self.0
            .borrow()
            .get(&name)
            .is_some_and(|presence| *presence != Presence::Missing)
    }

    /// Returns when the definition is there.
    pub(super) async fn installed(&self, name: &str) {
        self.wait(name, |presence| presence != Presence::Missing).await;
    }

    /// Returns when the definition is known not to be there.
    pub(super) async fn missing(&self, name: &str) {
        self.wait(name, |presence| presence == Presence::Missing).await;
    }

    async fn wait(&self, name: &str, is_so: impl Fn(Presence) -> bool) {
        let known = |known: &BTreeMap<String, Presence>| known.get(name).copied().is_some_and(&is_so);
        // The sender lives as long as `self`.
        let _ = self.0.subscribe().wait_for(known).await;
    }

    /// Follows the cluster's definitions for as long as the process lives, one by one: only of these may the operator know.
    pub(super) async fn follow(self, client: Client, hub: Hub, metrics: Metrics) {
        let watches = names().into_iter().map(|name| {
            let api: Api<Definition> = Api::all(client.clone());
            let config = watcher::Config::default().fields(&format!("metadata.name={name}"));
            let events = watcher(api, config).default_backoff();
            events.map(move |event| (name.clone(), event)).boxed()
        });
        self.listen(select_all(watches), hub, metrics).await;
    }

    async fn listen(
        &self,
        mut events: impl Stream<Item = (String, watcher::Result<Event<Definition>>)> + Unpin,
        hub: Hub,
        metrics: Metrics,
    ) {
        // What the list that is being received says of a definition.
        let mut listed: BTreeMap<String, Presence> = BTreeMap::new();
        while let Some((name, event)) = events.next().await {
            let now = match event {
                Ok(Event::Init) => {
                    listed.remove(&name);
                    None
                }
                Ok(Event::InitApply(definition)) if definition.name_any() == name => {
                    listed.insert(name.clone(), installed(&definition));
                    None
                }
                Ok(Event::InitDone) => Some(listed.remove(&name).unwrap_or(Presence::Missing)),
                Ok(Event::Apply(definition)) if definition.name_any() == name => Some(installed(&definition)),
                Ok(Event::Delete(definition)) if definition.name_any() == name => Some(Presence::Missing),
                Ok(_) => None,
                Err(error) => {
                    metrics.watch_restarted(&CustomResourceDefinition::kind(&()));
                    tracing::warn!(
                        definition = name,
                        error = words_of(&error),
                        "Watch of a definition broke"
                    );
                    (is_forbidden(&error) && !self.0.borrow().contains_key(&name)).then_some(unseen(&name))
                }
            };
            if let Some(presence) = now {
                self.note(name, presence, &hub, &metrics);
            }
        }
    }

    fn note(&self, name: String, presence: Presence, hub: &Hub, metrics: &Metrics) {
        let before = (self.outdated(), self.has_service_monitors());
        self.0
            .send_if_modified(|known| known.insert(name, presence) != Some(presence));
        let outdated = self.outdated();
        let after = (outdated.clone(), self.has_service_monitors());
        if before == after {
            return;
        }
        if before.0 != outdated && !outdated.is_empty() {
            tracing::warn!(
                definitions = outdated.join(" "),
                "Definitions are older than this operator, whose newer fields are off; upgrade the chart slurm-operator-crds"
            );
        }
        metrics.crds_outdated(outdated.len());
        hub.say(&Signal::Everything);
    }
}

/// Name of a kind's definition; Kubernetes' own kinds have none.
pub(super) fn name_of<K: Cached>() -> Option<String> {
    let group = K::group(&());
    (group == api::GROUP || group == ServiceMonitor::GROUP).then(|| format!("{}.{group}", K::plural(&())))
}

fn is_ours(name: &str) -> bool {
    name.split_once('.').is_some_and(|(_, group)| group == api::GROUP)
}

/// What a definition is taken to be that we may not look at. Somebody else's need not be there, and a cache of it would never
/// be full.
fn unseen(name: &str) -> Presence {
    if is_ours(name) {
        Presence::Assumed
    } else {
        Presence::Missing
    }
}

fn names() -> Vec<String> {
    struct Names(Vec<String>);
    impl KindVisitor for Names {
        fn visit<K: Cached>(&mut self) {
            self.0.extend(name_of::<K>());
        }
    }
    let mut names = Names(Vec::new());
    each_kind(&mut names);
    names.0
}

fn installed(definition: &Definition) -> Presence {
    let revision = definition.annotations().get(annotations::SCHEMA_REVISION);
    Presence::Installed(revision.and_then(|text| text.parse().ok()))
}

fn is_forbidden(error: &watcher::Error) -> bool {
    matches!(error, watcher::Error::InitialListFailed(kube::Error::Api(status)) if status.is_forbidden())
}

#[cfg(test)]
mod tests {
    use futures::stream;
    use serde_json::json;

    use super::*;

    const CONTROLLERS: &str = "controllers.slinky.slurm.net";
    const NODE_SETS: &str = "nodesets.slinky.slurm.net";

    fn definition(name: &str, revision: Option<&str>) -> Definition {
        let annotations = revision.map(|revision| json!({annotations::SCHEMA_REVISION: revision}));
        serde_json::from_value(json!({"metadata": {"name": name, "annotations": annotations}})).unwrap()
    }

    async fn hear(definitions: &Definitions, hub: &Hub, name: &str, events: Vec<Event<Definition>>) {
        let stream = stream::iter(events.into_iter().map(|event| (name.to_owned(), Ok(event))));
        definitions.listen(stream, hub.clone(), Metrics::new()).await;
    }

    fn listed(name: &str, revision: Option<&str>) -> Vec<Event<Definition>> {
        vec![
            Event::Init,
            Event::InitApply(definition(name, revision)),
            Event::InitDone,
        ]
    }

    #[tokio::test]
    async fn definitions_without_our_revision_are_outdated() {
        let (definitions, hub) = (Definitions::default(), Hub::default());
        let current = SCHEMA_REVISION.to_string();
        hear(&definitions, &hub, CONTROLLERS, listed(CONTROLLERS, None)).await;
        hear(&definitions, &hub, NODE_SETS, listed(NODE_SETS, Some(&current))).await;
        hear(
            &definitions,
            &hub,
            "tokens.slinky.slurm.net",
            listed("tokens.slinky.slurm.net", Some("one")),
        )
        .await;
        hear(
            &definitions,
            &hub,
            "restapis.slinky.slurm.net",
            vec![Event::Init, Event::InitDone],
        )
        .await;
        assert_eq!(definitions.outdated(), [CONTROLLERS, "tokens.slinky.slurm.net"]);
        definitions.installed(NODE_SETS).await;
        definitions.missing("restapis.slinky.slurm.net").await;
    }

    #[tokio::test]
    async fn an_upgrade_of_the_definitions_tells_every_kind() {
        let (definitions, hub) = (Definitions::default(), Hub::default());
        let mut signals = hub.listen();
        let newer = (SCHEMA_REVISION + 1).to_string();
        hear(&definitions, &hub, CONTROLLERS, listed(CONTROLLERS, None)).await;
        assert!(matches!(signals.try_recv(), Ok(Signal::Everything)));
        hear(
            &definitions,
            &hub,
            CONTROLLERS,
            vec![Event::Apply(definition(CONTROLLERS, Some(&newer)))],
        )
        .await;
        assert!(definitions.outdated().is_empty());
        assert!(matches!(signals.try_recv(), Ok(Signal::Everything)));
        hear(&definitions, &hub, CONTROLLERS, listed(CONTROLLERS, Some(&newer))).await;
        assert!(signals.try_recv().is_err());
    }

    #[tokio::test]
    async fn a_definition_that_goes_and_comes_is_seen() {
        let (definitions, hub) = (Definitions::default(), Hub::default());
        hear(&definitions, &hub, CONTROLLERS, listed(CONTROLLERS, Some("1"))).await;
        definitions.installed(CONTROLLERS).await;
        hear(
            &definitions,
            &hub,
            CONTROLLERS,
            vec![Event::Delete(definition(CONTROLLERS, Some("1")))],
        )
        .await;
        definitions.missing(CONTROLLERS).await;
        hear(
            &definitions,
            &hub,
            CONTROLLERS,
            vec![Event::Apply(definition(CONTROLLERS, Some("1")))],
        )
        .await;
        definitions.installed(CONTROLLERS).await;
    }

    #[tokio::test]
    async fn who_may_not_look_takes_the_definition_to_be_there() {
        let definitions = Definitions::default();
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
    async fn service_monitors_need_not_be_there_and_are_never_outdated() {
        const MONITORS: &str = "servicemonitors.monitoring.coreos.com";
        let (definitions, hub) = (Definitions::default(), Hub::default());
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
        hear(&definitions, &hub, MONITORS, listed(MONITORS, None)).await;
        assert!(definitions.has_service_monitors());
        assert!(definitions.outdated().is_empty());
        assert!(matches!(signals.try_recv(), Ok(Signal::Everything)));
    }

    #[test]
    fn every_kind_of_ours_has_a_definition_that_is_looked_for() {
        let mut expected: Vec<String> = api::crds().iter().map(ResourceExt::name_any).collect();
        let mut names: Vec<String> = names().into_iter().filter(|name| is_ours(name)).collect();
        expected.sort();
        names.sort();
        assert_eq!(names, expected);
    }
}
