//! Passes changes from the watches to the kinds, and wakes objects from outside the watches.

use std::{
    any::TypeId,
    collections::BTreeMap,
    sync::{Arc, Mutex},
};

use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};

use crate::{Change, Key, Object, lock};

/// What a kind has to react to.
#[derive(Debug, Clone)]
pub enum Signal {
    /// One object of any kind changed.
    Change(Change),
    /// Something changed that affects every object.
    Everything,
    /// This object of the kind is to be reconciled.
    Wake(Key),
}

/// The ways into the queues of all kinds, so that kinds can wake each other. A clone shares them.
///
/// The channels have no bound: a watch must never wait for a kind, and a kind does nothing with a signal but put keys
/// into its queue. The kinds get a signal in the same order each time.
#[derive(Debug, Clone, Default)]
pub struct Triggers(Arc<Mutex<BTreeMap<TypeId, UnboundedSender<Signal>>>>);

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

    /// Receives the signals of one kind from now on.
    pub fn listen<K: Object>(&self) -> UnboundedReceiver<Signal> {
        let (sender, signals) = unbounded_channel();
        lock(&self.0).insert(TypeId::of::<K>(), sender);
        signals
    }

    /// Passes a signal to every kind that runs.
    pub(crate) fn send(&self, signal: &Signal) {
        lock(&self.0).retain(|_, kind| kind.send(signal.clone()).is_ok());
    }
}

/// Wakes objects of one kind.
#[derive(Debug, Clone)]
pub struct Trigger {
    triggers: Triggers,
    kind: TypeId,
}

impl Trigger {
    /// Reconciles this object soon: see [`Triggers::wake`].
    pub fn wake(&self, key: Key) {
        if let Some(kind) = lock(&self.triggers.0).get(&self.kind) {
            drop(kind.send(Signal::Wake(key)));
        }
    }
}
