//! The only way to write to the API server.

mod desired;
mod memory;
mod pod_conditions;
mod refusal;
mod status;
mod takeover;
#[cfg(test)]
mod tests;

use std::{collections::BTreeSet, sync::Arc, time::Duration};

use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use kube::{
    Api, Client, Resource,
    api::{DeleteParams, Patch, PatchParams, PostParams, Preconditions},
    core::NamespaceResourceScope,
};
use serde_json::{Value, json};
use tokio::time::Instant;

use self::{
    desired::{Desired, content},
    memory::{Applied, Exchange, Memory, hash},
};
use super::{
    Cache, Cached, Caches, Context, Error, Key, Metrics, Trigger,
    compare::first_gap,
    extras::extras,
    field_sets::{FieldSets, MANAGER_PREFIX},
    gate,
    ownership::Ownership,
};

/// A call takes milliseconds; with the client's own retries on a busy API server seconds.
const ANSWER_WITHIN: Duration = Duration::from_secs(20);

/// How often the API server is asked whether a name is still taken. The end of the object that has it is usually seen at once.
pub const TAKEN_AGAIN: Duration = Duration::from_mins(1);

/// How often an object may be overtaken while it is put right.
const OVERTAKEN: u32 = 3;

/// A kind that can be written: namespaced, with a cache.
pub trait Written: Cached + Resource<Scope = NamespaceResourceScope> {}
impl<K: Cached + Resource<Scope = NamespaceResourceScope>> Written for K {}

/// What became of a create.
#[derive(Debug, Clone, PartialEq)]
pub enum Created<K> {
    New(K),
    /// An object of that name was there already; it was left alone.
    Exists,
}

/// One kind's writes, under its own field manager. A clone shares what it remembers.
#[derive(Clone)]
pub struct Writer {
    client: Client,
    caches: Caches,
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
    /// `name` is the kind's [`NAME`](super::Reconciler::NAME).
    pub fn new(context: &Context, name: &'static str) -> Self {
        Self {
            client: context.client.clone(),
            caches: context.caches.clone(),
            metrics: context.metrics.clone(),
            manager: format!("{MANAGER_PREFIX}{name}"),
            trigger: context.triggers.of(name),
            memory: Arc::default(),
        }
    }

    /// Brings an object to what is desired. It is created if there is none of that name; one that is there is changed, by a
    /// forced server-side apply, only if it has one of the desired owners: else it is [`Error::Taken`]. Fields that an
    /// earlier apply set and this one does not are removed. Where a list or map is ours alone, what others added to it is
    /// removed too. No request is made when nothing would change; the object is then the cached one.
    pub async fn apply<K: Written>(&self, desired: &K) -> Result<K, Error> {
        self.apply_shared(desired, None).await
    }

    /// Like [`apply`](Self::apply), of an object that may also have this owner, though it is not desired.
    pub async fn apply_shared<K: Written>(&self, desired: &K, owner: Option<OwnerReference>) -> Result<K, Error> {
        let key = Key::of(desired);
        let kind = K::kind(&());
        let mut desired = Desired::of(desired).map_err(|error| unsendable::<K>(&key, &error))?;
        desired.owners.extend(owner);
        let cache = K::cache(&self.caches);
        let Some(observed) = cache.get(&key.namespace, &key.name) else {
            return Box::pin(self.apply_first(&key, &desired)).await;
        };
        let field_set = cache.field_set(&key, &self.manager);
        self.check_owner(observed.as_ref(), &desired.owners, field_set.is_some())?;
        if field_set.is_none() {
            Box::pin(self.take_over::<K>(&key, observed.meta().uid.as_deref(), None)).await?;
        }
        let value = serde_json::to_value(observed.as_ref()).map_err(|error| unsendable::<K>(&key, &error))?;
        let gap = first_gap(&desired.value, &value);
        let last = self.memory.last_applied::<K>(&key, observed.meta());
        let is_last = last.is_some_and(|last| {
            last.exchange.sent == desired.hash && field_set.is_some() && last.field_set == field_set
        });
        // Where something is missing although nothing changed since, the API server does not take it.
        let taken = || last.is_some_and(|last| last.exchange.result == content(&value));
        if is_last && (gap.is_none() || taken()) {
            let removed = self.remove_extras(&key, &desired, observed.as_ref(), &value).await?;
            if removed.is_none() {
                self.metrics.skipped(&kind);
            }
            return Ok(removed.unwrap_or_else(|| K::clone(&observed)));
        }
        if let Some(field) = gap {
            tracing::info!(%kind, object = %key, field, "Changing");
        } else {
            // Fields may have to go that were ours before; after a start this is asked once per object.
            tracing::debug!(%kind, object = %key, "Confirming");
        }
        self.send(&key, observed.meta().uid.as_deref(), &desired).await
    }

    /// Of an object that is not in the cache: there is none, nothing about it is ours, or the watch lags.
    async fn apply_first<K: Written>(&self, key: &Key, desired: &Desired) -> Result<K, Error> {
        self.check_contested::<K>(key)?;
        tracing::info!(kind = %K::kind(&()), object = %key, "Creating");
        let found: K = match self.post::<K>(key, &desired.value).await {
            Err(error) if refusal::already_exists(&error) => {
                let api = self.api::<K>(&key.namespace);
                let found = self.call::<K, _>("get", key, api.get(&key.name)).await?;
                let field_sets = FieldSets::read(found.meta().managed_fields.as_deref().unwrap_or_default());
                self.check_owner(&found, &desired.owners, field_sets.of(&self.manager).is_some())?;
                found
            }
            created => created?,
        };
        let uid = found.meta().uid.clone();
        // What is created belongs to us as an update, and an update removes nothing later.
        self.take_over(key, uid.as_deref(), Some(found)).await?;
        self.send(key, uid.as_deref(), desired).await
    }

    /// Whether this name was seen to be taken a short time ago. It is not tried again so soon.
    pub fn check_contested<K: Written>(&self, key: &Key) -> Result<(), Error> {
        let owner = K::cache(&self.caches).contested(key, Instant::now());
        owner.map_or(Ok(()), |owner| Err(taken::<K>(key, owner)))
    }

    /// Whether what a create found in its place is one of these owners' children.
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
                let (until, waiting) = (Instant::now() + TAKEN_AGAIN, owners.iter().map(wakes).collect());
                if K::cache(&self.caches).contest(&key, owner.clone(), until, waiting) {
                    tracing::warn!(kind = %K::kind(&()), object = %key, "Leaving an existing object alone: it {owner}");
                }
                Err(taken::<K>(&key, owner))
            }
        }
    }

    /// Applies to exactly the object with this UID.
    async fn send<K: Written>(&self, key: &Key, uid: Option<&str>, desired: &Desired) -> Result<K, Error> {
        let parameters = PatchParams::apply(&self.manager).force();
        let api = self.api::<K>(&key.namespace);
        let patch = Patch::Apply(desired.for_uid(uid.unwrap_or_default()));
        let mut applied: K = self
            .call::<K, _>("apply", key, api.patch(&key.name, &parameters, &patch))
            .await?;
        gate::wrote(&self.caches, &applied);
        let field_sets = FieldSets::read(applied.meta().managed_fields.as_deref().unwrap_or_default());
        applied.trim();
        let value = serde_json::to_value(&applied).map_err(|error| unsendable::<K>(key, &error))?;
        let memory = Applied {
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

    /// Takes out what others added where it does not belong. `None` when there is nothing, or when it came back at once
    /// (an admission webhook puts it there): then it is let be, else both would write for ever.
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
        tracing::info!(%kind, object = %key, fields = found.join(" "), "Removing what others added");
        let read = |object: &K| {
            let value = serde_json::to_value(object).map_err(|error| unsendable::<K>(key, &error))?;
            Ok::<_, Error>(extras(&kind, &desired.value, &value))
        };
        let mut attempts = 1..=OVERTAKEN;
        let cleaned = loop {
            match self.remove_once::<K>(key, version.as_deref(), &found).await {
                // Its controller writes its status at any moment.
                Err(Error::Conflict { .. }) if attempts.next().is_some() => {
                    let api = self.api::<K>(&key.namespace);
                    let now = self.call::<K, _>("get", key, api.get(&key.name)).await?;
                    version.clone_from(&now.meta().resource_version);
                    found = read(&now)?;
                }
                cleaned => break cleaned?,
            }
        };
        gate::wrote(&self.caches, &cleaned);
        let left = read(&cleaned)?;
        if !left.is_empty() {
            tracing::warn!(%kind, object = %key, fields = left.join(" "), "What others added came back; it is let be");
            self.memory.futile::<K>(key, cleaned.meta(), &left);
        }
        Ok(Some(without_managed_fields(cleaned)))
    }

    /// Removes from exactly this version: in another one the same path may lead to something else.
    async fn remove_once<K: Written>(&self, key: &Key, version: Option<&str>, paths: &[String]) -> Result<K, Error> {
        let removals = paths.iter().map(|path| json!({"op": "remove", "path": path}));
        self.patch_version(key, version, removals.collect()).await
    }

    /// A JSON patch of exactly this version.
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
            serde_json::from_value(operations.into()).map_err(|error| unsendable::<K>(key, &error))?;
        let (api, parameters, patch) = (
            self.api::<K>(&key.namespace),
            self.parameters(),
            Patch::<()>::Json(patch),
        );
        let call = api.patch(&key.name, &parameters, &patch);
        self.call::<K, _>("patch", key, call).await.map_err(refusal::of_a_test)
    }

    /// Makes an object that must be new. The answer to a lost request is `Exists` too: look at the object before you
    /// take it for somebody else's.
    pub async fn create<K: Written>(&self, object: &K) -> Result<Created<K>, Error> {
        let value = serde_json::to_value(object).map_err(|error| unsendable::<K>(&Key::of(object), &error))?;
        self.create_json(&value).await
    }

    /// Like [`create`](Self::create), of a manifest as it is: fields that our types do not know reach the API server.
    pub async fn create_json<K: Written>(&self, manifest: &Value) -> Result<Created<K>, Error> {
        let meta = |field: &str| manifest.get("metadata")?.get(field)?.as_str();
        let key = Key::new(meta("namespace").unwrap_or_default(), meta("name").unwrap_or_default());
        tracing::info!(kind = %K::kind(&()), object = %key, "Creating");
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
        gate::wrote(&self.caches, &created);
        Ok(created)
    }

    /// The object of this name as it is now, for one that exists although it is not in the cache.
    pub async fn look<K: Written>(&self, namespace: &str, name: &str) -> Result<K, Error> {
        let key = Key::new(namespace, name);
        let api = self.api::<K>(namespace);
        let found = self.call::<K, _>("get", &key, api.get(name)).await?;
        Ok(without_managed_fields(found))
    }

    /// Deletes exactly the object with this UID. It being gone already, or being another one, is fine.
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
        tracing::info!(kind = %K::kind(&()), object = %key, uid, "Deleting");
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
            Ok(_) => gate::deleted::<K>(&self.caches, key, uid.to_owned()),
            // Both are the answer to "this object must not be": it is gone, or what is there is another one.
            Err(Error::Conflict { .. }) => {}
            Err(error) if refusal::not_found(&error) => {}
            Err(error) => return Err(error),
        }
        Ok(())
    }

    /// Deletes exactly the object with this UID without waiting for anybody to confirm its end. Only for a pod on a node of
    /// which it is known that it is gone.
    pub async fn delete_at_once<K: Written>(&self, namespace: &str, name: &str, uid: &str) -> Result<(), Error> {
        self.delete_within::<K>(namespace, name, uid, None, Some(0)).await
    }

    /// A JSON merge patch. Put `metadata.uid` or `metadata.resourceVersion` into it where it matters which object, or
    /// which version of it, is meant.
    pub async fn patch<K: Written>(&self, namespace: &str, name: &str, merge_patch: Value) -> Result<K, Error> {
        let key = Key::new(namespace, name);
        tracing::info!(kind = %K::kind(&()), object = %key, patch = %merge_patch, "Patching");
        let api = self.api::<K>(namespace);
        let parameters = self.parameters();
        let patched: K = self
            .call::<K, _>("patch", &key, api.patch(name, &parameters, &Patch::Merge(merge_patch)))
            .await?;
        gate::wrote(&self.caches, &patched);
        Ok(without_managed_fields(patched))
    }

    /// Like [`patch`](Self::patch), of an object that needs nothing any more if it is gone, or another one by now.
    pub async fn patch_if_there<K: Written>(
        &self,
        namespace: &str,
        name: &str,
        merge_patch: Value,
    ) -> Result<(), Error> {
        match self.patch::<K>(namespace, name, merge_patch).await {
            Ok(_) | Err(Error::Conflict { .. }) => Ok(()),
            Err(Error::Api { source, .. }) if matches!(*source, kube::Error::Api(ref status) if status.code == 404) => {
                Ok(())
            }
            Err(error) => Err(error),
        }
    }

    /// Deletes the objects this owner controls whose names are not to be kept, and says how many.
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
            // Without a UID there is no saying which object would go.
            let Some(uid) = &meta.uid else { continue };
            // Exactly as it was seen: somebody may have taken it from its owner meanwhile.
            let version = meta.resource_version.clone();
            self.delete_within::<K>(&key.namespace, &key.name, uid, version, None)
                .await?;
            deleted += 1;
        }
        Ok(deleted)
    }

    /// Writes the status if it differs from the observed object's, and says whether it did. An object that is gone has
    /// none.
    pub async fn status<K: Written>(&self, observed: &K, status: Value) -> Result<bool, Error> {
        let key = Key::of(observed);
        let read = |object: &K| -> Result<Value, Error> {
            let mut value = serde_json::to_value(object).map_err(|error| unsendable::<K>(&key, &error))?;
            Ok(value.get_mut("status").map(Value::take).unwrap_or_default())
        };
        let before = read(observed)?;
        let (sent, last) = (
            hash(&status.to_string()),
            self.memory.last_status::<K>(&key, observed.meta()),
        );
        // An older definition drops fields it does not know; sending them again would not bring them.
        let taken = last.is_some_and(|last| last.sent == sent && last.result == hash(&before.to_string()));
        let Some(change) = status::change(&before, status).filter(|_| !taken) else {
            return Ok(false);
        };
        tracing::debug!(kind = %K::kind(&()), object = %key, status = %change, "Writing status");
        let patch = Patch::Merge(json!({"metadata": {"uid": observed.meta().uid}, "status": change}));
        let api = self.api::<K>(&key.namespace);
        let parameters = self.parameters();
        let call = api.patch_status(&key.name, &parameters, &patch);
        match self.call::<K, _>("status", &key, call).await {
            Ok(written) => {
                gate::wrote(&self.caches, &written);
                let result = hash(&read(&written)?.to_string());
                self.memory
                    .wrote_status::<K>(&key, written.meta(), Exchange { sent, result });
                Ok(true)
            }
            Err(Error::Conflict { .. }) => Ok(false),
            Err(error) if refusal::not_found(&error) => Ok(false),
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
        let answer = tokio::time::timeout(ANSWER_WITHIN, call).await;
        let result = match answer {
            Ok(Ok(object)) => Ok(object),
            Ok(Err(error)) => Err(refusal::read(verb, &kind, key, error)),
            Err(_) => Err(Error::Silent {
                verb,
                kind: kind.to_string(),
                key: key.clone(),
                after: ANSWER_WITHIN,
            }),
        };
        if verb != "get" {
            let word = result.as_ref().map_or_else(Error::label, |_| "ok");
            self.metrics.wrote(verb, &kind, word);
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

fn unsendable<K: Written>(key: &Key, error: &serde_json::Error) -> Error {
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
