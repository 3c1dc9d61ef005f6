//! What a writer remembers of its writes, to skip those that would change nothing.

use std::{any::TypeId, collections::HashMap, sync::Mutex};

use crate::{Key, Object, lock};

/// With more objects than this the memory is cleared, which costs one request per object.
const MAX_OBJECTS: usize = 50_000;

/// By kind and object.
#[derive(Debug, Default)]
pub(super) struct Memory(Mutex<HashMap<(TypeId, Key), Known>>);

/// The last writes to the object with this UID.
#[derive(Debug, Default)]
pub(super) struct Known {
    uid: Option<String>,
    pub(super) applied: Option<Exchange>,
    pub(super) status: Option<Exchange>,
    /// The hash of foreign fields that were re-added after they were removed.
    pub(super) futile: Option<u64>,
}

/// The hashes of what was sent last and of the result: an older API server drops fields it does not know.
#[derive(Debug, Clone, Copy)]
pub(super) struct Exchange {
    pub(super) sent: u64,
    pub(super) result: u64,
    /// The hash of the fields that an apply made ours.
    pub(super) field_set: Option<u64>,
}

impl Memory {
    pub(super) fn read<K: Object, T>(&self, object: &K, read: impl FnOnce(&Known) -> Option<T>) -> Option<T> {
        let memory = lock(&self.0);
        let known = memory.get(&(TypeId::of::<K>(), Key::of(object)));
        known.filter(|known| known.uid == object.meta().uid).and_then(read)
    }

    pub(super) fn change<K: Object>(&self, object: &K, change: impl FnOnce(&mut Known)) {
        let mut memory = lock(&self.0);
        if memory.len() >= MAX_OBJECTS {
            memory.clear();
        }
        let known = memory.entry((TypeId::of::<K>(), Key::of(object))).or_default();
        let uid = &object.meta().uid;
        if known.uid != *uid {
            *known = Known {
                uid: uid.clone(),
                ..Known::default()
            };
        }
        change(known);
    }
}
