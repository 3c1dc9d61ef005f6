//! Kinds of objects, and the rules by which one kind is watched and cached.

use std::fmt::Debug;

use kube::{
    Api, Client, Resource,
    core::{ClusterResourceScope, NamespaceResourceScope},
    runtime::watcher,
};
use serde::{Serialize, de::DeserializeOwned};

/// A kind that can have a cache.
pub trait Object:
    Resource<DynamicType = (), Scope: Reach> + Clone + Debug + Serialize + DeserializeOwned + Send + Sync + 'static
{
}

impl<K> Object for K where
    K: Resource<DynamicType = (), Scope: Reach> + Clone + Debug + Serialize + DeserializeOwned + Send + Sync + 'static
{
}

/// Whether a kind is namespaced or cluster-scoped.
pub trait Reach: Sized {
    const NAMESPACED: bool;

    /// The objects of a namespace, or of all namespaces. A cluster-scoped kind ignores the namespace.
    fn api<K: Resource<DynamicType = (), Scope = Self>>(client: Client, namespace: Option<&str>) -> Api<K>;
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

/// How one kind is watched and what of it is cached.
#[derive(Debug)]
pub struct Rules<K> {
    /// The objects to request from the API server.
    pub requested: watcher::Config,
    /// Whether an object is cached at all.
    pub is_relevant: fn(&K) -> bool,
    /// If set, only objects for which this holds are cached when a watch delivers them. Of the others the cache has the
    /// names, until a reconcile needs them ([`Cache::load`](crate::Cache::load)).
    pub on_demand_unless: Option<fn(&K) -> bool>,
    /// Removes the fields that no reader needs.
    pub trim: fn(&mut K),
    pub definition: Definition,
}

impl<K> Default for Rules<K> {
    fn default() -> Self {
        Self {
            requested: watcher::Config::default(),
            is_relevant: |_| true,
            on_demand_unless: None,
            trim: |_| {},
            definition: Definition::BuiltIn,
        }
    }
}

/// Where the definition of a kind comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Definition {
    /// Kubernetes itself.
    BuiltIn,
    /// A CustomResourceDefinition of this operator, with the schema revision that this version needs.
    Own {
        /// The annotation that holds the revision of the installed schema.
        annotation: &'static str,
        revision: u32,
    },
    /// A CustomResourceDefinition of another project, which need not be installed.
    Foreign,
}
