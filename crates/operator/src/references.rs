//! Which objects of a kind a change affects, as a table per kind.

use std::{collections::BTreeSet, fmt, sync::Arc};

use api::keys::labels;
use k8s_openapi::api::core::v1::Pod;
use kube::{Client, ResourceExt as _};
use runtime::{Change, Delta, Error, Key, Object};

use crate::kinds::Caches;

/// What the objects of kind `K` depend on.
pub(crate) struct References<K> {
    rules: Vec<Rule>,
    named: Vec<Names<K>>,
}

/// The names of the objects of one kind that an object names.
type Names<K> = Arc<dyn Fn(&K, &Caches) -> Vec<String> + Send + Sync>;

type Rule = Box<dyn Fn(&Change, &Caches) -> Vec<Key> + Send + Sync>;

impl<K: Object> References<K> {
    /// The table of a kind whose objects depend on nothing but themselves.
    pub(crate) fn new() -> Self {
        let empty = Self {
            rules: Vec::new(),
            named: Vec::new(),
        };
        empty.on::<K>(|delta, _| delta.key().into_iter().collect())
    }

    /// An object depends on its children of this kind.
    pub(crate) fn owns<Child: Object>(self) -> Self {
        self.on::<Child>(|delta, _| delta.owners::<K>())
    }

    /// An object depends on those objects of this kind in its namespace whose names this returns.
    pub(crate) fn names<R: Object>(
        mut self,
        names: impl Fn(&K, &Caches) -> Vec<String> + Send + Sync + 'static,
    ) -> Self {
        let names: Names<K> = Arc::new(names);
        self.named.push(Arc::clone(&names));
        self.on::<R>(move |delta, caches| {
            let Some(changed) = delta.key() else {
                return Vec::new();
            };
            select(caches, &changed.namespace, |object: &K| {
                names(object, caches).contains(&changed.name)
            })
        })
    }

    /// An object depends on those objects of this kind in its namespace that refer to it by its name.
    pub(crate) fn named_by<R: Object>(self, name: fn(&R) -> Option<&str>) -> Self {
        self.on::<R>(move |delta, _| keys_of(delta, name))
    }

    /// An object depends on the pods of its daemon: they carry the daemon's name and the object's name as labels.
    pub(crate) fn runs(self, daemon: &'static str) -> Self {
        self.on::<Pod>(move |delta, _| {
            let instance = |pod: &Pod| is_daemon(pod, daemon).then(|| pod.labels().get(labels::INSTANCE).cloned());
            let keys = delta.sides().filter_map(|pod| {
                let name = instance(pod)??;
                Some(Key::new(pod.namespace().unwrap_or_default(), name))
            });
            keys.collect()
        })
    }

    /// Any other dependency: returns the objects of kind `K` that a change of kind `R` affects.
    pub(crate) fn on<R: Object>(
        mut self,
        affected: impl Fn(&Delta<R>, &Caches) -> Vec<Key> + Send + Sync + 'static,
    ) -> Self {
        self.rules.push(Box::new(move |change, caches| {
            let delta = change.delta::<R>();
            delta.map(|delta| affected(delta, caches)).unwrap_or_default()
        }));
        self
    }

    /// Caches the ConfigMaps and Secrets that an object names.
    pub(crate) async fn load(&self, object: &K, caches: &Caches, client: &Client) -> Result<(), Error> {
        let namespace = object.meta().namespace.as_deref().unwrap_or_default();
        let named: BTreeSet<String> = self.named.iter().flat_map(|names| names(object, caches)).collect();
        for name in named {
            let key = Key::new(namespace, name);
            caches.config_maps.load(client, &key).await?;
            caches.secrets.load(client, &key).await?;
        }
        Ok(())
    }

    /// The objects of kind `K` that a change affects, each once.
    pub(crate) fn affected(&self, change: &Change, caches: &Caches) -> Vec<Key> {
        let keys: BTreeSet<Key> = self.rules.iter().flat_map(|rule| rule(change, caches)).collect();
        keys.into_iter().collect()
    }
}

impl<K> fmt::Debug for References<K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("References").finish_non_exhaustive()
    }
}

/// The objects of a kind in a namespace for which this holds.
pub(crate) fn select<K: Object>(caches: &Caches, namespace: &str, holds: impl Fn(&K) -> bool) -> Vec<Key> {
    let objects = caches.registry().cache::<K>().list(namespace).into_iter();
    objects
        .filter(|object| holds(object))
        .map(|object| Key::of(object.as_ref()))
        .collect()
}

/// The objects that both sides of a change refer to by name, in the namespace of the changed object.
pub(crate) fn keys_of<R: Object>(delta: &Delta<R>, name: impl Fn(&R) -> Option<&str>) -> Vec<Key> {
    let key = |object: &R| {
        let namespace = object.meta().namespace.clone().unwrap_or_default();
        name(object).map(|name| Key::new(namespace, name))
    };
    delta.sides().filter_map(|object| key(object)).collect()
}

/// Whether the pod runs this daemon.
pub(crate) fn is_daemon(pod: &Pod, daemon: &str) -> bool {
    pod.labels().get(labels::NAME).is_some_and(|name| name == daemon)
}

/// The pods of an object's daemon that are not being deleted, by their labels.
pub(crate) fn daemon_pods(object: &impl Object, caches: &Caches, daemon: &str) -> Vec<Arc<Pod>> {
    let meta = object.meta();
    let mut pods = caches.pods.list(meta.namespace.as_deref().unwrap_or_default());
    pods.retain(|pod| {
        pod.metadata.deletion_timestamp.is_none()
            && is_daemon(pod, daemon)
            && pod.labels().get(labels::INSTANCE) == meta.name.as_ref()
    });
    pods
}

/// The names of the Secrets with the keys of this Controller, which the connection to its slurmctld needs too.
pub(crate) fn key_secrets(caches: &Caches, namespace: &str, controller: &str) -> Vec<String> {
    let controller = caches.controllers.get(namespace, controller);
    let keys = controller.map(|controller| [controller.slurm_key(), controller.jwt_key()]);
    keys.into_iter().flatten().flatten().map(|key| key.name).collect()
}
