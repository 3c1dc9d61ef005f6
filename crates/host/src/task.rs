//! A running task.

use tokio::task::{JoinError, JoinHandle};

/// A task that [`Host::spawn`](crate::Host::spawn) started. It is aborted when this is dropped, unless it was detached.
#[derive(Debug)]
pub struct Task(pub(crate) Option<JoinHandle<()>>);

impl Task {
    /// Lets it run to its end, whatever becomes of the caller.
    pub fn detach(mut self) {
        self.0 = None;
    }

    pub fn is_finished(&self) -> bool {
        self.0.as_ref().is_none_or(JoinHandle::is_finished)
    }

    /// Waits for its end, or for the panic that ended it. Dropping the wait aborts the task.
    pub async fn join(mut self) -> Result<(), JoinError> {
        match self.0.as_mut() {
            Some(handle) => handle.await,
            None => Ok(()),
        }
    }
}

impl Drop for Task {
    fn drop(&mut self) {
        if let Some(handle) = &self.0 {
            handle.abort();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{future::pending, sync::Arc, time::Duration};

    use crate::Host;

    #[tokio::test(start_paused = true)]
    async fn a_task_ends_with_its_handle_unless_it_was_detached() {
        let host = Host::real();
        let alive = Arc::new(());
        let held = |alive: Arc<()>| async move {
            pending::<()>().await;
            drop(alive);
        };
        let task = host.spawn("held", held(Arc::clone(&alive)));
        host.spawn("detached", held(Arc::clone(&alive))).detach();
        tokio::time::sleep(Duration::from_secs(1)).await;
        assert_eq!(Arc::strong_count(&alive), 3);
        drop(task);
        tokio::time::sleep(Duration::from_secs(1)).await;
        assert_eq!(Arc::strong_count(&alive), 2);
    }
}
