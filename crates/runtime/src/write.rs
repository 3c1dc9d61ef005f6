//! Writes to the API server. Everything is written through a [`Writer`].

mod desired;
mod pod_conditions;
mod status;
mod takeover;
#[cfg(test)]
mod tests;

use std::{
    any::TypeId,
    collections::{BTreeSet, HashMap},
    fmt::Debug,
    hash::Hash,
    sync::{Arc, Mutex},
    time::Duration,
};

use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use kube::{
    Api, Resource,
    api::{DeleteParams, Patch, PatchParams, PostParams, Preconditions},
    core::NamespaceResourceScope,
};
use serde::Serialize;
use serde_json::{Value, json};

use self::desired::{Desired, content};
use crate::{
    Cache, Context, Error, Key, Object, Trigger,
    cache::same_version,
    extras::extras,
    field_sets::{MANAGER_PREFIX, field_sets},
    gate, hash, lock,
    metrics::of_kind,
    ownership::Ownership,
};

/// A request takes milliseconds; with the client's own retries on a busy API server seconds.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(20);

/// How often a taken name is tried again. The deletion of the object that has it is usually noticed at once.
pub const TAKEN_RETRY: Duration = Duration::from_mins(1);

/// How many conflicts with other writers are retried at once.
const CONFLICT_RETRIES: u32 = 3;

/// With more exchanges than this the memory is cleared, which costs one request per object.
const MAX_REMEMBERED: usize = 100_000;

/// A kind that can be written: a namespaced one.
pub trait Written: Object + Resource<Scope = NamespaceResourceScope> {}
impl<K: Object + Resource<Scope = NamespaceResourceScope>> Written for K {}

/// Writes for one kind, under a field manager of its own. A clone shares its memory.
#[derive(Debug, Clone)]
pub struct Writer {
    context: Context,
    manager: String,
    /// Wakes objects of the kind.
    trigger: Trigger,
    last: Arc<Mutex<LastExchanges>>,
}

/// The hash of the last exchange by verb, kind and object: see [`Writer::is_last`].
type LastExchanges = HashMap<(&'static str, TypeId, Key), u64>;

impl Writer {
    /// The writer of the children of kind `K`: the field manager is `slurm-operator/` with the kind in lower case.
    pub fn new<K: Object>(context: &Context) -> Self {
        Self {
            context: context.clone(),
            manager: format!("{MANAGER_PREFIX}{}", K::kind(&()).to_lowercase()),
            trigger: context.triggers.of::<K>(),
            last: Arc::default(),
        }
    }

    /// Applies an object. It is created if there is none of that name; an existing one is changed, by a forced server-side
    /// apply, only if it has one of the desired owners: else the result is [`Error::Taken`]. Fields that an earlier apply
    /// set and this one does not are removed, and so are foreign entries of lists and maps that are ours alone. No request
    /// is made if the cached object is as the same apply left it.
    pub async fn apply<K: Written>(&self, desired: &K) -> Result<K, Error> {
        self.apply_shared(desired, None).await
    }

    /// Like [`apply`](Self::apply), for an object that may also have this owner, though the owner is not desired.
    pub async fn apply_shared<K: Written>(&self, desired: &K, owner: Option<OwnerReference>) -> Result<K, Error> {
        let kind = K::kind(&());
        let mut desired = Desired::of(desired)?;
        desired.owners.extend(owner);
        let key = &desired.key;
        let cache = self.cache::<K>();
        let Some(observed) = cache.get(&key.namespace, &key.name) else {
            return Box::pin(self.apply_first(&desired)).await;
        };
        let observed = observed.as_ref();
        let uid = observed.meta().uid.as_deref();
        let field_set = cache.field_set(key, &self.manager);
        self.check_owner(observed, &desired.owners, field_set.is_some())?;
        if field_set.is_none() {
            Box::pin(self.take_over::<K>(key, uid, None)).await?;
        }
        let before = content(observed)?;
        if field_set.is_some() && self.is_last("apply", observed, &desired.exchange(&before, field_set)) {
            self.context.metrics.skipped.get_or_create(&of_kind(&kind)).inc();
            return Ok(observed.clone());
        }
        tracing::debug!(%kind, object = %key, "applying");
        let applied: K = Box::pin(self.send(uid, &desired)).await?;
        // After a start every object is applied once, because fields that were ours before may have to be removed.
        if let Some(first) = json_patch::diff(&before, &content(&applied)?).first() {
            tracing::info!(%kind, object = %key, field = %first.path(), "changed");
        }
        Ok(applied)
    }

    /// Applies an object that is not in the cache: it does not exist, nothing about it is ours, or the watch lags.
    async fn apply_first<K: Written>(&self, desired: &Desired) -> Result<K, Error> {
        let key = &desired.key;
        self.check_contested::<K>(key)?;
        tracing::info!(kind = %K::kind(&()), object = %key, "creating");
        let found: K = match self.post::<K>(key, &desired.value).await {
            Err(error) if error.has_code(409) => {
                let found = self.get::<K>(&key.namespace, &key.name).await?;
                let applied = field_sets(found.meta()).contains_key(&self.manager);
                self.check_owner(&found, &desired.owners, applied)?;
                found
            }
            created => created?,
        };
        let uid = found.meta().uid.clone();
        // The fields of a create count as an update, and a later apply would not remove them.
        self.take_over(key, uid.as_deref(), Some(found)).await?;
        self.send(uid.as_deref(), desired).await
    }

    /// Fails if this name was seen to be taken a short time ago.
    pub fn check_contested<K: Written>(&self, key: &Key) -> Result<(), Error> {
        let owner = self.cache::<K>().contested(key, self.context.clock.host().instant());
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
            Ownership::Leftover { owner } => {
                let object = describe::<K>(&key);
                Err(Error::Leftover { object, owner })
            }
            Ownership::Foreign { owner } => {
                let wakes = |owner: &OwnerReference| (self.trigger.clone(), Key::new(&key.namespace, &owner.name));
                let until = self.context.clock.host().instant() + TAKEN_RETRY;
                let waiting = owners.iter().map(wakes).collect();
                if self.cache::<K>().contest(&key, owner.clone(), until, waiting) {
                    tracing::warn!(kind = %K::kind(&()), object = %key, "leaving an existing object unchanged: it {owner}");
                }
                Err(taken::<K>(&key, owner))
            }
        }
    }

    /// Applies to the object with this UID only.
    async fn send<K: Written>(&self, uid: Option<&str>, desired: &Desired) -> Result<K, Error> {
        let key = &desired.key;
        let parameters = PatchParams::apply(&self.manager).force();
        let api = self.api::<K>(&key.namespace);
        let patch = Patch::Apply(desired.for_uid(uid.unwrap_or_default()));
        let applied = self
            .write("apply", key, api.patch(&key.name, &parameters, &patch))
            .await?;
        let mut applied = self.remove_extras(desired, applied).await?;
        let field_set = field_sets(applied.meta()).get(&self.manager).copied();
        self.cache::<K>().trim(&mut applied);
        let exchange = desired.exchange(&content(&applied)?, field_set);
        self.remember("apply", &applied, &exchange);
        Ok(applied)
    }

    /// Removes foreign fields from lists and maps that are ours alone. Those that are re-added at once (by an admission
    /// webhook) stay: removing them again would never end.
    async fn remove_extras<K: Written>(&self, desired: &Desired, mut object: K) -> Result<K, Error> {
        let (key, kind) = (&desired.key, K::kind(&()));
        let read = |object: &K| Ok::<_, Error>(extras(&kind, &desired.value, &to_value(object)?));
        let mut found = read(&object)?;
        if found.is_empty() {
            return Ok(object);
        }
        tracing::info!(%kind, object = %key, fields = found.join(" "), "removing foreign fields");
        let mut retries = 1..=CONFLICT_RETRIES;
        let cleaned: K = loop {
            let removals = found.iter().map(|path| json!({"op": "remove", "path": path}));
            let version = object.meta().resource_version.as_deref();
            match self.patch_version(key, version, removals.collect()).await {
                // The object's controller may write its status at any moment.
                Err(Error::Conflict { .. }) if retries.next().is_some() => {
                    object = self.get::<K>(&key.namespace, &key.name).await?;
                    found = read(&object)?;
                }
                cleaned => break cleaned?,
            }
        };
        let left = read(&cleaned)?;
        if !left.is_empty() {
            tracing::warn!(%kind, object = %key, fields = left.join(" "), "foreign fields were re-added; leaving them");
        }
        Ok(cleaned)
    }

    /// Sends a JSON patch for this version only: in another one the same path may be another field.
    async fn patch_version<K: Written>(
        &self,
        key: &Key,
        version: Option<&str>,
        mut operations: Vec<Value>,
    ) -> Result<K, Error> {
        let test = json!({"op": "test", "path": "/metadata/resourceVersion", "value": version});
        operations.insert(0, test);
        let patch = serde_json::from_value(operations.into()).map_err(|error| not_serializable::<K>(key, &error))?;
        let patched = self.send_patch(key, &Patch::Json::<()>(patch)).await;
        patched.map_err(|error| match error {
            // The API server reports a failed test as invalid.
            Error::Refused { object, .. } => Error::Conflict { verb: "patch", object },
            error => error,
        })
    }

    /// Creates an object. `None` if one of that name exists, which is left unchanged. After a lost response a retry returns
    /// `None` too: check the object's owner before treating it as foreign.
    pub async fn create<K: Written>(&self, object: &K) -> Result<Option<K>, Error> {
        self.create_json(&to_value(object)?).await
    }

    /// Like [`create`](Self::create), for a manifest: fields that our types do not know reach the API server.
    pub async fn create_json<K: Written>(&self, manifest: &Value) -> Result<Option<K>, Error> {
        let meta = |field: &str| manifest.get("metadata")?.get(field)?.as_str();
        let key = Key::new(meta("namespace").unwrap_or_default(), meta("name").unwrap_or_default());
        tracing::info!(kind = %K::kind(&()), object = %key, "creating");
        match self.post::<K>(&key, manifest).await {
            Err(error) if error.has_code(409) => Ok(None),
            created => created.map(Some),
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
            self.context.client.request::<K>(request).await
        };
        self.write("create", key, call).await
    }

    /// Gets the object of this name from the API server, for one that exists although it is not in the cache.
    pub async fn get<K: Written>(&self, namespace: &str, name: &str) -> Result<K, Error> {
        let api = self.api::<K>(namespace);
        self.call::<K, _>("get", &Key::new(namespace, name), api.get(name))
            .await
    }

    /// Deletes the object with this UID only. It is no error if it is gone or was replaced.
    pub async fn delete<K: Written>(&self, namespace: &str, name: &str, uid: &str) -> Result<(), Error> {
        let deleted = self.send_delete::<K>(Key::new(namespace, name), uid, None, None);
        if_there(deleted.await).map(drop)
    }

    /// Deletes an object that is as it was observed, else the result is [`Error::Conflict`]. A grace period of 0 is only
    /// for a pod on a node that is known to be gone.
    pub async fn delete_unchanged<K: Written>(&self, observed: &K, grace_period: Option<u32>) -> Result<(), Error> {
        let (key, meta) = (Key::of(observed), observed.meta());
        // An empty UID is that of no object.
        let uid = meta.uid.as_deref().unwrap_or_default();
        self.send_delete::<K>(key, uid, meta.resource_version.clone(), grace_period)
            .await
    }

    /// Reads an object from the API server, since the watch may lag: [`Error::Conflict`] unless it is as it was observed.
    pub async fn check_unchanged<K: Written>(&self, observed: &K) -> Result<(), Error> {
        let key = Key::of(observed);
        let found = if_there(self.get::<K>(&key.namespace, &key.name).await)?;
        let is_same = found.is_some_and(|found| same_version(&found, observed));
        let (verb, object) = ("change", describe::<K>(&key));
        is_same.then_some(()).ok_or(Error::Conflict { verb, object })
    }

    async fn send_delete<K: Written>(
        &self,
        key: Key,
        uid: &str,
        resource_version: Option<String>,
        grace_period_seconds: Option<u32>,
    ) -> Result<(), Error> {
        tracing::info!(kind = %K::kind(&()), object = %key, uid, "deleting");
        let parameters = DeleteParams {
            preconditions: Some(Preconditions {
                uid: Some(uid.to_owned()),
                resource_version,
            }),
            grace_period_seconds,
            ..DeleteParams::default()
        };
        let api = self.api::<K>(&key.namespace);
        let deleted = self
            .call::<K, _>("delete", &key, api.delete(&key.name, &parameters))
            .await;
        match deleted {
            Err(error) if !error.has_code(404) => return Err(error),
            Err(_) => {}
            Ok(_) => gate::deleted::<K>(&self.context.registry, key, uid.to_owned()),
        }
        Ok(())
    }

    /// Sends a JSON merge patch. With `metadata.uid` or `metadata.resourceVersion` in it, it applies to that object or that
    /// version only.
    pub async fn patch<K: Written>(&self, namespace: &str, name: &str, merge_patch: Value) -> Result<(), Error> {
        let key = Key::new(namespace, name);
        tracing::info!(kind = %K::kind(&()), object = %key, patch = %merge_patch, "patching");
        let patched = self.send_patch::<K>(&key, &Patch::Merge(merge_patch)).await;
        patched.map(drop)
    }

    /// Like [`patch`](Self::patch), but it is no error if the object is gone or was replaced.
    pub async fn patch_if_there<K: Written>(
        &self,
        namespace: &str,
        name: &str,
        merge_patch: Value,
    ) -> Result<(), Error> {
        if_there(self.patch::<K>(namespace, name, merge_patch).await).map(drop)
    }

    /// Deletes the objects that this owner controls and that are not to be kept.
    pub async fn prune<K: Written>(
        &self,
        cache: &Cache<K>,
        owner_uid: &str,
        keep: &BTreeSet<String>,
    ) -> Result<(), Error> {
        for object in cache.owned_by(owner_uid) {
            let key = Key::of(object.as_ref());
            if keep.contains(&key.name) || object.meta().deletion_timestamp.is_some() {
                continue;
            }
            // Only this version: its owner may have changed in the meantime.
            if_there(self.delete_unchanged(object.as_ref(), None).await)?;
        }
        Ok(())
    }

    /// Writes the status if it differs from the observed object's, and returns whether it was written. The status of a
    /// deleted object is not written.
    pub async fn status<K: Written>(&self, observed: &K, status: Value) -> Result<bool, Error> {
        let key = Key::of(observed);
        let read = |object: &K| -> Result<Value, Error> {
            Ok(to_value(object)?.get_mut("status").map(Value::take).unwrap_or_default())
        };
        let (before, sent) = (read(observed)?, status.to_string());
        let is_last = self.is_last("status", observed, &(&sent, before.to_string()));
        let Some(change) = status::change(&before, status).filter(|_| !is_last) else {
            return Ok(false);
        };
        tracing::debug!(kind = %K::kind(&()), object = %key, status = %change, "writing the status");
        let patch = Patch::Merge(json!({"metadata": {"uid": observed.meta().uid}, "status": change}));
        let Some(written) = self.write_status::<K>(&key, &patch).await? else {
            return Ok(false);
        };
        self.remember("status", &written, &(&sent, read(&written)?.to_string()));
        Ok(true)
    }

    /// Sends a patch of the status. `None` if the object is gone or was replaced.
    async fn write_status<K: Written>(&self, key: &Key, patch: &Patch<Value>) -> Result<Option<K>, Error> {
        let (api, parameters) = (self.api::<K>(&key.namespace), self.parameters());
        if_there(
            self.write("status", key, api.patch_status(&key.name, &parameters, patch))
                .await,
        )
    }

    async fn send_patch<K: Written>(&self, key: &Key, patch: &Patch<impl Serialize + Debug>) -> Result<K, Error> {
        let (api, parameters) = (self.api::<K>(&key.namespace), self.parameters());
        self.write("patch", key, api.patch(&key.name, &parameters, patch)).await
    }

    fn parameters(&self) -> PatchParams {
        PatchParams {
            field_manager: Some(self.manager.clone()),
            ..PatchParams::default()
        }
    }

    fn api<K: Written>(&self, namespace: &str) -> Api<K> {
        Api::namespaced(self.context.client.clone(), namespace)
    }

    fn cache<K: Written>(&self) -> Cache<K> {
        self.context.registry.cache()
    }

    /// Whether the last write of this verb to the object was this exchange: what was sent, and the result. If the same is
    /// sent to an object that is as that write left it, nothing changes, even if the result lacks a field: an older API
    /// server or definition drops fields it does not know.
    fn is_last<K: Written>(&self, verb: &'static str, object: &K, exchange: &impl Hash) -> bool {
        let about = (verb, TypeId::of::<K>(), Key::of(object));
        lock(&self.last).get(&about) == Some(&hash(&(&object.meta().uid, exchange)))
    }

    fn remember<K: Written>(&self, verb: &'static str, written: &K, exchange: &impl Hash) {
        let mut last = lock(&self.last);
        if last.len() >= MAX_REMEMBERED {
            last.clear();
        }
        let about = (verb, TypeId::of::<K>(), Key::of(written));
        last.insert(about, hash(&(&written.meta().uid, exchange)));
    }

    /// Sends a write. The next reconcile waits for it.
    async fn write<K: Written>(
        &self,
        verb: &'static str,
        key: &Key,
        call: impl Future<Output = Result<K, kube::Error>>,
    ) -> Result<K, Error> {
        let written = self.call::<K, _>(verb, key, call).await?;
        gate::wrote(&self.context.registry, &written);
        Ok(written)
    }

    async fn call<K: Written, T>(
        &self,
        verb: &'static str,
        key: &Key,
        call: impl Future<Output = Result<T, kube::Error>>,
    ) -> Result<T, Error> {
        let object = || describe::<K>(key);
        // Another process may lead when the lease has expired, and no write may be under way by then. A read needs no lease.
        let after = match self.context.fence.remaining() {
            _ if verb == "get" => REQUEST_TIMEOUT,
            Some(left) => left.min(REQUEST_TIMEOUT),
            None => return Err(Error::NotLeading { verb, object: object() }),
        };
        let result = tokio::select! {
            // A process that was stopped notices the deadline before it sends anything.
            biased;
            () = tokio::time::sleep(after) => Err(Error::Silent { verb, object: object(), after }),
            result = call => result.map_err(|error| Error::of_request(verb, object(), error)),
        };
        if verb != "get" {
            let label = result.as_ref().map_or_else(Error::label, |_| "ok");
            self.context.metrics.wrote(verb, &K::kind(&()), label);
        }
        result
    }
}

/// The result of a write. `None` if the object is gone or was replaced.
fn if_there<T>(result: Result<T, Error>) -> Result<Option<T>, Error> {
    match result {
        Err(Error::Conflict { .. }) => Ok(None),
        Err(error) if error.has_code(404) => Ok(None),
        result => result.map(Some),
    }
}

fn describe<K: Written>(key: &Key) -> String {
    format!("{} {key}", K::kind(&()))
}

fn taken<K: Written>(key: &Key, owner: String) -> Error {
    let object = describe::<K>(key);
    Error::Taken { object, owner }
}

fn to_value<K: Written>(object: &K) -> Result<Value, Error> {
    serde_json::to_value(object).map_err(|error| not_serializable::<K>(&Key::of(object), &error))
}

fn not_serializable<K: Written>(key: &Key, error: &serde_json::Error) -> Error {
    Error::Refused {
        object: describe::<K>(key),
        message: error.to_string(),
    }
}
