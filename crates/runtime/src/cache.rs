//! The objects of one kind as its watch has seen them. Readers never wait; one intake per watch writes.

use std::{
    collections::{BTreeMap, HashMap, HashSet},
    sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard},
};

use kube::{Resource, core::error_boundary::InvalidObject, runtime::watcher::Event};
use tokio::{sync::watch, time::Instant};

use crate::{
    Delta, Key, Object, Rules, Trigger,
    field_sets::FieldSets,
    ownership::{Ownership, reference},
};

/// An annotation that holds a copy of the whole object, which nothing here reads.
const LAST_APPLIED: &str = "kubectl.kubernetes.io/last-applied-configuration";

/// The objects of one kind. A clone shares them.
#[derive(Debug)]
pub struct Cache<K>(Arc<Shared<K>>);

#[derive(Debug)]
struct Shared<K> {
    state: RwLock<State<K>>,
    rules: Rules<K>,
    /// Notifies [`Cache::wait_until`] of every event.
    events: watch::Sender<()>,
}

#[derive(Debug)]
struct State<K> {
    /// By namespace, then by name.
    objects: BTreeMap<String, BTreeMap<String, Entry<K>>>,
    /// Keys of the objects that have an owner reference to this UID.
    dependents: HashMap<String, HashSet<Key>>,
    undecodable: BTreeMap<Key, String>,
    /// Objects of other owners whose names are wanted.
    contested: HashMap<Key, Contested>,
    /// The highest resourceVersion any event carried.
    seen: ResourceVersion,
}

/// An object of another owner that has a wanted name.
#[derive(Debug)]
struct Contested {
    /// Its owner, as a predicate.
    owner: String,
    /// When to request the object again: it is not in the cache if nothing about it is ours.
    until: Instant,
    /// The objects to wake when it is deleted.
    waiting: Vec<(Trigger, Key)>,
}

#[derive(Debug)]
struct Entry<K> {
    object: Arc<K>,
    field_sets: FieldSets,
}

/// Resource versions of one kind grow, and since Kubernetes 1.35 clients may compare them.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct ResourceVersion(u128);

impl ResourceVersion {
    pub(super) fn parse(text: &str) -> Option<Self> {
        text.parse().ok().map(Self)
    }

    pub(super) fn of(object: &impl Resource) -> Option<Self> {
        object.meta().resource_version.as_deref().and_then(Self::parse)
    }
}

impl<K> Clone for Cache<K> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<K> Default for Cache<K> {
    fn default() -> Self {
        Self::new(Rules::default())
    }
}

impl<K> Cache<K> {
    /// An empty cache with these rules.
    pub fn new(rules: Rules<K>) -> Self {
        Self(Arc::new(Shared {
            state: RwLock::new(State {
                objects: BTreeMap::new(),
                dependents: HashMap::new(),
                undecodable: BTreeMap::new(),
                contested: HashMap::new(),
                seen: ResourceVersion::default(),
            }),
            rules,
            events: watch::Sender::new(()),
        }))
    }

    pub(crate) fn rules(&self) -> &Rules<K> {
        &self.0.rules
    }

    /// The object of this name, if it is cached. A cluster-scoped object has an empty namespace.
    pub fn get(&self, namespace: &str, name: &str) -> Option<Arc<K>> {
        self.read()
            .entry(namespace, name)
            .map(|entry| Arc::clone(&entry.object))
    }

    /// The objects of a namespace, by name.
    pub fn list(&self, namespace: &str) -> Vec<Arc<K>> {
        let state = self.read();
        let objects = state.objects.get(namespace).into_iter().flat_map(BTreeMap::values);
        objects.map(|entry| Arc::clone(&entry.object)).collect()
    }

    /// All objects, by namespace and name.
    pub fn all(&self) -> Vec<Arc<K>> {
        let state = self.read();
        let objects = state.objects.values().flat_map(BTreeMap::values);
        objects.map(|entry| Arc::clone(&entry.object)).collect()
    }

    /// Objects that exist but cannot be decoded, with the error. One that could be decoded before is kept as it was
    /// then; one that never could is in no other list, so a caller that needs a complete list must check this one too.
    pub fn undecodable(&self, namespace: &str) -> Vec<(String, String)> {
        let state = self.read();
        let in_namespace = state.undecodable.iter().filter(|(key, _)| key.namespace == namespace);
        in_namespace
            .map(|(key, error)| (key.name.clone(), error.clone()))
            .collect()
    }

    fn read(&self) -> RwLockReadGuard<'_, State<K>> {
        self.0.state.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self) -> RwLockWriteGuard<'_, State<K>> {
        self.0.state.write().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<K: Resource<DynamicType = ()>> Cache<K> {
    /// The objects this owner controls, by namespace and name.
    pub fn owned_by(&self, owner_uid: &str) -> Vec<Arc<K>> {
        let controls = |object: &K| {
            let owners = object.meta().owner_references.iter().flatten();
            owners
                .into_iter()
                .any(|owner| owner.uid == owner_uid && owner.controller == Some(true))
        };
        let mut objects = self.dependents_of(owner_uid);
        objects.retain(|object| controls(object));
        objects
    }

    /// The objects that have an owner reference to this owner, also those it shares with others, by namespace and name.
    pub fn dependents_of(&self, owner_uid: &str) -> Vec<Arc<K>> {
        let state = self.read();
        let mut keys: Vec<&Key> = state.dependents.get(owner_uid).into_iter().flatten().collect();
        keys.sort();
        keys.into_iter()
            .filter_map(|key| state.entry(&key.namespace, &key.name))
            .map(|entry| Arc::clone(&entry.object))
            .collect()
    }

    /// The object of this name if it is this owner's child, and no other object that is in its place.
    pub fn child_of<Owner: Resource<DynamicType = ()>>(&self, owner: &Owner, name: &str) -> Option<Arc<K>> {
        let namespace = owner.meta().namespace.as_deref().unwrap_or_default();
        let state = self.read();
        let Entry { object, field_sets } = state.entry(namespace, name)?;
        let ownership = Ownership::of(object.meta(), &[reference(owner)], field_sets.any());
        (ownership == Ownership::Ours).then(|| Arc::clone(object))
    }

    /// Records that an object of another owner has a wanted name, and returns whether that is new. The waiting objects
    /// are woken when it is deleted.
    pub(super) fn contest(&self, key: &Key, owner: String, until: Instant, waiting: Vec<(Trigger, Key)>) -> bool {
        let contested = Contested { owner, until, waiting };
        self.write().contested.insert(key.clone(), contested).is_none()
    }

    /// The owner of the object that has a wanted name, if that was seen a short time ago.
    pub(super) fn contested(&self, key: &Key, now: Instant) -> Option<String> {
        let state = self.read();
        let contested = state.contested.get(key).filter(|contested| now < contested.until)?;
        Some(contested.owner.clone())
    }

    /// A hash of the fields that our field manager owned when the object was last seen.
    pub(super) fn field_set(&self, key: &Key, manager: &str) -> Option<u64> {
        let state = self.read();
        state.entry(&key.namespace, &key.name)?.field_sets.of(manager)
    }

    /// Waits until the condition holds for the cached objects.
    pub(super) async fn wait_until(&self, mut holds: impl FnMut(&Self) -> bool) {
        let mut events = self.0.events.subscribe();
        while !holds(self) {
            if events.changed().await.is_err() {
                return;
            }
        }
    }

    /// Whether the watch has delivered this version of the object, or a later one.
    pub(super) fn has_seen(&self, key: &Key, version: ResourceVersion) -> bool {
        let state = self.read();
        state.seen >= version
            || state
                .entry(&key.namespace, &key.name)
                .and_then(|entry| ResourceVersion::of(entry.object.as_ref()))
                .is_some_and(|seen| seen >= version)
    }
}

impl<K: Object> Cache<K> {
    /// Adds or replaces an object as a watch would.
    pub fn insert(&self, object: K) {
        Intake::new(self.clone(), None).take(Event::Apply(object));
    }

    /// Removes an object as a watch would.
    pub fn remove(&self, object: K) {
        Intake::new(self.clone(), None).take(Event::Delete(object));
    }

    /// Removes what this kind's cache does not hold from an object.
    pub(crate) fn trim(&self, object: &mut K) {
        let meta = object.meta_mut();
        meta.managed_fields = None;
        if let Some(annotations) = &mut meta.annotations {
            annotations.remove(LAST_APPLIED);
        }
        (self.0.rules.trim)(object);
    }
}

impl<K> State<K> {
    fn entry(&self, namespace: &str, name: &str) -> Option<&Entry<K>> {
        self.objects.get(namespace)?.get(name)
    }
}

impl<K: Resource<DynamicType = ()>> State<K> {
    fn put(&mut self, key: &Key, entry: Entry<K>) -> Delta<K> {
        let after = Arc::clone(&entry.object);
        for owner in owner_uids(after.as_ref()) {
            self.dependents.entry(owner).or_default().insert(key.clone());
        }
        let names = self.objects.entry(key.namespace.clone()).or_default();
        let before = names.insert(key.name.clone(), entry).map(|entry| entry.object);
        if let Some(before) = &before {
            self.forget_owners(key, before, Some(&after));
        }
        Delta {
            before,
            after: Some(after),
        }
    }

    fn take(&mut self, key: &Key) -> Option<Delta<K>> {
        let names = self.objects.get_mut(&key.namespace)?;
        let before = names.remove(&key.name)?.object;
        if names.is_empty() {
            self.objects.remove(&key.namespace);
        }
        self.forget_owners(key, &before, None);
        Some(Delta {
            before: Some(before),
            after: None,
        })
    }

    fn forget_owners(&mut self, key: &Key, before: &K, after: Option<&K>) {
        let kept: Vec<String> = after.map(owner_uids).unwrap_or_default();
        for owner in owner_uids(before) {
            if kept.contains(&owner) {
                continue;
            }
            if let Some(keys) = self.dependents.get_mut(&owner) {
                keys.remove(key);
                if keys.is_empty() {
                    self.dependents.remove(&owner);
                }
            }
        }
    }

    fn saw(&mut self, object: &impl Resource) {
        if let Some(version) = ResourceVersion::of(object) {
            self.seen = self.seen.max(version);
        }
    }
}

fn owner_uids(object: &impl Resource) -> Vec<String> {
    let owners = object.meta().owner_references.iter().flatten();
    owners.map(|owner| owner.uid.clone()).collect()
}

/// Writes the events of one watch into the cache and returns what changed.
#[derive(Debug)]
pub(super) struct Intake<K> {
    cache: Cache<K>,
    /// The watch's namespace, or `None` for all.
    namespace: Option<String>,
    /// The keys of the list that is being received, so far.
    listed: HashSet<Key>,
}

impl<K: Object> Intake<K> {
    pub(super) fn new(cache: Cache<K>, namespace: Option<String>) -> Self {
        Self {
            cache,
            namespace,
            listed: HashSet::new(),
        }
    }

    /// Records an object that cannot be decoded. The last version that could be decoded stays.
    pub(super) fn refuse(&mut self, object: &InvalidObject) -> Key {
        let key = Key::of_meta(&object.metadata);
        self.listed.insert(key.clone());
        let mut state = self.cache.write();
        state.undecodable.insert(key.clone(), object.error.clone());
        key
    }

    /// Removes a deleted object that could not be decoded, with its last decoded version.
    pub(super) fn forget(&mut self, object: &InvalidObject) -> Vec<Delta<K>> {
        let key = Key::of_meta(&object.metadata);
        let mut state = self.cache.write();
        state.undecodable.remove(&key);
        let gone = state.take(&key).into_iter().collect();
        drop(state);
        self.cache.0.events.send_replace(());
        gone
    }

    pub(super) fn take(&mut self, event: Event<K>) -> Vec<Delta<K>> {
        let deltas = match event {
            Event::Init => {
                self.listed.clear();
                return Vec::new();
            }
            // Each object is stored at once, so that a list never needs the memory of two.
            Event::InitApply(object) => {
                self.listed.insert(Key::of(&object));
                self.put(object)
            }
            Event::InitDone => self.sweep(),
            Event::Apply(object) => self.put(object),
            Event::Delete(object) => self.delete(&object),
        };
        self.cache.0.events.send_replace(());
        deltas
    }

    /// Removes what the list does not hold: it was deleted while the watch was broken.
    fn sweep(&mut self) -> Vec<Delta<K>> {
        let listed = std::mem::take(&mut self.listed);
        let mut state = self.cache.write();
        let ours = |namespace: &str| self.namespace.as_deref().is_none_or(|own| own == namespace);
        state
            .undecodable
            .retain(|key, _| !ours(&key.namespace) || listed.contains(key));
        let gone: Vec<Key> = state
            .objects
            .iter()
            .filter(|(namespace, _)| ours(namespace))
            .flat_map(|(namespace, names)| names.keys().map(|name| Key::new(namespace.clone(), name.clone())))
            .filter(|key| !listed.contains(key))
            .collect();
        gone.iter().filter_map(|key| state.take(key)).collect()
    }

    fn put(&self, mut object: K) -> Vec<Delta<K>> {
        let key = Key::of(&object);
        let managed = object.meta_mut().managed_fields.take();
        self.cache.trim(&mut object);
        let mut state = self.cache.write();
        state.saw(&object);
        state.undecodable.remove(&key);
        if !(self.cache.rules().is_relevant)(&object) {
            return state.take(&key).into_iter().collect();
        }
        let unchanged = state
            .entry(&key.namespace, &key.name)
            .is_some_and(|entry| same_version(entry.object.as_ref(), &object));
        if unchanged {
            return Vec::new();
        }
        let entry = Entry {
            object: Arc::new(object),
            field_sets: FieldSets::read(managed.as_deref().unwrap_or_default()),
        };
        vec![state.put(&key, entry)]
    }

    fn delete(&self, object: &K) -> Vec<Delta<K>> {
        let key = Key::of(object);
        let mut state = self.cache.write();
        state.saw(object);
        state.undecodable.remove(&key);
        for (trigger, waiting) in state.contested.remove(&key).into_iter().flat_map(|it| it.waiting) {
            trigger.wake(waiting);
        }
        state.take(&key).into_iter().collect()
    }
}

/// Whether both are the same version of an object. A list after a broken watch repeats known versions.
fn same_version(one: &impl Resource, other: &impl Resource) -> bool {
    let (one, other) = (one.meta(), other.meta());
    one.resource_version.is_some() && one.resource_version == other.resource_version && one.uid == other.uid
}

#[cfg(test)]
mod tests;
