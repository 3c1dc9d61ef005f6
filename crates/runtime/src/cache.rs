//! The objects of one kind as its watches have seen them.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap, HashSet},
    sync::{Arc, PoisonError, RwLock, RwLockReadGuard},
};

use host::watch;
use kube::{Client, Resource};
use tokio::time::Instant;

use crate::{
    Delta, Error, Key, Object, Reach, Rules, Trigger,
    field_sets::{FieldSets, field_sets},
    ownership::{Ownership, controller},
};

/// An annotation that holds a copy of the whole object, which nothing here reads.
const LAST_APPLIED: &str = "kubectl.kubernetes.io/last-applied-configuration";

/// How often an object is read that changes meanwhile.
const LOADS: u32 = 3;

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
    objects: BTreeMap<Key, Entry<K>>,
    /// The UIDs of controllers, each with the keys of the objects it controls.
    controlled: BTreeSet<(String, Key)>,
    /// Objects that no reconcile has needed yet, each with its resourceVersion.
    names: BTreeMap<Key, u128>,
    /// Objects that cannot be decoded, each with the error.
    undecodable: BTreeMap<Key, String>,
    /// Objects of other owners whose names are wanted.
    contested: HashMap<Key, Contested>,
    /// The highest resourceVersion that an event of each namespace carried. Each may have a watch of its own.
    seen: BTreeMap<String, u128>,
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

/// What of an object to hold.
enum Hold {
    Object,
    Name,
    Nothing,
}

#[derive(Debug)]
struct Entry<K> {
    object: Arc<K>,
    field_sets: FieldSets,
}

/// Resource versions of one kind grow, and since Kubernetes 1.35 clients may compare them.
pub(super) fn resource_version(object: &impl Resource) -> Option<u128> {
    object.meta().resource_version.as_deref()?.parse().ok()
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
                controlled: BTreeSet::new(),
                names: BTreeMap::new(),
                undecodable: BTreeMap::new(),
                contested: HashMap::new(),
                seen: BTreeMap::new(),
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
        let state = self.read();
        let entry = state.objects.get(&Key::new(namespace, name))?;
        Some(Arc::clone(&entry.object))
    }

    /// Why the object of this name cannot be decoded, if it exists and cannot. An older version of it may be cached.
    pub fn undecodable(&self, namespace: &str, name: &str) -> Option<String> {
        let state = self.read();
        state.undecodable.get(&Key::new(namespace, name)).cloned()
    }

    /// The objects of a namespace, by name.
    pub fn list(&self, namespace: &str) -> Vec<Arc<K>> {
        let state = self.read();
        let objects = state.objects.range(Key::new(namespace, "")..);
        let objects = objects.take_while(|(key, _)| key.namespace == namespace);
        objects.map(|(_, entry)| Arc::clone(&entry.object)).collect()
    }

    /// All objects, by namespace and name.
    pub fn all(&self) -> Vec<Arc<K>> {
        let state = self.read();
        state.objects.values().map(|entry| Arc::clone(&entry.object)).collect()
    }

    /// Records that an object of another owner has a wanted name, and returns whether that is new. The waiting objects
    /// are woken when it is deleted.
    pub(super) fn contest(&self, key: &Key, owner: String, until: Instant, waiting: Vec<(Trigger, Key)>) -> bool {
        let contested = Contested { owner, until, waiting };
        self.change(|state| state.contested.insert(key.clone(), contested).is_none())
    }

    /// The owner of the object that has a wanted name, if that was seen a short time ago.
    pub(super) fn contested(&self, key: &Key, now: Instant) -> Option<String> {
        let state = self.read();
        let contested = state.contested.get(key).filter(|contested| now < contested.until)?;
        Some(contested.owner.clone())
    }

    /// A hash of the fields that our field manager owned when the object was last seen.
    pub(super) fn field_set(&self, key: &Key, manager: &str) -> Option<u64> {
        self.read().objects.get(key)?.field_sets.get(manager).copied()
    }

    /// Whether a watch has delivered this resourceVersion of an object in this namespace, or a later one.
    pub(super) fn has_seen(&self, namespace: &str, version: u128) -> bool {
        self.read().seen.get(namespace).is_some_and(|seen| *seen >= version)
    }

    /// Waits until the condition holds for the cached objects.
    pub(super) async fn wait_until(&self, mut holds: impl FnMut(&Self) -> bool) {
        // The sender lives as long as `self`.
        let _ = self.0.events.subscribe().wait_for(|()| holds(self)).await;
    }

    fn read(&self) -> RwLockReadGuard<'_, State<K>> {
        self.0.state.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// Changes the objects, then notifies everybody who waits for a change.
    fn change<T>(&self, change: impl FnOnce(&mut State<K>) -> T) -> T {
        let changed = change(&mut self.0.state.write().unwrap_or_else(PoisonError::into_inner));
        // Only without the lock: whoever waits reads the objects.
        self.0.events.send_replace(());
        changed
    }
}

impl<K: Object> Cache<K> {
    /// The object of this name if it is this owner's child, and no other object that is in its place.
    pub fn child_of<Owner: Resource<DynamicType = ()>>(&self, owner: &Owner, name: &str) -> Option<Arc<K>> {
        let namespace = owner.meta().namespace.as_deref().unwrap_or_default();
        let state = self.read();
        let Entry { object, field_sets } = state.objects.get(&Key::new(namespace, name))?;
        let ownership = Ownership::of(object.meta(), owner.owner_ref(&()).as_slice(), !field_sets.is_empty());
        (ownership == Ownership::Ours).then(|| Arc::clone(object))
    }

    /// The objects this owner controls, by namespace and name.
    pub fn owned_by(&self, owner_uid: &str) -> Vec<Arc<K>> {
        let state = self.read();
        let controlled = state.controlled.range((owner_uid.to_owned(), Key::new("", ""))..);
        let controlled = controlled.take_while(|(uid, _)| uid == owner_uid);
        let objects = controlled.filter_map(|(_, key)| state.objects.get(key));
        objects.map(|entry| Arc::clone(&entry.object)).collect()
    }

    /// Adds or replaces an object, and returns what changed.
    pub fn insert(&self, object: K) -> Option<Delta<K>> {
        self.put(object, |_, _| Hold::Object)
    }

    /// Adds or replaces an object that a watch delivered, or the name of one that no reconcile has needed yet.
    pub(crate) fn insert_watched(&self, object: K) -> Option<Delta<K>> {
        let on_demand = self.0.rules.on_demand_unless.is_some_and(|unless| !unless(&object));
        self.put(object, |state, key| match state.objects.get(key) {
            None if on_demand => Hold::Name,
            _ => Hold::Object,
        })
    }

    /// Caches the object of this name, if only the name is known.
    pub async fn load(&self, client: &Client, key: &Key) -> Result<(), Error> {
        let api = K::Scope::api::<K>(client.clone(), Some(&key.namespace));
        let failed = |error| Error::of_request("get", format!("{} {key}", K::kind(&())), error);
        // The watch may deliver a newer version meanwhile.
        for _ in 0..LOADS {
            if !self.read().names.contains_key(key) {
                break;
            }
            let Some(object) = api.get_opt(&key.name).await.map_err(failed)? else {
                self.change(|state| state.names.remove(key));
                break;
            };
            let version = resource_version(&object);
            self.put(object, |state, key| match state.names.get(key) {
                Some(known) if Some(*known) <= version => Hold::Object,
                _ => Hold::Nothing,
            });
        }
        Ok(())
    }

    fn put(&self, mut object: K, hold: impl FnOnce(&State<K>, &Key) -> Hold) -> Option<Delta<K>> {
        let (key, field_sets) = (Key::of(&object), field_sets(object.meta()));
        self.trim(&mut object);
        self.change(|state| {
            match hold(state, &key) {
                Hold::Nothing => return None,
                Hold::Name => {
                    state.saw(&object);
                    let version = resource_version(&object).unwrap_or_default();
                    // A list after a broken watch repeats known versions.
                    let is_new = state.names.insert(key, version) != Some(version);
                    return is_new.then(|| Delta::appeared(Arc::new(object)));
                }
                Hold::Object => state.names.remove(&key),
            };
            state.saw(&object);
            state.undecodable.remove(&key);
            if !(self.0.rules.is_relevant)(&object) {
                return state.take(&key);
            }
            let known = state.objects.get(&key);
            if known.is_some_and(|known| same_version(known.object.as_ref(), &object)) {
                return None;
            }
            let before = state.take(&key).and_then(|delta| delta.before);
            if let Some(owner) = controller(object.meta()) {
                state.controlled.insert((owner.uid.clone(), key.clone()));
            }
            let object = Arc::new(object);
            let after = Some(Arc::clone(&object));
            state.objects.insert(key, Entry { object, field_sets });
            Some(Delta { before, after })
        })
    }

    /// Records that an object cannot be decoded. Of an older version that could be, everything stays.
    pub fn insert_undecodable(&self, object: &impl Resource, error: String) {
        self.change(|state| {
            state.saw(object);
            state.undecodable.insert(Key::of(object), error);
        });
    }

    /// Removes an object as a watch would, and returns what changed.
    pub fn remove(&self, object: &impl Resource) -> Option<Delta<K>> {
        let key = Key::of(object);
        self.change(|state| {
            state.saw(object);
            state.names.remove(&key);
            state.undecodable.remove(&key);
            for (trigger, waiting) in state.contested.remove(&key).into_iter().flat_map(|it| it.waiting) {
                trigger.wake(waiting);
            }
            state.take(&key)
        })
    }

    /// Removes the objects of a namespace, or of all, that a list does not hold, and returns what changed: they were
    /// deleted while the watch was broken.
    pub(super) fn sweep(&self, namespace: Option<&str>, listed: &HashSet<Key>) -> Vec<Delta<K>> {
        let is_gone = |key: &&Key| namespace.is_none_or(|own| own == key.namespace) && !listed.contains(*key);
        self.change(|state| {
            state.names.retain(|key, _| !is_gone(&key));
            state.undecodable.retain(|key, _| !is_gone(&key));
            let gone: Vec<Key> = state.objects.keys().filter(is_gone).cloned().collect();
            gone.iter().filter_map(|key| state.take(key)).collect()
        })
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

impl<K: Object> State<K> {
    fn take(&mut self, key: &Key) -> Option<Delta<K>> {
        let before = self.objects.remove(key)?.object;
        if let Some(owner) = controller(before.meta()) {
            self.controlled.remove(&(owner.uid.clone(), key.clone()));
        }
        Some(Delta {
            before: Some(before),
            after: None,
        })
    }

    fn saw(&mut self, object: &impl Resource) {
        let namespace = object.meta().namespace.clone().unwrap_or_default();
        let seen = self.seen.entry(namespace).or_default();
        *seen = resource_version(object).unwrap_or_default().max(*seen);
    }
}

/// Whether both are the same version of an object. A list after a broken watch repeats known versions.
pub(super) fn same_version(one: &impl Resource, other: &impl Resource) -> bool {
    let (one, other) = (one.meta(), other.meta());
    one.resource_version.is_some() && one.resource_version == other.resource_version && one.uid == other.uid
}

#[cfg(test)]
mod tests;
