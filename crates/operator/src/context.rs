//! What every kind works with.

use std::{ops::Deref, sync::Arc};

use crate::{
    cluster::Clusters, cluster_domain, configuration_metrics::ConfigurationMetrics, defaults::Defaults, kinds::Caches,
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
        Self {
            cluster_domain: cluster_domain::of_this_pod(runtime.clock.host()),
            runtime,
            caches,
            defaults,
            clusters: Arc::new(clusters),
        }
    }

    /// The context of a process that leads, for tests of one kind: events and triggers go nowhere.
    pub fn for_tests(client: kube::Client, caches: Caches) -> Self {
        let runtime = runtime::Context::for_tests(client, caches.registry().clone());
        Self::new(runtime, caches, Defaults::default())
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
