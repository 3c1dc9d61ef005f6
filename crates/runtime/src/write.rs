//! Writes to the API server. Everything is written through a [`Writer`].

mod desired;
mod memory;
mod pod_conditions;
mod refusal;
mod status;
mod takeover;
#[cfg(test)]
mod tests;

use std::{collections::BTreeSet, sync::Arc, time::Duration};

use self::{
    desired::{Desired, content},
    memory::{Exchange, LastApply, Memory, hash},
};
use crate::{
    Cache, Clock, Context, Error, Key, Metrics, Object, Registry, Trigger,
    compare::first_gap,
    extras::extras,
    field_sets::{FieldSets, MANAGER_PREFIX},
    gate,
    ownership::Ownership,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use kube::{
    Api, Client, Resource,
    api::{DeleteParams, Patch, PatchParams, PostParams, Preconditions},
    core::NamespaceResourceScope,
};
use serde_json::{Value, json};

/// A request takes milliseconds; with the client's own retries on a busy API server seconds.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(20);

/// How often a taken name is tried again. The deletion of the object that has it is usually noticed at once.
pub const TAKEN_RETRY: Duration = Duration::from_mins(1);

/// How many conflicts with other writers are retried at once.
const CONFLICT_RETRIES: u32 = 3;

/// A kind that can be written: a namespaced one.
pub trait Written: Object + Resource<Scope = NamespaceResourceScope> {}
impl<K: Object + Resource<Scope = NamespaceResourceScope>> Written for K {}

/// The result of a create.
#[derive(Debug, Clone, PartialEq)]
pub enum Created<K> {
    New(K),
    /// An object of that name already existed and was left unchanged.
    Exists,
}

/// Writes for one kind, under a field manager of its own. A clone shares its memory.
#[derive(Clone)]
pub struct Writer {
    client: Client,
    registry: Registry,
    clock: Clock,
    metrics: Metrics,
    manager: String,
    /// Wakes objects of the kind.
    trigger: Trigger,
    memory: Arc<Memory>,
}

impl std::fmt::Debug for Writer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Writer")
            .field("manager", &self.manager)
            .finish_non_exhaustive()
    }
}

impl Writer {
    /// The writer of the children of kind `K`: the field manager is `slurm-operator/` with the kind in lower case.
    pub fn new<K: Object>(context: &Context) -> Self {
        Self {
            client: context.client.clone(),
            registry: context.registry.clone(),
            clock: context.clock.clone(),
            metrics: context.metrics.clone(),
            manager: format!("{MANAGER_PREFIX}{}", K::kind(&()).to_lowercase()),
            trigger: context.triggers.of::<K>(),
            memory: Arc::default(),
        }
    }

    /// Applies an object. It is created if there is none of that name; an existing one is changed, by a forced server-side
    /// apply, only if it has one of the desired owners: else the result is [`Error::Taken`]. Fields that an earlier apply
    /// set and this one does not are removed, and so are foreign entries of lists and maps that are ours alone. No request
    /// is made when nothing would change; the result is then the cached object.
    pub async fn apply<K: Written>(&self, desired: &K) -> Result<K, Error> {
        self.apply_shared(desired, None).await
    }

    /// Like [`apply`](Self::apply), for an object that may also have this owner, though the owner is not desired.
    pub async fn apply_shared<K: Written>(&self, desired: &K, owner: Option<OwnerReference>) -> Result<K, Error> {
        let key = Key::of(desired);
        let kind = K::kind(&());
        let mut desired = Desired::of(desired).map_err(|error| not_serializable::<K>(&key, &error))?;
        desired.owners.extend(owner);
        let cache = self.registry.cache::<K>();
        let Some(observed) = cache.get(&key.namespace, &key.name) else {
            return Box::pin(self.apply_first(&key, &desired)).await;
        };
        let field_set = cache.field_set(&key, &self.manager);
        self.check_owner(observed.as_ref(), &desired.owners, field_set.is_some())?;
        if field_set.is_none() {
            Box::pin(self.take_over::<K>(&key, observed.meta().uid.as_deref(), None)).await?;
        }
        let value = serde_json::to_value(observed.as_ref()).map_err(|error| not_serializable::<K>(&key, &error))?;
        let gap = first_gap(&desired.value, &value);
        let last = self.memory.last_applied::<K>(&key, observed.meta());
        let is_last = last.is_some_and(|last| {
            last.exchange.sent == desired.hash && field_set.is_some() && last.field_set == field_set
        });
        // If a field is missing although nothing changed since the last apply, the API server does not accept it.
        let accepted = || last.is_some_and(|last| last.exchange.result == content(&value));
        if is_last && (gap.is_none() || accepted()) {
            let removed = self.remove_extras(&key, &desired, observed.as_ref(), &value).await?;
            if removed.is_none() {
                self.metrics.skipped(&kind);
            }
            return Ok(removed.unwrap_or_else(|| K::clone(&observed)));
        }
        if let Some(field) = gap {
            tracing::info!(%kind, object = %key, field, "changing");
        } else {
            // Fields that were ours before may have to be removed; after a start this takes one request per object.
            tracing::debug!(%kind, object = %key, "confirming");
        }
        self.send(&key, observed.meta().uid.as_deref(), &desired).await
    }

    /// Applies an object that is not in the cache: it does not exist, nothing about it is ours, or the watch lags.
    async fn apply_first<K: Written>(&self, key: &Key, desired: &Desired) -> Result<K, Error> {
        self.check_contested::<K>(key)?;
        tracing::info!(kind = %K::kind(&()), object = %key, "creating");
        let found: K = match self.post::<K>(key, &desired.value).await {
            Err(error) if refusal::already_exists(&error) => {
                let found = self.fetch::<K>(key).await?;
                let field_sets = FieldSets::read(found.meta().managed_fields.as_deref().unwrap_or_default());
                self.check_owner(&found, &desired.owners, field_sets.of(&self.manager).is_some())?;
                found
            }
            created => created?,
        };
        let uid = found.meta().uid.clone();
        // The fields of a create count as an update, and a later apply would not remove them.
        self.take_over(key, uid.as_deref(), Some(found)).await?;
        self.send(key, uid.as_deref(), desired).await
    }

    /// Fails if this name was seen to be taken a short time ago.
    pub fn check_contested<K: Written>(&self, key: &Key) -> Result<(), Error> {
        let owner = self.registry.cache::<K>().contested(key, self.clock.host().instant());
        owner.map_or(Ok(()), |owner| Err(taken::<K>(key, owner)))
    }

    /// Fails unless the existing object is a child of one of these owners.
    pub fn check_found<K: Written>(&self, found: &K, owners: &[OwnerReference]) -> Result<(), Error> {
        self.check_owner(found, owners, false)
    }

    fn check_owner<K: Written>(&self, found: &K, owners: &[OwnerReference], applied: bool) -> Result<(), Error> {
        let key = Key::of(found);
        match Ownership::of(found.meta(), owners, applied) {
            Ownership::Ours => Ok(()),
            Ownership::Leftover { owner } => Err(Error::Leftover {
                kind: K::kind(&()).into_owned(),
                key,
                owner,
            }),
            Ownership::Foreign { owner } => {
                let wakes = |owner: &OwnerReference| (self.trigger.clone(), Key::new(&key.namespace, &owner.name));
                let until = self.clock.host().instant() + TAKEN_RETRY;
                let waiting = owners.iter().map(wakes).collect();
                if self.registry.cache::<K>().contest(&key, owner.clone(), until, waiting) {
                    tracing::warn!(kind = %K::kind(&()), object = %key, "leaving an existing object unchanged: it {owner}");
                }
                Err(taken::<K>(&key, owner))
            }
        }
    }

    /// Applies to the object with this UID only.
    async fn send<K: Written>(&self, key: &Key, uid: Option<&str>, desired: &Desired) -> Result<K, Error> {
        let parameters = PatchParams::apply(&self.manager).force();
        let api = self.api::<K>(&key.namespace);
        let patch = Patch::Apply(desired.for_uid(uid.unwrap_or_default()));
        let mut applied: K = self
            .call::<K, _>("apply", key, api.patch(&key.name, &parameters, &patch))
            .await?;
        gate::wrote(&self.registry, &applied);
        let field_sets = FieldSets::read(applied.meta().managed_fields.as_deref().unwrap_or_default());
        self.registry.cache::<K>().trim(&mut applied);
        let value = serde_json::to_value(&applied).map_err(|error| not_serializable::<K>(key, &error))?;
        let memory = LastApply {
            exchange: Exchange {
                sent: desired.hash,
                result: content(&value),
            },
            field_set: field_sets.of(&self.manager),
        };
        self.memory.applied::<K>(key, applied.meta(), memory);
        let removed = self.remove_extras(key, desired, &applied, &value).await?;
        Ok(removed.unwrap_or(applied))
    }

    /// Removes foreign fields from lists and maps that are ours alone. `None` if there are none, or if they were re-added
    /// at once (by an admission webhook): removing them again would never end.
    async fn remove_extras<K: Written>(
        &self,
        key: &Key,
        desired: &Desired,
        observed: &K,
        value: &Value,
    ) -> Result<Option<K>, Error> {
        let kind = K::kind(&());
        let mut found = extras(&kind, &desired.value, value);
        let mut version = observed.meta().resource_version.clone();
        if found.is_empty() || self.memory.is_futile::<K>(key, observed.meta(), &found) {
            return Ok(None);
        }
        tracing::info!(%kind, object = %key, fields = found.join(" "), "removing foreign fields");
        let read = |object: &K| {
            let value = serde_json::to_value(object).map_err(|error| not_serializable::<K>(key, &error))?;
            Ok::<_, Error>(extras(&kind, &desired.value, &value))
        };
        let mut retries = 1..=CONFLICT_RETRIES;
        let cleaned = loop {
            match self.remove_once::<K>(key, version.as_deref(), &found).await {
                // The object's controller may write its status at any moment.
                Err(Error::Conflict { .. }) if retries.next().is_some() => {
                    let now = self.fetch::<K>(key).await?;
                    version.clone_from(&now.meta().resource_version);
                    found = read(&now)?;
                }
                cleaned => break cleaned?,
            }
        };
        gate::wrote(&self.registry, &cleaned);
        let left = read(&cleaned)?;
        if !left.is_empty() {
            tracing::warn!(%kind, object = %key, fields = left.join(" "), "foreign fields were re-added; leaving them");
            self.memory.futile::<K>(key, cleaned.meta(), &left);
        }
        Ok(Some(without_managed_fields(cleaned)))
    }

    /// Removes paths from this version only: in another one the same path may be another field.
    async fn remove_once<K: Written>(&self, key: &Key, version: Option<&str>, paths: &[String]) -> Result<K, Error> {
        let removals = paths.iter().map(|path| json!({"op": "remove", "path": path}));
        self.patch_version(key, version, removals.collect()).await
    }

    /// Sends a JSON patch for this version only.
    async fn patch_version<K: Written>(
        &self,
        key: &Key,
        version: Option<&str>,
        mut operations: Vec<Value>,
    ) -> Result<K, Error> {
        operations.insert(
            0,
            json!({"op": "test", "path": "/metadata/resourceVersion", "value": version}),
        );
        let patch: json_patch::Patch =
            serde_json::from_value(operations.into()).map_err(|error| not_serializable::<K>(key, &error))?;
        let (api, parameters, patch) = (
            self.api::<K>(&key.namespace),
            self.parameters(),
            Patch::<()>::Json(patch),
        );
        let call = api.patch(&key.name, &parameters, &patch);
        self.call::<K, _>("patch", key, call).await.map_err(refusal::of_a_test)
    }

    /// Creates an object. A retry after a lost response returns `Exists` too: check the object's owner before treating it
    /// as foreign.
    pub async fn create<K: Written>(&self, object: &K) -> Result<Created<K>, Error> {
        let value = serde_json::to_value(object).map_err(|error| not_serializable::<K>(&Key::of(object), &error))?;
        self.create_json(&value).await
    }

    /// Like [`create`](Self::create), for a manifest: fields that our types do not know reach the API server.
    pub async fn create_json<K: Written>(&self, manifest: &Value) -> Result<Created<K>, Error> {
        let meta = |field: &str| manifest.get("metadata")?.get(field)?.as_str();
        let key = Key::new(meta("namespace").unwrap_or_default(), meta("name").unwrap_or_default());
        tracing::info!(kind = %K::kind(&()), object = %key, "creating");
        match self.post::<K>(&key, manifest).await {
            Ok(created) => Ok(Created::New(without_managed_fields(created))),
            Err(error) if refusal::already_exists(&error) => Ok(Created::Exists),
            Err(error) => Err(error),
        }
    }

    async fn post<K: Written>(&self, key: &Key, manifest: &Value) -> Result<K, Error> {
        let parameters = PostParams {
            field_manager: Some(self.manager.clone()),
            ..PostParams::default()
        };
        let request = kube::core::Request::new(K::url_path(&(), Some(&key.namespace)));
        let call = async {
            let request = request
                .create(&parameters, manifest.to_string().into_bytes())
                .map_err(kube::Error::BuildRequest)?;
            self.client.request::<K>(request).await
        };
        let created = self.call::<K, _>("create", key, call).await?;
        gate::wrote(&self.registry, &created);
        Ok(created)
    }

    /// Gets the object of this name from the API server, for one that exists although it is not in the cache.
    pub async fn get<K: Written>(&self, namespace: &str, name: &str) -> Result<K, Error> {
        let found = self.fetch(&Key::new(namespace, name)).await?;
        Ok(without_managed_fields(found))
    }

    async fn fetch<K: Written>(&self, key: &Key) -> Result<K, Error> {
        let api = self.api::<K>(&key.namespace);
        self.call::<K, _>("get", key, api.get(&key.name)).await
    }

    /// Deletes the object with this UID only. It is no error if it is gone or was replaced.
    pub async fn delete<K: Written>(&self, namespace: &str, name: &str, uid: &str) -> Result<(), Error> {
        self.delete_within::<K>(namespace, name, uid, None, None).await
    }

    async fn delete_within<K: Written>(
        &self,
        namespace: &str,
        name: &str,
        uid: &str,
        resource_version: Option<String>,
        grace_period_seconds: Option<u32>,
    ) -> Result<(), Error> {
        let key = Key::new(namespace, name);
        tracing::info!(kind = %K::kind(&()), object = %key, uid, "deleting");
        let parameters = DeleteParams {
            preconditions: Some(Preconditions {
                uid: Some(uid.to_owned()),
                resource_version,
            }),
            grace_period_seconds,
            ..DeleteParams::default()
        };
        let api = self.api::<K>(namespace);
        match self.call::<K, _>("delete", &key, api.delete(name, &parameters)).await {
            Ok(_) => gate::deleted::<K>(&self.registry, key, uid.to_owned()),
            // The object is gone or was replaced.
            Err(Error::Conflict { .. }) => {}
            Err(error) if refusal::not_found(&error) => {}
            Err(error) => return Err(error),
        }
        Ok(())
    }

    /// Deletes the object with this UID without a grace period. Only for a pod on a node that is known to be gone.
    pub async fn delete_at_once<K: Written>(&self, namespace: &str, name: &str, uid: &str) -> Result<(), Error> {
        self.delete_within::<K>(namespace, name, uid, None, Some(0)).await
    }

    /// Sends a JSON merge patch. With `metadata.uid` or `metadata.resourceVersion` in it, it applies to that object or that
    /// version only.
    pub async fn patch<K: Written>(&self, namespace: &str, name: &str, merge_patch: Value) -> Result<K, Error> {
        let key = Key::new(namespace, name);
        tracing::info!(kind = %K::kind(&()), object = %key, patch = %merge_patch, "patching");
        let api = self.api::<K>(namespace);
        let parameters = self.parameters();
        let patched: K = self
            .call::<K, _>("patch", &key, api.patch(name, &parameters, &Patch::Merge(merge_patch)))
            .await?;
        gate::wrote(&self.registry, &patched);
        Ok(without_managed_fields(patched))
    }

    /// Like [`patch`](Self::patch), but it is no error if the object is gone or was replaced.
    pub async fn patch_if_there<K: Written>(
        &self,
        namespace: &str,
        name: &str,
        merge_patch: Value,
    ) -> Result<(), Error> {
        match self.patch::<K>(namespace, name, merge_patch).await {
            Ok(_) | Err(Error::Conflict { .. }) => Ok(()),
            Err(error) if refusal::not_found(&error) => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// Deletes the objects that this owner controls and that are not to be kept, and returns their number.
    pub async fn prune<K: Written>(
        &self,
        cache: &Cache<K>,
        owner_uid: &str,
        keep: &BTreeSet<String>,
    ) -> Result<usize, Error> {
        let mut deleted = 0;
        for object in cache.owned_by(owner_uid) {
            let key = Key::of(object.as_ref());
            let meta = object.meta();
            if keep.contains(&key.name) || meta.deletion_timestamp.is_some() {
                continue;
            }
            // Without a UID the delete could hit another object.
            let Some(uid) = &meta.uid else { continue };
            // Only this version: its owner may have changed in the meantime.
            let version = meta.resource_version.clone();
            self.delete_within::<K>(&key.namespace, &key.name, uid, version, None)
                .await?;
            deleted += 1;
        }
        Ok(deleted)
    }

    /// Writes the status if it differs from the observed object's, and returns whether it was written. The status of a
    /// deleted object is not written.
    pub async fn status<K: Written>(&self, observed: &K, status: Value) -> Result<bool, Error> {
        let key = Key::of(observed);
        let read = |object: &K| -> Result<Value, Error> {
            let mut value = serde_json::to_value(object).map_err(|error| not_serializable::<K>(&key, &error))?;
            Ok(value.get_mut("status").map(Value::take).unwrap_or_default())
        };
        let before = read(observed)?;
        let (sent, last) = (
            hash(&status.to_string()),
            self.memory.last_status::<K>(&key, observed.meta()),
        );
        // An older definition drops fields it does not know; sending them again would not change that.
        let accepted = last.is_some_and(|last| last.sent == sent && last.result == hash(&before.to_string()));
        let Some(change) = status::change(&before, status).filter(|_| !accepted) else {
            return Ok(false);
        };
        tracing::debug!(kind = %K::kind(&()), object = %key, status = %change, "writing the status");
        let patch = Patch::Merge(json!({"metadata": {"uid": observed.meta().uid}, "status": change}));
        let api = self.api::<K>(&key.namespace);
        let parameters = self.parameters();
        let call = api.patch_status(&key.name, &parameters, &patch);
        let Some(written) = self.write_status::<K>(&key, call).await? else {
            return Ok(false);
        };
        let result = hash(&read(&written)?.to_string());
        self.memory
            .wrote_status::<K>(&key, written.meta(), Exchange { sent, result });
        Ok(true)
    }

    /// Sends a patch of the status. `None` if the object is gone or was replaced.
    async fn write_status<K: Written>(
        &self,
        key: &Key,
        call: impl Future<Output = Result<K, kube::Error>>,
    ) -> Result<Option<K>, Error> {
        match self.call::<K, _>("status", key, call).await {
            Ok(written) => {
                gate::wrote(&self.registry, &written);
                Ok(Some(written))
            }
            Err(Error::Conflict { .. }) => Ok(None),
            Err(error) if refusal::not_found(&error) => Ok(None),
            Err(error) => Err(error),
        }
    }

    fn parameters(&self) -> PatchParams {
        PatchParams {
            field_manager: Some(self.manager.clone()),
            ..PatchParams::default()
        }
    }

    fn api<K: Written>(&self, namespace: &str) -> Api<K> {
        Api::namespaced(self.client.clone(), namespace)
    }

    async fn call<K: Written, T>(
        &self,
        verb: &'static str,
        key: &Key,
        call: impl Future<Output = Result<T, kube::Error>>,
    ) -> Result<T, Error> {
        let kind = K::kind(&());
        let response = tokio::time::timeout(REQUEST_TIMEOUT, call).await;
        let result = match response {
            Ok(Ok(object)) => Ok(object),
            Ok(Err(error)) => Err(refusal::read(verb, &kind, key, error)),
            Err(_) => Err(Error::Silent {
                verb,
                kind: kind.to_string(),
                key: key.clone(),
                after: REQUEST_TIMEOUT,
            }),
        };
        if verb != "get" {
            let label = result.as_ref().map_or_else(Error::label, |_| "ok");
            self.metrics.wrote(verb, &kind, label);
        }
        result
    }
}

fn taken<K: Written>(key: &Key, owner: String) -> Error {
    Error::Taken {
        kind: K::kind(&()).into_owned(),
        key: key.clone(),
        owner,
    }
}

fn not_serializable<K: Written>(key: &Key, error: &serde_json::Error) -> Error {
    Error::Refused {
        kind: K::kind(&()).into_owned(),
        key: key.clone(),
        message: error.to_string(),
    }
}

fn without_managed_fields<K: Resource>(mut object: K) -> K {
    object.meta_mut().managed_fields = None;
    object
}
