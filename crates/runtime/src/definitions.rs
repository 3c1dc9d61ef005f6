//! Which CustomResourceDefinitions the cluster has of the kinds in the registry, and whether our own are new enough.

use std::{collections::BTreeMap, sync::Arc};

use futures::{Stream, StreamExt, stream::select_all};
use host::watch;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::{
    Api, Resource, ResourceExt,
    core::PartialObjectMeta,
    runtime::{
        WatchStreamExt,
        watcher::{self, watch_object},
    },
};

use crate::{
    Clients, Context, Definition, Object, Registry, Signal,
    metrics::{number, of_kind},
    watch::describe,
};

type DefinitionMeta = PartialObjectMeta<CustomResourceDefinition>;

/// The revision of an installed definition's schema: 0 without one, as in upstream's; `None` if it is not installed.
type Revision = Option<u32>;

/// One of our own that RBAC does not let us read is assumed to be installed and current; a request for a kind that does
/// not exist returns 404.
const ASSUMED: Revision = Some(u32::MAX);

/// The definitions as the cluster has them. A clone shares them.
#[derive(Debug, Clone)]
pub struct Definitions {
    /// The definitions to follow, by name.
    followed: Arc<BTreeMap<String, Definition>>,
    /// What is known of them. A definition that is not in the map has not been observed yet.
    known: watch::Sender<BTreeMap<String, Revision>>,
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
        self.select(|found, revision| found < revision)
    }

    /// Names of our own definitions that are newer than this operator, as after its rollback.
    fn newer(&self) -> Vec<String> {
        self.select(|found, revision| found > revision && Some(found) != ASSUMED)
    }

    /// Names of our own definitions by their revision and the one that this operator has.
    fn select(&self, matches: impl Fn(u32, u32) -> bool) -> Vec<String> {
        let known = self.known.borrow();
        let is_selected = |(name, found): &(&String, &Revision)| match self.followed.get(*name) {
            Some(Definition::Own { revision, .. }) => found.is_some_and(|found| matches(found, *revision)),
            _ => false,
        };
        let selected = known.iter().filter(is_selected);
        selected.map(|(name, _)| name.clone()).collect()
    }

    /// Names of our own definitions, and those of them that are not installed. Both are empty until all have been observed.
    fn own(&self) -> (Vec<String>, Vec<String>) {
        let known = self.known.borrow();
        let own = self
            .followed
            .iter()
            .filter(|(_, followed)| matches!(followed, Definition::Own { .. }));
        let own: Vec<String> = own.map(|(name, _)| name.clone()).collect();
        if !own.iter().all(|name| known.contains_key(name)) {
            return <(Vec<String>, Vec<String>)>::default();
        }
        let missing = own.iter().filter(|name| known.get(*name) == Some(&None));
        let missing = missing.cloned().collect();
        (own, missing)
    }

    /// Whether the cluster has the definition of this kind.
    pub fn has<K: Object>(&self) -> bool {
        self.known.borrow().get(&name_of::<K>()).is_some_and(Option::is_some)
    }

    /// Returns when the definition is installed.
    pub(crate) async fn installed(&self, name: &str) {
        self.wait(name, Option::is_some).await;
    }

    /// Returns when the definition is known to be missing.
    pub(crate) async fn missing(&self, name: &str) {
        self.wait(name, Option::is_none).await;
    }

    async fn wait(&self, name: &str, matches: fn(&Revision) -> bool) {
        // The sender lives as long as `self`.
        let mut known = self.known.subscribe();
        let _ = known.wait_for(|known| known.get(name).is_some_and(matches)).await;
    }

    /// Follows the definitions until the process ends, each with a watch of its own: RBAC lets us read only these.
    pub(crate) async fn follow(self, context: Context) {
        let (calls, watches) = (context.client.clone(), context.watches.clone());
        // A list whose response never comes is sent again.
        let client = Clients { calls, watches }.of_watch(|| {});
        let watches = self.followed.keys().cloned().map(|name| {
            let api: Api<DefinitionMeta> = Api::all(client.clone());
            let events = watch_object(api, &name).default_backoff();
            events.map(move |event| (name.clone(), event)).boxed()
        });
        self.listen(select_all(watches), &context).await;
        // Without definitions there is nothing to follow.
        std::future::pending::<()>().await;
    }

    async fn listen(
        &self,
        mut events: impl Stream<Item = (String, watcher::Result<Option<DefinitionMeta>>)> + Unpin,
        context: &Context,
    ) {
        while let Some((name, event)) = events.next().await {
            let revision = match event {
                Ok(definition) => definition.map(|definition| self.revision(&definition)),
                Err(error) => {
                    let kind = of_kind(&CustomResourceDefinition::kind(&()));
                    context.metrics.watch_restarts.get_or_create(&kind).inc();
                    let message = describe(&error);
                    tracing::warn!(definition = name, error = message, "watch of a definition broke");
                    if !is_forbidden(&error) || self.known.borrow().contains_key(&name) {
                        continue;
                    }
                    // A foreign one need not be installed, and its cache would then never be synced.
                    let is_own = matches!(self.followed.get(&name), Some(Definition::Own { .. }));
                    ASSUMED.filter(|_| is_own)
                }
            };
            self.record(name, revision, context);
        }
    }

    fn revision(&self, definition: &DefinitionMeta) -> u32 {
        let text = match self.followed.get(&definition.name_any()) {
            Some(Definition::Own { annotation, .. }) => definition.annotations().get(*annotation),
            _ => None,
        };
        text.and_then(|text| text.parse().ok()).unwrap_or_default()
    }

    fn record(&self, name: String, revision: Revision, context: &Context) {
        let before = (self.outdated(), self.newer());
        let (_, missing_before) = self.own();
        let record = |known: &mut BTreeMap<String, Revision>| known.insert(name, revision) != Some(revision);
        if !self.known.send_if_modified(record) {
            return;
        }
        let (outdated, newer) = (self.outdated(), self.newer());
        if before.1 != newer && !newer.is_empty() {
            tracing::warn!(
                definitions = newer.join(" "),
                "definitions are newer than this operator, which ignores fields that it does not know; run the operator of their version"
            );
        }
        if before.0 != outdated && !outdated.is_empty() {
            tracing::warn!(
                definitions = outdated.join(" "),
                "definitions are older than this operator, so its newer fields are disabled; upgrade the chart slurm-operator-crds"
            );
        }
        let (own, missing) = self.own();
        if missing_before != missing && !missing.is_empty() {
            tracing::warn!(
                definitions = missing.join(" "),
                "definitions are not installed, so their kinds are not reconciled; install the chart slurm-operator-crds"
            );
        }
        context
            .health
            .note_undefined(if own == missing { missing } else { Vec::new() });
        context.metrics.outdated.set(number(outdated.len()));
        context.triggers.send(&Signal::Everything);
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
    use std::sync::atomic::{AtomicUsize, Ordering};

    use api::{Controller, crds::SCHEMA_REVISION, keys::annotations};
    use futures::stream;
    use kube::client::Body;
    use serde_json::json;

    use super::*;
    use crate::fake::FakeServer;

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

    fn context() -> Context {
        Context::for_tests(FakeServer::new().client(), Registry::default())
    }

    #[tokio::test(start_paused = true)]
    async fn a_list_that_gets_no_response_is_sent_again() {
        let sent = Arc::new(AtomicUsize::new(0));
        let service = tower::service_fn(move |_: http::Request<Body>| {
            let is_first = sent.fetch_add(1, Ordering::Relaxed) < definitions().followed.len();
            async move {
                if is_first {
                    std::future::pending::<()>().await;
                }
                let list = json!({"metadata": {"resourceVersion": "1"}, "items": []});
                Ok::<_, tower::BoxError>(http::Response::new(Body::from(list.to_string().into_bytes())))
            }
        });
        let context = Context::for_tests(kube::Client::new(service, "default"), Registry::default());
        let definitions = definitions();
        let follow = tokio::spawn(definitions.clone().follow(context));
        let missing = tokio::time::timeout(std::time::Duration::from_mins(1), definitions.missing(CONTROLLERS)).await;
        follow.abort();
        missing.unwrap();
    }

    fn definition(name: &str, revision: Option<&str>) -> DefinitionMeta {
        let annotations = revision.map(|revision| json!({annotations::SCHEMA_REVISION: revision}));
        serde_json::from_value(json!({"metadata": {"name": name, "annotations": annotations}})).unwrap()
    }

    async fn receive(definitions: &Definitions, context: &Context, name: &str, found: Option<DefinitionMeta>) {
        let stream = stream::iter([(name.to_owned(), Ok(found))]);
        definitions.listen(stream, context).await;
    }

    #[tokio::test]
    async fn definitions_without_our_revision_are_outdated() {
        let (definitions, context) = (definitions(), context());
        let current = SCHEMA_REVISION.to_string();
        receive(&definitions, &context, CONTROLLERS, Some(definition(CONTROLLERS, None))).await;
        receive(
            &definitions,
            &context,
            NODE_SETS,
            Some(definition(NODE_SETS, Some(&current))),
        )
        .await;
        receive(&definitions, &context, TOKENS, Some(definition(TOKENS, Some("one")))).await;
        receive(&definitions, &context, REST_APIS, None).await;
        assert_eq!(definitions.outdated(), [CONTROLLERS, TOKENS]);
        definitions.installed(NODE_SETS).await;
        definitions.missing(REST_APIS).await;
    }

    #[tokio::test]
    async fn a_process_without_any_of_our_definitions_is_not_ready() {
        let (definitions, context) = (definitions(), context());
        let all = [CONTROLLERS, NODE_SETS, REST_APIS, TOKENS];
        for name in all {
            assert!(context.health.undefined().is_empty(), "not all are known");
            receive(&definitions, &context, name, None).await;
        }
        assert_eq!(context.health.undefined(), all);
        // Those of upstream have no Partition: the operator works with what is there.
        receive(&definitions, &context, CONTROLLERS, Some(definition(CONTROLLERS, None))).await;
        assert!(context.health.undefined().is_empty());
        assert_eq!(definitions.own().1, [NODE_SETS, REST_APIS, TOKENS]);
    }

    #[tokio::test]
    async fn an_upgrade_of_the_definitions_wakes_every_kind() {
        let (definitions, context) = (definitions(), context());
        let mut signals = context.triggers.listen::<Controller>();
        let newer = (SCHEMA_REVISION + 1).to_string();
        receive(&definitions, &context, CONTROLLERS, Some(definition(CONTROLLERS, None))).await;
        assert!(matches!(signals.try_recv(), Ok(Signal::Everything)));
        receive(
            &definitions,
            &context,
            CONTROLLERS,
            Some(definition(CONTROLLERS, Some(&newer))),
        )
        .await;
        assert!(definitions.outdated().is_empty());
        assert_eq!(definitions.newer(), [CONTROLLERS]);
        assert!(matches!(signals.try_recv(), Ok(Signal::Everything)));
        receive(
            &definitions,
            &context,
            CONTROLLERS,
            Some(definition(CONTROLLERS, Some(&newer))),
        )
        .await;
        assert!(signals.try_recv().is_err());
    }

    #[tokio::test]
    async fn a_definition_that_is_deleted_and_recreated_is_noticed() {
        let (definitions, context) = (definitions(), context());
        receive(
            &definitions,
            &context,
            CONTROLLERS,
            Some(definition(CONTROLLERS, Some("1"))),
        )
        .await;
        definitions.installed(CONTROLLERS).await;
        receive(&definitions, &context, CONTROLLERS, None).await;
        definitions.missing(CONTROLLERS).await;
        receive(
            &definitions,
            &context,
            CONTROLLERS,
            Some(definition(CONTROLLERS, Some("1"))),
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
        definitions.listen(stream, &context()).await;
        definitions.installed(CONTROLLERS).await;
        assert!(definitions.outdated().is_empty());
    }

    #[tokio::test]
    async fn a_foreign_definition_is_optional_and_never_outdated() {
        let (definitions, context) = (definitions(), context());
        let status = kube::core::Status {
            code: 403,
            reason: "Forbidden".to_owned(),
            ..kube::core::Status::default()
        };
        let error = watcher::Error::InitialListFailed(kube::Error::Api(Box::new(status)));
        let stream = stream::iter([(MONITORS.to_owned(), Err(error))]);
        definitions.listen(stream, &context).await;
        definitions.missing(MONITORS).await;
        let mut signals = context.triggers.listen::<Controller>();
        receive(&definitions, &context, MONITORS, Some(definition(MONITORS, None))).await;
        definitions.installed(MONITORS).await;
        assert!(definitions.outdated().is_empty());
        assert!(matches!(signals.try_recv(), Ok(Signal::Everything)));
    }
}
