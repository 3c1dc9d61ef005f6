//! A value that tasks wait for changes of.
//!
//! Like `tokio::sync::watch`, which wakes tasks in a random order; this one wakes them in the order in which they wait, so that a
//! simulation repeats itself.

use std::{
    fmt,
    ops::Deref,
    sync::{Arc, PoisonError, RwLock, RwLockReadGuard},
};

use tokio::sync::Notify;

/// Creates a value with its first receiver.
pub fn channel<T>(value: T) -> (Sender<T>, Receiver<T>) {
    let sender = Sender::new(value);
    let receiver = sender.subscribe();
    (sender, receiver)
}

/// The sender is gone.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the value is not changed any more")]
pub struct Closed;

struct Shared<T> {
    state: RwLock<State<T>>,
    changed: Notify,
}

struct State<T> {
    value: T,
    version: u64,
    is_closed: bool,
}

impl<T> Shared<T> {
    fn read(&self) -> RwLockReadGuard<'_, State<T>> {
        self.state.read().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Changes the value. A clone changes the same one.
pub struct Sender<T>(Arc<Owner<T>>);

/// All senders. Receivers notice its end.
struct Owner<T>(Arc<Shared<T>>);

/// Waits for changes. A new one has seen the value.
pub struct Receiver<T> {
    shared: Arc<Shared<T>>,
    seen: u64,
}

/// The value, which cannot change meanwhile.
pub struct Ref<'a, T>(RwLockReadGuard<'a, State<T>>);

impl<T> Sender<T> {
    pub fn new(value: T) -> Self {
        let state = State {
            value,
            version: 0,
            is_closed: false,
        };
        let shared = Shared {
            state: RwLock::new(state),
            changed: Notify::new(),
        };
        Self(Arc::new(Owner(Arc::new(shared))))
    }

    pub fn borrow(&self) -> Ref<'_, T> {
        Ref(self.shared().read())
    }

    fn shared(&self) -> &Arc<Shared<T>> {
        &self.0.0
    }

    pub fn subscribe(&self) -> Receiver<T> {
        Receiver {
            shared: Arc::clone(self.shared()),
            seen: self.shared().read().version,
        }
    }

    /// Returns the value before.
    pub fn send_replace(&self, mut value: T) -> T {
        self.send_modify(|old| std::mem::swap(old, &mut value));
        value
    }

    pub fn send_modify(&self, modify: impl FnOnce(&mut T)) {
        self.send_if_modified(|value| {
            modify(value);
            true
        });
    }

    /// Wakes tasks only if `modify` returns that it has changed the value, and returns the same.
    pub fn send_if_modified(&self, modify: impl FnOnce(&mut T) -> bool) -> bool {
        let is_modified = {
            let mut state = self.shared().state.write().unwrap_or_else(PoisonError::into_inner);
            let is_modified = modify(&mut state.value);
            state.version += u64::from(is_modified);
            is_modified
        };
        if is_modified {
            self.shared().changed.notify_waiters();
        }
        is_modified
    }
}

impl<T> Clone for Sender<T> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<T: Default> Default for Sender<T> {
    fn default() -> Self {
        Self::new(T::default())
    }
}

impl<T> Drop for Owner<T> {
    fn drop(&mut self) {
        self.0.state.write().unwrap_or_else(PoisonError::into_inner).is_closed = true;
        self.0.changed.notify_waiters();
    }
}

impl<T> Receiver<T> {
    pub fn borrow(&self) -> Ref<'_, T> {
        Ref(self.shared.read())
    }

    /// The value, which counts as seen.
    pub fn borrow_and_update(&mut self) -> Ref<'_, T> {
        let state = self.shared.read();
        self.seen = state.version;
        Ref(state)
    }

    /// Waits until the value is another than the one that was seen last.
    pub async fn changed(&mut self) -> Result<(), Closed> {
        let Self { shared, seen } = self;
        loop {
            // Created first: it notices every change from here on.
            let changed = shared.changed.notified();
            {
                let state = shared.read();
                if state.version != *seen {
                    *seen = state.version;
                    return Ok(());
                }
                if state.is_closed {
                    return Err(Closed);
                }
            }
            changed.await;
        }
    }

    /// Waits until the value is as wanted.
    pub async fn wait_for(&mut self, mut is_wanted: impl FnMut(&T) -> bool) -> Result<Ref<'_, T>, Closed> {
        let Self { shared, seen } = self;
        loop {
            let changed = shared.changed.notified();
            {
                let state = shared.read();
                *seen = state.version;
                if is_wanted(&state.value) {
                    return Ok(Ref(state));
                }
                if state.is_closed {
                    return Err(Closed);
                }
            }
            changed.await;
        }
    }
}

impl<T> Clone for Receiver<T> {
    fn clone(&self) -> Self {
        Self {
            shared: Arc::clone(&self.shared),
            seen: self.seen,
        }
    }
}

impl<T> Deref for Ref<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.0.value
    }
}

impl<T: fmt::Debug> fmt::Debug for Sender<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Sender").field(&self.shared().read().value).finish()
    }
}

impl<T: fmt::Debug> fmt::Debug for Receiver<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Receiver").field(&self.shared.read().value).finish()
    }
}

impl<T: fmt::Debug> fmt::Debug for Ref<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.value.fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use super::*;

    #[tokio::test]
    async fn tasks_wake_in_the_order_in_which_they_wait() {
        let sender = Sender::new(0);
        let order = Arc::new(Mutex::new(Vec::new()));
        let mut tasks = Vec::new();
        for number in 0..20 {
            let (mut receiver, order) = (sender.subscribe(), Arc::clone(&order));
            tasks.push(tokio::spawn(async move {
                receiver.wait_for(|value| *value == 1).await.map(drop).unwrap();
                order.lock().unwrap().push(number);
            }));
        }
        tokio::task::yield_now().await;
        sender.send_replace(1);
        for task in tasks {
            task.await.unwrap();
        }
        assert_eq!(*order.lock().unwrap(), (0..20).collect::<Vec<_>>());
    }

    #[tokio::test]
    async fn a_receiver_sees_each_change_once_and_the_end() {
        let (sender, mut receiver) = channel(0);
        assert!(!sender.send_if_modified(|_| false));
        assert_eq!(sender.send_replace(1), 0);
        receiver.changed().await.unwrap();
        assert_eq!(*receiver.borrow(), 1);
        sender.send_modify(|value| *value = 2);
        assert_eq!(*receiver.borrow_and_update(), 2);
        let mut other = receiver.clone();
        drop(sender);
        assert_eq!(receiver.changed().await, Err(Closed));
        assert_eq!(other.wait_for(|value| *value == 3).await.map(drop), Err(Closed));
        assert!(other.wait_for(|value| *value == 2).await.is_ok());
    }
}
