//! What every kind works with.

use std::{ops::Deref, sync::Arc};

use api::Controller;
use kube::Api;
use runtime::Key;

use crate::{
    cluster::Clusters, cluster_domain, configuration_metrics::ConfigurationMetrics, defaults::Defaults, kinds::Caches,
    secret::unreadable_controller,
};

/// The runtime's context, the typed caches and the state of the clusters. A clone shares it.
#[derive(Clone)]
pub struct Context {
    pub runtime: runtime::Context,
    pub caches: Caches,
    pub defaults: Defaults,
    /// The DNS domain of the Kubernetes cluster.
    pub cluster_domain: String,
    pub clusters: Arc<Clusters>,
}

impl Context {
    /// The context of kinds whose objects are in these caches. The caches are those of the runtime's registry.
    pub fn new(runtime: runtime::Context, caches: Caches, defaults: Defaults) -> Self {
        let metrics = runtime.metrics.register(ConfigurationMetrics::new);
        let clusters = Clusters::new(
            caches.clone(),
            runtime.fence.clone(),
            runtime.clock.clone(),
            runtime.triggers.clone(),
            metrics,
        );
        let clusters = Arc::new(clusters);
        let counted = Arc::clone(&clusters);
        runtime.memories.add("clusters", move || counted.count());
        Self {
            cluster_domain: cluster_domain::of_this_pod(runtime.clock.host()),
            runtime,
            caches,
            defaults,
            clusters,
        }
    }

    /// The context of a process that leads, for tests of one kind: events and triggers go nowhere.
    pub fn for_tests(client: kube::Client, caches: Caches) -> Self {
        let runtime = runtime::Context::for_tests(client, caches.registry().clone());
        Self::new(runtime, caches, Defaults::default())
    }

    /// Why a Controller that is not cached must not count as missing. `None` if the API server has none of that name.
    pub async fn unseen_controller(&self, key: &Key) -> Option<String> {
        let undecodable = unreadable_controller(&self.caches, &key.namespace, &key.name);
        if undecodable.is_some() {
            return undecodable;
        }
        let api: Api<Controller> = Api::namespaced(self.client.clone(), &key.namespace);
        match api.get_metadata_opt(&key.name).await {
            Ok(None) => None,
            Ok(Some(_)) => Some("exists, but its watch has not delivered it yet; wait".to_owned()),
            Err(error) => Some(format!(
                "cannot be requested: {error}; wait until the API server responds"
            )),
        }
    }

    /// Whether a CustomResourceDefinition is older than this operator.
    pub fn crds_outdated(&self) -> bool {
        !self.definitions.outdated().is_empty()
    }
}

impl Deref for Context {
    type Target = runtime::Context;

    fn deref(&self) -> &Self::Target {
        &self.runtime
    }
}

impl std::fmt::Debug for Context {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.runtime.fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use runtime::fake::{FakeServer, Path};
    use serde_json::json;

    use super::*;

    #[tokio::test]
    async fn a_controller_is_missing_only_if_the_api_server_says_so() {
        let (server, key) = (FakeServer::new(), Key::new("n", "c"));
        let context = Context::for_tests(server.client(), Caches::default());
        assert_eq!(context.unseen_controller(&key).await, None);
        let object = json!({
            "apiVersion": "slinky.slurm.net/v1beta1", "kind": "Controller", "metadata": {"name": "c", "namespace": "n"}, "spec": {},
        });
        let path = Path::parse("/apis/slinky.slurm.net/v1beta1/namespaces/n/controllers");
        server
            .edit(|store| store.create(&path, object.clone(), "test"))
            .unwrap();
        let why = context.unseen_controller(&key).await.unwrap();
        assert!(why.starts_with("exists, but"), "{why}");
        let controller: Controller = serde_json::from_value(object).unwrap();
        context
            .caches
            .controllers
            .insert_undecodable(&controller, "unknown field".to_owned());
        let why = context.unseen_controller(&key).await.unwrap();
        assert!(
            why.starts_with("cannot be decoded by this version of the operator: unknown field;"),
            "{why}"
        );
    }
}
