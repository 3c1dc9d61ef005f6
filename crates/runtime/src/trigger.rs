//! Wakes objects from outside the watches, for instance after a poll of a cluster.

use std::{
    any::TypeId,
    collections::HashMap,
    fmt,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};

use crate::{Key, Object};

/// Receives the keys of one kind.
pub type Inbox = UnboundedReceiver<Key>;

type Senders = HashMap<TypeId, UnboundedSender<Key>>;

/// The ways into the queues of all kinds, so that kinds can wake each other. A clone shares them.
#[derive(Debug, Clone, Default)]
pub struct Triggers(Arc<Mutex<Senders>>);

impl Triggers {
    /// Reconciles this object soon. A key that already waits is not queued again. While the kind does not run (a
    /// standby, or the end of the process) the key is dropped: a kind that starts reconciles every object anyway.
    pub fn wake<K: Object>(&self, key: Key) {
        self.of::<K>().wake(key);
    }

    /// The trigger of one kind.
    pub fn of<K: Object>(&self) -> Trigger {
        Trigger {
            triggers: self.clone(),
            kind: TypeId::of::<K>(),
        }
    }

    /// Receives the keys of one kind from now on.
    pub fn inbox<K: Object>(&self) -> Inbox {
        let (sender, inbox) = unbounded_channel();
        self.senders().insert(TypeId::of::<K>(), sender);
        inbox
    }

    fn senders(&self) -> MutexGuard<'_, Senders> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Wakes objects of one kind.
#[derive(Clone)]
pub struct Trigger {
    triggers: Triggers,
    kind: TypeId,
}

impl Trigger {
    /// Reconciles this object soon: see [`Triggers::wake`].
    pub fn wake(&self, key: Key) {
        if let Some(sender) = self.triggers.senders().get(&self.kind) {
            drop(sender.send(key));
        }
    }
}

impl fmt::Debug for Trigger {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Trigger").finish_non_exhaustive()
    }
}
