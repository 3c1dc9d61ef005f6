//! What a writer remembers of its applies, to skip those that would change nothing.

use std::{
    any::TypeId,
    collections::HashMap,
    hash::{DefaultHasher, Hash, Hasher},
    sync::{Mutex, MutexGuard, PoisonError},
};

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

use crate::Key;

/// With more objects than this the memory is cleared, which costs one request per object.
const MAX_OBJECTS: usize = 50_000;

/// By kind and object.
#[derive(Debug, Default)]
pub(super) struct Memory(Mutex<HashMap<(TypeId, Key), Known>>);

#[derive(Debug, Default)]
struct Known {
    uid: Option<String>,
    applied: Option<LastApply>,
    status: Option<Exchange>,
    /// The hash of foreign fields that were re-added after they were removed.
    futile: Option<u64>,
}

/// The hashes of what was sent last and of the result: an older API server drops fields it does not know.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Exchange {
    pub(super) sent: u64,
    pub(super) result: u64,
}

/// The same for an apply, with the hash of the fields that it made ours.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct LastApply {
    pub(super) exchange: Exchange,
    pub(super) field_set: Option<u64>,
}

impl Memory {
    pub(super) fn applied<K: 'static>(&self, key: &Key, meta: &ObjectMeta, applied: LastApply) {
        self.change::<K>(key, meta, |known| known.applied = Some(applied));
    }

    /// The last apply to the object with this UID.
    pub(super) fn last_applied<K: 'static>(&self, key: &Key, meta: &ObjectMeta) -> Option<LastApply> {
        self.read::<K, _>(key, meta, |known| known.applied)
    }

    pub(super) fn wrote_status<K: 'static>(&self, key: &Key, meta: &ObjectMeta, exchange: Exchange) {
        self.change::<K>(key, meta, |known| known.status = Some(exchange));
    }

    /// The last status written to the object with this UID.
    pub(super) fn last_status<K: 'static>(&self, key: &Key, meta: &ObjectMeta) -> Option<Exchange> {
        self.read::<K, _>(key, meta, |known| known.status)
    }

    pub(super) fn futile<K: 'static>(&self, key: &Key, meta: &ObjectMeta, extras: &[String]) {
        self.change::<K>(key, meta, |known| known.futile = Some(hash(extras)));
    }

    pub(super) fn is_futile<K: 'static>(&self, key: &Key, meta: &ObjectMeta, extras: &[String]) -> bool {
        self.read::<K, _>(key, meta, |known| known.futile) == Some(hash(extras))
    }

    fn read<K: 'static, T>(&self, key: &Key, meta: &ObjectMeta, read: impl FnOnce(&Known) -> Option<T>) -> Option<T> {
        let memory = self.lock();
        let known = memory.get(&(TypeId::of::<K>(), key.clone()));
        known.filter(|known| known.uid == meta.uid).and_then(read)
    }

    fn change<K: 'static>(&self, key: &Key, meta: &ObjectMeta, change: impl FnOnce(&mut Known)) {
        let mut memory = self.lock();
        if memory.len() >= MAX_OBJECTS {
            memory.clear();
        }
        let known = memory.entry((TypeId::of::<K>(), key.clone())).or_default();
        if known.uid != meta.uid {
            *known = Known {
                uid: meta.uid.clone(),
                ..Known::default()
            };
        }
        change(known);
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<(TypeId, Key), Known>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Hashes a value.
pub(super) fn hash<T: Hash + ?Sized>(value: &T) -> u64 {
    let mut hasher = DefaultHasher::new();
    value.hash(&mut hasher);
    hasher.finish()
}
