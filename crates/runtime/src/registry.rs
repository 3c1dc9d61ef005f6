//! The caches of all kinds, found by type.

use std::{any::Any, collections::BTreeMap, fmt, sync::Arc};

use anyhow::Context as _;
use futures::future::{BoxFuture, FutureExt as _};
use kube::Resource;
use serde_json::Value;

use crate::{Cache, Change, Context, Definition, Delta, Object, Reach, definitions::name_of, watch::watch_kind};

type Watches = Vec<BoxFuture<'static, ()>>;

/// The caches of all kinds. A clone shares them.
#[derive(Clone, Default)]
pub struct Registry(Vec<Arc<dyn AnyCache>>);

impl Registry {
    /// Adds a kind.
    #[must_use]
    pub fn with<K: Object>(mut self, cache: Cache<K>) -> Self {
        self.0.push(Arc::new(cache));
        self
    }

    /// The cache of a kind. A kind that was not added has an empty one.
    pub fn cache<K: Object>(&self) -> Cache<K> {
        let mut caches = self.0.iter().map(|cache| cache.as_ref() as &dyn Any);
        caches
            .find_map(|cache| cache.downcast_ref::<Cache<K>>())
            .cloned()
            .unwrap_or_default()
    }

    /// Puts a manifest into the cache of its kind, for tests.
    pub fn insert(&self, manifest: &Value) -> anyhow::Result<()> {
        let text = |field: &str| manifest.get(field).and_then(Value::as_str).unwrap_or_default();
        let kind = format!("{} {}", text("apiVersion"), text("kind"));
        let cache = self.0.iter().find(|cache| cache.kind() == kind);
        let cache = cache.with_context(|| format!("there is no cache for {kind}"))?;
        cache.insert(manifest).context(kind)
    }

    /// Every cached object as if it had just been created.
    pub(crate) fn appearances(&self) -> impl Iterator<Item = Change> {
        self.0.iter().flat_map(|cache| cache.appearances())
    }

    /// The CustomResourceDefinitions of the kinds that have one, by name.
    pub fn definitions(&self) -> BTreeMap<String, Definition> {
        self.0.iter().filter_map(|cache| cache.definition()).collect()
    }

    /// Watches that fill the caches from these namespaces, or from all if there is none.
    pub(crate) fn watches(&self, namespaces: &[String], context: &Context) -> Watches {
        let caches = self.0.iter();
        caches.flat_map(|cache| cache.watches(namespaces, context)).collect()
    }
}

impl fmt::Debug for Registry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.0.iter().map(|cache| cache.kind())).finish()
    }
}

/// A cache whose kind is not known to the caller.
trait AnyCache: Any + Send + Sync {
    /// apiVersion and kind.
    fn kind(&self) -> String;
    fn definition(&self) -> Option<(String, Definition)>;
    fn insert(&self, manifest: &Value) -> serde_json::Result<()>;
    fn appearances(&self) -> Vec<Change>;
    fn watches(&self, namespaces: &[String], context: &Context) -> Watches;
}

impl<K: Object> AnyCache for Cache<K> {
    fn kind(&self) -> String {
        format!("{} {}", K::api_version(&()), K::kind(&()))
    }

    fn definition(&self) -> Option<(String, Definition)> {
        let definition = self.rules().definition;
        (definition != Definition::BuiltIn).then(|| (name_of::<K>(), definition))
    }

    fn insert(&self, manifest: &Value) -> serde_json::Result<()> {
        Cache::insert(self, K::deserialize(manifest)?);
        Ok(())
    }

    fn appearances(&self) -> Vec<Change> {
        let objects = self.all().into_iter();
        objects.map(|object| Delta::appeared(object).into()).collect()
    }

    fn watches(&self, namespaces: &[String], context: &Context) -> Watches {
        let namespaces: Vec<Option<String>> = if namespaces.is_empty() || !<K as Resource>::Scope::NAMESPACED {
            vec![None]
        } else {
            namespaces.iter().cloned().map(Some).collect()
        };
        let watch = |namespace| watch_kind(self.clone(), namespace, context.clone()).boxed();
        namespaces.into_iter().map(watch).collect()
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use api::{Controller, NodeSet};
    use k8s_openapi::api::{
        apps::v1::StatefulSet,
        core::v1::{ConfigMap, Pod},
    };
    use kube::ResourceExt as _;
    use serde_json::json;

    use super::*;
    use crate::{Rules, change::in_group};

    /// The kinds that tests of the runtime use. Only StatefulSets of ours are relevant.
    pub(crate) fn registry() -> Registry {
        let stateful_sets = Rules {
            is_relevant: |set: &StatefulSet| {
                let owners = set.owner_references().iter();
                let mut owners = owners.map(|owner| owner.api_version.as_str());
                owners.any(|api_version| in_group(api_version, api::GROUP)) || !set.labels().is_empty()
            },
            ..Rules::default()
        };
        Registry::default()
            .with(Cache::<ConfigMap>::default())
            .with(Cache::<Pod>::default())
            .with(Cache::new(stateful_sets))
            .with(Cache::<Controller>::new(own()))
            .with(Cache::<NodeSet>::new(own()))
    }

    fn own<K>() -> Rules<K> {
        Rules {
            definition: Definition::Own {
                annotation: api::keys::annotations::SCHEMA_REVISION,
                revision: api::crds::SCHEMA_REVISION,
            },
            ..Rules::default()
        }
    }

    #[test]
    fn a_manifest_goes_into_the_cache_of_its_kind() {
        let registry = registry();
        for manifest in [
            json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"namespace": "n", "name": "p"}}),
            json!({"apiVersion": "slinky.slurm.net/v1beta1", "kind": "NodeSet", "metadata": {"namespace": "n", "name": "s"}, "spec": {"controllerRef": {"name": "c"}}}),
        ] {
            registry.insert(&manifest).unwrap();
        }
        assert!(registry.cache::<Pod>().get("n", "p").is_some());
        assert!(registry.cache::<NodeSet>().get("n", "s").is_some());
        assert_eq!(registry.appearances().count(), 2);
        let unknown = registry.insert(&json!({"apiVersion": "v1", "kind": "Secret"}));
        assert_eq!(unknown.unwrap_err().to_string(), "there is no cache for v1 Secret");
    }
}
