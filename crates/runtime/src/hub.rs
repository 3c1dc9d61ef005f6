//! Passes changes from the watches to the kinds.

use std::sync::{Arc, Mutex, PoisonError};

use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};

use crate::Change;

/// What a kind has to react to.
#[derive(Debug, Clone)]
pub(crate) enum Signal {
    /// One object changed.
    Change(Change),
    /// Something changed that affects every object.
    Everything,
}

/// Passes each signal to every kind that runs. A clone shares the listeners.
///
/// The channels have no bound: a watch must never wait for a kind, and a kind does nothing with a signal but put keys
/// into its queue.
#[derive(Debug, Clone, Default)]
pub(crate) struct Hub(Arc<Mutex<Vec<UnboundedSender<Signal>>>>);

impl Hub {
    pub(crate) fn listen(&self) -> UnboundedReceiver<Signal> {
        let (sender, receiver) = unbounded_channel();
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push(sender);
        receiver
    }

    pub(crate) fn send(&self, signal: &Signal) {
        let mut listeners = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        listeners.retain(|listener| listener.send(signal.clone()).is_ok());
    }
}
